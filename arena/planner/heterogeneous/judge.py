"""What a step takes, costs and needs under a plan over mixed GPUs: the judge of all plans. Pure: no I/O, no clock.

Stages are priced by ``arena.planner.cost.evaluate`` (see ``stages``), messages by
``traffic``, so a plan on one type costs what the uniform search says. Replicas with the same index form a
chain; the closed form of ``arena.planner.pipeline`` holds for each chain, and the last one counts. Where micro-batches
leave their chain (stages with unequal replicas), every pass is run instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from arena.domain.grid import Estimate
from arena.domain.job import TrainSpec
from arena.domain.micro_batches import MicroBatch, micro_batches
from arena.domain.parallel import ParallelPlan, Schedule
from arena.domain.reason import Reason, ReasonCode, reason
from arena.errors import SpecError
from arena.planner.candidates import Floats
from arena.planner.cost import MODELLED_RELATIVE_ERROR
from arena.planner.heterogeneous.offer import Offer, PartKey, ZoneLinks
from arena.planner.heterogeneous.passes import step_s
from arena.planner.heterogeneous.placed import PlacedKind, PlacedStage, place
from arena.planner.heterogeneous.stages import StageFigures, stage_figures
from arena.planner.heterogeneous.tables import Kind, StageTable
from arena.planner.heterogeneous.traffic import Traffic
from arena.planner.memory import USABLE_SHARE
from arena.planner.pipeline import pipeline_time_s, step_end_s
from arena.units import GIB

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A plan's figures.

    Args:
        gpu_counts: By part of the offer.
        transfer_usd: What crosses zones in a step.
        refusal: Why the offer does not hold the plan, None where it does.
    """

    estimate: Estimate
    gpu_counts: dict[PartKey, int]
    transfer_usd: float
    refusal: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    """Seconds: of one micro-batch on each replica, and what follows each stage."""

    batches: tuple[MicroBatch, ...]
    replica_s: list[Floats]
    after_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges plans of one job on one offer; what it worked out of a stage it keeps."""

    train: TrainSpec
    offer: Offer
    links: ZoneLinks = field(default_factory=ZoneLinks)
    _figures: dict[tuple[object, ...], StageFigures] = field(default_factory=dict)
    _traffic: list[Traffic] = field(default_factory=list)

    def learn(self, plan: ParallelPlan, table: StageTable) -> None:
        """Take the figures of a plan's stages from a table of this job and offer."""
        keys, first, is_alone = sorted(self.offer), 0, plan.gpu_count == 1
        for stage, one in zip(place(plan, self.offer), plan.stages, strict=True):
            end = first + one.layer_count
            for kind in set(stage.kinds):
                index = table.kinds.index(Kind(part=keys.index(kind[0]), tp=kind[1]))
                size = float(table.memory_bytes[index, first, end])
                size += max(stage.left - 2, 0) * float(table.memory_step_bytes[index, first, end])
                figures = StageFigures(time_s=float(table.compute_s[index, first, end]), memory_bytes=size)
                self._figures.setdefault(_stage_key(plan, stage, kind, is_alone=is_alone), figures)
            first = end

    def fresh(self) -> Judge:
        """Return a judge that has learned nothing."""
        return Judge(train=self.train, offer=self.offer, links=self.links)

    @property
    def traffic(self) -> Traffic:
        """What prices messages."""
        if not self._traffic:
            self._traffic.append(Traffic(train=self.train, offer=self.offer, links=self.links))
        return self._traffic[0]

    def judge(self, plan: ParallelPlan) -> Judgement:
        """Return a plan's figures by the closed form.

        Raises:
            SpecError: It names GPUs that are not offered, or zones that nothing links.
        """
        placed = place(plan, self.offer)
        timing = self._timing(plan, placed)
        stages_s, pipeline_s, iter_time_s = _closed_form(plan, timing)
        gpu_counts = dict(sorted(sum((stage.gpu_counts for stage in placed), Counter[PartKey]()).items()))
        transfer_usd = self.traffic.usd(plan, placed, timing.batches)
        memory = [sorted(self._memory(plan, stage).items()) for stage in placed]
        return Judgement(
            estimate=Estimate(
                iter_time_s=iter_time_s,
                memory_bytes_by_stage=tuple(max(size for _, size in stage) for stage in memory),
                breakdown_s={
                    "stages": stages_s,
                    "pipeline_bubble": pipeline_s - stages_s,
                    "data_parallel_and_update": iter_time_s - pipeline_s,
                },
                relative_error=MODELLED_RELATIVE_ERROR,
                usd_per_step=iter_time_s * self._usd_per_s(gpu_counts) + transfer_usd,
            ),
            gpu_counts=gpu_counts,
            transfer_usd=transfer_usd,
            refusal=self._refusal(gpu_counts, memory),
        )

    def simulate_s(self, plan: ParallelPlan) -> float:
        """Return the step time by running every pass in the order in which the worker does."""
        timing = self._timing(plan, place(plan, self.offer))
        return step_s(plan, timing.batches, timing.replica_s, timing.after_s.tolist())

    def placed(self, plan: ParallelPlan) -> list[PlacedStage]:
        """Return which GPUs each stage of a plan gets."""
        return place(plan, self.offer)

    def memory_by_kind(self, plan: ParallelPlan) -> list[dict[PlacedKind, int]]:
        """Return the peak bytes of each stage on each kind of GPUs that it is on."""
        return [self._memory(plan, stage) for stage in place(plan, self.offer)]

    def _timing(self, plan: ParallelPlan, placed: Sequence[PlacedStage]) -> _Timing:
        batches = micro_batches(plan, self.train.global_batch)
        sends = self.traffic.sends_s(plan, placed, batches)
        seconds = []
        for stage, sent in zip(placed, sends, strict=True):
            by_kind = {kind: figures.time_s for kind, figures in self._stage(plan, stage).items()}
            seconds.append(np.array([by_kind[kind] for kind in stage.kinds]) + sent)
        return _Timing(batches=batches, replica_s=seconds, after_s=self.traffic.after_s(placed))

    def _stage(self, plan: ParallelPlan, stage: PlacedStage) -> dict[PlacedKind, StageFigures]:
        found: dict[PlacedKind, StageFigures] = {}
        is_alone = plan.gpu_count == 1
        for kind in sorted(set(stage.kinds)):
            known = _stage_key(plan, stage, kind, is_alone=is_alone)
            if known not in self._figures:
                self._figures[known] = stage_figures(
                    self.train,
                    self.offer[kind[0]],
                    stage.units,
                    tp=kind[1],
                    stages_left=stage.left,
                    setting=(plan.recompute, plan.micro_batch_size),
                    is_alone=is_alone,
                )
            found[kind] = self._figures[known]
        return found

    def _memory(self, plan: ParallelPlan, stage: PlacedStage) -> dict[PlacedKind, int]:
        return {kind: int(figures.memory_bytes) for kind, figures in self._stage(plan, stage).items()}

    def _usd_per_s(self, gpu_counts: dict[PartKey, int]) -> float:
        per_hour = sum(self.offer[key].gpu_type.usd_per_hour * count for key, count in gpu_counts.items())
        return per_hour / _SECONDS_PER_HOUR

    def _refusal(
        self, gpu_counts: dict[PartKey, int], memory: Sequence[Sequence[tuple[PlacedKind, int]]]
    ) -> Reason | None:
        for key, count in gpu_counts.items():
            if count > self.offer[key].gpu_count:
                free = self.offer[key].gpu_count
                return reason(ReasonCode.INSUFFICIENT_GPUS, needed=count, free=free, total=free, gpu_type="/".join(key))
        for stage, sizes in enumerate(memory):
            for (key, _), size in sizes:
                limit = USABLE_SHARE * self.offer[key].gpu_type.memory_bytes
                if size > limit:
                    return reason(ReasonCode.MEMORY, needed_gib=size / GIB, stage=stage, capacity_gib=limit / GIB)
        return None


def evaluate_plan(train: TrainSpec, plan: ParallelPlan, offer: Offer, links: ZoneLinks | None = None) -> Judgement:
    """Return the figures of one plan over mixed GPUs by the closed form.

    Raises:
        SpecError: The plan shards state, interleaves, or names GPUs that are not offered.
    """
    check_mixed(plan)
    return Judge(train=train, offer=offer, links=links or ZoneLinks()).judge(plan)


def check_mixed(plan: ParallelPlan) -> None:
    """Refuse plans that nobody can judge over mixed GPUs.

    Raises:
        SpecError: The plan shards state, interleaves, or spreads experts or the sequence.
    """
    uses = {
        f"zero{plan.zero}": plan.zero > 0,
        plan.schedule.value: plan.schedule is not Schedule.ONE_F_ONE_B,
        f"ep{plan.expert_parallel}": plan.expert_parallel > 1,
        "sp": plan.sequence_parallel,
    }
    if any(uses.values()):
        raise SpecError(
            "only plans without sharding, ep and sp under 1F1B are judged over mixed GPUs",
            why=f"{plan} has {', '.join(name for name, is_used in uses.items() if is_used)}",
            fix="leave that out, or name no GPU types and zones",
        )


def _stage_key(plan: ParallelPlan, stage: PlacedStage, kind: PlacedKind, *, is_alone: bool) -> tuple[object, ...]:
    return (kind, stage.units, stage.left, plan.micro_batch_size, plan.recompute, is_alone)


def _closed_form(plan: ParallelPlan, timing: _Timing) -> tuple[float, float, float]:
    """Return the busiest stage's time, the pipeline's, and the step's.

    Where micro-batches stay with their chain of replicas, each chain is a pipeline of its own. Where they cross, no
    closed form holds and the passes are run.
    """
    if any(len(set(batch.replicas)) > 1 for batch in timing.batches):
        end_s = step_s(plan, timing.batches, timing.replica_s, timing.after_s.tolist())
        stages_s = max(
            Counter(batch.replicas[stage] for batch in timing.batches)[index] * float(one)
            for stage, each in enumerate(timing.replica_s)
            for index, one in enumerate(each)
        )
        return stages_s, max(stages_s, end_s - float(timing.after_s.max())), end_s
    chains = np.stack(timing.replica_s, axis=1)
    taken = Counter(batch.replicas[0] for batch in timing.batches)
    counts = np.array([[taken[index]] for index in range(len(chains))], dtype=np.int64)
    pipeline_s = pipeline_time_s(chains, counts, np.ones(len(chains), dtype=np.int64))
    ends_s = step_end_s(pipeline_s, chains, np.broadcast_to(timing.after_s, chains.shape))
    return float((counts * chains).max()), float(pipeline_s.max()), float(ends_s.max())
