"""Messages of a side that is older than evaluations and later model families: what it leaves out has its default."""

from __future__ import annotations

import pytest

from arena.domain.events import WorkerReported
from arena.domain.launch import AttemptId, Evaluated, NodeId
from arena.domain.records import Evaluation, Progress
from arena.errors import UserError
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2
from tests.builders import train_spec

LATER_MODEL_FIELDS = (
    *("dropout", "attention_dropout", "expert_count", "experts_per_token", "balance_loss_weight", "image_size"),
    *("patch_size", "channels", "class_count", "group_depths", "norm_groups"),
    *("encoder_layers", "target_len", "variant"),
)


def test_a_specification_without_the_later_fields_is_the_same_job() -> None:
    spec = train_spec("x")
    message = codec.spec_to_proto(spec)
    for name in LATER_MODEL_FIELDS:
        message.train.model.ClearField(name)
    message.train.ClearField("evaluation")
    message.checkpoint.ClearField("quota_bytes")
    message.checkpoint.ClearField("is_async")
    message.retry.ClearField("on_stall")
    assert codec.spec_from_proto(message) == spec


def test_progress_without_an_evaluation_is_read() -> None:
    found = Evaluation(step=3, loss=2.0, sample_count=8, evaluate_s=0.5, at_s=7.0)
    message = codec.progress_to_proto(Progress(step=4, evaluation=found))
    message.ClearField("evaluation")
    assert codec.progress_from_proto(message) == Progress(step=4)


@pytest.mark.parametrize("field", ["step", "sample_count"])
@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_number_that_no_later_message_could_carry_is_refused_where_it_comes_in(field: str, number: int) -> None:
    good = Evaluated(step=1, loss=2.0, sample_count=8, evaluate_s=0.5)
    event = WorkerReported(node_id=NodeId("n1"), attempt_id=AttemptId("j.1"), report=good)
    message = codec.worker_report_to_proto(event)
    old = f'"{field}":{getattr(good, field)}'
    assert old in message.report_json
    bad = agent_service_pb2.WorkerReport(report_json=message.report_json.replace(old, f'"{field}":{number}'))
    with pytest.raises(UserError, match=field):
        codec.worker_report_from_proto(bad, NodeId("n1"))
