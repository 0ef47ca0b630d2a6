"""Trains a case of a covering set beside one process, and hands its checkpoint to the next case of the set."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from arena.domain.capability import Feature, features_of, unsupported
from arena.domain.job import ModelFamily
from arena.domain.launch import Finished, Ready
from arena.domain.parallel import ParallelPlan, parse_plan
from tests.covering_plans import GLOBAL_BATCH, LAYERS, Case, job, train
from tests.fakes.held_pieces import Array, HeldPiece
from tests.fakes.rank_launcher import Attempt, RankLauncher
from tests.whole_checkpoints import read_whole

STEPS = 3
RECORDED = "tests.fakes.worker_targets:run_recorded"
EXACT_LOSS, COARSE_LOSS = 1e-6, 5e-2
# Adam's first steps divide small sums by their own size, so rounding counts for more than in the loss.
EXACT_WEIGHT = 2e-5
# Adam does not see by how much a gradient is scaled; its mean does. Shares of the largest element, and of nothing.
EXACT_MEAN, EXACT_ZERO = 1e-3, 1e-7
# Share of all means' length: bf16 was off by up to 0.02, lost micro-batches by 0.5.
COARSE_MEAN = 0.1
_ALONE = parse_plan(f"dp1 mb{GLOBAL_BATCH}", layer_count=LAYERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What one process learned: losses of ``STEPS + 1`` steps, the state after ``STEPS``, the model after one more."""

    losses: dict[int, float]
    state: dict[str, Tensor]
    exported: dict[str, Tensor]


@dataclass(slots=True, kw_only=True)
class References:
    """One process's training of each job, in float32, made when first asked for."""

    launcher: RankLauncher
    directory: Path
    _made: dict[tuple[ModelFamily, frozenset[Feature]], Reference] = field(default_factory=dict)

    def of(self, case: Case) -> Reference:
        """Return what a case is compared with."""
        of_job = case.features & {Feature.TIED_EMBEDDINGS, Feature.DROPOUT}
        key = (case.family, of_job)
        if key not in self._made:
            place = self.directory / f"{len(self._made)}"
            spec = job(case.family, of_job, STEPS + 1, interval_steps=1, is_async=False)
            attempt = self.launcher.run(place, spec, _ALONE)
            state = read_whole(_checkpoint(place, STEPS))
            self._made[key] = Reference(losses=attempt.losses(), state=state, exported=exported(attempt))
        return self._made[key]


def exported(attempt: Attempt) -> dict[str, Tensor]:
    """Return the model that a finished attempt left."""
    [finished] = attempt.reports_of(Finished)
    assert finished.output is not None
    return load_file(finished.output)


def state_digests(attempt: Attempt, moment: str, plan: ParallelPlan) -> dict[str, str]:
    """Return SHA-256 digests of the whole state in memory; ranks that share a part must agree on it."""
    return {name: digest(values) for name, values in _state(attempt, moment, plan).items()}


def digest(values: Array) -> str:
    """Return the SHA-256 of a tensor's elements in logical order."""
    return hashlib.sha256(values.tobytes()).hexdigest()


def _state(attempt: Attempt, moment: str, plan: ParallelPlan) -> dict[str, Array]:
    """Return the logical tensors that all ranks' pieces make up."""
    paths = [attempt.directory / f"state-{moment}-{rank}.pickle" for rank in range(plan.gpu_count)]
    pieces: list[HeldPiece] = [piece for path in paths for piece in pickle.loads(path.read_bytes())]
    whole = {piece.name: np.full(piece.shape, np.nan, dtype=np.float32) for piece in pieces}
    for piece in pieces:
        if piece.is_written:
            whole[piece.name][piece.block] = piece.values
    for piece in pieces:
        held = np.array_equal(whole[piece.name][piece.block], piece.values)
        assert held, f"ranks hold different parts of {piece.name}"
    return whole


def drift(losses: dict[int, float], reference: dict[int, float]) -> list[float]:
    """Return the largest difference from a run up to each of its steps."""
    largest, result = 0.0, []
    for step in sorted(reference):
        largest = max(largest, abs(losses[step] - reference[step]))
        result.append(largest)
    return result


def successor(cases: Sequence[Case], index: int) -> Case:
    """Return the next case of the set that can go on with a case's job."""
    case = cases[index]
    spec = case.job(1).train
    assert spec is not None
    return next(
        other
        for other in [*cases[index + 1 :], *cases[: index + 1]]
        if other.plan != case.plan and unsupported(spec, other.plan) is None
    )


def check_case(launcher: RankLauncher, directory: Path, case: Case, following: Case, reference: Reference) -> None:
    """Train under one plan and go on under another; both learn what one process does, and the state moves bitwise."""
    assert features_of(train(case.family, case.features), case.plan) == case.features
    is_coarse = Feature.BF16 in case.features
    abs_loss = COARSE_LOSS if is_coarse else EXACT_LOSS
    first = launcher.run(directory, case.job(STEPS), case.plan, target=RECORDED)
    then = launcher.run(directory, case.job(STEPS + 1), following.plan, epoch=2, target=RECORDED)
    losses = first.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert then.reports_of(Ready)[0].resumed_step == STEPS
    assert state_digests(then, "start", following.plan) == state_digests(first, "end", case.plan)
    apart = {step: abs(loss - reference.losses[step]) for step, loss in {**losses, **then.losses()}.items()}
    assert sorted(apart) == list(range(1, STEPS + 2))
    assert max(apart.values()) <= abs_loss, apart
    model = exported(then)
    assert {tensor.dtype for tensor in model.values()} == {torch.float32}
    if is_coarse:
        assert max(apart.values()) > EXACT_LOSS, "bf16 would not have been used"
        assert _distance(read_whole(_checkpoint(directory, STEPS)), reference.state) <= COARSE_MEAN
        return
    _check_state(read_whole(_checkpoint(directory, STEPS)), reference.state)
    _check_close(model, reference.exported)


def _check_state(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Weights within rounding as Adam enlarges it; the mean of gradients in proportion, so that its scale counts."""
    model = {name: tensor for name, tensor in theirs.items() if name.startswith("model.")}
    _check_close({name: tensor for name, tensor in ours.items() if name in model}, model)
    assert ours.keys() == theirs.keys()
    means = [name for name in theirs if name.endswith(".exp_avg")]
    assert len(means) == len(model)
    for name in means:
        allowed = EXACT_MEAN * float(theirs[name].abs().max()) + EXACT_ZERO
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=0, atol=allowed, msg=lambda text, name=name: f"{name}: {text}"
        )


def _distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Return how far the means of gradients are from others, all taken as one vector, as a share of its length."""
    names = sorted(name for name in theirs if name.endswith(".exp_avg"))
    own, other = (torch.cat([state[name].flatten() for name in names]) for state in (ours, theirs))
    return float((own - other).norm() / other.norm())


def _check_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(
            tensor, theirs[name], rtol=0, atol=EXACT_WEIGHT, msg=lambda text, name=name: f"{name}: {text}"
        )


def _checkpoint(directory: Path, step: int) -> Path:
    return directory / "checkpoints" / f"step-{step:08d}"
