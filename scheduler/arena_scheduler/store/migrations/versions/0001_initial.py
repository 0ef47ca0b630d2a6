"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("project", sa.String, nullable=False),
        sa.Column("submitted_at_s", sa.Float, nullable=False),
        sa.Column("request_id", sa.String, nullable=False, unique=True),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("jobs_by_age", "jobs", ["submitted_at_s", "job_id"])
    op.create_index("jobs_by_state", "jobs", ["state", "submitted_at_s", "job_id"])
    op.create_index("jobs_by_user", "jobs", ["user", "submitted_at_s", "job_id"])


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("attempt_id", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("is_live", sa.Integer, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("attempts_by_job", "attempts", ["job_id", "epoch"], unique=True)
    op.create_index("attempts_live", "attempts", ["is_live"])
    op.create_table(
        "holdings",
        sa.Column("node_id", sa.String, primary_key=True),
        sa.Column("device_id", sa.String, primary_key=True),
        sa.Column("attempt_id", sa.String, sa.ForeignKey("attempts.attempt_id"), nullable=False),
    )
    op.create_index("holdings_by_attempt", "holdings", ["attempt_id"])


def _grids() -> None:
    op.create_table(
        "grids",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("grid", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "job_grids",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("digest", sa.String, sa.ForeignKey("grids.digest"), nullable=False),
        sa.Column("shape", sa.Text, nullable=False),
    )


def _logs() -> None:
    op.create_table(
        "history",
        sa.Column("entry_index", sa.Integer, primary_key=True),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("job_id", sa.String),
        sa.Column("attempt_id", sa.String),
        sa.Column("node_id", sa.String),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("history_by_job", "history", ["job_id", "entry_index"])
    op.create_index("history_by_node", "history", ["node_id", "entry_index"])
    op.create_table(
        "inputs",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("digest", sa.String, sa.ForeignKey("grids.digest")),
    )
    op.create_table(
        "decisions",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
    )


def upgrade() -> None:
    op.create_table("meta", sa.Column("key", sa.String, primary_key=True), sa.Column("value", sa.Text, nullable=False))
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.String, primary_key=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    _jobs()
    _attempts()
    _grids()
    _logs()


def downgrade() -> None:
    for table in ("decisions", "inputs", "history", "job_grids", "grids", "holdings", "attempts", "jobs", "nodes"):
        op.drop_table(table)
    op.drop_table("meta")
