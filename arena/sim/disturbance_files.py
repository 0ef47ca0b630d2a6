"""What is to happen to the nodes of a replay, as files say it: failures in YAML, availability of lent nodes in tables.

    checkpoint_every_s: 1800
    failures:
      - {mean_uptime_s: 864000, mean_repair_s: 14400}
    reclaims:
      - {type: a100-80, zone: east, trace: spot.csv, grace_s: 30, repeat_every_s: 86400}

A trace of availability has the columns ``at_s`` (after the first submission) and ``nodes`` or ``gpus``: how many are
there from then on. Sailor's JSON, ``[{"Time": 0, "GPUs": 4}, ...]``, is read as it is. Pure: no I/O, no clock.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from arena.domain.cluster import ClusterShape, NodeInfo
from arena.domain.specbase import Model, Name, PositiveFloat
from arena.domain.specfile import described, did_you_mean, shown, spec_error
from arena.domain.yamltree import Path, Problem, Tree, read_tree
from arena.errors import SpecError
from arena.sim.disturbances import Availability, Disturbance, Failures, Reclaims
from arena.sim.replay import LEAD_S, nodes_of

_EXAMPLE = "such a file looks like this: failures: [{mean_uptime_s: 864000, mean_repair_s: 14400}]"
_SEEDS_APART = 1_000_003
"""Between the seeds of two entries, so that they draw apart; the first has the seed of the run."""

Time = Annotated[float, Field(ge=0, le=1e9)]


class FailuresSpec(Model):
    """Nodes that break.

    Attributes:
        mean_uptime_s: Of one node, from its repair to its next failure.
        mean_repair_s: From its failure to its repair.
        type, zone: Only these nodes; by default all.
    """

    mean_uptime_s: PositiveFloat
    mean_repair_s: PositiveFloat
    type: str | None = None
    zone: Name | None = None


class ReclaimsSpec(Model):
    """Nodes that are lent.

    Attributes:
        type, zone: Which nodes; the last of them go first.
        trace: File of their availability.
        grace_s: From the word to the loss.
        repeat_every_s: The trace comes again after so long.
    """

    type: str
    zone: Name | None = None
    trace: str
    grace_s: Time = 30.0
    repeat_every_s: PositiveFloat | None = None


class DisturbancesSpec(Model):
    """A file of disturbances.

    Attributes:
        node_grace_s: From the loss of a node until its jobs are given up, as the scheduler's ``--node-grace``.
        checkpoint_every_s: How often jobs save, in seconds of their time on what they ask for; by default every so many
            steps as their specification says, those of a trace every 100.
    """

    failures: tuple[FailuresSpec, ...] = ()
    reclaims: tuple[ReclaimsSpec, ...] = ()
    node_grace_s: Time = 15.0
    checkpoint_every_s: PositiveFloat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DisturbancePlan:
    """What a file of disturbances says of a cluster."""

    spec: DisturbancesSpec
    reclaims: tuple[Reclaims, ...]

    def of_seed(self, seed: int) -> tuple[Disturbance, ...]:
        """Return what happens under a seed; lent nodes come and go alike under all."""
        failures = (
            Failures(
                mean_uptime_s=one.mean_uptime_s,
                mean_repair_s=one.mean_repair_s,
                seed=seed + index * _SEEDS_APART,
                gpu_type=one.type,
                zone=one.zone,
            )
            for index, one in enumerate(self.spec.failures)
        )
        return (*failures, *self.reclaims)


def parse_disturbances(
    text: str, shape: ClusterShape, *, source: str, read_text: Callable[[str], str]
) -> DisturbancePlan:
    """Read what is to happen to the nodes of a cluster.

    Args:
        source: Name of the file, for errors.
        read_text: Returns the content of a trace of availability, by its name in the file.

    Raises:
        SpecError: Everything that is wrong, each with its place, field and what would do.
    """
    tree = read_tree(text, source)
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: disturbances are a mapping", why=f"got {shown(tree.data)}", fix=_EXAMPLE)
    try:
        spec = DisturbancesSpec.model_validate(tree.data)
    except ValidationError as error:
        raise spec_error(source, [_problem(tree, item) for item in error.errors(include_url=False)]) from error
    problems = list(_unknown_nodes(spec, tree, shape))
    if problems:
        raise spec_error(source, problems)
    return DisturbancePlan(spec=spec, reclaims=tuple(_reclaims(one, shape, read_text) for one in spec.reclaims))


def _problem(tree: Tree, item: Mapping[str, Any]) -> Problem:
    path: Path = item["loc"]
    text, is_key = described(item), item["type"] == "extra_forbidden"
    if is_key:
        allowed = sorted(_model_at(path).model_fields)
        text = f"unknown field{did_you_mean(str(path[-1]), allowed)}; allowed: {', '.join(allowed)}"
    return _told(tree, path, text, is_key=is_key)


def _model_at(path: Path) -> type[BaseModel]:
    """Return the part of the file that the last name of a path is a field of."""
    if len(path) == 1:
        return DisturbancesSpec
    return FailuresSpec if path[0] == "failures" else ReclaimsSpec


def _unknown_nodes(spec: DisturbancesSpec, tree: Tree, shape: ClusterShape) -> Iterator[Problem]:
    entries: Mapping[str, Sequence[FailuresSpec | ReclaimsSpec]]
    entries = {"failures": spec.failures, "reclaims": spec.reclaims}
    for name, some in entries.items():
        for index, one in enumerate(some):
            pools = [pool for pool in shape.pools if one.type in {None, pool.gpu_type}]
            if not pools:
                types = sorted(shape.gpu_count_by_type)
                text = f"the cluster has no {shown(one.type)}{did_you_mean(str(one.type), types)}; its types: "
                yield _told(tree, (name, index, "type"), text + ", ".join(types))
            elif one.zone is not None and one.zone not in {pool.zone for pool in pools}:
                zones = sorted({pool.zone for pool in pools})
                text = f"no such nodes are in zone {shown(one.zone)}; they are in {', '.join(zones)}"
                yield _told(tree, (name, index, "zone"), text)


def _told(tree: Tree, path: Path, text: str, *, is_key: bool = False) -> Problem:
    place = tree.keys.get(path, tree.place(path)) if is_key else tree.place(path)
    return Problem(place=place, field=".".join(str(part) for part in path), text=text)


def _reclaims(spec: ReclaimsSpec, shape: ClusterShape, read_text: Callable[[str], str]) -> Reclaims:
    nodes = [node for node in nodes_of(shape) if node.gpu_type == spec.type and spec.zone in {None, node.zone}]
    levels = _levels(read_text(spec.trace), nodes, spec.trace)
    counts = [count for _, count in levels]
    may_wait = max(counts) < len(nodes) if spec.repeat_every_s is not None else counts[-1] < len(nodes)
    if may_wait:
        raise SpecError(
            f"{spec.trace}: {len(nodes)} nodes are not there together again when the trace is over",
            why="a job that asks for all of them would wait for ever",
            fix=f"let it end with a row of all {len(nodes)} nodes, or give repeat_every_s if a row of it has all",
        )
    if spec.repeat_every_s is not None and spec.repeat_every_s < levels[-1][0]:
        raise SpecError(
            f"{spec.trace}: repeat_every_s is {spec.repeat_every_s:g}, and the trace goes on to {levels[-1][0]:g} s",
            fix="repeat it no sooner than it is over",
        )
    return Reclaims(changes=tuple(_changes(levels, nodes)), grace_s=spec.grace_s, repeat_every_s=spec.repeat_every_s)


def _changes(levels: Sequence[tuple[float, int]], nodes: Sequence[NodeInfo]) -> Iterator[Availability]:
    """Yield which nodes are there at every row; nothing changes where a node stays as it was."""
    for at_s, count in levels:
        # What is so at the first submission is so when the nodes register, a moment before.
        since_s = at_s if at_s > 0 else -LEAD_S
        for index, node in enumerate(nodes):
            yield Availability(at_s=since_s, node_id=node.node_id, is_there=index < count)


def _levels(text: str, nodes: Sequence[NodeInfo], source: str) -> list[tuple[float, int]]:
    """Return instants and how many nodes are there from each on."""
    rows = list(_json_rows(text, source) if text.lstrip().startswith("[") else _csv_rows(text, source))
    if not rows:
        raise SpecError(
            f"{source}: the trace of availability has no rows", fix="give at_s,nodes and a row for each change"
        )
    found = [(at_s, value if unit == "nodes" else _whole_nodes(value, nodes)) for at_s, unit, value in rows]
    for (before_s, _), (at_s, _) in pairwise(found):
        if at_s <= before_s:
            raise SpecError(f"{source}: instants must rise", why=f"{at_s:g} comes after {before_s:g}")
    most = max(count for _, count in found)
    if most > len(nodes):
        raise SpecError(
            f"{source}: {most} nodes are there at most, and the cluster has {len(nodes)} of them",
            fix="give the cluster as many nodes",
        )
    return found


def _whole_nodes(gpu_count: int, nodes: Sequence[NodeInfo]) -> int:
    """Return how many nodes have so many GPUs, those of one in part left out; more than all count as one more."""
    left = gpu_count
    for index, node in enumerate(nodes):
        left -= len(node.devices)
        if left < 0:
            return index
    return len(nodes) + (left > 0)


Row = tuple[float, str, int]


def _csv_rows(text: str, source: str) -> Iterator[Row]:
    lines = csv.reader(io.StringIO(text))
    head = [name.strip().lower() for name in next(lines, [])]
    units = [name for name in ("nodes", "gpus") if name in head]
    if "at_s" not in head or len(units) != 1:
        raise SpecError(f"{source}: the first line must name at_s and nodes (or gpus)", why=f"found {shown(head)}")
    at, value = head.index("at_s"), head.index(units[0])
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        try:
            yield _row(float(cells[at]), units[0], int(cells[value]))
        except (ValueError, IndexError) as error:
            why = f"found {shown(','.join(cells))}"
            raise SpecError(f"{source}:{lines.line_num}: not an instant and a whole number", why=why) from error


def _json_rows(text: str, source: str) -> Iterator[Row]:
    try:
        rows = json.loads(text)
        for row in rows:
            yield _row(float(row["Time"]), "gpus", int(row["GPUs"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise SpecError(f'{source}: not of the form [{{"Time": 0, "GPUs": 4}}, ...]', why=why) from error


def _row(at_s: float, unit: str, value: int) -> Row:
    if not 0 <= at_s <= 1e9 or value < 0:
        raise ValueError(f"{at_s:g}, {value}")
    return at_s, unit, value
