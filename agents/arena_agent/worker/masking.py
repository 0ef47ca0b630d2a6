"""Masked language modelling: which tokens of a sample are hidden, and behind what. Pure: no I/O, no clock.

Of each sample the same share of positions is chosen; of the chosen, 80 % become the mask token, 10 % a random token
and 10 % stay as they are (Devlin et al. 2019, section 3.1). There each position is chosen on its own, so that the
count varies; here it is exact, because then the number of targets of a global batch is known before any of it is read
and every replica can divide its loss by it, however unequally the batch is shared out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arena_agent.worker.counter_hash import fractions, hashed
from arena_agent.worker.samples import IGNORED_TARGET

MASKED_SHARE = 0.15
_MASK_TOKEN_SHARE = 0.8
_RANDOM_TOKEN_SHARE = 0.1
# The hash is asked three things about a token, each with a number of its own.
_CHOICE, _TREATMENT, _TOKEN = (np.int64(purpose) for purpose in range(3))

Tokens = npt.NDArray[np.int64]


def masked_count(seq_len: int) -> int:
    """Return how many positions of each sample are predicted."""
    return max(1, round(MASKED_SHARE * seq_len))


def mask_token(vocab_size: int) -> int:
    """Return the token that stands for a hidden one: the vocabulary's last. UTF-8 text never holds byte 255."""
    return vocab_size - 1


def masked(tokens: Tokens, places: npt.NDArray[np.int64], *, key: int, vocab_size: int) -> tuple[Tokens, Tokens]:
    """Return inputs and targets for samples.

    Args:
        tokens: ``[n, seq_len]``, all below the mask token.
        places: ``[n]``; with ``key`` they decide everything random about a row.
        key: Of the stream of random choices.
        vocab_size: The mask token included.

    Returns:
        Both ``[n, seq_len]``; exactly ``masked_count(seq_len)`` targets of each row are not ignored.
    """
    chosen = _chosen(places, tokens.shape[1], key)
    originals = np.take_along_axis(tokens, chosen, axis=1)
    treatments = fractions(hashed(key, places[:, None], chosen, np.full((1, 1), _TREATMENT)))
    words = hashed(key, places[:, None], chosen, np.full((1, 1), _TOKEN))
    random_tokens = (words % np.uint64(max(1, mask_token(vocab_size)))).astype(np.int64)
    shown = np.where(treatments < _MASK_TOKEN_SHARE + _RANDOM_TOKEN_SHARE, random_tokens, originals)
    shown = np.where(treatments < _MASK_TOKEN_SHARE, mask_token(vocab_size), shown)
    inputs = tokens.copy()
    np.put_along_axis(inputs, chosen, shown, axis=1)
    targets = np.full_like(tokens, IGNORED_TARGET)
    np.put_along_axis(targets, chosen, originals, axis=1)
    return inputs, targets


def _chosen(places: npt.NDArray[np.int64], seq_len: int, key: int) -> npt.NDArray[np.int64]:
    """Return the positions with the smallest hashes, ``[n, masked_count]``."""
    scores = hashed(key, places[:, None], np.arange(seq_len)[None], np.full((1, 1), _CHOICE))
    order: npt.NDArray[np.int64] = np.argsort(scores, axis=1, kind="stable")
    return order[:, : masked_count(seq_len)]
