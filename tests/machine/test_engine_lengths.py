"""What the engine learns of lengths: from jobs that end by themselves, once each, and the same after a restart."""

from __future__ import annotations

import pytest

from arena.domain.events import JobSubmitted, JobWishChanged, NodeRegistered
from arena.domain.job import JobId
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine, replay
from arena.policies.base import Policy
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from arena.sim.world import Fate
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.listening import Listening
from tests.fakes.restarts import inputs_of, restored_from


def after_four_jobs(policy: Policy) -> Simulation:
    """One runs as long as it declares, one twice as long with a move in between, one is cancelled, one runs on."""
    sim = Simulation(
        policy=policy,
        grids=PowerLawGrids(),
        config=EngineConfig(checkpoint_root="/ckpt", output_root="/out", shape_settle_s=0.0),
        fates={JobId("b"): Fate(step_count=600)},
        check=True,
    )
    sim.at(0.0, NodeRegistered(info=node_info("n1", gpus=4)))
    for index, (name, steps) in enumerate([("a", 400), ("b", 300), ("c", 9000), ("d", 90_000)]):
        spec = train_spec(name, stop={"steps": steps})
        sim.at(1.0 + index, JobSubmitted(job_id=JobId(name), spec=spec, user="ann", request_id=name))
    sim.at(2000.0, JobWishChanged(job_id=JobId("c"), wish="cancel", by="ann"))
    sim.run(until_s=3000.0)
    assert {name: job.state.value for name, job in sim.ended.items()} == {
        "a": "succeeded",
        "b": "succeeded",
        "c": "cancelled",
    }
    assert sim.ended[JobId("b")].reconfiguration_count > 0
    return sim


def test_each_job_that_ends_by_itself_is_counted_once_with_all_its_steps() -> None:
    lengths = after_four_jobs(make_policy("elastic")).engine.state.lengths
    assert sorted(job.name[1] for job in lengths.ended) == ["a", "b"]
    assert lengths.ratios[()].mean == pytest.approx(0.34657, abs=1e-4)  # ln(600 / 300) / 2
    assert lengths.gpu_s["ann",].job_count == 2


def test_a_policy_sees_what_was_learned_as_of_its_decision() -> None:
    policy = Listening(inner=make_policy("elastic"))
    sim = after_four_jobs(policy)
    assert policy.snapshots[0].history.ended == ()
    assert policy.snapshots[-1].history == sim.engine.state.lengths
    counts = [len(snapshot.history.ended) for snapshot in policy.snapshots]
    assert counts == sorted(counts)


def test_after_a_restart_the_same_is_known() -> None:
    sim = after_four_jobs(make_policy("elastic"))
    again = Engine(make_policy("elastic"), sim.config, restored_from(sim.steps))
    assert again.state.lengths == sim.engine.state.lengths
    assert again.state.lengths.ended == sim.engine.state.lengths.ended


def test_the_log_of_inputs_teaches_the_same() -> None:
    sim = after_four_jobs(make_policy("elastic"))
    again = Engine(make_policy("elastic"), sim.config)
    assert list(replay(again, inputs_of(sim.steps))) == sim.steps
    assert again.state.lengths.ended == sim.engine.state.lengths.ended


def test_undoing_a_step_undoes_what_it_taught() -> None:
    sim = after_four_jobs(make_policy("elastic"))
    engine = Engine(make_policy("elastic"), sim.config)
    for at_s, event in inputs_of(sim.steps):
        before = engine.state
        engine.handle(event, at_s)
        if engine.state.lengths != before.lengths:
            engine.state = before
            assert engine.state.lengths.ended == ()
            return
    pytest.fail("no job ended")
