"""The tables: records as JSON beside the columns that are searched."""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text, text

METADATA = MetaData()

META = Table(
    "meta",
    METADATA,
    Column("key", String, primary_key=True),
    Column("value", Text, nullable=False),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("state", String, nullable=False),
    Column("user", String, nullable=False),
    Column("project", String, nullable=False),
    Column("submitted_at_s", Float, nullable=False),
    Column("request_id", String, nullable=False, unique=True),
    Column("record", Text, nullable=False),
    Column("ended_at_s", Float),
    Index("jobs_by_age", "submitted_at_s", "job_id"),
    Index("jobs_by_state", "state", "submitted_at_s", "job_id"),
    Index("jobs_by_user", "user", "submitted_at_s", "job_id"),
    Index("jobs_by_end", "state", "ended_at_s", "job_id"),
)

# Those of which a job has ever succeeded; one that was cancelled may have been a slip of the pen.
PROJECTS = Table("projects", METADATA, Column("project", String, primary_key=True))

ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("attempt_id", String, primary_key=True),
    Column("job_id", String, ForeignKey("jobs.job_id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("is_live", Integer, nullable=False),
    Column("record", Text, nullable=False),
    Index("attempts_by_job", "job_id", "epoch", unique=True),
    Index("attempts_live", "is_live"),
)

# Devices of live attempts. The primary key refuses a second holder even if the engine should ever name one.
HOLDINGS = Table(
    "holdings",
    METADATA,
    Column("node_id", String, primary_key=True),
    Column("device_id", String, primary_key=True),
    Column("attempt_id", String, ForeignKey("attempts.attempt_id"), nullable=False),
    Index("holdings_by_attempt", "attempt_id"),
)

NODES = Table(
    "nodes",
    METADATA,
    Column("node_id", String, primary_key=True),
    Column("state", String, nullable=False),
    Column("record", Text, nullable=False),
)

# Grids are large and many jobs share one, so each is stored once, under its digest.
GRIDS = Table(
    "grids",
    METADATA,
    Column("digest", String, primary_key=True),
    Column("grid", LargeBinary, nullable=False),
)

JOB_GRIDS = Table(
    "job_grids",
    METADATA,
    Column("job_id", String, ForeignKey("jobs.job_id"), primary_key=True),
    Column("digest", String, ForeignKey("grids.digest"), nullable=False),
    Column("shape", Text, nullable=False),
    Index("job_grids_by_grid", "digest"),
)

HISTORY = Table(
    "history",
    METADATA,
    Column("entry_index", Integer, primary_key=True),
    Column("at_s", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("job_id", String),
    Column("attempt_id", String),
    Column("node_id", String),
    Column("data", Text, nullable=False),
    Index("history_by_job", "job_id", "entry_index"),
    Index("history_by_node", "node_id", "entry_index"),
)

# Every input of the engine with its instant, in order; a `grid_built` leaves its grid in `grids`.
INPUTS = Table(
    "inputs",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("at_s", Float, nullable=False),
    Column("event", Text, nullable=False),
    Column("digest", String, ForeignKey("grids.digest")),
    Index("inputs_by_grid", "digest", sqlite_where=text("digest IS NOT NULL")),
)

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("at_s", Float, nullable=False),
    Column("decision", Text, nullable=False),
)
