"""The training loop of one rank: steps, saves, the agreement to stop, and the end."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from arena.domain.job import JobSpec, TrainSpec
from arena.domain.launch import (
    CheckpointFailed,
    CheckpointSaved,
    Finished,
    Finishing,
    Launch,
    Ready,
    StepPoint,
    Stopped,
)
from arena.errors import UserError
from arena_agent.worker.agreement import Ranks
from arena_agent.worker.batches import micro_batch_count, replica_batch, replica_shares
from arena_agent.worker.checkpoint import CheckpointStore, training_state
from arena_agent.worker.data import Corpus
from arena_agent.worker.export import export_model
from arena_agent.worker.fence import FencedError
from arena_agent.worker.layout import Layout, run_micro_batches
from arena_agent.worker.learning_rate import decay_steps, learning_rate
from arena_agent.worker.manifest import FORMAT, CheckpointError, Manifest, step_name
from arena_agent.worker.model import parameter_names
from arena_agent.worker.optimizer import (
    HeldParameter,
    build_optimizer,
    clip,
    collect_gradients,
    held_parameters,
    initialise,
    set_step,
    squared_norm,
)
from arena_agent.worker.report import Reporter
from arena_agent.worker.sample_order import SampleOrder


class DivergedError(UserError):
    """The loss is no longer a number; running on or again would not help."""

    code = "config"


@dataclass(slots=True)
class StopRequest:
    """Remembers that somebody asked this rank to stop."""

    is_set: bool = False

    def install(self) -> None:
        """Take SIGTERM as the request."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "is_set", True))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What all ranks know after a step."""

    loss: float
    is_stop_asked: bool
    is_time_over: bool


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One rank's training of one attempt.

    Args:
        launch: What the rank was told.
        train: The job's training part.
        layout: The rank's share of the model.
        corpus: The data.
        ranks: All ranks of the attempt.
        store: The checkpoint place.
        reporter: Where rank 0 reports; None on the others.
        stop: The request to stop.
        clock: Monotonic seconds.
    """

    launch: Launch
    train: TrainSpec
    layout: Layout
    corpus: Corpus
    ranks: Ranks
    store: CheckpointStore
    reporter: Reporter | None
    stop: StopRequest
    clock: Callable[[], float] = time.monotonic
    parameters: tuple[HeldParameter, ...] = ()
    step: int = 0
    durable_step: int = 0
    loss: float | None = None
    _optimizer: torch.optim.Optimizer | None = None
    _order: SampleOrder | None = None
    _started_at_s: float = 0.0

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return self.launch.spec

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, once the state is prepared."""
        assert self._optimizer is not None
        return self._optimizer

    def prepare(self, *, rendezvous_s: float) -> None:
        """Load the newest whole checkpoint or start afresh, and report that the first step follows."""
        began_s = self.clock()
        self._started_at_s = began_s
        self._order = SampleOrder(
            seed=self.train.seed, sample_count=self.corpus.sample_count, global_batch=self.train.global_batch
        )
        self.parameters = held_parameters(self.layout)
        self._optimizer = build_optimizer(self.parameters, self.train.optimizer)
        selection = self.store.open()
        if selection.manifest is None:
            initialise(self.parameters, self.train, self.layout)
        else:
            state = training_state(self.parameters, self.optimizer)
            self.store.load(selection, state, fingerprint(self.train, self.corpus))
            self.step = self.durable_step = selection.manifest.step
        if self.reporter:
            ready = Ready(
                resumed_step=self.step,
                checkpoint=selection.name,
                skipped=selection.skipped,
                rendezvous_s=rendezvous_s,
                load_s=self.clock() - began_s,
            )
            self.reporter.send(ready)

    def run(self) -> None:
        """Train until the stop condition is met or somebody asks to stop."""
        limit = self.spec.step_limit
        if limit is not None and self.step >= limit:
            self._finish(f"steps: {self.step} of {limit}")
            return
        while True:
            result = self._one_step()
            condition = self._condition(result)
            if condition is not None:
                self._finish(condition)
                return
            if result.is_stop_asked:
                self._stop()
                return
            if self.step % self.spec.checkpoint.interval_steps == 0:
                self._save()

    def _one_step(self) -> StepResult:
        began_s = self.clock()
        rate = learning_rate(self.train.optimizer, step=self.step, decay_steps=decay_steps(self.spec))
        set_step(self.optimizer, step=self.step, lr=rate)
        local_loss = self._forward_backward()
        collect_gradients(self.parameters, self.layout)
        totals = self._totals(local_loss)
        self._require_finite(totals[0], totals[1])
        if self.train.optimizer.clip_norm is not None:
            clip(self.parameters, norm=math.sqrt(totals[1]), norm_max=self.train.optimizer.clip_norm)
        self.optimizer.step()
        self.step += 1
        self.loss = totals[0]
        self._report_step(self.clock() - began_s)
        return StepResult(loss=totals[0], is_stop_asked=totals[2] > 0, is_time_over=totals[3] > 0)

    def _forward_backward(self) -> float:
        assert self._order is not None
        plan = self.layout.plan
        global_batch, replica_index = self.train.global_batch, self.layout.at.dp
        needs_data = self.layout.feeds_inputs or self.layout.computes_loss
        share = replica_shares(plan, global_batch)[replica_index] if needs_data else range(0)
        row_count = micro_batch_count(plan, global_batch, replica_index) * plan.micro_batch_size
        batch = replica_batch(self.corpus, self._order.ids(self.step, share), row_count=row_count)
        inputs = torch.from_numpy(batch.inputs).to(self.layout.device)
        targets = torch.from_numpy(batch.targets).to(self.layout.device)
        return run_micro_batches(self.layout, inputs, targets)

    def _totals(self, local_loss: float) -> list[float]:
        """Sum over all ranks: loss, squared gradient norm, requests to stop, time over. One reduction per step."""
        counts_loss = self.layout.computes_loss and self.layout.at.tp == 0
        parts = [
            local_loss if counts_loss else 0.0,
            squared_norm(self.parameters),
            float(self.stop.is_set),
            float(self._is_time_over()),
        ]
        totals = torch.tensor(parts, dtype=torch.float64, device=self.layout.device)
        dist.all_reduce(totals)
        return [float(total) for total in totals.tolist()]

    def _require_finite(self, loss: float, norm_squared: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm_squared)):
            raise DivergedError(
                f"training diverged at step {self.step + 1}",
                why=f"loss {loss}, gradient norm {math.sqrt(norm_squared) if norm_squared >= 0 else norm_squared}",
                fix="lower train.optimizer.lr, set clip_norm or a longer warm-up",
            )

    def _report_step(self, step_time_s: float) -> None:
        if self.reporter and self.loss is not None:
            tokens_per_s = self.train.tokens_per_step / max(step_time_s, 1e-9)
            self.reporter.step(
                StepPoint(step=self.step, loss=self.loss, step_time_s=step_time_s, tokens_per_s=tokens_per_s)
            )

    def _condition(self, result: StepResult) -> str | None:
        """Return which stop condition is met, the same on every rank."""
        limit, goal = self.spec.step_limit, self.spec.stop.loss
        if limit is not None and self.step >= limit:
            return f"steps: {self.step} of {limit}"
        if goal is not None and result.loss <= goal:
            return f"loss: {result.loss:.4f} reached {goal:g}"
        if result.is_time_over:
            return f"time limit: {self.spec.stop.time_limit_s:g} s"
        return None

    def _is_time_over(self) -> bool:
        """Return whether rank 0's clock, the one that counts, says that the job's time is used up."""
        limit_s = self.launch.time_left_s
        return limit_s is not None and self.ranks.rank == 0 and self.clock() - self._started_at_s >= limit_s

    def _save(self) -> bool:
        """Save unless this step is durable already; a failure is reported and training goes on."""
        if self.durable_step == self.step and self.step > 0:
            return True
        began_s = self.clock()
        try:
            manifest = self.store.save(training_state(self.parameters, self.optimizer), self._manifest())
        except FencedError:
            raise
        except CheckpointError as error:
            if self.reporter:
                self.reporter.send(CheckpointFailed(step=self.step, error=error.message))
            return False
        self.durable_step = self.step
        if self.reporter:
            saved = CheckpointSaved(
                step=self.step,
                name=step_name(self.step),
                size_bytes=manifest.size_bytes,
                save_s=self.clock() - began_s,
            )
            self.reporter.send(saved, is_synced=True)
        return True

    def _manifest(self) -> Manifest:
        state_keys = sorted(key for key in self.optimizer.state[self.parameters[0].local] if key != "step")
        return Manifest(
            format=FORMAT,
            step=self.step,
            epoch=self.launch.epoch,
            plan=str(self.layout.plan),
            torch_version=torch.__version__,
            fingerprint=fingerprint(self.train, self.corpus),
            samples_consumed=self.step * self.train.global_batch,
            parameters=parameter_names(self.train.model),
            optimizer_state=tuple(state_keys),
            files={},
        )

    def _stop(self) -> None:
        self._save()
        if self.reporter:
            self.reporter.send_last(Stopped(step=self.step, durable_step=self.durable_step))

    def _finish(self, condition: str) -> None:
        if self.reporter:
            self.reporter.send(Finishing(step=self.step, condition=condition))
        if not self._save():
            raise CheckpointError(
                f"the final state of step {self.step} could not be saved",
                fix="free space in the checkpoint directory; the job resumes from its last checkpoint",
            )
        output = self.ranks.first_does(self._export)
        if self.reporter:
            self.reporter.send_last(Finished(step=self.step, loss=self.loss, output=output))

    def _export(self) -> str:
        source = self.store.root / step_name(self.step)
        path = export_model(source, Path(self.launch.output_dir), self.spec, step=self.step, loss=self.loss)
        return str(path)


def fingerprint(train: TrainSpec, corpus: Corpus) -> Mapping[str, str]:
    """Return what must be equal for training to go on from a checkpoint as if nothing had happened."""
    shape = train.model.model_dump(mode="json")
    # What is left out of a spec means its default, so that spelling a default out makes no other job.
    shape |= {"kv_heads": train.model.kv_head_count, "ffn_hidden": train.model.ffn_width}
    return {
        **{f"model.{name}": str(value) for name, value in shape.items()},
        "data": corpus.fingerprint,
        "sample_count": str(corpus.sample_count),
        "global_batch": str(train.global_batch),
        "seed": str(train.seed),
        "optimizer": train.optimizer.name + (" with momentum" if train.optimizer.momentum else ""),
    }
