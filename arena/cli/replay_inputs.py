"""What ``arena replay`` is given: files and options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arena.cli.file_kinds import FileKind, read_as
from arena.cli.replay_options import ReplayOptions
from arena.cli.replay_tenants import read_tenants
from arena.cli.submit import read_text
from arena.domain.tenants import Guarantees
from arena.errors import UserError
from arena.planner.clusterfile import Cluster, parse_cluster
from arena.planner.mixed import MixedCells
from arena.planner.source import PlannerGridSource
from arena.planner.table_files import parse_table
from arena.planner.tables import TableGrids
from arena.sim.disturbance_files import DisturbancePlan, parse_disturbances
from arena.sim.sources import ReplayGrids

if TYPE_CHECKING:
    from arena_traces.mapping import WorkloadMapping
    from arena_traces.trace import Trace

PLANNER = "planner"
MIXED = "mixed"
"""The planner, with groups over several GPU types."""
DEFAULT_MAPPING = "default"
TABLE_BYTES_MAX = 256 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Files that were read, and options.

    Args:
        is_mixed: Whether grids have groups over several GPU types.
        tenants: Guaranteed GPUs by project.
        digests: SHA-256 of each file, by what it is.
    """

    trace: Trace
    cluster: Cluster
    table: TableGrids | None
    is_mixed: bool
    mapping: WorkloadMapping | None
    disturbances: DisturbancePlan | None
    tenants: Guarantees
    options: ReplayOptions
    digests: Mapping[str, str]

    @property
    def draws(self) -> bool:
        """Whether a seed makes a difference."""
        if self.options.projects and any(not job.project for job in self.trace.jobs):
            return True
        has_choice = self.mapping is not None and any(len(one.workloads) > 1 for one in self.mapping.classes)
        fails = self.disturbances is not None and bool(self.disturbances.spec.failures)
        return has_choice or fails or (self.options.lengths == "predicted" and self.options.length_sigma > 0)

    def identity(self) -> dict[str, Any]:
        """Return what sets this study apart from others, as JSON."""
        found = {
            "sha256": dict(self.digests),
            "trace_read": self._reading(),
            "trace_changes": self.trace.changes,
            "options": asdict(self.options),
        }
        return {**found, "grids": MIXED} if self.is_mixed else found

    def _reading(self) -> dict[str, Any]:
        """Return how the file was read: --format and --drop make other jobs of the same bytes."""
        counted = self.trace.accounting.counted()
        rows = [{"treatment": done, "defect": defect, "row_count": len(lines)} for done, defect, lines in counted]
        return {"format": self.trace.source.format_name, "rows": rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files beside the trace, as the command line names them; None is none."""

    cluster: str
    grids: str = PLANNER
    mapping: str | None = None
    disturbances: str | None = None
    tenants: str | None = None


def read_inputs(trace: Trace, files: Files, options: ReplayOptions) -> Inputs:
    """Read the files beside the trace.

    Raises:
        UserError: One of them cannot be read, or they do not go together.
    """
    cluster_text = read_text(files.cluster, command="replay")
    digests = {"trace": trace.source.sha256, "cluster": _sha256(cluster_text)}
    with read_as(FileKind.CLUSTER, cluster_text, source=files.cluster):
        cluster = parse_cluster(cluster_text, source=files.cluster)
    table = found = disturbances = None
    if files.grids not in {PLANNER, MIXED}:
        text = _large_text(files.grids)
        table, digests["table"] = parse_table(text, source=files.grids), _sha256(text)
    if files.mapping is not None:
        found = _mapping(files.mapping)
        digests["mapping"] = found.digest
    if files.disturbances is not None:
        disturbances = _disturbances(files.disturbances, cluster, digests)
    tenants: Guarantees = {}
    if files.tenants is not None:
        tenants, text = read_tenants(files.tenants, cluster)
        digests["tenants"] = _sha256(text)
    inputs = Inputs(
        trace=trace,
        cluster=cluster,
        table=table,
        is_mixed=files.grids == MIXED,
        mapping=found,
        disturbances=disturbances,
        tenants=tenants,
        options=options,
        digests=digests,
    )
    _check(inputs)
    return inputs


def _disturbances(file: str, cluster: Cluster, digests: dict[str, str]) -> DisturbancePlan:
    """Read what is to happen to nodes; the digests of it and of what it names are added."""
    text = read_text(file, command="replay")
    digests["disturbances"] = _sha256(text)

    def read_beside(name: str) -> str:
        found = read_text(str(Path(file).parent / name), command="replay")
        digests[f"availability {name}"] = _sha256(found)
        return found

    return parse_disturbances(text, cluster.shape, source=file, read_text=read_beside)


def _check(inputs: Inputs) -> None:
    names_workloads = any(job.workload is not None for job in inputs.trace.jobs)
    file = inputs.trace.source.file
    if inputs.table is not None and inputs.mapping is None and not names_workloads:
        raise UserError(
            f"{file} names no workloads, so that --grids {inputs.table.name} says nothing of its jobs",
            fix="say what they train with --mapping default (or a FILE), or leave out --grids: "
            "each job then runs as long as in the trace, on as many GPUs",
        )


def _mapping(name: str) -> WorkloadMapping:
    from arena_traces.mapping import default_mapping, parse_mapping

    if name == DEFAULT_MAPPING:
        return default_mapping()
    return parse_mapping(read_text(name, command="replay"), source=name)


def _large_text(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            data = file.read(TABLE_BYTES_MAX + 1)
        if len(data) > TABLE_BYTES_MAX:
            raise UserError(f"{name} is larger than {TABLE_BYTES_MAX // 1024**2} MiB", why="a table is no trace")
        return data.decode("utf-8")
    except OSError as error:
        fix = f"--grids is {PLANNER}, {MIXED}, or a file with step times (arena/cli/replay.md)"
        raise UserError(f"cannot read {name}", why=str(error.strerror), fix=fix) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is no UTF-8 text", why=f"byte {error.start}: {error.reason}") from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def grids_of(inputs: Inputs) -> ReplayGrids:
    """Return where grids come from."""
    return ReplayGrids(
        planner=_planner(inputs, beyond_worker=False),
        table=inputs.table,
        # Named models are of the trace's world, and may want what the worker does not do (fp16).
        named=_planner(inputs, beyond_worker=True),
    )


def _planner(inputs: Inputs, *, beyond_worker: bool) -> PlannerGridSource:
    gpu_types = inputs.cluster.gpu_types
    mixed = MixedCells(gpu_types=gpu_types, beyond_worker=beyond_worker) if inputs.is_mixed else None
    return PlannerGridSource(gpu_types=gpu_types, beyond_worker=beyond_worker, mixed=mixed)
