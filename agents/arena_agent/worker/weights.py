"""Initial weights as a function of (seed, parameter name): the same logical tensor under every layout."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from arena.domain.parameters import Parameter


def initial_weight(parameter: Parameter, seed: int) -> Tensor:
    """Return the whole initial value of a parameter, on the CPU in float32."""
    if parameter.init_std is None:
        return torch.full(parameter.shape, parameter.init_value)
    return torch.empty(parameter.shape).normal_(std=parameter.init_std, generator=_generator(seed, parameter.name))


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"initial-weight:{seed}:{name}".encode()).digest()
    generator = torch.Generator(device="cpu")
    generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return generator
