"""arena/cli/job-file.md names every field there is, and its examples are jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from arena.domain.capability import TRAINED_FAMILIES, job_refusals
from arena.domain.job import JobSpec
from arena.domain.specfile import parse_spec
from arena.rpc import codec

TEXT = (Path(__file__).parents[2] / "arena" / "cli" / "job-file.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def spec_of(example: str) -> JobSpec:
    return parse_spec(example, source="job.yaml", base_dir="/home/ann", read_text=lambda path: json.dumps(LLAMA))


def field_names(model: type[BaseModel], path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Every field of a specification with the path of the part that it belongs to."""
    found: dict[str, tuple[str, ...]] = {}
    for name, field in model.model_fields.items():
        found[".".join((*path, name))] = path
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= field_names(kind, (*path, name))
    return found


def section(path: tuple[str, ...]) -> str:
    """What the reference says of one part of the specification."""
    fields = TEXT[TEXT.index("## Fields") :]
    start = fields.index(f"`{'.'.join(path)}`" if len(path) > 1 else f"\n`{path[0]}`") if path else 0
    rest = fields[start + 1 :]
    end = re.search(r"\n\n`", rest)
    return rest[: end.start()] if end else rest


@pytest.mark.parametrize(("name", "path"), field_names(JobSpec).items())
def test_every_field_is_described_in_its_part(name: str, path: tuple[str, ...]) -> None:
    word = name.rpartition(".")[2]
    part = ".".join(path)
    if part == "train.optimizer.schedule":
        path, word = ("train", "optimizer"), f"schedule.{word}"
    if part == "train.evaluation.data":
        path = ("train", "data")
    assert re.search(rf"`{re.escape(word)}[`.]", section(path)), f"{name} is missing"


def test_there_is_an_example_of_each_family_and_each_is_a_job() -> None:
    specs = [spec_of(example) for example in EXAMPLES]
    assert [spec.train.model.family for spec in specs if spec.train is not None] == list(TRAINED_FAMILIES)


@pytest.mark.parametrize("example", EXAMPLES, ids=list(TRAINED_FAMILIES))
def test_an_example_survives_the_wire(example: str) -> None:
    spec = spec_of(example)
    assert codec.spec_from_proto(codec.spec_to_proto(spec)) == spec


@pytest.mark.parametrize("example", EXAMPLES, ids=list(TRAINED_FAMILIES))
def test_an_example_is_a_job_that_can_run(example: str) -> None:
    train = spec_of(example).train
    assert train is not None
    assert list(job_refusals(train)) == []


def test_evaluation_data_are_those_of_the_file_too() -> None:
    train = spec_of(EXAMPLES[1]).train
    assert train is not None
    assert train.evaluation is not None
    assert train.evaluation.data is not None
    assert train.evaluation.data.path == "/home/ann/validation.bin"
