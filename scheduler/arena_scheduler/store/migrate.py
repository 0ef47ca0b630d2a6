"""Brings a database to the present schema when the scheduler starts."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from arena.errors import UnavailableError

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(engine: Engine, path: Path) -> None:
    """Run the migrations that are missing, each in the one transaction of this call.

    Raises:
        UnavailableError: A newer scheduler wrote the database.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    known = {revision.revision for revision in script.walk_revisions()}
    with engine.begin() as connection:
        present = MigrationContext.configure(connection).get_current_revision()
        if present is not None and present not in known:
            raise UnavailableError(
                f"database {path} was written by a newer scheduler",
                why=f"its schema is {present}, this one knows up to {script.get_current_head()}",
                fix="start the newer version",
            )
        if present != script.get_current_head():
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
