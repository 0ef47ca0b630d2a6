"""What Prometheus is told: it can be read, adds up to the state, and grows with no number of jobs, users or nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from immutables import Map
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from arena.domain.cluster import Device, NodeState
from arena.domain.events import AttemptEnded, Event, GridBuilt, JobSubmitted, NodeDisconnected, NodeRegistered
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.records import EndKind, JobState, NodeEnd, NodeRecord
from arena.domain.tenants import Guarantee
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.engine.ports import Step
from arena.engine.queue import JobQueue
from arena.engine.state import ClusterState
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from arena_scheduler.cluster_view import gpu_counts
from arena_scheduler.metrics import OTHER_PROJECTS, PLACES, POOLS_MAX, Observed, metrics_of
from arena_scheduler.metrics_server import (
    HEALTHY_TURN_S_MAX,
    READY_TURN_S_MAX,
    SILENT_S_MAX,
    SchedulerCollector,
    application,
)
from arena_scheduler.tally import Tally
from arena_scheduler.turn import Part, Turn, TurnWatch
from tests.builders import cell, device_id, grid_of, job_record, node_info, train_spec
from tests.fakes.cluster_of_views import NOW_S
from tests.fakes.grids import PowerLawGrids
from tests.fakes.observed_cluster import LIVE, a_state, seen

Values = dict[tuple[str, ...], float]


class _Fixed:
    """A collector of metrics that are there already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def values(observed: Observed, name: str, *labels: str) -> Values:
    """The samples of a name as a program reads them, by the values of labels."""
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(lambda: observed))
    text = generate_latest(registry).decode()
    found = [one for family in text_string_to_metric_families(text) for one in family.samples if one.name == name]
    assert all(set(one.labels) == set(labels) for one in found)
    return {tuple(one.labels[label] for label in labels): one.value for one in found}


def test_programs_read_it_in_both_formats_and_names_follow_the_conventions() -> None:
    families = list(metrics_of(seen(a_state(50, 20))))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    registry = CollectorRegistry()
    registry.register(_Fixed(families))
    assert len(list(text_string_to_metric_families(generate_latest(registry).decode()))) == len(families)
    read = {family.name: family.type for family in openmetrics_families(openmetrics.generate_latest(registry).decode())}
    assert set(read) == set(names), "the stricter format takes it, too"
    for family in families:
        assert re.fullmatch(r"arena_[a-z_]+[a-z]", family.name)
        assert not re.search(r"_(s|ms|bytes_total|count|mb|percent)$", family.name)
        assert family.documentation.endswith(".")
        if family.type != "counter":
            assert not family.name.endswith("_total")
        keys = [(one.name, tuple(sorted(one.labels.items()))) for one in family.samples]
        assert len(set(keys)) == len(keys)
        assert all(one.value >= 0 for one in family.samples)


@pytest.mark.parametrize("seed", range(5))
def test_it_adds_up_to_the_state(seed: int) -> None:
    state = a_state(80, 40, seed=seed)
    observed = seen(state)
    states = Counter(job.state for job in state.jobs.values())
    assert values(observed, "arena_jobs", "state") == {(one,): states[one] for one in LIVE}
    assert values(observed, "arena_ended_jobs", "state")[("succeeded",)] == 7
    assert values(observed, "arena_queued_jobs") == {(): len(state.queue)}
    nodes = values(observed, "arena_nodes", "state")
    assert (set(nodes), sum(nodes.values())) == ({(one,) for one in NodeState}, len(state.nodes))
    gpus = values(observed, "arena_gpus", "gpu_type", "zone", "state")
    assert sum(gpus.values()) == sum(len(node.info.devices) for node in state.nodes.values())
    for counts in gpu_counts(state):
        of_type = Counter[str]()
        for (gpu_type, _, place), count in gpus.items():
            of_type[place] += count if gpu_type == counts.gpu_type else 0
        free = of_type["free"] + of_type["reserved"]
        told = (free, of_type["used"], of_type["draining"], of_type["dirty"], of_type["down"])
        assert told == (counts.free, counts.used, counts.draining, counts.dirty, counts.down), "as `arena status` says"
    changes = values(observed, "arena_live_job_changes", "kind")
    assert changes[("restart",)] == sum(job.restart_count for job in state.jobs.values())
    held_gpu_seconds = sum(2 * (NOW_S - one.launched_at_s) for one in state.attempts.values())
    told_gpu_seconds = sum(job.gpu_seconds for job in state.jobs.values()) + held_gpu_seconds
    assert values(observed, "arena_live_job_gpu_seconds") == {(): pytest.approx(told_gpu_seconds)}


def test_a_device_that_is_kept_for_a_job_is_reserved_until_somebody_has_it() -> None:
    node = NodeRecord(node_id=NodeId("n1"), info=node_info("n1", gpus=3, gpu_type="t4", zone="z"))
    kept = {device_id("n1", index): JobId("a") for index in (0, 1)}
    state = ClusterState(
        nodes=Map({node.node_id: node}),
        reserved=Map(kept),
        holders=Map({device_id("n1", 0): AttemptId("b.1")}),
    )
    gpus = values(seen(state), "arena_gpus", "gpu_type", "zone", "state")
    assert {place: gpus["t4", "z", place] for place in PLACES} == {
        **dict.fromkeys(PLACES, 0),
        "free": 1,
        "reserved": 1,
        "used": 1,
    }


def test_the_age_of_the_queue_is_that_of_who_is_queued_for_longest_and_could_be_served() -> None:
    some, none = grid_of(cell("t4", (1,), 1.0)), grid_of()
    mixed = replace(none, mixed=some.cells)
    queued = [
        (job_record(name, state=JobState.QUEUED, changed_at_s=NOW_S - age_s), grid)
        for name, age_s, grid in (("a", 5, some), ("b", 30, some), ("c", 40, mixed), ("parked", 9000, none))
    ]
    others = [
        job_record("held", state=JobState.HELD, changed_at_s=NOW_S - 9000),
        job_record("backed-off", state=JobState.QUEUED, changed_at_s=NOW_S - 9000, not_before_s=NOW_S + 90),
        job_record("unplanned", state=JobState.QUEUED, changed_at_s=NOW_S - 9000),
    ]
    state = ClusterState(
        jobs=Map({job.job_id: job for job in (*(job for job, _ in queued), *others)}),
        queue=JobQueue(sorted(job.queue_key for job, _ in queued)),
        grids=Map({job.job_id: grid for job, grid in queued}).set(JobId("backed-off"), some),
    )
    assert values(seen(state), "arena_queue_age_seconds") == {(): 40.0}
    assert values(seen(state), "arena_queued_jobs") == {(): 4}
    assert values(seen(state), "arena_infeasible_jobs") == {(): 1}
    assert values(seen(ClusterState()), "arena_queue_age_seconds") == {(): 0.0}
    assert values(seen(ClusterState()), "arena_decision_age_seconds") == {}
    assert values(seen(a_state(1, 1)), "arena_decision_age_seconds") == {(): 2.5}


def test_shares_are_told_of_projects_that_have_some_and_of_all_others_together() -> None:
    state = a_state(80, 40)
    observed = seen(state)
    assert values(observed, "arena_project_guaranteed_gpus", "project") == {("vision",): 8, ("speech",): 2}
    used = values(observed, "arena_project_used_gpus", "project")
    assert set(used) == {("vision",), ("speech",), (OTHER_PROJECTS,)}
    assert sum(used.values()) == len(state.holders)
    assert values(seen(state, tenants={}), "arena_project_used_gpus", "project") == {}


def test_a_project_may_be_called_as_the_others_are() -> None:
    tenants = {OTHER_PROJECTS: Guarantee(gpu_count_by_type={"any": 1})}
    jobs = [job_record(name, train_spec(name, project=name), state=JobState.QUEUED) for name in (OTHER_PROJECTS, "b")]
    state = ClusterState(jobs=Map({job.job_id: job for job in jobs}))
    waiting = values(seen(state, tenants=tenants), "arena_project_jobs", "project", "state")
    assert waiting[OTHER_PROJECTS, "waiting"] == waiting[f"({OTHER_PROJECTS})", "waiting"] == 1


def sample_count(state: ClusterState) -> int:
    return sum(len(family.samples) for family in metrics_of(seen(state)))


def test_no_number_of_jobs_users_projects_or_nodes_makes_more_of_it() -> None:
    assert sample_count(a_state(40, 40)) == sample_count(a_state(400, 400))
    text = str(list(metrics_of(seen(a_state(400, 400)))))
    assert not re.search(r"\b(user|j|p|n)\d+\b", text)


def test_zones_beyond_a_bound_are_told_together() -> None:
    state = a_state(0, POOLS_MAX + 300, zones=POOLS_MAX + 300)
    gpus = values(seen(state), "arena_gpus", "gpu_type", "zone", "state")
    assert len(gpus) == (POOLS_MAX + 1) * len(PLACES)
    assert sum(gpus.values()) == 4 * len(state.nodes)


def test_whatever_a_node_calls_its_zone_can_be_read() -> None:
    zone = 'a "b"\\\nc} 語 {'
    info = replace(node_info("n1"), zone=zone, devices=(Device(device_id=DeviceId("d"), index=0),))
    state = ClusterState(nodes=Map({NodeId("n1"): NodeRecord(node_id=NodeId("n1"), info=info)}))
    assert values(seen(state), "arena_gpus", "gpu_type", "zone", "state")["cpu", zone, "free"] == 1


@pytest.mark.parametrize("policy", ["srtf", "elastic"])
def test_what_happens_is_counted_once(policy: str) -> None:
    """Jobs come and end, are stopped for others and lose a node; batches of any size count the same."""
    sim = Simulation(
        policy=make_policy(policy),
        grids=PowerLawGrids(),
        config=EngineConfig(checkpoint_root="/c", output_root="/o", node_grace_s=5.0),
    )
    before = sim.engine.state
    pairs: list[tuple[ClusterState, Step]] = []
    for name in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name, gpus=2)))
    for index, steps in enumerate((4000, 400, 50)):
        spec = train_spec(f"j{index}", stop={"steps": steps}, gpus={"min": 2, "max": 4})
        sim.at(
            1.0 + 20.0 * index, JobSubmitted(job_id=JobId(f"j{index}"), spec=spec, user="ann", request_id=str(index))
        )
    sim.at(90.0, NodeDisconnected(node_id=NodeId("n2"), incarnation="n2-1", why="gone"))
    handle = sim.engine.handle

    def noted(*args: Any, **fields: Any) -> Step:
        state = sim.engine.state
        step = handle(*args, **fields)
        pairs.append((state, step))
        return step

    sim.engine.handle = noted  # type: ignore[method-assign]
    sim.run()
    tally = Tally()
    for state, step in pairs:
        tally = tally.after(state, [step])
    ended = sim.ended.values()
    assert len(ended) == 3
    assert tally.submitted_count == 3
    assert dict(tally.ended_count_by_state) == {
        one: sum(job.state is one for job in ended) for one in JobState if one.is_terminal
    }
    assert tally.restart_count == sum(job.restart_count for job in ended) > 0
    assert tally.preemption_count == sum(job.preemption_count for job in ended)
    assert tally.reconfiguration_count == sum(job.reconfiguration_count for job in ended)
    assert tally.preemption_count + tally.reconfiguration_count > 0
    assert tally.gpu_seconds == pytest.approx(sum(job.gpu_seconds for job in ended))
    assert tally.lost_node_count == 1
    at_once = Tally().after(before, [step for _, step in pairs])
    assert at_once == replace(tally, gpu_seconds=pytest.approx(tally.gpu_seconds))


def _steps_of_an_end(kind: EndKind, error_code: str) -> list[tuple[ClusterState, Step]]:
    """A job is launched on two nodes; on one it ends so, on the other it is stopped for it."""
    engine, steps, spec = (
        Engine(make_policy("fcfs"), EngineConfig(shape_settle_s=0.0)),
        [],
        train_spec("a", gpus={"min": 4, "max": 4}),
    )

    def handle(event: Event, now_s: float) -> None:
        before = engine.state
        steps.append((before, engine.handle(event, now_s)))

    for name in ("n1", "n2"):
        handle(NodeRegistered(info=node_info(name, gpus=2)), 0.0)
    handle(JobSubmitted(job_id=JobId("a"), spec=spec, user="ann", request_id="a"), 1.0)
    grid = PowerLawGrids().grid(spec, engine.state.shape)
    handle(GridBuilt(job_id=JobId("a"), shape=engine.state.shape, grid=grid), 2.0)
    (attempt,) = engine.state.attempts.values()
    for name, how, code in (("n1", kind, error_code), ("n2", EndKind.KILLED, "")):
        end = NodeEnd(node_id=NodeId(name), kind=how, error_code=code)
        handle(AttemptEnded(node_id=NodeId(name), attempt_id=attempt.attempt_id, end=end), 3.0)
    return steps


@pytest.mark.parametrize(
    ("kind", "error_code", "fault", "restarts"),
    [
        (EndKind.LAUNCH_FAILED, "", "node", 0),
        (EndKind.LAUNCH_FAILED, "port", "port", 0),
        (EndKind.FAILED, "port", "port", 0),
        (EndKind.LAUNCH_FAILED, "config", "config", 0),
        (EndKind.FAILED, "crash", None, 1),
    ],
)
def test_a_launch_that_fails_is_counted_by_its_fault_and_is_no_restart(
    kind: EndKind, error_code: str, fault: str | None, restarts: int
) -> None:
    pairs = _steps_of_an_end(kind, error_code)
    tally = Tally()
    for before, step in pairs:
        tally = tally.after(before, [step])
    assert tally == Tally().after(pairs[0][0], [step for _, step in pairs]), "batches of any size count the same"
    told = values(seen(ClusterState(), tally=tally), "arena_launch_failures_total", "fault")
    assert told == {(one,): float(one == fault) for one in ("node", "port", "config")}
    assert values(seen(ClusterState(), tally=tally), "arena_job_restarts_total") == {(): restarts}


def answered(path: str, **fields: Any) -> str:
    """The status and the text of an answer."""
    parts: dict[str, Any] = {
        "observe": lambda: seen(ClusterState()),
        "silent_s": lambda: 0.0,
        "turn": Turn,
        "access": None,
    }
    answer = application(**{**parts, "read_only_cause": lambda: None, **fields})
    told: list[str] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Any:
        told.append(status)

    environ = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
    text = b"".join(answer(environ, start_response)).decode()  # type: ignore[arg-type]
    return f"{told[0]}: {text}"


def test_it_is_healthy_while_the_loop_runs_and_ready_while_it_can_write() -> None:
    assert answered("/-/healthy") == "200 OK: healthy\n"
    assert answered("/-/ready") == "200 OK: ready\n"
    stuck = SILENT_S_MAX + 1.0
    assert answered("/-/healthy", silent_s=lambda: stuck) == (
        "503 Service Unavailable: the event loop has not run for 11 s\n"
    )
    assert answered("/-/ready", silent_s=lambda: stuck).startswith("503")
    full = {"read_only_cause": lambda: "the disk is full"}
    assert answered("/-/ready", **full) == "503 Service Unavailable: read-only: the disk is full\n"
    assert answered("/-/healthy", **full).startswith("200")
    assert answered("/metrics", silent_s=lambda: stuck).startswith("200"), "what is known is told all the same"
    assert answered("/").startswith("404")


@pytest.mark.parametrize("part", [*Part, None])
def test_one_turn_may_take_long_before_it_is_not_ready_and_far_longer_before_it_is_unhealthy(part: Part | None) -> None:
    said = f"503 Service Unavailable: busy for {{:.0f}} s{f', with {part.value} for 7 s' if part else ''}\n"

    def answers(took_s: float) -> tuple[str, str]:
        turn = Turn(took_s=took_s, part=part, part_s=7.0)
        return answered("/-/ready", turn=lambda: turn), answered("/-/healthy", turn=lambda: turn)

    assert answers(READY_TURN_S_MAX) == ("200 OK: ready\n", "200 OK: healthy\n")
    assert answers(HEALTHY_TURN_S_MAX) == (said.format(HEALTHY_TURN_S_MAX), "200 OK: healthy\n")
    long_s = HEALTHY_TURN_S_MAX + 1.0
    assert answers(long_s) == (said.format(long_s), said.format(long_s))


def test_a_turn_is_timed_whole_and_in_its_parts() -> None:
    now_s = 10.0
    watch = TurnWatch(lambda: now_s)
    assert watch.seen() == Turn()
    with watch.turn():
        now_s = 13.0
        assert watch.seen() == Turn(took_s=3.0)
        with watch.part(Part.DECISION):
            now_s = 15.0
            turn = watch.seen()
            assert turn == Turn(took_s=5.0, part=Part.DECISION, part_s=2.0)
            assert (turn.time_at_s(Part.DECISION), turn.time_at_s(Part.WRITING)) == (2.0, 0.0)
        with pytest.raises(ValueError, match="no"), watch.part(Part.WRITING):
            raise ValueError("no")
        assert watch.seen() == Turn(took_s=5.0)
    assert watch.seen() == Turn()


def test_the_process_itself_is_told_of(tmp_path: Path) -> None:
    assert "process_resident_memory_bytes" in answered("/metrics")
