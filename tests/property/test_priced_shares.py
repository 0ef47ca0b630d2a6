"""What tenants are promised on any snapshot: their share, unless only what may not be moved stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.job import JobId
from arena.domain.tenants import ANY_TYPE, Guarantee
from arena.policies.base import Decision, Snapshot
from arena.policies.capacity import Capacity
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


def without(snapshot: Snapshot, decision: Decision, job_ids: Iterable[JobId]) -> Capacity:
    """What is free once a decision is carried out and these give up what they have."""
    room = after(snapshot, decision)
    for job_id in job_ids:
        kept = decision.choices.get(job_id)
        room = room.restore(kept.allocation if kept is not None else snapshot.holding[job_id].allocation)
    return room


def is_surplus(snapshot: Snapshot, groups: dict[JobId, GpuGroup], job_id: JobId) -> bool:
    """Whether a project that is guaranteed something would have its share in every kind without this job as well."""
    project = snapshot.jobs[job_id].spec.project
    share = snapshot.tenants[project]
    rest = [
        group for other, group in groups.items() if other != job_id and snapshot.jobs[other].spec.project == project
    ]
    kinds = [(None, share.gpu_count)] if share.is_of_any_type else [(kind, share.of(kind)) for kind in TYPES]
    return all(sum(count_of(group, kind) for group in rest) >= count for kind, count in kinds)


def all_lent(
    snapshot: Snapshot, groups: dict[JobId, GpuGroup], stoppable: Iterable[JobId], order: Sequence[JobId]
) -> list[JobId]:
    """What could be taken back at once: jobs that leave every project its share, looked at in some order."""
    left, gone = dict(groups), list[JobId]()
    for job_id in (one for one in order if one in set(stoppable)):
        if is_surplus(snapshot, left, job_id):
            gone.append(job_id)
            del left[job_id]
    return gone


@sized
@given(snapshot=shared_snapshots(), data=st.data())
def test_nobody_waits_within_a_share_whose_gpus_others_have_beyond_theirs(snapshot: Snapshot, data: st.DataObject):
    decision = PricedPolicy().decide(snapshot)
    groups = has_after(snapshot, decision)
    stoppable = [job_id for job_id in groups if is_stoppable(snapshot, job_id)]
    others = [job_id for job_id in stoppable if snapshot.jobs[job_id].spec.project not in snapshot.tenants]
    order = data.draw(st.permutations(sorted(set(stoppable) - set(others))))
    for job_id in set(snapshot.waiting) - set(groups):
        spec = snapshot.jobs[job_id].spec
        if spec.project not in snapshot.tenants or not spec.preemptible:
            continue
        lent = all_lent(
            snapshot, groups, [one for one in order if snapshot.jobs[one].spec.project != spec.project], order
        )
        for one in snapshot.grids[job_id].cells:
            if fits_share(snapshot, groups, spec.project, one.group):
                for given_up in (others, *([*others, job] for job in lent), [*others, *lent]):
                    room = without(snapshot, decision, given_up)
                    assert not isinstance(place(room, one.group), Allocation), (job_id, str(one.group), given_up)


@sized
@given(snapshot=shared_snapshots())
def test_what_shares_leave_is_not_worth_more_than_the_bound(snapshot: Snapshot):
    numbers = PricedPolicy().weighed(snapshot).numbers
    if numbers:
        assert numbers["value"] <= numbers["bound"] * (1 + 1e-6) + 1e-9


@sized
@given(snapshot=snapshots(), share=st.integers(0, 8))
def test_a_share_that_nobody_has_work_for_changes_nothing(snapshot: Snapshot, share: int):
    waiting = tuple(job_id for job_id in snapshot.waiting if snapshot.jobs[job_id].spec.preemptible)
    seen = replace(snapshot, waiting=waiting)
    guaranteed = replace(seen, tenants={"red": Guarantee(gpu_count_by_type={ANY_TYPE: share})})
    assert PricedPolicy().decide(guaranteed) == PricedPolicy().decide(seen)


@sized
@given(snapshot=shared_snapshots())
def test_what_may_not_be_stopped_leaves_room_for_every_share(snapshot: Snapshot):
    """Of each kind: what projects have for good beyond their shares fits beside all shares, or nothing was added."""
    groups = has_after(snapshot, PricedPolicy().decide(snapshot))
    lasting = {job_id: one for job_id, one in groups.items() if not snapshot.jobs[job_id].spec.preemptible}
    fresh = set(lasting) - set(snapshot.holding)
    for kind in (None, *TYPES):
        beyond = 0
        for project in PROJECTS:
            own = [group for job_id, group in lasting.items() if snapshot.jobs[job_id].spec.project == project]
            beyond += max(sum(count_of(group, kind) for group in own) - guaranteed(snapshot, project, kind), 0)
        shares = sum(guaranteed(snapshot, project, kind) for project in PROJECTS)
        total = sum(len(room.free) for room in snapshot.capacity.devices.values() if kind in {None, room.pool[0]})
        added = {
            job_id
            for job_id in fresh
            if count_of(lasting[job_id], kind) and snapshot.jobs[job_id].spec.project not in snapshot.tenants
        }
        assert beyond + shares <= total or not added


def guaranteed(snapshot: Snapshot, project: str, kind: str | None) -> int:
    share = snapshot.tenants.get(project)
    if share is None:
        return 0
    return share.gpu_count if kind is None else share.of(kind)
