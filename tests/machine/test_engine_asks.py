"""When the engine asks its policy: never for nothing, and never less than it takes."""

from __future__ import annotations

import pytest

from arena.domain.commands import Command
from arena.domain.events import AttemptEnded, JobSubmitted, NodeRegistered
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.engine.config import EngineConfig
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info
from tests.fakes.grids import PowerLawGrids
from tests.fakes.listening import Listening


def run_through(policy: Listening, decide_after_s: float | None) -> list[tuple[float, Command]]:
    """Six jobs, of which some find the cluster full and others find it empty; what was commanded, and when."""
    sim = Simulation(
        policy=policy,
        grids=PowerLawGrids(),
        config=EngineConfig(shape_settle_s=0.0, decide_after_s=decide_after_s),
        check=True,
    )
    sim.at(0.0, NodeRegistered(info=node_info("n1", gpus=4)))
    for index, at_s in enumerate((1.0, 2.0, 3.0, 150.0, 400.0, 401.0)):
        spec = command_spec(f"j{index}", count=2, stop={"time_limit_s": 100.0})
        sim.at(at_s, JobSubmitted(job_id=JobId(f"j{index}"), spec=spec, user="ann", request_id=f"r{index}"))
    sim.run()
    assert len(sim.ended) == 6
    if policy.serves_waiting_only:  # `arena status` says when the latest decision was
        assert sim.engine.state.decided_at_s == policy.snapshots[-1].now_s
    return [(step.at_s, command) for step in sim.steps for command in step.commands]


@pytest.mark.parametrize("decide_after_s", [None, 0.0, 5.0, 60.0])
@pytest.mark.parametrize("name", ["fcfs", "fcfs-easy", "srtf", "tiresias"])
def test_who_serves_waiting_jobs_only_is_not_asked_while_none_waits(name: str, decide_after_s: float | None) -> None:
    never_idle, always = (Listening(make_policy(name), serves_waiting_only=told) for told in (True, False))
    assert run_through(never_idle, decide_after_s) == run_through(always, decide_after_s)
    asked_at_s = [snapshot.now_s for snapshot in never_idle.snapshots]
    assert asked_at_s == [snapshot.now_s for snapshot in always.snapshots if snapshot.waiting]
    assert asked_at_s


def decided_of(*, is_only_watched: bool) -> list[tuple[float, int]]:
    """Two jobs whose waits after a crash end at one instant, at which another one's grid comes: who waits then."""
    policy = Listening(make_policy("fcfs"), serves_waiting_only=True)
    sim = Simulation(
        policy=policy,
        grids=PowerLawGrids(),
        config=EngineConfig(shape_settle_s=0.0, decide_after_s=0.0, backoff_s=5.0),
        is_only_watched=is_only_watched,
        check=True,
    )
    sim.at(0.0, NodeRegistered(info=node_info("n1", gpus=4)))
    for name, at_s in (("a", 1.0), ("b", 1.0), ("c", 15.0)):
        spec = command_spec(name, count=2, stop={"time_limit_s": 100.0}, retry={"restarts_max": 3})
        sim.at(at_s, JobSubmitted(job_id=JobId(name), spec=spec, user="ann", request_id=name))
    for name in ("a.1", "b.1"):
        end = NodeEnd(node_id=NodeId("n1"), kind=EndKind.FAILED, message="it crashed")
        sim.at(10.0, AttemptEnded(node_id=NodeId("n1"), attempt_id=AttemptId(name), end=end))
    sim.run()
    assert len(sim.ended) == 3
    return [(snapshot.now_s, len(snapshot.waiting)) for snapshot in policy.snapshots]


def test_waits_that_end_at_an_instant_count_in_its_decision() -> None:
    asked = decided_of(is_only_watched=True)
    assert (15.0, 3) in asked
    assert asked == decided_of(is_only_watched=False)
