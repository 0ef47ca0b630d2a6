"""What a scheduler that starts anew finds of the one before it: its store's records and its log of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from arena.domain.events import Event, built_grid
from arena.domain.history import LengthHistory
from arena.domain.paces import PaceHistory
from arena.domain.records import JobRecord
from arena.engine.ports import Restored, Step

FORGOTTEN = frozenset(
    {
        "decided_at_s",
        "decision_due",
        "due_since_s",
        "look_again_at_s",
        "reasons",
        "rest",
        "shape_dirty_at_s",
    }
)
"""What of a state ends with its process: what the latest decision said, and what made another one due."""


def inputs_of(steps: Iterable[Step]) -> Iterator[tuple[float, Event]]:
    """Yield the log of inputs, from which a run can be replayed."""
    return ((step.at_s, step.event) for step in steps)


def restored_from(steps: Iterable[Step]) -> Restored:
    """Return what a store would give back after these steps."""
    jobs: dict[str, JobRecord] = {}
    attempts, nodes, grids = {}, {}, {}
    history_index = decision_index = 0
    last_at_s = 0.0
    restart_cost, paces = None, PaceHistory()
    for step in steps:
        jobs.update({job.job_id: job for job in step.jobs})
        attempts.update({attempt.attempt_id: attempt for attempt in step.attempts})
        nodes.update({node.node_id: node for node in step.nodes})
        for node_id in step.forgotten_nodes:
            nodes.pop(node_id, None)
        built = built_grid(step.event)
        if built is not None:
            grids[built.job_id] = (built.shape, built.grid)
        history_index = max([history_index, *(entry.index for entry in step.history)])
        decision_index = max(decision_index, step.decision_index)
        last_at_s = step.at_s
        restart_cost = step.restart_cost or restart_cost
        paces = step.paces or paces
    live_jobs = {name: job for name, job in jobs.items() if not job.state.is_terminal}
    return Restored(
        jobs=tuple(live_jobs.values()),
        attempts=tuple(attempt for attempt in attempts.values() if attempt.is_live),
        nodes=tuple(nodes.values()),
        grids={job_id: pair for job_id, pair in grids.items() if job_id in live_jobs},
        history_index=history_index,
        decision_index=decision_index,
        last_at_s=last_at_s,
        lengths=LengthHistory.of(jobs.values()),
        restart_cost=restart_cost,
        paces=paces,
    )
