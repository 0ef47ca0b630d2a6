"""The typed errors of Arena: fields first, the message made from them. Pure: no I/O, no clock.

Four branches say whose turn it is: the user's (``UserError``), nobody's yet (``RefusedError``: valid, not now),
the network's or another process's (``UnavailableError``: a retry may help), ours (``InternalError``). Each has one
exit code of the command line and one gRPC code (mapped in ``arena.rpc.status``).
"""

from __future__ import annotations

from typing import Any, ClassVar


class ArenaError(Exception):
    """Base of all errors Arena raises on purpose.

    Args:
        what: What happened, one sentence without a full stop.
        why: The cause, with numbers, when it is known.
        fix: What the reader can do about it.
        details: Machine-readable fields, strings to strings, carried over gRPC.
    """

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "error"

    def __init__(self, what: str, *, why: str = "", fix: str = "", details: dict[str, str] | None = None) -> None:
        self.what = what
        self.why = why
        self.fix = fix
        self.details: dict[str, str] = dict(details or {})
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The error as one line for a tired person: what, why, what to do."""
        text = self.what
        if self.why:
            text += f": {self.why}"
        if self.fix:
            text += f". {self.fix[0].upper()}{self.fix[1:]}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.what, self.why, self.fix, self.details))


def _rebuild(kind: type[ArenaError], what: str, why: str, fix: str, details: dict[str, str]) -> ArenaError:
    return kind(what, why=why, fix=fix, details=details)


class UserError(ArenaError):
    """The request is wrong and will stay wrong: a bad spec, an unknown id, an illegal transition."""

    exit_code = 4
    code = "invalid"


class SpecError(UserError):
    """A job specification, cluster file or plan is not valid."""

    code = "spec"


class NotFoundError(UserError):
    """The named job, node or attempt does not exist."""

    exit_code = 5
    code = "not_found"


class IllegalTransitionError(UserError):
    """The request does not apply to the state the object is in."""

    code = "illegal_transition"


class AuthenticationError(UserError):
    """No token, or one that nobody issued."""

    exit_code = 6
    code = "unauthenticated"


class PermissionDeniedError(UserError):
    """The caller is known but may not do or see this."""

    exit_code = 6
    code = "permission_denied"


class ProtocolVersionError(UserError):
    """Client, agent and scheduler do not speak a common protocol version."""

    exit_code = 7
    code = "protocol_version"


class RefusedError(ArenaError):
    """The request is valid but cannot be met now; ``details`` names every failed constraint and its numbers."""

    exit_code = 4
    code = "refused"


class InfeasibleError(RefusedError):
    """No group of the cluster can hold the job under any plan."""

    code = "infeasible"


class ResourceExhaustedError(RefusedError):
    """A quota, a disk or a size limit is full."""

    exit_code = 8
    code = "exhausted"


class UnavailableError(ArenaError):
    """Somebody else is not there or busy; a retry may help."""

    exit_code = 3
    code = "unavailable"


class AlreadyRunningError(UnavailableError):
    """Another process holds the port, the database or the agent's directory."""

    code = "already_running"


class InternalError(ArenaError):
    """A fault of ours: an invariant that does not hold."""

    exit_code = 70
    code = "internal"
