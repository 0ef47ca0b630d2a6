"""What a user asks for: the job specification and its parts. Pure: no I/O, no clock.

These are frozen pydantic models, so that one definition serves the YAML file, the database and the API, and an
error names the field. Fields that several later parts need (deadline, budget, weight) are carried from the start.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NewType

from pydantic import Field, model_validator

from arena.domain.divisors import nearest_divisors
from arena.domain.optimizer import OptimizerSpec
from arena.domain.specbase import Model, Name, PositiveFloat, PositiveInt, Share, Size
from arena.domain.variant import PLAIN, ModelVariant, variant_problems

JobId = NewType("JobId", str)


class JobKind(StrEnum):
    """How far a job's GPU count may be chosen for it."""

    RIGID = "rigid"
    MOLDABLE = "moldable"
    MALLEABLE = "malleable"


class ModelFamily(StrEnum):
    """Model families; ``arena.domain.capability`` says which of them the worker trains."""

    GPT = "gpt"
    LLAMA = "llama"
    BERT = "bert"
    MOE = "moe"
    VIT = "vit"
    WIDE_RESNET = "wide_resnet"
    T5 = "t5"


IMAGE_FAMILIES = frozenset({ModelFamily.VIT, ModelFamily.WIDE_RESNET})
"""Families that classify images; the others model tokens."""
SWIGLU_FAMILIES = frozenset({ModelFamily.LLAMA, ModelFamily.MOE})
"""Families built like Llama: RMSNorm, rotary embedding, SwiGLU, no biases."""

RMS_NORM_FAMILIES = SWIGLU_FAMILIES | {ModelFamily.T5}
"""Families with RMSNorm and no biases."""

_FAMILY_FIELDS = {
    ModelFamily.T5: ("encoder_layers",),
    ModelFamily.MOE: ("expert_count",),
    ModelFamily.VIT: ("image_size", "patch_size", "class_count"),
    ModelFamily.WIDE_RESNET: ("image_size", "class_count", "group_depths"),
}


class ModelSpec(Model):
    """Shape of a model.

    Attributes:
        layers: Transformer layers (T5: of encoder and decoder together); residual blocks of a Wide-ResNet.
        hidden: Width of the residual stream; of a Wide-ResNet, channels of its first group (each next has twice).
        heads: Attention heads; a Wide-ResNet has none.
        ffn_hidden: Width of the feed-forward layer (of each expert); by default 4 * hidden, or the SwiGLU width of
            Llama, 8/3 * hidden rounded up to a multiple of 32.
        kv_heads: Key/value heads (grouped-query attention); by default ``heads``.
        rope_theta: Base of the rotary embedding (Llama and MoE).
        dropout: Share of the embeddings and of each sublayer's output that is dropped.
        attention_dropout: Share of the attention weights that is dropped.
        expert_count: Experts of each layer (MoE).
        experts_per_token: Experts that a token is sent to (MoE).
        balance_loss_weight: Weight of the load-balancing loss (MoE).
        image_size: Height and width of the images, in pixels.
        patch_size: Height and width of a patch (ViT).
        channels: Colour channels of the images.
        class_count: Classes of the images.
        group_depths: Residual blocks of each group (Wide-ResNet); a group halves the image and doubles the channels.
        norm_groups: Groups of each GroupNorm (Wide-ResNet).
        encoder_layers: How many of the layers are the encoder's (T5); the others are the decoder's.
        target_len: Positions of the decoder (T5); by default ``seq_len``, the encoder's.
        variant: What sets it apart from its family; such models can be planned only.
    """

    family: ModelFamily
    layers: Size
    hidden: Size
    heads: Size = 1
    kv_heads: Size | None = None
    ffn_hidden: Size | None = None
    vocab_size: Size = 256
    seq_len: Size = 128
    tied_embeddings: bool = False
    rope_theta: PositiveFloat = 10_000.0
    norm_eps: PositiveFloat = 1e-5
    dropout: Share = 0.0
    attention_dropout: Share = 0.0
    expert_count: Size | None = None
    experts_per_token: Size = 2
    balance_loss_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    image_size: Size | None = None
    patch_size: Size | None = None
    channels: Size = 3
    class_count: Size | None = None
    group_depths: tuple[Size, ...] = ()
    norm_groups: Size = 8
    encoder_layers: Size | None = None
    target_len: Size | None = None
    variant: ModelVariant = PLAIN

    @model_validator(mode="after")
    def _has_its_family_fields(self) -> ModelSpec:
        needed = _FAMILY_FIELDS.get(self.family, ())
        missing = [name for name in needed if not getattr(self, name)]
        if self.family is not ModelFamily.WIDE_RESNET and "heads" not in self.model_fields_set:
            missing.append("heads")
        if missing:
            raise ValueError(f"a model of family {self.family} needs {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _divisible(self) -> ModelSpec:
        if self.variant.head_size is None and self.hidden % self.heads:
            near = nearest_divisors(self.hidden, self.heads)
            text = f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})"
            raise ValueError(f"{text}; heads could be {near}")
        if self.heads % self.kv_head_count:
            near = nearest_divisors(self.heads, self.kv_head_count)
            text = f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_head_count})"
            raise ValueError(f"{text}; kv_heads could be {near}")
        if self.family in SWIGLU_FAMILIES and (self.variant.rotary_head_size or self.head_size) % 2:
            raise ValueError(f"a rotary embedding needs an even head size (hidden / heads), it is {self.head_size}")
        if self.expert_count and self.experts_per_token > self.expert_count:
            raise ValueError(f"experts_per_token ({self.experts_per_token}) exceeds expert_count ({self.expert_count})")
        return self

    @model_validator(mode="after")
    def _variant_fits(self) -> ModelSpec:
        problem = next(variant_problems(self.variant, self.family), None)
        if problem is not None:
            raise ValueError(problem)
        if self.variant.dense_layers >= self.layers:
            raise ValueError(f"variant.dense_layers ({self.variant.dense_layers}) must be below layers ({self.layers})")
        if self.encoder_layers is not None and self.encoder_layers >= self.layers:
            text = f"encoder_layers ({self.encoder_layers}) must be below layers ({self.layers})"
            raise ValueError(f"{text}, which count the decoder's as well")
        return self

    @model_validator(mode="after")
    def _images_fit(self) -> ModelSpec:
        if self.family is ModelFamily.VIT and (self.image_size or 0) % (self.patch_size or 1):
            raise ValueError(f"image_size ({self.image_size}) must be a multiple of patch_size ({self.patch_size})")
        if self.family is ModelFamily.WIDE_RESNET:
            if sum(self.group_depths) != self.layers:
                raise ValueError(f"group_depths {self.group_depths} must sum to layers ({self.layers})")
            if self.hidden % self.norm_groups and self.variant.bottleneck is None:
                raise ValueError(f"hidden ({self.hidden}) must be a multiple of norm_groups ({self.norm_groups})")
            halvings = len(self.group_depths) + (1 if self.variant.bottleneck else -1)
            if (self.image_size or 0) % 2**halvings:
                raise ValueError(f"image_size ({self.image_size}) is halved {halvings} times")
            if self.variant.bottleneck and self.hidden % 4:
                raise ValueError(f"hidden ({self.hidden}) is four times the stem of a ResNet of bottleneck blocks")
            if len(self.group_depths) == self.image_size == 1 and self.hidden == self.norm_groups:
                raise ValueError("each group of a GroupNorm holds one value: it needs fewer norm_groups than hidden")
        return self

    @property
    def kv_head_count(self) -> int:
        """Key/value heads with the default filled in."""
        return self.kv_heads or self.heads

    @property
    def head_size(self) -> int:
        """Width of a head's queries and keys."""
        if self.variant.head_size is None:
            return self.hidden // self.heads
        return self.variant.head_size + (self.variant.rotary_head_size or 0)

    @property
    def value_size(self) -> int:
        """Width of a head's values."""
        return self.variant.value_head_size or self.variant.head_size or self.hidden // self.heads

    @property
    def activation(self) -> str:
        """Of the feed-forward layer."""
        usual = {ModelFamily.T5: "relu", ModelFamily.LLAMA: "silu", ModelFamily.MOE: "silu"}
        return self.variant.activation or usual.get(self.family, "gelu")

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layer multiplies two projections, one of them activated."""
        return self.family in SWIGLU_FAMILIES if self.variant.is_gated is None else self.variant.is_gated

    @property
    def ffn_width(self) -> int:
        """Feed-forward width with the family's default filled in."""
        if self.ffn_hidden is not None:
            return self.ffn_hidden
        if self.family in SWIGLU_FAMILIES:
            return -(-8 * self.hidden // 3 // 32) * 32
        return 4 * self.hidden

    @property
    def is_image_model(self) -> bool:
        """Whether samples are images with a class each."""
        return self.family in IMAGE_FAMILIES

    @property
    def sequence_length(self) -> int:
        """Positions of a sample that a layer works on: tokens, patches of a ViT, 1 for a Wide-ResNet."""
        if self.family is ModelFamily.VIT:
            return ((self.image_size or 0) // (self.patch_size or 1)) ** 2
        return 1 if self.family is ModelFamily.WIDE_RESNET else self.seq_len


class DataSpec(Model):
    """Where samples come from; their order depends only on the seed and the step.

    Attributes:
        source: ``builtin`` (the English text of the standard library's pydoc_data.topics, byte-level tokens; for image
            models, drawn shapes), ``text`` (a UTF-8 file, byte-level tokens), ``tokens`` (a flat little-endian
            uint16/uint32 file, memory-mapped) or ``images`` (a directory with ``images.npy``, uint8
            ``[n, channels, height, width]``, and ``labels.npy``, integers ``[n]``; memory-mapped).
        path: The file (the directory for ``images``).
        token_dtype: Element type of a ``tokens`` file.
    """

    source: Literal["builtin", "text", "tokens", "images"] = "builtin"
    path: str | None = None
    token_dtype: Literal["uint16", "uint32"] = "uint16"  # noqa: S105 - no password

    @model_validator(mode="after")
    def _path_where_needed(self) -> DataSpec:
        if self.source != "builtin" and not self.path:
            raise ValueError(f"source {self.source!r} needs a path")
        return self


class EvaluationSpec(Model):
    """Evaluation during training, on samples that are never trained on.

    Attributes:
        interval_steps: Steps between evaluations; the last step is evaluated as well.
        sample_count: Samples evaluated, the same each time.
        data: Where they come from; by default the last ``sample_count`` samples of the training data, held out.
    """

    interval_steps: PositiveInt = 100
    sample_count: PositiveInt = 32
    data: DataSpec | None = None


class TrainSpec(Model):
    """A training job that Arena lays out itself.

    Attributes:
        global_batch: Samples per optimizer step, over all replicas; invariant under plan changes.
        evaluation: None trains without evaluating.
    """

    model: ModelSpec
    data: DataSpec = DataSpec()
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    global_batch: Size
    optimizer: OptimizerSpec = OptimizerSpec()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    evaluation: EvaluationSpec | None = None

    @model_validator(mode="after")
    def _data_fits_the_model(self) -> TrainSpec:
        sources = [
            self.data.source,
            *([self.evaluation.data.source] if self.evaluation and self.evaluation.data else []),
        ]
        for source in sources:
            if source != "builtin" and (source == "images") != self.model.is_image_model:
                raise ValueError(f"a model of family {self.model.family} cannot train on data of source {source!r}")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens (patches of a ViT, images of a Wide-ResNet) consumed by one optimizer step; a T5's on both sides."""
        positions = self.model.sequence_length
        if self.model.family is ModelFamily.T5:
            positions += self.model.target_len or positions
        return self.global_batch * positions


class CommandSpec(Model):
    """The user's own program, run unchanged on N GPUs in the torchrun environment contract (rigid).

    Attributes:
        argv: Program and arguments, never passed through a shell.
        processes_per_gpu: 1 starts one rank per GPU; 0 starts one process per node.
        env: Added to the submitting user's environment.
    """

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    processes_per_gpu: Literal[0, 1] = 1


class WorkloadSpec(Model):
    """A training job of which only measurements are known: it can be replayed from a trace, not run.

    Attributes:
        name: What tables of measurements call it, e.g. ``wide_resnet__500M``.
        global_batch: Samples per optimizer step.
    """

    name: Annotated[str, Field(min_length=1)]
    global_batch: PositiveInt = 1


class StopSpec(Model):
    """When a job ends: at the first of the given limits; none means at the user's word (or the program's exit)."""

    steps: PositiveInt | None = None
    tokens: PositiveInt | None = None
    loss: PositiveFloat | None = None
    time_limit_s: PositiveFloat | None = None

    def step_limit(self, tokens_per_step: int) -> int | None:
        """The last step by ``steps`` and ``tokens``, or None when neither is set."""
        limits = [self.steps, None if self.tokens is None else -(-self.tokens // tokens_per_step)]
        return min((limit for limit in limits if limit is not None), default=None)


class GpuLimits(Model):
    """Which groups a job may be given.

    Attributes:
        count: Fixed GPU count; shorthand for min = max = count.
        types: Acceptable GPU types; empty means any.
        nodes_max: Most nodes a group may span.
        same_zone: Refuse groups that span zones.
    """

    count: PositiveInt | None = None
    min: PositiveInt | None = None
    max: PositiveInt | None = None
    types: tuple[str, ...] = ()
    nodes_max: PositiveInt | None = None
    same_zone: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> GpuLimits:
        if self.count is not None and (self.min is not None or self.max is not None):
            raise ValueError("give either count, or min and max, not both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) is greater than max ({self.max})")
        return self

    @property
    def count_min(self) -> int:
        """Fewest GPUs the job accepts."""
        return self.count or self.min or 1

    @property
    def count_max(self) -> int | None:
        """Most GPUs the job accepts; None means no limit of its own."""
        return self.count or self.max


class ParallelLimits(Model):
    """Bounds on the plan; what is not named is the planner's choice.

    Attributes:
        plan: Pin one exact plan, e.g. ``dp2 tp2 pp1 mb1`` (then the GPU count is its size).
        dp_max, tp_max, pp_max: Largest degree of each kind.
        zero: Allowed sharding stages; empty means all that the worker runs.
    """

    plan: str | None = None
    dp_max: PositiveInt | None = None
    tp_max: PositiveInt | None = None
    pp_max: PositiveInt | None = None
    micro_batch_max: PositiveInt | None = None
    zero: tuple[Annotated[int, Field(ge=0, le=3)], ...] = ()
    schedules: tuple[Literal["1f1b", "interleaved", "gpipe"], ...] = ()


class CheckpointSpec(Model):
    """Where and how often training state is saved.

    Attributes:
        dir: A place that every node the job may run on sees; by default the scheduler's checkpoint root.
        interval_steps: Steps between saves; a plan change saves as well.
        keep: Complete checkpoints kept.
        quota_bytes: Most that the job's checkpoints may take; older ones go first, two complete ones always stay.
        is_async: Write in the background while training goes on.
    """

    dir: str | None = None
    interval_steps: PositiveInt = 100
    keep: Annotated[int, Field(ge=2)] = 2
    quota_bytes: PositiveInt | None = None
    is_async: bool = True


class RetrySpec(Model):
    """Budgets that keep every retry loop bounded; they live with the job, not with a process.

    Attributes:
        launch_failures_max: The job fails with this many failed launches.
        restarts_max: Restarts after a failure, counted anew whenever a checkpoint advanced; by default 3 for training
            jobs and 0 for commands, which may not be safe to repeat.
        on_stall: Whether a job that shows no further step is only told of, or killed and started again, which counts
            as a restart after a failure.
    """

    launch_failures_max: PositiveInt = 3
    restarts_max: Annotated[int, Field(ge=0)] | None = None
    on_stall: Literal["tell", "restart"] = "tell"


class JobSpec(Model):
    """A job as its user wrote it.

    Attributes:
        user: Filled in by the server from the caller's token; what a file says is checked against it.
        weight: How much this job's flow time counts to a policy that weighs it (`arena`), beside its priority.
        deadline_s: Wished end, in seconds after submission.
        is_deadline_strict: Whether the job is refused unless its deadline can be promised.
        budget_usd: Most the job may cost: it is stopped so long before that its grace is paid for, unless it is about
            to end by itself; half of what is left is kept for that at most, and of a program, which saves nothing, a
            second. What a stop takes beyond that costs more.
        preemptible: Whether the job may be stopped in favour of others.
        grace_s: Seconds between the request to stop and the kill.
        stall_timeout_s: No progress for so long is reported as a stall, of a program once it has told of a step; None
            leaves it to a multiple of the usual step time, and says nothing of programs.
    """

    name: Name
    user: Name | None = None
    project: Name = "default"
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    weight: PositiveFloat = 1.0
    deadline_s: PositiveFloat | None = None
    is_deadline_strict: bool = False
    budget_usd: PositiveFloat | None = None
    kind: JobKind = JobKind.MALLEABLE
    preemptible: bool = True
    train: TrainSpec | None = None
    command: CommandSpec | None = None
    workload: WorkloadSpec | None = None
    stop: StopSpec = StopSpec()
    gpus: GpuLimits = GpuLimits()
    parallel: ParallelLimits = ParallelLimits()
    checkpoint: CheckpointSpec = CheckpointSpec()
    output_dir: str | None = None
    grace_s: PositiveFloat = 30.0
    stall_timeout_s: PositiveFloat | None = None
    retry: RetrySpec = RetrySpec()

    @model_validator(mode="after")
    def _one_workload(self) -> JobSpec:
        if sum(part is not None for part in (self.train, self.command, self.workload)) != 1:
            raise ValueError("give exactly one of train (Arena lays the job out) and command (your own program)")
        if self.command is not None and self.kind is not JobKind.RIGID:
            raise ValueError("a command job is rigid: set kind: rigid")
        if self.kind is JobKind.RIGID and self.parallel.plan is None and self.gpus.count is None:
            raise ValueError("a rigid job needs gpus.count (or parallel.plan)")
        if self.train is not None and self.train.optimizer.schedule.kind != "constant":
            limit = self.train.optimizer.schedule.decay_steps or self.step_limit
            if limit is None:
                raise ValueError("a decaying schedule needs train.optimizer.schedule.decay_steps or stop.steps")
        return self

    @model_validator(mode="after")
    def _can_be_restarted(self) -> JobSpec:
        if self.retry.on_stall == "restart":
            if self.stall_timeout_s is None:
                raise ValueError(
                    "retry.on_stall: restart needs stall_timeout_s, longer than its longest evaluation and save"
                )
            if not self.restarts_max:
                raise ValueError("retry.on_stall: restart needs retry.restarts_max of 1 or more")
        return self

    @property
    def restarts_max(self) -> int:
        """Restart budget with its default filled in."""
        if self.retry.restarts_max is not None:
            return self.retry.restarts_max
        return 3 if self.keeps_checkpoints else 0

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the job resumes from checkpoints that Arena knows of; a foreign program is its own affair."""
        return self.command is None

    @property
    def step_limit(self) -> int | None:
        """The last step by the stop condition, or None when steps do not end the job."""
        return self.stop.step_limit(self.train.tokens_per_step) if self.train else self.stop.steps
