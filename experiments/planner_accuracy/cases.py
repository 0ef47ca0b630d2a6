"""Measured rows as what the cost model takes: a workload, a plan, a GPU type and a group of GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pydantic import ValidationError

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, Replica, Schedule, Stage
from arena.errors import SpecError
from arena.planner.hardware import catalog
from arena.planner.implementation import Implementation
from arena.units import GIB
from experiments.planner_accuracy.programs import implementation_of, network_gb_per_s, splits_sequence, stage_layers
from experiments.planner_accuracy.rows import MeasuredRow

GPU_TYPES = {
    "A100-SXM-80": "a100-80",
    "A100-SXM-40": "a100-40",
    "A800-SXM-80": "a800",
    "H100-SXM-80": "h100",
    "H100-SXM-96-HBM2e-500W": "h100-96",
    "H200-SXM-141": "h200",
    "GH200-96": "gh200",
    "V100-SXM2-16": "v100-16",
    "V100-SXM2-32": "v100-32",
    "T4": "t4",
    "L40S": "l40s",
    "A10": "a10",
    "A40": "a40",
    "RTX-A6000": "a6000",
    "RTX-3090": "rtx-3090",
    "RTX-4090": "rtx-4090",
    "B200": "b200",
    "B200-SXM": "b200",
    "B300": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
}
"""Names of the data by names of the catalog."""

NVLINK_DOMAINS = {"gb200": 72, "gb300": 72}
"""GPUs that one NVLink switch joins, where that is more than a node."""

_LLAMA_LIKE = re.compile(r"llama|internlm", re.IGNORECASE)


class UnscorableError(Exception):
    """A row that lacks something the model needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run to predict, and what it took.

    Args:
        time_s: Measured seconds of a step; None where only memory was measured.
        memory_gb: Measured peak of the fullest GPU.
        is_out_of_memory: Whether it failed for lack of memory.
        rows: Repeats of this configuration.
    """

    rows: tuple[MeasuredRow, ...]
    train: TrainSpec
    plan: ParallelPlan
    gpu_type: GpuType
    group: GpuGroup
    implementation: Implementation
    time_s: float | None
    memory_gb: float | None
    is_out_of_memory: bool

    @property
    def row(self) -> MeasuredRow:
        """The first of the rows."""
        return self.rows[0]

    @property
    def source(self) -> str:
        """Name of the source."""
        return self.row.source_name


def case_of(row: MeasuredRow) -> Case:
    """Return what to predict for a row.

    Raises:
        UnscorableError: Something is missing or beyond the model.
    """
    if row.is_reduced:
        raise UnscorableError(f"products in {row.precision}: the worker has no such precision")
    _demand(row, ("num_gpus", "dp", "tp", "pp", "seq_len", "global_batch", "micro_batch"))
    _demand(row, ("layers", "hidden", "heads", "vocab"))
    if (row.cp or 1) > 1:
        raise UnscorableError("context parallelism is not modelled")
    gpu_type = _gpu_type(row)
    train = _train(row)
    case = Case(
        rows=(row,),
        train=train,
        plan=_plan(row, train),
        gpu_type=gpu_type,
        group=_group(row, gpu_type),
        implementation=implementation_of(row, train),
        time_s=measured_time_s(row, train),
        memory_gb=_memory_gb(row),
        is_out_of_memory=row.oom == "1",
    )
    if case.time_s is None and case.memory_gb is None and not case.is_out_of_memory:
        raise UnscorableError(f"nothing measured (oom = {row.oom!r})")
    return case


def _demand(row: MeasuredRow, names: tuple[str, ...]) -> None:
    missing = [name for name in names if getattr(row, name) is None]
    if missing:
        raise UnscorableError(f"not stated: {', '.join(missing)}")


def measured_time_s(row: MeasuredRow, train: TrainSpec) -> float | None:
    """Return the seconds of a step by the row's primary metric, or by another that it states."""
    gpus = float(row.num_gpus or 1)
    tokens = float(train.tokens_per_step)
    by_metric = {
        "iter_time_s": row.iter_time_s,
        "tokens_per_sec_per_gpu": tokens / gpus / row.tokens_per_sec_per_gpu if row.tokens_per_sec_per_gpu else None,
        "tflops_per_gpu": _flops(row) / (gpus * row.tflops_per_gpu * 1e12) if row.tflops_per_gpu else None,
    }
    if row.primary_metric == "peak_mem_gb":
        return None
    first = by_metric.get(row.primary_metric)
    return first or next((found for found in by_metric.values() if found), None)


def _flops(row: MeasuredRow) -> float:
    """Return a step's operations as Megatron-LM counts them (Narayanan et al. 2021, equation 3).

    That is 96 B s l h^2 (1 + s / 6h + V / 16lh) with full recomputation, three quarters of it for the model alone.
    """
    batch, seq, layers = float(row.global_batch or 0), float(row.seq_len or 0), float(row.layers or 0)
    hidden, vocab = float(row.hidden or 0), float(row.vocab or 0)
    each = 72.0 if row.tflops_kind.startswith("model") or row.recompute in {"none", ""} else 96.0
    share = 1.0 + seq / (6.0 * hidden) + vocab / (16.0 * layers * hidden)
    return each * batch * seq * layers * hidden**2 * share


def _memory_gb(row: MeasuredRow) -> float | None:
    """Return the measured peak in units of 1e9 bytes; some notes say that the cell is in GiB."""
    if row.peak_mem_gb is None:
        return None
    return row.peak_mem_gb * (GIB / 1e9 if row.note.startswith("GiB") else 1.0)


def _gpu_type(row: MeasuredRow) -> GpuType:
    name = row.gpu_type.split(" (")[0]
    known = GPU_TYPES.get(name, name.lower())
    found = catalog().get(known)
    if found is None:
        raise UnscorableError(f"GPU type {row.gpu_type!r} is not in the catalog")
    network = network_gb_per_s(row)
    return found if network is None else replace(found, network_bandwidth_bytes_per_s=network * 1e9)


def _group(row: MeasuredRow, gpu_type: GpuType) -> GpuGroup:
    count = row.num_gpus or 1
    size = NVLINK_DOMAINS.get(gpu_type.name, row.gpus_per_node or 8)
    full, rest = divmod(count, size)
    return GpuGroup.of(gpu_type.name, [size] * full + ([rest] if rest else []))


def _train(row: MeasuredRow) -> TrainSpec:
    is_llama = bool(_LLAMA_LIKE.search(row.model))
    precision = "bf16" if "bf16" in row.precision.lower() else "fp16" if "fp16" in row.precision.lower() else "fp32"
    try:
        model = ModelSpec.model_validate(
            {
                "family": ModelFamily.LLAMA if is_llama else ModelFamily.GPT,
                "layers": row.layers,
                "hidden": row.hidden,
                "heads": row.heads,
                "kv_heads": row.kv_heads or row.heads,
                "ffn_hidden": row.ffn,
                "vocab_size": row.vocab,
                "seq_len": row.seq_len,
                "tied_embeddings": not is_llama,
            }
        )
        return TrainSpec.model_validate({"model": model, "precision": precision, "global_batch": row.global_batch})
    except ValidationError as error:
        raise UnscorableError(f"no such model: {error.errors()[0]['msg']}") from error


def _plan(row: MeasuredRow, train: TrainSpec) -> ParallelPlan:
    dp, tp, pp, vpp = row.dp or 1, row.tp or 1, row.pp or 1, row.vpp or 1
    if dp * tp * pp != row.num_gpus:
        raise UnscorableError(f"dp{dp} tp{tp} pp{pp} is not for {row.num_gpus} GPUs")
    layers = stage_layers(row, train.model.layers, pp)
    try:
        return ParallelPlan(
            stages=tuple(Stage(layer_count=count, replicas=(Replica(tp=tp),) * dp) for count in layers),
            micro_batch_size=row.micro_batch or 1,
            schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
            virtual_stage_count=vpp,
            zero=_zero(row.zero_or_fsdp),
            recompute=_recompute(row.recompute),
            expert_parallel=row.ep or 1,
            sequence_parallel=splits_sequence(row) and tp > 1,
        )
    except SpecError as error:
        raise UnscorableError(str(error)) from error


def _zero(words: str) -> int:
    for stage, names in ((3, ("zero3", "fsdp2")), (2, ("zero2",)), (1, ("zero1", "distopt", "bf16optimizer"))):
        if any(name in words for name in names):
            return stage
    return 3 if words == "fsdp" else 0


def _recompute(words: str) -> Recompute:
    if "full" in words:
        return Recompute.FULL
    return Recompute.SELECTIVE if "selective" in words else Recompute.NONE
