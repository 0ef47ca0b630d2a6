"""Micro-batches: shares of unequal size, padded to one shape, nothing lost or read twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, Replica, Stage, parse_plan
from arena_agent.worker.batches import IGNORED_TARGET, micro_batch_count, replica_batch, replica_shares
from arena_agent.worker.data import DataError, TokenCorpus, open_corpus


@given(batch=st.integers(1, 40), dp=st.integers(1, 8))
def test_replicas_share_a_batch_in_order(batch: int, dp: int) -> None:
    shares = replica_shares(parse_plan(f"dp{dp}", layer_count=1), batch)
    assert [sample for share in shares for sample in share] == list(range(batch))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("counts", "shares"),
    [
        ((1, 3), (range(2), range(2, 8))),
        ((3, 2), (range(6), range(6, 8))),
        ((4, 1), (range(8), range(8, 8))),
    ],
)
def test_a_plan_may_say_how_much_each_replica_takes(counts: tuple[int, int], shares: tuple[range, range]) -> None:
    replicas = tuple(Replica(micro_batch_count=count) for count in counts)
    plan = ParallelPlan(stages=(Stage(layer_count=1, replicas=replicas),), micro_batch_size=2)
    assert replica_shares(plan, 8) == shares
    assert [micro_batch_count(plan, 8, index) for index in (0, 1)] == [max(1, -(-len(share) // 2)) for share in shares]


@given(
    batch=st.integers(1, 60),
    dp=st.integers(1, 4),
    pp=st.integers(1, 4),
    size=st.integers(1, 5),
    zero=st.integers(0, 3),
)
def test_all_samples_of_a_replica_fit(batch: int, dp: int, pp: int, size: int, zero: int) -> None:
    words = f"dp{dp} pp{pp} mb{size} zero{zero}" + (" interleaved2" if pp > 1 else "")
    plan = parse_plan(words, layer_count=8)
    counts = [micro_batch_count(plan, batch, index) for index in range(dp)]
    shares = replica_shares(plan, batch)
    assert all(count * size >= len(share) for count, share in zip(counts, shares, strict=True))
    assert all(count % max(1, count // pp) == 0 for count in counts)
    assert zero < 2 or len(set(counts)) == 1


def test_without_interleaving_no_whole_micro_batch_is_padding() -> None:
    dp3 = parse_plan("dp3 mb1 pp2", layer_count=8)
    assert [micro_batch_count(dp3, 8, index) for index in range(3)] == [3, 3, 2]
    assert micro_batch_count(parse_plan("pp4 mb2", layer_count=8), 10, 0) == 5
    assert micro_batch_count(parse_plan("pp4 mb2 interleaved2", layer_count=8), 18, 0) == 10


def test_padding_has_no_targets() -> None:
    corpus = TokenCorpus(tokens=np.arange(1, 14, dtype=np.uint8), seq_len=3, vocab_size=256)
    batch = replica_batch(corpus, (2, 0), row_count=3)
    assert batch.inputs.tolist() == [[7, 8, 9], [1, 2, 3], [0, 0, 0]]
    assert batch.targets.tolist() == [[8, 9, 10], [2, 3, 4], [IGNORED_TARGET] * 3]


def train(path: Path | None = None, source: str = "builtin", vocab_size: int = 256) -> TrainSpec:
    model = {"family": "gpt", "layers": 1, "hidden": 8, "heads": 1, "seq_len": 4, "vocab_size": vocab_size}
    data = {"source": source, "path": str(path) if path else None}
    return TrainSpec.model_validate({"model": model, "data": data, "global_batch": 1})


def test_the_built_in_text_is_english_of_some_size() -> None:
    corpus = open_corpus(train())
    assert corpus.sample_count > 80_000
    assert bytes(corpus.samples(range(50)).flatten().tolist()).decode().isascii()


def test_a_token_file_is_read_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    np.array([7, 300, 2, 3, 4, 5, 6, 1, 9], dtype="<u2").tofile(path)
    corpus = open_corpus(train(path, "tokens", vocab_size=301))
    assert corpus.sample_count == 2
    assert corpus.samples([1, 0]).tolist() == [[4, 5, 6, 1, 9], [7, 300, 2, 3, 4]]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "too short"), (b"12345678", "too short"), (b"1" * 11, "cut off")]
)
def test_a_bad_token_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        open_corpus(train(path, "tokens"))


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    corpus = TokenCorpus(tokens=np.array([1, 2, 99], dtype=np.uint8), seq_len=2, vocab_size=50)
    with pytest.raises(DataError, match="99"):
        corpus.samples([0])


def test_data_that_differ_at_either_end_have_other_fingerprints() -> None:
    prints = {
        TokenCorpus(tokens=np.array(tokens, dtype=np.uint8), seq_len=2, vocab_size=9).fingerprint
        for tokens in ([1, 2, 3], [1, 2, 4], [0, 2, 3], [1, 2, 3, 0])
    }
    assert len(prints) == 4
