"""What tenants are promised on any snapshot: their share, unless only what may not be moved stands in the way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.job import JobId
from arena.domain.tenants import ANY_TYPE, Guarantee
from arena.policies.base import Decision, Snapshot
from arena.policies.placement import place
from arena.policies.priced.policy import PricedPolicy
from tests.property.test_priced_policy import TYPES, after, snapshots

sized = settings(max_examples=60, deadline=None)
PROJECTS = ("default", "red", "blue")


@st.composite
def shared_snapshots(draw: st.DrawFn) -> Snapshot:
    """A snapshot whose jobs are of three projects, two of which have shares that the cluster can give."""
    snapshot = draw(snapshots())
    jobs = {
        job_id: replace(job, spec=job.spec.model_copy(update={"project": draw(st.sampled_from(PROJECTS))}))
        for job_id, job in snapshot.jobs.items()
    }
    left = dict(snapshot.shape.gpu_count_by_type)
    is_any = draw(st.booleans())
    tenants: dict[str, Guarantee] = {}
    for name in PROJECTS[1:]:
        counts = {gpu_type: draw(st.integers(0, count)) for gpu_type, count in left.items()}
        left = {gpu_type: count - counts[gpu_type] for gpu_type, count in left.items()}
        tenants[name] = Guarantee(gpu_count_by_type={ANY_TYPE: sum(counts.values())} if is_any else counts)
    return replace(snapshot, jobs=jobs, tenants=tenants)


def has_after(snapshot: Snapshot, decision: Decision) -> dict[JobId, GpuGroup]:
    """What each job has once a decision is carried out."""
    groups = {job_id: holding.group for job_id, holding in snapshot.holding.items()}
    for job_id, choice in decision.choices.items():
        groups.pop(job_id, None)
        if choice is not None:
            groups[job_id] = choice.group
    return groups


def count_of(group: GpuGroup, gpu_type: str | None = None) -> int:
    return sum(part.gpu_count for part in group.parts if gpu_type in {None, part.gpu_type})


def fits_share(snapshot: Snapshot, groups: dict[JobId, GpuGroup], project: str, more: GpuGroup) -> bool:
    """Whether a project that has these groups would have no more than its share with one more."""
    share = snapshot.tenants[project]
    own = [group for job_id, group in groups.items() if snapshot.jobs[job_id].spec.project == project]
    kinds = [(None, share.gpu_count)] if share.is_of_any_type else [(kind, share.of(kind)) for kind in TYPES]
    return all(sum(count_of(group, kind) for group in (*own, more)) <= count for kind, count in kinds)


def is_stoppable(snapshot: Snapshot, job_id: JobId) -> bool:
    holding = snapshot.holding.get(job_id)
    return holding is None or (holding.movable and snapshot.jobs[job_id].spec.preemptible)


@sized
@given(snapshot=shared_snapshots())
def test_nobody_waits_within_a_share_whose_gpus_are_with_jobs_that_have_none(snapshot: Snapshot):
    decision = PricedPolicy().decide(snapshot)
    groups = has_after(snapshot, decision)
    room = after(snapshot, decision)
    for job_id in groups:
        if snapshot.jobs[job_id].spec.project not in snapshot.tenants and is_stoppable(snapshot, job_id):
            kept = decision.choices.get(job_id)
            room = room.restore(kept.allocation if kept is not None else snapshot.holding[job_id].allocation)
    for job_id in set(snapshot.waiting) - set(groups):
        spec = snapshot.jobs[job_id].spec
        if spec.project not in snapshot.tenants or not spec.preemptible:
            continue
        for one in snapshot.grids[job_id].cells:
            if fits_share(snapshot, groups, spec.project, one.group):
                assert not isinstance(place(room, one.group), Allocation), (job_id, str(one.group))
