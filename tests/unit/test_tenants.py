"""Files of guaranteed shares, with every mistake and what would do instead; what became of the shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from immutables import Map

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId
from arena.domain.launch import AttemptId
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import AttemptRecord, AttemptState, JobState
from arena.domain.tenants import Guarantee, Guarantees
from arena.engine.state import ClusterState
from arena.errors import ArenaError, SpecError
from arena.planner.tenantfile import check_guarantees, parse_tenants
from arena.rpc.views import TenantShare
from arena_scheduler.tenant_view import tenant_shares, tenants_from_file, warnings_of
from tests.builders import allocation_on, job_record, shape, train_spec

FILE = "projects:\n  vision: {gpus: 8}\n  speech: {gpus: {a100-80: 4, h100: 2}}\n"


def read(text: str) -> Guarantees:
    return parse_tenants(text, source="t.yaml", gpu_types=("a100-80", "cpu", "h100"))


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        read(text)
    return caught.value.message


def test_shares_of_any_type_and_of_named_types() -> None:
    found = read(FILE)
    assert [(name, str(share), share.gpu_count) for name, share in found.items()] == [
        ("speech", "4 a100-80, 2 h100", 6),
        ("vision", "8 of any type", 8),
    ]


def test_every_mistake_is_told_at_once_with_its_place() -> None:
    text = refusal("projects:\n  one: {gpus: many}\n  two: {gpus: {cpu: -1}}\n  three: {gpu: 2}\n  four: 5\n")
    assert "t.yaml:2:15: projects.one.gpus: must be a whole number from 0 to 1000000" in text
    assert "t.yaml:3:21: projects.two.gpus.cpu: must be a whole number" in text
    assert "t.yaml:4:11: projects.three.gpu: unknown field; allowed: gpus" in text
    assert "projects.four: got 5; allowed: a mapping" in text
    assert len(text.splitlines()) == 5, "and that gpus is missing where gpu was written"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("projects: {one: {gpus: {a100-8: 2}}}", "unknown GPU type 'a100-8', did you mean 'a100-80'?"),
        ("projects: {one: {}}", "projects.one.gpus: is required"),
        ("tenants: {}", "tenants: unknown field; allowed: projects"),
        ("- one", "shares are a mapping: got a list. Such a file looks like this: projects:"),
        ("", "t.yaml is empty"),
    ],
)
def test_what_would_do_instead(text: str, told: str) -> None:
    assert told in refusal(text)


def test_more_than_a_cluster_has_is_refused() -> None:
    check_guarantees(read(FILE), shape(("a100-80", 8, 1), ("h100", 8, 1)), source="t.yaml")
    with pytest.raises(SpecError) as caught:
        check_guarantees(read(FILE), shape(("a100-80", 2, 1), ("h100", 8, 1)), source="t.yaml")
    message = caught.value.message
    assert "4 a100-80 GPUs are guaranteed in all, the cluster has 2" in message
    assert "14 GPUs are guaranteed in all, the cluster has 10" in message
    assert "guarantee less" in message.lower()


def test_a_policy_that_keeps_no_shares_is_not_given_any(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(FILE)
    assert tenants_from_file(file, "arena") == parse_tenants(FILE, source="t.yaml", gpu_types=("a100-80", "h100"))
    assert tenants_from_file(None, "fcfs") == {}
    for path, policy, told in [(file, "fcfs", "does not keep guaranteed shares"), (tmp_path / "no", "arena", "read")]:
        with pytest.raises(ArenaError, match=told):
            tenants_from_file(path, policy)


def live_attempt(job_id: str, gpus: int) -> AttemptRecord:
    return AttemptRecord(
        attempt_id=AttemptId(f"{job_id}.1"),
        job_id=JobId(job_id),
        epoch=1,
        plan=None,
        group=GpuGroup.of("cpu", [gpus]),
        estimate=None,
        allocation=allocation_on(("n1", range(gpus))),
        master_addr="127.0.0.1",
        master_port=20_000,
        cause=reason(ReasonCode.STARTED, group="cpu"),
        decision_index=1,
        decided_at_s=1.0,
        launched_at_s=1.0,
        state=AttemptState.RUNNING,
    )


def state(*jobs: tuple[str, str, int]) -> ClusterState:
    """Jobs by (name, project, GPUs of type cpu); those without GPUs wait."""
    records, attempts = {}, {}
    for name, project, gpus in jobs:
        spec = train_spec(name, project=project)
        attempt = live_attempt(name, gpus) if gpus else None
        if attempt is not None:
            attempts[attempt.attempt_id] = attempt
        records[JobId(name)] = job_record(
            name,
            spec,
            state=JobState.RUNNING if attempt else JobState.QUEUED,
            attempt_id=attempt.attempt_id if attempt else None,
        )
    return ClusterState(jobs=Map(records), attempts=Map(attempts), shape=shape(("cpu", 8, 1)))


TENANTS = {"red": Guarantee(gpu_count_by_type={"cpu": 4}), "blue": Guarantee(gpu_count_by_type={"any": 2})}


def test_what_is_used_lent_and_waited_for() -> None:
    found = tenant_shares(TENANTS, state(("a", "red", 1), ("b", "green", 6), ("c", "blue", 0)), {"cpu": 1})
    assert found == (
        TenantShare(project="blue", guaranteed={"any": 2}, used=0, lent=2, waiting_jobs=1),
        TenantShare(project="red", guaranteed={"cpu": 4}, used=1, lent=2, running_jobs=1),
        TenantShare(project="", used=6, running_jobs=1),
    )
    assert sum(one.lent for one in found) == 6 - (8 - 4 - 2), "what others have beyond what nobody is guaranteed"


def test_without_shares_nothing_is_shown() -> None:
    assert tenant_shares({}, state(("a", "red", 1)), {"cpu": 7}) == ()


def test_shares_that_cannot_all_be_kept_are_warned_of_once_there_are_nodes() -> None:
    tenants = {"red": Guarantee(gpu_count_by_type={"cpu": 9})}
    assert list(warnings_of(tenants, ClusterState())) == []
    assert any("9 cpu GPUs are guaranteed in all, the cluster has 8" in one for one in warnings_of(tenants, state()))
    assert list(warnings_of(TENANTS, state())) == []
