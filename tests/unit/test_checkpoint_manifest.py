"""Which checkpoint directories count, what is said of the others, and the fence that keeps older attempts out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from arena.domain.job import ModelSpec
from arena.domain.parameters import parameters_of
from arena.errors import AlreadyRunningError
from arena_agent.checkpoints.audit import faults
from arena_agent.checkpoints.boxes import Box, whole_box
from arena_agent.checkpoints.disk import size_on_disk
from arena_agent.checkpoints.fence import Fence, FencedError, unwritten
from arena_agent.checkpoints.files import Reader, write_rank_file
from arena_agent.checkpoints.manifest import (
    FORMAT,
    CheckpointError,
    expected_tensors,
    read_manifest,
    require_equal,
    require_names,
    step_directories,
    step_name,
    step_of,
    verify_files,
    write_manifest,
)
from arena_agent.checkpoints.place import assembled
from arena_agent.checkpoints.selection import examine, select_newest
from tests.fakes.checkpoint_places import SHAPES, manifest_of, place_at, require_state, save, value_at

FIRST_FILE = "rank-00000.safetensors"


def saved(root: Path, *steps: int) -> Path:
    """Save steps, none of which is retired, and return the last one's directory."""
    for step in steps:
        save(place_at(root, keep=99), step)
    return root / step_name(steps[-1])


def edit_manifest(directory: Path, **fields: object) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_newest_whole_one_is_chosen(tmp_path: Path) -> None:
    saved(tmp_path, 1, 100, 20)
    chosen = select_newest(tmp_path)
    assert (chosen.name, dict(chosen.skipped)) == ("step-00000100", {})
    assert chosen.manifest is not None
    assert chosen.manifest.step == 100
    require_state(tmp_path / "step-00000100", 100)


def cut_off(directory: Path) -> None:
    path = directory / FIRST_FILE
    path.write_bytes(path.read_bytes()[:-7])


def delete_file(directory: Path) -> None:
    (directory / FIRST_FILE).unlink()


def add_file(directory: Path) -> None:
    (directory / "rank-00009.safetensors").write_bytes(b"of another save")


def lose_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def garble_manifest(directory: Path) -> None:
    (directory / "manifest.json").write_text('{"step": ')


def no_object(directory: Path) -> None:
    (directory / "manifest.json").write_text("[2]")


def first_format(directory: Path) -> None:
    edit_manifest(directory, format=1)


def newer_format(directory: Path) -> None:
    edit_manifest(directory, format=FORMAT + 1)


def lose_field(directory: Path) -> None:
    fields = json.loads((directory / "manifest.json").read_text())
    del fields["tensors"]
    (directory / "manifest.json").write_text(json.dumps(fields))


def list_elsewhere(directory: Path) -> None:
    files = {"../../secret": {"size_bytes": 1, "sha256": ""}}
    edit_manifest(directory, files=files)


def nest_manifest(directory: Path) -> None:
    (directory / "manifest.json").write_text("[" * 100_000)


def manifest_that_waits(directory: Path) -> None:
    (directory / "manifest.json").unlink()
    os.mkfifo(directory / "manifest.json")


def manifest_of_itself(directory: Path) -> None:
    (directory / "manifest.json").unlink()
    (directory / "manifest.json").symlink_to("manifest.json")


def another_step(directory: Path) -> None:
    edit_manifest(directory, step=7)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_off, "bytes, the manifest says"),
        (delete_file, f"lacks its file {FIRST_FILE}"),
        (add_file, "holds a file that its manifest does not list: rank-00009.safetensors"),
        (lose_manifest, "has no manifest: its save never completed"),
        (garble_manifest, "unreadable manifest"),
        (nest_manifest, "unreadable manifest: maximum recursion"),
        (manifest_that_waits, "unreadable manifest: it is not a plain file"),
        (manifest_of_itself, "unreadable manifest"),
        (no_object, "has format None"),
        (lose_field, "unreadable manifest: tensors"),
        (list_elsewhere, "lists a file elsewhere"),
        (first_format, "has format 1, this version reads 2"),
        (newer_format, "has format 3, this version reads 2"),
        (another_step, "has the manifest of step-00000007"),
    ],
)
def test_a_newer_one_that_is_not_whole_is_passed_over_and_named(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    newest = saved(tmp_path, 1, 2)
    damage(newest)
    chosen = select_newest(tmp_path)
    assert chosen.name == "step-00000001"
    assert list(chosen.skipped) == ["step-00000002"]
    assert reason in chosen.skipped["step-00000002"]
    assert examine(newest)[1] is None
    assert any(reason in fault for fault in faults(newest))


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [-13, 5]},
        {"shape": [13]},
        {"shape": [], "is_input_first": True, "pieces": []},
        {"shape": [7], "is_input_first": True, "pieces": []},
        {"pieces": [{"file": FIRST_FILE, "offsets": [0], "sizes": [13, 5]}]},
        {"pieces": [{"file": FIRST_FILE, "offsets": [0, 0], "sizes": [13]}]},
        {"pieces": [{"file": FIRST_FILE, "offsets": [0, -5], "sizes": [13, 10]}]},
        {"pieces": [{"file": FIRST_FILE, "offsets": [13, 0], "sizes": [-13, 5]}]},
    ],
)
def test_a_manifest_of_what_is_no_tensor_is_unreadable(tmp_path: Path, fields: Mapping[str, object]) -> None:
    newest = saved(tmp_path, 1, 2)
    tensors = json.loads((newest / "manifest.json").read_text())["tensors"]
    edit_manifest(newest, tensors=tensors | {"model.embed.weight": tensors["model.embed.weight"] | fields})
    chosen = select_newest(tmp_path)
    assert chosen.name == "step-00000001"
    assert "unreadable manifest: tensors.model.embed.weight" in chosen.skipped["step-00000002"]


def test_a_shape_beyond_all_memory_is_not_tried(tmp_path: Path) -> None:
    newest = saved(tmp_path, 1)
    tensors = json.loads((newest / "manifest.json").read_text())["tensors"]
    edit_manifest(newest, tensors=tensors | {"model.head.bias": tensors["model.head.bias"] | {"shape": [2**55]}})
    with pytest.raises(CheckpointError, match=r"does not hold model\.head\.bias exactly"):
        Reader(newest, read_manifest(newest)).whole("model.head.bias")


def test_what_vanishes_while_it_is_looked_at_counts_nothing(tmp_path: Path) -> None:
    assert size_on_disk(tmp_path / ".tmp-step-00000001.1") == 0


def test_hidden_files_of_the_file_system_are_nobodys_business(tmp_path: Path) -> None:
    (saved(tmp_path, 1) / ".nfs0001").write_bytes(b"removed while open")
    assert select_newest(tmp_path).name == "step-00000001"


def test_one_that_differs_from_its_digests_is_found_and_passed_over(tmp_path: Path) -> None:
    newest = saved(tmp_path, 1, 2)
    content = bytearray((newest / FIRST_FILE).read_bytes())
    content[-3] ^= 1
    (newest / FIRST_FILE).write_bytes(content)
    first = select_newest(tmp_path)
    assert first.name == "step-00000002"
    assert first.manifest is not None
    with pytest.raises(CheckpointError, match="differs from its digest") as caught:
        verify_files(newest, first.manifest, names=[FIRST_FILE])
    second = select_newest(tmp_path, {first.name: caught.value.message})
    assert (second.name, list(second.skipped)) == ("step-00000001", [first.name])


def test_files_of_two_saves_in_one_directory_are_refused(tmp_path: Path) -> None:
    """Their sizes are equal, each is a file of ours: only the digests tell."""
    newest = saved(tmp_path, 1, 2)
    shutil.copy(tmp_path / "step-00000001" / FIRST_FILE, newest / FIRST_FILE)
    assert faults(newest) == (f"step-00000002: file {FIRST_FILE} differs from its digest in the manifest",)


def test_an_empty_place_starts_afresh(tmp_path: Path) -> None:
    (tmp_path / "step-00000007").mkdir()
    (tmp_path / "other").mkdir()
    chosen = select_newest(tmp_path)
    assert chosen.name is None
    assert "no manifest" in chosen.skipped["step-00000007"]


def test_lost_work_is_not_started_over(tmp_path: Path) -> None:
    delete_file(saved(tmp_path, 4))
    with pytest.raises(CheckpointError, match="step-00000004 lacks its file rank"):
        select_newest(tmp_path)


@pytest.mark.parametrize("name", ["step-", "step-x", "steps-1", ".tmp-step-00000001", "step-1a", "step-²"])
def test_other_names_are_not_checkpoints(name: str) -> None:
    assert step_of(name) is None


def test_both_values_of_a_difference_are_said() -> None:
    with pytest.raises(CheckpointError, match="n is 10, the job has 20") as caught:
        require_equal({"a": "1", "n": "10"}, {"a": "1", "n": "20"}, name="step-00000001")
    assert caught.value.details == {"fields": "n"}


def test_missing_and_extra_tensors_are_named() -> None:
    ours = ["model.a", "optim.a.exp_avg"]
    require_names(ours, ours, name="step-00000001")
    with pytest.raises(
        CheckpointError, match=r"holds optim\.a\.max_exp_avg_sq, which the job has no place for"
    ) as caught:
        require_names([*ours, "optim.a.max_exp_avg_sq"], ours, name="step-00000001")
    assert caught.value.details == {"missing": "", "extra": "optim.a.max_exp_avg_sq"}
    with pytest.raises(CheckpointError, match=r"it lacks optim\.a\.exp_avg"):
        require_names(["model.a"], ours, name="step-00000001")


def test_what_a_model_needs_is_its_parameters_and_their_states() -> None:
    spec = ModelSpec.model_validate({"family": "gpt", "layers": 1, "hidden": 8, "heads": 2, "seq_len": 4})
    parameters = parameters_of(spec)
    entries = expected_tensors(parameters, ("exp_avg", "exp_avg_sq"))
    assert len(entries) == 3 * len(parameters)
    assert entries["optim.layers.0.attn.wo.weight.exp_avg_sq"].shape == (8, 8)
    assert entries["model.layers.0.attn.wo.weight"].is_input_first


class TestCommit:
    """A save is only made visible when every element is there once."""

    def test_a_tensor_that_nobody_wrote(self, tmp_path: Path) -> None:
        index = write_rank_file(tmp_path, 0, [("model.a", Box((0,), (2,)), value_at(1, "a", (2,)))])
        manifest = manifest_of(1, shapes={"model.a": (2,), "model.b": (2,)})
        with pytest.raises(CheckpointError, match=r"it lacks model\.b"):
            assembled(manifest, [index])

    def test_elements_that_nobody_wrote(self, tmp_path: Path) -> None:
        index = write_rank_file(tmp_path, 0, [("model.a", Box((0,), (2,)), value_at(1, "a", (2,)))])
        with pytest.raises(CheckpointError, match=r"model\.a of shape \[5\]: 3 elements are missing"):
            assembled(manifest_of(1, shapes={"model.a": (5,)}), [index])

    def test_elements_that_two_ranks_wrote(self, tmp_path: Path) -> None:
        piece = ("model.a", whole_box((2,)), value_at(1, "a", (2,)))
        indexes = [write_rank_file(tmp_path, rank, [piece]) for rank in (0, 1)]
        with pytest.raises(CheckpointError, match="overlap"):
            assembled(manifest_of(1, shapes={"model.a": (2,)}), indexes)

    def test_another_type(self, tmp_path: Path) -> None:
        index = write_rank_file(tmp_path, 0, [("model.a", whole_box((2,)), value_at(1, "a", (2,)).astype("float64"))])
        with pytest.raises(CheckpointError, match="float64, not float32"):
            assembled(manifest_of(1, shapes={"model.a": (2,)}), [index])

    def test_a_manifest_reads_back_as_it_was_written(self, tmp_path: Path) -> None:
        manifest = save(place_at(tmp_path), 3)
        assert read_manifest(tmp_path / "step-00000003") == manifest
        write_manifest(tmp_path / "step-00000003", replace(manifest, plan="other"))
        assert read_manifest(tmp_path / "step-00000003").plan == "other"


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


def test_an_older_attempt_commits_nothing_and_clears_nothing(tmp_path: Path) -> None:
    old, new = place_at(tmp_path, epoch=1), place_at(tmp_path, epoch=2)
    old.open()
    old.prepare(1)
    new.open()
    new.prepare(1)
    with pytest.raises(FencedError):
        old.open()
    with pytest.raises(FencedError):
        save(old, 1)
    assert new.temporary(1).is_dir()
    assert not old.temporary(1).exists()


def test_nothing_from_outside_comes_between_a_commit(tmp_path: Path) -> None:
    fence = Fence(root=tmp_path, epoch=1)
    with fence.held(), pytest.raises(AlreadyRunningError), unwritten(tmp_path):
        pytest.fail("entered")
    with unwritten(tmp_path):
        pass


def test_a_garbled_fence_stops_everybody(tmp_path: Path) -> None:
    (tmp_path / "fence.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"fence\.json"):
        Fence(root=tmp_path, epoch=1).claim()


def test_a_save_whose_manifest_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    save(place, 1)
    directory = place.prepare(2)
    pieces = [(name, whole_box(shape), value_at(2, name, shape)) for name, shape in SHAPES.items()]
    index = write_rank_file(directory, 0, pieces)
    (directory / ".tmp-manifest.json").mkdir()
    with pytest.raises(IsADirectoryError):
        place.commit(manifest_of(2), [index])
    assert step_directories(tmp_path) == ["step-00000001"]
    assert list(tmp_path.glob(".tmp-*")) == []
