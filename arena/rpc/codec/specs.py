"""Job specifications to proto and back. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from pydantic import ValidationError

from arena.domain.job import (
    CheckpointSpec,
    CommandSpec,
    DataSpec,
    EvaluationSpec,
    GpuLimits,
    JobSpec,
    ModelSpec,
    ParallelLimits,
    RetrySpec,
    StopSpec,
    TrainSpec,
)
from arena.domain.optimizer import OptimizerSpec, ScheduleSpec
from arena.domain.parallel import Schedule
from arena.domain.variant import ModelVariant
from arena.errors import SpecError
from arena.rpc.codec import enums
from arena.rpc.codec.fields import fitting, optional
from arena.rpc.v1 import common_pb2 as pb

# A client older than these fields leaves them out and means their defaults.
_LATER_MODEL_FIELDS = (
    "dropout",
    "attention_dropout",
    "expert_count",
    "experts_per_token",
    "balance_loss_weight",
    "image_size",
    "patch_size",
    "channels",
    "class_count",
    "norm_groups",
    "encoder_layers",
    "target_len",
)


def spec_to_proto(spec: JobSpec) -> pb.JobSpec:
    """Return a job specification as a message.

    Raises:
        SpecError: A number is larger than the protocol carries, a string is not Unicode, or the job can only be
            replayed.
    """
    if spec.workload is not None:
        raise SpecError(
            f"job {spec.name!r} is known by measurements only ({spec.workload.name}) and cannot run",
            fix="give train (a model to be trained) or command (your own program); workloads are for arena replay",
        )
    with fitting(f"the specification of job {spec.name!r}", SpecError):
        return pb.JobSpec(
            name=spec.name,
            user=spec.user,
            project=spec.project,
            priority=spec.priority,
            weight=spec.weight,
            deadline_s=spec.deadline_s,
            is_deadline_strict=spec.is_deadline_strict,
            budget_usd=spec.budget_usd,
            kind=enums.JOB_KIND.to_proto(spec.kind),
            preemptible=spec.preemptible,
            train=_train_to_proto(spec.train) if spec.train else None,
            command=_command_to_proto(spec.command) if spec.command else None,
            stop=_stop_to_proto(spec.stop),
            gpus=_gpus_to_proto(spec.gpus),
            parallel=_parallel_to_proto(spec.parallel),
            checkpoint=_checkpoint_to_proto(spec.checkpoint),
            output_dir=spec.output_dir,
            grace_s=spec.grace_s,
            stall_timeout_s=spec.stall_timeout_s,
            retry=_retry_to_proto(spec.retry),
        )


def _train_to_proto(train: TrainSpec) -> pb.TrainSpec:
    return pb.TrainSpec(
        model=_model_to_proto(train.model),
        data=_data_to_proto(train.data),
        precision=enums.PRECISION.to_proto(train.precision),
        global_batch=train.global_batch,
        optimizer=_optimizer_to_proto(train.optimizer),
        seed=train.seed,
        evaluation=_evaluation_to_proto(train.evaluation) if train.evaluation else None,
    )


def _evaluation_to_proto(evaluation: EvaluationSpec) -> pb.EvaluationSpec:
    return pb.EvaluationSpec(
        interval_steps=evaluation.interval_steps,
        sample_count=evaluation.sample_count,
        data=_data_to_proto(evaluation.data) if evaluation.data else None,
    )


def _model_to_proto(model: ModelSpec) -> pb.ModelSpec:
    return pb.ModelSpec(
        family=enums.MODEL_FAMILY.to_proto(model.family),
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        vocab_size=model.vocab_size,
        seq_len=model.seq_len,
        tied_embeddings=model.tied_embeddings,
        rope_theta=model.rope_theta,
        norm_eps=model.norm_eps,
        dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        expert_count=model.expert_count,
        experts_per_token=model.experts_per_token,
        balance_loss_weight=model.balance_loss_weight,
        image_size=model.image_size,
        patch_size=model.patch_size,
        channels=model.channels,
        class_count=model.class_count,
        group_depths=model.group_depths,
        norm_groups=model.norm_groups,
        encoder_layers=model.encoder_layers,
        target_len=model.target_len,
        variant=_variant_to_proto(model.variant),
    )


def _variant_to_proto(variant: ModelVariant) -> pb.ModelVariant | None:
    given = list(variant.set_fields())
    return pb.ModelVariant(**{name: getattr(variant, name) for name in given}) if given else None


def _data_to_proto(data: DataSpec) -> pb.DataSpec:
    source = enums.DATA_SOURCE.to_proto(data.source)
    return pb.DataSpec(source=source, path=data.path, token_dtype=data.token_dtype)


def _optimizer_to_proto(optimizer: OptimizerSpec) -> pb.OptimizerSpec:
    return pb.OptimizerSpec(
        name=enums.OPTIMIZER.to_proto(optimizer.name),
        lr=optimizer.lr,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        momentum=optimizer.momentum,
        clip_norm=optimizer.clip_norm,
        schedule=_schedule_to_proto(optimizer.schedule),
    )


def _schedule_to_proto(schedule: ScheduleSpec) -> pb.ScheduleSpec:
    return pb.ScheduleSpec(
        kind=enums.LEARNING_RATE.to_proto(schedule.kind),
        warmup_steps=schedule.warmup_steps,
        decay_steps=schedule.decay_steps,
        floor_ratio=schedule.floor_ratio,
    )


def _command_to_proto(command: CommandSpec) -> pb.CommandSpec:
    return pb.CommandSpec(
        argv=command.argv, cwd=command.cwd, env=command.env, processes_per_gpu=command.processes_per_gpu
    )


def _stop_to_proto(stop: StopSpec) -> pb.StopSpec:
    return pb.StopSpec(steps=stop.steps, tokens=stop.tokens, loss=stop.loss, time_limit_s=stop.time_limit_s)


def _gpus_to_proto(gpus: GpuLimits) -> pb.GpuLimits:
    return pb.GpuLimits(
        count=gpus.count,
        min=gpus.min,
        max=gpus.max,
        types=gpus.types,
        nodes_max=gpus.nodes_max,
        same_zone=gpus.same_zone,
    )


def _parallel_to_proto(limits: ParallelLimits) -> pb.ParallelLimits:
    return pb.ParallelLimits(
        plan=limits.plan,
        dp_max=limits.dp_max,
        tp_max=limits.tp_max,
        pp_max=limits.pp_max,
        micro_batch_max=limits.micro_batch_max,
        zero=limits.zero,
        schedules=[enums.SCHEDULE.to_proto(Schedule(word)) for word in limits.schedules],
    )


def _checkpoint_to_proto(checkpoint: CheckpointSpec) -> pb.CheckpointSpec:
    return pb.CheckpointSpec(
        dir=checkpoint.dir,
        interval_steps=checkpoint.interval_steps,
        keep=checkpoint.keep,
        quota_bytes=checkpoint.quota_bytes,
        is_async=checkpoint.is_async,
    )


def _retry_to_proto(retry: RetrySpec) -> pb.RetrySpec:
    return pb.RetrySpec(
        launch_failures_max=retry.launch_failures_max, restarts_max=retry.restarts_max, on_stall=retry.on_stall
    )


def spec_from_proto(message: pb.JobSpec) -> JobSpec:
    """Return the job specification of a message; parts that are absent have their defaults.

    Raises:
        UserError: An enum is unspecified.
        SpecError: The specification is not valid; every wrong field is named.
    """
    workload = message.WhichOneof("workload")
    fields: dict[str, Any] = {
        "name": message.name,
        "user": optional(message, "user"),
        "project": message.project,
        "priority": message.priority,
        "weight": message.weight,
        "deadline_s": optional(message, "deadline_s"),
        "is_deadline_strict": message.is_deadline_strict,
        "budget_usd": optional(message, "budget_usd"),
        "kind": enums.JOB_KIND.from_proto(message.kind, "spec.kind"),
        "preemptible": message.preemptible,
        "train": _train_fields(message.train) if workload == "train" else None,
        "command": _command_fields(message.command) if workload == "command" else None,
        "output_dir": optional(message, "output_dir"),
        "grace_s": message.grace_s,
        "stall_timeout_s": optional(message, "stall_timeout_s"),
        **_limit_fields(message),
    }
    try:
        return JobSpec.model_validate(fields)
    except ValidationError as error:
        raise SpecError(
            "the job specification is not valid",
            why="; ".join(f"{_path(item['loc'])}: {item['msg']}" for item in error.errors(include_url=False)),
            details={_path(item["loc"]): item["msg"] for item in error.errors(include_url=False)},
        ) from error


def _present(message: Message, *names: str) -> dict[str, Any]:
    """Return the fields that a message holds; those it lacks are left to their defaults."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "job"


def _limit_fields(message: pb.JobSpec) -> dict[str, Any]:
    """The parts of a specification that may be left out as a whole."""
    fields: dict[str, Any] = {}
    if message.HasField("stop"):
        fields["stop"] = {key: optional(message.stop, key) for key in ("steps", "tokens", "loss", "time_limit_s")}
    if message.HasField("gpus"):
        fields["gpus"] = _gpu_fields(message.gpus)
    if message.HasField("parallel"):
        fields["parallel"] = _parallel_fields(message.parallel)
    if message.HasField("checkpoint"):
        checkpoint = message.checkpoint
        fields["checkpoint"] = {
            "dir": optional(checkpoint, "dir"),
            "interval_steps": checkpoint.interval_steps,
            "keep": checkpoint.keep,
            **_present(checkpoint, "quota_bytes", "is_async"),
        }
    if message.HasField("retry"):
        fields["retry"] = {
            "launch_failures_max": message.retry.launch_failures_max,
            "restarts_max": optional(message.retry, "restarts_max"),
            **_present(message.retry, "on_stall"),
        }
    return fields


def _gpu_fields(gpus: pb.GpuLimits) -> dict[str, Any]:
    return {
        "count": optional(gpus, "count"),
        "min": optional(gpus, "min"),
        "max": optional(gpus, "max"),
        "types": list(gpus.types),
        "nodes_max": optional(gpus, "nodes_max"),
        "same_zone": gpus.same_zone,
    }


def _parallel_fields(limits: pb.ParallelLimits) -> dict[str, Any]:
    fields = {key: optional(limits, key) for key in ("plan", "dp_max", "tp_max", "pp_max", "micro_batch_max")}
    schedules = [enums.SCHEDULE.from_proto(number, "spec.parallel.schedules").value for number in limits.schedules]
    return {**fields, "zero": list(limits.zero), "schedules": schedules}


def _command_fields(command: pb.CommandSpec) -> dict[str, Any]:
    return {
        "argv": list(command.argv),
        "cwd": optional(command, "cwd"),
        "env": dict(command.env),
        "processes_per_gpu": command.processes_per_gpu,
    }


def _train_fields(train: pb.TrainSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": _model_fields(train.model),
        "precision": enums.PRECISION.from_proto(train.precision, "spec.train.precision"),
        "global_batch": train.global_batch,
        "seed": train.seed,
    }
    if train.HasField("data"):
        fields["data"] = _data_fields(train.data, "spec.train.data")
    if train.HasField("optimizer"):
        fields["optimizer"] = _optimizer_fields(train.optimizer)
    if train.HasField("evaluation"):
        fields["evaluation"] = _evaluation_fields(train.evaluation)
    return fields


def _data_fields(data: pb.DataSpec, field: str) -> dict[str, Any]:
    return {
        "source": enums.DATA_SOURCE.from_proto(data.source, f"{field}.source"),
        "path": optional(data, "path"),
        "token_dtype": data.token_dtype,
    }


def _evaluation_fields(evaluation: pb.EvaluationSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "interval_steps": evaluation.interval_steps,
        "sample_count": evaluation.sample_count,
    }
    if evaluation.HasField("data"):
        fields["data"] = _data_fields(evaluation.data, "spec.train.evaluation.data")
    return fields


def _model_fields(model: pb.ModelSpec) -> dict[str, Any]:
    variant = {field.name: value for field, value in model.variant.ListFields()}
    return {
        "family": enums.MODEL_FAMILY.from_proto(model.family, "spec.train.model.family"),
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": optional(model, "kv_heads"),
        "ffn_hidden": optional(model, "ffn_hidden"),
        "vocab_size": model.vocab_size,
        "seq_len": model.seq_len,
        "tied_embeddings": model.tied_embeddings,
        "rope_theta": model.rope_theta,
        "norm_eps": model.norm_eps,
        "group_depths": list(model.group_depths),
        **_present(model, *_LATER_MODEL_FIELDS),
        **({"variant": variant} if variant else {}),
    }


def _optimizer_fields(optimizer: pb.OptimizerSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": enums.OPTIMIZER.from_proto(optimizer.name, "spec.train.optimizer.name"),
        "lr": optimizer.lr,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "momentum": optimizer.momentum,
        "clip_norm": optional(optimizer, "clip_norm"),
    }
    if optimizer.HasField("schedule"):
        schedule = optimizer.schedule
        fields["schedule"] = {
            "kind": enums.LEARNING_RATE.from_proto(schedule.kind, "spec.train.optimizer.schedule.kind"),
            "warmup_steps": schedule.warmup_steps,
            "decay_steps": optional(schedule, "decay_steps"),
            "floor_ratio": schedule.floor_ratio,
        }
    return fields
