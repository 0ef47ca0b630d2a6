"""Dropout from counters: which element is dropped depends on (seed, place in the sample stream, site) alone.

So a sample is treated alike on every rank of every layout, in every recomputation, on every device.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

_MASK_32 = 0xFFFF_FFFF


def dropped(x: Tensor, share: float, keys: Tensor, *, first: int, site: str) -> Tensor:
    """Zero a share of the elements and scale up the rest.

    Args:
        x: ``[rows, ...]``, a contiguous run of each sample's elements.
        share: Probability that an element is dropped.
        keys: ``[rows]``, one key per sample and step (``row_keys``).
        first: Index, in the sample, of the run's first element.
        site: Name of the place in the model.
    """
    count = x[0].numel()
    index = torch.arange(first, first + count, device=x.device)
    return _applied(x, share, _mixed(keys ^ _site_key(site))[:, None], index)


def dropped_heads(x: Tensor, share: float, keys: Tensor, *, first_head: int, site: str) -> Tensor:
    """Drop attention weights ``[rows, heads, queries, keys]`` of some of a layer's heads."""
    return dropped(x, share, keys, first=first_head * x.shape[2] * x.shape[3], site=site)


def row_keys(seed: int, positions: Tensor) -> Tensor:
    """Return one 32-bit key for each place in the sample stream, ``[rows]`` int64."""
    low, high = positions & _MASK_32, positions >> 32
    return _mixed(_mixed(low ^ _site_key(f"seed:{seed}")) ^ high)


def _applied(x: Tensor, share: float, keys: Tensor, index: Tensor) -> Tensor:
    bits = _mixed(_mixed((index & _MASK_32) ^ (index >> 32))[None, :] ^ keys)
    kept = (bits >= int(share * 2**32)).view(x.shape)
    return x * kept / (1.0 - share)


def _mixed(x: Tensor) -> Tensor:
    """Scramble 32-bit values held in int64 (a bijection with two multiplications and three shifts)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK_32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK_32
    return x ^ (x >> 16)


@lru_cache(maxsize=4096)
def _site_key(site: str) -> int:
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:4], "little")
