"""Token sources: byte-level text or a memory-mapped token file, cut into samples of one sequence each."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arena.domain.job import DataSpec, ModelFamily, ModelSpec
from arena_agent.worker.masking import mask_token, masked
from arena_agent.worker.samples import Batch, DataError

_TOKEN_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_FINGERPRINT_PART_TOKENS = 1 << 20

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCorpus:
    """A flat array of tokens for causal language models: each token's target is the next.

    Neighbouring samples share one token: the last target of one, the first input of the next.

    Args:
        tokens: All tokens, in memory or mapped.
        seq_len: Inputs per sample.
        vocab_size: Tokens must be below it.
    """

    tokens: Tokens
    seq_len: int
    vocab_size: int

    @property
    def sample_count(self) -> int:
        """Samples in the data set."""
        return max(0, (len(self.tokens) - 1) // self.seq_len)

    @property
    def fingerprint(self) -> str:
        """Length and digest of the two ends, so that a huge file is not read whole."""
        return _fingerprint(self.tokens)

    def batch(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Return samples; nothing about them is random."""
        rows = _rows(self.tokens, ids, self.seq_len, width=self.seq_len + 1, vocab_size=self.vocab_size)
        return Batch(inputs=np.ascontiguousarray(rows[:, :-1]), targets=np.ascontiguousarray(rows[:, 1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokenCorpus:
    """A flat array of tokens for masked language models (``arena_agent.worker.masking``).

    Args:
        tokens: All tokens, in memory or mapped; none of them may be the mask token.
        seq_len: Tokens per sample.
        vocab_size: Of the model, the mask token included.
        key: Of the stream of random choices.
        fixed: Mask a sample the same way each time, keyed by its number instead of its place in the stream.
    """

    tokens: Tokens
    seq_len: int
    vocab_size: int
    key: int
    fixed: bool = False

    @property
    def sample_count(self) -> int:
        """Samples in the data set."""
        return len(self.tokens) // self.seq_len

    @property
    def fingerprint(self) -> str:
        """Length and digest of the two ends, so that a huge file is not read whole."""
        return _fingerprint(self.tokens)

    def batch(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Return samples, masked as their places in the stream say."""
        rows = _rows(self.tokens, ids, self.seq_len, width=self.seq_len, vocab_size=mask_token(self.vocab_size))
        places = np.asarray(ids if self.fixed else positions, dtype=np.int64)
        inputs, targets = masked(rows, places, key=self.key, vocab_size=self.vocab_size)
        return Batch(inputs=inputs, targets=targets)


def open_tokens(
    model: ModelSpec, data: DataSpec, *, mask_key: int, fixed_masks: bool
) -> TokenCorpus | MaskedTokenCorpus:
    """Open token data for a language model.

    Raises:
        DataError: The file is missing, cut off or too short for one sample.
    """
    tokens = _read_tokens(data)
    corpus: TokenCorpus | MaskedTokenCorpus
    if model.family is ModelFamily.BERT:
        corpus = MaskedTokenCorpus(
            tokens=tokens, seq_len=model.seq_len, vocab_size=model.vocab_size, key=mask_key, fixed=fixed_masks
        )
    else:
        corpus = TokenCorpus(tokens=tokens, seq_len=model.seq_len, vocab_size=model.vocab_size)
    if corpus.sample_count == 0:
        needed = model.seq_len + (model.family is not ModelFamily.BERT)
        raise DataError("the data is too short for one sample", why=f"{len(tokens)} tokens, a sample needs {needed}")
    return corpus


def _fingerprint(tokens: Tokens) -> str:
    digest = hashlib.sha256(tokens[:_FINGERPRINT_PART_TOKENS].tobytes())
    digest.update(tokens[-_FINGERPRINT_PART_TOKENS:].tobytes())
    return f"{len(tokens)} tokens, sha256 of both ends {digest.hexdigest()[:16]}"


def _rows(tokens: Tokens, ids: Sequence[int], stride: int, *, width: int, vocab_size: int) -> npt.NDArray[np.int64]:
    starts = np.asarray(ids, dtype=np.int64)[:, None] * stride
    rows: npt.NDArray[np.int64] = tokens[starts + np.arange(width)].astype(np.int64)
    if rows.size and int(rows.max()) >= vocab_size:
        raise DataError(
            f"the data holds token {int(rows.max())}, tokens of this model must be below {vocab_size}",
            why="model.vocab_size, of which the last is the mask token of a masked language model",
            fix="raise model.vocab_size or use the tokenizer the model was sized for",
        )
    return rows


def _read_tokens(data: DataSpec) -> Tokens:
    if data.source == "builtin":
        text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        return np.frombuffer(text.encode(), dtype=np.uint8)
    path = Path(data.path or "")
    if not path.is_file():
        raise DataError(f"data file {path} does not exist", fix="use a path that every node of the job sees")
    if data.source == "text":
        return np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    return _map_tokens(path, _TOKEN_DTYPES[data.token_dtype])


def _map_tokens(path: Path, dtype: np.dtype[Any]) -> Tokens:
    size_bytes = path.stat().st_size
    if size_bytes % dtype.itemsize:
        raise DataError(
            f"token file {path} is cut off",
            why=f"{size_bytes} bytes are no multiple of the {dtype.itemsize} bytes of a {dtype.name}",
        )
    return np.memmap(path, dtype=dtype, mode="r") if size_bytes else np.empty(0, dtype)
