"""``arena version``: of this program and of the scheduler it would talk to."""

from __future__ import annotations

import click

from arena.cli.app import App, command
from arena.cli.quoting import escaped
from arena.errors import UnavailableError
from arena.rpc.version import PROTOCOL_VERSION, software_version


@command(short_help="Versions of both sides.")
@click.option("--client", "client_only", is_flag=True, help="Do not ask the scheduler.")
def version(app: App, client_only: bool) -> None:
    """Show the version of this program and, where one answers, of the scheduler."""
    scheduler: str | None = None
    if not client_only:
        try:
            with app.client() as client:
                scheduler = client.status(job_count_max=1).scheduler_version
        except UnavailableError:
            scheduler = None
    if app.out.json_mode:
        app.out.document(client=software_version(), protocol_version=PROTOCOL_VERSION, scheduler=scheduler)
        return
    app.out.line(f"arena {software_version()}, protocol version {PROTOCOL_VERSION}")
    if not client_only:
        app.out.line(f"scheduler {escaped(scheduler)}" if scheduler else "no scheduler answers")
