"""The published data of Arena's artifact as typed values (EuroSys'26; github.com/sjtu-epcc/arena, Apache-2.0).

``prof_database.json`` holds the measured seconds of an iteration under the plan that Alpa's search found, or -1 where
the run failed; ``estimate_all_grid_merged.json`` what Arena's own profiler estimates of each uniform plan;
``comm_tables.json.gz`` timings of collectives on the same clusters.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Degrees = tuple[int, int, int]
"""Pipeline stages, replicas, tensor-parallel degree: the order of the files."""

_MODEL = re.compile(r"(?P<family>[a-z_]+)_(?P<size>[\d.]+[MB])_(?P<batch>\d+)")
_HARDWARE = re.compile(r"(?P<named>\d+)_(?P<type>[a-z]+\d+)_(?P<nodes>\d+)_n_(?P<gpus>\d+)_d")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Workload:
    """A model with its global batch: ``bert_760M_128``."""

    family: str
    size: str
    batch: int

    def __str__(self) -> str:
        return f"{self.family}_{self.size}_{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Hardware:
    """A number of nodes with some GPUs of each."""

    gpu_type: str
    node_count: int
    gpus_per_node: int

    def __str__(self) -> str:
        return f"{self.node_count}x{self.gpus_per_node} {self.gpu_type}"

    @property
    def gpu_count(self) -> int:
        """All GPUs."""
        return self.node_count * self.gpus_per_node


class Outcome(StrEnum):
    """What became of the run that the profile database lists for a cell."""

    RAN = "ran"
    FAILED = "failed"
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A workload on some hardware.

    Args:
        time_s: Of the best plan's iteration, where it ran.
        estimates_s: By plan, what Arena's profiler estimates, infinite where it found no room; None without an entry.
    """

    workload: Workload
    hardware: Hardware
    outcome: Outcome
    time_s: float | None
    estimates_s: Mapping[Degrees, float] | None

    def __str__(self) -> str:
        return f"{self.workload} on {self.hardware}"

    @property
    def is_estimated_feasible(self) -> bool:
        """Whether the estimates have a plan that runs."""
        return any(map(math.isfinite, (self.estimates_s or {}).values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A timed collective: every group of ranks does it at once.

    Args:
        ranks: Of the first of its groups, numbered node by node.
    """

    hardware: Hardware
    kind: str
    ranks: tuple[int, ...]
    size_bytes: float
    time_s: float

    @property
    def node_count(self) -> int:
        """Nodes that its group lies on."""
        return len({rank // self.hardware.gpus_per_node for rank in self.ranks})


def data_folder() -> Path | None:
    """Return where Arena's data lie, None where nobody has them."""
    stated = os.environ.get("ARENA_DATA_DIR")
    base = Path(stated) if stated else ROOT.parent / "shared"
    found = (folder / "arena" for folder in (base / "data", base))
    return next((folder for folder in found if (folder / "prof_database.json").is_file()), None)


def workload_of(text: str) -> Workload:
    """Return what a key of the files names, e.g. ``wide_resnet_500M_256``."""
    found = _MODEL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} names no model and batch")
    return Workload(family=found["family"], size=found["size"], batch=int(found["batch"]))


def hardware_of(text: str) -> Hardware:
    """Return what a key of the files names, e.g. ``2_a40_2_n_2_d``."""
    found = _HARDWARE.match(text)
    if found is None:
        raise ValueError(f"{text!r} names no GPUs")
    return Hardware(gpu_type=found["type"], node_count=int(found["nodes"]), gpus_per_node=int(found["gpus"]))


def cells_of(folder: Path) -> list[Cell]:
    """Return all cells of the profile database and of the estimates, in order."""
    measured = json.loads((folder / "prof_database.json").read_text(encoding="utf-8"))["optimal"]
    estimated = json.loads((folder / "estimate_all_grid_merged.json").read_text(encoding="utf-8"))
    keys = {(model, key) for table in (measured, estimated) for model in table for key in table[model]}
    cells = [
        cell_of(model, key, measured.get(model, {}).get(key), estimated.get(model, {}).get(key))
        for model, key in keys
        if is_consistent(key)
    ]
    return sorted(cells, key=lambda cell: (cell.workload, cell.hardware))


def cell_of(model: str, key: str, seconds: float | None, estimates: Iterable[Any] | None) -> Cell:
    """Return one cell from its entries, None where there is none."""
    outcome = Outcome.UNTRIED if seconds is None else Outcome.RAN if seconds > 0 else Outcome.FAILED
    return Cell(
        workload=workload_of(model),
        hardware=hardware_of(key),
        outcome=outcome,
        time_s=seconds if outcome is Outcome.RAN else None,
        estimates_s=None if estimates is None else estimates_of(estimates),
    )


def is_consistent(key: str) -> bool:
    """Tell whether both counts of nodes in a key agree (``1_a100_2_n_2_d`` stands beside ``2_a100_2_n_2_d``)."""
    found = _HARDWARE.match(key)
    return found is not None and found["named"] == found["nodes"]


def estimates_of(rows: Iterable[Any]) -> dict[Degrees, float]:
    """Return seconds by plan; plans come twice, the faster counts, and numbers alone (-1) are failures."""
    found: dict[Degrees, float] = {}
    for row in rows:
        if isinstance(row, list):
            pp, dp, tp = row[0]
            seconds = float(row[-1]) if math.isfinite(row[-1]) else math.inf
            found[pp, dp, tp] = min(seconds, found.get((pp, dp, tp), math.inf))
    return found


def replicas_gib(folder: Path) -> dict[str, list[float]]:
    """Return the GiB of one of 1, 2, 4, 8 and 16 replicas by workload (``BYTE_TO_GB`` is a GiB); -1 is unknown."""
    found: dict[str, list[float]] = json.loads((folder / "dp_mem.json").read_text(encoding="utf-8"))[0]
    return found


def collectives_of(folder: Path) -> list[Collective]:
    """Return the timed all-reduces and sends; of two tables of one cluster, that over InfiniBand."""
    with gzip.open(folder / "comm_tables.json.gz", "rt", encoding="utf-8") as stream:
        tables = json.load(stream)
    return [
        one
        for key, by_kind in tables.items()
        if f"{key}_ib" not in tables
        for kind, rows in by_kind.items()
        for one in _collectives(hardware_of(key), kind, rows)
    ]


def _collectives(hardware: Hardware, kind: str, rows: Iterable[Any]) -> Iterable[Collective]:
    name = next((known for known in ("all-reduce", "send") if known in kind), None)
    if name is None:
        return
    groups = re.search(r"\[\[([\d, ]+)\]", kind)
    if name == "send" and groups:
        return  # these time a gather of slices
    ranks = tuple(map(int, groups[1].split(","))) if groups else (0, hardware.gpus_per_node)
    for shape, dtype, seconds, *_ in rows:
        size_bytes = math.prod(shape) * (4.0 if dtype.endswith("32") else 2.0)
        yield Collective(hardware=hardware, kind=name, ranks=ranks, size_bytes=size_bytes, time_s=seconds)
