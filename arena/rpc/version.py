"""The protocol version: what this build speaks, what it accepts, and who is too old when two do not match."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from arena.errors import ProtocolVersionError
from arena.rpc.v1 import common_pb2

PROTOCOL_VERSION = 1
ACCEPTED_VERSIONS = range(max(1, PROTOCOL_VERSION - 1), PROTOCOL_VERSION + 1)


@cache
def software_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("arena-sched")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def hello() -> common_pb2.Hello:
    """Return the greeting that opens every request of this build."""
    return common_pb2.Hello(protocol_version=PROTOCOL_VERSION, software_version=software_version())


def check_protocol(theirs: common_pb2.Hello, who: str = "the caller") -> None:
    """Refuse a peer whose protocol version this build does not speak.

    Args:
        theirs: The peer's greeting.
        who: The peer, for the message: ``agent node-3``, ``the client``.

    Raises:
        ProtocolVersionError: Named with both versions and the side that has to be upgraded.
    """
    if theirs.protocol_version in ACCEPTED_VERSIONS:
        return
    software = theirs.software_version or "of unknown version"
    if theirs.protocol_version == 0:
        why, fix = f"{who} sent no protocol version", f"send a Hello with protocol_version {PROTOCOL_VERSION}"
    elif theirs.protocol_version < PROTOCOL_VERSION:
        why, fix = f"{who} is older", f"upgrade {who} to arena-sched {software_version()}"
    else:
        why, fix = "the scheduler is older", f"upgrade the scheduler to arena-sched {software}"
    raise ProtocolVersionError(
        f"{who} (arena-sched {software}) speaks protocol version {theirs.protocol_version}, "
        f"the scheduler (arena-sched {software_version()}) speaks {_accepted()}",
        why=why,
        fix=fix,
        details={
            "theirs": str(theirs.protocol_version),
            "ours": str(PROTOCOL_VERSION),
            "their_software": theirs.software_version,
            "our_software": software_version(),
        },
    )


def _accepted() -> str:
    return " and ".join(str(number) for number in ACCEPTED_VERSIONS)
