"""What a step takes, costs and needs under a plan over mixed GPUs: the judge of all plans. Pure: no I/O, no clock.

Stages are priced by ``arena.planner.cost.evaluate`` (see ``heterogeneous_tables``), so a plan on one type costs what
the uniform search says. Beyond that:

* A micro-batch's sends take the slower of two neighbours' networks, and what lies between their zones; inside a node,
  its link, where the whole plan is on one node.
* Replicas with the same index form a chain; the closed form of ``arena.planner.pipeline`` holds for each chain, and the
  last one counts. Where micro-batches leave their chain (stages with unequal replicas), every pass is run instead.
* A stage synchronises over the nodes of all its replicas. Each kind's ring has as many replicas on every node as it has
  itself, and the slowest network among the stage's; the slowest kind counts.
* Between zones a stage's gradients go round a ring of zones once in each half of the all-reduce.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, pairwise

import numpy as np

from arena.domain.grid import Estimate
from arena.domain.job import TrainSpec
from arena.domain.micro_batches import MicroBatch, micro_batches
from arena.domain.parallel import ParallelPlan, Replica
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.schedule import Action, Pass, schedule_of
from arena.errors import SpecError
from arena.planner.candidates import Floats, chunk_units
from arena.planner.communication import Tier
from arena.planner.cost import MODELLED_RELATIVE_ERROR
from arena.planner.heterogeneous_offer import Offer, PartKey, ZoneLinks
from arena.planner.heterogeneous_stages import (
    StageFigures,
    after_stages_s,
    boundary_bytes,
    boundary_s,
    own_tier,
    slower,
    stage_figures,
    stage_gradient_bytes,
)
from arena.planner.heterogeneous_sync import network_of
from arena.planner.heterogeneous_tables import Kind, StageTable
from arena.planner.memory import USABLE_SHARE
from arena.planner.pipeline import BACKWARD_SHARE, pipeline_time_s, step_end_s
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
    _after: dict[tuple[object, ...], float] = field(default_factory=dict)
    _boundaries: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    def learn(self, plan: ParallelPlan, table: StageTable) -> None:
        """Take the figures of a plan's stages from a table of this job and offer."""
        keys, first = sorted(self.offer), 0
        for stage, one in enumerate(plan.stages):
            units, left, end = stage_units(plan, stage), plan.pp - stage, first + one.layer_count
            for replica in dict.fromkeys(one.replicas):
                key = self._key(replica)
                index = table.kinds.index(Kind(part=keys.index(key), tp=replica.tp))
                known = (key, replica.tp, units, left, plan.micro_batch_size, plan.recompute, plan.gpu_count == 1)
                self._figures.setdefault(
                    known,
                    StageFigures(
                        time_s=float(table.compute_s[index, first, end]),
                        memory_bytes=float(table.memory_bytes[index, first, end])
                        + max(left - 2, 0) * float(table.memory_step_bytes[index, first, end]),
                    ),
                )
            first = end

    def fresh(self) -> Judge:
        """Return a judge that has learned nothing."""
        return Judge(train=self.train, offer=self.offer, links=self.links)

    def judge(self, plan: ParallelPlan) -> Judgement:
        """Return a plan's figures by the closed form.

        Raises:
            SpecError: It names GPUs that are not offered, or zones that nothing links.
        """
        timing = self._timing(plan)
        stages_s, pipeline_s, iter_time_s = self._closed_form(plan, timing)
        gpu_counts = self._gpu_counts(plan)
        transfer_usd = self._transfer_usd(plan, timing.batches)
        memory = self._memory(plan)
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

    def _closed_form(self, plan: ParallelPlan, timing: _Timing) -> tuple[float, float, float]:
        """Return the busiest stage's time, the pipeline's, and the step's.

        Where micro-batches stay with their chain of replicas, each chain is a pipeline of its own. Where they cross,
        no closed form holds and the passes are run.
        """
        if any(len(set(batch.replicas)) > 1 for batch in timing.batches):
            end_s = self._simulated_s(plan, timing)
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

    def simulate_s(self, plan: ParallelPlan) -> float:
        """Return the step time by running every pass in the order in which the worker does."""
        return self._simulated_s(plan, self._timing(plan))

    def _simulated_s(self, plan: ParallelPlan, timing: _Timing) -> float:
        orders = schedule_of(plan, timing.batches)
        done: dict[Action, float] = {}
        free = dict.fromkeys(orders, 0.0)
        position = dict.fromkeys(orders, 0)
        left = sum(len(order) for order in orders.values())
        while left:
            before = left
            for key, order in orders.items():
                while position[key] < len(order):
                    action = order[position[key]]
                    ready = _ready_at(action, done, plan.pp)
                    if ready is None:
                        break
                    share = 1.0 - BACKWARD_SHARE if action.direction is Pass.FORWARD else BACKWARD_SHARE
                    free[key] = max(ready, free[key]) + share * float(timing.replica_s[key[0]][key[1]])
                    done[action] = free[key]
                    position[key] += 1
                    left -= 1
            if left == before:
                raise SpecError("the orders of a plan wait for each other", why=str(plan))
        ends = [max(free[key] for key in orders if key[0] == stage) for stage in range(plan.pp)]
        return max(end + float(after) for end, after in zip(ends, timing.after_s, strict=True))

    def _timing(self, plan: ParallelPlan) -> _Timing:
        batches = micro_batches(plan, self.train.global_batch)
        placed = self._placed(plan)
        is_one_node = len({node for stage in placed for node in stage}) == 1
        sends = self._sends(plan, batches, is_one_node)
        seconds = [
            np.array([self._stage(plan, stage, replica).time_s for replica in one.replicas]) + sends[stage]
            for stage, one in enumerate(plan.stages)
        ]
        after = np.array([self._after_s(plan, stage, placed[stage]) for stage in range(plan.pp)])
        return _Timing(batches=batches, replica_s=seconds, after_s=after)

    def _key(self, replica: Replica) -> PartKey:
        found = [
            key for key in sorted(self.offer) if replica.gpu_type in {None, key[0]} and replica.zone in {None, key[1]}
        ]
        if len(found) != 1:
            asked = f"{replica.gpu_type or 'any type'} in {replica.zone or 'any zone'}"
            offered = ", ".join("/".join(key) for key in sorted(self.offer))
            raise SpecError(f"a replica wants {asked}", why=f"{len(found)} parts of the offer are that: {offered}")
        return found[0]

    def _stage(self, plan: ParallelPlan, stage: int, replica: Replica) -> StageFigures:
        key = self._key(replica)
        units = stage_units(plan, stage)
        left = plan.pp - stage
        known = (key, replica.tp, units, left, plan.micro_batch_size, plan.recompute, plan.gpu_count == 1)
        if known not in self._figures:
            self._figures[known] = stage_figures(
                self.train,
                self.offer[key],
                units,
                tp=replica.tp,
                stages_left=left,
                setting=(plan.recompute, plan.micro_batch_size),
                is_alone=plan.gpu_count == 1,
            )
        return self._figures[known]

    def _placed(self, plan: ParallelPlan) -> list[list[tuple[PartKey, int]]]:
        """Return the node of each replica: every part is filled in rank order."""
        used: Counter[PartKey] = Counter()
        placed: list[list[tuple[PartKey, int]]] = []
        for stage in plan.stages:
            nodes: list[tuple[PartKey, int]] = []
            for replica in stage.replicas:
                key = self._key(replica)
                size = self.offer[key].gpus_per_node
                room = size - used[key] % size
                used[key] += room if room < replica.tp else 0
                nodes.append((key, used[key] // size))
                used[key] += replica.tp
            placed.append(nodes)
        return placed

    def _tier(self, one: PartKey, other: PartKey, *, is_one_node: bool) -> Tier:
        tier = slower(
            own_tier(self.offer[one].gpu_type, is_one_node=is_one_node),
            own_tier(self.offer[other].gpu_type, is_one_node=is_one_node),
        )
        return tier if one[1] == other[1] else slower(tier, self.links.tier(one[1], other[1]))

    def _sends(self, plan: ParallelPlan, batches: Sequence[MicroBatch], is_one_node: bool) -> list[Floats]:
        """Return the longest sends of a micro-batch of each replica: forward behind it and backward in front."""
        found = [np.zeros((2, len(stage.replicas))) for stage in plan.stages]
        layer = 0
        for stage, (one, other) in enumerate(pairwise(plan.stages)):
            layer += one.layer_count
            routes = {(batch.replicas[stage], batch.replicas[stage + 1]) for batch in batches}
            for mine, yours in routes:
                keys = self._key(one.replicas[mine]), self._key(other.replicas[yours])
                seconds = self._send_s(keys, plan.micro_batch_size, layer, is_one_node=is_one_node)
                found[stage][0, mine] = max(found[stage][0, mine], seconds)
                found[stage + 1][1, yours] = max(found[stage + 1][1, yours], seconds)
        return [each.sum(axis=0) for each in found]

    def _send_s(self, keys: tuple[PartKey, PartKey], size: int, layer: int, *, is_one_node: bool) -> float:
        known = (keys, size, is_one_node)
        if known not in self._boundaries:
            tier = self._tier(*keys, is_one_node=is_one_node)
            self._boundaries[known] = boundary_s(self.train, self.offer[keys[0]].gpu_type, tier, size)
        return float(self._boundaries[known][layer])

    def _after_s(self, plan: ParallelPlan, stage: int, nodes: Sequence[tuple[PartKey, int]]) -> float:
        replicas = plan.stages[stage].replicas
        total = len(set(nodes))
        keys = sorted({key for key, _ in nodes})
        kinds = sorted({(self._key(one), one.tp) for one in dict.fromkeys(replicas)})
        if len(kinds) == 1:
            by_node = Counter(node for node in nodes)
            counts = tuple(sorted((count * kinds[0][1] for count in by_node.values()), reverse=True))
            return self._ring_s(plan, stage, kinds[0], (counts, len(replicas), tuple(keys)))
        seconds = []
        for key, tp in kinds:
            own = [node for node, one in zip(nodes, replicas, strict=True) if (self._key(one), one.tp) == (key, tp)]
            local = -(-len(own) // len(set(own)))
            seconds.append(self._ring_s(plan, stage, (key, tp), ((local * tp,) * total, local * total, tuple(keys))))
        return max(seconds)

    def _ring_s(
        self,
        plan: ParallelPlan,
        stage: int,
        kind: tuple[PartKey, int],
        ring: tuple[tuple[int, ...], int, tuple[PartKey, ...]],
    ) -> float:
        node_counts, rank_count, keys = ring
        key, tp = kind
        units, left = stage_units(plan, stage), plan.pp - stage
        known = (kind, units, left, ring)
        if known not in self._after:
            tier = own_tier(self.offer[key].gpu_type, is_one_node=False)
            for pair in combinations_with_replacement(keys, 2):
                tier = slower(tier, self._tier(*pair, is_one_node=False))
            seconds = after_stages_s(
                self.train,
                network_of(self.offer[key].gpu_type, tier),
                [(stage_units(plan, at), plan.pp - at) for at in range(plan.pp)],
                node_counts=node_counts,
                tp=tp,
                dp=rank_count,
            )
            # Stages are mostly alike: what one call costs is worth all of them.
            for at, one in enumerate(seconds):
                self._after[kind, stage_units(plan, at), plan.pp - at, ring] = float(one)
        return self._after[known]

    def _gpu_counts(self, plan: ParallelPlan) -> dict[PartKey, int]:
        counts: Counter[PartKey] = Counter()
        for stage in plan.stages:
            for replica in stage.replicas:
                counts[self._key(replica)] += replica.tp
        return dict(sorted(counts.items()))

    def _usd_per_s(self, gpu_counts: dict[PartKey, int]) -> float:
        return (
            sum(self.offer[key].gpu_type.usd_per_hour * count for key, count in gpu_counts.items()) / _SECONDS_PER_HOUR
        )

    def _transfer_usd(self, plan: ParallelPlan, batches: Sequence[MicroBatch]) -> float:
        if len({zone for _, zone in self.offer}) == 1:
            return 0.0
        usd, layer = 0.0, 0
        for stage, (one, other) in enumerate(pairwise(plan.stages)):
            layer += one.layer_count
            routes = Counter((batch.replicas[stage], batch.replicas[stage + 1]) for batch in batches)
            for (mine, yours), count in sorted(routes.items()):
                keys = self._key(one.replicas[mine]), self._key(other.replicas[yours])
                size = boundary_bytes(self.train, self.offer[keys[0]].gpu_type, plan.micro_batch_size)[layer]
                if keys[0][1] != keys[1][1]:
                    usd += 2.0 * count * float(size) * self.links.price(keys[0][1], keys[1][1])
        return usd + sum(self._ring_usd(plan, stage) for stage in range(plan.pp))

    def _ring_usd(self, plan: ParallelPlan, stage: int) -> float:
        keys = sorted({self._key(replica) for replica in plan.stages[stage].replicas})
        zones = sorted({zone for _, zone in keys})
        if len(zones) == 1:
            return 0.0
        size = stage_gradient_bytes(self.train, self.offer[keys[0]].gpu_type, stage_units(plan, stage))
        share = 2.0 * (len(zones) - 1) / len(zones)
        return share * size * sum(self.links.price(one, other) for one, other in pairwise([*zones, zones[0]]))

    def _memory(self, plan: ParallelPlan) -> list[list[tuple[PartKey, int]]]:
        return [
            [
                (self._key(replica), int(self._stage(plan, index, replica).memory_bytes))
                for replica in dict.fromkeys(stage.replicas)
            ]
            for index, stage in enumerate(plan.stages)
        ]

    def _refusal(self, gpu_counts: dict[PartKey, int], memory: list[list[tuple[PartKey, int]]]) -> Reason | None:
        for key, count in gpu_counts.items():
            if count > self.offer[key].gpu_count:
                free = self.offer[key].gpu_count
                return reason(ReasonCode.INSUFFICIENT_GPUS, needed=count, free=free, total=free, gpu_type="/".join(key))
        for stage, sizes in enumerate(memory):
            for key, size in sizes:
                limit = USABLE_SHARE * self.offer[key].gpu_type.memory_bytes
                if size > limit:
                    return reason(ReasonCode.MEMORY, needed_gib=size / GIB, stage=stage, capacity_gib=limit / GIB)
        return None


def evaluate_plan(train: TrainSpec, plan: ParallelPlan, offer: Offer, links: ZoneLinks | None = None) -> Judgement:
    """Return the figures of one plan over mixed GPUs by the closed form.

    Raises:
        SpecError: The plan shards state, interleaves, or names GPUs that are not offered.
    """
    if plan.zero or plan.virtual_stage_count > 1 or plan.expert_parallel > 1 or plan.sequence_parallel:
        raise SpecError(
            "only plans without sharding, interleaving, ep and sp are judged over mixed GPUs", why=str(plan)
        )
    return Judge(train=train, offer=offer, links=links or ZoneLinks()).judge(plan)


def stage_units(plan: ParallelPlan, stage: int) -> tuple[int, int]:
    """Return a stage's first unit and the one behind its last."""
    first, last = chunk_units(tuple(one.layer_count for one in plan.stages), 1)
    return int(first[stage, 0]), int(last[stage, 0])


def _ready_at(action: Action, done: dict[Action, float], pp: int) -> float | None:
    """Return when what a pass needs is there, None where nobody knows yet."""
    if action.direction is Pass.FORWARD:
        if action.chunk == 0:
            return 0.0
        return done.get(Action(Pass.FORWARD, action.chunk - 1, action.micro_batch))
    if action.chunk == pp - 1:
        return done.get(Action(Pass.FORWARD, action.chunk, action.micro_batch))
    return done.get(Action(Pass.BACKWARD, action.chunk + 1, action.micro_batch))
