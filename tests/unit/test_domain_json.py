"""Reports and events as JSON: what goes in comes out, numbers that are none included."""

from __future__ import annotations

import math

import pytest

from arena.domain.events import EVENT_JSON, WorkerReported
from arena.domain.launch import REPORT_JSON, AttemptId, NodeId, Progress, StepPoint


def loss_of(report: object) -> float:
    assert isinstance(report, Progress)
    return report.points[0].loss


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 0.0, 1e-300])
def test_a_loss_survives_the_wire_and_the_log_whatever_it_is(loss: float) -> None:
    report = Progress(points=(StepPoint(step=1, loss=loss, step_time_s=0.1, tokens_per_s=1.0),))
    event = WorkerReported(node_id=NodeId("n1"), attempt_id=AttemptId("j.1"), report=report)
    logged = EVENT_JSON.validate_json(EVENT_JSON.dump_json(event))
    assert isinstance(logged, WorkerReported)
    for found in (REPORT_JSON.validate_json(REPORT_JSON.dump_json(report)), logged.report):
        assert loss_of(found) == loss or (math.isnan(loss) and math.isnan(loss_of(found)))
