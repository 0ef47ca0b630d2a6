"""The learning rate by step against hand-computed values."""

from __future__ import annotations

import pytest

from arena.domain.job import JobSpec
from arena.domain.optimizer import OptimizerSpec, ScheduleSpec
from arena_agent.worker.learning_rate import decay_steps, learning_rate


def rates(kind: str, steps: range, **schedule: object) -> list[float]:
    spec = OptimizerSpec(lr=1.0, schedule=ScheduleSpec.model_validate({"kind": kind, **schedule}))
    return [learning_rate(spec, step=step, decay_steps=10) for step in steps]


def test_warm_up_rises_to_the_peak() -> None:
    assert rates("constant", range(6), warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_ends_at_the_floor_and_stays() -> None:
    seen = rates("linear", range(0, 14, 2), warmup_steps=2, floor_ratio=0.2)
    assert seen == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_decay_is_half_way_at_the_middle() -> None:
    assert rates("cosine", range(0, 11, 5)) == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize(("own", "expected"), [(70, 70), (None, 50)])
def test_decay_ends_with_its_own_number_or_the_jobs_last_step(own: int | None, expected: int) -> None:
    schedule = {"kind": "cosine", "decay_steps": own}
    spec = JobSpec.model_validate(
        {
            "name": "job",
            "train": {
                "model": {"family": "gpt", "layers": 1, "hidden": 8, "heads": 1},
                "global_batch": 1,
                "optimizer": {"schedule": schedule},
            },
            "stop": {"steps": 50},
        }
    )
    assert decay_steps(spec) == expected
