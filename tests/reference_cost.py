"""What a plan costs on one GPU type, computed one plan at a time in plain Python: the reference of the array code.

It shares the data with the planner (parts of models, constants, hardware) and none of its formulas, which are written
out here once more, for the worker alone. Slow and simple on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil, inf, log2

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.micro_batches import micro_batches
from arena.domain.parallel import ParallelPlan, Recompute, Schedule, even_split
from arena.planner.activations import Kept, Operators, Spread
from arena.planner.calibration import CALIBRATION as FITTED
from arena.planner.model import ModelCost, Part, Product, model_cost

GIB, MIB = 2**30, 2**20
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (64, 128, 0.8), (128, 64, 0.8))


@dataclass(frozen=True)
class Answer:
    """Seconds of a step, and bytes of each stage."""

    iter_time_s: float
    memory_bytes: list[float]


@dataclass(frozen=True)
class Ring:
    """Ranks that do collectives together: ``ranks`` of them on ``nodes``."""

    gpu: GpuType
    ranks: float
    nodes: float

    @property
    def local(self) -> float:
        return float(ceil(self.ranks / self.across))

    @property
    def across(self) -> float:
        return min(self.nodes, self.ranks)

    @property
    def start_s(self) -> float:
        if self.ranks <= 1:
            return 0.0
        gpu = self.gpu
        return FITTED.collective_latencies * (gpu.network_latency_s if self.across > 1 else gpu.link_latency_s)

    @property
    def crowded(self) -> float:
        return 1.0 + FITTED.network_crowding * log2(self.across)

    def halves(self, size_bytes: float, count: float) -> float:
        """A gather or a reduce-scatter."""
        hops = (self.local - 1) * self.gpu.link_latency_s + (self.across - 1) * self.gpu.network_latency_s
        return size_bytes * self._s_per_byte() + count * (self.start_s + FITTED.hop_latencies * hops)

    def all_reduce(self, size_bytes: float, count: float) -> float:
        tree = log2(self.local) * self.gpu.link_latency_s + log2(self.across) * self.gpu.network_latency_s
        latency_s = 0.5 * self.start_s + FITTED.hop_latencies * tree
        return 2.0 * (size_bytes * self._s_per_byte() + count * latency_s)

    def exchange(self, size_bytes: float, count: float) -> float:
        """An all-to-all."""
        tree = log2(self.local) * self.gpu.link_latency_s + log2(self.across) * self.gpu.network_latency_s
        inside = (self.local - 1) / self.local / self.across / inside_rate(self.gpu)
        outside = (self.across - 1) / self.across * self.crowded / network_rate(self.gpu)
        return size_bytes * (inside + outside) + count * (0.5 * self.start_s + FITTED.hop_latencies * tree)

    def _s_per_byte(self) -> float:
        inside = (self.local - 1) / self.local / inside_rate(self.gpu)
        outside = (self.across - 1) / self.across * self.crowded / self.local / network_rate(self.gpu)
        return inside + outside


def inside_rate(gpu: GpuType) -> float:
    is_bus = gpu.link_bandwidth_bytes_per_s <= 32e9 and gpu.name != "cpu"
    return (FITTED.bus_share if is_bus else FITTED.link_share) * gpu.link_bandwidth_bytes_per_s


def network_rate(gpu: GpuType) -> float:
    return FITTED.network_share * gpu.network_bandwidth_bytes_per_s


def price(train: TrainSpec, plan: ParallelPlan, gpu: GpuType, node_counts: Sequence[int]) -> Answer:
    """Return what a plan costs on nodes with so many GPUs each."""
    pipeline = _Pipeline(train=train, plan=plan, gpu=gpu, node_counts=tuple(node_counts))
    return Answer(
        iter_time_s=pipeline.step_s(), memory_bytes=[_memory(pipeline.stage(index)) for index in range(plan.pp)]
    )


@dataclass(frozen=True)
class _Pipeline:
    train: TrainSpec
    plan: ParallelPlan
    gpu: GpuType
    node_counts: tuple[int, ...]

    @cached_property
    def model(self) -> ModelCost:
        return model_cost(self.train.model, Operators(has_fused_rms_norm=self.gpu.name != "cpu"))

    @cached_property
    def stages(self) -> list[_Stage]:
        return [_Stage(self, index) for index in range(self.plan.pp)]

    def stage(self, index: int) -> _Stage:
        return self.stages[index]

    def step_s(self) -> float:
        """1F1B: all micro-batches of the busiest stage, one of each other; the last to synchronise ends it."""
        busiest = max(self.stages, key=lambda stage: stage.micro_batch_count * stage.time_s)
        rest_s = sum(stage.time_s for stage in self.stages) - busiest.time_s
        drained_s = busiest.micro_batch_count * busiest.time_s + rest_s / self.plan.virtual_stage_count
        earlier_s, end_s = 0.0, 0.0
        for stage in self.stages:
            end_s = max(end_s, drained_s - 2.0 / 3.0 * earlier_s + stage.after_s)
            earlier_s += stage.time_s / self.plan.virtual_stage_count
        return end_s

    def nodes_of(self, index: int) -> tuple[int, int]:
        """Return the first and the last node of a stage."""
        ends = list(accumulate(stage.gpu_count for stage in self.plan.stages))
        first_rank = ends[index] - self.plan.stages[index].gpu_count
        node_ends = list(accumulate(self.node_counts))
        first = next(node for node, end in enumerate(node_ends) if first_rank < end)
        last = next(node for node, end in enumerate(node_ends) if ends[index] <= end)
        return first, last

    def crosses_behind(self, index: int) -> bool:
        """Whether some ranks of a stage and of the next (behind the last: of the first) lie on different nodes."""
        if len(self.node_counts) == 1:
            return False
        if index == self.plan.pp - 1:
            return True
        return self.nodes_of(index)[0] != self.nodes_of(index + 1)[1]


class _Stage:
    """One stage of a pipeline; all figures are of one of its ranks."""

    def __init__(self, pipeline: _Pipeline, index: int) -> None:
        self.pipeline, self.index = pipeline, index
        self.plan, self.train, self.gpu = pipeline.plan, pipeline.train, pipeline.gpu
        stage = self.plan.stages[index]
        self.dp = len(stage.replicas)
        self.tp = min(replica.tp for replica in stage.replicas)
        self.gpu_count = stage.gpu_count
        self.sequence = self.tp if self.plan.sequence_parallel else 1
        self.ep = self.plan.expert_parallel
        self.samples = self.plan.micro_batch_size
        self.element_bytes = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}[self.train.precision]
        first, last = pipeline.nodes_of(index)
        self.node_count = last - first + 1

    @cached_property
    def micro_batch_count(self) -> int:
        batches = micro_batches(self.plan, self.train.global_batch)
        return max(Counter(batch.replicas[self.index] for batch in batches).values())

    @cached_property
    def chunks(self) -> list[range]:
        """Units of each of the stage's chunks; unit 0 is the beginning, the last one the ending."""
        turns = self.plan.virtual_stage_count
        splits = [even_split(stage.layer_count, turns) for stage in self.plan.stages]
        order = [split[turn] for turn in range(turns) for split in splits]
        ends = [end + 1 for end in accumulate(order)]
        starts = [0, *ends[:-1]]
        ends[-1] += 1
        ranges = [range(start, end) for start, end in zip(starts, ends, strict=True)]
        return ranges[self.index :: self.plan.pp]

    @cached_property
    def parts(self) -> list[Part]:
        return [self.part(unit) for chunk in self.chunks for unit in chunk]

    def part(self, unit: int) -> Part:
        return self.pipeline.model.parts[int(self.pipeline.model.part_by_unit[unit])]

    def divisor(self, spread: Spread) -> float:
        return {Spread.SPLIT: float(self.tp), Spread.SEQUENCE: float(self.sequence), Spread.WHOLE: 1.0}[spread]

    def size(self, tensors: Iterable[Kept]) -> float:
        """Bytes per sample of tensors on one rank."""
        return sum(
            one.elements * (one.element_bytes or self.element_bytes) / self.divisor(one.spread) for one in tensors
        )

    # Parameters ------------------------------------------------------------------------------------------------

    def dense_of(self, part: Part) -> float:
        counts = part.parameters
        return counts.split / self.tp + counts.replicated

    def expert_of(self, part: Part) -> float:
        return part.parameters.expert / (self.tp * self.ep)

    @cached_property
    def tied(self) -> float:
        is_end = self.index in {0, self.plan.pp - 1}
        return self.pipeline.model.parts[0].parameters.tied / self.tp if is_end else 0.0

    @cached_property
    def dense(self) -> float:
        return sum(self.dense_of(part) for part in self.parts) + self.tied

    @cached_property
    def expert(self) -> float:
        return sum(self.expert_of(part) for part in self.parts)

    @cached_property
    def share(self) -> float:
        """What is a rank's own when all that hold the same parameter divide it."""
        split = sum(part.parameters.split for part in self.parts) / self.tp
        replicated = sum(part.parameters.replicated for part in self.parts)
        copies = 2 if self.plan.pp > 1 else 1
        return (
            split / self.dp
            + replicated / (self.dp * self.tp)
            + self.expert / (self.dp / self.ep)
            + self.tied / (self.dp * copies)
        )

    # Time ------------------------------------------------------------------------------------------------------

    @cached_property
    def time_s(self) -> float:
        """One micro-batch."""
        return self.compute_s + self.tensor_s + self.expert_s + self.shard_s + self.send_s

    @cached_property
    def compute_s(self) -> float:
        seconds = {id(part): _Roofline(self, part).seconds() for part in self.parts}
        return sum(seconds[id(part)] for part in self.parts)

    @cached_property
    def tensor_s(self) -> float:
        elements, count = 0.0, 0
        for part in self.parts:
            one = part.reductions
            elements += one.forward_elements + one.backward_elements
            count += one.forward_count + one.backward_count
            if self.plan.recompute is Recompute.SELECTIVE:
                elements, count = elements + one.attention_elements, count + one.attention_count
            elif self.plan.recompute is Recompute.FULL and part.is_layer:
                elements, count = elements + one.forward_elements, count + one.forward_count
        ring = Ring(self.gpu, self.tp, 1)
        return ring.all_reduce(elements * self.samples * self.element_bytes, count)

    @cached_property
    def expert_s(self) -> float:
        passes = 3.0 if self.plan.recompute is Recompute.FULL else 2.0
        elements = sum(part.exchanged_elements for part in self.parts)
        layers = sum(part.exchanged_elements > 0 for part in self.parts)
        ring = Ring(self.gpu, self.ep, ceil(self.node_count * self.ep / self.dp))
        return ring.exchange(passes * elements * self.samples * self.element_bytes, 2.0 * passes * layers)

    def halves_s(self, bytes_each: float) -> float:
        """Gather all parameters of the stage unit by unit."""
        count = len(self.parts)
        seconds = Ring(self.gpu, self.dp, self.node_count).halves(self.dense * bytes_each, count)
        if self.has_experts:
            seconds += Ring(self.gpu, self.dp / self.ep, self.node_count).halves(self.expert * bytes_each, count)
        return seconds

    @cached_property
    def shard_s(self) -> float:
        seconds = self.halves_s(4.0) if self.plan.zero >= 2 else 0.0
        return seconds + (2.0 * self.halves_s(self.element_bytes) if self.plan.zero == 3 else 0.0)

    @cached_property
    def send_s(self) -> float:
        """Activations on to the next chunk and gradients back."""
        return FITTED.send_times * sum(self._chunk_sends_s(chunk) for chunk in self.chunks)

    def _chunk_sends_s(self, chunk: range) -> float:
        each = self.samples * self.element_bytes / self.sequence
        seconds = 0.0
        if chunk.stop < self.pipeline.model.unit_count:
            seconds += self._hop_s(self.index, self.part(chunk.stop - 1).output_elements * each)
        if chunk.start > 0:
            before = (self.index - 1) % self.plan.pp
            seconds += self._hop_s(before, self.part(chunk.start).input_elements * each)
        return seconds

    def _hop_s(self, sender: int, size_bytes: float) -> float:
        """A message over the link behind a stage, in either direction; small stages have more network for each rank."""
        if not self.pipeline.crosses_behind(sender):
            return size_bytes / inside_rate(self.gpu) + self.gpu.link_latency_s
        node_size = max(self.pipeline.node_counts)
        rate = network_rate(self.gpu) * node_size / min(node_size, self.plan.stages[sender].gpu_count)
        return size_bytes / rate + self.gpu.network_latency_s

    @cached_property
    def after_s(self) -> float:
        """What follows the last backward pass: gradients, the update, weights."""
        seconds = self.share if self.plan.zero else self.dense + self.expert
        seconds *= 28 / self.gpu.memory_bandwidth_bytes_per_s
        if self.plan.zero == 0:
            seconds += Ring(self.gpu, self.dp, self.node_count).all_reduce(self.dense * 4.0, 1)
            if self.has_experts:
                seconds += Ring(self.gpu, self.dp / self.ep, self.node_count).all_reduce(self.expert * 4.0, 1)
        if self.plan.zero == 1:
            seconds += self.halves_s(4.0)
        if self.plan.zero in {1, 2}:
            seconds += self.halves_s(4.0 if self.train.precision == "fp32" else 2.0)
        return seconds

    @property
    def has_experts(self) -> bool:
        return any(part.parameters.expert for part in self.pipeline.model.parts)


class _Roofline:
    """Seconds of one part and micro-batch."""

    def __init__(self, stage: _Stage, part: Part) -> None:
        self.stage, self.part, self.gpu = stage, part, stage.gpu
        precision = stage.train.precision
        peak = self.gpu.peak_flops_per_s.get(precision, self.gpu.peak_flops_per_s["fp32"])
        self.rate = peak * FITTED.product_share(self.gpu.generation) * self.gpu.sustained_clock_share
        self.has_tensor_cores = precision != "fp32" and self.gpu.name != "cpu"

    def seconds(self) -> float:
        part, mode = self.part, self.stage.plan.recompute
        experts = part.expert_kernel_count * part.expert_count / self.stage.ep
        kernels = part.kernel_count + experts
        forward_s, back_s = self._products_s(part.products)
        scores_s, between_s = self._scores_s(part.products), self._between_s(part.kept)
        total_s = forward_s + back_s + 3.5 * scores_s + 3.0 * between_s
        launches = 3.0 * kernels
        if mode is Recompute.FULL and part.is_layer:
            total_s += forward_s + scores_s + between_s
            launches += kernels
        if mode is Recompute.SELECTIVE and part.is_layer:
            again = [one for one in part.products if one.is_attention]
            kept = [one for one in part.kept if one.modes == frozenset({Recompute.NONE})]
            total_s += self._products_s(again)[0] + self._scores_s(again)
            total_s += self._between_s(kept)
            launches += part.attention_kernel_count
        host_s = launches * FITTED.launch_times * self.gpu.launch_latency_s
        return total_s + host_s if self.gpu.name == "cpu" else float((total_s**4 + host_s**4) ** 0.25)

    def _products_s(self, products: Iterable[Product]) -> tuple[float, float]:
        forward_s = back_s = 0.0
        for product in products:
            if not product.head_size:
                pieces = self.part.expert_count / self.stage.ep if product.is_expert else 1.0
                forward, back = self._product_s(product, pieces)
                forward_s, back_s = forward_s + pieces * forward, back_s + pieces * back
        return forward_s, back_s

    def _product_s(self, product: Product, pieces: float) -> tuple[float, float]:
        divisor = self.stage.divisor(product.spread)
        flops = product.flops_per_sample * self.stage.samples / (divisor * pieces)
        compute_s = flops / self.rate
        if not product.inner:
            return compute_s, 2.0 * compute_s
        inner, outer = float(product.inner), float(product.outer)
        if product.splits_inner:
            inner /= divisor
        else:
            outer /= divisor
        rows = flops / (2.0 * inner * outer)
        moved = rows * (inner + outer) + inner * outer
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s * FITTED.product_bandwidth_share
        memory_s = moved * self.stage.element_bytes / bandwidth

        def bound_s(height: float, width: float) -> float:
            tiled_s = compute_s * self._tiling(height, width)
            return float((tiled_s**4 + memory_s**4) ** 0.25)

        return bound_s(rows, outer), bound_s(rows, inner) + bound_s(inner, outer)

    def _tiling(self, rows: float, columns: float) -> float:
        processors = self.gpu.processor_count
        if processors is None:
            return 1.0
        best = 0.0
        for height, width, share in TILES:
            waves = ceil(ceil(rows / height) * ceil(columns / width) / processors)
            best = max(best, share * rows * columns / (height * width * processors) / waves)
        return 1.0 + FITTED.tiling_share * (1.0 / best - 1.0)

    def _scores_s(self, products: Iterable[Product]) -> float:
        seconds = 0.0
        for product in products:
            if product.head_size:
                share = FITTED.flash_share
                if self.has_tensor_cores and product.head_size % 8:
                    share *= FITTED.odd_head_share
                flops = product.flops_per_sample * self.stage.samples / self.stage.divisor(product.spread)
                seconds += flops / (self.rate * share)
        return seconds

    def _between_s(self, kept: Iterable[Kept]) -> float:
        part, stage = self.part, self.stage
        traffic = 4.0 * part.logits_elements * stage.samples / stage.divisor(part.logits_spread)
        traffic += stage.samples * stage.size(one for one in kept if Recompute.NONE in one.modes)
        return FITTED.activation_passes * traffic / self.gpu.memory_bandwidth_bytes_per_s


# Memory --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bytes:
    weights: float
    gradients: float
    moments: float
    master: float


def _state(train: TrainSpec) -> _Bytes:
    moments = {"adamw": 8.0}.get(train.optimizer.name, 4.0 if train.optimizer.momentum else 0.0)
    if train.precision == "fp32":
        return _Bytes(4.0, 4.0, moments, 0.0)
    return _Bytes(2.0, 4.0, moments, 4.0)


def _memory(stage: _Stage) -> float:
    kept = _kept(stage)
    in_flight = kept * _in_flight(stage)
    moment = max(_working(stage), _logits(stage), _exchange(stage, kept, in_flight))
    return _states(stage) + _gathered(stage) + in_flight + _received(stage) + moment + _context(stage)


def _context(stage: _Stage) -> float:
    if stage.gpu.name == "cpu":
        return 256.0 * MIB
    return 1.0 * GIB if stage.plan.gpu_count == 1 else FITTED.rank_context_bytes


def _states(stage: _Stage) -> float:
    each, zero, total = _state(stage.train), stage.plan.zero, stage.dense + stage.expert
    weights = stage.share * (each.master or each.weights) if zero == 3 else total * each.weights
    gradients = each.gradients * (stage.share if zero >= 2 else total)
    optimizer = each.moments + (0.0 if zero == 3 else each.master)
    return weights + gradients + optimizer * (stage.share if zero >= 1 else total)


def _is_divided(stage: _Stage) -> bool:
    return stage.share < stage.dense + stage.expert


def _unit_size(stage: _Stage, unit: int) -> float:
    part = stage.part(unit)
    return stage.dense_of(part) + part.parameters.tied / stage.tp + stage.expert_of(part)


def _gathered(stage: _Stage) -> float:
    """Under ZeRO-3 a layer and the next are whole: of each chunk the pair with the most parameters in all."""
    if stage.plan.zero != 3 or not _is_divided(stage):
        return 0.0
    pairs = []
    for chunk in stage.chunks:
        first = max(
            range(chunk.start, max(chunk.stop - 1, chunk.start + 1)),
            key=lambda unit: (_total(stage, unit) + _total(stage, unit + 1), -unit),
        )
        pairs.append(sum(_unit_size(stage, unit) for unit in (first, first + 1) if unit < chunk.stop))
    return max(pairs) * _state(stage.train).weights


def _total(stage: _Stage, unit: int) -> float:
    units = stage.pipeline.model.unit_count
    return float(stage.part(unit).parameters.total) if unit < units else -inf


def _together(stage: _Stage) -> float:
    """Parameters whose gradients travel together."""
    layer = max(_unit_size(stage, max(chunk, key=lambda unit: (_total(stage, unit), -unit))) for chunk in stage.chunks)
    unit = layer if stage.plan.zero == 3 else max(25 * MIB / 4 / stage.tp, layer)
    return min(stage.dense + stage.expert, unit)


def _exchange(stage: _Stage, kept: float, in_flight: float) -> float:
    """Gradients on their way, less the activations that are gone by then."""
    if not _is_divided(stage) or stage.plan.zero == 0:
        return 0.0
    each, total, together = _state(stage.train), stage.dense + stage.expert, _together(stage)
    copies = 1.0 if stage.gpu.name == "cpu" else 0.0
    if stage.plan.zero == 1:
        sent = together * each.gradients * copies + stage.share * each.gradients
        return max(sent - in_flight, 0.0)
    sums = together * each.gradients
    sent = max(together * each.weights + sums, sums * (1.0 + stage.share / total + copies))
    part = together / total
    if len([one for one in stage.pipeline.model.parts if one.is_layer]) > 1:
        part = float(int(part))
    return max(sent - part * kept, 0.0)


def _kept(stage: _Stage) -> float:
    """What one micro-batch leaves on a stage, with the outputs that it has sent."""
    mode = stage.plan.recompute
    sizes = sum(stage.size(one for one in part.kept if mode in one.modes) for part in stage.parts)
    sent = [chunk.stop - 1 for chunk in stage.chunks if chunk.stop < stage.pipeline.model.unit_count]
    outputs = sum(stage.part(unit).output_elements for unit in sent) * stage.element_bytes / stage.sequence
    return (sizes + outputs) * stage.samples


def _received(stage: _Stage) -> float:
    units = stage.pipeline.model.unit_count
    before = max((stage.part(chunk.start).input_elements for chunk in stage.chunks if chunk.start > 0), default=0.0)
    behind = max(
        (stage.part(chunk.stop - 1).output_elements for chunk in stage.chunks if chunk.stop < units), default=0.0
    )
    return (before + behind) * stage.samples * stage.element_bytes / stage.sequence


def _in_flight(stage: _Stage) -> float:
    plan, count = stage.plan, float(stage.micro_batch_count)
    if plan.schedule is Schedule.GPIPE:
        return count
    turns, behind = plan.virtual_stage_count, plan.pp - stage.index - 1
    if turns > 1:
        return min(count, (2 * behind + (turns - 1) * plan.pp + 1) / turns)
    return min(count, behind + 1.0)


def _working(stage: _Stage) -> float:
    """The layer at work: what it makes again, its gradients, one weight's gradient."""
    worst = 0.0
    for part in stage.parts:
        if part.is_layer:
            moment = max((stage.size(tensors) for tensors in part.working), default=0.0)
            weight = part.parameters.largest * stage.element_bytes / stage.tp
            worst = max(worst, (_made_again(stage, part) + moment) * stage.samples + weight)
    return worst


def _made_again(stage: _Stage, part: Part) -> float:
    mode = stage.plan.recompute
    if mode is Recompute.NONE:
        return 0.0
    missing = stage.size(one for one in part.kept if Recompute.NONE in one.modes and mode not in one.modes)
    inputs = stage.size(one for one in part.kept if Recompute.NONE not in one.modes)
    again = max(missing - inputs, 0.0)
    if mode is Recompute.SELECTIVE:
        gone = stage.size(one for one in part.kept if Recompute.NONE in one.modes and mode in one.modes)
        again = max(again - gone, 0.0)
    return again


def _logits(stage: _Stage) -> float:
    if stage.index != stage.plan.pp - 1:
        return 0.0
    ending = stage.pipeline.model.parts[-1]
    divisor = stage.tp if ending.logits_spread is Spread.SPLIT else 1
    elements = ending.logits_elements * stage.samples / divisor
    in_flight = stage.micro_batch_count if stage.plan.schedule is Schedule.GPIPE else 1
    return elements * (4.0 * in_flight + (12.0 if divisor > 1 else 8.0))
