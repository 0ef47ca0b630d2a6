"""Initial weights as a function of (seed, parameter name): the same logical tensor under every layout."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from arena.domain.job import ModelSpec

_INIT_STD = 0.02  # as GPT-2
_RESIDUAL_OUTPUTS = ("attn.wo.weight", "mlp.w_out.weight")


def initial_weight(spec: ModelSpec, *, seed: int, name: str, shape: torch.Size) -> Tensor:
    """Return the full initial value of a parameter, on the CPU in float32.

    Matrices are normal with standard deviation 0.02, those that write into the residual stream scaled by
    1 / sqrt(2 * layers) (GPT-2); norms start as the identity and biases at zero.
    """
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if "norm" in name:
        return torch.ones(shape)
    std = _INIT_STD
    if name.endswith(_RESIDUAL_OUTPUTS):
        std /= (2 * spec.layers) ** 0.5
    return torch.empty(shape).normal_(std=std, generator=_generator(seed, name))


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"initial-weight:{seed}:{name}".encode()).digest()
    generator = torch.Generator(device="cpu")
    generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return generator
