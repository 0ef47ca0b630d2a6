"""Hypothesis strategies for domain values, wide enough to hold every optional field both set and unset."""

from __future__ import annotations

from hypothesis import strategies as st

from arena.domain.allocation import Allocation, GpuGroup, GroupPart, NodeShare
from arena.domain.cluster import Device, NodeInfo, NodeState
from arena.domain.events import EndedAttempt, HeldAttempt, NodeRegistered, ReclaimNotice
from arena.domain.grid import Estimate
from arena.domain.launch import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Finished,
    Finishing,
    Launch,
    Ready,
    StepPoint,
    Stopped,
    WorkerError,
)
from arena.domain.launch import (
    Progress as StepReport,
)
from arena.domain.parallel import ParallelPlan, Recompute, Replica, Schedule, Stage
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import (
    AttemptRecord,
    AttemptState,
    AttemptTransition,
    Drain,
    EndKind,
    EntryKind,
    Evaluation,
    HistoryEntry,
    JobRecord,
    JobState,
    NodeEnd,
    NodeRecord,
    Progress,
    Target,
    Wish,
)
from arena.domain.struck import StruckPlan
from arena.rpc.views import DecidedJob, DecisionView, GpuCounts, StatusView, TenantShare, job_view
from tests.spec_strategies import counts, instants, longs, maybe, naturals, positive, shares, small, specs, texts, words

replicas = st.builds(Replica, tp=small, gpu_type=maybe(words), zone=maybe(words), micro_batch_count=maybe(counts))
stages = st.builds(Stage, layer_count=counts, replicas=st.lists(replicas, min_size=1, max_size=3).map(tuple))


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    """Plans of the general form."""
    schedule = draw(st.sampled_from(Schedule))
    return ParallelPlan(
        stages=tuple(draw(st.lists(stages, min_size=1, max_size=3))),
        micro_batch_size=draw(counts),
        schedule=schedule,
        virtual_stage_count=draw(st.integers(2, 8)) if schedule is Schedule.INTERLEAVED else 1,
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(Recompute)),
        expert_parallel=draw(small),
        sequence_parallel=draw(st.booleans()),
    )


node_counts = st.lists(small, min_size=1, max_size=3).map(lambda sizes: tuple(sorted(sizes, reverse=True)))
groups = st.builds(
    GpuGroup,
    parts=st.lists(
        st.builds(GroupPart, gpu_type=words, node_counts=node_counts, zone=maybe(words)), min_size=1, max_size=3
    ).map(tuple),
)
allocations = st.builds(
    Allocation,
    shares=st.lists(
        st.builds(NodeShare, node_id=words, device_ids=st.lists(words, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
)
estimates = st.builds(
    Estimate,
    iter_time_s=positive,
    memory_bytes_by_stage=st.lists(longs, max_size=3).map(tuple),
    breakdown_s=st.dictionaries(words, positive, max_size=3),
    relative_error=shares,
    usd_per_step=shares,
)
reasons = st.builds(
    Reason,
    code=st.sampled_from(ReasonCode),
    numbers=st.dictionaries(words, st.floats(-1e9, 1e9), max_size=3),
    names=st.dictionaries(words, texts, max_size=3) | st.just({"error": "Traceback"}),
)
targets = st.builds(
    Target,
    group=groups,
    plan=maybe(plans()),
    estimate=maybe(estimates),
    allocation=allocations,
    decided_at_s=instants,
    decision_index=longs,
    cause=reasons,
)
progresses = st.builds(
    Progress,
    step=naturals,
    loss=maybe(positive),
    step_time_s=maybe(positive),
    tokens_per_s=maybe(positive),
    durable_step=naturals,
    durable_at_s=maybe(instants),
    reported_at_s=maybe(instants),
    lost_steps=naturals,
    stalled_since_s=maybe(instants),
    evaluation=maybe(
        st.builds(
            Evaluation,
            step=naturals,
            loss=maybe(positive),
            accuracy=maybe(shares),
            sample_count=naturals,
            evaluate_s=positive,
            at_s=instants,
        )
    ),
)
node_ends = st.builds(
    NodeEnd,
    node_id=words,
    kind=st.sampled_from(EndKind),
    exit_codes=st.dictionaries(st.integers(0, 2**20), st.integers(-64, 255), max_size=3),
    error_code=texts,
    message=texts,
    log_tail=texts,
    dirty=st.dictionaries(words, texts, max_size=2),
    left_for=texts,
)
attempts = st.builds(
    AttemptRecord,
    attempt_id=words,
    job_id=words,
    epoch=counts,
    plan=maybe(plans()),
    group=groups,
    estimate=maybe(estimates),
    allocation=allocations,
    master_addr=words,
    master_port=small,
    cause=reasons,
    decision_index=longs,
    decided_at_s=instants,
    launched_at_s=instants,
    state=st.sampled_from(AttemptState),
    transition=st.sampled_from(AttemptTransition),
    ends=st.lists(node_ends, max_size=2).map(tuple),
    started_at_s=maybe(instants),
    ready_at_s=maybe(instants),
    first_step_at_s=maybe(instants),
    stop_requested_at_s=maybe(instants),
    stop_mode=st.sampled_from(["", "save", "kill"]),
    stop_cause=maybe(reasons),
    stopped_at_s=maybe(instants),
    ended_at_s=maybe(instants),
    resumed_step=maybe(naturals),
    last_step=naturals,
    durable_step=naturals,
    rendezvous_s=maybe(positive),
    load_s=maybe(positive),
    save_s=maybe(positive),
    outcome=maybe(st.sampled_from(EndKind)),
    error=texts,
)
struck_plans = st.builds(StruckPlan, group=groups, plan=maybe(plans()), memory_bytes=longs, error=texts, at_s=instants)
jobs = st.builds(
    JobRecord,
    job_id=words,
    spec=specs,
    user=words,
    request_id=words,
    submitted_at_s=instants,
    state=st.sampled_from(JobState),
    wish=st.sampled_from(Wish),
    epoch=naturals,
    attempt_id=maybe(words),
    target=maybe(targets),
    reasons=st.lists(reasons, max_size=2).map(tuple),
    evaluated_at_s=maybe(instants),
    progress=progresses,
    launch_failure_count=naturals,
    restart_count=naturals,
    preemption_count=naturals,
    reconfiguration_count=naturals,
    not_before_s=instants,
    first_started_at_s=maybe(instants),
    struck=st.lists(struck_plans, max_size=2).map(tuple),
    changed_at_s=instants,
    ended_at_s=maybe(instants),
    run_time_s=instants,
    gpu_seconds=instants,
    is_deadline_promised=st.booleans(),
    is_promise_broken=st.booleans(),
    spent_usd=instants,
    result=texts,
    error=texts,
)
devices = st.builds(Device, device_id=words, index=naturals, dirty=maybe(texts))
node_infos = st.builds(
    NodeInfo,
    node_id=words,
    incarnation=words,
    gpu_type=words,
    devices=st.lists(devices, max_size=3).map(tuple),
    address=words,
    port_low=naturals,
    port_high=naturals,
    zone=words,
    region=words,
    labels=st.dictionaries(words, texts, max_size=2),
    memory_bytes=longs,
    agent_version=texts,
    visible_places=st.dictionaries(words, texts, max_size=2),
    problem=maybe(texts),
    clock_skew_s=st.integers(-1000, 1000).map(float),
)
drains = st.builds(Drain, by=words, at_s=instants, why=texts, until_s=maybe(instants))
nodes = st.builds(
    NodeRecord,
    node_id=words,
    info=node_infos,
    state=st.sampled_from(NodeState),
    state_cause=texts,
    drain=maybe(drains),
    notice=maybe(drains),
    disconnected_at_s=maybe(instants),
    launch_failure_count=naturals,
)
entries = st.builds(
    HistoryEntry,
    index=longs,
    at_s=instants,
    kind=st.sampled_from(EntryKind),
    message=texts,
    job_id=maybe(words),
    attempt_id=maybe(words),
    node_id=maybe(words),
    data=st.dictionaries(words, st.booleans() | longs | positive | texts | st.lists(longs, max_size=2), max_size=3),
)
statuses = st.builds(
    StatusView,
    scheduler_version=words,
    policy=words,
    now_s=instants,
    started_at_s=instants,
    read_only_cause=maybe(texts),
    gpus=st.lists(
        st.builds(
            GpuCounts, gpu_type=words, total=small, free=small, used=small, draining=small, dirty=small, down=small
        ),
        max_size=2,
    ).map(tuple),
    job_count_by_state=st.dictionaries(st.sampled_from(JobState), naturals),
    node_count_by_state=st.dictionaries(st.sampled_from(NodeState), naturals),
    active_jobs=st.lists(jobs.map(lambda job: job_view(job, None, private=False)), max_size=1).map(tuple),
    waiting_jobs=st.lists(jobs.map(lambda job: job_view(job, None, private=True)), max_size=1).map(tuple),
    decision_index=naturals,
    decided_at_s=maybe(instants),
    decision_time_s=instants,
    warnings=st.lists(texts, max_size=2).map(tuple),
    tenants=st.lists(
        st.builds(
            TenantShare,
            project=words,
            guaranteed=st.dictionaries(words, small, max_size=2),
            used=small,
            lent=small,
            running_jobs=small,
            waiting_jobs=small,
        ),
        max_size=2,
    ).map(tuple),
)
launches = st.builds(
    Launch,
    attempt_id=words,
    job_id=words,
    epoch=counts,
    spec=specs,
    plan=maybe(plans()),
    node_ranks=st.lists(naturals, max_size=3).map(tuple),
    node_index=naturals,
    node_count=counts,
    world_size=counts,
    device_ids=st.lists(words, max_size=3).map(tuple),
    gpu_type=words,
    master_addr=words,
    master_port=naturals,
    checkpoint_dir=texts,
    output_dir=texts,
    time_left_s=maybe(positive),
    durable_step=st.integers(0, 2**63),
)
step_points = st.builds(StepPoint, step=naturals, loss=positive, step_time_s=positive, tokens_per_s=positive)
reports = st.one_of(
    st.builds(
        Ready,
        resumed_step=naturals,
        checkpoint=maybe(texts),
        skipped=st.dictionaries(words, texts, max_size=2),
        rendezvous_s=positive,
        load_s=positive,
    ),
    st.builds(StepReport, points=st.lists(step_points, max_size=3).map(tuple)),
    st.builds(
        Evaluated,
        step=naturals,
        loss=positive | st.just(float("inf")),
        sample_count=counts,
        evaluate_s=positive,
        accuracy=maybe(shares),
    ),
    st.builds(CheckpointSaved, step=naturals, name=texts, size_bytes=longs, save_s=positive),
    st.builds(CheckpointFailed, step=naturals, error=texts),
    st.builds(Stopped, step=naturals, durable_step=naturals),
    st.builds(Finishing, step=naturals, condition=texts),
    st.builds(Finished, step=naturals, loss=maybe(positive), output=maybe(texts)),
    st.builds(
        WorkerError,
        code=st.sampled_from(["config", "oom", "checkpoint", "data", "port", "crash"]),
        rank=naturals,
        message=texts,
    ),
)


notices = st.builds(ReclaimNotice, within_s=instants, why=texts, notice_id=texts)


@st.composite
def registrations(draw: st.DrawFn) -> NodeRegistered:
    """Registrations whose ends name the node itself."""
    info = draw(node_infos)
    ends = draw(st.lists(st.tuples(words, node_ends), max_size=2))
    held = st.builds(HeldAttempt, attempt_id=words, started=st.booleans(), left_for=texts)
    return NodeRegistered(
        info=info,
        held=tuple(draw(st.lists(held, max_size=2))),
        notice=draw(maybe(notices)),
        ended=tuple(
            EndedAttempt(
                attempt_id=attempt_id,
                end=NodeEnd(
                    node_id=info.node_id,
                    kind=end.kind,
                    exit_codes=end.exit_codes,
                    error_code=end.error_code,
                    message=end.message,
                    log_tail=end.log_tail,
                    dirty=end.dirty,
                ),
            )
            for attempt_id, end in ends
        ),
    )


decisions = st.builds(
    DecisionView,
    at_s=instants,
    numbers=st.dictionaries(words, positive, max_size=3),
    jobs=st.lists(
        st.builds(
            DecidedJob,
            job_id=words,
            group=maybe(groups),
            plan=maybe(plans()),
            reasons=st.lists(reasons, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    unchanged_count=naturals,
)
