"""What a submission is judged by: the nodes that are there when it comes."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arena.domain.cluster import ClusterShape
from arena.domain.events import GridBuilt, JobSubmitted
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.errors import InfeasibleError, InternalError, RefusedError, SpecError, UserError
from arena.policies.base import Admission
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_scheduler import app
from arena_scheduler import submission as submission_module
from arena_scheduler.access import Caller, Role
from arena_scheduler.grids import Built
from arena_scheduler.outputs import Outputs
from arena_scheduler.store.writes import SqliteStore
from arena_scheduler.submission import Submission
from tests.builders import command_spec, node_info, scaling_grid, shape, train_spec
from tests.fakes.running_scheduler import Cluster, cluster_of, eventually, quick_config

ANN = Caller(user="ann", role=Role.USER)


async def test_a_node_counts_from_the_moment_it_has_registered(tmp_path: Path) -> None:
    spec = train_spec("two", gpus={"count": 2})
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        first = await cluster.agent(node_info("n1", gpus=1))
        await first.next_of("verdict")
        with pytest.raises(InfeasibleError):
            await client.submit(spec)
        second = await cluster.agent(node_info("n2", gpus=1))
        await second.next_of("verdict")
        assert await client.submit(spec)


async def test_a_pinned_plan_that_cannot_be_read_is_refused_even_where_nothing_is_known_of_the_cluster(
    tmp_path: Path,
) -> None:
    spec = train_spec("two", parallel={"plan": "dq2"})
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        for allow_infeasible in (False, True):
            with pytest.raises(SpecError, match="unknown word 'dq2'"):
                await client.submit(spec, allow_infeasible=allow_infeasible)
        assert await client.submit(train_spec("two", parallel={"plan": "dp2"}))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"model": {"variant": {"attention_window": 8}}},
            r"attends to all positions \(model.variant: attention_window\)",
        ),
        ({"model": {"family": "t5", "encoder_layers": 2}}, "the worker trains no encoder-decoder"),
        ({"train": {"precision": "fp16"}}, "precision fp16 needs loss scaling"),
        ({"gpus": {"count": 4}, "parallel": {"plan": "dp2"}}, "is for 2 GPUs, gpus.count is 4"),
    ],
)
async def test_a_job_that_no_cluster_could_run_is_refused_and_not_queued(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        for allow_infeasible in (False, True):
            with pytest.raises(SpecError, match=why):
                await client.submit(train_spec("never", **fields), allow_infeasible=allow_infeasible)


def promising(cluster: Cluster) -> Submission:
    """Takes jobs of a scheduler whose policy promises nothing any more when their grids are there."""
    parts = cluster.running._parts
    return Submission(
        store=parts.store,
        inbox=parts.inbox,
        grids=parts.grids,
        view=parts.view,
        outputs=Outputs("", lambda: parts.view.state.jobs),
        admission=lambda *_: Admission(is_promised=True, earliest_end_s=1e9),
    )


async def test_a_promise_is_asked_for_whose_job_it_will_be(tmp_path: Path) -> None:
    """What is known of jobs is known of their users'."""
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1", gpus=1))
        await agent.next_of("verdict")
        submission, asked = promising(cluster), list[str | None]()

        def admission(_state: object, spec: JobSpec, *_: object) -> Admission:
            asked.append(spec.user)
            return Admission(is_promised=True, earliest_end_s=1e9)

        submission._admission = admission
        spec = train_spec("late", stop={"steps": 100}, deadline_s=1_000.0)
        await submission.try_out(spec, ANN, allow_infeasible=False)
        await submission.submit(spec, ANN, "first", allow_infeasible=False)
        assert asked == ["ann", "ann"]


async def test_the_answer_says_what_was_promised_when_the_job_was_there(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1", gpus=1))
        await agent.next_of("verdict")
        spec = train_spec("late", stop={"steps": 100}, deadline_s=1_000.0)
        found = await promising(cluster).submit(spec, ANN, "first", allow_infeasible=False)
        assert found.job_id is not None
        assert found.deadline is not None
        assert (found.deadline.is_promised, found.deadline.earliest_end_at_s) == (False, None)
        assert not (await cluster.client(user="ann").job(found.job_id)).is_deadline_promised


async def test_a_strict_deadline_that_cannot_be_promised_any_more_is_refused_and_its_job_cancelled(
    tmp_path: Path,
) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1", gpus=1))
        await agent.next_of("verdict")
        spec = train_spec("late", stop={"steps": 100}, deadline_s=1_000.0, is_deadline_strict=True)
        with pytest.raises(RefusedError, match="cannot be promised any more") as refused:
            await promising(cluster).submit(spec, ANN, "first", allow_infeasible=False)
        job = await cluster.client(user="ann").job(refused.value.details["job_id"])
        assert job.wish == "cancel"


@pytest.mark.parametrize(
    ("gpus", "fields", "why"),
    [
        (0, {}, "no node is registered"),
        (1, {"budget_usd": 1e-9}, "USD of its budget are left"),
        (1, {"stop": {}}, "its length is not known"),
    ],
)
async def test_a_strict_refusal_says_what_is_in_the_way(
    tmp_path: Path, gpus: int, fields: dict[str, Any], why: str
) -> None:
    fields = {"stop": {"steps": 100}, "deadline_s": 1_000.0, "is_deadline_strict": True, **fields}
    async with cluster_of(quick_config(tmp_path, policy="arena")) as cluster:
        if gpus:
            agent = await cluster.agent(node_info("n1", gpus=gpus))
            await agent.next_of("verdict")
        with pytest.raises(RefusedError, match=why):
            await cluster.client().submit(train_spec("late", **fields))


async def test_a_deadline_that_is_taken_without_a_promise_says_why_in_its_answer_and_its_job(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1", gpus=1))
        await agent.next_of("verdict")
        found = await promising(cluster).submit(
            train_spec("late", stop={"steps": 100}, deadline_s=1_000.0), ANN, "first", allow_infeasible=False
        )
        assert found.deadline is not None
        assert str(found.deadline.cause) == "policy fcfs promises no deadlines"
        job = await cluster.client(user="ann").job(found.job_id)
        assert (job.deadline_cause.code, job.is_deadline_promised) == ("deadline_not_weighed", False)


async def test_doubts_come_with_the_answer_and_with_that_of_a_dry_run(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1", gpus=1))
        await agent.next_of("verdict")
        submission = promising(cluster)
        spec = train_spec("x", stop={"steps": 100_000_000}, budget_usd=0.001, project="defualt")
        tried = await submission.try_out(spec, ANN, allow_infeasible=False)
        taken = await submission.submit(spec, ANN, "first", allow_infeasible=False)
        for found in (tried, taken):
            assert [one.code for one in found.warnings] == ["project_unknown", "budget_not_enough"]
        again = await submission.submit(spec, ANN, "second", allow_infeasible=False)
        assert [one.code for one in again.warnings] == ["budget_not_enough"]  # now there is a job of that project


async def test_a_job_that_may_wait_for_a_cluster_waits_for_no_grid_to_be_taken(tmp_path: Path) -> None:
    is_over = threading.Event()

    class Stuck:
        version = "stuck"

        def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
            is_over.wait()
            raise InternalError("no grid today")

    try:
        async with cluster_of(quick_config(tmp_path), source=Stuck()) as cluster:
            agent = await cluster.agent(node_info("n1"))
            await agent.next_of("verdict")
            assert await cluster.client().submit(train_spec("x"), allow_infeasible=True)
            is_over.set()
    finally:
        is_over.set()


class Widening:
    """Grids whose cells over several GPU types are found in a second search."""

    def __init__(self, plain: Grid, mixed: Grid) -> None:
        self.plain, self.mixed = plain, mixed

    async def get(self, spec: JobSpec, shape: ClusterShape) -> Built:
        return Built(grid=self.plain, build_s=0.0)

    def may_widen(self, spec: JobSpec, shape: ClusterShape) -> bool:
        return True

    async def widened(self, spec: JobSpec, shape: ClusterShape) -> Built:
        return Built(grid=replace(self.plain, mixed=self.mixed.cells), build_s=0.0)


@pytest.mark.parametrize(
    ("plain_counts", "mixed_counts", "budget_usd", "warned"),
    [
        ([], [(1,)], 0.001, ["budget_not_enough"]),  # it fits over several types only
        ([], [(1,)], 1e6, []),
        ([(4,)], [(1,)], 0.05, []),  # on one type it takes more GPUs than pay off
        ([(4,)], [(1,)], 0.001, ["budget_not_enough"]),
    ],
)
async def test_a_budget_is_weighed_with_what_several_gpu_types_would_cost(
    tmp_path: Path,
    plain_counts: list[tuple[int, ...]],
    mixed_counts: list[tuple[int, ...]],
    budget_usd: float,
    warned: list[str],
) -> None:
    """One GPU of type a costs 0.02 USD for the job, four cost 0.08 since they are no faster."""
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1", gpus=4, gpu_type="a"))
        await agent.next_of("verdict")
        parts = cluster.running._parts
        parts.view.usd_per_hour = {"a": 0.65}
        grids: Any = Widening(*(scaling_grid("a", counts, power=0.0) for counts in (plain_counts, mixed_counts)))
        submission = Submission(
            store=parts.store,
            inbox=parts.inbox,
            grids=grids,
            view=parts.view,
            outputs=Outputs("", lambda: parts.view.state.jobs),
            admission=lambda *_: None,
        )
        found = await submission.try_out(
            train_spec("x", stop={"steps": 100}, budget_usd=budget_usd), ANN, allow_infeasible=False
        )
        assert [one.code for one in found.warnings] == warned


class Failing:
    """A planner that makes no grid: it says so (a refusal, a fault of its own) or does not answer."""

    version = "failing"

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.is_over = threading.Event()

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        if self.error is None:
            self.is_over.wait()
        raise self.error or InternalError("no grid today")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (UserError("no model of that name"), "internal error while it was evaluated: no model of that name"),
        (ValueError("of the planner's own"), "internal error while it was evaluated: ValueError"),
        (None, "its deadline in 1000 s is not promised yet: it is still being planned"),
    ],
)
async def test_a_job_that_may_wait_for_a_cluster_is_taken_with_its_deadline_where_no_grid_can_be_made(
    tmp_path: Path, error: Exception | None, why: str
) -> None:
    source = Failing(error)
    spec = train_spec("late", stop={"steps": 100}, deadline_s=1_000.0)
    try:
        async with cluster_of(quick_config(tmp_path), source=source) as cluster:
            agent = await cluster.agent(node_info("n1"))
            await agent.next_of("verdict")
            submission = promising(cluster)
            tried = await submission.try_out(spec, ANN, allow_infeasible=True)
            taken = await submission.submit(spec, ANN, "first", allow_infeasible=True)
            for found in (tried, taken):
                assert found.deadline is not None
                assert not found.deadline.is_promised
                assert str(found.deadline.cause).startswith(why)
            source.is_over.set()
            strict = spec.model_copy(update={"is_deadline_strict": True})
            with pytest.raises(RefusedError, match="cannot be promised"):
                await submission.submit(strict, ANN, "second", allow_infeasible=True)
    finally:
        source.is_over.set()


async def test_a_strict_deadline_is_answered_by_its_grid_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_module, "PLANNED_WITHIN_S", 0.0)
    spec = train_spec("late", stop={"steps": 100}, deadline_s=1_000.0)
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        wish = await promising(cluster).try_out(spec, ANN, allow_infeasible=True)
        strict = spec.model_copy(update={"is_deadline_strict": True, "name": "strict"})
        found = await promising(cluster).try_out(strict, ANN, allow_infeasible=True)
    assert wish.deadline is not None
    assert found.deadline is not None
    assert (wish.deadline.is_promised, found.deadline.is_promised) == (False, True)


class Holding:
    """A planner that makes the grid of a job named slow only once it is let go."""

    version = "holding"

    def __init__(self) -> None:
        self.is_asked, self.is_let_go = threading.Event(), threading.Event()

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        if spec.name == "slow":
            self.is_asked.set()
            self.is_let_go.wait()
        return scaling_grid("cpu", [(1,)])


@pytest.mark.parametrize("deadline_s", [None, 1_000.0])
@pytest.mark.parametrize(("is_grid_known", "allow_infeasible"), [(True, False), (True, True), (False, True)])
async def test_others_whose_grids_are_known_or_not_needed_are_taken_while_a_strict_deadline_waits_for_its_grid(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_grid_known: bool,
    allow_infeasible: bool,
    deadline_s: float | None,
) -> None:
    monkeypatch.setattr(submission_module, "PLANNED_WITHIN_S", 0.1)
    slow = train_spec("slow", stop={"steps": 100}, deadline_s=1_000.0, is_deadline_strict=True)
    quick = train_spec("quick", stop={"steps": 100}, deadline_s=deadline_s, train={"global_batch": 64})
    source = Holding()
    try:
        async with cluster_of(quick_config(tmp_path), source=source) as cluster:
            agent = await cluster.agent(node_info("n1"))
            await agent.next_of("verdict")
            submission = promising(cluster)
            if is_grid_known:
                await submission._grids.get(quick, submission._present_shape())
            waiting = asyncio.create_task(submission.submit(slow, ANN, "first", allow_infeasible=allow_infeasible))
            await asyncio.to_thread(source.is_asked.wait)
            async with asyncio.timeout(60.0):  # against a hang only
                taken = await submission.submit(quick, ANN, "second", allow_infeasible=allow_infeasible)
            assert taken.is_new
            assert not waiting.done()
            second = await cluster.agent(node_info("n2"))  # the cluster has another shape when the grid is there
            await second.next_of("verdict")
            source.is_let_go.set()
            with pytest.raises(RefusedError, match="cannot be promised"):  # its policy promises nothing
                await waiting
    finally:
        source.is_let_go.set()


class Restless:
    """Grids of a cluster that has one node more whenever one of them is there, until it has 20."""

    NODES_MAX = 20

    def __init__(self, submission: Submission) -> None:
        self._grids = submission._grids
        self.node_count = 1
        submission._grids = self  # type: ignore[assignment]
        submission._present_shape = lambda: shape(("cpu", self.node_count, 1))  # type: ignore[method-assign]

    async def get(self, spec: JobSpec, shape: ClusterShape) -> Built:
        built = await self._grids.get(spec, shape)
        self.node_count = min(self.node_count + 1, self.NODES_MAX)
        return built

    def may_widen(self, spec: JobSpec, shape: ClusterShape) -> bool:
        return False


@pytest.mark.parametrize("allow_infeasible", [False, True])
@pytest.mark.parametrize("is_strict", [False, True])
async def test_a_deadline_is_answered_in_a_cluster_whose_nodes_come_and_go(
    tmp_path: Path, allow_infeasible: bool, is_strict: bool
) -> None:
    spec = train_spec("late", stop={"steps": 100}, deadline_s=1_000.0, is_deadline_strict=is_strict)
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        submission = promising(cluster)
        restless = Restless(submission)
        submitting = submission.submit(spec, ANN, "first", allow_infeasible=allow_infeasible)
        if is_strict:
            with pytest.raises(RefusedError, match="cannot be promised any more"):  # its policy promises nothing
                await submitting
        else:
            assert (await submitting).deadline is not None
        assert restless.node_count < Restless.NODES_MAX, "it was planned until the cluster came to rest"


@pytest.mark.parametrize(
    "fields",
    [
        {"deadline_s": 1_000.0, "is_deadline_strict": True},  # cannot be promised now
        {"deadline_s": 1_000.0, "gpus": {"count": 4}},  # no group can hold it now
        {"gpus": {"count": 4}},
    ],
)
async def test_a_request_said_again_after_a_restart_is_answered_with_its_job_though_it_would_be_refused_now(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        spec = train_spec("x", stop={"steps": 100}, **fields)
        lenient = spec.model_copy(update={"is_deadline_strict": False})
        taken = await promising(cluster).submit(lenient, ANN, "same", allow_infeasible=True)
        restarted = promising(cluster)  # it remembers nothing
        restarted._admission = lambda *_: Admission(is_promised=False, earliest_end_s=None)
        again = await restarted.submit(spec, ANN, "same", allow_infeasible=False)
        assert (again.job_id, again.is_new) == (taken.job_id, False)
        with pytest.raises(UserError, match="this request_id is taken"):
            await restarted.submit(spec, Caller(user="bob", role=Role.USER), "same", allow_infeasible=False)
        with pytest.raises((RefusedError, InfeasibleError)):
            await restarted.submit(spec, ANN, "another", allow_infeasible=False)


async def test_a_project_of_which_a_job_has_once_succeeded_is_known(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        job_id = await client.submit(command_spec("first", project="defaults"))
        launch = await agent.next_of("launch")
        end = NodeEnd(node_id=NodeId("n1"), kind=EndKind.FINISHED)
        message = codec.attempt_ended_to_proto(AttemptId(launch.attempt_id), end)
        for project, warned in (("defualt", ["project_unknown"]), ("defaults", [])):
            found = await promising(cluster).try_out(command_spec(project=project), ANN, allow_infeasible=False)
            assert [one.code for one in found.warnings] == warned
        await agent.send(pb.OpenSessionRequest(attempt_ended=message))
        await eventually(lambda: job_id not in cluster.running.driver.durable_state.jobs, "it is over")
        found = await promising(cluster).try_out(command_spec(project="defaults"), ANN, allow_infeasible=False)
        assert found.warnings == ()


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_job_brings_its_grid_where_the_nodes_have_settled(
    tmp_path: Path, is_settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, made = quick_config(tmp_path), app.engine_config
    if not is_settled:
        monkeypatch.setattr(app, "engine_config", lambda *known: replace(made(*known), shape_settle_s=1_000.0))
    async with cluster_of(config) as cluster:
        await (await cluster.agent(node_info("n1", gpus=2))).next_of("verdict")
        if is_settled:
            await eventually(
                lambda: cluster.running.driver.durable_state.shape.gpu_count == 2, "the nodes have settled"
            )
        job_id = await cluster.client().submit(train_spec("x"))
        if is_settled:
            assert job_id in cluster.running.driver.durable_state.grids
    store = SqliteStore.open(config.db)
    try:
        inputs = [event for _, _, event in store.reader.inputs(0, 1_000)]
        [submitted] = [event for event in inputs if isinstance(event, JobSubmitted)]
        assert (submitted.planned is not None) == is_settled
        assert not [event for event in inputs if isinstance(event, GridBuilt)]
        assert (job_id in store.load().grids) == is_settled
    finally:
        store.close()
