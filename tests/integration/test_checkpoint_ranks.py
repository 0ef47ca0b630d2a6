"""Ranks save and load together: every rank learns of every failure, and what was saved is what is loaded."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from arena.errors import ArenaError, InternalError
from arena_agent.checkpoints.disk import LocalDisk
from arena_agent.checkpoints.fence import Fence, FencedError
from arena_agent.checkpoints.manifest import CheckpointError
from arena_agent.worker.agreement import Ranks
from tests.fakes.checkpoint_places import FINGERPRINT, SHAPES, require_state, value_at
from tests.fakes.checkpoint_ranks import RankState, StuckDisk, run_ranks, start_ranks
from tests.whole_checkpoints import read_whole

pytestmark = pytest.mark.slow

PLACE = "checkpoints"
EXTRA_STATE = "optim.head.bias.max_exp_avg_sq"


def found(directory: Path) -> list[str]:
    """Return everything in the place, hidden ones too, but for the fence's files."""
    names = {path.name for path in (directory / PLACE).iterdir()}
    return sorted(names - {"fence.json", ".fence.lock"})


def save_steps(*steps: int, epoch: int = 1) -> Callable[[Ranks, Path], int]:
    return partial(_save_steps, steps, epoch)


def _save_steps(steps: tuple[int, ...], epoch: int, ranks: Ranks, directory: Path) -> int:
    state = RankState.make(ranks, directory / PLACE, epoch=epoch)
    before = state.resume()
    for step in steps:
        state.save(step)
    return before


def resume(ranks: Ranks, directory: Path) -> int:
    return RankState.make(ranks, directory / PLACE, epoch=9).resume()


@pytest.mark.parametrize(("saving", "loading"), [(1, 4), (3, 2), (4, 1)])
def test_what_some_ranks_saved_others_load(tmp_path: Path, saving: int, loading: int) -> None:
    assert run_ranks(save_steps(3, 5), tmp_path, saving) == [0] * saving
    assert run_ranks(resume, tmp_path, loading) == [5] * loading
    assert found(tmp_path) == ["step-00000003", "step-00000005"]
    whole = read_whole(tmp_path / PLACE / "step-00000005", prefix="optim.")
    assert {name: tuple(tensor.shape) for name, tensor in whole.items()} == {
        name: shape for name, shape in SHAPES.items() if name.startswith("optim.")
    }
    assert all(torch.equal(tensor, torch.from_numpy(value_at(5, name, SHAPES[name]))) for name, tensor in whole.items())


def train_on(ranks: Ranks, directory: Path) -> str:
    """Change the state while it is being saved, twice, with the same host memory."""
    state = RankState.make(ranks, directory / PLACE, epoch=1)
    state.resume()
    for step in (1, 2):
        pieces = state.pieces(step)
        pending = state.store.begin(pieces, state.manifest(step))
        for piece in pieces:
            piece.tensor.fill_(torch.nan)
        with pytest.raises(InternalError, match=f"the save of step {step} has not been finished"):
            state.store.begin(pieces, state.manifest(step + 1))
        assert state.store.finish(pending).step == step
        assert pending.is_written
    return "trained"


def test_training_goes_on_while_a_save_is_written(tmp_path: Path) -> None:
    run_ranks(train_on, tmp_path, 2)
    require_state(tmp_path / PLACE / "step-00000001", 1)
    require_state(tmp_path / PLACE / "step-00000002", 2)


class FullDisk(LocalDisk):
    """A disk without room."""

    def write(self, file: BinaryIO, block: memoryview) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run_out_of_room(ranks: Ranks, directory: Path) -> tuple[ArenaError, list[str]]:
    state = RankState.make(ranks, directory / PLACE, epoch=1)
    state.resume()
    state.save(1)
    room, state.store.disk = state.store.disk, FullDisk() if ranks.rank == 1 else state.store.disk
    with pytest.raises(CheckpointError) as caught:
        state.save(2)
    names = found(directory)
    ranks.gathered(None)  # all have looked before the next save makes its directory
    state.store.disk = room
    state.save(3)
    return caught.value, names


def test_one_rank_without_room_fails_the_save_on_all_and_not_the_next(tmp_path: Path) -> None:
    outcomes = run_ranks(run_out_of_room, tmp_path, 3)
    for error, names in outcomes:
        assert error.what == "checkpoint step-00000002 failed"
        assert "rank 1: OSError: [Errno 28] No space left on device" in error.why
        assert "free in" in error.why
        assert names == ["step-00000001"]
    assert found(tmp_path) == ["step-00000001", "step-00000003"]


def be_fenced(ranks: Ranks, directory: Path) -> FencedError:
    state = RankState.make(ranks, directory / PLACE, epoch=1)
    state.resume()
    state.save(1)
    pending = state.store.begin(state.pieces(2), state.manifest(2))
    if ranks.rank == 0:
        Fence(root=directory / PLACE, epoch=2).claim()
    with pytest.raises(FencedError, match="attempt 1 may no longer write") as caught:
        state.store.finish(pending)
    with pytest.raises(FencedError):
        state.save(3)
    return caught.value


def test_an_attempt_that_was_replaced_meanwhile_commits_nothing(tmp_path: Path) -> None:
    assert {type(error) for error in run_ranks(be_fenced, tmp_path, 2)} == {FencedError}
    assert found(tmp_path) == ["step-00000001"]


def forget_a_part(ranks: Ranks, directory: Path) -> ArenaError:
    state = RankState.make(ranks, directory / PLACE, epoch=1)
    state.resume()
    pieces = state.pieces(1)
    if ranks.rank == 1:
        pieces = [piece for piece in pieces if piece.name != "optim.embed.weight.exp_avg"]
    with pytest.raises(CheckpointError) as caught:
        state.store.save(pieces, state.manifest(1))
    return caught.value


def test_a_save_that_lacks_elements_is_not_committed(tmp_path: Path) -> None:
    for error in run_ranks(forget_a_part, tmp_path, 2):
        assert "optim.embed.weight.exp_avg of shape [13, 5]: 33 elements are missing" in error.message
    assert found(tmp_path) == []


def load_as(
    shapes: Mapping[str, tuple[int, ...]], fingerprint: Mapping[str, str], ranks: Ranks, directory: Path
) -> ArenaError:
    state = RankState.make(ranks, directory / PLACE, epoch=2)
    state.shapes = shapes
    selection = state.store.open()
    with pytest.raises(CheckpointError) as caught:
        state.store.load(selection, state.pieces(1), fingerprint)
    return caught.value


@pytest.mark.parametrize(
    ("shapes", "fingerprint", "reason"),
    [
        (SHAPES | {EXTRA_STATE: (7,)}, FINGERPRINT, f"it lacks {EXTRA_STATE}"),
        (
            {name: shape for name, shape in SHAPES.items() if name != "optim.head.bias.exp_avg"},
            FINGERPRINT,
            "it holds optim.head.bias.exp_avg, which the job has no place for",
        ),
        (SHAPES | {"model.head.bias": (9,)}, FINGERPRINT, "model.head.bias in shape [7], the job in [9]"),
        (SHAPES, FINGERPRINT | {"seed": "2"}, "seed is 1, the job has 2"),
    ],
)
def test_another_state_is_refused_on_every_rank_by_name(
    tmp_path: Path, shapes: Mapping[str, tuple[int, ...]], fingerprint: Mapping[str, str], reason: str
) -> None:
    run_ranks(save_steps(1), tmp_path, 1)
    for error in run_ranks(partial(load_as, shapes, fingerprint), tmp_path, 2):
        assert reason in error.message


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_changed_byte_is_found_by_whichever_rank_reads_it(tmp_path: Path) -> None:
    """The damaged one counts neither as loadable nor among the two complete ones that stay."""
    run_ranks(save_steps(3, 5), tmp_path, 3)
    flip(tmp_path / PLACE / "step-00000005" / "rank-00002.safetensors")
    assert run_ranks(save_steps(8, epoch=2), tmp_path, 2) == [3, 3]
    assert found(tmp_path) == ["step-00000003", "step-00000005", "step-00000008"]
    assert run_ranks(save_steps(9, epoch=3), tmp_path, 2) == [8, 8]
    assert found(tmp_path) == ["step-00000008", "step-00000009"]


def hang_in_a_save(ranks: Ranks, directory: Path) -> None:
    state = RankState.make(ranks, directory / PLACE, epoch=2)
    state.resume()
    if ranks.rank == 1:
        state.store.disk = StuckDisk(directory / "stuck")
    pending = state.store.begin(state.pieces(7), state.manifest(7))
    assert ranks.gathered(pending.is_written)[1] is False, "what was not written was said to be"
    if ranks.rank == 0:
        (directory / "went on").touch()
    state.store.finish(pending)
    raise AssertionError("a save that was not written was finished")


def test_killed_half_way_through_a_slow_save_it_resumes_from_the_older_one(tmp_path: Path) -> None:
    run_ranks(save_steps(3, 5), tmp_path, 2)
    ranks = start_ranks(hang_in_a_save, tmp_path, 2)
    deadline_s = time.monotonic() + 60.0
    while not ((tmp_path / "stuck").exists() and (tmp_path / "went on").exists()):
        assert time.monotonic() < deadline_s
        assert all(rank.exitcode is None for rank in ranks)
        ranks[0].join(0.02)
    for rank in ranks:
        rank.kill()
        rank.join()
    assert found(tmp_path) == [".tmp-step-00000007.2", "step-00000003", "step-00000005"]
    assert run_ranks(resume, tmp_path, 3) == [5, 5, 5]
    assert found(tmp_path) == ["step-00000003", "step-00000005"]


def test_five_killed_saves_leave_nothing_behind(tmp_path: Path) -> None:
    """What killed attempts left goes when the next one opens the place."""
    run_ranks(save_steps(1), tmp_path, 1)
    for epoch in range(5):
        left = tmp_path / PLACE / f".tmp-step-00000002.{epoch}"
        left.mkdir()
        (left / "rank-00000.safetensors").write_bytes(b"half of it")
    (tmp_path / PLACE / "step-00000001" / ".tmp-manifest.json").write_bytes(b"half of it")
    run_ranks(save_steps(2, epoch=7), tmp_path, 1)
    assert not list((tmp_path / PLACE).rglob(".tmp-*"))
