"""elastic: minimum for everybody, growth where it helps, changes only with reason, bounded waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.reason import ReasonCode
from arena.domain.records import Progress
from arena.policies.base import Decision, Holding, Snapshot
from arena.policies.registry import make_policy
from tests.builders import (
    allocation_on,
    capacity_of,
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
ALL_FOUR = allocation_on(("n1", [0, 1]), ("n2", [0, 1]))


def decide(snapshot: Snapshot, **options: float) -> Decision:
    return make_policy("elastic", {"change_interval_s": 30.0, **options}).decide(snapshot)


def running_alone(spec: JobSpec | None = None, grid: Grid = GRID, *, held: Holding | None = None, **fields: Any):
    """Job a runs on everything, b waits."""
    jobs = {"a": (spec or train_spec("a"), grid), "b": (train_spec("b"), GRID)}
    return snapshot_of(TWO_NODES, jobs, running={"a": held or holding_of(grid, ALL_FOUR)}, **fields)


def counts(decision: Decision) -> Mapping[str, int]:
    return {job_id: choice.group.gpu_count for job_id, choice in decision.choices.items() if choice is not None}


def test_a_job_alone_takes_everything():
    assert counts(decide(snapshot_of(TWO_NODES, {"a": (train_spec("a"), GRID)}))) == {"a": 4}


def test_two_jobs_that_scale_alike_share():
    jobs = {"a": (train_spec("a"), GRID), "b": (train_spec("b"), GRID)}
    decision = decide(snapshot_of(TWO_NODES, jobs))
    assert counts(decision) == {"a": 2, "b": 2}
    assert {chosen(decision, job).allocation.node_ids for job in ("a", "b")} == {("n1",), ("n2",)}


def test_what_is_free_goes_where_it_helps_most():
    groups = [[1], [2], [2, 1]]
    jobs = {
        "a": (train_spec("a"), scaling_grid("cpu", groups, power=0.1)),
        "b": (train_spec("b"), scaling_grid("cpu", groups, power=0.9)),
    }
    assert counts(decide(snapshot_of(TWO_NODES, jobs))) == {"a": 1, "b": 3}


def test_a_running_job_shrinks_to_make_room_and_stays_on_its_own_devices():
    decision = decide(running_alone())
    assert counts(decision) == {"a": 2, "b": 2}
    assert chosen(decision, "a").allocation.device_ids <= ALL_FOUR.device_ids
    assert str(decision.reasons["a"][0]) == "shrank from 4 to 2 GPUs to make room for b"
    assert not chosen(decision, "a").allocation.device_ids & chosen(decision, "b").allocation.device_ids


def test_it_grows_again_when_devices_are_free():
    held = holding_of(GRID, allocation_on(("n1", [0, 1])))
    decision = decide(snapshot_of(TWO_NODES, {"a": (train_spec("a"), GRID)}, running={"a": held}))
    assert counts(decision) == {"a": 4}
    assert str(decision.reasons["a"][0]) == "grew from 2 to 4 GPUs, 1.74x faster by its grid"
    assert held.allocation.device_ids < chosen(decision, "a").allocation.device_ids


def test_a_growth_that_does_not_pay_before_the_end_is_left_and_says_so():
    held = holding_of(GRID, allocation_on(("n1", [0, 1])))
    snapshot = snapshot_of(TWO_NODES, {"a": (train_spec("a"), GRID)}, running={"a": held}, restart_s=10.0)
    job = replace(snapshot.jobs[JobId("a")], progress=Progress(step=980, step_time_s=0.5))
    decision = decide(replace(snapshot, jobs={JobId("a"): job}))
    assert decision.choices == {}
    (told,) = decision.reasons[JobId("a")]
    assert told.code is ReasonCode.CHANGE_NOT_WORTH_IT
    assert told.numbers["gain_s"] == pytest.approx(10 * (1 - 2**-0.8))
    assert told.numbers["cost_s"] == 10.0


def test_a_job_is_left_alone_for_a_while_after_a_change():
    held = holding_of(GRID, ALL_FOUR, since_s=990.0)
    decision = decide(running_alone(held=held))
    assert decision.choices == {}
    assert decision.look_again_at_s == 1020.0
    assert decision.reasons[JobId("b")][0].code is ReasonCode.INSUFFICIENT_GPUS


def test_a_job_about_to_end_is_not_shrunk():
    spec = train_spec("a", stop={"steps": 5})
    assert decide(running_alone(spec)).choices == {}


@pytest.mark.parametrize(
    "spec",
    [
        train_spec("a", kind="moldable"),
        train_spec("a", kind="rigid", gpus={"count": 4}),
        train_spec("a", preemptible=False),
    ],
)
def test_rigid_moldable_and_non_preemptible_jobs_keep_what_they_have(spec: JobSpec):
    assert decide(running_alone(spec)).choices == {}


def test_an_immovable_holding_is_left():
    assert decide(running_alone(held=holding_of(GRID, ALL_FOUR, movable=False))).choices == {}


def test_a_moldable_job_is_shaped_when_it_starts():
    assert counts(decide(snapshot_of(TWO_NODES, {"a": (train_spec("a", kind="moldable"), GRID)}))) == {"a": 4}


def test_shrinking_in_vain_changes_nothing_and_the_next_job_gets_its_chance():
    """a can give at most three, b needs four: nothing moves for b, and c starts in this very decision."""
    jobs = {
        "a": (train_spec("a"), GRID),
        "b": (train_spec("b", kind="rigid", gpus={"count": 4}), scaling_grid("cpu", [[2, 2]])),
        "c": (command_spec("c"), scaling_grid("cpu", [[1]])),
    }
    running = {"a": holding_of(GRID, allocation_on(("n1", [0, 1]), ("n2", [0])))}
    decision = decide(snapshot_of(TWO_NODES, jobs, running=running))
    assert counts(decision) == {"c": 1}
    assert str(decision.reasons[JobId("b")][0]) == "needs 4 cpu GPUs, 1 of 4 free"


def overdue(waited_s: float) -> Snapshot:
    """A large job b that has waited, with a small one behind it and one GPU type it cannot use."""
    nodes = [*TWO_NODES, node_info("m1", gpus=1, gpu_type="other")]
    jobs = {
        "a": (command_spec("a"), scaling_grid("cpu", [[1]])),
        "b": (train_spec("b", kind="rigid", gpus={"count": 4}), scaling_grid("cpu", [[2, 2]])),
        "c": (command_spec("c"), scaling_grid("cpu", [[1]])),
        "d": (command_spec("d"), scaling_grid("other", [[1]])),
    }
    running = {"a": holding_of(jobs["a"][1], allocation_on(("n1", [0])))}
    snapshot = snapshot_of(nodes, jobs, running=running, now_s=10_000.0)
    waited = replace(snapshot.jobs[JobId("b")], submitted_at_s=10_000.0 - waited_s)
    return replace(snapshot, jobs={**snapshot.jobs, JobId("b"): waited})


def test_small_jobs_pass_a_large_one_until_it_has_waited_long_enough():
    early = decide(overdue(100.0), wait_s_max=600.0)
    assert counts(early) == {"c": 1, "d": 1}
    assert early.look_again_at_s == 10_500.0


def test_then_the_types_it_can_use_are_drained_for_it_and_others_stay_busy():
    late = decide(overdue(600.0), wait_s_max=600.0)
    assert counts(late) == {"d": 1}
    assert str(late.reasons[JobId("c")][0]) == "behind job b in the queue (1 ahead)"


def test_nothing_is_drained_for_a_job_that_the_nodes_that_are_up_could_never_hold():
    snapshot = overdue(600.0)
    smaller = capacity_of([node_info("n1", gpus=2), node_info("m1", gpus=1, gpu_type="other")])
    taken = smaller.take_all(snapshot.holding[JobId("a")].allocation)
    assert counts(decide(replace(snapshot, capacity=taken), wait_s_max=600.0)) == {"c": 1, "d": 1}


def test_a_full_cluster_is_not_searched_for_every_waiting_job():
    jobs = {f"j{index}": (command_spec(f"j{index}"), scaling_grid("cpu", [[1]])) for index in range(8)}
    decision = decide(snapshot_of(TWO_NODES, jobs))
    assert len(decision.choices) == 4
    assert list(decision.reasons) == ["j0", "j1", "j2", "j3", "j4"]
    assert str(decision.rest) == "behind job j4 in the queue (1 ahead)"


def test_jobs_meet_only_on_nodes_that_see_their_checkpoint_place():
    places = {"n1": {"/ckpt": "red"}, "n2": {"/ckpt": "blue"}}
    job = {"a": (train_spec("a", checkpoint={"dir": "/ckpt/a"}), GRID)}
    assert counts(decide(snapshot_of(TWO_NODES, job, places=places))) == {"a": 2}
    same = {"n1": {"/ckpt": "red"}, "n2": {"/ckpt": "red"}}
    assert counts(decide(snapshot_of(TWO_NODES, job, places=same))) == {"a": 4}


def test_a_job_that_needs_a_shared_place_names_the_node_that_does_not_see_it():
    places = {"n1": {"/ckpt": "red"}, "n2": {}}
    job = {"a": (train_spec("a", checkpoint={"dir": "/ckpt/a"}), grid_of(cell("cpu", [2, 2], 1.0)))}
    (told,) = decide(snapshot_of(TWO_NODES, job, places=places)).reasons[JobId("a")]
    assert str(told) == "checkpoint place /ckpt/a is not seen by node n2, so the job cannot move there"


def test_a_decision_repeated_on_its_own_outcome_changes_nothing():
    """No preempt-admit-preempt loop: what one decision made is what the next one wants."""
    jobs = {"a": (train_spec("a"), GRID), "b": (train_spec("b"), GRID)}
    first = decide(running_alone())
    running = {
        job_id: Holding(
            group=chosen(first, job_id).group,
            plan=chosen(first, job_id).plan,
            estimate=chosen(first, job_id).estimate,
            allocation=chosen(first, job_id).allocation,
            movable=True,
            since_s=0.0,
        )
        for job_id in jobs
    }
    assert decide(snapshot_of(TWO_NODES, jobs, running=running)).choices == {}
