"""What the worker runtime can run, as the planner sees it. Pure: no I/O, no clock.

The worker has the last word at launch; this table only keeps plans out of grids that it would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from arena.domain.job import ModelSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, Schedule

BYTE_VALUES = 256


class Capability(Protocol):
    """Says which plans a worker runs."""

    def tensor_parallel_dimensions(self, model: ModelSpec) -> dict[str, int]:
        """Return the sizes that a tensor-parallel degree must divide, by name, the most telling first."""
        ...

    def unsupported(self, train: TrainSpec, plan: ParallelPlan) -> str | None:
        """Return why the worker cannot run a plan, None when it can."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapability:
    """The torch worker: GPT and Llama, uniform plans over a pp x dp x tp mesh."""

    zero_stages: frozenset[int] = frozenset({0, 1, 2, 3})
    schedules: frozenset[Schedule] = frozenset(Schedule)

    def tensor_parallel_dimensions(self, model: ModelSpec) -> dict[str, int]:
        """Heads, key/value heads, feed-forward width and vocabulary are sharded, so tp divides them."""
        return {
            "heads": model.heads,
            "kv_heads": model.kv_head_count,
            "ffn_hidden": model.ffn_width,
            "vocab_size": model.vocab_size,
        }

    def unsupported(self, train: TrainSpec, plan: ParallelPlan) -> str | None:
        """Return the first thing in a plan that the worker does not do."""
        return next(self._refusals(train, plan), None)

    def _refusals(self, train: TrainSpec, plan: ParallelPlan) -> Iterator[str]:
        yield from self._model_refusals(train, plan)
        if not plan.is_uniform:
            yield "the worker's mesh is the same on every stage"
        if plan.zero not in self.zero_stages:
            yield f"zero in {format_set(sorted(self.zero_stages))}, got {plan.zero}"
        if plan.schedule not in self.schedules:
            yield f"schedule {plan.schedule.value} is not built"
        if plan.schedule is Schedule.INTERLEAVED and plan.pp < 2:
            yield "the interleaved schedule needs pp of at least 2"
        if any(stage.layer_count < plan.virtual_stage_count for stage in plan.stages):
            yield f"a stage with fewer layers than its {plan.virtual_stage_count} virtual stages"
        if plan.expert_parallel > 1:
            yield f"the model has no experts for ep{plan.expert_parallel}"
        if plan.sequence_parallel:
            yield "sequence parallelism is not built"

    def _model_refusals(self, train: TrainSpec, plan: ParallelPlan) -> Iterator[str]:
        if train.precision == "fp16":
            yield "precision fp16 needs loss scaling, which the worker does not do; use bf16 or fp32"
        if train.data.source != "tokens" and train.model.vocab_size < BYTE_VALUES:
            yield f"byte-level text needs vocab_size of at least {BYTE_VALUES}, it is {train.model.vocab_size}"
        if train.model.tied_embeddings and plan.pp > 1:
            yield f"tied embeddings live on one pipeline stage, the plan has pp{plan.pp}"
        for name, size in self.tensor_parallel_dimensions(train.model).items():
            if size % plan.tp:
                yield f"{name} = {size}: tp in {format_set(divisors(size))}; {plan.tp} does not divide"


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number in rising order."""
    small = [candidate for candidate in range(1, int(number**0.5) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def format_set(numbers: list[int]) -> str:
    """Write numbers as people write a set: ``{1, 2, 4}``."""
    return "{" + ", ".join(map(str, numbers)) + "}"
