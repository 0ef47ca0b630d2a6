"""``arena ckpt`` on real directories: what it says, what it removes, and that it needs no torch."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from arena.domain.job import CheckpointSpec, ModelSpec
from arena.domain.parameters import parameters_of
from arena.rpc.views import StatusView
from arena_agent.checkpoints.boxes import whole_box
from arena_agent.checkpoints.fence import Fence
from arena_agent.checkpoints.files import write_rank_file
from arena_agent.checkpoints.manifest import Manifest, expected_tensors
from tests.builders import command_spec, job_record, train_spec
from tests.fakes.checkpoint_places import SHAPES, manifest_of, place_at, save, value_at
from tests.fakes.command_line import Arena
from tests.fakes.scheduler_server import FakeScheduler

ROOT = Path(__file__).resolve().parents[2]
STATUS = StatusView(scheduler_version="1", policy="arena", now_s=1.0, started_at_s=0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A place with three whole checkpoints, one without a manifest, and a temporary."""
    place = place_at(tmp_path / "j-1", epoch=4, keep=99)
    for step in (10, 20, 30):
        save(place, step)
    (place.root / "step-00000040").mkdir()
    (place.root / ".tmp-step-00000050.4").mkdir()
    (place.root / ".tmp-step-00000050.4" / "rank-00000.safetensors").write_bytes(bytes(2048))
    return place.root


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("step-*"))


def test_a_list_says_which_one_a_resume_takes(arena: Arena, root: Path) -> None:
    lines = arena("ckpt", "list", root).out.splitlines()
    assert lines[0].split() == ["STEP", "COMPLETED", "SIZE", "EPOCH", "PLAN", "STATE"]
    assert [line.split()[0] for line in lines[1:5]] == ["40", "30", "20", "10"]
    assert lines[1].endswith("incomplete: step-00000040 has no manifest: its save never completed")
    assert lines[2].endswith("dp1 tp1 pp1 mb4  complete, a resume takes it")
    assert lines[3].endswith("complete")
    assert lines[5].startswith(".tmp-step-00000050.4: 2.0 KiB, being written or left")


def test_a_list_as_json(arena: Arena, root: Path) -> None:
    document = arena("ckpt", "list", root, "--json").document
    assert [item["is_next"] for item in document["checkpoints"]] == [False, True, False, False]
    newest = document["checkpoints"][1]
    assert (newest["step"], newest["epoch"], newest["plan"]) == (30, 4, "dp1 tp1 pp1 mb4")
    assert newest["size_bytes"] == sum(path.stat().st_size for path in (root / "step-00000030").iterdir())
    assert document["checkpoints"][0]["written_at_s"] is None
    assert document["temporaries"] == [{"name": ".tmp-step-00000050.4", "size_bytes": 2048}]
    assert arena("--json", "ckpt", "list", root).document == arena("ckpt", "--json", "list", root).document


def test_a_newest_one_that_is_cut_off_is_not_what_a_resume_takes(arena: Arena, root: Path) -> None:
    shard = root / "step-00000030" / "rank-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    rows = arena("ckpt", "list", root, "--json").document["checkpoints"]
    assert [row["step"] for row in rows if row["is_next"]] == [20]
    assert "bytes, the manifest says" in rows[1]["reason"]


def test_sound_ones_are_said_to_be_so(arena: Arena, root: Path) -> None:
    (root / "step-00000040").rmdir()
    done = arena("ckpt", "verify", root)
    assert (done.code, done.out.splitlines()) == (0, [f"step-000000{step}: sound" for step in (30, 20, 10)])
    assert arena("ckpt", "verify", root / "step-00000010", "--json").document == {
        "schema_version": 1,
        "is_sound": True,
        "checkpoints": [{"name": "step-00000010", "is_sound": True, "faults": []}],
    }


def test_everything_that_is_wrong_is_said(arena: Arena, root: Path) -> None:
    flip(root / "step-00000030" / "rank-00001.safetensors")
    (root / "step-00000030" / "rank-00000.safetensors").unlink()
    done = arena("ckpt", "verify", root)
    assert done.code == 1
    assert done.out.splitlines()[:4] == [
        "step-00000040: damaged",
        "  step-00000040 has no manifest: its save never completed",
        "step-00000030: damaged",
        "  step-00000030 lacks its file rank-00000.safetensors",
    ]
    assert "file rank-00001.safetensors differs from its digest" in done.out
    assert arena("ckpt", "verify", root / "step-00000030", "--json").code == 1


def test_a_tensor_with_a_hole_or_held_twice_is_found(arena: Arena, root: Path) -> None:
    path = root / "step-00000030" / "manifest.json"
    fields = json.loads(path.read_text())
    pieces = fields["tensors"]["optim.head.bias.exp_avg"]["pieces"]
    fields["tensors"]["optim.head.bias.exp_avg"]["pieces"] = pieces[1:]
    fields["tensors"]["model.head.bias"]["pieces"] *= 2
    path.write_text(json.dumps(fields))
    done = arena("ckpt", "verify", root / "step-00000030")
    assert done.code == 1
    assert "optim.head.bias.exp_avg of shape [7]: 3 elements are missing" in done.out
    assert "model.head.bias of shape [7]: the parts [7] at [0] and [7] at [0] overlap" in done.out


def test_pruning_keeps_the_newest(arena: Arena, root: Path) -> None:
    dry = arena("ckpt", "prune", root, "--keep", 2, "--dry-run")
    assert dry.out.startswith("would remove step-00000010 (")
    assert len(names(root)) == 4
    done = arena("ckpt", "prune", root, "--keep", 2, "--json").document
    assert [item["name"] for item in done["removed"]] == ["step-00000010"]
    assert done["freed_bytes"] == done["removed"][0]["size_bytes"] > 0
    assert names(root) == ["step-00000020", "step-00000030", "step-00000040"]


def test_a_quota_takes_no_more_than_all_but_two(arena: Arena, root: Path) -> None:
    assert arena("ckpt", "prune", root, "--keep", 9, "--quota", "1 GiB").out.startswith("removed 0")
    arena("ckpt", "prune", root, "--keep", 9, "--quota", "1B")
    assert names(root) == ["step-00000020", "step-00000030", "step-00000040"]


def test_nothing_is_pruned_while_an_attempt_writes(arena: Arena, root: Path) -> None:
    with Fence(root=root, epoch=4).held():
        done = arena("ckpt", "prune", root, "--keep", 2)
    assert done.code == 3
    assert "an attempt is writing a checkpoint there" in done.err
    assert len(names(root)) == 4


@pytest.mark.parametrize("options", [["--keep", 1], ["--keep", 2, "--quota", "ten"], ["--keep", 2, "--quota", "0"], []])
def test_a_wrong_number_or_size_is_a_wrong_command_line(arena: Arena, root: Path, options: list[object]) -> None:
    assert arena("ckpt", "prune", root, *options).code == 2
    assert len(names(root)) == 4


def save_model(root: Path) -> tuple[ModelSpec, Manifest]:
    """Save a small model's parameters and one moment each, whole."""
    shape = {"family": "wide_resnet", "group_depths": [1, 1], "hidden": 8, "image_size": 8, "class_count": 3}
    spec = ModelSpec.model_validate({"layers": 2} | shape)
    entries = expected_tensors(parameters_of(spec), ("momentum_buffer",))
    shapes = {name: entry.shape for name, entry in entries.items()}
    place = place_at(root)
    root.mkdir()
    pieces = [(name, whole_box(shape), value_at(3, name, shape)) for name, shape in shapes.items()]
    index = write_rank_file(place.prepare(3), 0, pieces)
    return spec, place.commit(replace(manifest_of(3), tensors=entries), [index])


def test_an_exported_model_is_whole_and_as_torch_has_it(arena: Arena, tmp_path: Path) -> None:
    spec, _ = save_model(tmp_path / "place")
    target = tmp_path / "out" / "mine.safetensors"
    target.parent.mkdir()
    done = arena("ckpt", "export", tmp_path / "place" / "step-00000003", "-o", target, "--json")
    assert done.document["size_bytes"] == target.stat().st_size
    found = load_file(target)
    parameters = parameters_of(spec)
    assert set(found) == {parameter.name for parameter in parameters}
    assert any(parameter.is_input_first for parameter in parameters)
    for parameter in parameters:
        value = value_at(3, f"model.{parameter.name}", parameter.shape)
        np.testing.assert_array_equal(
            found[parameter.name], value.swapaxes(0, 1) if parameter.is_input_first else value
        )
    assert json.loads((tmp_path / "out" / "mine.json").read_text())["step"] == 3
    assert {path.name for path in target.parent.iterdir()} == {"mine.safetensors", "mine.json"}


def test_of_a_place_the_newest_whole_one_is_exported(arena: Arena, root: Path, tmp_path: Path) -> None:
    assert arena("ckpt", "export", root, "-o", tmp_path / "m.safetensors").out.startswith("step-00000030 -> ")
    np.testing.assert_array_equal(
        load_file(tmp_path / "m.safetensors")["head.bias"], value_at(30, "model.head.bias", SHAPES["model.head.bias"])
    )


def test_a_copy_under_another_name_is_still_a_checkpoint(arena: Arena, root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root / "step-00000020", tmp_path / "mine")
    assert arena("ckpt", "verify", copy).out == "mine: sound\n"
    assert arena("ckpt", "export", copy, "-o", tmp_path / "m.safetensors").code == 0
    copy.rename(root / "step-00000021")
    done = arena("ckpt", "verify", root / "step-00000021")
    assert (done.code, "has the manifest of step-00000020" in done.out) == (1, True)


@pytest.mark.parametrize("verb", ["list", "verify", "prune", "export"])
def test_what_is_not_there_is_not_found(arena: Arena, tmp_path: Path, verb: str) -> None:
    options = {"prune": ["--keep", 2], "export": ["-o", tmp_path / "m"]}.get(verb, [])
    assert arena("ckpt", verb, tmp_path / "nothing", *options).code == 5


def test_what_the_operating_system_refuses_is_no_fault_of_ours(arena: Arena, root: Path) -> None:
    done = arena("ckpt", "export", root, "-o", "/dev/null/m.safetensors")
    assert done.code == 4
    assert "/dev/null" in done.err


@pytest.mark.parametrize("name", ["step-00000030/model.safetensors", "step-00000030/rank-00000.safetensors"])
def test_an_export_goes_into_no_checkpoint(arena: Arena, root: Path, name: str) -> None:
    done = arena("ckpt", "export", root, "-o", root / name)
    assert (done.code, "is inside a checkpoint" in done.err) == (4, True)
    assert arena("ckpt", "verify", root / "step-00000030").code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.safetensors"])
def test_an_export_of_the_working_directory_goes_elsewhere(
    arena: Arena, root: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(root / "step-00000020", tmp_path / "mine")
    monkeypatch.chdir(copy)
    assert arena("ckpt", "export", ".", "-o", name).code == 4
    assert arena("ckpt", "verify", ".").out == "mine: sound\n"
    assert arena("ckpt", "export", ".", "-o", "../m.safetensors").out.startswith("mine -> ")


def test_an_export_makes_no_directory_that_nobody_asked_for(arena: Arena, root: Path, tmp_path: Path) -> None:
    done = arena("ckpt", "export", root, "-o", tmp_path / "nowhere" / "m.safetensors")
    assert done.code == 4
    assert f"there is no directory {tmp_path / 'nowhere'}" in done.err
    assert not (tmp_path / "nowhere").exists()


def test_an_export_leaves_the_fence_alone(arena: Arena, root: Path) -> None:
    Fence(root=root, epoch=4).claim()
    fence = (root / "fence.json").read_bytes()
    assert arena("ckpt", "export", root, "-o", root / "fence.safetensors").code == 4
    assert (root / "fence.json").read_bytes() == fence


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_an_export_replaces_nothing_unless_that_is_asked_for(
    arena: Arena, root: Path, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("{}")
    argv = ("ckpt", "export", root, "-o", tmp_path / "model.safetensors")
    done = arena(*argv)
    assert (done.code, done.out) == (4, "")
    assert f"{tmp_path / name} is there already. Name another file, or add --force to replace it" in done.err
    assert (tmp_path / name).read_text() == "{}"
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {name}
    done = arena(*argv, "--force")
    assert (done.code, (tmp_path / name).read_bytes() != b"{}") == (0, True)
    assert f"-> {tmp_path / 'model.safetensors'} (" in done.out
    assert f"and {tmp_path / 'model.json'}" in done.out


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_an_export_replaces_plain_files_only(arena: Arena, root: Path, name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    done = arena("ckpt", "export", root, "-o", tmp_path / "model.safetensors")
    assert (done.code, "is not a plain file" in done.err) == (4, True)
    assert (tmp_path / name).is_fifo()


def test_one_checkpoint_can_be_listed(arena: Arena, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone,) = arena("ckpt", "list", root / "step-00000020", "--json").document["checkpoints"]
    assert (alone["name"], alone["step"], alone["is_complete"]) == ("step-00000020", 20, True)
    monkeypatch.chdir(root / "step-00000040")
    assert "step-00000040 has no manifest" in arena("ckpt", "list", ".").out


def test_one_checkpoint_is_not_pruned(arena: Arena, root: Path) -> None:
    before = sorted((root / "step-00000020").iterdir())
    done = arena("ckpt", "prune", root / "step-00000020", "--keep", 2)
    assert (done.code, "is one checkpoint" in done.err) == (4, True)
    assert sorted((root / "step-00000020").iterdir()) == before


def test_no_path_is_not_the_working_directory(arena: Arena, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert arena("ckpt", "list", "").code == 5


def test_an_export_without_room_leaves_nothing(arena: Arena, root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        done = arena("ckpt", "export", root, "-o", tmp_path / "out" / "m.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (done.code, "File too large" in done.err) == (8, True)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_job_may_be_named_where_its_spec_says_the_place(
    arena: Arena, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = train_spec("mine")
    with FakeScheduler() as fake:
        fake.status = STATUS
        monkeypatch.setenv("ARENA_SCHEDULER", fake.address)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path / "j-1")
        told = spec.model_copy(update={"checkpoint": CheckpointSpec(dir=str(root.parent))})
        fake.add_job(job_record("j-1", told))
        fake.add_job(job_record("j-2", spec.model_copy(update={"name": "other"})))
        assert arena("ckpt", "list", "mine", "--json").document["path"] == str(root)
        done = arena("ckpt", "list", "j-2")
    assert done.code == 4
    assert "CHECKPOINT_ROOT/j-2" in done.err


def test_a_job_that_names_no_place_has_its_checkpoints_at_the_schedulers(
    arena: Arena, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeScheduler() as fake:
        fake.status = replace(STATUS, checkpoint_root=str(root.parent))
        monkeypatch.setenv("ARENA_SCHEDULER", fake.address)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        fake.add_job(job_record("j-1", train_spec("mine")))
        assert arena("ckpt", "list", "mine", "--json").document["path"] == str(root)
        fake.status = STATUS  # an older one, which does not say
        done = arena("ckpt", "list", "mine")
    assert done.code == 4
    assert "CHECKPOINT_ROOT/j-1" in done.err


@pytest.mark.parametrize("checkpoint_root", ["", "/nowhere"])
def test_a_program_is_said_to_keep_no_checkpoints(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint_root: str
) -> None:
    with FakeScheduler() as fake:
        fake.status = replace(STATUS, checkpoint_root=checkpoint_root)
        monkeypatch.setenv("ARENA_SCHEDULER", fake.address)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        fake.add_job(job_record("j-1", command_spec("mine")))
        done = arena("ckpt", "list", "mine")
    assert done.code == 5
    assert "job j-1 is a program, and keeps no checkpoints of Arena's" in done.err


def test_no_torch_is_needed(root: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from arena.cli.main import run; sys.exit(run(sys.argv[1:]))"
    path = ":".join(str(ROOT / part) for part in (".", "agents"))
    for argv in (
        ["list", root],
        ["verify", root / "step-00000030"],
        ["export", root, "-o", tmp_path / "m.safetensors"],
    ):
        command = [sys.executable, "-W", "error", "-c", code, "ckpt", *map(str, argv)]
        done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_place_of_several_jobs_names_those_that_have_checkpoints(arena: Arena, root: Path) -> None:
    (root.parent / "empty").mkdir()
    done = arena("ckpt", "list", root.parent)
    assert (done.code, done.err) == (0, "")
    assert "there are some in directories of it: j-1\n" in done.out
