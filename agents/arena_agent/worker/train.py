"""The training loop of one rank: steps, saves, evaluations, the agreement to stop, and the end."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from arena.domain.job import JobSpec, TrainSpec
from arena.domain.launch import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Finished,
    Finishing,
    Launch,
    Ready,
    StepPoint,
    Stopped,
)
from arena.errors import UserError
from arena_agent.checkpoints.export import export_model
from arena_agent.checkpoints.fence import FencedError
from arena_agent.checkpoints.manifest import CheckpointError, Manifest, step_name
from arena_agent.worker.agreement import Ranks
from arena_agent.worker.checkpoint import CheckpointStore, PendingSave, StatePiece
from arena_agent.worker.data import Corpora, Corpus
from arena_agent.worker.feed import Feed
from arena_agent.worker.layout import Layout
from arena_agent.worker.learning_rate import decay_steps, learning_rate
from arena_agent.worker.models.environment import StepRecord
from arena_agent.worker.optimizer import build_optimizer, clip, initialise, set_step, squared_norm
from arena_agent.worker.report import Reporter
from arena_agent.worker.sample_order import SampleOrder
from arena_agent.worker.state import fingerprint, manifest_of, state_pieces
from arena_agent.worker.units import Run


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
    """What all ranks know after a step.

    Args:
        loss: Mean loss of the global batch, the experts' balance loss included.
        norm_squared: Squared gradient norm of the whole model.
        is_stop_asked, is_time_over: Whether any rank was asked to stop; whether the job's time is used up.
        written_count: Ranks that have written their part of the pending save.
        routed: Tokens sent to each expert of each layer, flat; empty without experts.
    """

    loss: float
    norm_squared: float
    is_stop_asked: bool
    is_time_over: bool
    written_count: int
    routed: Tensor


@dataclass(slots=True)
class _Saving:
    """A save that is being written, and when it began."""

    pending: PendingSave
    began_s: float


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One rank's training of one attempt.

    Args:
        launch: What the rank was told.
        train: The job's training part.
        layout: The rank's share of the model.
        corpora: The data.
        ranks: All ranks of the attempt.
        store: The checkpoint place.
        reporter: Where rank 0 reports; None on the others.
        stop: The request to stop.
        clock: Monotonic seconds.
        step: Optimizer steps done.
        durable_step: The step that the newest checkpoint holds.
    """

    launch: Launch
    train: TrainSpec
    layout: Layout
    corpora: Corpora
    ranks: Ranks
    store: CheckpointStore
    reporter: Reporter | None
    stop: StopRequest
    clock: Callable[[], float] = time.monotonic
    step: int = 0
    durable_step: int = 0
    loss: float | None = None
    router_load: Tensor | None = None
    _optimizer: torch.optim.Optimizer | None = None
    _order: SampleOrder | None = None
    _saving: _Saving | None = None
    _save_failure: str = ""
    _evaluated_step: int | None = None
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

    @property
    def runs(self) -> tuple[Run, ...]:
        """What this rank owns of the parameters."""
        return self.layout.bank.runs

    def state(self) -> list[StatePiece]:
        """Return this rank's share of the training state."""
        return state_pieces(self.runs, self.optimizer, self.router_load, is_first_rank=self.ranks.rank == 0)

    def prepare(self, *, rendezvous_s: float) -> None:
        """Load the newest whole checkpoint or start afresh, and report that the first step follows."""
        began_s = self.clock()
        self._started_at_s = began_s
        corpus, model = self.corpora.training, self.train.model
        self._order = SampleOrder(
            seed=self.train.seed, sample_count=corpus.sample_count, global_batch=self.train.global_batch
        )
        self._optimizer = build_optimizer(self.runs, self.train.optimizer)
        if model.expert_count:
            # Before the first step all experts count as equally loaded: then the balance loss has no gradient.
            shape = (model.layers, model.expert_count)
            self.router_load = torch.full(shape, 1.0 / model.expert_count, device=self.layout.device)
        selection = self.store.open()
        if selection.manifest is None:
            self._require_nothing_lost()
            initialise(self.runs, self.train.seed)
        else:
            self.store.load(selection, self.state(), fingerprint(self.train, corpus))
            self.step = self.durable_step = selection.manifest.step
        self.layout.bank.publish()
        if self.reporter:
            ready = Ready(
                resumed_step=self.step,
                checkpoint=selection.name,
                skipped=selection.skipped,
                rendezvous_s=rendezvous_s,
                load_s=self.clock() - began_s,
            )
            self.reporter.send(ready)

    def _require_nothing_lost(self) -> None:
        if self.launch.durable_step > 0:
            raise CheckpointError(
                f"no checkpoint is left in {self.store.root}",
                why=f"step {self.launch.durable_step} of this job was saved there",
                fix="bring the directory back, or submit the job anew to start afresh",
            )

    def run(self) -> None:
        """Train until the stop condition is met or somebody asks to stop."""
        limit = self.spec.step_limit
        if limit is not None and self.step >= limit:
            self._finish(f"steps: {self.step} of {limit}")
            return
        while True:
            result = self.one_step()
            condition = self._condition(result)
            if condition is not None:
                self._finish(condition)
                return
            if result.is_stop_asked:
                self._stop()
                return
            self._after_step(result)

    def one_step(self) -> StepResult:
        """Train on one global batch."""
        assert self._order is not None
        began_s = self.clock()
        bank, options = self.layout.bank, self.train.optimizer
        rate = learning_rate(options, step=self.step, decay_steps=decay_steps(self.spec))
        set_step(self.optimizer, step=self.step, lr=rate)
        record = StepRecord(load=self.router_load, token_count=self.train.tokens_per_step)
        bank.gradients.start_step()
        loss, _ = self._passes(record)
        bank.gradients.finish_step()
        result = self._agreed(loss, record)
        self._require_finite(result)
        if options.clip_norm is not None:
            clip(self.runs, norm=math.sqrt(result.norm_squared), norm_max=options.clip_norm)
        self.optimizer.step()
        bank.publish()
        self._note_load(result.routed)
        self.step += 1
        self.loss = result.loss
        self._report_step(self.clock() - began_s)
        return result

    def _passes(self, record: StepRecord) -> tuple[float, float]:
        assert self._order is not None
        plan = self.layout.step_plan(self.train.global_batch)
        feed = Feed(
            corpus=self.corpora.training,
            ids=self._order.ids(self.step),
            first_position=self.step * self.train.global_batch,
            batches=plan.batches,
            seed=self.train.seed,
            is_training=True,
            device=self.layout.device,
            record=record,
        )
        loss, right = self.layout.run(plan, feed)
        return float(loss), float(right)

    def _agreed(self, loss: float, record: StepRecord) -> StepResult:
        """Sum over all ranks what everybody has to know. One reduction per step."""
        counted = loss if self.layout.computes_loss else 0.0
        parts = [
            counted + _total(record.balance.values()),
            squared_norm(self.runs),
            float(self.stop.is_set),
            float(self._is_time_over()),
            float(self._saving is not None and self._saving.pending.is_written),
        ]
        totals = torch.tensor(parts, dtype=torch.float64, device=self.layout.device)
        totals = torch.cat((totals, self._routed(record)))
        dist.all_reduce(totals)
        totals = totals.cpu()
        loss_sum, norm_squared, stops, overs, written = totals[: len(parts)].tolist()
        return StepResult(
            loss=loss_sum,
            norm_squared=norm_squared,
            is_stop_asked=stops > 0,
            is_time_over=overs > 0,
            written_count=round(written),
            routed=totals[len(parts) :],
        )

    def _routed(self, record: StepRecord) -> Tensor:
        device = self.layout.device
        if self.router_load is None:
            return torch.zeros(0, dtype=torch.float64, device=device)
        routed = torch.zeros(self.router_load.shape, dtype=torch.float64, device=device)
        for (layer, _), counts in record.routed.items():
            routed[layer] += counts
        return routed.flatten()

    def _note_load(self, routed: Tensor) -> None:
        if self.router_load is not None:
            by_layer = routed.view(self.router_load.shape)
            self.router_load.copy_(by_layer / by_layer.sum(1, keepdim=True))

    def _require_finite(self, result: StepResult) -> None:
        loss, norm_squared = result.loss, result.norm_squared
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

    def _after_step(self, result: StepResult) -> None:
        """Evaluate and save when it is time; make a save visible once every rank has written its part."""
        if self._saving is not None and result.written_count == self.ranks.world_size:
            self._end_save()
        evaluation = self.train.evaluation
        if evaluation is not None and self.step % evaluation.interval_steps == 0:
            self._evaluate()
        if self.step % self.spec.checkpoint.interval_steps == 0:
            if self._saving is not None:
                self._end_save()
            if self._begin_save() and not self.spec.checkpoint.is_async:
                self._end_save()

    # Evaluation ------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Report the loss on the samples that are held out, once for each step."""
        evaluation, corpus = self.train.evaluation, self.corpora.evaluation
        if evaluation is None or corpus is None or self._evaluated_step == self.step:
            return
        began_s = self.clock()
        count = evaluation.sample_count
        totals = self._evaluated(corpus, count)
        dist.all_reduce(totals)
        self._evaluated_step = self.step
        if self.reporter:
            loss, right = totals.tolist()
            accuracy = right if self.train.model.is_image_model else None
            evaluate_s = self.clock() - began_s
            self.reporter.send(
                Evaluated(step=self.step, loss=loss, sample_count=count, evaluate_s=evaluate_s, accuracy=accuracy)
            )

    def _evaluated(self, corpus: Corpus, count: int) -> Tensor:
        """Return this rank's part of mean loss and share of right answers over the first samples of a data set.

        A global batch at a time: that is what the plan's micro-batch counts hold, and what memory is planned for.
        """
        totals = torch.zeros(2, dtype=torch.float64, device=self.layout.device)
        for first in range(0, count, self.train.global_batch):
            ids = range(first, min(first + self.train.global_batch, count))
            plan = self.layout.step_plan(len(ids), is_training=False)
            feed = Feed(
                corpus=corpus,
                ids=ids,
                first_position=first,
                batches=plan.batches,
                seed=self.train.seed,
                is_training=False,
                device=self.layout.device,
            )
            totals += torch.stack(self.layout.run(plan, feed)).double() * (len(ids) / count)
        return totals if self.layout.computes_loss else torch.zeros_like(totals)

    # Saves -----------------------------------------------------------------------------------------------------

    def _manifest(self) -> Manifest:
        return manifest_of(
            self.train,
            self.corpora.training,
            step=self.step,
            epoch=self.launch.epoch,
            plan=str(self.layout.plan),
        )

    def _begin_save(self) -> bool:
        """Start saving this step; a failure is reported and training goes on."""
        began_s = self.clock()
        try:
            self._saving = _Saving(self.store.begin(self.state(), self._manifest()), began_s)
        except FencedError:
            raise
        except CheckpointError as error:
            self._report_failed(self.step, error)
            return False
        return True

    def _end_save(self) -> bool:
        """Make the save under way visible; a failure is reported and training goes on."""
        assert self._saving is not None
        saving, self._saving = self._saving, None
        step = saving.pending.manifest.step
        try:
            manifest = self.store.finish(saving.pending)
        except FencedError:
            raise
        except CheckpointError as error:
            self._report_failed(step, error)
            return False
        self.durable_step = step
        if self.reporter:
            saved = CheckpointSaved(
                step=step, name=step_name(step), size_bytes=manifest.size_bytes, save_s=self.clock() - saving.began_s
            )
            self.reporter.send(saved, is_synced=True)
        return True

    def _report_failed(self, step: int, error: CheckpointError) -> None:
        self._save_failure = error.message
        if self.reporter:
            self.reporter.send(CheckpointFailed(step=step, error=error.message))

    def _save_now(self) -> bool:
        """Save this step and wait for it, unless it is durable already."""
        if self._saving is not None:
            self._end_save()
        if self.durable_step == self.step and self.step > 0:
            return True
        return self._begin_save() and self._end_save()

    # Ends ------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._save_now()
        if self.reporter:
            self.reporter.send_last(Stopped(step=self.step, durable_step=self.durable_step))

    def _finish(self, condition: str) -> None:
        if self.reporter:
            self.reporter.send(Finishing(step=self.step, condition=condition))
        self._evaluate()
        if not self._save_now():
            raise CheckpointError(
                f"the final state of step {self.step} could not be saved",
                why=self._save_failure,
                fix="mend the checkpoint directory; the job resumes from its last checkpoint",
            )
        try:
            output = self.ranks.first_does(self._export)
        except OSError as error:
            raise CheckpointError(
                f"the model of step {self.step} could not be written to {self.launch.output_dir}",
                why=str(error),
                fix="free the place; the training state is saved, `arena ckpt export` writes the model from it",
            ) from error
        if self.reporter:
            self.reporter.send_last(Finished(step=self.step, loss=self.loss, output=output))

    def _export(self) -> str:
        source = self.store.root / step_name(self.step)
        path = export_model(source, Path(self.launch.output_dir), self.spec, step=self.step, loss=self.loss)
        return str(path)


def _total(values: Collection[Tensor]) -> float:
    """Return the sum of scalars, added up where they are, so that a device is waited for once."""
    return float(torch.stack(tuple(values)).double().sum()) if values else 0.0
