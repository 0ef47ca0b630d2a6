"""Which rank holds which rows of which parameter, and who must agree on their gradients. Pure: no I/O, no clock.

Every parameter is a logical tensor; a rank holds a run of rows of its first dimension. Ranks that hold the same rows
form their *sharers*: they sum their gradients, may shard optimizer state among themselves, and one of them writes the
rows to a checkpoint. Where replicas have unequal tensor-parallel degrees, or ends of the model are tied, the rows are
cut at every boundary anybody has. Everything about a layout follows from this, also for plans whose stages differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from arena.domain.job import ModelSpec
from arena.domain.parallel import ParallelPlan, even_split
from arena.domain.parameters import Parameter, Place, parameters_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """Where a rank stands in the plan (``ParallelPlan.replicas_by_rank``)."""

    rank: int
    stage: int
    replica: int
    tp_index: int
    tp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Rows of a parameter that the same ranks hold.

    Args:
        parameter: The parameter.
        start, stop: Its rows.
        ranks: The sharers, in rank order.
        spans_stages: Whether they stand on more than one stage.
        gradient_weight: What this rank's gradient counts for in the sum over the sharers: 1 where each has a part of
            its own, 1 / tp where the ranks of a replica all have the replica's whole.
    """

    parameter: Parameter
    start: int
    stop: int
    ranks: tuple[int, ...]
    spans_stages: bool
    gradient_weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """One model chunk of the pipeline.

    Args:
        index: Position among all chunks of the pipeline.
        count: Chunks of the whole pipeline.
        layers: Global layer indices.
    """

    index: int
    count: int
    layers: range

    @property
    def is_first(self) -> bool:
        """Whether the model's beginning is here."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the model's end is here."""
        return self.index == self.count - 1


def chunks_of(plan: ParallelPlan) -> tuple[ChunkSpec, ...]:
    """Return all chunks in pipeline order; chunk ``c`` belongs to stage ``c % pp``."""
    splits = [even_split(stage.layer_count, plan.virtual_stage_count) for stage in plan.stages]
    counts = [split[turn] for turn in range(plan.virtual_stage_count) for split in splits]
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    return tuple(
        ChunkSpec(index=index, count=len(counts), layers=range(first, first + count))
        for index, (first, count) in enumerate(zip(firsts, counts, strict=True))
    )


def coordinates(plan: ParallelPlan) -> tuple[Coordinate, ...]:
    """Return where each rank stands, by rank."""
    places = [
        (stage, replica, tp_index, plan.stages[stage].replicas[replica].tp)
        for stage, replica in plan.replicas_by_rank
        for tp_index in range(plan.stages[stage].replicas[replica].tp)
    ]
    return tuple(
        Coordinate(rank=rank, stage=stage, replica=replica, tp_index=index, tp=tp)
        for rank, (stage, replica, index, tp) in enumerate(places)
    )


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A model under a plan."""

    spec: ModelSpec
    plan: ParallelPlan

    @cached_property
    def ranks(self) -> tuple[Coordinate, ...]:
        """Coordinates by rank."""
        return coordinates(self.plan)

    @cached_property
    def chunks(self) -> tuple[ChunkSpec, ...]:
        """All chunks in pipeline order."""
        return chunks_of(self.plan)

    def rank_of(self, stage: int, replica: int, tp_index: int) -> int:
        """Return the rank at a place."""
        return self._rank_by_place[stage, replica, tp_index]

    def chunk_of(self, place: Place, rank: int) -> int:
        """Return the chunk in which a rank uses what stands at a place of the model."""
        if place == "first":
            # Tied embeddings stand at the other end as well.
            return 0 if self.ranks[rank].stage == 0 else len(self.chunks) - 1
        if place == "last":
            return len(self.chunks) - 1
        return self._chunk_of_layer[place]

    def shares(self, rank: int) -> tuple[Share, ...]:
        """Return what a rank holds, cut by sharers, in model order."""
        return tuple(
            Share(
                parameter=parameter,
                start=start,
                stop=stop,
                ranks=ranks,
                spans_stages=len({self.ranks[sharer].stage for sharer in ranks}) > 1,
                gradient_weight=self._gradient_weight(parameter, self.ranks[rank]),
            )
            for parameter in parameters_of(self.spec)
            for start, stop, ranks in self.cuts(parameter)
            if rank in ranks
        )

    def cuts(self, parameter: Parameter) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return the rows of a parameter with the ranks that share them: (start, stop, ranks)."""
        holders = self._holders[parameter.name]
        edges = sorted({edge for _, start, stop in holders for edge in (start, stop)})
        return [
            (start, stop, tuple(rank for rank, first, last in holders if first <= start and stop <= last))
            for start, stop in itertools.pairwise(edges)
        ]

    @cached_property
    def sharer_sets(self) -> tuple[tuple[int, ...], ...]:
        """Every set of ranks that shares something, in a fixed order."""
        return tuple(sorted({ranks for parameter in parameters_of(self.spec) for _, _, ranks in self.cuts(parameter)}))

    @cached_property
    def tensor_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each replica of each stage."""
        groups: dict[tuple[int, int], list[int]] = {}
        for at in self.ranks:
            groups.setdefault((at.stage, at.replica), []).append(at.rank)
        return tuple(tuple(ranks) for ranks in groups.values())

    @cached_property
    def expert_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that exchange tokens: ``expert_parallel`` neighbouring replicas at the same tensor-parallel index."""
        groups: dict[tuple[int, int, int], list[int]] = {}
        for at in self.ranks:
            groups.setdefault((at.stage, at.replica // self.plan.expert_parallel, at.tp_index), []).append(at.rank)
        return tuple(tuple(ranks) for ranks in groups.values())

    def _gradient_weight(self, parameter: Parameter, at: Coordinate) -> float:
        if parameter.is_split:
            return 1.0
        # Under sequence parallelism ranks see tokens of their own; a class head comes after the pooling joins them.
        is_partial = self.plan.sequence_parallel and not parameter.name.startswith("head.")
        return 1.0 if is_partial else 1.0 / at.tp

    @cached_property
    def _chunk_of_layer(self) -> dict[Place, int]:
        return {layer: chunk.index for chunk in self.chunks for layer in chunk.layers}

    @cached_property
    def _rank_by_place(self) -> dict[tuple[int, int, int], int]:
        return {(at.stage, at.replica, at.tp_index): at.rank for at in self.ranks}

    @cached_property
    def _holders(self) -> dict[str, tuple[tuple[int, int, int], ...]]:
        """(rank, start, stop) of everybody who holds rows of a parameter, by its name."""
        return {parameter.name: tuple(self._holders_of(parameter)) for parameter in parameters_of(self.spec)}

    def _holders_of(self, parameter: Parameter) -> Iterator[tuple[int, int, int]]:
        rows = parameter.shape[0]
        stages = self._stages_of(parameter)
        for at in self.ranks:
            if at.stage not in stages or not self._has_expert(parameter, at):
                continue
            if parameter.is_split:
                yield at.rank, rows * at.tp_index // at.tp, rows * (at.tp_index + 1) // at.tp
            else:
                yield at.rank, 0, rows

    def _stages_of(self, parameter: Parameter) -> set[int]:
        pp = self.plan.pp
        if parameter.place == "first":
            return {0, pp - 1} if parameter.is_tied else {0}
        if parameter.place == "last":
            return {pp - 1}
        return {chunk.index % pp for chunk in self.chunks if parameter.place in chunk.layers}

    def _has_expert(self, parameter: Parameter, at: Coordinate) -> bool:
        if parameter.expert is None:
            return True
        each = (self.spec.expert_count or 0) // self.plan.expert_parallel
        return parameter.expert // each == at.replica % self.plan.expert_parallel
