"""A job known by measurements alone: it has a specification for replays, and nobody can submit it."""

from __future__ import annotations

import pytest

from arena.domain.job import JobSpec
from arena.errors import SpecError
from arena.rpc.codec.specs import spec_to_proto

WORKLOAD = {"name": "moe__1.3B", "global_batch": 256}


def test_a_workload_keeps_checkpoints_and_is_no_command():
    spec = JobSpec.model_validate({"name": "j1", "workload": WORKLOAD, "stop": {"steps": 10}})
    assert spec.keeps_checkpoints
    assert spec.restarts_max > 0
    assert spec.step_limit == 10


def test_a_workload_beside_a_command_is_refused():
    with pytest.raises(ValueError, match="exactly one"):
        JobSpec.model_validate({"name": "j1", "workload": WORKLOAD, "command": {"argv": ["true"]}, "kind": "rigid"})


def test_a_workload_cannot_be_submitted():
    spec = JobSpec.model_validate({"name": "j1", "workload": WORKLOAD})
    with pytest.raises(SpecError, match="arena replay"):
        spec_to_proto(spec)
