"""What every store promises of lengths: after a restart a scheduler knows of them what it knew before."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from arena.domain.events import Tick
from arena.domain.history import ENDED_JOBS_MAX, LengthHistory
from arena.domain.records import JobRecord, JobState, Progress
from arena.engine.ports import Step
from arena_scheduler.reading import LiveStore
from arena_scheduler.store.migrate import MIGRATIONS
from arena_scheduler.store.records import JOB_JSON
from arena_scheduler.store.schema import JOBS
from arena_scheduler.store.writes import SqliteStore
from tests.builders import job_record, train_spec

SPEC = train_spec("job", stop={"steps": 1000})


def ended(index: int, state: JobState = JobState.SUCCEEDED) -> JobRecord:
    """Several end at each instant, the later ones by id first, so that an order by instant alone is not enough."""
    return job_record(
        f"j{9 * (index // 3) + 2 - index % 3:05}",
        SPEC,
        user=f"user{index % 7}",
        state=state,
        ended_at_s=float(index // 3),
        gpu_seconds=50.0 + index,
        progress=Progress(step=500 + index % 901),
    )


def grown(jobs: list[JobRecord]) -> LengthHistory:
    history = LengthHistory()
    for job in jobs:
        history = history.after(job)
    return history


def test_what_a_store_gives_back_is_what_grew_while_jobs_ended(store: LiveStore) -> None:
    jobs = [ended(index) for index in range(40)]
    others = [ended(100, JobState.FAILED), ended(101, JobState.CANCELLED), job_record("waits")]
    store.commit([Step(event=Tick(), at_s=1.0, jobs=(job,)) for job in jobs + others])
    found = store.load().lengths
    assert found == grown(jobs)
    assert found.ended == grown(jobs).ended
    assert found.ratios[()].job_count == 40


def test_of_more_ends_than_are_remembered_the_same_are_given_back(store: LiveStore) -> None:
    # The oldest that is remembered is the middle one of the three that ended at its instant.
    jobs = [ended(index) for index in range(ENDED_JOBS_MAX + 100)]
    store.commit([Step(event=Tick(), at_s=1.0, jobs=tuple(jobs))])
    found = store.load().lengths
    assert found == grown(jobs)
    assert found.ended == grown(jobs).ended
    assert len(found.ended) == ENDED_JOBS_MAX


def test_a_database_of_the_first_schema_gives_back_what_ended_before(tmp_path: Path) -> None:
    path = tmp_path / "arena.db"
    path.touch(mode=0o600)
    engine = sa.create_engine(f"sqlite:///{path}")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    jobs = [ended(index) for index in range(10)]
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for job in jobs:
            connection.execute(
                sa.insert(JOBS),
                {
                    "job_id": job.job_id,
                    "state": job.state.value,
                    "user": job.user,
                    "project": "default",
                    "submitted_at_s": job.submitted_at_s,
                    "request_id": job.request_id,
                    "record": JOB_JSON.dump_json(job).decode(),
                },
            )
    engine.dispose()
    store = SqliteStore.open(path)
    try:
        assert store.load().lengths == grown(jobs)
        assert store.reader.has_succeeded_in("default")
    finally:
        store.close()


def test_a_job_that_was_stored_before_it_ended_is_found_once_it_has(store: LiveStore) -> None:
    store.commit([Step(event=Tick(), at_s=1.0, jobs=(job_record("j1", SPEC),))])
    assert store.load().lengths.ended == ()
    done = job_record("j1", SPEC, state=JobState.SUCCEEDED, ended_at_s=5.0, progress=Progress(step=10))
    store.commit([Step(event=Tick(), at_s=5.0, jobs=(done,))])
    assert [job.name for job in store.load().lengths.ended] == [(5.0, "j1")]
