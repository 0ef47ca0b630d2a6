"""Wide-ResNet (Zagoruyko and Komodakis 2016) with GroupNorm (Wu and He 2018).

GroupNorm's result does not depend on how the batch is cut. Tensor parallelism splits the inner channels of each
block, whole norm groups to a rank.
"""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn

from arena.domain.parallel import Recompute
from arena.domain.parameters import residual_blocks
from arena_agent.worker.models.environment import Environment, Rows
from arena_agent.worker.models.layers import SplitLinear, recomputed


class NormRelu(nn.Module):
    """GroupNorm over this rank's groups of channels, then ReLU."""

    def __init__(self, env: Environment, *, group_count: int) -> None:
        super().__init__()
        self.weight, self.bias = env.take("weight"), env.take("bias")
        self.group_count, self.eps = group_count, env.spec.norm_eps
        self.is_recomputed = env.recompute is Recompute.SELECTIVE

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[rows, channels, height, width]`` to itself."""
        y: Tensor = recomputed(self._whole, x) if self.is_recomputed else self._whole(x)
        return y

    def _whole(self, x: Tensor) -> Tensor:
        return F.relu(F.group_norm(x, self.group_count, self.weight, self.bias, self.eps))


class _Kernel(nn.Module):
    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.weight = env.take("weight")


class Block(nn.Module):
    """A pre-activation residual block: the first convolution makes this rank's channels, the second sums over them."""

    def __init__(self, env: Environment, layer: int) -> None:
        super().__init__()
        env = env.within(f"layers.{layer}")
        shape = residual_blocks(env.spec)[layer]
        self.tensor, self.stride = env.tensor, shape.stride
        self.is_recomputed = env.recompute is Recompute.FULL
        groups = env.spec.norm_groups
        self.norm1 = NormRelu(env.within("norm1"), group_count=groups)
        self.conv1 = _Kernel(env.within("conv1"))
        self.norm2 = NormRelu(env.within("norm2"), group_count=groups // env.tensor.size)
        self.conv2 = _Kernel(env.within("conv2"))
        self.shortcut = _Kernel(env.within("shortcut")) if shape.has_projection else None

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map ``[rows, inputs, size, size]`` to ``[rows, outputs, size / stride, size / stride]``."""
        y: Tensor = recomputed(self._whole, x) if self.is_recomputed else self._whole(x)
        return y

    def _whole(self, x: Tensor) -> Tensor:
        active = self.norm1(x)
        kept = x if self.shortcut is None else F.conv2d(active, self.shortcut.weight, stride=self.stride)
        inner = F.conv2d(self.tensor.enter(active), self.conv1.weight, stride=self.stride, padding=1)
        part = F.conv2d(self.norm2(inner), self.conv2.weight.transpose(0, 1), padding=1)
        return kept + self.tensor.leave(part)


class Stem(nn.Module):
    """The first convolution."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.stem = _Kernel(env.within("stem"))

    def forward(self, images: Tensor, rows: Rows) -> Tensor:
        """Map images ``[rows, channels, size, size]`` to ``[rows, hidden, size, size]``."""
        return F.conv2d(images.type_as(self.stem.weight), self.stem.weight, padding=1)


class ClassEnd(nn.Module):
    """Final norm, mean over the image, class head."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.final_norm = NormRelu(env.within("final_norm"), group_count=env.spec.norm_groups)
        self.head = SplitLinear(env.within("head"))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map ``[rows, channels, size, size]`` to logits ``[rows, 1, classes]``."""
        logits: Tensor = self.head(self.final_norm(x).mean((2, 3)).unsqueeze(1))
        return logits

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Every rank has all classes."""
        return None
