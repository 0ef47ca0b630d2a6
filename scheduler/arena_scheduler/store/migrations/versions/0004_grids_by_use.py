"""Who uses a grid, so that one that nobody uses any more is dropped without a search of everything."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute("CREATE INDEX inputs_by_grid ON inputs (digest) WHERE digest IS NOT NULL")
    op.create_index("job_grids_by_grid", "job_grids", ["digest"])


def downgrade() -> None:
    op.drop_index("job_grids_by_grid", "job_grids")
    op.drop_index("inputs_by_grid", "inputs")
