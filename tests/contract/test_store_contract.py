"""What every store promises: durable in one piece, last version wins, nothing held twice, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.cluster import NodeState
from arena.domain.events import GridBuilt, JobSubmitted, NodeRegistered, Tick
from arena.domain.job import JobId
from arena.domain.launch import attempt_id
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import (
    AttemptRecord,
    AttemptState,
    EndKind,
    EntryKind,
    HistoryEntry,
    JobRecord,
    JobState,
    NodeEnd,
    NodeRecord,
)
from arena.engine.ports import Step
from arena.errors import InternalError
from arena.policies.base import Decision
from arena_scheduler.reading import HistoryQuery, JobCursor, JobQuery, LiveStore
from arena_scheduler.store.writes import SqliteStore
from tests.builders import allocation_on, job_record, node_info, scaling_grid, shape, train_spec
from tests.fakes.memory_store import MemoryStore

EVERYTHING = JobQuery()


def step(*jobs: JobRecord, attempts: tuple[AttemptRecord, ...] = (), at_s: float = 1.0, **fields: object) -> Step:
    return Step(event=Tick(), at_s=at_s, jobs=jobs, attempts=attempts, **fields)  # type: ignore[arg-type]


def attempt(job: JobRecord, epoch: int, allocation: Allocation, **fields: object) -> AttemptRecord:
    return AttemptRecord(
        attempt_id=attempt_id(job.job_id, epoch),
        job_id=job.job_id,
        epoch=epoch,
        plan=ParallelPlan.uniform(layer_count=4, dp=allocation.gpu_count),
        group=GpuGroup.of("cpu", [allocation.gpu_count]),
        estimate=None,
        allocation=allocation,
        master_addr="127.0.0.1",
        master_port=20000,
        cause=reason(ReasonCode.STARTED, group="cpu 1"),
        decision_index=1,
        decided_at_s=1.0,
        launched_at_s=1.0,
        **fields,  # type: ignore[arg-type]
    )


def entry(index: int, **fields: object) -> HistoryEntry:
    facts = {"kind": EntryKind.JOB_STATE, "message": "a: b", "at_s": float(index), **fields}
    return HistoryEntry(index=index, **facts)  # type: ignore[arg-type]


def test_a_new_store_has_nothing(store: LiveStore) -> None:
    restored = store.load()
    assert (restored.jobs, restored.attempts, restored.nodes, restored.history_index) == ((), (), (), 0)
    assert store.reader.list_jobs(EVERYTHING, None, 10).total_count == 0
    assert store.last_job_number() == 0


def test_what_is_committed_comes_back_equal(store: LiveStore) -> None:
    job = job_record("mem-1", state=JobState.STARTING, epoch=1, attempt_id="mem-1.1")
    launched = attempt(job, 1, allocation_on(("n1", [0, 1])))
    node = NodeRecord(node_id=node_info("n1").node_id, info=node_info("n1"), state=NodeState.READY)
    grid = scaling_grid("cpu", [[1], [2]])
    cluster = shape(("cpu", 2, 1))
    store.commit(
        [
            Step(event=NodeRegistered(info=node.info), at_s=1.0, nodes=(node,)),
            Step(
                event=JobSubmitted(job_id=job.job_id, spec=job.spec, user=job.user, request_id=job.request_id),
                at_s=2.0,
                jobs=(job,),
                attempts=(launched,),
                history=(entry(1, job_id=job.job_id),),
                decision=Decision(),
            ),
            Step(event=GridBuilt(job_id=job.job_id, shape=cluster, grid=grid), at_s=3.5),
        ]
    )
    restored = store.load()
    assert restored.jobs == (job,)
    assert restored.attempts == (launched,)
    assert restored.nodes == (node,)
    assert restored.grids == {job.job_id: (cluster, grid)}
    assert (restored.history_index, restored.decision_index, restored.last_at_s) == (1, 1, 3.5)


def test_a_grid_that_came_with_its_job_is_given_back(store: LiveStore) -> None:
    job, grid, cluster = job_record("j1"), scaling_grid("cpu", [[1], [2]]), shape(("cpu", 2, 1))
    planned = GridBuilt(job_id=job.job_id, shape=cluster, grid=grid)
    event = JobSubmitted(job_id=job.job_id, spec=job.spec, user=job.user, request_id="r", planned=planned)
    store.commit([Step(event=event, at_s=1.0, jobs=(job,))])
    assert store.load().grids == {job.job_id: (cluster, grid)}
    store.commit([Step(event=replace(planned, grid=scaling_grid("cpu", [[1]])), at_s=2.0)])
    assert store.load().grids == {job.job_id: (cluster, scaling_grid("cpu", [[1]]))}


def test_of_several_versions_in_a_batch_the_last_is_kept(store: LiveStore) -> None:
    first = job_record("j1")
    store.commit([step(first), step(replace(first, state=JobState.HELD)), step(replace(first, epoch=7))])
    assert store.reader.get_job(JobId("j1")) == replace(first, epoch=7)


def test_terminal_jobs_are_kept_but_not_restored(store: LiveStore) -> None:
    done = job_record("j1", state=JobState.SUCCEEDED)
    store.commit([step(done, job_record("j2"))])
    assert [job.job_id for job in store.load().jobs] == ["j2"]
    assert store.reader.get_job(JobId("j1")) == done
    assert store.reader.count_by_state() == {JobState.SUCCEEDED: 1, JobState.QUEUED: 1}


def test_a_node_that_is_forgotten_is_gone_unless_it_came_back(store: LiveStore) -> None:
    one, two, three = (NodeRecord(node_id=(info := node_info(name)).node_id, info=info) for name in ("n1", "n2", "n3"))
    store.commit([step(nodes=(one, two, three))])
    gone = step(forgotten_nodes=(one.node_id, two.node_id, three.node_id))
    store.commit([step(nodes=(replace(one, state=NodeState.LOST),)), gone, step(nodes=(two,))])
    assert store.load().nodes == (two,)
    store.commit([step(nodes=(one,)), step(forgotten_nodes=(two.node_id,))])
    assert store.load().nodes == (one,)


def test_a_device_held_twice_is_refused_with_the_whole_batch(store: LiveStore) -> None:
    one, two = job_record("j1"), job_record("j2")
    store.commit([step(one, attempts=(attempt(one, 1, allocation_on(("n1", [0, 1]))),))])
    with pytest.raises(InternalError):
        store.commit([step(two, attempts=(attempt(two, 1, allocation_on(("n1", [1]))),))])
    assert store.reader.get_job(JobId("j2")) is None


def test_a_device_may_be_held_again_once_its_node_confirmed_the_end(store: LiveStore) -> None:
    one, two = job_record("j1"), job_record("j2")
    over_two_nodes = attempt(one, 1, allocation_on(("n1", [0]), ("n2", [0])))
    gone_from_n1 = replace(over_two_nodes, ends=(NodeEnd(node_id=node_info("n1").node_id, kind=EndKind.STOPPED),))
    store.commit([step(one, attempts=(over_two_nodes,))])
    store.commit(
        [step(one, attempts=(gone_from_n1,)), step(two, attempts=(attempt(two, 1, allocation_on(("n1", [0]))),))]
    )
    assert {item.attempt_id for item in store.load().attempts} == {"j1.1", "j2.1"}


def test_an_ended_attempt_gives_its_devices_up_in_the_same_batch(store: LiveStore) -> None:
    job = job_record("j1")
    devices = allocation_on(("n1", [0]))
    store.commit([step(job, attempts=(attempt(job, 1, devices),))])
    ended = attempt(job, 1, devices, state=AttemptState.ENDED)
    store.commit([step(job, attempts=(ended, attempt(job, 2, devices)))])
    assert [item.epoch for item in store.reader.attempts_of(job.job_id)] == [1, 2]
    assert store.reader.attempts_of_jobs([JobId("none"), job.job_id]) == {
        job.job_id: store.reader.attempts_of(job.job_id)
    }
    assert store.reader.attempts_of_jobs([]) == {}
    assert [item.attempt_id for item in store.load().attempts] == ["j1.2"]


def test_a_request_id_makes_one_job(store: LiveStore) -> None:
    store.commit([step(job_record("j1", request_id="r"))])
    with pytest.raises(InternalError):
        store.commit([step(job_record("j2", request_id="r"))])
    found = store.reader.job_of_request("r")
    assert found is not None
    assert found.job_id == "j1"
    assert store.reader.job_of_request("other") is None


def test_the_latest_decisions_come_back_newest_first_with_their_numbers(store: LiveStore) -> None:
    made = [Decision(numbers={"value": float(number)}, reasons={}) for number in range(4)]
    store.commit([step(at_s=float(at_s), decision=decision) for at_s, decision in enumerate(made[:3])])
    store.commit([step(at_s=2.5), step(at_s=3.0, decision=made[3])])
    assert store.reader.decisions(3) == ((3.0, made[3]), (2.0, made[2]), (1.0, made[1]))


def test_history_is_filtered_and_paged(store: LiveStore) -> None:
    n1 = node_info("n1").node_id
    store.commit(
        [
            step(
                history=(
                    entry(1, kind=EntryKind.NODE_STATE, node_id=n1),
                    entry(2, job_id=JobId("j1"), data={"loss": 1.5, "nodes": ["n1", "n2"]}),
                    entry(3, job_id=JobId("j2")),
                    entry(4, job_id=JobId("j1"), kind=EntryKind.PLAN_CHANGED),
                )
            )
        ]
    )

    def indexes(after: int, query: HistoryQuery, count_max: int = 10) -> list[int]:
        return [item.index for item in store.reader.history(after, query, count_max)]

    assert indexes(0, HistoryQuery()) == [1, 2, 3, 4]
    assert indexes(1, HistoryQuery(), 2) == [2, 3]
    assert indexes(0, HistoryQuery(job_id=JobId("j1"))) == [2, 4]
    assert indexes(0, HistoryQuery(node_id=n1)) == [1]
    assert indexes(0, HistoryQuery(kinds=frozenset({EntryKind.PLAN_CHANGED, EntryKind.NODE_STATE}))) == [1, 4]
    assert store.reader.history(1, HistoryQuery(), 1)[0].data == {"loss": 1.5, "nodes": ["n1", "n2"]}


def pages(store: LiveStore, query: JobQuery, size: int) -> Iterator[JobRecord]:
    after: JobCursor | None = None
    while True:
        page = store.reader.list_jobs(query, after, size)
        assert len(page.jobs) <= size
        yield from page.jobs
        after = page.after
        if after is None:
            return


JOBS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["ann", "bob"]), st.sampled_from([JobState.QUEUED, JobState.FAILED])),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=JOBS, size=st.integers(1, 7), user=st.sampled_from([None, "ann"]), failed=st.booleans())
def test_pages_give_every_matching_job_once_newest_first(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[tuple[int, str, JobState]],
    size: int,
    user: str | None,
    failed: bool,
) -> None:
    jobs = [
        job_record(f"j{index}", submitted_at_s=float(at_s), user=name, state=state)
        for index, (at_s, name, state) in enumerate(made)
    ]
    query = JobQuery(user=user, states=frozenset({JobState.FAILED}) if failed else frozenset())
    expected = sorted(
        (job for job in jobs if user in {None, job.user} and (not failed or job.state is JobState.FAILED)),
        key=lambda job: (job.submitted_at_s, job.job_id),
        reverse=True,
    )
    sqlite = SqliteStore.open(Path(tmp_path_factory.mktemp("pages")) / "arena.db")
    try:
        for store in (sqlite, MemoryStore()):
            store.commit([step(*jobs)])
            assert list(pages(store, query, size)) == expected
            assert store.reader.list_jobs(query, None, size).total_count == len(expected)
    finally:
        sqlite.close()


def test_twenty_thousand_jobs_are_paged(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "arena.db")
    first = job_record("j0")
    for chunk in (range(start, start + 5_000) for start in range(0, 20_000, 5_000)):
        store.commit(
            [step(*(replace(first, job_id=JobId(f"j{n}"), request_id=f"r{n}", submitted_at_s=float(n)) for n in chunk))]
        )
    page = store.reader.list_jobs(EVERYTHING, JobCursor(submitted_at_s=10.0, job_id=JobId("j10")), 100)
    assert [job.job_id for job in page.jobs] == [f"j{n}" for n in range(9, -1, -1)]
    assert (page.total_count, page.after) == (20_000, None)
    store.close()


def test_a_project_is_known_once_a_job_of_it_has_succeeded(store: LiveStore) -> None:
    first, second = (job_record(name, train_spec(name, project=name)) for name in ("a", "b"))
    store.commit([step(first, second)])
    assert not store.reader.has_succeeded_in("a")
    store.commit([step(replace(first, state=JobState.SUCCEEDED), replace(second, state=JobState.CANCELLED))])
    assert [store.reader.has_succeeded_in(name) for name in ("a", "b", "c")] == [True, False, False]
