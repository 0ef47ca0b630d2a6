"""The dynamic program over (next layer, stages left, zone, kind) that finds the least chain. Pure: no I/O, no clock.

Shapes: t questions at once, k kinds, u distinct stages, l layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from arena.planner.candidates import Flags, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A chain that might be cheap enough: its cuts and kinds."""

    cuts: tuple[int, ...]
    kinds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recursion:
    """What the program runs over.

    Args:
        which: The distinct stage that a first layer and an end make, ``[l, l + 1]``.
        fits: Which kinds hold which stages, by the stages left, ``[k, u]`` each.
        members: The kinds of each zone.
        home: The zone of each kind, ``[k]``.
        same_fits: Whether the same kinds hold the same stages as with one stage less.
        crossing_s: Least detour of a message from one zone to another, both ends together, ``[z, z, l + 1]``.
    """

    which: Ints
    fits: Sequence[Flags]
    members: Sequence[Ints]
    home: Ints
    crossing_s: Floats
    same_fits: Sequence[bool] = field(init=False)

    def __post_init__(self) -> None:
        same = [index > 0 and np.array_equal(one, self.fits[index - 1]) for index, one in enumerate(self.fits)]
        object.__setattr__(self, "same_fits", same)

    @property
    def layer_count(self) -> int:
        """Layers of the model."""
        return len(self.which)

    def totals(
        self,
        cost: Floats,
        after: Floats | None,
        crossing: Floats,
        *,
        last: Floats | None = None,
        pp: int | None = None,
        trace: Trace | None = None,
    ) -> Floats:
        """Return the least sums over chains of 1, 2, ... stages, ``[stages, t]``.

        Args:
            cost: Of stages, ``[t, k, u]``; ``[1, k, u]`` where only what follows first stages differs.
            after: Cost of what follows first stages, ``[t, stages or 1, k, l + 1]``.
            crossing: Cost of a second of a message between zones, ``[t]``.
            last: What last stages cost beyond that, ``[t, k, u]``.
        """
        layers, depth, count = self.layer_count, pp or len(self.fits), len(cost)
        zones, ahead_of = len(self.members), self.which[0]
        found = np.full((depth, count if after is None else max(count, len(after))), np.inf)
        rest = np.full((count, zones, layers + 1), np.inf)
        rest[:, :, layers] = 0.0
        for index in range(depth):
            if index < 2 or not self.same_fits[index]:
                each = cost + last if index == 0 and last is not None else cost
                masked = np.where(self.fits[index][None], each, np.inf)
                if trace is not None:
                    kind = np.stack([own[masked[:, own].argmin(axis=1)] for own in self.members], axis=1)
                stages = self._least(masked)[:, :, self.which]
                front = masked[:, :, ahead_of]
            to = np.zeros((1, 1, 1), dtype=np.int64)
            ahead = rest
            if zones > 1:
                over = rest[:, None] + crossing[:, None, None, None] * self.crossing_s[None]
                to = over.argmin(axis=2)
                ahead = over.min(axis=2)
            first = front + (ahead[:, self.home] if zones > 1 else ahead)
            if after is not None:
                first = first + after[:, min(index, after.shape[1] - 1)]
            flat = first.reshape(len(first), -1)
            through = stages + ahead[:, :, None, :]
            rest = np.full((count, zones, layers + 1), np.inf)
            if trace is None:
                found[index] = flat.min(axis=1)
                through.min(axis=3, out=rest[:, :, :layers])
                continue
            end, best = through.argmin(axis=3), flat.argmin(axis=1)
            found[index] = flat[np.arange(len(first)), best]
            rest[:, :, :layers] = np.take_along_axis(through, end[..., None], axis=3)[..., 0]
            trace.first.append(best)
            trace.end.append(end)
            trace.kind.append(kind)
            trace.to.append(np.broadcast_to(to, rest.shape))
            trace.home = self.home
        return found

    def _least(self, cost: Floats) -> Floats:
        """Return the least over the kinds of each zone, ``[t, z, u]``."""
        if len(self.members) == 1:
            least: Floats = cost.min(axis=1, keepdims=True)
            return least
        return np.stack([cost[:, own].min(axis=1) for own in self.members], axis=1)


@dataclass(slots=True, kw_only=True)
class Trace:
    """Where the program went, by stage from the last; called with a question it returns the chain."""

    which: Ints
    first: list[Ints] = field(default_factory=list)
    end: list[Ints] = field(default_factory=list)
    kind: list[Ints] = field(default_factory=list)
    to: list[Ints] = field(default_factory=list)
    home: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __call__(self, interval: int) -> Found:
        """Return the least chain of a question, by its number."""
        width = self.end[0].shape[2] + 1
        kind, end = divmod(int(self.first[-1][interval]), width)
        kinds, cuts, zone = [kind], [0, end], int(self.home[kind])
        for index in range(len(self.end) - 2, -1, -1):
            at = cuts[-1]
            zone = int(self.to[index + 1][interval, zone, at])
            end = int(self.end[index][interval, zone, at])
            kinds.append(int(self.kind[index][interval, zone, self.which[at, end]]))
            cuts.append(end)
        return Found(cuts=tuple(cuts), kinds=tuple(kinds))
