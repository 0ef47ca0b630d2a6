"""What the codec refuses, and that it knows every word of both sides."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from arena.domain.job import DataSpec, TrainSpec
from arena.domain.launch import NodeId
from arena.domain.optimizer import OptimizerSpec, ScheduleSpec
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import EntryKind, HistoryEntry
from arena.errors import SpecError, UserError
from arena.rpc import codec
from arena.rpc.codec import enums
from arena.rpc.codec.fields import EnumMap
from arena.rpc.v1 import agent_service_pb2, common_pb2
from arena.rpc.views import HIDDEN, public_reason
from tests.builders import command_spec, train_spec

NODE = NodeId("n1")


@pytest.mark.parametrize(("proto_enum", "words"), enums.ALL_ENUMS, ids=lambda item: getattr(item, "prefix", ""))
def test_every_number_of_a_proto_enum_has_its_word(proto_enum: type, words: EnumMap) -> None:
    numbers = {number for name, number in proto_enum.items() if number != 0}
    assert set(words.member_by_number) == numbers


@pytest.mark.parametrize(
    ("model", "field", "words"),
    [
        (TrainSpec, "precision", enums.PRECISION),
        (DataSpec, "source", enums.DATA_SOURCE),
        (ScheduleSpec, "kind", enums.LEARNING_RATE),
        (OptimizerSpec, "name", enums.OPTIMIZER),
    ],
)
def test_every_literal_of_a_specification_has_its_number(model: type, field: str, words: EnumMap) -> None:
    assert set(get_args(model.model_fields[field].annotation)) == set(words.number_by_member)


def test_an_unspecified_enum_is_refused_by_the_name_of_its_field() -> None:
    message = codec.spec_to_proto(train_spec())
    message.train.model.family = common_pb2.MODEL_FAMILY_UNSPECIFIED
    with pytest.raises(UserError, match=r"field spec\.train\.model\.family is not specified.*MODEL_FAMILY_GPT"):
        codec.spec_from_proto(message)


def test_an_enum_value_of_a_later_version_is_refused_with_its_number() -> None:
    message = codec.spec_to_proto(train_spec())
    message.kind = 99
    with pytest.raises(UserError, match=r"field spec\.kind has the value 99"):
        codec.spec_from_proto(message)


def test_every_wrong_field_of_a_specification_is_named_at_once() -> None:
    message = codec.spec_to_proto(train_spec())
    message.train.model.layers = 0
    message.train.optimizer.lr = -1
    message.grace_s = 0
    with pytest.raises(SpecError) as caught:
        codec.spec_from_proto(message)
    assert set(caught.value.details) == {"grace_s", "train.model.layers", "train.optimizer.lr"}


def test_parts_that_are_left_out_have_their_defaults() -> None:
    spec = train_spec()
    message = codec.spec_to_proto(spec)
    for field in ("gpus", "parallel", "checkpoint", "retry"):
        message.ClearField(field)
    message.train.ClearField("optimizer")
    message.train.ClearField("data")
    assert codec.spec_from_proto(message) == spec


def test_a_specification_without_work_is_refused() -> None:
    message = codec.spec_to_proto(command_spec())
    message.ClearField("command")
    with pytest.raises(SpecError, match="exactly one of train"):
        codec.spec_from_proto(message)


def test_a_number_larger_than_the_protocol_is_refused_before_it_is_sent() -> None:
    with pytest.raises(SpecError, match=r"outside the protocol's range"):
        codec.spec_to_proto(train_spec(gpus={"count": 2**40}))


def test_text_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    spec = command_spec(command={"argv": ("echo", "\udcff")})
    with pytest.raises(SpecError, match="not valid Unicode"):
        codec.spec_to_proto(spec)


def test_a_reason_of_a_later_version_keeps_its_sentence() -> None:
    message = common_pb2.Reason(code="phase_of_moon", text="waits for a full moon", numbers={"days": 3})
    reason = codec.reason_from_proto(message)
    assert str(reason) == "waits for a full moon"
    assert reason.names["code"] == "phase_of_moon"


def test_a_history_entry_of_a_later_version_is_refused_by_the_name_of_its_field() -> None:
    with pytest.raises(UserError, match=r"entry\.kind holds 'eclipse'"):
        codec.entry_from_proto(common_pb2.HistoryEntry(index=1, kind="eclipse"))


def test_a_history_entry_whose_facts_are_no_object_is_refused() -> None:
    for text in ("[1]", "{"):
        with pytest.raises(UserError, match=r"entry\.data_json"):
            codec.entry_from_proto(common_pb2.HistoryEntry(index=1, kind="decision", data_json=text))


def test_a_loss_that_is_not_a_number_is_null_in_the_facts() -> None:
    data = {"loss": float("nan"), "points": [float("inf"), 1.0], "inner": {"x": 2}}
    entry = HistoryEntry(index=1, at_s=0.0, kind=EntryKind.JOB_PROGRESS, message="", data=data)
    assert json.loads(codec.entry_to_proto(entry).data_json) == {
        "loss": None,
        "points": [None, 1.0],
        "inner": {"x": 2},
    }


def test_an_end_that_names_another_node_is_refused() -> None:
    message = agent_service_pb2.AttemptEnded(
        attempt_id="j.1", end=common_pb2.NodeEnd(node_id="n2", kind=common_pb2.END_KIND_FINISHED)
    )
    with pytest.raises(UserError, match="names node 'n2'"):
        codec.attempt_ended_from_proto(message, NODE)


def test_a_registration_without_an_incarnation_is_refused() -> None:
    message = agent_service_pb2.Register(node_id="n1", gpu_type="cpu", address="127.0.0.1")
    with pytest.raises(UserError, match=r"register\.incarnation is empty"):
        codec.register_from_proto(message, now_s=0.0)


def test_a_report_that_is_no_report_is_refused() -> None:
    for text in ("{", '{"kind": "poem"}', '{"kind": "stopped"}'):
        message = agent_service_pb2.WorkerReport(attempt_id="j.1", report_json=text)
        with pytest.raises(UserError, match=r"report of attempt j\.1 cannot be read"):
            codec.worker_report_from_proto(message, NODE)


def test_others_do_not_see_what_a_program_wrote() -> None:
    reason = Reason(code=ReasonCode.WORKER_FAILED, names={"error": "KeyError: 'secret'"})
    assert str(public_reason(reason)) == HIDDEN
