"""Takes new jobs: once per request, only if the cluster could ever hold them, acknowledged only when durable."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from dataclasses import dataclass

from arena.domain.capability import job_refusals
from arena.domain.cluster import ClusterShape
from arena.domain.events import JobSubmitted
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.limits import contradictions
from arena.engine.state import shape_of
from arena.errors import InfeasibleError, InternalError, PermissionDeniedError, SpecError, UserError
from arena_scheduler.access import Caller, Role
from arena_scheduler.cluster_view import ClusterView
from arena_scheduler.grids import GridCache, largest_feasible
from arena_scheduler.inbox import Inbox
from arena_scheduler.reading import LiveStore

INFEASIBLE_NAMED_MAX = 5
REQUESTS_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The answer to a submission."""

    job_id: JobId
    is_new: bool


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
    """Everything between a valid specification and a durable job."""

    def __init__(self, *, store: LiveStore, inbox: Inbox, grids: GridCache, view: ClusterView) -> None:
        self._store = store
        self._inbox = inbox
        self._grids = grids
        self._view = view
        self._under_way: dict[tuple[str, str], asyncio.Future[JobId]] = {}
        self._recent: OrderedDict[str, tuple[JobId, str]] = OrderedDict()
        self._numbers = itertools.count(store.last_job_number() + 1)

    async def submit(self, spec: JobSpec, caller: Caller, request_id: str, *, allow_infeasible: bool) -> Submitted:
        """Take a job and return once it is on disk; the same request again gives the same job.

        Raises:
            UserError: There is no request id, or another user's job has it; no cluster could run the job.
            InfeasibleError: No group of the present cluster can hold the job.
            ResourceExhaustedError: Nothing can be written.
        """
        if not request_id:
            raise UserError("a submission needs a request_id", fix="make a fresh UUID per submission")
        _refuse_for_good(spec)
        user = _user_of(spec, caller)
        key = (user, request_id)
        under_way = self._under_way.get(key)
        if under_way is not None:
            return Submitted(job_id=await asyncio.shield(under_way), is_new=False)
        answer: asyncio.Future[JobId] = asyncio.get_running_loop().create_future()
        self._under_way[key] = answer
        try:
            submitted = await self._submit(spec, user, request_id, allow_infeasible=allow_infeasible)
        except BaseException as error:
            answer.set_exception(error if isinstance(error, Exception) else UserError("the submission was cancelled"))
            answer.exception()  # seen, even if nobody else waits
            raise
        else:
            answer.set_result(submitted.job_id)
            return submitted
        finally:
            del self._under_way[key]

    async def _submit(self, spec: JobSpec, user: str, request_id: str, *, allow_infeasible: bool) -> Submitted:
        recent = self._recent.get(request_id)
        if recent is not None:
            return _repeated(*recent, user)
        if not allow_infeasible:
            await self._refuse_infeasible(spec)
        job_id = JobId(f"{self._store.identity}-{next(self._numbers)}")
        event = JobSubmitted(
            job_id=job_id,
            spec=spec.model_copy(update={"user": user}),
            user=user,
            request_id=request_id,
            allow_infeasible=allow_infeasible,
        )
        try:
            await self._inbox.request(event)
        except InternalError:
            # The table keeps request ids unique: most likely this one was accepted long ago.
            known = await asyncio.to_thread(self._store.reader.job_of_request, request_id)
            if known is None:
                raise
            return _repeated(known.job_id, known.user, user)
        self._remember(request_id, job_id, user)
        return Submitted(job_id=job_id, is_new=True)

    def _remember(self, request_id: str, job_id: JobId, user: str) -> None:
        self._recent[request_id] = (job_id, user)
        if len(self._recent) > REQUESTS_REMEMBERED:
            self._recent.popitem(last=False)

    async def _refuse_infeasible(self, spec: JobSpec) -> None:
        shape = self._present_shape()
        if not shape.pools:
            return  # no node has registered yet: nothing is known
        grid = (await self._grids.get(spec, shape)).grid
        if not grid.cells and self._grids.may_widen(spec, shape):
            grid = (await self._grids.widened(spec, shape)).grid  # it may fit over several types only
        if not grid.cells and not grid.mixed:
            raise await self._infeasible(spec, shape, grid)

    def _present_shape(self) -> ClusterShape:
        """Return the shape with the nodes of this moment; the engine's own follows a little later."""
        state = self._view.state
        return state.shape if state.shape_dirty_at_s is None else shape_of(state.nodes)

    async def _infeasible(self, spec: JobSpec, shape: ClusterShape, grid: Grid) -> InfeasibleError:
        largest = await largest_feasible(self._grids, spec, shape)
        reasons = {f"{item.group} ({item.reason})": "" for item in grid.infeasible[:INFEASIBLE_NAMED_MAX]}
        return InfeasibleError(
            f"no group of this cluster can hold job {spec.name!r}",
            why="; ".join([f"largest feasible now: {largest}", f"GPUs in all: {shape.gpu_count}", *reasons]),
            fix="ask for less, or queue it with --allow-infeasible",
            details={"largest_feasible": str(largest), "gpu_count": str(shape.gpu_count)},
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
