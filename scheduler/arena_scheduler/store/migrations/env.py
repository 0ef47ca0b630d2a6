"""Alembic's environment: runs on the connection it is given."""

from alembic import context

from arena_scheduler.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
