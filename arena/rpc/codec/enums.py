"""The enums of the contract beside the words of the domain. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import Literal

from arena.domain.cluster import NodeState
from arena.domain.job import JobKind, ModelFamily
from arena.domain.parallel import Recompute, Schedule
from arena.domain.records import AttemptState, AttemptTransition, EndKind, JobState
from arena.rpc.codec.fields import EnumMap
from arena.rpc.v1 import agent_service_pb2, common_pb2

StopModeWord = Literal["save", "kill"]

JOB_KIND = EnumMap(common_pb2.JobKind, "JOB_KIND", JobKind)
JOB_STATE = EnumMap(common_pb2.JobState, "JOB_STATE", JobState)
ATTEMPT_STATE = EnumMap(common_pb2.AttemptState, "ATTEMPT_STATE", AttemptState)
ATTEMPT_TRANSITION = EnumMap(common_pb2.AttemptTransition, "ATTEMPT_TRANSITION", AttemptTransition)
END_KIND = EnumMap(common_pb2.EndKind, "END_KIND", EndKind)
NODE_STATE = EnumMap(common_pb2.NodeState, "NODE_STATE", NodeState)
MODEL_FAMILY = EnumMap(common_pb2.ModelFamily, "MODEL_FAMILY", ModelFamily)
SCHEDULE = EnumMap(common_pb2.PipelineSchedule, "PIPELINE_SCHEDULE", Schedule)
RECOMPUTE = EnumMap(common_pb2.Recompute, "RECOMPUTE", Recompute)

# Words that the job specification spells as literals.
PRECISION = EnumMap(common_pb2.Precision, "PRECISION", ("fp32", "bf16", "fp16"))
DATA_SOURCE = EnumMap(common_pb2.DataSource, "DATA_SOURCE", ("builtin", "text", "tokens", "images"))
LEARNING_RATE = EnumMap(common_pb2.LearningRateSchedule, "LEARNING_RATE_SCHEDULE", ("constant", "linear", "cosine"))
OPTIMIZER = EnumMap(common_pb2.OptimizerName, "OPTIMIZER_NAME", ("adamw", "sgd"))
_STOP_MODES: tuple[StopModeWord, ...] = ("save", "kill")
STOP_MODE = EnumMap(agent_service_pb2.StopMode, "STOP_MODE", _STOP_MODES)

ALL_ENUMS = (
    (common_pb2.JobKind, JOB_KIND),
    (common_pb2.JobState, JOB_STATE),
    (common_pb2.AttemptState, ATTEMPT_STATE),
    (common_pb2.AttemptTransition, ATTEMPT_TRANSITION),
    (common_pb2.EndKind, END_KIND),
    (common_pb2.NodeState, NODE_STATE),
    (common_pb2.ModelFamily, MODEL_FAMILY),
    (common_pb2.PipelineSchedule, SCHEDULE),
    (common_pb2.Recompute, RECOMPUTE),
    (common_pb2.Precision, PRECISION),
    (common_pb2.DataSource, DATA_SOURCE),
    (common_pb2.LearningRateSchedule, LEARNING_RATE),
    (common_pb2.OptimizerName, OPTIMIZER),
    (agent_service_pb2.StopMode, STOP_MODE),
)
