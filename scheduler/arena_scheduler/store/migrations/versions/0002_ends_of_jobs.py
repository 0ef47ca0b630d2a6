"""When a job ended, as a column, so that the latest ends are found without reading every record."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("ended_at_s", sa.Float))
    op.execute("UPDATE jobs SET ended_at_s = json_extract(record, '$.ended_at_s')")
    op.create_index("jobs_by_end", "jobs", ["state", "ended_at_s", "job_id"])


def downgrade() -> None:
    op.drop_index("jobs_by_end", "jobs")
    op.drop_column("jobs", "ended_at_s")
