"""Roofline times of a model's parts. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.cluster import Generation, GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import Recompute
from arena.planner.activations import ONLY_NONE, Kept, Spread
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Floats, Ints
from arena.planner.communication import all_reduce_s, node_ring
from arena.planner.hardware import peak_flops_per_s
from arena.planner.implementation import WORKER, Attention, Implementation
from arena.planner.model import ModelCost, Part, Product
from arena.planner.profiles import PassTimes, Told

ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
"""Bytes of one activation."""

_FORWARD_AND_BACKWARD = 3.0
"""A backward pass costs two forward passes."""

_FLASH_FORWARD_AND_BACKWARD = 3.5
"""Attention that stores no scores computes them once more in its backward pass (Dao et al. 2022)."""

_HEAD_ALIGNMENT = 8
"""Numbers in 16 bit that a tensor core loads at once: heads of other sizes take slow kernels."""

_TILES = ((256.0, 128.0, 1.0), (128.0, 256.0, 1.0), (128.0, 128.0, 0.95), (64.0, 128.0, 0.8), (128.0, 64.0, 0.8))
"""Rows and columns of the tiles of common kernels, and what share of the largest ones' rate they reach."""

_BLEND = 4.0
"""Norm that blends two bounds (computing and memory, device and host): near both, neither is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """How a micro-batch is shared out: distinct combinations, all ``[u]``.

    Args:
        samples: Of a micro-batch.
        sequence: What divides activations that only sequence parallelism divides.
        ep: Expert-parallel degree.
    """

    samples: Floats
    tp: Floats
    sequence: Floats
    ep: Floats

    def divisor(self, spread: Spread) -> Floats:
        """Return by what a tensor is divided."""
        return (self.tp, self.sequence, np.ones_like(self.tp))[spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What times depend on beside the part and its shards."""

    gpu_type: GpuType
    precision: str
    implementation: Implementation
    calibration: Calibration

    @property
    def product_flops_per_s(self) -> float:
        """Rate of a large product."""
        peak = peak_flops_per_s(self.gpu_type, self.precision)
        share = self.calibration.product_share(self.gpu_type.generation)
        return peak * share * self.gpu_type.sustained_clock_share

    @property
    def has_tensor_cores(self) -> bool:
        """Whether shapes matter."""
        return self.precision != "fp32" and self.gpu_type.generation is not Generation.HOST

    @property
    def launch_s(self) -> float:
        """Seconds that a kernel of a part's list takes the host; it stands for several."""
        waits = self.implementation.waits_for_kernels
        times = self.calibration.waited_launch_times if waits else self.calibration.launch_times
        return times * self.gpu_type.launch_latency_s

    def together_s(self, busy_s: Floats, launches_s: Floats) -> Floats:
        """Return what a part takes: the host launches ahead of the device, so that the slower of the two counts.

        A virtual GPU is its own host.
        """
        if self.implementation.waits_for_kernels or self.gpu_type.generation is Generation.HOST:
            return busy_s + launches_s
        together: Floats = (busy_s**_BLEND + launches_s**_BLEND) ** (1.0 / _BLEND)
        return together


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Seconds of a part, ``[u]`` each: of its products with weights, attention scores, and what lies between them.

    Args:
        products_back_s: Of the products of the backward pass.
        launches_s: Of the host, for the forward pass.
    """

    products_s: Floats
    products_back_s: Floats
    scores_s: Floats
    rest_s: Floats
    launches_s: Floats

    @property
    def forward_s(self) -> Floats:
        """The forward pass."""
        return self.products_s + self.scores_s + self.rest_s

    def both_s(self, *, is_flash: bool) -> Floats:
        """Forward and backward pass; attention that stores no scores computes them once more."""
        passes = _FLASH_FORWARD_AND_BACKWARD if is_flash else _FORWARD_AND_BACKWARD
        together = self.products_s + self.products_back_s + passes * self.scores_s
        return together + _FORWARD_AND_BACKWARD * self.rest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnePart:
    """Seconds of a part, ``[u]`` each: of its forward pass, and of all under each recomputation setting."""

    forward_s: Floats
    modes: tuple[Floats, Floats, Floats]

    @property
    def passes(self) -> PassTimes:
        """The two passes without recomputation."""
        return PassTimes(forward_s=self.forward_s, backward_s=self.modes[0] - self.forward_s)

    def plus(self, other: _OnePart, *, sign: float = 1.0) -> _OnePart:
        """Add what something else takes beside this."""
        none_s, selective_s, full_s = (own + sign * more for own, more in zip(self.modes, other.modes, strict=True))
        return _OnePart(forward_s=self.forward_s + sign * other.forward_s, modes=(none_s, selective_s, full_s))

    def times(self, forward: Floats, backward: Floats) -> _OnePart:
        """Multiply the passes by ratios; what is computed again is forward."""
        passes = self.passes
        none_s = forward * passes.forward_s + backward * passes.backward_s
        again = (forward * (mode_s - self.modes[0]) for mode_s in self.modes[1:])
        selective_s, full_s = (none_s + one for one in again)
        return _OnePart(forward_s=forward * passes.forward_s, modes=(none_s, selective_s, full_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Seconds of every part of a model on a GPU type, for each recomputation setting and way to share a micro-batch.

    Args:
        codes: The ways as numbers, in rising order.
        bases: Of those numbers' digits.
        seconds: ``[settings x ways, parts]``.
    """

    codes: Ints
    bases: tuple[int, ...]
    seconds: Floats

    @classmethod
    def of(
        cls,
        model: ModelCost,
        train: TrainSpec,
        gpu_type: GpuType,
        several: Sequence[Candidates],
        *,
        implementation: Implementation = WORKER,
        calibration: Calibration = CALIBRATION,
    ) -> PartTimes:
        """Return the times for all ways that candidates share micro-batches."""
        machine = _Machine(
            gpu_type=gpu_type, precision=train.precision, implementation=implementation, calibration=calibration
        )
        digits = [_digits(one) for one in several]
        bases = tuple(max(int(each[index].max()) for each in digits) + 1 for index in range(_DIGITS))
        # Not np.unique, which loads a package at its first call.
        codes = np.sort(np.concatenate([_code(each, bases).ravel() for each in digits]))
        codes = codes[np.concatenate(([True], codes[1:] > codes[:-1]))]
        shards = _shards(codes, bases)
        times = [_part_times_s(part, machine, shards) for part in model.parts]
        told = Told.of(gpu_type, train, model)
        if told is not None:
            times = [_measured_s(told, index, machine, shards, modelled) for index, modelled in enumerate(times)]
        by_mode = [np.stack([one.modes[index] for one in times], axis=-1) for index in range(len(RECOMPUTE_MODES))]
        return cls(codes=codes, bases=bases, seconds=np.concatenate(by_mode))

    def of_stages(self, model: ModelCost, candidates: Candidates) -> Floats:
        """Return seconds of forward, backward and recomputation of one micro-batch on each stage, ``[n, p]``."""
        way = np.searchsorted(self.codes, _code(_digits(candidates), self.bases))
        rows = candidates.recompute[:, None] * len(self.codes) + way
        return candidates.sums(model.cumulative(self.seconds), rows)


_DIGITS = 4


def _digits(candidates: Candidates) -> tuple[Ints, ...]:
    """Return what a way to share out a micro-batch is made of, in the order of ``Shards``."""
    return (
        candidates.micro_batch_size[:, None],
        candidates.tp,
        candidates.sequence_divisor,
        candidates.expert_parallel[:, None],
    )


def _code(digits: tuple[Ints, ...], bases: tuple[int, ...]) -> Ints:
    code = digits[0]
    for digit, base in zip(digits[1:], bases[1:], strict=True):
        code = code * base + digit
    return code


def _shards(codes: Ints, bases: tuple[int, ...]) -> Shards:
    found: list[Floats] = []
    for base in reversed(bases[1:]):
        codes, digit = np.divmod(codes, base)
        found.append(digit.astype(np.float64))
    ep, sequence, tp = found
    return Shards(samples=codes.astype(np.float64), tp=tp, sequence=sequence, ep=ep)


def _measured_s(told: Told, index: int, machine: _Machine, shards: Shards, modelled: _OnePart) -> _OnePart:
    """Return a part's seconds as a profile has them.

    Where its times hold tensor-parallel collectives, these are taken out again as the model has them: they are a term
    of their own, so that the sum is what was measured.
    """
    part = told.model.parts[index]

    def collectives(at: Shards) -> _OnePart:
        return _reductions_s(part, machine, at, counts=told.profile.includes_collectives)

    def at_measured(sizes: Floats, degrees: Floats) -> PassTimes:
        ones = np.ones_like(sizes)
        at = Shards(samples=sizes, tp=degrees, sequence=ones, ep=ones)
        return _part_times_s(part, machine, at).plus(collectives(at)).passes

    forward, backward = told.ratios(index, (shards.samples, shards.tp), at_measured)
    apart = collectives(shards)
    return modelled.plus(apart).times(forward, backward).plus(apart, sign=-1.0)


def _reductions_s(part: Part, machine: _Machine, shards: Shards, *, counts: bool) -> _OnePart:
    """Return the seconds of a part's tensor-parallel collectives; nothing where they do not count."""
    one, each = part.reductions, counts * shards.samples * ELEMENT_BYTES[machine.precision]
    ring = node_ring(machine.gpu_type, shards.tp, machine.calibration)
    forward_s = all_reduce_s(ring, one.forward_elements * each, float(counts * one.forward_count))
    both_s = forward_s + all_reduce_s(ring, one.backward_elements * each, float(counts * one.backward_count))
    if not part.is_layer:
        return _OnePart(forward_s=forward_s, modes=(both_s, both_s, both_s))
    attention_s = all_reduce_s(ring, one.attention_elements * each, float(counts * one.attention_count))
    return _OnePart(forward_s=forward_s, modes=(both_s, both_s + attention_s, both_s + forward_s))


def _part_times_s(part: Part, machine: _Machine, shards: Shards) -> _OnePart:
    """Return a part's seconds, ``[u]`` each."""
    kernels = part.kernel_count + part.expert_kernel_count * part.expert_count / shards.ep
    times = _times(part.products, part.kept, part=part, machine=machine, shards=shards, kernels=kernels)
    busy_s = times.both_s(is_flash=machine.implementation.attention is Attention.FLASH)
    launches_s = _FORWARD_AND_BACKWARD * times.launches_s
    none_s = machine.together_s(busy_s, launches_s)
    forward_s = machine.together_s(times.forward_s, times.launches_s)
    if not part.is_layer:
        return _OnePart(forward_s=forward_s, modes=(none_s, none_s, none_s))
    core_only = machine.implementation.recomputes_core_only
    attention = [one for one in part.products if one.is_attention and (one.head_size or not core_only)]
    again = [kept for kept in part.kept if kept.modes == ONLY_NONE and (kept.is_score or not core_only)]
    kernels = np.full_like(shards.tp, part.attention_kernel_count / (2.0 if core_only else 1.0))
    core = _times(attention, again, part=part, machine=machine, shards=shards, kernels=kernels)
    selective_s = machine.together_s(busy_s + core.forward_s, launches_s + core.launches_s)
    full_s = machine.together_s(busy_s + times.forward_s, launches_s + times.launches_s)
    return _OnePart(forward_s=forward_s, modes=(none_s, selective_s, full_s))


def held_parameters(part: Part, shards: Shards) -> Floats:
    """Return a part's parameters on one rank, ``[u]``."""
    counts = part.parameters
    held: Floats = counts.replicated + (counts.split + counts.tied + counts.expert / shards.ep) / shards.tp
    return held


def _times(
    products: Iterable[Product],
    kept: Iterable[Kept],
    *,
    part: Part,
    machine: _Machine,
    shards: Shards,
    kernels: Floats,
) -> _Times:
    """Return the seconds of products, and of the memory traffic of the operators between them."""
    forward_s, back_s, scores_s = (np.zeros_like(shards.tp) for _ in range(3))
    for product in products:
        if product.head_size:
            scores_s += _scores_s(product, machine, shards)
            continue
        pieces = part.expert_count / shards.ep if product.is_expert else np.ones_like(shards.tp)
        forward, back = _product_s(product, machine, shards, pieces)
        forward_s += pieces * forward
        back_s += pieces * back
    traffic_bytes = 4.0 * part.logits_elements * shards.samples / shards.divisor(part.logits_spread)
    for tensor in kept:
        if Recompute.NONE in tensor.modes:
            each = tensor.element_bytes or ELEMENT_BYTES[machine.precision]
            traffic_bytes += tensor.elements * each * shards.samples / shards.divisor(tensor.spread)
    traffic_bytes = machine.calibration.activation_passes * traffic_bytes
    if machine.implementation.weight_passes:
        weight_bytes = held_parameters(part, shards) * ELEMENT_BYTES[machine.precision]
        traffic_bytes += machine.implementation.weight_passes * weight_bytes
    return _Times(
        products_s=forward_s,
        products_back_s=back_s,
        scores_s=scores_s,
        rest_s=traffic_bytes / machine.gpu_type.memory_bandwidth_bytes_per_s,
        launches_s=kernels * machine.launch_s,
    )


def _product_s(product: Product, machine: _Machine, shards: Shards, pieces: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of a product with a weight in the forward and in the backward pass.

    Each product is bound by computing or by memory, the two blended. The backward pass makes the gradients of the
    input and of the weight, whose tiles fill the processors in their own way.
    """
    divisor = shards.divisor(product.spread)
    flops = product.flops_per_sample * shards.samples / (divisor * pieces)
    compute_s = flops / machine.product_flops_per_s
    if not product.inner:
        return compute_s, 2.0 * compute_s
    inner = product.inner / divisor if product.splits_inner else np.full_like(divisor, product.inner)
    outer = np.full_like(divisor, product.outer) if product.splits_inner else product.outer / divisor
    positions = flops / (2.0 * inner * outer)
    elements = positions * (inner + outer) + inner * outer
    bandwidth = machine.gpu_type.memory_bandwidth_bytes_per_s * machine.calibration.product_bandwidth_share
    memory_s = elements * ELEMENT_BYTES[machine.precision] / bandwidth

    def bound_s(rows: Floats, columns: Floats) -> Floats:
        tiled_s = compute_s * _tiling(rows, columns, machine)
        seconds: Floats = (tiled_s**_BLEND + memory_s**_BLEND) ** (1.0 / _BLEND)
        return seconds

    return bound_s(positions, outer), bound_s(positions, inner) + bound_s(inner, outer)


def _tiling(rows: Floats, columns: Floats, machine: _Machine) -> Floats:
    """Return by what a product is slower because its last wave of tiles does not fill the processors.

    Kernels compute one tile on each processor at a time; the best of some tile shapes is taken. A part of the loss is
    saved by splitting sums, which the constant holds.
    """
    processors = machine.gpu_type.processor_count
    if processors is None:
        return np.ones_like(rows)
    best = np.zeros_like(rows)
    for height, width, share in _TILES:
        tiles = np.ceil(rows / height) * np.ceil(columns / width)
        whole = rows * columns / (height * width * processors)
        best = np.maximum(best, share * whole / np.ceil(tiles / processors))
    loss: Floats = 1.0 + machine.calibration.tiling_share * (1.0 / best - 1.0)
    return loss


def _scores_s(product: Product, machine: _Machine, shards: Shards) -> Floats:
    """Return the seconds of the scores and their product with the values."""
    calibration = machine.calibration
    share = calibration.stored_share
    if machine.implementation.attention is Attention.FLASH:
        share = calibration.flash_share
    if machine.has_tensor_cores and product.head_size % _HEAD_ALIGNMENT:
        share *= calibration.odd_head_share
    flops = product.flops_per_sample * shards.samples / shards.divisor(product.spread)
    return flops / (machine.product_flops_per_s * share)
