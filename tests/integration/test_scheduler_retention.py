"""A scheduler that forgets what ended long ago: what it says of it, and what it never forgets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from arena.domain.events import Tick
from arena.domain.records import EntryKind, HistoryEntry, JobState
from arena.engine.ports import Step
from arena.errors import NotFoundError, UserError
from arena_scheduler.config import SchedulerConfig
from arena_scheduler.store.writes import SqliteStore
from tests.builders import job_record, train_spec
from tests.fakes.running_scheduler import cluster_of, eventually, quick_config

OLD_COUNT = 120
LONG_AGO_S = 1_000.0


@pytest.fixture
def filled(tmp_path: Path) -> tuple[SchedulerConfig, str]:
    """A database, in use until now, of jobs that ended long ago and of one that has waited since, and its identity."""
    found = long_unused(tmp_path)
    store = SqliteStore.open(found[0].db)
    store.commit([Step(event=Tick(), at_s=time.time() - 60.0)])
    store.close()
    return found


def long_unused(tmp_path: Path) -> tuple[SchedulerConfig, str]:
    """The same as it was long ago."""
    config = quick_config(tmp_path, keep_history_s=3_600.0)
    store = SqliteStore.open(config.db)
    for number in range(1, OLD_COUNT + 2):
        is_over = number <= OLD_COUNT
        job = job_record(
            f"{store.identity}-{number}",
            train_spec(f"j{number}"),
            state=JobState.SUCCEEDED if is_over else JobState.QUEUED,
            ended_at_s=LONG_AGO_S if is_over else None,
        )
        facts: dict[str, Any] = {"kind": EntryKind.JOB_STATE, "message": "m", "at_s": LONG_AGO_S}
        entry = HistoryEntry(index=number, job_id=job.job_id, **facts)
        store.commit([Step(event=Tick(), at_s=LONG_AGO_S, jobs=(job,), history=(entry,))])
    identity = store.identity
    store.close()
    return config, identity


async def test_what_ended_long_ago_is_dropped_and_everybody_who_asks_is_told(
    filled: tuple[SchedulerConfig, str],
) -> None:
    config, identity = filled
    async with cluster_of(config) as cluster:
        client = cluster.client()
        await eventually(lambda: cluster.running.driver.dropped.job_count == OLD_COUNT, "all of them went")
        for name, fields in (("GetJob", {}), ("HoldJob", {"request_id": "x"})):
            with pytest.raises(NotFoundError, match="are not kept any more"):
                await client.call(name, job_id=f"{identity}-7", **fields)
        with pytest.raises(NotFoundError, match=r"no job j7: 120 jobs that ended before .* are not kept any more"):
            await client.call("GetJob", job_id="j7")  # a name, as people ask for it
        for name in ("StreamLogs", "StreamEvents"):
            with pytest.raises(NotFoundError, match=r"120 jobs that ended before .* are not kept any more"):
                await client.stream(name, job_id=f"{identity}-7")
        with pytest.raises(NotFoundError) as unknown:
            await client.call("GetJob", job_id=f"{identity}-700")
        assert "not kept" not in str(unknown.value)
        status = await client.call("GetStatus")
        assert not [warning for warning in status.warnings if "not kept" in warning], "an admin asked for it"
        messages = await client.stream("ExportJobs")
        assert [one.job.job_id for message in messages for one in message.jobs] == [f"{identity}-{OLD_COUNT + 1}"]
        assert sum(message.dropped_count for message in messages) == OLD_COUNT


async def test_a_job_that_is_not_over_is_kept_with_its_history_and_numbers_go_on(
    filled: tuple[SchedulerConfig, str],
) -> None:
    config, identity = filled
    async with cluster_of(config) as cluster:
        await eventually(lambda: cluster.running.driver.dropped.job_count == OLD_COUNT, "all of them went")
    async with cluster_of(config) as cluster:
        client = cluster.client()
        assert cluster.running.driver.dropped.job_count == OLD_COUNT
        old = await client.job(f"{identity}-{OLD_COUNT + 1}")
        events = await client.stream("StreamEvents", job_id=old.job_id)
        assert [entry.index for message in events for entry in message.entries][:1] == [OLD_COUNT + 1]
        assert await client.submit(train_spec("new")) == f"{identity}-{OLD_COUNT + 2}"


async def test_a_clock_that_leapt_ahead_drops_nothing_until_as_much_time_has_passed_as_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, identity = long_unused(tmp_path)
    for _ in range(2):  # the second start follows close on what the first one wrote
        caplog.clear()
        async with cluster_of(config) as cluster:
            client = cluster.client()
            for name in ("one", "two"):  # each turn of the loop ends with a look at what can be dropped
                await client.submit(train_spec(name))
            assert cluster.running.driver.dropped.job_count == 0
            assert (await client.job(f"{identity}-7")).job_id == f"{identity}-7"
        assert any("nothing is dropped before" in record.message for record in caplog.records)
    store = SqliteStore.open(config.db)
    store.note_leap(time.time() - 3_700.0)
    store.close()
    async with cluster_of(config) as cluster:
        await eventually(lambda: cluster.running.driver.dropped.job_count == OLD_COUNT, "all of them went")


@pytest.mark.parametrize("wrong", [0.0, 60.0, float("nan"), float("inf")])
def test_history_is_not_kept_for_less_than_an_hour(tmp_path: Path, wrong: float) -> None:
    with pytest.raises(UserError, match="history cannot be kept for so short a time"):
        quick_config(tmp_path, keep_history_s=wrong)
