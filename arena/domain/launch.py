"""The contract between agent and worker: what a launch is told and what it reports. Pure: no I/O, no clock.

The agent writes a ``Launch`` as JSON to ``launch.json`` in the attempt's directory and starts the ranks with the
torchrun environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) plus
``ARENA_ATTEMPT_ID``, ``ARENA_LAUNCH`` (path of launch.json) and ``ARENA_REPORT`` (a file to which rank 0 appends one
JSON line per report; a file, so that an agent that was restarted goes on reading where it stopped). A polite stop is
SIGTERM to any rank: the ranks agree on a step, save, report ``Stopped`` and exit 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NewType

from pydantic import ConfigDict, Field, TypeAdapter

from arena.domain.job import JobId, JobSpec
from arena.domain.parallel import ParallelPlan
from arena.domain.replacing import quickly_made

AttemptId = NewType("AttemptId", str)
NodeId = NewType("NodeId", str)
DeviceId = NewType("DeviceId", str)

# Users' programs report too, and what they say is stored and sent: a number must fit its field there.
Count = Annotated[int, Field(ge=0, lt=2**63)]

ATTEMPT_ID_VARIABLE = "ARENA_ATTEMPT_ID"
LAUNCH_VARIABLE = "ARENA_LAUNCH"
REPORT_VARIABLE = "ARENA_REPORT"


def attempt_id(job_id: JobId, epoch: int) -> AttemptId:
    """Return the id of a job's attempt; the epoch is its fencing token."""
    return AttemptId(f"{job_id}.{epoch}")


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One node's share of an attempt.

    Args:
        attempt_id: Job id and epoch.
        epoch: Fencing token; a checkpoint written by an older epoch than the place's fence is refused.
        spec: The job.
        plan: The layout; None for command jobs.
        node_ranks: Global ranks on this node, in local-rank order.
        node_index: This node's position among the attempt's nodes.
        node_count: Nodes of the attempt.
        world_size: Ranks over all nodes.
        device_ids: This node's devices, one per local rank (order = local rank).
        gpu_type: Type of these devices; ``cpu`` means gloo on the host.
        master_addr: Address of rank 0's node.
        master_port: Port leased for this attempt on rank 0's node.
        checkpoint_dir: Where checkpoints of this job live (all its nodes see it).
        output_dir: Where the final model goes.
        time_left_s: What is left of the job's time limit; None without one.
        durable_step: Newest step that earlier attempts reported as durable: where there is one, starting afresh would
            lose work silently.
    """

    # Built when first used: the command line imports this module and reads no launch.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(defer_build=True)

    attempt_id: AttemptId
    job_id: JobId
    epoch: int
    spec: JobSpec
    plan: ParallelPlan | None
    node_ranks: tuple[int, ...]
    node_index: int
    node_count: int
    world_size: int
    device_ids: tuple[DeviceId, ...]
    gpu_type: str
    master_addr: str
    master_port: int
    checkpoint_dir: str
    output_dir: str
    time_left_s: float | None = None
    durable_step: int = 0


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One optimizer step as it was measured."""

    step: int
    loss: float
    step_time_s: float
    tokens_per_s: float


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The ranks have met and the state is loaded (or fresh); the first step follows.

    Args:
        resumed_step: Optimizer steps already done in the loaded state; 0 when fresh.
        checkpoint: Name of the checkpoint that was loaded, None when fresh.
        skipped: Checkpoints that were newer but incomplete or damaged, each with the reason.
        rendezvous_s, load_s: How long the process group and the load took.
    """

    kind: Literal["ready"] = "ready"
    resumed_step: int
    checkpoint: str | None
    skipped: Mapping[str, str] = field(default_factory=dict)
    rendezvous_s: float
    load_s: float


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Steps since the last report, oldest first (also sent by user programs through ``arena_agent.report``)."""

    kind: Literal["progress"] = "progress"
    points: tuple[StepPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The model after ``step`` steps was evaluated on samples that are never trained on.

    Args:
        loss: Mean over the targets of the samples, without regularisation.
        sample_count: Samples evaluated.
        evaluate_s: How long training stood still for it.
        accuracy: Share of the targets that the model ranked first; None where it was not measured.
    """

    kind: Literal["evaluated"] = "evaluated"
    step: Count
    loss: float
    sample_count: Count
    evaluate_s: float
    accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint became durable: its manifest is written and synced."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    name: str
    size_bytes: int
    save_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """A save failed; training goes on from memory, the last durable checkpoint stays."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    step: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The attempt stopped on request; ``step`` is what the durable state holds."""

    kind: Literal["stopped"] = "stopped"
    step: int
    durable_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing:
    """The stop condition is met; the final state is being saved and exported."""

    kind: Literal["finishing"] = "finishing"
    step: int
    condition: str


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The job's work is done and its result is durable in ``output_dir``."""

    kind: Literal["finished"] = "finished"
    step: int
    loss: float | None
    output: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerError:
    """A rank fails for a reason it can name; exit codes alone would not say it.

    Args:
        code: ``config`` (the job can never run so), ``oom`` (this plan does not fit), ``checkpoint`` (nothing
            loadable, or foreign state), ``data``, ``port`` (the leased port is taken) or ``crash``.
    """

    kind: Literal["error"] = "error"
    code: Literal["config", "oom", "checkpoint", "data", "port", "crash"]
    rank: int
    message: str


WorkerReport = Annotated[
    Ready | Progress | Evaluated | CheckpointSaved | CheckpointFailed | Stopped | Finishing | Finished | WorkerError,
    Field(discriminator="kind"),
]

LAUNCH_JSON: TypeAdapter[Launch] = TypeAdapter(Launch)
# A diverged loss is NaN and must arrive as such: the default writes null, which no reader takes for a number.
JSON_CONFIG = ConfigDict(defer_build=True, ser_json_inf_nan="constants")
REPORT_JSON: TypeAdapter[WorkerReport] = TypeAdapter(WorkerReport, config=JSON_CONFIG)
