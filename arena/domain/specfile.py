"""The YAML form of a job: read into a ``JobSpec``, with file, line, column and field for all that is wrong at once.

Pure but for the reader of a referenced config.json, which the caller passes in.
"""

from __future__ import annotations

import difflib
import os.path
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from arena.domain.huggingface import model_fields_of_config
from arena.domain.job import JobSpec
from arena.domain.limits import contradictions
from arena.domain.parallel import parse_plan
from arena.domain.yamltree import Path, Place, Problem, Tree, read_tree
from arena.errors import SpecError

# Paths of a job, made absolute where it is submitted: an agent has another working directory.
_PATH_FIELDS: tuple[tuple[str, ...], ...] = (
    ("train", "data", "path"),
    ("train", "evaluation", "data", "path"),
    ("command", "cwd"),
    ("checkpoint", "dir"),
    ("output_dir",),
)
_MODEL: Path = ("train", "model")
_CONFIG_KEY = "config"

BEGUN_MAX = 3
"""Words that begin like a wrong one of which a question names at most so many."""

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_TYPE_WORDS = (
    ("int", "a whole number"),
    ("float", "a number"),
    ("bool", "true or false"),
    ("string", "text"),
    ("tuple", "a list"),
    ("list", "a list"),
    ("dict", "a mapping"),
    ("model", "a mapping"),
)


def parse_spec(
    text: str,
    *,
    source: str,
    base_dir: str,
    read_text: Callable[[str], str],
    overrides: Sequence[tuple[str, str]] = (),
) -> JobSpec:
    """Read a job from YAML.

    Args:
        text: The document.
        source: Its name, for errors.
        base_dir: Absolute directory against which the job's relative paths are resolved.
        read_text: Returns the content of a file that the job refers to (``train.model.config``).
        overrides: Dotted fields with YAML values that replace what the document says (``--set``).

    Raises:
        SpecError: Everything that is wrong, each with its place, field and what is allowed.
    """
    tree = read_tree(text, source)
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: a job is a mapping of fields", why=f"got {shown(tree.data)}")
    return _spec_of_tree(tree, base_dir, read_text, overrides)


def spec_from_fields(
    fields: dict[str, Any], *, source: str, base_dir: str, overrides: Sequence[tuple[str, str]] = ()
) -> JobSpec:
    """Make a job from plain fields, as ``parse_spec`` does from a document; ``source`` stands for their place."""
    tree = Tree(data=fields, values={(): Place(source=source)})
    return _spec_of_tree(tree, base_dir, _refuse_reading, overrides)


def _refuse_reading(path: str) -> str:
    raise SpecError(f"{path} can be named in a job's file only")


def _spec_of_tree(
    tree: Tree, base_dir: str, read_text: Callable[[str], str], overrides: Sequence[tuple[str, str]]
) -> JobSpec:
    for key, value in overrides:
        _override(tree, key, value)
    _resolve_config(tree, base_dir, read_text)
    _resolve_paths(tree.data, base_dir)
    try:
        spec = JobSpec.model_validate(tree.data)
    except ValidationError as error:
        problems = [_problem(tree, item) for item in error.errors(include_url=False)]
        raise spec_error(tree.place(()).source, problems) from error
    _check_plan(spec, tree)
    _check_limits(spec, tree)
    return spec


def _check_plan(spec: JobSpec, tree: Tree) -> None:
    if spec.train is None or spec.parallel.plan is None:
        return
    try:
        parse_plan(spec.parallel.plan, layer_count=spec.train.model.layers)
    except SpecError as error:
        place = tree.place(("parallel", "plan"))
        raise SpecError(f"{place}: parallel.plan: {error.what}", why=error.why, fix=error.fix) from error


def _check_limits(spec: JobSpec, tree: Tree) -> None:
    problems = [
        Problem(place=tree.place(one.field), field=".".join(one.field), text=one.text) for one in contradictions(spec)
    ]
    if problems:
        raise spec_error(tree.place(()).source, problems)


def spec_error(source: str, problems: Sequence[Problem]) -> SpecError:
    """Return one error that lists all problems, in the order of their places."""
    ordered = sorted(problems, key=lambda problem: (problem.place.line, problem.place.column, problem.field))
    return SpecError(
        "\n".join(str(problem) for problem in ordered),
        details={"source": source, **{f"{item.place} {item.field}".strip(): item.text for item in ordered}},
    )


def _override(tree: Tree, key: str, text: str) -> None:
    option = Place(source=f"--set {key}")
    value = read_tree(text, str(option)).data if text.strip() else None
    path = tuple(key.split("."))
    if not all(path):
        raise SpecError(f"{option}: write it like --set stop.steps=100")
    fields = tree.data
    for depth, part in enumerate(path[:-1]):
        if fields.get(part) is None:
            fields[part] = {}
        fields = fields[part]
        if not isinstance(fields, dict):
            raise SpecError(f"{option}: {'.'.join(path[: depth + 1])} is no mapping")
        tree.values.setdefault(path[: depth + 1], option)
        tree.keys.setdefault(path[: depth + 1], option)
    fields[path[-1]] = value
    tree.values[path] = tree.keys[path] = option


def _resolve_config(tree: Tree, base_dir: str, read_text: Callable[[str], str]) -> None:
    """Replace ``train.model.config`` by the shape that the file describes; fields beside it win."""
    train = tree.data.get("train")
    model = train.get("model") if isinstance(train, dict) else None
    if not isinstance(model, dict) or _CONFIG_KEY not in model:
        return
    place = tree.place((*_MODEL, _CONFIG_KEY))
    named = model.pop(_CONFIG_KEY)
    if not isinstance(named, str):
        raise SpecError(f"{place}: train.model.config: must be the path of a config.json, got {shown(named)}")
    path = _absolute(named, base_dir)
    try:
        fields = model_fields_of_config(read_text(path), path)
    except OSError as error:
        raise SpecError(f"{place}: train.model.config: cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{place}: train.model.config: {path} is no UTF-8 text") from error
    except SpecError as error:
        raise SpecError(f"{place}: train.model.config: {error.what}", why=error.why, fix=error.fix) from error
    for key in fields:
        tree.values.setdefault((*_MODEL, key), place)
    beside = model.get("variant")
    if isinstance(beside, dict):
        model["variant"] = {**fields.get("variant", {}), **beside}
    model.update({key: value for key, value in fields.items() if key not in model})


def _resolve_paths(data: dict[str, Any], base_dir: str) -> None:
    for path in _PATH_FIELDS:
        fields: Any = data
        for part in path[:-1]:
            fields = fields.get(part) if isinstance(fields, dict) else None
        if isinstance(fields, dict) and isinstance(fields.get(path[-1]), str) and fields[path[-1]]:
            fields[path[-1]] = _absolute(fields[path[-1]], base_dir)


def _absolute(path: str, base_dir: str) -> str:
    return os.path.normpath(os.path.join(base_dir, os.path.expanduser(path)))  # noqa: PTH111, PTH118 - text in, text out


def _problem(tree: Tree, item: Mapping[str, Any]) -> Problem:
    path: Path = item["loc"]
    field = ".".join(str(part) for part in path)
    if item["type"] == "extra_forbidden":
        return Problem(place=tree.keys.get(path, tree.place(path)), field=field, text=_unknown_field(path))
    return Problem(place=tree.place(path), field=field, text=described(item))


def _unknown_field(path: Path) -> str:
    allowed = sorted(_model_at(path[:-1]).model_fields)
    if path[:-1] == _MODEL:
        allowed = sorted([*allowed, _CONFIG_KEY])
    return f"unknown field{did_you_mean(str(path[-1]), allowed)}; allowed: {', '.join(allowed)}"


def did_you_mean(word: str, allowed: Sequence[str]) -> str:
    """Return a question that names the words that begin so, else the closest one, or nothing where none is close."""
    close = [one for one in allowed if word and one.startswith(word)][:BEGUN_MAX]
    close = close or difflib.get_close_matches(word, allowed, n=1)
    return f", did you mean {' or '.join(map(repr, close))}?" if close else ""


def _model_at(path: Path) -> type[BaseModel]:
    """Return the part of the specification that a path of field names leads to."""
    model: type[BaseModel] = JobSpec
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        kinds = [annotation, *get_args(annotation)]
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return model


def described(item: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors as what was given and what is allowed."""
    kind, value, context = item["type"], item.get("input"), item.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind in {"literal_error", "enum"}:
        allowed = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return f"got {shown(value)}{did_you_mean(str(value), allowed)}; allowed: {', '.join(allowed)}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"got {shown(value)}; allowed: {words} {context[key]}"
    if kind == "value_error":
        return str(item["msg"]).removeprefix("Value error, ")
    return _describe_type(kind, value) or f"{item['msg'][0].lower()}{item['msg'][1:]}, got {shown(value)}"


def _describe_type(kind: str, value: object) -> str | None:
    wanted = next((words for start, words in _TYPE_WORDS if kind.startswith(f"{start}_")), None)
    if wanted is None or kind in {"string_too_long", "string_too_short"}:
        return None
    quoted = " (put it in quotes)" if wanted == "text" and isinstance(value, int | float) else ""
    return f"got {shown(value)}; allowed: {wanted}{quoted}"


def shown(value: object) -> str:
    """Return a value as an error shows it, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_mapping(text: str, source: str, *, rule: str, example: str) -> Tree:
    """Parse a document that must be a mapping.

    Args:
        rule: What is said of one that is not.
        example: What to do about anything that cannot be read.

    Raises:
        SpecError: It cannot be read, or is no mapping.
    """
    try:
        tree = read_tree(text, source)
    except SpecError as error:
        raise SpecError(error.what, why=error.why, fix=example) from error
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: {rule}", why=f"got {shown(tree.data)}", fix=example)
    return tree
