"""Lays a model out on the ranks of a plan and runs steps through it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from arena.domain.job import TrainSpec
from arena.domain.micro_batches import MicroBatch, micro_batches
from arena.domain.parallel import ParallelPlan
from arena.domain.schedule import Action, Orders, Pass, schedule_of
from arena_agent.worker.bank import Bank
from arena_agent.worker.collectives import TensorGroup
from arena_agent.worker.data import targets_per_sample
from arena_agent.worker.feed import Feed
from arena_agent.worker.groups import Groups, connect, make_groups
from arena_agent.worker.loss import summed_cross_entropy
from arena_agent.worker.models.chunk import Chunk
from arena_agent.worker.models.environment import Environment, ExpertGroup
from arena_agent.worker.placement import Coordinate, Placement
from arena_agent.worker.units import UnitBuilder
from arena_agent.worker.wires import Itinerary, Wires, itinerary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """How one global batch runs through the pipeline, as seen by a rank.

    Args:
        batches: Its micro-batches.
        actions: What this rank does, in order.
        messages: What it sends and receives.
    """

    batches: tuple[MicroBatch, ...]
    actions: tuple[Action, ...]
    messages: Itinerary


@dataclass(slots=True, kw_only=True)
class Layout:
    """A rank's share of the model and how a step runs through it.

    Args:
        train: The job's training part.
        placement: Who holds what.
        at: This rank's coordinate.
        groups: Process groups.
        device, dtype: Where and in what precision this rank computes.
        bank: The rank's parameters.
        chunks: Its model chunks by their index in the pipeline.
    """

    train: TrainSpec
    placement: Placement
    at: Coordinate
    groups: Groups
    device: torch.device
    dtype: torch.dtype
    bank: Bank
    chunks: dict[int, Chunk]
    _steps: dict[tuple[int, bool], StepPlan] = field(default_factory=dict)

    @property
    def plan(self) -> ParallelPlan:
        """The whole plan."""
        return self.placement.plan

    @property
    def computes_loss(self) -> bool:
        """Whether this rank holds the model's end and counts its loss: ranks of a replica have the same."""
        return self.at.stage == self.plan.pp - 1 and self.at.tp_index == 0

    def step_plan(self, sample_count: int, *, is_training: bool = True) -> StepPlan:
        """Return how a batch of so many samples runs; made once for each size."""
        key = (sample_count, is_training)
        if key not in self._steps:
            batches = micro_batches(self.plan, sample_count)
            orders = schedule_of(self.plan, batches)
            if not is_training:
                orders = _forward_only(orders)
            self._steps[key] = StepPlan(
                batches=batches,
                # A batch of fewer samples than replicas, of an evaluation, leaves some with nothing to do.
                actions=orders.get((self.at.stage, self.at.replica), ()),
                messages=itinerary(self.placement, batches, orders, self.at.rank),
            )
        return self._steps[key]

    def run(self, plan: StepPlan, feed: Feed) -> list[Tensor]:
        """Run a step's passes; gradients add up in the bank.

        Returns:
            This rank's summed losses of counted micro-batches, and right answers for classes; both divided by the
            number of targets of the batch.
        """
        pass_ = _Passes(layout=self, plan=plan, feed=feed, wires=self._wires(plan))
        return pass_.run()

    def _wires(self, plan: StepPlan) -> Wires:
        return Wires(
            placement=self.placement,
            batches=plan.batches,
            plan=plan.messages,
            rank=self.at.rank,
            groups=self.groups,
            dtype=self.dtype,
            device=self.device,
        )


@dataclass(slots=True, kw_only=True)
class _Passes:
    """One step under way; ``kept`` holds input and output of forward passes that wait for their backward pass."""

    layout: Layout
    plan: StepPlan
    feed: Feed
    wires: Wires
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    right: Tensor = field(default_factory=lambda: torch.zeros(()))

    def run(self) -> list[Tensor]:
        self.loss = torch.zeros((), device=self.layout.device)
        self.right = torch.zeros((), device=self.layout.device)
        last_backward = {action.chunk: action for action in self.plan.actions if action.direction is Pass.BACKWARD}
        is_training = bool(last_backward)
        with torch.set_grad_enabled(is_training):
            for action in self.plan.actions:
                if action.direction is Pass.FORWARD:
                    self._forward(action, is_kept=is_training)
                else:
                    self._backward(action, is_last=last_backward[action.chunk] == action)
        self.wires.finish()
        return [self.loss, self.right]

    def _forward(self, action: Action, *, is_kept: bool) -> None:
        chunk = self.layout.chunks[action.chunk]
        if chunk.spec.is_first:
            x = self.feed.inputs(action.micro_batch)
        else:
            x = self.wires.receive(action).requires_grad_(is_kept)
        y = chunk(x, self.feed.rows(action.micro_batch))
        if chunk.spec.is_last:
            y = self._loss(y, action.micro_batch, chunk)
        else:
            self.wires.send(action, y)
        if is_kept:
            self.kept[action.chunk, action.micro_batch] = (x, y)

    def _backward(self, action: Action, *, is_last: bool) -> None:
        x, y = self.kept.pop((action.chunk, action.micro_batch))
        gradients = self.layout.bank.gradients
        gradient = None if self.layout.chunks[action.chunk].spec.is_last else self.wires.receive(action)
        gradients.start_backward(action.chunk, is_last=is_last)
        torch.autograd.backward(y, gradient)
        gradients.end_backward()
        if x.grad is not None:
            self.wires.send(action, x.grad)

    def _loss(self, logits: Tensor, micro_batch: int, chunk: Chunk) -> Tensor:
        targets = self.feed.targets(micro_batch)
        count = self._target_count()
        loss = summed_cross_entropy(logits, targets, chunk.logits_group) / count
        self.loss += loss.detach()
        if self.layout.train.model.is_image_model:
            self.right += (logits.argmax(-1) == targets).sum() / count
        return loss

    def _target_count(self) -> int:
        rows = sum(len(batch.rows) for batch in self.plan.batches)
        return rows * targets_per_sample(self.layout.train.model)


def _forward_only(orders: Orders) -> Orders:
    return {
        place: tuple(action for action in actions if action.direction is Pass.FORWARD)
        for place, actions in orders.items()
    }


def build_layout(train: TrainSpec, plan: ParallelPlan, *, rank: int, device: torch.device) -> Layout:
    """Lay out this rank's chunks with undefined values; a collective over all ranks."""
    placement = Placement(spec=train.model, plan=plan)
    groups = make_groups(placement, rank)
    dtype = torch.bfloat16 if train.precision == "bf16" else torch.float32
    builder = UnitBuilder(placement=placement, rank=rank, groups=groups, dtype=dtype, device=device)
    bank = Bank.build(builder)
    env = Environment(
        spec=train.model,
        parameters=bank.parameters,
        tensor=_tensor_group(placement, groups, rank),
        expert=_expert_group(placement, groups, rank),
        recompute=plan.recompute,
    )
    at = placement.ranks[rank]
    chunks = {spec.index: Chunk(env, spec) for spec in placement.chunks[at.stage :: plan.pp]}
    bank.attach(chunks.values())
    layout = Layout(
        train=train, placement=placement, at=at, groups=groups, device=device, dtype=dtype, bank=bank, chunks=chunks
    )
    connect(groups, layout.step_plan(train.global_batch).messages.ends(), rank, device)
    return layout


def _tensor_group(placement: Placement, groups: Groups, rank: int) -> TensorGroup:
    members = next(members for members in placement.tensor_groups if rank in members)
    return TensorGroup(
        group=groups.layer.get(members),
        size=len(members),
        index=members.index(rank),
        is_sequence_split=placement.plan.sequence_parallel and len(members) > 1,
    )


def _expert_group(placement: Placement, groups: Groups, rank: int) -> ExpertGroup:
    if placement.plan.expert_parallel == 1:
        return ExpertGroup()
    members = next(members for members in placement.expert_groups if rank in members)
    return ExpertGroup(group=groups.layer[members], size=len(members), index=members.index(rank))
