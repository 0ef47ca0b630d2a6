"""The YAML form of a cluster: its nodes and GPU types of the user's own, with every mistake told at once.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from arena.domain.cluster import ClusterShape, GpuType, NodePool
from arena.domain.specbase import Model, Name
from arena.domain.specfile import described, did_you_mean, read_mapping, shown, spec_error
from arena.domain.yamltree import Path, Problem, Tree
from arena.planner.communication import Tier
from arena.planner.hardware import catalog
from arena.planner.heterogeneous.offer import ZoneLinks
from arena.units import GIB

_TERA = 1e12
_GIGA = 1e9
_MICRO = 1e-6
_EXAMPLE = "a cluster file looks like this: nodes: [{type: a100-80, count: 4, gpus: 8, zone: east}]"
_KEY_MARK = "[key]"

# A typing error must neither take all memory of who plans nor leave the range of floats.
NODES_MAX = 16_384
GPUS_PER_NODE_MAX = 1_024
Size = Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Precision = Literal["fp32", "bf16", "fp16"]
TypeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class NodesSpec(Model):
    """Nodes that are alike.

    Attributes:
        type: GPU type, of the catalog or of ``gpu_types``.
        count: How many nodes.
        gpus: GPUs on each of them.
    """

    type: str
    count: Annotated[int, Field(ge=1, le=NODES_MAX)] = 1
    gpus: Annotated[int, Field(ge=1, le=GPUS_PER_NODE_MAX)]
    zone: Name = "default"


class GpuTypeSpec(Model):
    """A GPU type in the units of data sheets; bandwidths in one direction and for one GPU.

    Attributes:
        like: Type of the catalog that the rest is taken from; by default the one with the same name.
        memory_gib, memory_bytes: Device memory, one or the other.
        peak_tflops: Dense peak by precision; ``fp32`` stands in for a precision that is not named.
        link_gb_per_s, link_us: To the other GPUs of the node.
        network_gb_per_s, network_us: Its share of the node's network.
        launch_us: Fixed cost of starting one kernel.
    """

    like: str | None = None
    memory_gib: Size | None = None
    memory_bytes: Annotated[int, Field(ge=1_000_000, le=10**15)] | None = None
    peak_tflops: dict[Precision, Size] | None = None
    memory_gb_per_s: Size | None = None
    link_gb_per_s: Size | None = None
    link_us: Delay | None = None
    network_gb_per_s: Size | None = None
    network_us: Delay | None = None
    launch_us: Delay | None = None
    usd_per_hour: Price | None = None
    source: str | None = None


class LinkSpec(Model):
    """What lies between two zones, for each GPU that sends over it.

    Attributes:
        between: The two zones.
        gb_per_s: What one GPU reaches in one direction, measured rather than nominal.
        us: Delay of a message.
        usd_per_gb: Price of what crosses.
    """

    between: tuple[Name, ...]
    gb_per_s: Size
    us: Delay = 1_000.0
    usd_per_gb: Price = 0.0


class ClusterSpec(Model):
    """A cluster file."""

    nodes: tuple[NodesSpec, ...]
    gpu_types: dict[TypeName, GpuTypeSpec] = Field(default_factory=dict)
    links: tuple[LinkSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a cluster file says: its shape, what lies between its zones, and the catalog with the user's types in it.

    A type that is like one of the catalog keeps that one's name in its own row: what the cost model fitted to a type
    (how well its processors are filled) goes by it.
    """

    shape: ClusterShape
    gpu_types: Mapping[str, GpuType]
    links: ZoneLinks


# Where a field goes in GpuType, and what one of its units is there.
_FIGURES: Mapping[str, tuple[str, float]] = {
    "memory_gb_per_s": ("memory_bandwidth_bytes_per_s", _GIGA),
    "link_gb_per_s": ("link_bandwidth_bytes_per_s", _GIGA),
    "network_gb_per_s": ("network_bandwidth_bytes_per_s", _GIGA),
    "usd_per_hour": ("usd_per_hour", 1.0),
}
_DELAYS: Mapping[str, tuple[str, float]] = {
    "link_us": ("link_latency_s", 6 * _MICRO),
    "network_us": ("network_latency_s", 15 * _MICRO),
    "launch_us": ("launch_latency_s", 4 * _MICRO),
}
"""Delays may be left out: where a field goes, and what is assumed (an A100's)."""


def parse_cluster(text: str, *, source: str) -> Cluster:
    """Read a cluster from YAML.

    Args:
        text: The document.
        source: Its name, for errors.

    Raises:
        SpecError: Everything that is wrong, each with its place, field and what would do.
    """
    tree = read_mapping(text, source, rule="a cluster is a mapping", example=_EXAMPLE)
    try:
        spec = ClusterSpec.model_validate(tree.data)
    except ValidationError as error:
        raise spec_error(source, [_problem(tree, item) for item in error.errors(include_url=False)]) from error
    known = catalog()
    problems = [*_type_problems(spec, tree, known), *_node_problems(spec, tree, known), *_link_problems(spec, tree)]
    if problems:
        raise spec_error(source, problems)
    own = {name: _gpu_type(name, one, known) for name, one in spec.gpu_types.items()}
    return Cluster(shape=_shape(spec), gpu_types={**known, **own}, links=_links(spec))


def _shape(spec: ClusterSpec) -> ClusterShape:
    counts: dict[tuple[str, str, int], int] = {}
    for nodes in spec.nodes:
        key = (nodes.type, nodes.zone, nodes.gpus)
        counts[key] = counts.get(key, 0) + nodes.count
    return ClusterShape(
        pools=tuple(
            NodePool(gpu_type=gpu_type, zone=zone, gpus_per_node=gpus, node_count=count)
            for (gpu_type, zone, gpus), count in sorted(counts.items())
        )
    )


def _links(spec: ClusterSpec) -> ZoneLinks:
    pairs = [((one.between[0], one.between[1]), one) for one in spec.links]
    return ZoneLinks(
        tiers={
            pair: Tier(bandwidth_bytes_per_s=one.gb_per_s * _GIGA, latency_s=one.us * _MICRO) for pair, one in pairs
        },
        usd_per_byte={pair: one.usd_per_gb / _GIGA for pair, one in pairs},
    )


def _gpu_type(name: str, spec: GpuTypeSpec, known: Mapping[str, GpuType]) -> GpuType:
    """Return a type from what its user says, the rest, the name in the row too, from the type it is like."""
    figures: dict[str, Any] = {}
    if spec.memory_gib is not None or spec.memory_bytes is not None:
        figures["memory_bytes"] = spec.memory_bytes or int((spec.memory_gib or 0.0) * GIB)
    for field, (target, unit) in _FIGURES.items():
        value = getattr(spec, field)
        if value is not None:
            figures[target] = value * unit
    for field, (target, _) in _DELAYS.items():
        value = getattr(spec, field)
        if value is not None:
            figures[target] = value * _MICRO
    peaks: dict[str, float] = {precision: peak * _TERA for precision, peak in (spec.peak_tflops or {}).items()}
    like = known.get(spec.like or name)
    if like is None:
        assumed = dict(_DELAYS.values())
        return GpuType(
            name=name, peak_flops_per_s=peaks, source=spec.source or "cluster file", **{**assumed, **figures}
        )
    source = spec.source or f"cluster file, the rest as {like.name}: {like.source}"
    return replace(like, peak_flops_per_s={**like.peak_flops_per_s, **peaks}, source=source, **figures)


def _type_problems(spec: ClusterSpec, tree: Tree, known: Mapping[str, GpuType]) -> Iterator[Problem]:
    for name, one in spec.gpu_types.items():
        path: Path = ("gpu_types", name)
        if one.like is not None and one.like not in known:
            yield _told(tree, (*path, "like"), _unknown_type(one.like, known))
        elif one.like is None and name not in known:
            missing = _missing(one)
            if missing:
                close = did_you_mean(name, sorted(known))
                yield _told(
                    tree, path, f"needs {', '.join(missing)}{close}; or like: NAME for the rest, {_names(known)}"
                )
        if one.memory_gib is not None and one.memory_bytes is not None:
            yield _told(tree, (*path, "memory_bytes"), "give memory_gib or memory_bytes, not both")


def _missing(spec: GpuTypeSpec) -> list[str]:
    """Return what a type needs that is like none of the catalog."""
    missing = [] if spec.memory_gib or spec.memory_bytes else ["memory_gib"]
    if not spec.peak_tflops or "fp32" not in spec.peak_tflops:
        missing.append("peak_tflops.fp32")
    return missing + [field for field in _FIGURES if getattr(spec, field) is None]


def _node_problems(spec: ClusterSpec, tree: Tree, known: Mapping[str, GpuType]) -> Iterator[Problem]:
    names = {**known, **dict.fromkeys(spec.gpu_types)}
    if not spec.nodes:
        yield _told(tree, ("nodes",), f"is empty; {_EXAMPLE}")
    for index, nodes in enumerate(spec.nodes):
        if nodes.type not in names:
            text = f"{_unknown_type(nodes.type, names)}; or describe it under gpu_types"
            yield _told(tree, ("nodes", index, "type"), text)


def _link_problems(spec: ClusterSpec, tree: Tree) -> Iterator[Problem]:
    zones = sorted({nodes.zone for nodes in spec.nodes})
    known: dict[tuple[str, ...], int] = {}
    for index, link in enumerate(spec.links):
        path: Path = ("links", index, "between")
        for zone in link.between:
            if zone not in zones:
                text = f"unknown zone {shown(zone)}{did_you_mean(zone, zones)}; nodes are in: {', '.join(zones)}"
                yield _told(tree, path, text)
        pair = tuple(sorted(link.between))
        if len(set(pair)) != 2 or len(pair) != 2:
            named = ", ".join(map(shown, link.between)) or "none"
            yield _told(tree, path, f"a link joins two zones, got {named}; zones: {', '.join(zones)}")
        elif pair in known:
            yield _told(tree, path, f"is given twice: links.{known[pair]} joins the same zones; it holds both ways")
        known.setdefault(pair, index)


def _unknown_type(name: str, known: Mapping[str, object]) -> str:
    return f"unknown GPU type {shown(name)}{did_you_mean(name, sorted(known))}; {_names(known)}"


def _names(known: Mapping[str, object]) -> str:
    return f"known: {', '.join(sorted(known))}"


def _problem(tree: Tree, item: Mapping[str, Any]) -> Problem:
    path: Path = item["loc"]
    if path and path[-1] == _KEY_MARK:
        return _told(tree, path[:-1], f"is no name for one; {_keys_allowed(path)}", is_key=True)
    if item["type"] == "extra_forbidden":
        allowed = sorted(_model_at(path).model_fields)
        close = did_you_mean(str(path[-1]), allowed)
        return _told(tree, path, f"unknown field{close}; allowed: {', '.join(allowed)}", is_key=True)
    return _told(tree, path, f"{described(item)}{_in_catalog(path)}")


def _keys_allowed(path: Path) -> str:
    if len(path) > 2 and path[2] == "peak_tflops":
        return "allowed: fp32, bf16, fp16"
    return "allowed: up to 64 letters, digits, '.', '_' and '-'"


def _model_at(path: Path) -> type[BaseModel]:
    """Return the part of the file that the last name of a path is a field of."""
    if len(path) == 1:
        return ClusterSpec
    if path[0] == "links":
        return LinkSpec
    return NodesSpec if path[0] == "nodes" else GpuTypeSpec


def _in_catalog(path: Path) -> str:
    """Return what the catalog has in a field of a GPU type, for who guesses its unit."""
    values = _values_of(str(path[2])) if len(path) > 2 and path[0] == "gpu_types" else None
    if values is None:
        return ""
    rows = sorted((values(one), name) for name, one in catalog().items())
    (least, least_name), (most, most_name) = rows[0], rows[-1]
    return f" (in the catalog {least:g}, {least_name}, to {most:g}, {most_name})"


def _values_of(field: str) -> Callable[[GpuType], float] | None:
    if field in _FIGURES:
        target, unit = _FIGURES[field]
        return lambda one: float(getattr(one, target)) / unit
    if field in _DELAYS:
        target, _ = _DELAYS[field]
        return lambda one: float(getattr(one, target)) / _MICRO
    if field == "memory_gib":
        return lambda one: one.memory_bytes / GIB
    return (lambda one: one.peak_flops_per_s["fp32"] / _TERA) if field == "peak_tflops" else None


def _told(tree: Tree, path: Path, text: str, *, is_key: bool = False) -> Problem:
    place = tree.keys.get(path, tree.place(path)) if is_key else tree.place(path)
    return Problem(place=place, field=".".join(str(part) for part in path), text=text)
