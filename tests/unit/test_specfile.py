"""A job's YAML: what it becomes, and file, line, column and field for everything that is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from arena.domain.job import JobKind, JobSpec, ModelFamily, ModelSpec
from arena.domain.specfile import parse_spec, spec_from_fields
from arena.domain.yamltree import SIZE_BYTES_MAX, read_tree
from arena.errors import SpecError

GOOD = """\
name: my job
train:
  model: {family: gpt, layers: 4, hidden: 64, heads: 4}
  global_batch: 8
  data: {source: text, path: text/input.txt}
  optimizer: {lr: 1e-3}
stop: {steps: 100}
checkpoint: {dir: ~/ckpt}
output_dir: out
"""


def parse(text: str, *, files: dict[str, str] | None = None, overrides: tuple[tuple[str, str], ...] = ()) -> JobSpec:
    def read_text(path: str) -> str:
        if path not in (files or {}):
            raise FileNotFoundError(2, "No such file or directory", path)
        return (files or {})[path]

    return parse_spec(text, source="job.yaml", base_dir="/home/ann", read_text=read_text, overrides=overrides)


def problems(text: str, **options: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text, **options)
    return caught.value.message.splitlines()


def test_a_job_is_read_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    spec = parse(GOOD)
    assert spec.name == "my job"
    assert spec.kind is JobKind.MALLEABLE
    assert spec.train is not None
    assert spec.train.model.family is ModelFamily.GPT
    assert spec.train.optimizer.lr == 0.001


def test_relative_paths_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    spec = parse(GOOD)
    assert spec.train is not None
    assert spec.train.data.path == "/home/ann/text/input.txt"
    assert spec.checkpoint.dir == "/home/ann/ckpt"
    assert spec.output_dir == "/home/ann/out"


def test_everything_wrong_is_told_at_once_with_its_place_and_what_is_allowed() -> None:
    text = """\
name: 123
kind: malable
train:
  model: {family: gpt, layers: 0, hidden: 64, heads: 4, ffn: 3}
  global_batch: lots
  optimizer:
    shedule: {kind: cosine}
stop:
  steps: -1
gpus: 3
grace_s: .inf
"""
    assert problems(text) == [
        "job.yaml:1:7: name: got 123; allowed: text (put it in quotes)",
        "job.yaml:2:7: kind: got 'malable', did you mean 'malleable'?; allowed: rigid, moldable, malleable",
        "job.yaml:4:32: train.model.layers: got 0; allowed: at least 1",
        (
            "job.yaml:4:57: train.model.ffn: unknown field, did you mean 'ffn_hidden'?; "
            "allowed: attention_dropout, balance_loss_weight, channels, "
            "class_count, config, dropout, encoder_layers, expert_count, experts_per_token, family, ffn_hidden, "
            "group_depths, heads, hidden, image_size, kv_heads, layers, norm_eps, norm_groups, patch_size, "
            "rope_theta, seq_len, target_len, tied_embeddings, variant, vocab_size"
        ),
        "job.yaml:5:17: train.global_batch: got 'lots'; allowed: a whole number",
        (
            "job.yaml:7:5: train.optimizer.shedule: unknown field, did you mean 'schedule'?; allowed: beta1, beta2, "
            "clip_norm, eps, lr, momentum, name, schedule, weight_decay"
        ),
        "job.yaml:9:10: stop.steps: got -1; allowed: at least 1",
        "job.yaml:10:7: gpus: got 3; allowed: a mapping",
        "job.yaml:11:10: grace_s: input should be a finite number, got inf",
    ]


def test_a_missing_field_is_told_where_it_is_missing() -> None:
    text = "name: x\ntrain:\n  model: {family: gpt, layers: 1, hidden: 8, heads: 2}\n"
    assert problems(text) == ["job.yaml:3:3: train.global_batch: is required"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("kind: rigid", "job.yaml:1:1: a rigid job needs gpus.count (or parallel.plan)"),
        ("gpus: {min: 4, max: 2}", "job.yaml:10:7: gpus: min (4) is greater than max (2)"),
        ("command: {argv: [a]}", "exactly one of train"),
        ("parallel: {plan: dp2 xx3}", "job.yaml:10:18: parallel.plan: plan 'dp2 xx3' holds an unknown word 'xx3'"),
        ("parallel: {plan: pp9}", "job.yaml:10:18: parallel.plan: fewer layers than pipeline stages"),
        ("user: [a]", "job.yaml:10:7: user: got a list; allowed: text"),
        ("preemptible: maybe", "job.yaml:10:14: preemptible: got 'maybe'; allowed: true or false"),
        ("gpus: {types: a100}", "job.yaml:10:15: gpus.types: got 'a100'; allowed: a list"),
    ],
)
def test_fields_that_do_not_fit_together_are_told(change: str, problem: str) -> None:
    assert problem in problems(GOOD + change)[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "job.yaml is empty"),
        ("# nothing\n", "job.yaml is empty"),
        ("- a\n- b\n", "job.yaml:1:1: a job is a mapping of fields: got a list"),
        ("name: a\nname: b\n", "job.yaml:2:1: name is given twice, first in line 1"),
        ("stop:\n  steps: 1\n  steps: 2\n", "job.yaml:3:3: stop.steps is given twice, first in line 2"),
        ("name: a\n---\nname: b\n", "job.yaml:3:1: a second document starts here"),
        ("name: [a\n", "job.yaml:2:1: while parsing a flow sequence"),
        ("name: !!python/object/apply:os.system [ls]\n", "job.yaml:1:7: the tag"),
        ("name: !!binary aGk=\n", "job.yaml:1:7: the tag"),
        ("? [a, b]\n: c\n", "job.yaml:1:3: a key must be a word"),
        ("a: &a [*a]\n", "job.yaml:1:4: an alias refers to what contains it"),
        ("name: *nobody\n", "job.yaml:1:7: found undefined alias"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("a: " + "[" * 1200, "nested too deeply"),
        ("name: \x00\n", "is no YAML"),
        ("stop:\n\tsteps: 1\n", "cannot start any token. Indent with spaces"),
        ("x" * (SIZE_BYTES_MAX + 1), "job.yaml is larger than 1024 KiB"),
    ],
)
def test_a_document_that_is_no_job_is_refused(text: str, problem: str) -> None:
    assert problem in problems(text)[0]


def test_aliases_that_multiply_are_refused_soon() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "holds more than 20000 values" in problems("\n".join(lines))[0]


def test_scalars_are_those_of_yaml_1_2() -> None:
    tree = read_tree("[on, yes, 2024-01-01, 1e-3, 0x10, 010, 12:30, ~, true, '1', .5, 1_000]", "x")
    assert tree.data == ["on", "yes", "2024-01-01", 0.001, 16, 10, "12:30", None, True, "1", 0.5, "1_000"]


def test_a_field_is_replaced_from_the_command_line() -> None:
    spec = parse(GOOD, overrides=(("stop.steps", "7"), ("gpus.types", "[cpu]"), ("retry.restarts_max", "0")))
    assert (spec.stop.steps, spec.gpus.types, spec.retry.restarts_max) == (7, ("cpu",), 0)


def test_a_wrong_replacement_is_told_as_such() -> None:
    assert problems(GOOD, overrides=(("stop.stesp", "7"),)) == [
        "--set stop.stesp: stop.stesp: unknown field, did you mean 'steps'?; allowed: loss, steps, time_limit_s, tokens"
    ]
    assert problems(GOOD, overrides=(("name.first", "7"),)) == ["--set name.first: name is no mapping"]
    assert "write it like --set stop.steps=100" in problems(GOOD, overrides=(("stop..steps", "7"),))[0]


GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
    "activation_function": "gelu_new",
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.0,
}
MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "rope_theta": 1e6,
}
VIT = {
    "model_type": "vit",
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu",
    "id2label": {str(index): f"class {index}" for index in range(1000)},
}
RESNET = {
    "model_type": "resnet",
    "layer_type": "basic",
    "embedding_size": 64,
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "num_labels": 100,
}
FROM_CONFIG = """\
name: x
train:
  model: {config: models/config.json, seq_len: 256}
  global_batch: 8
"""


def parse_config(config: object, *beside: str) -> JobSpec:
    text = FROM_CONFIG.replace("seq_len: 256", ", ".join(("seq_len: 256", *beside)))
    return parse(text, files={"/home/ann/models/config.json": json.dumps(config)})


def model_of_config(config: object, *beside: str) -> ModelSpec:
    train = parse_config(config, *beside).train
    assert train is not None
    return train.model


def test_a_gpt2_config_gives_the_shape_and_fields_beside_it_win() -> None:
    train = parse_config(GPT2).train
    assert train is not None
    model = train.model
    assert (model.family, model.layers, model.hidden, model.heads) == (ModelFamily.GPT, 12, 768, 12)
    assert (model.vocab_size, model.seq_len, model.tied_embeddings, model.ffn_width) == (50257, 256, True, 3072)


def test_a_llama_config_gives_the_shape() -> None:
    train = parse_config(LLAMA).train
    assert train is not None
    model = train.model
    assert (model.family, model.layers, model.hidden, model.kv_heads) == (ModelFamily.LLAMA, 16, 2048, 8)
    assert (model.ffn_hidden, model.rope_theta, model.norm_eps, model.tied_embeddings) == (8192, 500000.0, 1e-5, True)


def test_dropout_is_the_files_and_otherwise_the_types_default() -> None:
    configs = (GPT2, {**GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.3}, LLAMA, BERT, MIXTRAL, VIT)
    shares = [(model.dropout, model.attention_dropout) for model in map(model_of_config, configs)]
    assert shares == [(0.1, 0.1), (0.0, 0.3), (0.0, 0.0), (0.2, 0.0), (0.0, 0.0), (0.0, 0.0)]
    assert model_of_config(GPT2, "dropout: 0", "attention_dropout: 0").dropout == 0.0


def test_a_bert_config_gives_the_shape() -> None:
    model = model_of_config(BERT)
    assert (model.family, model.layers, model.hidden, model.heads) == (ModelFamily.BERT, 12, 768, 12)
    assert (model.vocab_size, model.ffn_width, model.tied_embeddings, model.norm_eps) == (30522, 3072, True, 1e-12)


def test_a_mixtral_config_gives_the_shape() -> None:
    model = model_of_config(MIXTRAL)
    assert (model.family, model.kv_heads, model.ffn_hidden, model.rope_theta) == (ModelFamily.MOE, 8, 14336, 1e6)
    assert (model.expert_count, model.experts_per_token, model.balance_loss_weight) == (8, 2, 0.02)
    assert (model.norm_eps, model.tied_embeddings) == (1e-5, False)


def test_a_vit_config_gives_the_shape() -> None:
    model = model_of_config(VIT)
    assert (model.family, model.sequence_length, model.class_count, model.channels) == (ModelFamily.VIT, 196, 1000, 3)
    assert (model.layers, model.hidden, model.ffn_width) == (12, 768, 3072)


def test_a_resnet_config_gives_the_shape_where_its_image_size_is_given() -> None:
    model = model_of_config(RESNET, "image_size: 32")
    assert (model.family, model.layers, model.hidden) == (ModelFamily.WIDE_RESNET, 8, 64)
    assert (model.group_depths, model.class_count) == ((2, 2, 2, 2), 100)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "llama4"}, "of type 'llama4', did you mean 'llama'?. Supported model types: bert, deepseek, "),
        ({"model_type": ["bert"]}, "model of type ['bert']"),
        ([], "is no JSON object"),
        ({"model_type": "gpt2"}, "lacks 'n_layer'"),
        ({**GPT2, "activation_function": "tanh"}, "uses the activation 'tanh'"),
        ({**LLAMA, "mlp_bias": True}, "sets mlp_bias"),
        ({**LLAMA, "head_dim": "wide"}, "train.model.variant.head_size: got 'wide'; allowed: a whole number"),
        ({**GPT2, "embd_pdrop": 0.0}, "drops 0.1 of the residual stream and 0.0 of the embeddings"),
        ({**GPT2, "scale_attn_weights": False}, "sets scale_attn_weights to False: only True is built here"),
        ({**GPT2, "resid_pdrop": 1.0, "embd_pdrop": 1.0}, "train.model.dropout: got 1.0; allowed: less than 1"),
        ({**BERT, "position_embedding_type": "relative_key"}, "only 'absolute' is built here"),
        ({**BERT, "is_decoder": True}, "sets is_decoder"),
        ({**BERT, "hidden_act": "tanh"}, "uses the activation 'tanh'. Supported for bert: gelu"),
        ({**MIXTRAL, "sliding_window": -1}, "train.model.variant.attention_window: got -1; allowed: at least 1"),
        ({**MIXTRAL, "router_jitter_noise": 0.1}, "sets router_jitter_noise"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "experts_per_token (9) exceeds expert_count (8)"),
        ({**VIT, "qkv_bias": False}, "sets qkv_bias to False"),
        ({**VIT, "image_size": [224, 112]}, "has a image_size of [224, 112]: images and patches are squares here"),
        ({**VIT, "image_size": 225}, "image_size (225) must be a multiple of patch_size (16)"),
        (RESNET, "a model of family wide_resnet needs image_size"),
        ({**RESNET, "layer_type": "other"}, "has layers of type 'other'. Supported: basic, bottleneck"),
        ({**RESNET, "hidden_sizes": [64, 128, 200, 512]}, "each group has twice the channels"),
        ({**RESNET, "hidden_sizes": [64, 128]}, "has 2 hidden_sizes and 4 depths"),
        ({**RESNET, "hidden_sizes": 64}, "has hidden_sizes 64: a list of positive whole numbers is needed"),
        ({**RESNET, "embedding_size": 32}, "the stem is as wide as the first group here, 64"),
        ({**GPT2, "n_embd": "wide"}, "train.model.hidden: got 'wide'; allowed: a whole number"),
        ({**GPT2, "n_embd": 770}, "hidden (770) must be a multiple of heads (12)"),
    ],
)
def test_a_config_that_cannot_be_trained_is_told_with_its_place(config: object, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_config(config)
    assert problem in caught.value.message
    assert caught.value.message.startswith("job.yaml:3:")


def test_a_config_that_is_missing_or_broken_is_told_with_its_place() -> None:
    assert problems(FROM_CONFIG) == [
        "job.yaml:3:19: train.model.config: cannot read /home/ann/models/config.json: No such file or directory"
    ]
    broken = {"/home/ann/models/config.json": "{"}
    assert (
        "job.yaml:3:19: train.model.config: /home/ann/models/config.json is no JSON"
        in problems(FROM_CONFIG, files=broken)[0]
    )


def test_a_command_is_made_from_plain_fields_with_any_text() -> None:
    argv = ["python", "a b.py", "line\nbreak", "日本語 😀", "\x7f", "$(x)"]
    fields = {"name": "x", "kind": "rigid", "command": {"argv": argv, "cwd": "sub"}, "gpus": {"count": 1}}
    spec = spec_from_fields(fields, source="command line", base_dir="/home/ann")
    assert spec.command is not None
    assert list(spec.command.argv) == argv
    assert spec.command.cwd == "/home/ann/sub"


def test_what_is_wrong_with_plain_fields_is_told_without_a_line() -> None:
    fields = {"name": "", "kind": "rigid", "command": {"argv": ["a"]}, "gpus": {"count": 0}}
    with pytest.raises(SpecError) as caught:
        spec_from_fields(fields, source="command line", base_dir="/")
    assert "command line: gpus.count: got 0; allowed: at least 1" in caught.value.message
    assert "command line: name: must not be empty" in caught.value.message


def float_fields(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Every field of a specification that takes a fraction, with the part that has it."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        if any(kind is float or float in get_args(kind) for kind in kinds):
            yield model, name
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from float_fields(kind)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("part", "name"), sorted(set(float_fields(JobSpec)), key=str))
def test_no_number_may_be_infinite_or_none(part: type[BaseModel], name: str, number: float) -> None:
    # Stored as JSON it would be null, and neither the job nor a list that holds it could be read again.
    with pytest.raises(ValidationError) as caught:
        part.model_validate({name: number})
    assert (name,) in [error["loc"] for error in caught.value.errors()]
