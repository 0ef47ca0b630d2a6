"""What the worker says about plans: yes to what it runs, a reason with numbers for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from arena.domain.job import JobKind, JobSpec
from arena.domain.parallel import ParallelPlan, Replica, Stage, parse_plan
from arena_agent.worker.capability import unsupported


def job(changed: Mapping[str, object] = MappingProxyType({}), **train: object) -> JobSpec:
    shape = {"family": "llama", "layers": 6, "hidden": 48, "heads": 12, "kv_heads": 4, "ffn_hidden": 96}
    model = {**shape, **changed}
    return JobSpec.model_validate(
        {"name": "job", "train": {"model": model, "global_batch": 8, **train}, "stop": {"steps": 1}}
    )


@pytest.mark.parametrize(
    "text",
    [
        "dp1",
        "dp3 mb2",
        "dp8 zero1",
        "dp2 zero2 mb4",
        "dp2 tp2 pp2 zero3",
        "tp4",
        "pp3",
        "pp2 gpipe",
        "pp3 interleaved2",
        "pp2 layers=1,5",
        "pp2 layers=5,1 mb8",
        "dp2 recompute=full",
        "tp2 recompute=selective",
    ],
)
def test_these_run(text: str) -> None:
    assert unsupported(job(), parse_plan(text, layer_count=6)) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp3", "tp3 does not divide model.kv_heads = 4; possible: tp [1, 2, 4]"),
        ("tp8", "tp8 does not divide model.heads = 12"),
        ("dp9", "dp9 exceeds the global batch of 8"),
        ("tp2 sp", "sequence parallelism"),
        ("dp2 ep2", "no experts"),
        ("pp1 interleaved2", "pp of at least 2"),
        ("pp2 layers=1,5 interleaved2", "fewer layers than its 2 virtual stages"),
    ],
)
def test_these_do_not(text: str, reason: str) -> None:
    said = unsupported(job(), parse_plan(text, layer_count=6))
    assert said is not None
    assert reason in said


def stages(*parts: tuple[int, tuple[Replica, ...]]) -> ParallelPlan:
    return ParallelPlan(stages=tuple(Stage(layer_count=count, replicas=replicas) for count, replicas in parts))


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (stages((3, (Replica(tp=2),)), (3, (Replica(), Replica()))), "stages with different replicas"),
        (stages((6, (Replica(tp=2), Replica(tp=1)))), "replicas with different tp"),
        (stages((6, (Replica(micro_batch_count=3), Replica()))), "for some replicas and not for others"),
        (stages((6, (Replica(micro_batch_count=3), Replica(micro_batch_count=4)))), "do not hold the batch of 8"),
        (stages((5, (Replica(),))), "the plan places 5 layers, the model has 6"),
    ],
)
def test_uneven_meshes_are_refused(plan: ParallelPlan, reason: str) -> None:
    said = unsupported(job(), plan)
    assert said is not None
    assert reason in said


def test_unequal_micro_batch_counts_run() -> None:
    plan = stages((6, (Replica(micro_batch_count=3), Replica(micro_batch_count=5))))
    assert unsupported(job(), plan) is None


def test_types_and_zones_do_not_matter_to_the_mesh() -> None:
    plan = stages((6, (Replica(gpu_type="a100", zone="z1"), Replica(gpu_type="t4", zone="z2"))))
    assert unsupported(job(), plan) is None


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (job(precision="fp16"), "loss scaling"),
        (job({"tied_embeddings": True}), "tied embeddings"),
        (job({"vocab_size": 100}), "at least 256"),
    ],
)
def test_specs_that_pp2_cannot_run(spec: JobSpec, reason: str) -> None:
    said = unsupported(spec, parse_plan("pp2", layer_count=6))
    assert said is not None
    assert reason in said


def test_a_command_job_is_not_the_workers() -> None:
    train = job()
    spec = JobSpec.model_validate(
        {"name": "own", "kind": JobKind.RIGID, "command": {"argv": ["true"]}, "gpus": {"count": 1}}
    )
    assert unsupported(spec, parse_plan("dp1", layer_count=6)) is not None
    assert unsupported(train, replace(parse_plan("dp1", layer_count=6), micro_batch_size=4)) is None
