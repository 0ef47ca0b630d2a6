"""fcfs: strictly in order, the count asked for, nothing behind the first that does not fit."""

from __future__ import annotations

from arena.domain.reason import ReasonCode
from arena.policies.fcfs import FirstComeFirstServed
from tests.builders import (
    allocation_on,
    cell,
    chosen,
    command_spec,
    grid_of,
    holding_of,
    node_info,
    scaling_grid,
    snapshot_of,
    train_spec,
)

TWO_NODES = [node_info("n1", gpus=2), node_info("n2", gpus=2)]
GRID = scaling_grid("cpu", [[1], [2], [2, 1], [2, 2]])
ONE = scaling_grid("cpu", [[1]])
POLICY = FirstComeFirstServed()


def test_a_malleable_job_takes_the_most_its_grid_knows():
    decision = POLICY.decide(snapshot_of(TWO_NODES, {"a": (train_spec("a"), GRID)}))
    assert str(chosen(decision, "a").group) == "cpu 2+2"


def test_nobody_passes_the_first_that_does_not_fit():
    jobs = {"a": (train_spec("a"), ONE), "b": (train_spec("b"), GRID), "c": (train_spec("c"), ONE)}
    decision = POLICY.decide(snapshot_of(TWO_NODES, jobs))
    assert list(decision.choices) == ["a"]
    assert str(decision.reasons["b"][0]) == "needs 4 cpu GPUs, 3 of 4 free"
    assert "c" not in decision.reasons
    assert str(decision.rest) == "behind job b in the queue (1 ahead)"


def test_jobs_started_together_get_different_devices():
    jobs = {f"j{index}": (command_spec(f"j{index}"), ONE) for index in range(4)}
    decision = POLICY.decide(snapshot_of(TWO_NODES, jobs))
    devices = [device for choice in decision.choices.values() if choice for device in choice.allocation.device_ids]
    assert len(devices) == len(set(devices)) == 4
    assert decision.rest is None


def test_the_fastest_type_that_fits_is_taken():
    nodes = [node_info("n1", gpus=2, gpu_type="slow"), node_info("n2", gpus=2, gpu_type="fast")]
    grid = grid_of(cell("fast", [2], 1.0), cell("slow", [2], 3.0))
    jobs = {"a": (train_spec("a"), grid), "b": (train_spec("b"), grid)}
    decision = POLICY.decide(snapshot_of(nodes, jobs))
    assert [str(chosen(decision, job).group) for job in ("a", "b")] == ["fast 2", "slow 2"]


def test_running_jobs_are_left_alone_and_jobs_without_a_grid_do_not_block():
    running = {"a": holding_of(GRID, allocation_on(("n1", [0, 1])))}
    snapshot = snapshot_of(TWO_NODES, {"a": (train_spec("a"), GRID), "b": (train_spec("b"), ONE)}, running=running)
    assert list(POLICY.decide(snapshot).choices) == ["b"]


def test_a_job_without_a_feasible_group_says_why():
    decision = POLICY.decide(snapshot_of(TWO_NODES, {"a": (train_spec("a"), grid_of())}))
    assert decision.reasons["a"][0].code is ReasonCode.NO_FEASIBLE_PLAN
