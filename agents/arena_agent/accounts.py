"""Whose account a job runs under: where an agent is root and users are known by token, each job runs as its user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from arena.errors import UserError
from arena_agent.shim.order import UnixUser


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of this host."""

    name: str
    home: Path
    user: UnixUser

    @property
    def environment(self) -> Mapping[str, str]:
        """What a login would set."""
        return {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name}

    def own(self, *paths: Path) -> None:
        """Give files to the account."""
        for path in paths:
            os.chown(path, self.user.uid, self.user.gid)


def job_account(user: str | None, *, is_root: bool, users_are_known: bool) -> Account | None:
    """Return the account that a job has to run under, None for the agent's own.

    Args:
        user: The job's user.
        is_root: Whether the agent runs as root; only then can it change accounts.
        users_are_known: Whether the scheduler knows its users by token; a name that anybody may claim opens no account.

    Raises:
        UserError: The user has no account here.
    """
    if not is_root or not users_are_known or user is None:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UserError(
            f"user {user!r} has no account on this node", fix="make one, or run the agent as another user than root"
        ) from None
    if entry.pw_uid == os.geteuid():
        return None
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    unix_user = UnixUser(uid=entry.pw_uid, gid=entry.pw_gid, group_ids=groups)
    return Account(name=entry.pw_name, home=Path(entry.pw_dir), user=unix_user)
