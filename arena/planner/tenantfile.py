"""The YAML form of guaranteed shares, with every mistake told at once.

    projects:
      vision: {gpus: 8}
      speech: {gpus: {a100-80: 4, h100: 8}}

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from arena.domain.cluster import ClusterShape
from arena.domain.specbase import Model, Name
from arena.domain.specfile import described, did_you_mean, read_mapping, shown, spec_error
from arena.domain.tenants import ANY_TYPE, Guarantee, Guarantees, too_much
from arena.domain.yamltree import Path, Problem, Tree
from arena.errors import SpecError

GUARANTEED_MAX = 1_000_000
_EXAMPLE = "such a file looks like this: projects: {vision: {gpus: 8}, speech: {gpus: {a100-80: 4}}}"
_KEY_MARK = "[key]"
Count = Annotated[int, Field(ge=0, le=GUARANTEED_MAX, strict=True)]


class ShareSpec(Model):
    """What a project is guaranteed.

    Attributes:
        gpus: So many GPUs of any type, or so many of each type named.
    """

    gpus: Count | dict[str, Count]


class TenantsSpec(Model):
    """A file of guaranteed shares."""

    projects: dict[Name, ShareSpec]


def parse_tenants(text: str, *, source: str, gpu_types: Collection[str]) -> Guarantees:
    """Read guaranteed shares from YAML.

    Args:
        source: The document's name, for errors.
        gpu_types: Types that may be named.

    Raises:
        SpecError: Everything that is wrong, each with its place, field and what would do.
    """
    tree = read_mapping(text, source, rule="shares are a mapping", example=_EXAMPLE)
    try:
        spec = TenantsSpec.model_validate(tree.data)
    except ValidationError as error:
        found = {str(item): item for item in _problems(tree, error)}
        raise spec_error(source, list(found.values())) from error
    problems = list(_unknown_types(spec, tree, gpu_types))
    if problems:
        raise spec_error(source, problems)
    return {name: _guarantee(share) for name, share in sorted(spec.projects.items())}


def check_guarantees(guarantees: Guarantees, shape: ClusterShape, *, source: str) -> None:
    """Refuse to guarantee more than a cluster has.

    Raises:
        SpecError: It is more.
    """
    found = list(too_much(guarantees, shape.gpu_count_by_type))
    if found:
        raise SpecError(
            f"{source} guarantees more than there is",
            why="; ".join(found),
            fix="guarantee less, so that every project can have its share at the same time",
        )


def _guarantee(share: ShareSpec) -> Guarantee:
    counts = {ANY_TYPE: share.gpus} if isinstance(share.gpus, int) else share.gpus
    return Guarantee(gpu_count_by_type=dict(sorted(counts.items())))


def _unknown_types(spec: TenantsSpec, tree: Tree, known: Collection[str]) -> Iterator[Problem]:
    for project, share in spec.projects.items():
        for gpu_type in share.gpus if isinstance(share.gpus, dict) else ():
            if gpu_type not in known:
                close = did_you_mean(gpu_type, sorted(known))
                text = f"unknown GPU type {shown(gpu_type)}{close}; known: {', '.join(sorted(known))}"
                yield _told(tree, ("projects", project, "gpus", gpu_type), text, is_key=True)


def _problems(tree: Tree, error: ValidationError) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        path = _own_path(item["loc"])
        if len(path) == 3 < len(item["loc"]) and isinstance(item["input"], dict):
            continue  # the other form was meant, and has its own mistakes
        if item["loc"] and item["loc"][-1] == _KEY_MARK:
            yield _told(tree, path, "is no name of a project", is_key=True)
        elif item["type"] == "extra_forbidden":
            allowed = "projects" if len(path) == 1 else "gpus"
            yield _told(tree, path, f"unknown field; allowed: {allowed}", is_key=True)
        elif len(item["loc"]) > 3:
            yield _told(tree, path, _count_text(item))
        else:
            yield _told(tree, path, f"{described(item)}; {_EXAMPLE}")


def _own_path(loc: Path) -> Path:
    """Return the place in the document; what follows ``gpus`` names the form that was tried, then the GPU type."""
    if len(loc) <= 3 or loc[2] != "gpus":
        return tuple(part for part in loc if part != _KEY_MARK)
    return (*loc[:3], *(part for part in loc[4:5] if part != _KEY_MARK))


def _count_text(item: Mapping[str, Any]) -> str:
    wanted = f"a whole number from 0 to {GUARANTEED_MAX}"
    return f"must be {wanted}, or such a number for each GPU type, got {shown(item['input'])}"


def _told(tree: Tree, path: Path, text: str, *, is_key: bool = False) -> Problem:
    place = tree.keys.get(path, tree.place(path)) if is_key else tree.place(path)
    return Problem(place=place, field=".".join(str(part) for part in path), text=text)
