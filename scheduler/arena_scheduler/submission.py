"""Takes new jobs: once per request, only if the cluster could ever hold them, acknowledged only when durable."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from arena.domain.capability import job_refusals
from arena.domain.cluster import ClusterShape
from arena.domain.events import GridBuilt, JobSubmitted, JobWishChanged
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.limits import contradictions
from arena.domain.reason import Reason, ReasonCode, cause_of_refusal, reason
from arena.engine.state import ClusterState, shape_of
from arena.errors import (
    ArenaError,
    InfeasibleError,
    InternalError,
    PermissionDeniedError,
    RefusedError,
    SpecError,
    UserError,
)
from arena.policies.base import Admission
from arena_scheduler.access import Caller, Role
from arena_scheduler.cluster_view import ClusterView
from arena_scheduler.doubts import OF_CELLS, OF_PROJECTS, Known, doubts
from arena_scheduler.grids import Built, GridCache, largest_feasible
from arena_scheduler.inbox import Inbox
from arena_scheduler.once import Once
from arena_scheduler.outputs import Outputs
from arena_scheduler.reading import LiveStore

INFEASIBLE_NAMED_MAX = 5
REQUESTS_REMEMBERED = 100_000
PLANNED_WITHIN_S = 2.0
"""So long at most a grid is waited for that is not needed: for a warning, or for the deadline before this one."""

AskGrid = Callable[[JobSpec, ClusterShape], Awaitable[Built]]
Planned = tuple[Grid | None, Reason | None]
"""A job's grid, or why there is none."""
AskAdmission = Callable[[ClusterState, JobSpec, Grid, float], Admission | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineAnswer:
    """Whether a job's deadline is promised.

    Args:
        earliest_end_at_s: The earliest end that can be promised, None where nobody can tell.
        cause: Why it is not promised, as far as that can be said.
    """

    is_promised: bool
    deadline_at_s: float
    earliest_end_at_s: float | None = None
    cause: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The answer to a submission.

    Args:
        job_id: None after a dry run.
        is_new: False where the request was made before, be it that it is still under way; and after a dry run.
        deadline: None where the job has no deadline, or had been taken already.
        warnings: What its user may not have meant.
    """

    job_id: JobId | None
    is_new: bool
    deadline: DeadlineAnswer | None = None
    warnings: tuple[Reason, ...] = ()


def _refuse_for_good(spec: JobSpec) -> None:
    """Refuse what would wait for ever: a plan that cannot be read, bounds that contradict, a model that is not trained.

    Raises:
        SpecError: That is so, whatever the cluster.
    """
    contradiction = next(contradictions(spec), None)
    if contradiction is not None:
        raise SpecError(f"job {spec.name!r} has bounds that contradict", why=contradiction.text)
    told = "; ".join(job_refusals(spec.train)) if spec.train is not None else ""
    if told:
        fix = "`arena plan --also-unsupported` tells what it would do elsewhere"
        raise SpecError(f"job {spec.name!r} cannot be trained here", why=told, fix=fix)


class Submission:
    """Everything between a valid specification and a durable job.

    A deadline is a wish first: who misses it has still done the work, and most would rather have it late than not at
    all. So a job whose deadline cannot be promised is taken, with a warning and the date that could be; only one that
    says ``is_deadline_strict`` is refused. What is asked before (in a thread, from a state, which is a value) and what
    the engine decides when the job's grid arrives are the same function of the same state: jobs with deadlines come in
    one after the other.

    Args:
        outputs: Knows which job writes its model where.
        admission: Asks the policy whether the deadline of a job that is not submitted yet could be promised.
    """

    def __init__(
        self,
        *,
        store: LiveStore,
        inbox: Inbox,
        grids: GridCache,
        view: ClusterView,
        outputs: Outputs,
        admission: AskAdmission,
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._grids = grids
        self._view = view
        self._outputs = outputs
        self._admission = admission
        self._admitting = asyncio.Lock()
        self._under_way = Once[Submitted](ends_alone=False)
        self._recent: OrderedDict[str, tuple[JobId, str]] = OrderedDict()
        self._numbers = itertools.count(store.last_job_number() + 1)

    async def try_out(self, spec: JobSpec, caller: Caller, *, allow_infeasible: bool) -> Submitted:
        """Return what a submission would be answered, and submit nothing.

        Raises:
            UserError: No cluster could run the job.
            RefusedError: It would be refused.
        """
        _refuse_for_good(spec)
        spec = spec.model_copy(update={"user": _user_of(spec, caller)})  # whose history counts
        self._outputs.refuse_taken(spec)
        if not allow_infeasible:
            await self._feasible(spec)
        warnings = await self._doubts(spec)
        planned = await self._planned(spec, self._present_shape(), allow_infeasible=allow_infeasible)
        deadline = await self._deadline_answer(spec, planned)
        return Submitted(job_id=None, is_new=False, deadline=deadline, warnings=warnings)

    async def _doubts(self, spec: JobSpec) -> tuple[Reason, ...]:
        """Return what the user of a job may not have meant."""
        shape, view = self._present_shape(), self._view
        planned = await self._grid_if_soon(self._grids.get, spec, shape)
        known = Known(state=view.state, shape=shape, tenants=view.tenants, usd_per_hour=view.usd_per_hour)
        found = tuple(doubts(spec, known, planned))
        is_in_doubt = any(one.code in OF_CELLS for one in found) or (planned is not None and not planned.cells)
        if is_in_doubt and self._grids.may_widen(spec, shape):
            wide = await self._grid_if_soon(self._grids.widened, spec, shape)
            found = found if wide is None else tuple(doubts(spec, known, wide))
        is_odd = any(one.code in OF_PROJECTS for one in found)
        if is_odd and await asyncio.to_thread(self._store.reader.has_succeeded_in, spec.project):
            return tuple(one for one in found if one.code not in OF_PROJECTS)
        return found

    async def _grid_if_soon(self, ask: AskGrid, spec: JobSpec, shape: ClusterShape) -> Grid | None:
        """Return a job's grid; None if it takes long or cannot be made, for a warning keeps no job out."""
        if shape.pools:
            with contextlib.suppress(Exception):  # also a fault of the planner itself
                async with asyncio.timeout(PLANNED_WITHIN_S):
                    return (await ask(spec, shape)).grid
        return None

    async def submit(self, spec: JobSpec, caller: Caller, request_id: str, *, allow_infeasible: bool) -> Submitted:
        """Take a job and return once it is on disk; the same request again gives the same job.

        Who goes away meanwhile does not end it: whether the job was taken could not be told then, and somebody who
        makes the request again may wait already.

        Raises:
            UserError: There is no request id, or another user's job has it; no cluster could run the job.
            InfeasibleError: No group of the present cluster can hold the job.
            RefusedError: Its deadline is strict and cannot be promised, or another job writes to its place.
            ResourceExhaustedError: Nothing can be written.
        """
        if not request_id:
            raise UserError("a submission needs a request_id", fix="make a fresh UUID per submission")
        _refuse_for_good(spec)
        user = _user_of(spec, caller)
        spec = spec.model_copy(update={"user": user})
        begin = partial(self._admitted, spec, user, request_id, allow_infeasible=allow_infeasible)
        submitted, is_first = await self._under_way.of((user, request_id), begin)
        return submitted if is_first else replace(submitted, is_new=False)

    async def _admitted(self, spec: JobSpec, user: str, request_id: str, *, allow_infeasible: bool) -> Submitted:
        """Submit a job; one with a deadline has its answer before the next one asks.

        Its grid is planned before that, as long as it takes: others are answered meanwhile, as far as their grids are
        known or not needed (the planner makes one after the other). Where the cluster has another shape by then it is
        planned anew, once: where nodes come and go for ever it would never be answered. An answer from the shape of a
        moment ago is one that the engine corrects when the job is there.
        """
        if spec.deadline_s is None:
            return await self._submit(spec, user, request_id, allow_infeasible=allow_infeasible)
        earlier = await self._earlier(request_id, user)
        if earlier is not None:
            return earlier
        shape = self._present_shape()
        planned = await self._planned(spec, shape, allow_infeasible=allow_infeasible)
        async with self._admitting:
            if self._present_shape() == shape:
                return await self._answered(spec, user, request_id, planned, allow_infeasible=allow_infeasible)
        planned = await self._planned(spec, self._present_shape(), allow_infeasible=allow_infeasible)
        async with self._admitting:
            return await self._answered(spec, user, request_id, planned, allow_infeasible=allow_infeasible)

    async def _answered(
        self, spec: JobSpec, user: str, request_id: str, planned: Planned | None, *, allow_infeasible: bool
    ) -> Submitted:
        """Submit a job with a deadline, which is answered from what was planned; no other one is meanwhile."""
        is_known = request_id in self._recent
        answer = None if is_known else await self._deadline_answer(spec, planned)
        submitted = await self._submit(spec, user, request_id, allow_infeasible=allow_infeasible)
        if not submitted.is_new or submitted.job_id is None or answer is None:
            return submitted
        await self._until_planned(submitted.job_id)
        return replace(submitted, deadline=await self._as_recorded(submitted.job_id, answer))

    async def _as_recorded(self, job_id: JobId, answer: DeadlineAnswer) -> DeadlineAnswer:
        """Return what the engine promised: something may have happened between the question and the submission.

        Raises:
            RefusedError: The deadline is strict and was not promised; the job is cancelled.
        """
        job = self._view.state.jobs.get(job_id)
        if job is None or job.spec.deadline_s is None:
            return answer  # it has ended already
        due_s = job.submitted_at_s + job.spec.deadline_s
        if job.is_deadline_promised:
            return DeadlineAnswer(is_promised=True, deadline_at_s=due_s, earliest_end_at_s=due_s)
        if job.spec.is_deadline_strict:
            await self._inbox.request(JobWishChanged(job_id=job_id, wish="cancel", by=job.user))
            raise RefusedError(
                f"the deadline of job {job.spec.name!r} in {job.spec.deadline_s:.0f} s cannot be promised any more",
                why=f"things changed while it was submitted; job {job_id} was cancelled",
                fix="submit it again, under a new request_id",
                details={"job_id": job_id},
            )
        if answer.is_promised or job.deadline_cause is not None:  # the engine has answered in its own time
            told = (job.deadline_earliest_at_s, job.deadline_cause)
        else:
            told = (answer.earliest_end_at_s, answer.cause)
        return DeadlineAnswer(is_promised=False, deadline_at_s=due_s, earliest_end_at_s=told[0], cause=told[1])

    async def _deadline_answer(self, spec: JobSpec, planned: Planned | None) -> DeadlineAnswer | None:
        """Return whether a deadline can be promised; None where there is none.

        Raises:
            RefusedError: It is strict and cannot be.
        """
        if spec.deadline_s is None or planned is None:
            return None
        (grid, cause), found, now_s = planned, None, self._view.now_s
        if grid is not None:
            found = await asyncio.to_thread(self._admission, self._view.state, spec, grid, now_s)
            cause = None if found is None else found.reason
        answer = DeadlineAnswer(
            is_promised=found is not None and found.is_promised,
            deadline_at_s=now_s + spec.deadline_s,
            earliest_end_at_s=None if found is None else found.earliest_end_s,
            cause=cause,
        )
        if spec.is_deadline_strict and not answer.is_promised:
            raise _too_late(spec, answer, now_s)
        return answer

    async def _planned(self, spec: JobSpec, shape: ClusterShape, *, allow_infeasible: bool) -> Planned | None:
        """Return what the answer about a deadline rests on, None where there is no deadline.

        Raises:
            ArenaError: No grid can be made, and the job is not allowed to wait for better days.
        """
        if spec.deadline_s is None:
            return None
        if not shape.pools:
            return None, reason(ReasonCode.NO_NODES, nodes=len(self._view.state.nodes))
        if not allow_infeasible:
            with contextlib.suppress(ArenaError):  # it is refused later, unless it was taken already
                await self._feasible(spec)
        return await self._grid_or_cause(spec, shape, allow_infeasible=allow_infeasible)

    async def _grid_or_cause(self, spec: JobSpec, shape: ClusterShape, *, allow_infeasible: bool) -> Planned:
        """Return a job's grid; for one that may wait for better days as well that there is none, and why.

        It is waited for as long as it takes where the answer decides whether the job is taken.

        Raises:
            ArenaError: No grid can be made, and the job may not wait.
        """
        if not allow_infeasible:
            return (await self._grids.get(spec, shape)).grid, None
        assert spec.deadline_s is not None
        try:
            async with asyncio.timeout(None if spec.is_deadline_strict else PLANNED_WITHIN_S):
                return (await self._grids.get(spec, shape)).grid, None
        except TimeoutError:
            return None, reason(ReasonCode.DEADLINE_UNPLANNED, left_s=spec.deadline_s)
        except ArenaError as error:
            return None, reason(ReasonCode.INTERNAL_ERROR, error=error.message)
        except Exception as error:  # noqa: BLE001 - a fault of the planner's; the job itself gets the word once it is there
            return None, reason(ReasonCode.INTERNAL_ERROR, error=repr(error))

    async def _until_planned(self, job_id: JobId) -> None:
        """Wait until a job's grid is known, so that the next deadline is weighed beside this one; not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PLANNED_WITHIN_S):
                while self._is_to_be_planned(job_id):
                    await self._view.changed()

    def _is_to_be_planned(self, job_id: JobId) -> bool:
        job = self._view.state.jobs.get(job_id)
        return job is not None and job_id not in self._view.state.grids and not job.evaluation_failure_count

    async def _submit(self, spec: JobSpec, user: str, request_id: str, *, allow_infeasible: bool) -> Submitted:
        recent = self._recent.get(request_id)
        if recent is not None:
            return _repeated(*recent, user)
        owner = self._view.state.jobs.get(self._outputs.owner(spec) or JobId(""))
        if owner is not None and owner.request_id == request_id:  # said before, to a scheduler before this one
            return _repeated(owner.job_id, owner.user, user)
        self._outputs.refuse_taken(spec)
        planned = None
        if not allow_infeasible:
            try:
                planned = await self._feasible(spec)
            except ArenaError:
                earlier = await self._earlier(request_id, user)
                if earlier is None:
                    raise
                return earlier
        warnings = await self._doubts(spec)
        job_id = JobId(f"{self._store.identity}-{next(self._numbers)}")
        event = JobSubmitted(
            job_id=job_id,
            spec=spec,
            user=user,
            request_id=request_id,
            allow_infeasible=allow_infeasible,
            planned=None if planned is None else planned(job_id),
        )
        self._under_way.goes_on((user, request_id))
        try:
            with self._outputs.taken(spec, job_id):
                await self._inbox.request(event)
        except InternalError:
            # The table keeps request ids unique: most likely this one was accepted long ago.
            earlier = await self._earlier(request_id, user)
            if earlier is None:
                raise
            return earlier
        self._remember(request_id, job_id, user)
        return Submitted(job_id=job_id, is_new=True, warnings=warnings)

    async def _earlier(self, request_id: str, user: str) -> Submitted | None:
        """Return the answer to a request whose job was taken already, be it by a scheduler before this one.

        Raises:
            UserError: Another user's job has the request id.
        """
        recent = self._recent.get(request_id)
        if recent is None:
            known = await asyncio.to_thread(self._store.reader.job_of_request, request_id)
            if known is None:
                return None
            recent = (known.job_id, known.user)
        return _repeated(*recent, user)

    def _remember(self, request_id: str, job_id: JobId, user: str) -> None:
        self._recent[request_id] = (job_id, user)
        if len(self._recent) > REQUESTS_REMEMBERED:
            self._recent.popitem(last=False)

    async def _feasible(self, spec: JobSpec) -> Callable[[JobId], GridBuilt] | None:
        """Return what makes the word of a job's grid; None where the planner is to be asked, and may find more.

        Raises:
            InfeasibleError: No group of the cluster can hold it.
        """
        shape = self._present_shape()
        if not shape.pools:
            return None  # no node has registered yet: nothing is known
        built, may_widen = await self._grids.get(spec, shape), self._grids.may_widen(spec, shape)
        grid = built.grid
        if not grid.cells and may_widen:
            grid = (await self._grids.widened(spec, shape)).grid  # it may fit over several types only
        if not grid.cells and not grid.mixed:
            raise await self._infeasible(spec, shape, grid)
        return None if may_widen else partial(built.told, shape=shape)

    def _present_shape(self) -> ClusterShape:
        """Return the shape with the nodes of this moment; the engine's own follows a little later."""
        state = self._view.state
        return state.shape if state.shape_dirty_at_s is None else shape_of(state.nodes)

    async def _infeasible(self, spec: JobSpec, shape: ClusterShape, grid: Grid) -> InfeasibleError:
        largest = await largest_feasible(self._grids, spec, shape)
        # That it exceeds the cluster is what the two numbers say already.
        others = [item for item in grid.infeasible if item.reason.code is not ReasonCode.EXCEEDS_CLUSTER]
        reasons = {f"{item.group} ({item.reason})": "" for item in others[:INFEASIBLE_NAMED_MAX]}
        return InfeasibleError(
            f"no group of this cluster can hold job {spec.name!r}",
            why="; ".join([f"largest feasible now: {largest}", f"GPUs in all: {shape.gpu_count}", *reasons]),
            fix="ask for less, or queue it with --allow-infeasible",
            details={"largest_feasible": str(largest), "gpu_count": str(shape.gpu_count)},
        )


def _too_late(spec: JobSpec, answer: DeadlineAnswer, now_s: float) -> RefusedError:
    assert spec.deadline_s is not None
    earliest_s = None if answer.earliest_end_at_s is None else answer.earliest_end_at_s - now_s
    told = [] if answer.cause is None else [cause_of_refusal(answer.cause)]
    details = {} if answer.cause is None else {"cause": answer.cause.code.value}
    if earliest_s is None:
        is_unknown = answer.cause is not None and answer.cause.code is ReasonCode.DEADLINE_UNKNOWN
        fix = "declare stop.steps or stop.time_limit_s" if is_unknown else "leave out is_deadline_strict"
    else:
        told.append(f"the earliest end that can be promised is in {earliest_s:.0f} s")
        fix = f"set deadline_s to {earliest_s + 1:.0f} or more, or leave out is_deadline_strict"
        details["earliest_end_s"] = f"{earliest_s:.3f}"
    return RefusedError(
        f"the deadline of job {spec.name!r} in {spec.deadline_s:.0f} s cannot be promised",
        why="; ".join(told) or "nobody can tell by when it could end",
        fix=fix,
        details=details,
    )


def _repeated(job_id: JobId, owner: str, user: str) -> Submitted:
    if owner != user:
        raise UserError("this request_id is taken", fix="make a fresh UUID per submission")
    return Submitted(job_id=job_id, is_new=False)


def _user_of(spec: JobSpec, caller: Caller) -> str:
    """Return whose job it will be: the caller's, or the user an admin names."""
    if caller.role is Role.AGENT:
        raise PermissionDeniedError("an agent may not submit jobs", why=f"the token is {caller.user}'s, an agent")
    if spec.user is None or spec.user == caller.user:
        return caller.user
    if not caller.is_admin:
        raise PermissionDeniedError(
            f"you may not submit for {spec.user}", why=f"you are {caller.user}", fix="leave user out"
        )
    return spec.user
