"""Token sources: byte-level text or a memory-mapped token file, cut into samples of one sequence each."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from arena.domain.job import DataSpec, TrainSpec
from arena.errors import UserError

_TOKEN_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_FINGERPRINT_PART_TOKENS = 1 << 20


class DataError(UserError):
    """The job's data cannot be read as the spec says."""

    code = "data"


class Corpus(Protocol):
    """A data set of samples; sample ``i`` holds ``seq_len + 1`` tokens: the inputs and, one further, the targets."""

    @property
    def sample_count(self) -> int:
        """Samples in the data set."""
        ...

    @property
    def fingerprint(self) -> str:
        """What tells this data set from another: its length and a digest of its two ends."""
        ...

    def samples(self, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the tokens of samples, shape ``[len(ids), seq_len + 1]``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCorpus:
    """A flat array of tokens; neighbouring samples share one token, the last target of one and first of the next.

    Args:
        tokens: All tokens, in memory or mapped.
        seq_len: Inputs per sample.
        vocab_size: Tokens must be below it.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    seq_len: int
    vocab_size: int

    @property
    def sample_count(self) -> int:
        """Samples in the data set."""
        return max(0, (len(self.tokens) - 1) // self.seq_len)

    @property
    def fingerprint(self) -> str:
        """Length and digest of the two ends, so that a huge file is not read whole."""
        digest = hashlib.sha256(self.tokens[:_FINGERPRINT_PART_TOKENS].tobytes())
        digest.update(self.tokens[-_FINGERPRINT_PART_TOKENS:].tobytes())
        return f"{len(self.tokens)} tokens, sha256 of both ends {digest.hexdigest()[:16]}"

    def samples(self, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the tokens of samples, shape ``[len(ids), seq_len + 1]``."""
        starts = np.asarray(ids, dtype=np.int64)[:, None] * self.seq_len
        rows: npt.NDArray[np.int64] = self.tokens[starts + np.arange(self.seq_len + 1)].astype(np.int64)
        if rows.size and int(rows.max()) >= self.vocab_size:
            raise DataError(
                f"the data holds token {int(rows.max())}, model.vocab_size is {self.vocab_size}",
                fix="raise model.vocab_size or use the tokenizer the model was sized for",
            )
        return rows


def open_corpus(train: TrainSpec) -> Corpus:
    """Open a job's data.

    Raises:
        DataError: The file is missing or too short for one sample.
    """
    corpus = TokenCorpus(
        tokens=_read_tokens(train.data), seq_len=train.model.seq_len, vocab_size=train.model.vocab_size
    )
    if corpus.sample_count == 0:
        raise DataError(
            "the data is too short for one sample",
            why=f"{len(corpus.tokens)} tokens, a sample needs {train.model.seq_len + 1}",
        )
    return corpus


def _read_tokens(data: DataSpec) -> npt.NDArray[np.unsignedinteger]:
    if data.source == "builtin":
        text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        return np.frombuffer(text.encode(), dtype=np.uint8)
    path = Path(data.path or "")
    if not path.is_file():
        raise DataError(f"data file {path} does not exist", fix="use a path that every node of the job sees")
    if data.source == "text":
        return np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    return _map_tokens(path, _TOKEN_DTYPES[data.token_dtype])


def _map_tokens(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[np.unsignedinteger]:
    size_bytes = path.stat().st_size
    if size_bytes % dtype.itemsize:
        raise DataError(
            f"token file {path} is cut off",
            why=f"{size_bytes} bytes are no multiple of the {dtype.itemsize} bytes of a {dtype.name}",
        )
    return np.memmap(path, dtype=dtype, mode="r") if size_bytes else np.empty(0, dtype)
