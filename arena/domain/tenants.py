"""Tenants: projects with guaranteed GPUs, which others may use while they lie idle. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arena.errors import SpecError
from arena.units import format_count

ANY_TYPE = "any"
"""Stands for GPUs of all types together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """GPUs that a project has whenever it has work for them.

    Args:
        gpu_count_by_type: So many of each type; or, under ``ANY_TYPE`` and then alone, of all types together.
    """

    gpu_count_by_type: Mapping[str, int]

    def __post_init__(self) -> None:
        if ANY_TYPE in self.gpu_count_by_type and len(self.gpu_count_by_type) > 1:
            raise SpecError("a guarantee is of named GPU types, or of any", fix="leave one out")
        for gpu_type, count in self.gpu_count_by_type.items():
            if count < 0:
                raise SpecError(f"a guarantee of {format_count(count, f'{gpu_type} GPU')}", fix="give 0 or more")

    @property
    def gpu_count(self) -> int:
        """All of them."""
        return sum(self.gpu_count_by_type.values())

    @property
    def is_of_any_type(self) -> bool:
        """Whether it holds for all types together."""
        return ANY_TYPE in self.gpu_count_by_type

    def of(self, gpu_type: str) -> int:
        """Return how many GPUs of this type are guaranteed by name."""
        return self.gpu_count_by_type.get(gpu_type, 0)

    def __str__(self) -> str:
        if self.is_of_any_type:
            return f"{self.gpu_count} of any type"
        return ", ".join(f"{count} {gpu_type}" for gpu_type, count in sorted(self.gpu_count_by_type.items()))


Guarantees = Mapping[str, Guarantee]
"""By project; who is not named is guaranteed nothing."""


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def too_much(guarantees: Guarantees, gpu_count_by_type: Mapping[str, int]) -> Iterator[str]:
    """Yield what is guaranteed in all beyond what a cluster has, in words."""
    named: Counter[str] = Counter()
    for guarantee in guarantees.values():
        named.update(guarantee.gpu_count_by_type)
    named.pop(ANY_TYPE, None)
    for gpu_type, count in sorted(named.items()):
        has = gpu_count_by_type.get(gpu_type, 0)
        if count > has:
            yield f"{format_count(count, f'{gpu_type} GPU')} {_are(count)} guaranteed in all, the cluster has {has}"
    count, has = sum(one.gpu_count for one in guarantees.values()), sum(gpu_count_by_type.values())
    if count > has:
        yield f"{format_count(count, 'GPU')} {_are(count)} guaranteed in all, the cluster has {has}"
