"""Killed at a hundred moments, while it loads and while it saves, a job always goes on from what was durable.

The process that is killed knows no torch and writes the files of several ranks one after the other: what is tried is
the order in which things become durable and visible, and that is the same code for a rank of a training job.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.fakes.checkpoint_places import place_at, require_state, save
from tests.fakes.forking import forking

pytestmark = pytest.mark.slow

SHAPES = {"model.a": (300, 70), "optim.a.exp_avg": (300, 70), "optim.a.exp_avg_sq": (300, 70), "model.b": (5,)}
RANK_COUNT = 3
KILL_COUNT = 100
SEED = 20


def job(root: Path, epoch: int, save_count: int, marks: Connection) -> None:
    """One attempt: resume, then save after every step; it says what it does and after which step."""
    marks.send(("opening", 0))
    place = place_at(root, epoch=epoch)
    selection = place.open()
    step = 0
    if selection.manifest is not None:
        step = selection.manifest.step
        marks.send(("loading", step))
        require_state(root / str(selection.name), step, SHAPES)
    marks.send(("resumed", step))
    for saved in range(step + 1, step + 1 + save_count):
        marks.send(("saving", saved))
        save(place, saved, world_size=RANK_COUNT, shapes=SHAPES)
        marks.send(("saved", saved))


@dataclass
class Attempt:
    """The test's side of one attempt: its process and what it has said."""

    root: Path
    epoch: int
    save_count: int
    seen: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        context = forking()
        self._marks, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=job, args=(self.root, self.epoch, self.save_count, theirs))
        self.process.start()
        theirs.close()

    def wait_for(self, mark: str, count: int) -> None:
        while sum(word == mark for word, _ in self.seen) < count:
            assert self._marks.poll(60.0), f"no {mark} number {count}: {self.seen[-3:]}"
            try:
                self.seen.append(self._marks.recv())
            except EOFError:
                raise AssertionError(f"attempt {self.epoch} ended by itself: {self.seen[-3:]}") from None

    def end(self) -> None:
        """Wait until it has ended and take in what it has said."""
        self.process.join(60.0)
        try:
            while True:
                self.seen.append(self._marks.recv())
        except EOFError:
            self._marks.close()

    def steps(self, mark: str) -> list[int]:
        return [step for word, step in self.seen if word == mark]


def kill_at(attempt: Attempt, moments: random.Random) -> None:
    """Kill an attempt at a moment of its load or of one of its first saves."""
    mark, count, delay_s_max = moments.choice(
        [("opening", 1, 0.004), ("loading", 1, 0.004), *3 * [("saving", 3, 0.012)]]
    )
    if attempt.epoch == 1:
        mark, count = "saving", 3  # there is nothing to load yet
    attempt.wait_for(mark, moments.randint(1, count))
    until_s = time.monotonic() + moments.uniform(0.0, delay_s_max)
    while time.monotonic() < until_s:
        pass
    attempt.process.kill()
    attempt.end()


def test_killed_at_a_hundred_moments_it_always_resumes(tmp_path: Path) -> None:
    """Replay one run of it with the same SEED; the moments are the same as far as the machine allows."""
    moments = random.Random(SEED)
    durable_step = 0
    cut: dict[str, int] = {"load": 0, "save": 0}
    for epoch in range(1, KILL_COUNT + 1):
        attempt = Attempt(tmp_path, epoch, save_count=1000)
        kill_at(attempt, moments)
        assert attempt.process.exitcode == -9, f"attempt {epoch} ended by itself: {attempt.seen[-3:]}"
        for step in attempt.steps("resumed"):
            assert step >= durable_step, f"attempt {epoch} went back from {durable_step} to {step}"
            durable_step = step
        durable_step = max([durable_step, *attempt.steps("saved")])
        cut["load"] += not attempt.steps("resumed")
        cut["save"] += any(tmp_path.glob(".tmp-step-*"))
    last = Attempt(tmp_path, KILL_COUNT + 1, save_count=2)
    last.end()
    assert last.process.exitcode == 0
    assert last.steps("resumed")[0] >= durable_step
    assert not list(tmp_path.rglob(".tmp-*"))
    newest = last.steps("saved")[-1]
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{newest - 1:08d}", f"step-{newest:08d}"]
    assert min(cut.values()) > 0, f"the moments did not meet what they were to meet: {cut}"
