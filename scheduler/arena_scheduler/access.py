"""Who calls, and what they may do and see.

Tokens are kept as digests in a YAML file: ``<sha256 of the token>: {user: ann, role: user}``. Roles are ``user``,
``admin``, ``agent``, and ``metrics``, which may see those and nothing else. Without the file (trial mode, loopback
only) a caller is whom it says it is, and an admin.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from arena.domain.specbase import Name
from arena.errors import AuthenticationError, PermissionDeniedError, UserError

USER_METADATA_KEY = "x-arena-user"
_BEARER = "bearer "


class Role(StrEnum):
    """What a token is for."""

    USER = "user"
    ADMIN = "admin"
    AGENT = "agent"
    METRICS = "metrics"


class Grant(BaseModel):
    """Whom a token was issued to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: Name
    role: Role = Role.USER


_TOKENS: TypeAdapter[dict[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], Grant]] = TypeAdapter(
    dict[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], Grant]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who makes a call."""

    user: str
    role: Role

    @property
    def is_admin(self) -> bool:
        """Whether they may see and do everything."""
        return self.role is Role.ADMIN

    def owns(self, user: str) -> bool:
        """Tell whether what belongs to ``user`` is theirs to see in full and to change."""
        return self.is_admin or (self.role is Role.USER and self.user == user)

    def require_owner(self, user: str, what: str) -> None:
        """Refuse to touch what is somebody else's.

        Raises:
            PermissionDeniedError: It is.
        """
        if not self.owns(user):
            raise PermissionDeniedError(f"{what} belongs to {user}", why=f"you are {self.user}")

    def require_admin(self, what: str) -> None:
        """Refuse what only admins may do.

        Raises:
            PermissionDeniedError: The caller is none.
        """
        if not self.is_admin:
            raise PermissionDeniedError(f"only an admin may {what}", why=f"you are {self.user}, a {self.role.value}")

    def require_agent(self) -> None:
        """Refuse a session to callers that are no agents; an admin may run one.

        Raises:
            PermissionDeniedError: The caller is neither.
        """
        if self.role is Role.USER:
            raise PermissionDeniedError("only an agent may register a node", why=f"you are {self.user}, a user")


class Access:
    """Turns a call's metadata into a caller."""

    def __init__(self, grants: Mapping[str, Grant] | None) -> None:
        self._grants = grants

    @classmethod
    def from_file(cls, path: Path | None) -> Access:
        """Read the tokens file; None is trial mode.

        Raises:
            UserError: The file is missing or wrong.
        """
        if path is None:
            return cls(None)
        try:
            return cls(_TOKENS.validate_python(yaml.safe_load(path.read_text()) or {}))
        except OSError as error:
            raise UserError(f"the tokens file {path} cannot be read", why=str(error.strerror)) from error
        except (yaml.YAMLError, ValidationError) as error:
            raise UserError(
                f"the tokens file {path} is not valid",
                why=str(error).splitlines()[0],
                fix="write one line per token: <sha256 of the token>: {user: NAME, role: user|admin|agent|metrics}",
            ) from error

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Return who makes a call.

        Raises:
            AuthenticationError: There is no token, or one that nobody issued.
            PermissionDeniedError: The token is for metrics alone.
        """
        fields = {key.lower(): value for key, value in metadata if isinstance(value, str)}
        if self._grants is None:
            return Caller(user=fields.get(USER_METADATA_KEY) or "anonymous", role=Role.ADMIN)
        grant = self._grant(self._grants, fields.get("authorization", ""))
        if grant.role is Role.METRICS:
            raise PermissionDeniedError("this token is for metrics alone", why=f"it is {grant.user}'s")
        return Caller(user=grant.user, role=grant.role)

    def may_see_metrics(self, authorization: str) -> bool:
        """Tell whether somebody with this header may see metrics: whoever has a token of any role."""
        try:
            return self._grants is None or bool(self._grant(self._grants, authorization))
        except AuthenticationError:
            return False

    @staticmethod
    def _grant(grants: Mapping[str, Grant], authorization: str) -> Grant:
        if not authorization.lower().startswith(_BEARER):
            raise AuthenticationError("this scheduler wants a token", fix="set ARENA_TOKEN or give --token-file")
        digest = hashlib.sha256(authorization[len(_BEARER) :].strip().encode()).hexdigest()
        found = None
        for known, grant in grants.items():  # no early end: the time says nothing about which one matched
            if hmac.compare_digest(known, digest):
                found = grant
        if found is None:
            raise AuthenticationError("the token is not known here", fix="ask an admin for a new one")
        return found
