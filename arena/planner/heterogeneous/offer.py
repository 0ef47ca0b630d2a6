"""What a heterogeneous search is asked and what it answers, as frozen values. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from arena.domain.cluster import GpuType
from arena.domain.grid import Estimate
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason
from arena.errors import SpecError
from arena.planner.communication import Tier

PartKey = tuple[str, str]
"""GPU type and zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """GPUs of one type in one zone, in nodes that are alike."""

    gpu_type: GpuType
    gpu_count: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        if self.gpu_count < 1 or self.gpus_per_node < 1:
            raise SpecError(
                "an offer holds at least one GPU in nodes of at least one",
                why=f"{self.gpu_type.name}: {self.gpu_count} GPUs in nodes of {self.gpus_per_node}",
            )

    @property
    def node_count(self) -> int:
        """Nodes, the last one perhaps not whole."""
        return -(-self.gpu_count // self.gpus_per_node)


Offer = Mapping[PartKey, Offered]


def alike(offer: Offer) -> list[int]:
    """Return for each part, in order, the first one with the same GPUs in nodes of the same size."""
    parts = [(offer[key].gpu_type, offer[key].gpus_per_node) for key in sorted(offer)]
    return [parts.index(part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneLinks:
    """What lies between zones, by pair (either order). Inside a zone the network of the GPU types counts.

    Args:
        tiers: Bandwidth per GPU and direction, latency.
        usd_per_byte: Price of what crosses; free where it is not named.
    """

    tiers: Mapping[tuple[str, str], Tier] = field(default_factory=dict)
    usd_per_byte: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def tier(self, one: str, other: str) -> Tier:
        """Return the link between two zones.

        Raises:
            SpecError: Nobody said.
        """
        found = self.tiers.get((one, other)) or self.tiers.get((other, one))
        if found is None:
            known = ", ".join(sorted("-".join(pair) for pair in self.tiers)) or "none"
            raise SpecError(f"no link between zones {one} and {other}", why=f"known: {known}", fix="name its bandwidth")
        return found

    def price(self, one: str, other: str) -> float:
        """Return dollars per byte between two zones."""
        return self.usd_per_byte.get((one, other), self.usd_per_byte.get((other, one), 0.0))


class Objective(StrEnum):
    """What is made small."""

    THROUGHPUT = "throughput"
    COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a plan must keep to; None where anything goes.

    Args:
        usd_per_step_max: Budget of an iteration, transfers included.
        steps_per_s_min: Least throughput.
        deadline_s: Time in which ``steps`` have to be done.
        steps: Steps to do before the deadline.
        gpu_count_min, gpu_count_max: GPUs of a plan, over all parts.
        node_count_max: Nodes of a plan, over all parts.
    """

    usd_per_step_max: float | None = None
    steps_per_s_min: float | None = None
    deadline_s: float | None = None
    steps: int | None = None
    gpu_count_min: int | None = None
    gpu_count_max: int | None = None
    node_count_max: int | None = None

    def __post_init__(self) -> None:
        given = (self.usd_per_step_max, self.steps_per_s_min, self.deadline_s, self.steps)
        counts = (self.gpu_count_min, self.gpu_count_max, self.node_count_max)
        if any(value is not None and not value > 0 for value in (*given, *counts)):
            raise SpecError("constraints are positive numbers", why=f"got {(*given, *counts)}")
        if self.gpu_count_min and self.gpu_count_max and self.gpu_count_min > self.gpu_count_max:
            raise SpecError(f"no plan has at least {self.gpu_count_min} and at most {self.gpu_count_max} GPUs")
        if (self.deadline_s is None) != (self.steps is None):
            raise SpecError("a deadline needs the number of steps, and the other way round")

    @property
    def iter_time_s_max(self) -> float:
        """Longest step that throughput and deadline allow."""
        least = 1.0 / self.steps_per_s_min if self.steps_per_s_min else float("inf")
        return min(least, self.deadline_s / self.steps if self.deadline_s and self.steps else float("inf"))

    @property
    def of_gpus(self) -> Constraints:
        """What they say of GPUs and nodes alone: there is no giving way in it."""
        return replace(self, usd_per_step_max=None, steps_per_s_min=None, deadline_s=None, steps=None)

    def allows(self, gpu_count: int) -> bool:
        """Whether a plan may have so many GPUs."""
        return (self.gpu_count_min or 0) <= gpu_count <= (self.gpu_count_max or gpu_count)

    def keeps(self, estimate: Estimate) -> bool:
        """Whether a plan with this estimate keeps to them, its GPUs aside."""
        budget = self.usd_per_step_max
        return estimate.iter_time_s <= self.iter_time_s_max and (budget is None or estimate.usd_per_step <= budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which plans are looked at.

    Args:
        unequal_micro_batches: Replicas may take unequal numbers of micro-batches, stages unequal numbers of replicas.
        pp_max, tp_max, micro_batch_max: Bounds of the degrees.
        recompute: Whether full recomputation is tried where plans do not fit without.
        allow_unsupported: Offer also what the worker does not run, as long as some program could.
        gap: Stop when the bound is within this share of the best plan.
        price_steps_max: How often prices are changed to prove a bound, for each pipeline depth.
        proves: Whether to spend time on a bound that is close.
        one_node: Whether plans on a single node are looked at apart.
    """

    unequal_micro_batches: bool = True
    pp_max: int = 8
    tp_max: int = 8
    micro_batch_max: int = 16
    recompute: bool = True
    allow_unsupported: bool = False
    gap: float = 0.005
    price_steps_max: int = 8
    proves: bool = True
    one_node: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How much was looked at."""

    tables: int = 0
    programs: int = 0
    mixes: int = 0
    judged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeterogeneousResult:
    """The best plan found, and what is certain about all others.

    Args:
        plan, estimate: None where nothing fits; ``reasons`` then say why.
        score: What was made small, of this plan: seconds, dollars, or price minus value.
        bound: No plan of the space has a smaller score.
        transfer_usd_per_step: Of ``estimate.usd_per_step``, what crosses zones.
    """

    plan: ParallelPlan | None
    estimate: Estimate | None
    score: float
    bound: float
    transfer_usd_per_step: float = 0.0
    statistics: Statistics = Statistics()
    reasons: tuple[Reason, ...] = ()

    @property
    def gap(self) -> float:
        """Share by which the score could at most be better."""
        if self.plan is None:
            return 0.0
        return max(0.0, (self.score - self.bound) / abs(self.score)) if self.score else 0.0


Value = Callable[[float], float]
"""Worth of a step time, in the unit of the prices; it does not rise with the time."""
