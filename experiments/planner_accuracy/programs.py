"""What is known of the programs and sites behind measured rows, beyond the rows' own cells.

From the words of a row, or from what its program's documents and sources say: that a DeepSpeed pipeline sends and
receives one message after the other; that BigScience waited for each kernel (``CUDA_LAUNCH_BLOCKING=1``,
without which they hung), sent a part for each tensor-parallel rank and put full stages first. These are facts of
programs: no constant is fitted to a source.
"""

from __future__ import annotations

import re
from itertools import pairwise

from arena.domain.job import TrainSpec
from arena.domain.parallel import even_split
from arena.planner.implementation import Attention, Implementation
from experiments.planner_accuracy.rows import MeasuredRow

INSTANCE_GBIT_PER_S = {"p3.8xlarge": 10.0, "g4dn.12xlarge": 50.0}
"""Network of a whole cloud instance, as its provider states it."""

JEAN_ZAY_NODE_GBIT_PER_S = 400.0
"""Four Omni-Path cards of 100 Gb/s for eight A100s."""

_DEEPSPEED_BUCKET = 5e8
"""Elements that DeepSpeed puts together for a collective, its default."""

_FUSED_LOSS_BYTES = 4.0
"""llm-foundry's default loss is a fused kernel that works on logits in 16 bit: these and their gradient."""

_ATTENTION_DROPOUT = re.compile(r"gpt|megatron|turing", re.IGNORECASE)
"""Models whose published configuration drops attention weights; those of BLOOM, OPT and MPT do not."""


def is_bigscience(row: MeasuredRow) -> bool:
    """Whether a row is of BigScience's Megatron-DeepSpeed on Jean Zay."""
    return "bigscience" in row.source


def is_deepspeed_pipeline(row: MeasuredRow) -> bool:
    """Whether a row's pipeline is DeepSpeed's."""
    text = f"{row.source} {row.precision} {row.zero_or_fsdp} {row.note}".lower()
    return (row.pp or 1) > 1 and (is_bigscience(row) or "deepspeed" in text)


def splits_sequence(row: MeasuredRow) -> bool:
    """Whether tensor-parallel ranks share the sequence between split layers, as those of torchtitan always do."""
    return "seqpar" in row.recompute or "torchtitan" in row.source


def network_gb_per_s(row: MeasuredRow) -> float | None:
    """Return one GPU's share of its node's network, in GB/s, where words tell of it."""
    text = f"{row.source} {row.gpu_type} {row.note}"
    per_node = row.gpus_per_node or 8
    for instance, gbit in INSTANCE_GBIT_PER_S.items():
        if instance in text:
            return gbit / 8.0 / per_node
    if found := re.search(r"(\d+)x\s?(\d+)\s?Gb", text):
        return float(found[1]) * float(found[2]) / 8.0 / per_node
    if found := re.search(r"(\d+) Gbps node", text):
        return float(found[1]) / 8.0 / per_node
    if found := re.search(r"(\d+)\s?Gb/s (?:RDMA )?per GPU", text):
        return float(found[1]) / 8.0
    return JEAN_ZAY_NODE_GBIT_PER_S / 8.0 / per_node if is_bigscience(row) else None


def stage_layers(row: MeasuredRow, layers: int, pp: int) -> tuple[int, ...]:
    """Return the layers of each stage: as the note lists them, less what it counts for the two ends, or by rule."""
    listed: list[int] = []
    if found := re.search(r"layer partition \[([\d\s]+)\]", row.note):
        bounds = [int(bound) for bound in found[1].split()]
        listed = [last - first for first, last in pairwise(bounds)]
    elif found := re.search(r"layers/stage \[([\d,\s]+)\]", row.note):
        listed = [int(count) for count in found[1].split(",")]
    ends, odd = divmod(sum(listed) - layers, 2)
    if len(listed) == pp and odd == 0 and ends >= 0:
        listed[0] -= ends
        listed[-1] -= ends
        if min(listed) >= 1:
            return tuple(listed)
    if is_deepspeed_pipeline(row):
        return full_stages_first(layers, pp) or tuple(even_split(layers, pp))
    return tuple(even_split(layers, pp))


def full_stages_first(layers: int, pp: int) -> tuple[int, ...] | None:
    """Return how DeepSpeed splits layers: as many as the fullest stage has into each, and the rest into the last.

    Where layers do not come out even but would with the two ends, the ends count as layers. None where a stage would
    be empty.
    """
    ends = 1 if layers % pp and (layers + 2) % pp == 0 else 0
    each = -(-(layers + 2 * ends) // pp)
    counts = [min(each, max(0, layers + 2 * ends - each * index)) for index in range(pp)]
    counts[0] -= ends
    counts[-1] -= ends
    return tuple(counts) if min(counts) >= 1 else None


def implementation_of(row: MeasuredRow, train: TrainSpec) -> Implementation:
    """Return what is known of a row's program.

    Sharding overlaps with computing; plain replicas do not, nor do pipelines of DeepSpeed, which reduce gradients as a
    last instruction.
    """
    words = row.zero_or_fsdp
    is_fsdp = "fsdp" in words
    # Where nothing is said, programs that shard fully are PyTorch's own, which has a fused kernel.
    is_flash = any(
        name in (row.attention_impl.lower() or words) for name in ("flash", "sdpa", "fsdp")
    ) or row.attention_impl.startswith("TE")
    within = re.search(r"within (\d+)", words)
    # fp16, pure 16-bit training and ZeRO-1 reduce gradients as they come; bf16 with fp32 sums reduces these.
    in_half = train.precision == "fp16" or "pure" in row.precision.lower() or words.startswith("zero1")
    return Implementation(
        attention=Attention.FLASH if is_flash else Attention.STORED,
        drops_weights=bool(_ATTENTION_DROPOUT.search(row.model)),
        gradient_bytes=2.0 if in_half else None,
        kept_gradient_bytes=_kept_gradient_bytes(words, train),
        buffer_bytes=_buffer_bytes(row),
        kept_share_bytes=4.0 if words == "zero1" and is_bigscience(row) else 0.0,
        logits_bytes=_FUSED_LOSS_BYTES if "llm-foundry" in row.source else None,
        keeps_every_other_product="torchtitan" in row.source,
        overlaps_gradients=is_fsdp or "distopt" in words or ("zero1" in words and row.pp == 1),
        reduces_whole="bf16optimizer" in words,
        overlaps_shards=is_fsdp or "distopt" in words,
        collectives_per_unit=12 if words == "zero3" else 1,
        splits_sends=(words == "none" and not is_deepspeed_pipeline(row)) or is_bigscience(row),
        sends_in_turn=is_deepspeed_pipeline(row),
        waits_for_kernels=is_bigscience(row),
        recomputes_core_only=True,
        shard_ranks_max=int(within[1]) if within else None,
    )


def _buffer_bytes(row: MeasuredRow) -> float:
    """Return the bytes of DeepSpeed's buckets: of gradients and weights under ZeRO-1, of summed gradients in fp32."""
    if not is_bigscience(row):
        return 0.0
    each = {"zero1": 2 * 2.0, "bf16optimizer(zero1-like)": 4.0}
    return each.get(row.zero_or_fsdp, 0.0) * _DEEPSPEED_BUCKET


def _kept_gradient_bytes(words: str, train: TrainSpec) -> float | None:
    """Return bytes of gradients that programs keep for each parameter.

    DeepSpeed those in 16 bit; beside them all in fp32 where nothing is sharded (a copy for the optimizer) or bf16 is
    summed. Those that reduce gradients as they come keep them so.
    """
    if "bf16optimizer" in words or (words == "zero0" and train.precision == "fp16"):
        return 6.0
    in_half = words.startswith("zero") and train.precision == "fp16"
    return 2.0 if in_half or words.startswith("zero1") else None
