"""What the planner says is kept for a backward pass, against what torch keeps of the worker's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arena.domain.capability import TRAINED_FAMILIES
from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute
from arena.domain.parameters import parameters_of
from arena.planner.hardware import catalog
from arena.planner.memory import memory_of_plan
from arena_agent.worker.collectives import TensorGroup
from arena_agent.worker.models.chunk import Chunk
from arena_agent.worker.models.environment import Environment, ExpertGroup, Rows, StepRecord
from arena_agent.worker.placement import chunks_of

pytestmark = pytest.mark.slow

ROWS = 4
TEXT = {"layers": 3, "hidden": 64, "heads": 4, "ffn_hidden": 160, "seq_len": 32, "vocab_size": 300}
IMAGES = {"image_size": 16, "class_count": 10}
MODELS: Mapping[str, dict[str, Any]] = {
    "gpt": {"family": "gpt", **TEXT},
    "gpt with dropout": {"family": "gpt", **TEXT, "dropout": 0.1, "attention_dropout": 0.1},
    "llama": {"family": "llama", **TEXT, "kv_heads": 2},
    "bert": {"family": "bert", **TEXT, "dropout": 0.1},
    "moe": {"family": "moe", **TEXT, "expert_count": 4},
    "vit": {"family": "vit", **TEXT, **IMAGES, "patch_size": 4},
    "wide_resnet": {"family": "wide_resnet", "layers": 4, "hidden": 16, "group_depths": (2, 2), **IMAGES},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def kept_bytes(train: TrainSpec, plan: ParallelPlan, stage: int) -> int:
    """Run a stage's chunk forward and return the bytes of all that autograd keeps, parameters aside."""
    spec, dtype = train.model, DTYPES[train.precision]
    parameters = {
        parameter.name: nn.Parameter(torch.randn(parameter.shape, dtype=dtype) * 0.02)
        for parameter in parameters_of(spec)
    }
    chunk = Chunk(environment(train, plan, parameters), chunks_of(plan)[stage])
    storages: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    inputs = stage_input(train, dtype) if stage == 0 else torch.randn(ROWS, 32, 64, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = chunk(inputs, rows_of(train))
    assert output.requires_grad
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters.values()}
    found = {place: tensor.untyped_storage().nbytes() for place, tensor in storages.items() if place not in own}
    if stage < plan.pp - 1:
        found[output.untyped_storage().data_ptr()] = output.untyped_storage().nbytes()
    return sum(found.values())


def environment(train: TrainSpec, plan: ParallelPlan, parameters: Mapping[str, nn.Parameter]) -> Environment:
    alone = TensorGroup(group=None, size=1, index=0, is_sequence_split=False)
    return Environment(
        spec=train.model, parameters=parameters, tensor=alone, expert=ExpertGroup(), recompute=plan.recompute
    )


def rows_of(train: TrainSpec) -> Rows:
    load = torch.ones(train.model.layers, train.model.expert_count or 1)
    record = StepRecord(load=load, token_count=ROWS * 32)
    return Rows(keys=torch.arange(ROWS), micro_batch=0, is_training=True, is_counted=True, record=record)


def stage_input(train: TrainSpec, dtype: torch.dtype) -> Tensor:
    spec = train.model
    if spec.is_image_model:
        size = spec.image_size or 0
        return torch.randn(ROWS, spec.channels, size, size, dtype=dtype)
    return torch.randint(0, spec.vocab_size, (ROWS, spec.seq_len))


@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_kept_tensors_is_what_torch_keeps(name: str, precision: str, recompute: Recompute) -> None:
    train = TrainSpec.model_validate({"model": MODELS[name], "global_batch": ROWS, "precision": precision})
    plan = ParallelPlan.uniform(layer_count=train.model.layers, micro_batch_size=ROWS, recompute=recompute)
    predicted = float(memory_of_plan(train, plan, catalog()["cpu"]).activations[0, 0])
    assert predicted == pytest.approx(kept_bytes(train, plan, 0), rel=0.03)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name]["family"] not in ("wide_resnet", "vit")])
def test_each_stage_keeps_its_layers_and_what_it_sends(name: str) -> None:
    train = TrainSpec.model_validate({"model": MODELS[name], "global_batch": ROWS})
    plan = ParallelPlan.uniform(layer_count=3, pp=3, micro_batch_size=ROWS)
    predicted = memory_of_plan(train, plan, catalog()["cpu"]).activations[0]
    message = 4 * ROWS * train.model.seq_len * train.model.hidden
    for stage, neighbour_count in enumerate((1, 2, 1)):
        received_ahead = neighbour_count * message
        assert predicted[stage] - received_ahead == pytest.approx(kept_bytes(train, plan, stage), rel=0.03)


def test_every_family_is_looked_at() -> None:
    assert {model["family"] for model in MODELS.values()} == set(TRAINED_FAMILIES)
