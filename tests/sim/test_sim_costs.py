"""What changes cost by hand: checkpoints by size and bandwidth, profiles, jobs that fail by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import NodeInfo
from arena.domain.events import Event, JobWishChanged
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.domain.records import JobState
from arena.errors import UserError
from arena.policies.registry import make_policy
from arena.sim.costs import CheckpointRestart, Storage, checkpoint_bytes
from arena.sim.ledger import JobOutcome
from arena.sim.replay import Replay
from arena.sim.world import Fate
from tests.builders import command_spec, shape, train_spec
from tests.sim.test_replay import FREE, job, run, table

ONE = {("cpu", (1,)): 1.0, ("cpu", (1, 1)): 1.0}


def workload(name: str) -> JobSpec:
    return JobSpec(name="j", workload=WorkloadSpec(name=name, global_batch=8))


def test_a_checkpoint_holds_weights_and_moments_once() -> None:
    assert checkpoint_bytes(workload("bert__1.3B")) == pytest.approx(12 * 1.3e9)
    assert checkpoint_bytes(workload("moe__690M")) == pytest.approx(12 * 690e6)
    assert checkpoint_bytes(command_spec()) == 0.0
    # Embedding 8 x 4, positions 6 x 4, a layer of 12 h^2 + 13 h, the last norm; the head is the embedding again.
    tiny = {"layers": 1, "hidden": 4, "heads": 1, "vocab_size": 8, "seq_len": 6, "tied_embeddings": True}
    parameters = 8 * 4 + 6 * 4 + (12 * 16 + 13 * 4) + 2 * 4
    assert checkpoint_bytes(train_spec(model=tiny)) == 12 * parameters
    sgd = {"name": "sgd", "momentum": 0.0}
    assert checkpoint_bytes(train_spec(model=tiny, train={"optimizer": sgd})) == 4 * parameters


def test_a_workload_without_a_size_in_its_name_is_told() -> None:
    with pytest.raises(UserError, match="resnet"):
        checkpoint_bytes(workload("resnet"))


def test_every_node_moves_its_part_up_to_what_one_job_gets() -> None:
    storage = Storage(state_bytes=lambda spec: 600.0, node_bytes_per_s=10.0, job_bytes_per_s=25.0)
    seconds = [storage.transfer_s(workload("x"), GpuGroup.of("cpu", [1] * nodes)) for nodes in (1, 2, 3, 9)]
    assert seconds == [60.0, 30.0, 24.0, 24.0]
    restart = CheckpointRestart(storage=storage, setup_s=7.0)
    group = GpuGroup.of("cpu", [1])
    assert restart.restart_s(workload("x"), group, is_first=True) == 7.0
    assert restart.restart_s(workload("x"), group, is_first=False) == 67.0


def test_a_job_that_is_displaced_saves_and_loads_through_the_storage() -> None:
    """Long starts at 0 and steps from 10 s on; short comes at 100 s: 60 s to save, 10 to start, 20 steps; 190 s.

    Then long starts and loads in 70 s and makes the 110 steps that are left.
    """
    storage = Storage(state_bytes=lambda spec: 600.0, node_bytes_per_s=10.0)
    costs = replace(FREE, restart=CheckpointRestart(storage=storage, setup_s=10.0), storage=storage)
    replay = Replay(shape=shape(("cpu", 1, 1)), policy=make_policy("srtf"), grids=table(ONE), costs=costs, check=True)
    outcomes = replay.run([job("long", 0.0, 200), job("short", 100.0, 20)]).outcomes
    assert {str(one.job_id): one.ended_at_s for one in outcomes} == {"short": 190.0, "long": 370.0}
    # Saving (60 s), and starting twice, once with a load.
    assert {str(one.job_id): one.lost_gpu_seconds for one in outcomes} == {"short": 10.0, "long": 60.0 + 10.0 + 70.0}


def test_a_grid_is_there_once_the_job_is_profiled() -> None:
    costs = replace(FREE, profile_s=30.0)
    found = run(shape(("cpu", 1, 1)), table(ONE), job("a", 0.0, 100), job("b", 120.0, 50), costs=costs)
    # b is profiled while a still runs.
    assert (found["a"].ended_at_s, found["b"].ended_at_s) == (130.0, 200.0)


@dataclass(frozen=True)
class Cancelled:
    """A job that its user cancels."""

    job_id: JobId
    at_s: float

    def events(self, nodes: Sequence[NodeInfo], from_s: float) -> Iterator[tuple[float, Event]]:
        yield self.at_s, JobWishChanged(job_id=self.job_id, wish="cancel", by="ann")


def test_a_profile_is_charged_to_its_job_as_far_as_it_went() -> None:
    """Two GPUs set apart profile for 30 s: the whole of a, and 20 s of b, whom its user cancels; 100 steps are work."""
    costs = replace(FREE, profile_s=30.0, profile_gpus=2)
    replay = Replay(
        shape=shape(("cpu", 1, 1)),
        policy=make_policy("fcfs"),
        grids=table(ONE),
        costs=costs,
        disturbances=(Cancelled(job_id=JobId("b"), at_s=20.0),),
        check=True,
    )
    found = {str(one.job_id): one for one in replay.run([job("a", 0.0, 100), job("b", 0.0, 100)]).outcomes}
    assert (found["a"].gpu_seconds, found["a"].lost_gpu_seconds) == (160.0, 60.0)
    assert (found["b"].ended_at_s, found["b"].gpu_seconds, found["b"].lost_gpu_seconds) == (20.0, 40.0, 40.0)


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_that_failed_in_the_trace_fails_once_and_for_good(count: int) -> None:
    outcome = failed(count)
    assert (outcome.state, outcome.ended_at_s, outcome.attempt_count) == (JobState.FAILED, 75.0, 1)
    assert (outcome.gpu_seconds, outcome.lost_gpu_seconds) == (75.0 * count, 0.0)


def failed(count: int) -> JobOutcome:
    found = run(
        shape(("cpu", 1, 2)),
        table(ONE),
        job("a", 0.0, 100, count=count, fate=Fate(step_count=75, is_failed=True), retry={"restarts_max": 9}),
    )
    return found["a"]
