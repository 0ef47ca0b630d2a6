"""``dataclasses.replace`` for the engine's records, four times as fast. Pure: no I/O, no clock.

The standard one calls ``__init__``, which sets every field of a frozen class through ``object.__setattr__``; here slots
are copied. Type checkers see the standard one, so names and types of fields are checked as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace
else:
    import dataclasses
    from collections.abc import Callable
    from functools import cache
    from operator import attrgetter
    from typing import Any, TypeVar

    Record = TypeVar("Record")
    Writer = Callable[[Any, Any], None]

    def replace(record: Record, /, **changes: Any) -> Record:
        """Return a copy with some fields changed."""
        kind = record.__class__
        read, writers, writer_of = _slots(kind)
        if read is None:
            return dataclasses.replace(record, **changes)
        new = kind.__new__(kind)
        for write, value in zip(writers, read(record)):  # noqa: B905 - of equal length by construction
            write(new, value)
        for name, value in changes.items():
            writer_of[name](new, value)
        return new

    @cache
    def _slots(kind: type) -> tuple[Callable[[Any], tuple[Any, ...]] | None, tuple[Writer, ...], dict[str, Writer]]:
        """Return how a class's slots are read and written; nothing where its ``__init__`` does more than set them."""
        fields = dataclasses.fields(kind)
        names = [field.name for field in fields]
        slots = set(getattr(kind, "__slots__", ()))
        if len(names) < 2 or not slots.issuperset(names) or hasattr(kind, "__post_init__"):
            return None, (), {}
        writer_of = {name: getattr(kind, name).__set__ for name in names}
        return attrgetter(*names), tuple(writer_of.values()), writer_of
