"""Parameters as a rank holds them, their gradients' reduction and clipping, and the optimizer over local shards.

AdamW and SGD work element by element, so the optimizer runs on plain local tensors that share the parameters'
storage; only checkpoints need to know how the shards make up the logical tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from arena.domain.job import OptimizerSpec, TrainSpec
from arena_agent.worker.layout import Layout
from arena_agent.worker.weights import initial_weight

_BUCKET_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameter:
    """A parameter and this rank's part of it.

    Args:
        name: Its name in the whole model.
        whole: The module's parameter, a ``DTensor`` where it is sharded.
        local: A plain tensor over the same storage; what the optimizer updates.
        is_counted: Whether this rank counts its part in sums over the whole model, so that copies count once.
    """

    name: str
    whole: nn.Parameter
    local: nn.Parameter
    is_counted: bool

    def as_whole(self, local: Tensor) -> Tensor:
        """Return a tensor of this rank's part (a moment, say) as a part of the logical tensor."""
        whole = self.whole
        if not isinstance(whole, DTensor):
            return local
        return DTensor.from_local(
            local.detach(),
            whole.device_mesh,
            whole.placements,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )


def held_parameters(layout: Layout) -> tuple[HeldParameter, ...]:
    """Return this rank's parameters in model order."""
    return tuple(
        _held(name, parameter, layout) for chunk in layout.chunks for name, parameter in chunk.named_parameters()
    )


def _held(name: str, parameter: nn.Parameter, layout: Layout) -> HeldParameter:
    local = parameter.detach()
    split_dims = shard_dims(parameter).keys()
    if isinstance(local, DTensor):
        local = local.to_local()
    first_of_dp = "dp" in split_dims or layout.at.dp == 0
    first_of_tp = "tp" in split_dims or layout.at.tp == 0
    return HeldParameter(
        name=name,
        whole=parameter,
        local=nn.Parameter(local, requires_grad=False),
        is_counted=first_of_dp and first_of_tp,
    )


def initialise(parameters: Iterable[HeldParameter], train: TrainSpec, layout: Layout) -> None:
    """Give every parameter its initial value, cut from the logical tensor."""
    for held in parameters:
        full = initial_weight(train.model, seed=train.seed, name=held.name, shape=held.whole.shape)
        held.local.copy_(local_part(full, held.whole, layout))


def shard_dims(whole: Tensor) -> dict[str, int]:
    """Return along which dimension each mesh dimension shards a tensor; those that copy it are left out."""
    if not isinstance(whole, DTensor):
        return {}
    names = whole.device_mesh.mesh_dim_names or ()
    return {
        name: placement.dim
        for name, placement in zip(names, whole.placements, strict=True)
        # Sharded by both, a dimension has a placement of its own kind that is no plain Shard.
        if isinstance(placement, Shard | _StridedShard)
    }


def local_part(full: Tensor, whole: Tensor, layout: Layout) -> Tensor:
    """Return this rank's part of a logical tensor: cut by tensor parallelism first, then by data parallelism."""
    shard_dim_of = shard_dims(whole)
    for mesh_dim, size, index in (
        ("tp", layout.plan.tp, layout.at.tp),
        ("dp", layout.plan.dp, layout.at.dp),
    ):
        if mesh_dim in shard_dim_of:
            full = _chunk(full, shard_dim_of[mesh_dim], size, index)
    return full


def _chunk(full: Tensor, dim: int, count: int, index: int) -> Tensor:
    """Return one of ``count`` parts as torch shards: all of the rounded-up size but the last, which may be empty."""
    length = -(-full.shape[dim] // count)
    start = min(index * length, full.shape[dim])
    return full.narrow(dim, start, min(length, full.shape[dim] - start))


def build_optimizer(parameters: Sequence[HeldParameter], spec: OptimizerSpec) -> torch.optim.Optimizer:
    """Build the optimizer with its state in place, so that a checkpoint can be loaded into it."""
    groups = [
        {"params": [held.local for held in parameters if held.whole.ndim > 1], "weight_decay": spec.weight_decay},
        {"params": [held.local for held in parameters if held.whole.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if spec.name == "sgd":
        sgd = torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)
        for held in parameters:
            if spec.momentum:
                sgd.state[held.local] = {"momentum_buffer": torch.zeros_like(held.local)}
        return sgd
    adamw = torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps)
    for held in parameters:
        adamw.state[held.local] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(held.local),
            "exp_avg_sq": torch.zeros_like(held.local),
        }
    return adamw


def set_step(optimizer: torch.optim.Optimizer, *, step: int, lr: float) -> None:
    """Tell the optimizer how many steps are done and the rate of the next."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    for state in optimizer.state.values():
        if "step" in state:
            state["step"].fill_(float(step))


def collect_gradients(parameters: Sequence[HeldParameter], layout: Layout) -> None:
    """Give every local tensor its gradient, summed over data parallelism."""
    unreduced: list[Tensor] = []
    for held in parameters:
        gradient = _local_gradient(held)
        held.local.grad = gradient
        held.whole.grad = None
        is_reduced = isinstance(held.whole, DTensor) and "dp" in (held.whole.device_mesh.mesh_dim_names or ())
        if not is_reduced:
            unreduced.append(gradient)
    if layout.plan.dp > 1:
        group = layout.mesh["dp"].get_group()
        for bucket in _buckets(unreduced):
            _sum_bucket(bucket, group)


def _local_gradient(held: HeldParameter) -> Tensor:
    gradient = held.whole.grad
    if gradient is None:
        return torch.zeros_like(held.local)
    if not isinstance(gradient, DTensor):
        return gradient
    assert isinstance(held.whole, DTensor)
    if gradient.placements != held.whole.placements:
        gradient = gradient.redistribute(placements=held.whole.placements)
    return gradient.to_local()


def _buckets(tensors: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(item.nbytes for item in bucket) >= _BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _sum_bucket(bucket: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
    dist.all_reduce(flat, group=group)
    start = 0
    for tensor in bucket:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


def squared_norm(parameters: Sequence[HeldParameter]) -> float:
    """Return this rank's share of the squared gradient norm of the whole model."""
    counted = [held.local.grad for held in parameters if held.is_counted and held.local.grad is not None]
    return float(sum(gradient.double().pow(2).sum().item() for gradient in counted))


def clip(parameters: Sequence[HeldParameter], *, norm: float, norm_max: float) -> None:
    """Scale all gradients so that the global norm is at most ``norm_max``."""
    if norm > norm_max:
        for held in parameters:
            if held.local.grad is not None:
                held.local.grad.mul_(norm_max / norm)
