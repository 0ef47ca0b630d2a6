"""The client against a scheduler: values in and out, pages, repeats, deadlines, credentials."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme

from arena.client import ArenaClient, ClientSettings, LogChunk
from arena.domain.records import EntryKind, HistoryEntry, JobState
from arena.errors import InfeasibleError, NotFoundError, UnavailableError, UserError
from tests.builders import job_record, train_spec
from tests.fakes.scheduler_server import FakeScheduler


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        yield server


@pytest.fixture
def client(fake: FakeScheduler) -> Iterator[ArenaClient]:
    with ArenaClient(ClientSettings(address=fake.address, user="ann", retry_s=5.0)) as made:
        yield made


def entry(index: int, kind: EntryKind = EntryKind.JOB_STATE, job_id: str = "j1") -> HistoryEntry:
    return HistoryEntry(index=index, at_s=float(index), kind=kind, message=f"entry {index}", job_id=job_id)


def test_a_submission_arrives_as_the_value_that_was_sent(fake: FakeScheduler, client: ArenaClient) -> None:
    spec = train_spec("mine")
    answer = client.submit(spec, allow_infeasible=True)
    assert answer.is_new
    assert fake.jobs[answer.job_id].spec == spec
    assert fake.asked("SubmitJob")[0].allow_infeasible


def test_a_submission_is_repeated_with_the_same_request_id_while_nobody_answers(
    fake: FakeScheduler, client: ArenaClient
) -> None:
    fake.failures["SubmitJob"] = ["starting", "starting"]
    client.submit(train_spec())
    assert len({request.request_id for request in fake.asked("SubmitJob")}) == 1
    assert len(fake.asked("SubmitJob")) == 3
    assert len(fake.jobs) == 1


def test_two_submissions_have_two_request_ids(fake: FakeScheduler, client: ArenaClient) -> None:
    client.submit(train_spec())
    client.submit(train_spec())
    assert len(fake.jobs) == 2


def test_an_error_is_raised_as_the_class_that_the_scheduler_raised(fake: FakeScheduler, client: ArenaClient) -> None:
    fake.failures["SubmitJob"] = [InfeasibleError("too large", why="8 > 4", details={"needed": "8"})]
    with pytest.raises(InfeasibleError, match="8 > 4") as caught:
        client.submit(train_spec())
    assert caught.value.details == {"needed": "8"}
    assert len(fake.asked("SubmitJob")) == 1


def test_an_unknown_job_is_not_found(client: ArenaClient) -> None:
    with pytest.raises(NotFoundError, match="no job 'j9'"):
        client.job("j9")


def test_lists_go_on_over_all_pages(fake: FakeScheduler, client: ArenaClient) -> None:
    for index in range(5):
        fake.add_job(job_record(f"j{index}"))
    assert [job.job_id for job in client.jobs()] == ["j4", "j3", "j2", "j1", "j0"]
    assert len(fake.asked("ListJobs")) == 3


def test_pages_that_nobody_reads_are_not_fetched(fake: FakeScheduler, client: ArenaClient) -> None:
    for index in range(5):
        fake.add_job(job_record(f"j{index}"))
    next(client.jobs())
    assert len(fake.asked("ListJobs")) == 1


def test_jobs_are_filtered_where_they_are_kept(fake: FakeScheduler, client: ArenaClient) -> None:
    fake.add_job(job_record("j1", state=JobState.RUNNING))
    fake.add_job(job_record("j2", user="bob"))
    assert [job.job_id for job in client.jobs(states=[JobState.RUNNING])] == ["j1"]
    assert [job.job_id for job in client.jobs(user="bob")] == ["j2"]


def test_the_caller_is_named_in_every_call(fake: FakeScheduler) -> None:
    fake.add_job(job_record("j1"))
    settings = ClientSettings(address=fake.address, user="änn", token="secret")
    with ArenaClient(settings) as client:
        client.job("j1")
        list(client.stream_events())
    for _, _, metadata in fake.requests:
        assert metadata["x-arena-user"] == "\\xe4nn"
        assert metadata["authorization"] == "Bearer secret"


def test_a_token_does_not_leave_the_machine_in_plain_text() -> None:
    with pytest.raises(UserError, match=r"plain text.*--ca FILE") as caught:
        ClientSettings(address="gpu-head:50061", token="secret")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(ClientSettings(token="secret"))


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:port", "host:0", "host:70000"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="is not host:port"):
        ClientSettings(address=address)


def test_a_missing_authority_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*ca\.pem"):
        ArenaClient(ClientSettings(tls_ca=tmp_path / "ca.pem"))


def test_tls_is_spoken_with_a_scheduler_that_its_authority_vouches_for(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stranger.cert_pem.write_to_path(str(tmp_path / "stranger.pem"))
    with FakeScheduler(
        credentials=grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
    ) as server:
        server.add_job(job_record("j1"))
        settings = ClientSettings(address=server.address, token="secret", tls_ca=tmp_path / "ca.pem")
        with ArenaClient(settings) as client:
            assert client.job("j1").job.job_id == "j1"
        distrusting = replace(settings, tls_ca=tmp_path / "stranger.pem", retry_s=0.1)
        with ArenaClient(distrusting) as client, pytest.raises(UnavailableError, match="no scheduler answers"):
            client.job("j1")


def test_nobody_there_is_said_with_the_address(unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    with (
        ArenaClient(ClientSettings(address=address, retry_s=0.3)) as client,
        pytest.raises(UnavailableError, match=f"no scheduler answers at {address}.*arena up"),
    ):
        client.status()


def test_events_are_followed_across_a_broken_stream_without_gap_or_repeat(
    fake: FakeScheduler, client: ArenaClient
) -> None:
    fake.append(entry(1))
    fake.append(entry(2))
    stream = client.stream_events(follow=True)
    assert [next(stream).index, next(stream).index] == [1, 2]
    fake.failures["StreamEvents"] = ["restarting"]
    threading.Thread(target=lambda: [fake.append(entry(index)) for index in (3, 4)]).start()
    assert [next(stream).index, next(stream).index] == [3, 4]
    stream.close()


def test_events_end_with_the_present_unless_they_are_followed(fake: FakeScheduler, client: ArenaClient) -> None:
    fake.append(entry(1))
    fake.append(entry(2, EntryKind.DECISION))
    fake.append(entry(3, job_id="j2"))
    assert [item.index for item in client.stream_events(after_index=1)] == [2, 3]
    assert [item.index for item in client.stream_events(job_id="j2")] == [3]
    assert [item.index for item in client.stream_events(kinds=[EntryKind.DECISION])] == [2]
    assert [item.index for item in client.stream_events(kinds_left_out=[EntryKind.DECISION])] == [1, 3]


def test_following_ends_at_its_deadline(fake: FakeScheduler, client: ArenaClient) -> None:
    fake.append(entry(1))
    assert [item.index for item in client.stream_events(follow=True, deadline_s=0.5)] == [1]


def test_logs_come_in_pieces_with_their_place(fake: FakeScheduler, client: ArenaClient) -> None:
    fake.add_job(job_record("j1"))
    fake.logs = [
        LogChunk(attempt_id="j1.1", rank=rank, offset_bytes=7, data=b"\xff\n", dropped_bytes=3) for rank in (0, 1)
    ]
    assert list(client.stream_logs("j1")) == fake.logs
    assert list(client.stream_logs("j1", rank=1)) == fake.logs[1:]
