"""The cost model: what a step takes and needs under many plans at once, as arrays. Pure: no I/O, no clock.

* Compute of a unit and micro-batch: see ``arena.planner.compute``.
* Tensor parallelism: two all-reduces a transformer layer in each direction, not overlapped; sequence parallelism does
  each as a reduce-scatter and an all-gather, which move as much.
* Expert parallelism: two exchanges a layer in each direction, tokens there and results back; loads are taken as even.
* Pipeline (stages may differ): sum of the stage times + (m - 1) x the slowest, divided warm-up when interleaved. A
  message holds up its sender, and in some programs its receiver as well.
* Data parallelism: one synchronisation after a stage's last backward, hierarchical across nodes. The step ends at the
  maximum over stages of (when the stage drains + its synchronisation); stage i drains while the earlier ones still run
  backward. ZeRO-2 and ZeRO-3 scatter gradients in every micro-batch, ZeRO-3 gathers a stage's weights twice in each.
  What of this overlaps with computing is the program's doing: see ``arena.planner.implementation``.
* Memory of each stage: see ``arena.planner.memory``.

Shapes: n candidates, p the deepest pipeline among them, v the most chunks of a stage; ``[n]`` and ``[n, p]`` arrays,
stages beyond a plan's depth hold zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import Candidates, Floats, Ints
from arena.planner.compute import PartTimes
from arena.planner.holdings import holdings
from arena.planner.implementation import WORKER, Implementation
from arena.planner.memory import memory_by_stage, operators_of
from arena.planner.model import ModelCost, model_cost
from arena.planner.network import Network, Place
from arena.planner.pipeline import pipeline_time_s, step_end_s
from arena.planner.terms import Setting, StageTerms, stage_terms

MODELLED_RELATIVE_ERROR = 0.15
"""Expected error of an estimate without any measurement, one standard deviation: that of published runs which the
constants never saw (256 configurations, mean absolute error 11.4 %; experiments/planner_accuracy, 2026-11-29)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Predictions as arrays: ``iter_time_s`` and each part of ``breakdown_s`` ``[n]``, memory ``[n, p]``."""

    iter_time_s: Floats
    breakdown_s: Mapping[str, Floats]
    memory_bytes_by_stage: Floats
    relative_error: Floats
    usd_per_step: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The steps of some candidates on their places."""

    candidates: Candidates
    terms: StageTerms
    stage_s: Floats
    pipeline_s: Floats
    iter_time_s: Floats

    def breakdown_s(self, rows: Ints) -> dict[str, Floats]:
        """Split steps along their busiest stage; what is left over is the update that nothing hides."""
        stage_s, iter_time_s, pipeline_s = self.stage_s[rows], self.iter_time_s[rows], self.pipeline_s[rows]
        count = np.broadcast_to(self.candidates.micro_batch_count[rows], stage_s.shape)
        busy_s = count * stage_s
        busiest = busy_s.argmax(axis=1)
        at = np.arange(len(rows)), busiest
        exposed_s = iter_time_s - pipeline_s
        sync = self.terms.sync
        data_s = np.minimum(sync.seconds.max(axis=1)[sync.which[rows]], exposed_s)
        return {
            "expert_exchange": np.zeros(len(rows)),
            **{name: count[at] * term.at(rows, busiest) for name, term in self.terms.of_micro_batch.items()},
            "pipeline_bubble": pipeline_s - busy_s[at],
            "data_parallel": data_s,
            "update": exposed_s - data_s,
        }


def evaluate(
    train: TrainSpec,
    gpu_type: GpuType,
    group: GpuGroup,
    candidates: Candidates,
    *,
    implementation: Implementation = WORKER,
    calibration: Calibration = CALIBRATION,
    model: ModelCost | None = None,
) -> Estimates:
    """Predict time and memory of every candidate on a group of one GPU type.

    Args:
        model: Weights of another program's model, with as many layers; by default those of the worker's.
    """
    place = Place(gpu_type=gpu_type, group=group)
    network = Network.of((place,), calibration)
    model = model or model_cost(train.model, operators_of(gpu_type, implementation))
    step = timing(train, network, candidates, model, implementation=implementation)
    held = holdings(model, candidates)
    memory = memory_by_stage(model, train, gpu_type, candidates, held, implementation=implementation)
    return estimates_of(step, np.arange(len(candidates)), memory.total, place.usd_per_s)


def estimates_of(step: Timing, rows: Ints, memory_bytes: Floats, usd_per_s: Floats | float) -> Estimates:
    """Return what is known of some candidates, with their memory and the prices of their places."""
    iter_time_s = step.iter_time_s[rows]
    return Estimates(
        iter_time_s=iter_time_s,
        breakdown_s=step.breakdown_s(rows),
        memory_bytes_by_stage=memory_bytes,
        relative_error=np.full(len(rows), MODELLED_RELATIVE_ERROR),
        usd_per_step=iter_time_s * usd_per_s,
    )


def iter_times_s(
    train: TrainSpec,
    gpu_type: GpuType,
    group: GpuGroup,
    candidates: Candidates,
    *,
    implementation: Implementation = WORKER,
    calibration: Calibration = CALIBRATION,
) -> Floats:
    """Predict only the time of every candidate, ``[n]``: what ``evaluate`` says, in less time."""
    network = Network.of((Place(gpu_type=gpu_type, group=group),), calibration)
    model = model_cost(train.model, operators_of(gpu_type, implementation))
    return timing(train, network, candidates, model, implementation=implementation).iter_time_s


def timing(
    train: TrainSpec,
    network: Network,
    candidates: Candidates,
    model: ModelCost,
    *,
    implementation: Implementation = WORKER,
    part_times: Mapping[str, PartTimes] | None = None,
) -> Timing:
    """Predict the step of every candidate on its place; what is the same on several places is computed once.

    Args:
        network: Of places on whose GPUs parts keep the same (``memory_kind``).
        part_times: What parts take, by GPU type, where it is known for more candidates already.
    """
    setting = Setting(
        model=model,
        train=train,
        network=network,
        implementation=implementation,
        calibration=network.calibration,
        part_times=part_times or {},
    )
    terms = stage_terms(setting, candidates)
    stage_s = terms.total_s()
    pipeline_s = pipeline_time_s(stage_s, candidates.micro_batch_count, candidates.virtual_stage_count)
    return Timing(
        candidates=candidates,
        terms=terms,
        stage_s=stage_s,
        pipeline_s=pipeline_s,
        # What stands before a stage in the last round are single chunks.
        iter_time_s=step_end_s(
            pipeline_s,
            stage_s / candidates.virtual_stage_count[:, None],
            terms.after.seconds[terms.after.which],
        ),
    )
