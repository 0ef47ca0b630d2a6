"""When an agent has a share save and stop by itself, because its node goes and no scheduler asks for it. Pure: no I/O.

The rule is the scheduler's (``arena.domain.leaving``), but for what only it knows: whether a job would end by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from arena.domain.job import JobSpec
from arena.domain.launch import Finished, Finishing, Stopped, WorkerReport
from arena.domain.leaving import last_leave_at_s, leave_at_s
from arena_agent.notice import Notice

PATIENCE_S_MAX = 5.0
PATIENCE_SHARE = 1 / 6
"""How long a scheduler that is out of reach is waited for, at most, and of the time from the notice to the end."""


def leaves_by_itself_boot_s(spec: JobSpec, notice: Notice, alone_since_boot_s: float | None) -> float:
    """Return when a share is stopped without being asked, by the host's boot clock.

    Without a session as soon as the scheduler would ask for it, after some patience. With one only if it has not asked
    when it would have at the latest: a stream may be dead long before either side knows.

    Args:
        alone_since_boot_s: Since when there is no session; None where there is one.
    """
    span_s = notice.gone_boot_s - notice.told_boot_s
    patience_s = min(PATIENCE_S_MAX, PATIENCE_SHARE * span_s)
    asked_s = leave_at_s(spec, notice.gone_boot_s)
    last_s = max(asked_s, last_leave_at_s(spec, notice.told_boot_s, notice.gone_boot_s)) + patience_s
    if alone_since_boot_s is None:
        return last_s
    return min(last_s, max(asked_s, max(alone_since_boot_s, notice.told_boot_s) + patience_s))


def ends_anyway(reports: Iterable[WorkerReport]) -> bool:
    """Tell whether a share is exporting its model or has stopped: it has until its node goes, asked or not."""
    return any(isinstance(report, Finishing | Finished | Stopped) for report in reports)
