"""A job's data: tokens as the file says, samples held out, and typed refusals with numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arena.domain.job import TrainSpec
from arena_agent.worker.data import IGNORED_TARGET, DataError, TokenCorpus, open_corpora, targets_per_sample

SEQ_LEN = 4


def train(
    path: Path | None = None, *, evaluation: dict[str, Any] | None = None, seed: int = 0, **model: Any
) -> TrainSpec:
    shape = {"family": "gpt", "layers": 1, "hidden": 8, "heads": 1, "seq_len": SEQ_LEN, **model}
    data = {"source": "tokens", "path": str(path)} if path else {"source": "builtin"}
    fields = {"model": shape, "data": data, "global_batch": 1, "evaluation": evaluation, "seed": seed}
    return TrainSpec.model_validate(fields)


def token_file(path: Path, tokens: list[int]) -> Path:
    np.array(tokens, dtype="<u2").tofile(path)
    return path


def test_the_built_in_text_is_english_of_some_size() -> None:
    corpus = open_corpora(train()).training
    assert corpus.sample_count > 80_000
    inputs = corpus.batch(range(50), range(50)).inputs
    assert bytes(inputs.flatten().tolist()).decode().isascii()


def test_a_token_file_is_read_as_it_says_each_target_the_next_token(tmp_path: Path) -> None:
    path = token_file(tmp_path / "tokens", [7, 300, 2, 3, 4, 5, 6, 1, 9])
    corpora = open_corpora(train(path, vocab_size=301))
    batch = corpora.training.batch([1, 0], [0, 1])
    assert corpora.training.sample_count == 2
    assert corpora.evaluation is None
    assert batch.inputs.tolist() == [[4, 5, 6, 1], [7, 300, 2, 3]]
    assert batch.targets.tolist() == [[5, 6, 1, 9], [300, 2, 3, 4]]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "too short"), (b"12345678", "too short"), (b"1" * 11, "cut off")]
)
def test_a_bad_token_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        open_corpora(train(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_corpora(train(tmp_path / "nothing"))


@pytest.mark.parametrize(("family", "token", "bound"), [("gpt", 50, 50), ("bert", 49, 49)])
def test_tokens_beyond_the_vocabulary_and_the_mask_token_itself_are_refused(
    tmp_path: Path, family: str, token: int, bound: int
) -> None:
    path = token_file(tmp_path / "tokens", [1, 2, 3, token, 5])
    corpus = open_corpora(train(path, family=family, vocab_size=50)).training
    with pytest.raises(DataError, match=f"token {token}, tokens of this model must be below {bound}"):
        corpus.batch([0], [0])


def test_a_masked_model_reads_whole_samples_without_a_token_to_share(tmp_path: Path) -> None:
    path = token_file(tmp_path / "tokens", [10, 11, 12, 13, 20, 21, 22, 23])
    corpus = open_corpora(train(path, family="bert")).training
    batch = corpus.batch([0, 1], [0, 1])
    whole = np.where(batch.targets == IGNORED_TARGET, batch.inputs, batch.targets)
    assert corpus.sample_count == 2
    assert whole.tolist() == [[10, 11, 12, 13], [20, 21, 22, 23]]


def test_data_that_differ_at_either_end_have_other_fingerprints() -> None:
    prints = {
        TokenCorpus(tokens=np.array(tokens, dtype=np.uint8), seq_len=2, vocab_size=9).fingerprint
        for tokens in ([1, 2, 3], [1, 2, 4], [0, 2, 3], [1, 2, 3, 0])
    }
    assert len(prints) == 4


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_the_last_samples_are_held_out_and_never_trained_on(tmp_path: Path, family: str) -> None:
    path = token_file(tmp_path / "tokens", list(range(41)))
    corpora = open_corpora(train(path, family=family, evaluation={"sample_count": 3}))
    whole = open_corpora(train(path, family=family)).training
    assert corpora.evaluation is not None
    assert (corpora.training.sample_count, corpora.evaluation.sample_count, whole.sample_count) == (7, 3, 10)
    trained = corpora.training.batch(range(7), range(7))
    evaluated = corpora.evaluation.batch(range(3), range(3))
    predicted = evaluated.targets[evaluated.targets != IGNORED_TARGET]
    assert predicted.min() >= 28
    assert trained.targets.max() <= 28 < predicted.max()
    assert not set(predicted.tolist()) & set(trained.targets[trained.targets != IGNORED_TARGET].tolist())
    with pytest.raises(IndexError):
        corpora.training.batch([7], [0])


def test_naming_the_training_data_for_evaluation_holds_samples_out_too(tmp_path: Path) -> None:
    path = token_file(tmp_path / "tokens", list(range(41)))
    data = {"source": "tokens", "path": str(path)}
    corpora = open_corpora(train(path, evaluation={"sample_count": 3, "data": data}))
    assert corpora.training.sample_count == 7


def test_what_is_held_out_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = token_file(tmp_path / "tokens", list(range(41)))
    prints = {
        open_corpora(train(path, evaluation=evaluation)).training.fingerprint
        for evaluation in (None, {"sample_count": 3}, {"sample_count": 4})
    }
    assert len(prints) == 3


def test_evaluation_data_of_their_own_leave_the_training_data_whole(tmp_path: Path) -> None:
    path = token_file(tmp_path / "tokens", list(range(41)))
    other = token_file(tmp_path / "other", list(range(100, 141)))
    data = {"source": "tokens", "path": str(other)}
    corpora = open_corpora(train(path, evaluation={"sample_count": 3, "data": data}))
    assert corpora.evaluation is not None
    assert (corpora.training.sample_count, corpora.evaluation.sample_count) == (10, 3)
    assert corpora.evaluation.batch([0], [0]).inputs.tolist() == [[100, 101, 102, 103]]


@pytest.mark.parametrize("with_own_data", [False, True])
def test_too_few_samples_are_refused_with_numbers(tmp_path: Path, with_own_data: bool) -> None:
    path = token_file(tmp_path / "tokens", list(range(41)))
    other = token_file(tmp_path / "other", list(range(36)))
    data = {"source": "tokens", "path": str(other)} if with_own_data else None
    with pytest.raises(DataError, match=r"\b8\b.*\b10\b" if with_own_data else r"\b10\b.*\b10\b"):
        open_corpora(train(path, evaluation={"sample_count": 10, "data": data}))


def test_evaluation_masks_depend_on_neither_seed_nor_position() -> None:
    batches = [
        open_corpora(train(family="bert", seed=seed, seq_len=32, evaluation={"sample_count": 4})) for seed in (1, 2)
    ]
    first, second = (
        corpora.evaluation.batch(range(4), range(start, start + 4))
        for corpora, start in zip(batches, (0, 70), strict=True)
        if corpora.evaluation is not None
    )
    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.targets, second.targets)


def test_training_masks_depend_on_the_seed_and_the_place_in_the_stream() -> None:
    one, other = (open_corpora(train(family="bert", seed=seed, seq_len=64)).training for seed in (1, 2))
    here, there = one.batch([5], [3]), one.batch([5], [4])
    assert not np.array_equal(here.targets, there.targets)
    assert not np.array_equal(here.targets, other.batch([5], [3]).targets)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ({"family": "gpt"}, SEQ_LEN),
        ({"family": "moe", "expert_count": 2}, SEQ_LEN),
        ({"family": "bert"}, 1),
        ({"family": "bert", "seq_len": 128}, 19),
        ({"family": "vit", "image_size": 8, "patch_size": 4, "class_count": 3}, 1),
    ],
)
def test_the_targets_of_each_sample_are_known_in_advance(shape: dict[str, Any], count: int) -> None:
    spec = train(**shape)
    batch = open_corpora(spec).training.batch(range(6), range(6))
    assert targets_per_sample(spec.model) == count
    assert (batch.targets != IGNORED_TARGET).sum(axis=1).tolist() == [count] * 6
    for array in (batch.inputs, batch.targets):
        assert array.flags.c_contiguous
        assert array.flags.writeable
