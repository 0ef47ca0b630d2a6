"""YAML read as plain values that remember where they stand: safe, bounded, no surprises. Pure: no I/O, no clock.

The scalar rules are those of YAML 1.2: ``on``, ``yes`` and ``2024-01-01`` are text, ``1e-3`` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

from arena.errors import SpecError

Path = tuple[str | int, ...]

SIZE_BYTES_MAX = 1024 * 1024
VALUES_MAX = 20_000
DEPTH_MAX = 32

_STR_TAG = "tag:yaml.org,2002:str"
_CONTAINER_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_SCALARS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]{1,40}"), int),
    (re.compile(r"0x[0-9a-fA-F]{1,40}"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.lower().replace(".", "", 1))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something stands: a file with line and column from 1, or a command-line option."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, with its place and field."""

    place: Place
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.field}: {self.text}" if self.field else f"{self.place}: {self.text}"


@dataclass(slots=True, kw_only=True)
class Tree:
    """A document as plain values, and the places of its keys and values by path."""

    data: Any
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)

    def place(self, path: Path) -> Place:
        """Return the place of a value, or of the nearest thing around it."""
        while path and path not in self.values:
            path = path[:-1]
        return self.values[path]


class _PlainLoader(yaml.SafeLoader):
    """Composes nodes only; every scalar without a tag stays text until the rules above read it."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}  # type: ignore[misc]


def read_tree(text: str, source: str) -> Tree:
    """Read one YAML document.

    Args:
        text: The document.
        source: Its name, for errors.

    Raises:
        SpecError: It is too large or too deep, no YAML, several documents, or uses tags or a key twice.
    """
    if len(text.encode(errors="surrogatepass")) > SIZE_BYTES_MAX:
        raise SpecError(f"{source} is larger than {SIZE_BYTES_MAX // 1024} KiB")
    documents = _compose(text, source)
    if len(documents) > 1:
        mark = documents[1].start_mark
        raise SpecError(f"{source}:{mark.line + 1}:1: a second document starts here", fix="write one job in one file")
    if not documents:
        raise SpecError(f"{source} is empty", fix="write a job specification")
    return _Reader(source).read(documents[0])


def _compose(text: str, source: str) -> list[yaml.Node]:
    loader = None
    try:
        loader = _PlainLoader(text)
        documents: list[yaml.Node] = []
        while len(documents) < 2 and loader.check_node():
            node = loader.get_node()
            assert node is not None
            documents.append(node)
        return documents
    except yaml.YAMLError as error:
        is_tab = isinstance(error, yaml.MarkedYAMLError) and "'\\t'" in (error.problem or "")
        raise SpecError(_describe(error, source), fix="indent with spaces" if is_tab else "") from error
    except RecursionError as error:
        raise SpecError(f"{source} is nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()


def _describe(error: yaml.YAMLError, source: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        return f"{source}:{mark.line + 1}:{mark.column + 1}: {problem}"
    return f"{source} is no YAML: {' '.join(str(error).split())}"


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._value_count = 0
        self._tree = Tree(data=None)
        self._open: set[int] = set()

    def read(self, node: yaml.Node) -> Tree:
        self._tree.data = self._value(node, ())
        return self._tree

    def _value(self, node: yaml.Node, path: Path) -> Any:
        place = self._place(node)
        self._count(place, len(path))
        self._tree.values[path] = place
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if node.tag not in _CONTAINER_TAGS:
            raise SpecError(f"{place}: the tag {node.tag} is not allowed here")
        if id(node) in self._open:
            raise SpecError(f"{place}: an alias refers to what contains it")
        self._open.add(id(node))
        try:
            return self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecError(f"{place}: a key must be a word")
            key = str(key_node.value)
            if key in fields:
                first = self._tree.keys[(*path, key)]
                raise SpecError(f"{place}: {_dotted((*path, key))} is given twice, first in line {first.line}")
            self._tree.keys[(*path, key)] = place
            fields[key] = self._value(value_node, (*path, key))
        return fields

    def _sequence(self, node: yaml.Node, path: Path) -> list[Any]:
        return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        if node.tag != _STR_TAG:
            raise SpecError(f"{place}: the tag {node.tag} is not allowed here")
        return plain_value(node.value) if node.style is None else node.value

    def _place(self, node: yaml.Node) -> Place:
        return Place(source=self._source, line=node.start_mark.line + 1, column=node.start_mark.column + 1)

    def _count(self, place: Place, depth: int) -> None:
        self._value_count += 1
        if self._value_count > VALUES_MAX:
            raise SpecError(f"{self._source} holds more than {VALUES_MAX} values", why="aliases count each time")
        if depth > DEPTH_MAX:
            raise SpecError(f"{place}: nested deeper than {DEPTH_MAX} levels")


def plain_value(text: str) -> Any:
    """Return what a scalar without quotes stands for: null, a boolean, a number, or its text."""
    for pattern, convert in _SCALARS:
        if pattern.fullmatch(text):
            return convert(text)
    return text


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)
