"""A job's data: what is trained on and what is evaluated, opened as the job's specification says."""

from __future__ import annotations

from dataclasses import dataclass

from arena.domain.job import DataSpec, EvaluationSpec, ModelFamily, ModelSpec, TrainSpec
from arena_agent.worker.counter_hash import key_of
from arena_agent.worker.drawn_images import drawn_images
from arena_agent.worker.images import ImageCorpus, Scaling, open_images
from arena_agent.worker.masking import masked_count
from arena_agent.worker.samples import IGNORED_TARGET, Batch, Corpus, DataError, PartOfCorpus
from arena_agent.worker.tokens import MaskedTokenCorpus, TokenCorpus, open_tokens

__all__ = [
    "IGNORED_TARGET",
    "Batch",
    "Corpora",
    "Corpus",
    "DataError",
    "MaskedTokenCorpus",
    "TokenCorpus",
    "open_corpora",
    "targets_per_sample",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """What a job reads; the two have no sample in common.

    Args:
        training: What it trains on.
        evaluation: What it is evaluated on, exactly ``EvaluationSpec.sample_count`` samples; their masks do not
            depend on the position that is given. None without evaluation.
    """

    training: Corpus
    evaluation: Corpus | None = None


def targets_per_sample(model: ModelSpec) -> int:
    """Return how many targets of each sample are predicted.

    The same for every sample, so that a loss can be divided by the targets of the global batch before they are read:
    no replica, however few samples it takes, has to ask the others for their count.
    """
    if model.is_image_model:
        return 1
    return masked_count(model.seq_len) if model.family is ModelFamily.BERT else model.seq_len


def open_corpora(train: TrainSpec) -> Corpora:
    """Open a job's data.

    Raises:
        DataError: The data cannot be read, does not fit the model, or holds too few samples.
    """
    training = _open(train, train.data)
    evaluation = train.evaluation
    if evaluation is None:
        return Corpora(training=training)
    if evaluation.data is None or evaluation.data == train.data:
        return _held_out(train, training, evaluation)
    scaling = training.scaling if isinstance(training, ImageCorpus) else None
    corpus = _open(train, evaluation.data, for_evaluation=True, scaling=scaling)
    if corpus.sample_count < evaluation.sample_count:
        raise DataError(
            "the evaluation data is too short",
            why=f"{corpus.sample_count} samples, evaluation.sample_count is {evaluation.sample_count}",
            fix="lower evaluation.sample_count",
        )
    return Corpora(
        training=training, evaluation=PartOfCorpus(inner=corpus, first=0, sample_count=evaluation.sample_count)
    )


def _held_out(train: TrainSpec, training: Corpus, evaluation: EvaluationSpec) -> Corpora:
    left_count = training.sample_count - evaluation.sample_count
    if left_count < 1:
        raise DataError(
            "too few samples are left to train on",
            why=f"the data holds {training.sample_count}, evaluation holds {evaluation.sample_count} of them out",
            fix="lower evaluation.sample_count or give evaluation data of its own (evaluation.data)",
        )
    whole = _open(train, train.data, for_evaluation=True)
    return Corpora(
        training=PartOfCorpus(inner=training, first=0, sample_count=left_count),
        evaluation=PartOfCorpus(inner=whole, first=left_count, sample_count=evaluation.sample_count),
    )


def _open(train: TrainSpec, data: DataSpec, *, for_evaluation: bool = False, scaling: Scaling | None = None) -> Corpus:
    model = train.model
    if data.source == "images":
        return open_images(model, data.path or "", scaling=scaling)
    if model.is_image_model:
        return drawn_images(model)
    # Evaluation hides the same tokens each time and in every job, so that its losses can be compared.
    key = key_of("evaluation-masks") if for_evaluation else key_of("masks", train.seed)
    return open_tokens(model, data, mask_key=key, fixed_masks=for_evaluation)
