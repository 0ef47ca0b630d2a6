"""A simulated world in which ranks die on some nodes before their first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from arena.domain.events import AttemptEnded
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.sim.run import Simulation
from arena.sim.world import SimWorld, _Run

CUDA = "rank 3: CUDA error: device 5 is broken"


@dataclass(slots=True, kw_only=True)
class BadWorld(SimWorld):
    """Modelled agents of which some fail.

    Args:
        fails: How a job's attempt fails on a node at its start; empty where it does not.
        error_code: What its worker calls the failure.
        kind: How the node's share ends.
    """

    fails: Callable[[JobId, NodeId], str]
    error_code: str = "crash"
    kind: EndKind = EndKind.FAILED
    started: list[tuple[JobId, tuple[NodeId, ...]]] = field(default_factory=list)

    def _begin(self, run: _Run, started_at_s: float) -> None:
        job_id = run.attempt.job_id
        self.started.append((job_id, tuple(run.nodes)))
        told = [(node_id, self.fails(job_id, node_id)) for node_id in run.nodes]
        failed = next(((node_id, error) for node_id, error in told if error), None)
        if failed is None:
            SimWorld._begin(self, run, started_at_s)
            return
        end = NodeEnd(node_id=failed[0], kind=self.kind, error_code=self.error_code, message=failed[1])
        self._push(run, started_at_s + 1.0, AttemptEnded(node_id=failed[0], attempt_id=run.attempt.attempt_id, end=end))


def with_failures(sim: Simulation, fails: Callable[[JobId, NodeId], str], **fields: object) -> BadWorld:
    """Put such a world in place of a simulation's own."""
    world = BadWorld(
        kernel=sim.kernel,
        grids=sim.grids,
        costs=sim.costs,
        attempts=lambda name: sim.engine.state.attempts[name],
        fails=fails,
        **fields,  # type: ignore[arg-type]
    )
    sim.world = world
    return world
