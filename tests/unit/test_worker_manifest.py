"""Which checkpoint directories count, and the fence that keeps older attempts out."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena_agent.worker.fence import Fence, FencedError
from arena_agent.worker.manifest import (
    FORMAT,
    CheckpointError,
    Manifest,
    complete_names,
    file_entry,
    require_equal,
    select_newest,
    step_name,
    step_of,
    verify_files,
    write_manifest,
)


def checkpoint(root: Path, step: int, *, fmt: int = FORMAT, stated_step: int | None = None) -> Path:
    directory = root / step_name(step)
    directory.mkdir()
    (directory / "shard").write_bytes(b"state of step %d" % step)
    manifest = Manifest(
        format=fmt,
        step=step if stated_step is None else stated_step,
        epoch=1,
        plan="dp1",
        torch_version="2",
        fingerprint={"seed": "1"},
        samples_consumed=step,
        parameters=("a",),
        optimizer_state=(),
        files={"shard": file_entry(directory / "shard")},
    )
    write_manifest(directory, manifest)
    return directory


def test_the_newest_whole_one_is_chosen(tmp_path: Path) -> None:
    for step in (1, 100, 20):
        checkpoint(tmp_path, step)
    chosen = select_newest(tmp_path)
    assert (chosen.name, dict(chosen.skipped)) == ("step-00000100", {})
    assert chosen.manifest is not None
    assert chosen.manifest.step == 100


def test_newer_ones_that_are_not_whole_are_named(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    (checkpoint(tmp_path, 2) / "shard").write_bytes(b"state of step")
    (checkpoint(tmp_path, 3) / "shard").write_bytes(b"short")
    (checkpoint(tmp_path, 4) / "shard").unlink()
    checkpoint(tmp_path, 5, fmt=FORMAT + 1)
    checkpoint(tmp_path, 6, stated_step=7)
    (tmp_path / "step-00000007").mkdir()
    chosen = select_newest(tmp_path)
    assert chosen.name == "step-00000001"
    assert [step_of(name) for name in chosen.skipped] == [7, 6, 5, 4, 3, 2]
    assert complete_names(tmp_path) == ["step-00000001"]


def test_one_that_differs_from_its_digests_is_found_and_passed_over(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    (checkpoint(tmp_path, 2) / "shard").write_bytes(b"state of step 3")
    first = select_newest(tmp_path)
    assert first.name == "step-00000002"
    assert first.manifest is not None
    with pytest.raises(CheckpointError, match="differs from its digest") as caught:
        verify_files(tmp_path / first.name, first.manifest, names=["shard"])
    second = select_newest(tmp_path, {first.name: caught.value.message})
    assert second.name == "step-00000001"
    assert list(second.skipped) == [first.name]


def test_an_empty_place_starts_afresh(tmp_path: Path) -> None:
    (tmp_path / "step-00000007").mkdir()
    (tmp_path / "other").mkdir()
    chosen = select_newest(tmp_path)
    assert chosen.name is None
    assert "no manifest" in chosen.skipped["step-00000007"]


def test_lost_work_is_not_started_over(tmp_path: Path) -> None:
    (checkpoint(tmp_path, 4) / "shard").unlink()
    with pytest.raises(CheckpointError, match="step-00000004 lacks its file shard"):
        select_newest(tmp_path)


@pytest.mark.parametrize("name", ["step-", "step-x", "steps-1", ".tmp-step-00000001", "step-1a"])
def test_other_names_are_not_checkpoints(name: str) -> None:
    assert step_of(name) is None


def test_both_values_of_a_difference_are_said() -> None:
    with pytest.raises(CheckpointError, match="n is 10, the job has 20") as caught:
        require_equal({"a": "1", "n": "10"}, {"a": "1", "n": "20"}, name="step-00000001")
    assert caught.value.details == {"fields": "n"}


def test_the_fence_only_rises(tmp_path: Path) -> None:
    old, new = Fence(root=tmp_path, epoch=3), Fence(root=tmp_path, epoch=4)
    old.claim()
    old.claim()
    new.claim()
    with pytest.raises(FencedError, match="attempt 4"):
        old.claim()
    with pytest.raises(FencedError, match="attempt 3 may no longer"), old.held():
        pytest.fail("entered")
    with new.held():
        pass


def test_a_garbled_fence_stops_everybody(tmp_path: Path) -> None:
    (tmp_path / "fence.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"fence\.json"):
        Fence(root=tmp_path, epoch=1).claim()
