"""Nodes that fail and come back under a replay: by hand, and at random without a job lost or a device given twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.cluster import ClusterShape, NodeInfo
from arena.domain.events import Event, NodeDisconnected, NodeNoticeChanged, NodeRegistered, ReclaimNotice
from arena.domain.launch import NodeId
from arena.domain.records import AttemptRecord, EndKind, JobState
from arena.engine.ports import Step
from arena.errors import UserError
from arena.policies.registry import make_policy, policy_names
from arena.sim.costs import ConstantRestart
from arena.sim.disturbances import Availability, Disturbance, Failures, Reclaims, merged
from arena.sim.ledger import JobOutcome
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob, nodes_of
from tests.builders import shape
from tests.fakes.grids import PowerLawGrids
from tests.sim.test_replay import FREE, job, table

NODE = NodeId("cpu-default-1x00000")
GRIDS = table({("cpu", (1,)): 1.0, ("cpu", (1, 1)): 0.5})


def ends(*jobs: ReplayJob, nodes: int, disturbance: Disturbance) -> dict[str, float]:
    return {str(one.job_id): one.ended_at_s for one in outcomes_of(*jobs, nodes=nodes, disturbance=disturbance)}


def outcomes_of(*jobs: ReplayJob, nodes: int, disturbance: Disturbance) -> list[JobOutcome]:
    replay = Replay(
        shape=shape(("cpu", 1, nodes)),
        policy=make_policy("fcfs"),
        grids=GRIDS,
        costs=replace(FREE, restart=ConstantRestart(first_s=0.0, again_s=7.0)),
        config=replace(REPLAY_CONFIG, node_grace_s=15.0, backoff_s=0.0),
        disturbances=(disturbance,),
        check=True,
    )
    outcomes = replay.run(jobs).outcomes
    assert {one.state for one in outcomes} == {JobState.SUCCEEDED}
    return outcomes


def test_a_job_goes_on_elsewhere_from_its_last_checkpoint() -> None:
    """The first node is taken at 250 s; steps 200 to 250 are lost, 15 s until it is given up, 7 s to load: 572 s."""
    away = Reclaims(changes=(Availability(at_s=250.0, node_id=NODE, is_there=False),), grace_s=0.0)
    (outcome,) = outcomes_of(job("a", 0.0, 500), nodes=2, disturbance=away)
    assert outcome.ended_at_s == 250.0 + 15.0 + 7.0 + 300.0
    assert outcome.gpu_seconds == 572.0
    assert outcome.lost_gpu_seconds == pytest.approx(50.0 + 15.0 + 7.0)


@pytest.mark.parametrize(("away_at_s", "ends_at_s"), [(1060.0, 2237.0), (1072.0, 2199.0)])
def test_a_node_lost_while_a_job_saves_takes_the_checkpoint_along(away_at_s: float, ends_at_s: float) -> None:
    """Displaced at 1,050 s, saved by 1,070 s, gone by 1,075 s: lost before the save, it goes on from step 1,000.

    The node is away for 100 s; the short job runs 10 s and exits in 5 s, then 7 s to load, the steps left, 5 s to exit.
    """
    changes = (
        Availability(at_s=away_at_s, node_id=NODE, is_there=False),
        Availability(at_s=away_at_s + 100.0, node_id=NODE, is_there=True),
    )
    replay = Replay(
        shape=shape(("cpu", 1, 1)),
        policy=make_policy("srtf"),
        grids=GRIDS,
        costs=replace(FREE, restart=ConstantRestart(first_s=0.0, again_s=7.0), save_s=20.0, exit_s=5.0),
        config=replace(REPLAY_CONFIG, backoff_s=0.0),
        disturbances=(Reclaims(changes=changes, grace_s=0.0),),
        check=True,
    )
    retry = {"restarts_max": 9}
    outcomes = replay.run([job("long", 0.0, 2050, retry=retry), job("short", 1050.0, 10, retry=retry)]).outcomes
    assert {str(one.job_id): one.ended_at_s for one in outcomes} == {"short": away_at_s + 115.0, "long": ends_at_s}


def test_a_lent_node_takes_no_work_in_its_grace_and_works_again_when_it_is_back() -> None:
    """Asked back at 100 s with 50 s of grace: b, who comes at 120 s, waits until the node is there again at 400 s."""
    changes = (
        Availability(at_s=100.0, node_id=NODE, is_there=False),
        Availability(at_s=400.0, node_id=NODE, is_there=True),
    )
    away = Reclaims(changes=changes, grace_s=50.0)
    found = ends(job("a", 0.0, 60), job("b", 120.0, 30), nodes=1, disturbance=away)
    assert found == {"a": 60.0, "b": 430.0}


def test_words_come_in_order_and_a_node_lent_again_within_its_grace_goes_first() -> None:
    changes = (
        Availability(at_s=100.0, node_id=NODE, is_there=False),
        Availability(at_s=120.0, node_id=NODE, is_there=True),
    )
    events = list(Reclaims(changes=changes, grace_s=50.0).events(list(nodes_of(shape(("cpu", 1, 1)))), 0.0))
    kinds = [(at_s, type(event)) for at_s, event in events]
    assert kinds == [(100.0, NodeNoticeChanged), (150.0, NodeDisconnected), (150.0, NodeRegistered)]


def test_a_node_that_is_repaired_while_it_is_asked_back_still_goes() -> None:
    """Asked back at 240 s with 100 s of grace; broken from 250 to 260 s and from 270 to 290: 80 and 50 s are left."""
    nodes = list(nodes_of(shape(("cpu", 1, 1))))
    broken = (Broken(250.0, 260.0), Broken(270.0, 290.0))
    events = list(merged((*broken, lent((240.0, False), grace_s=100.0)), nodes, 0.0))
    assert [(at_s, event.notice) for at_s, event in events if isinstance(event, NodeRegistered)] == [
        (260.0, ReclaimNotice(within_s=80.0, why="asked back")),
        (290.0, ReclaimNotice(within_s=50.0, why="asked back")),
    ]


@pytest.mark.parametrize(
    ("grace_s", "ends_at_s", "lost_s"),
    [
        (100.0, 250.0 + 20.0 + 7.0 + 250.0, 20.0 + 7.0),
        (10.0, 260.0 + 15.0 + 7.0 + 300.0, 50.0 + 10.0 + 15.0 + 7.0),
        (0.0, 250.0 + 15.0 + 7.0 + 300.0, 50.0 + 15.0 + 7.0),
    ],
)
def test_a_word_that_comes_in_time_saves_the_steps(grace_s: float, ends_at_s: float, lost_s: float) -> None:
    """Asked back at 250 s with 50 steps unsaved; a save takes 20 s, to be given up 15 s, to load 7 s."""
    replay = Replay(
        shape=shape(("cpu", 1, 2)),
        policy=make_policy("fcfs"),
        grids=GRIDS,
        costs=replace(FREE, restart=ConstantRestart(first_s=0.0, again_s=7.0), save_s=20.0),
        config=replace(REPLAY_CONFIG, node_grace_s=15.0, backoff_s=30.0),
        disturbances=(lent((250.0, False), grace_s=grace_s),),
        check=True,
    )
    retry = {"restarts_max": 9}
    (outcome,) = replay.run([job("a", 0.0, 500, retry=retry)]).outcomes
    told_s = 30.0 if grace_s == 0.0 else 0.0  # who is not told counts as failed, and waits
    assert outcome.ended_at_s == ends_at_s + told_s
    assert outcome.lost_gpu_seconds == pytest.approx(lost_s)


def test_an_unknown_node_in_the_trace_is_named() -> None:
    away = Reclaims(changes=(Availability(at_s=1.0, node_id=NodeId("n9"), is_there=False),), grace_s=0.0)
    with pytest.raises(UserError, match="n9"):
        list(away.events(list(nodes_of(shape(("cpu", 1, 1)))), 0.0))


def test_a_node_more_changes_nothing_for_the_others() -> None:
    def of_node(cluster: ClusterShape) -> list[float]:
        events = Failures(mean_uptime_s=100.0, mean_repair_s=10.0, seed=3).events(list(nodes_of(cluster)), 0.0)
        return [at_s for at_s, event in islice(events, 200) if about(event) == NODE][:10]

    alone = of_node(shape(("cpu", 1, 1)))
    assert len(alone) == 10
    assert of_node(shape(("cpu", 1, 3))) == alone
    # The nodes of another type come before it.
    assert of_node(shape(("a100", 1, 2), ("cpu", 1, 1))) == alone


def about(event: Event) -> NodeId | None:
    match event:
        case NodeDisconnected():
            return event.node_id
        case NodeRegistered():
            return event.info.node_id
        case _:
            return None


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(policy_names()),
    uptime_s=st.sampled_from([300.0, 1000.0]),
)
def test_whatever_fails_every_job_ends(seed: int, policy: str, uptime_s: float) -> None:
    """Failures every few minutes, gangs of two, restarts without limit: all end, and no invariant breaks."""
    kinds = [{"kind": "rigid", "gpus": {"count": count}} for count in (1, 2)]
    jobs = [
        job(
            f"j{index}",
            40.0 * index,
            150,
            retry={"restarts_max": 10_000, "launch_failures_max": 10_000},
            **kinds[index % 2],
        )
        for index in range(8)
    ]
    replay = Replay(
        shape=shape(("cpu", 1, 3)),
        policy=make_policy(policy),
        grids=GRIDS,
        costs=replace(FREE, start_s=1.0, save_s=2.0, exit_s=0.5),
        disturbances=(Failures(mean_uptime_s=uptime_s, mean_repair_s=60.0, seed=seed),),
        config=replace(REPLAY_CONFIG, quarantine_after=1_000_000),
        check=True,
    )
    assert {one.state for one in replay.run(jobs).outcomes} == {JobState.SUCCEEDED}


def lent(*changes: tuple[float, bool], grace_s: float = 0.0, **fields: float) -> Reclaims:
    made = tuple(Availability(at_s=at_s, node_id=NODE, is_there=is_there) for at_s, is_there in changes)
    return Reclaims(changes=made, grace_s=grace_s, **fields)


@dataclass(frozen=True)
class Broken:
    """A node that is broken from one instant to another."""

    from_s: float
    to_s: float

    def events(self, nodes: Sequence[NodeInfo], from_s: float) -> Iterator[tuple[float, Event]]:
        yield self.from_s, NodeDisconnected(node_id=NODE, incarnation="1", why="broken")
        yield self.to_s, NodeRegistered(info=replace(nodes[0], incarnation="2"))


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (Broken(100.0, 200.0), [(100.0, "lost 1"), (200.0, "back 2"), (300.0, "lost 2"), (400.0, "back 3")]),
        (Broken(250.0, 350.0), [(250.0, "lost 1"), (400.0, "back 2")]),
        (Broken(350.0, 500.0), [(300.0, "lost 1"), (500.0, "back 2")]),
        (Broken(310.0, 320.0), [(300.0, "lost 1"), (400.0, "back 2")]),
    ],
)
def test_a_node_is_lost_with_the_first_cause_and_back_with_the_last(
    broken: Broken, expected: list[tuple[float, str]]
) -> None:
    nodes = list(nodes_of(shape(("cpu", 1, 1))))
    found = []
    for at_s, event in merged((broken, lent((300.0, False), (400.0, True))), nodes, 0.0):
        match event:
            case NodeDisconnected():
                found.append((at_s, f"lost {event.incarnation}"))
            case NodeRegistered():
                found.append((at_s, f"back {event.info.incarnation}"))
            case _:
                pass
    assert found == expected


def test_a_node_that_is_not_there_at_the_beginning_takes_no_job() -> None:
    """The only node comes at 40 s; before, nobody is asked to give it back."""
    assert ends(job("a", 0.0, 10), nodes=1, disturbance=lent((-1.0, False), (40.0, True), grace_s=30.0)) == {"a": 50.0}


def test_what_repeats_goes_on_for_ever() -> None:
    events = lent((10.0, False), (20.0, True), repeat_every_s=100.0).events(list(nodes_of(shape(("cpu", 1, 1)))), 0.0)
    lost = [at_s for at_s, event in islice(events, 20) if isinstance(event, NodeDisconnected)]
    assert lost == [10.0 + 100.0 * turn for turn in range(10)]


def test_a_program_that_may_not_be_stopped_is_told_a_grace_before_and_repeated_by_its_user() -> None:
    """Asked back at 250 s with 100 s of grace, of which the job leaves 30 s; its commands can save, in a model."""
    program = {"workload": None, "command": {"argv": ["python"]}, "preemptible": False, "retry": {"restarts_max": 0}}
    replay = Replay(
        shape=shape(("cpu", 1, 2)),
        policy=make_policy("fcfs"),
        grids=PowerLawGrids(),
        costs=replace(FREE, restart=ConstantRestart(first_s=0.0, again_s=7.0)),
        disturbances=(lent((250.0, False), grace_s=100.0),),
        check=True,
    )
    (outcome,) = replay.run([job("a", 0.0, 500, **program)]).outcomes
    assert (outcome.state, outcome.ended_at_s) == (JobState.SUCCEEDED, 320.0 + 7.0 + 180.0)


def test_a_job_that_loses_its_node_often_goes_on_as_long_as_it_gets_on() -> None:
    """Every 300 s the node is away for 10: 200 of 290 steps are kept; the budget of three counts without progress."""
    away = lent((290.0, False), (300.0, True), repeat_every_s=300.0)
    (outcome,) = outcomes_of(job("a", 0.0, 2000), nodes=1, disturbance=away)
    assert outcome.restart_count == 9


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(policy_names()),
    grace_s=st.sampled_from([0.0, 30.0, 200.0]),
)
def test_failures_and_reclaims_together_leave_every_job_its_end(seed: int, policy: str, grace_s: float) -> None:
    retry = {"restarts_max": 10_000, "launch_failures_max": 10_000}
    shapes = [{"kind": "malleable", "gpus": {}}, {"kind": "rigid", "gpus": {"count": 1}}]
    jobs = [job(f"j{index}", 40.0 * index, 150, retry=retry, **shapes[index % 2]) for index in range(6)]
    replay = Replay(
        shape=shape(("cpu", 1, 3)),
        policy=make_policy(policy),
        grids=GRIDS,
        costs=replace(FREE, start_s=1.0, save_s=2.0, exit_s=0.5),
        disturbances=(
            Failures(mean_uptime_s=400.0, mean_repair_s=60.0, seed=seed),
            lent((100.0, False), (180.0, True), grace_s=grace_s, repeat_every_s=250.0),
        ),
        config=replace(REPLAY_CONFIG, quarantine_after=1_000_000),
        check=True,
    )
    assert {one.state for one in replay.run(jobs).outcomes} == {JobState.SUCCEEDED}


@settings(max_examples=25, deadline=None)
@given(
    away_at_s=st.lists(st.integers(10, 900), min_size=1, max_size=6, unique=True),
    policy=st.sampled_from(policy_names()),
    grace_s=st.sampled_from([10.0, 40.0, 200.0]),
)
def test_nothing_is_lost_and_nobody_blamed_where_the_word_comes_in_time(
    away_at_s: list[int], policy: str, grace_s: float
) -> None:
    """A save takes 2 s and no job may fail once: whenever nodes are asked back, every attempt there is saved or has
    made no step."""
    retry = {"restarts_max": 0, "launch_failures_max": 1}
    shapes = [{"kind": "malleable", "gpus": {}}, {"kind": "rigid", "gpus": {"count": 1}, "preemptible": False}]
    jobs = [job(f"j{index}", 40.0 * index, 150, retry=retry, grace_s=5.0, **shapes[index % 2]) for index in range(6)]
    nodes = [node.node_id for node in nodes_of(shape(("cpu", 1, 3)))]
    changes = tuple(
        Availability(at_s=at_s + after_s, node_id=nodes[index % 2], is_there=after_s > 0.0)
        for index, at_s in enumerate(sorted(away_at_s))
        for after_s in (0.0, grace_s + 30.0)
    )
    ended: list[AttemptRecord] = []
    replay = Replay(
        shape=shape(("cpu", 1, 3)),
        policy=make_policy(policy),
        grids=GRIDS,
        costs=replace(FREE, start_s=1.0, save_s=2.0, exit_s=0.5),
        disturbances=(Reclaims(changes=tuple(sorted(changes, key=lambda one: one.at_s)), grace_s=grace_s),),
        check=True,
    )

    def watch(step: Step) -> None:
        ended.extend(one for one in step.attempts if one.ended_at_s is not None)

    assert {one.state for one in replay.run(jobs, watch=watch).outcomes} == {JobState.SUCCEEDED}
    for one in ended:
        assert one.outcome is not EndKind.LOST
        assert one.outcome is not EndKind.KILLED or one.first_step_at_s is None
