"""Projects of which a job has ever succeeded, so that a new job's is looked up and not searched for among all jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table("projects", sa.Column("project", sa.String, primary_key=True))
    op.execute("INSERT INTO projects SELECT DISTINCT project FROM jobs WHERE state = 'succeeded'")


def downgrade() -> None:
    op.drop_table("projects")
