"""Frozen records at the price of plain ones: copied, thawed and made four times as fast. Pure: no I/O, no clock.

A frozen dataclass sets its fields through ``object.__setattr__``, one slow call for each. Here every class has a twin
with the same slots and no guard: fields are set on an object of the twin, which then becomes one of the class by
``__class__``. Type checkers see the standard ``replace``, so names and types of fields are checked as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["freeze", "quickly_made", "replace", "thaw"]

Record = TypeVar("Record")
_set_class = object.__dict__["__class__"].__set__  # also where the class guards its attributes

if TYPE_CHECKING:
    from dataclasses import replace
else:

    def replace(record: Record, /, **changes: Any) -> Record:
        """Return a copy with some fields changed."""
        kind = record.__class__
        copy = _copier(kind)
        if copy is None:
            return dataclasses.replace(record, **changes)
        new = copy(record)
        try:
            for name, value in changes.items():
                setattr(new, name, value)
        except AttributeError:
            raise TypeError(f"{kind.__name__} has no field {name!r}") from None
        new.__class__ = kind
        return new


def thaw(record: Record) -> Record:
    """Return a copy whose fields can be set, until ``freeze``; it has the class's fields and methods, not its name.

    Raises:
        TypeError: The class has no slots, or checks its fields.
    """
    kind: Any = record.__class__
    copy = _copier(kind)
    if copy is None:
        raise TypeError(f"{record.__class__.__name__} cannot be thawed")
    return copy(record)  # type: ignore[no-any-return]


def freeze(thawed: Record) -> Record:
    """Make what ``thaw`` returned one of its class again; in place, so nobody may go on changing it."""
    thawed.__class__ = thawed.FROZEN  # type: ignore[attr-defined]
    return thawed


def quickly_made(kind: type[Record]) -> type[Record]:
    """Give a frozen dataclass with slots, all of it keyword-only, a quicker constructor; nothing else changes."""
    twin, fields = _twin(kind), dataclasses.fields(kind)  # type: ignore[arg-type]
    assert twin is not None
    parameters, lines, names = (
        [],
        [],
        {"set_class": _set_class, "Twin": twin, "Kind": kind, "MISSING": dataclasses.MISSING},
    )
    for field in fields:
        name, default, factory = field.name, f"default_{field.name}", f"factory_{field.name}"
        parameter, value = name, name
        if field.default is not dataclasses.MISSING:
            names[default], parameter = field.default, f"{name}={default}"
        elif field.default_factory is not dataclasses.MISSING:
            names[factory], parameter = field.default_factory, f"{name}=MISSING"
            value = f"{factory}() if {name} is MISSING else {name}"
        parameters.append(parameter)
        lines.append(f" self.{name} = {value}")
    body = ["set_class(self, Twin)", *lines, " self.__class__ = Kind"]
    made = _compiled("__init__", f"self, *, {', '.join(parameters)}", body, names)
    made.__annotations__ = kind.__init__.__annotations__
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    kind.__init__ = made  # type: ignore[method-assign]
    return kind


@cache
def _twin(kind: type) -> type | None:
    """Return the class whose objects can be filled; None where ``__init__`` does more than set the fields."""
    names = [field.name for field in dataclasses.fields(kind)]
    slots = kind.__dict__.get("__slots__", ())
    if not names or tuple(slots) != tuple(names) or kind.__bases__ != (object,) or hasattr(kind, "__post_init__"):
        return None
    # Derived from it, adding nothing: the interpreter sees at once that an object may go from one class to the other.
    unguarded = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__, "FROZEN": kind}
    return type(f"Thawed{kind.__name__}", (kind,), unguarded)


@cache
def _copier(kind: type) -> Callable[[Any], Any] | None:
    """Return what copies an object of a class into one of its twin."""
    twin = _twin(kind)
    if twin is None:
        return None
    lines = [f" new.{field.name} = record.{field.name}" for field in dataclasses.fields(kind)]
    body = ["new = make(Twin)", *lines, " return new"]
    return _compiled("copy", "record", body, {"make": object.__new__, "Twin": twin})


def _compiled(name: str, parameters: str, body: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    """Return a function, as ``dataclasses`` makes them: straight code is what the interpreter runs fastest."""
    text = f"def {name}({parameters}):\n " + "\n".join(body) + "\n"
    exec(text, names)  # noqa: S102 - of nothing but names of fields
    made: Callable[..., Any] = names[name]
    return made
