"""The same trace, seed and policy give the same digests: with other features of the processor, other hashes of strings,
and other Pythons."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__  # what numpy says only as a print

from arena.domain.job import JobSpec
from arena.domain.records import JobState
from arena.policies.registry import policy_names
from arena_traces.formats.log_writing import log_job, log_lines
from tests.builders import job_record, train_spec
from tests.trace_files import ARENA_HEAD, table, written

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MINORS = range(11, 20)
STEPS = {1: 4.0, 2: 2.2, 4: 1.3, 8: 0.8}
"""Seconds of a step by GPUs of the first type; the second takes 1.7 times as long."""

TELL = """
import json, sys
from arena.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def steps_csv() -> str:
    rows = ["workload,global_batch,group,step_time_s"]
    for gpu_type, slower in (("a100-80", 1.0), ("v100-16", 1.7)):
        for count, step_s in STEPS.items():
            group = f"{gpu_type} {count}" if count <= 4 else f"{gpu_type} 4+4"
            rows += [f"{name},8,{group},{step_s * slower * more}" for name, more in (("a__1B", 1.0), ("b__2B", 1.9))]
    return "\n".join(rows) + "\n"


def trained(index: int) -> JobSpec:
    model = {"layers": 8, "hidden": 512 + 128 * (index % 3), "heads": 8, "seq_len": 256}
    return train_spec(
        f"job{index}",
        model=model,
        train={"global_batch": 32 << index % 2},
        gpus={"min": 1, "max": 8},
        stop={"steps": 20_000 + 3_000 * (index % 5)},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of workloads with their times, one of models that are planned, and nodes that fail."""
    folder = tmp_path_factory.mktemp("determinism")
    rows = (
        f"{index},{37 * index},{400 + 61 * (index % 7)},{'ab'[index % 2]}__{1 + index % 2}B,-1,8,{1 << index % 4},"
        f"{('a100-80', 'v100-16')[index % 3 == 0]}"
        for index in range(40)
    )
    written(folder / "named.csv", table(ARENA_HEAD, *rows))
    jobs = (
        log_job(job_record(f"j{index}", spec, submitted_at_s=90.0 * index, state=JobState.QUEUED), spec, ())
        for index, spec in enumerate(map(trained, range(16)))
    )
    written(folder / "planned.jsonl", "".join(log_lines(jobs, exported_at_s=1e6)).encode())
    (folder / "steps.csv").write_text(steps_csv())
    (folder / "cluster.yaml").write_text(
        "nodes: [{type: a100-80, count: 2, gpus: 4}, {type: v100-16, count: 2, gpus: 4}]\n"
    )
    (folder / "nodes.yaml").write_text(
        "failures: [{mean_uptime_s: 4000, mean_repair_s: 300}]\ncheckpoint_every_s: 60\n"
    )
    return folder


def digests(folder: Path, python: str = sys.executable, **environment: str) -> dict[tuple[str, str, int], str]:
    """The digest of every run of both studies, made by a Python of its own."""
    cluster, policies = ("--cluster", folder / "cluster.yaml"), ("--policy", ",".join(policy_names()))
    nodes = ("--disturbances", folder / "nodes.yaml", "--seeds", 2)
    named = ("named.csv", "--grids", folder / "steps.csv", "--lengths", "predicted", *nodes)
    found = {}
    for trace, *options in (named, ("planned.jsonl", *nodes)):
        document = replayed([python, "-c", TELL], folder / str(trace), *cluster, *policies, *options, **environment)
        for policy in document["policies"]:
            found.update({(str(trace), policy["policy"], run["seed"]): run["digest"] for run in policy["runs"]})
    return found


def replayed(command: list[str], *argv: object, **environment: str) -> Mapping[str, list[dict[str, object]]]:
    path = os.pathsep.join(str(ROOT / name) for name in ("", "traces"))
    done = subprocess.run(
        [*command, "replay", *map(str, argv), "--json"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[tuple[str, str, int], str]:
    found = digests(folder, PYTHONHASHSEED="1")
    assert len(found) == 2 * 2 * len(policy_names())
    # Seeds differ, so what is compared does depend on what is drawn.
    assert len({found[key] for key in found if key[:2] == ("named.csv", "elastic")}) == 2
    return found


def test_other_features_of_the_processor_and_other_hashes(
    folder: Path, expected: dict[tuple[str, str, int], str]
) -> None:
    enabled = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    if not enabled:
        pytest.skip("numpy has no feature to do without on this machine")
    without = " ".join(enabled)
    assert digests(folder, PYTHONHASHSEED="7", NPY_DISABLE_CPU_FEATURES=without) == expected


def test_other_pythons(folder: Path, expected: dict[tuple[str, str, int], str]) -> None:
    usable = [python for minor in MINORS if (python := other_python(minor)) is not None]
    if not usable:
        pytest.skip("none of the other Pythons on PATH can import arena")
    for python in usable:
        assert digests(folder, python, PYTHONHASHSEED="3") == expected, python


def other_python(minor: int) -> str | None:
    """Another version of Python on PATH, if it has what is needed."""
    python = shutil.which(f"python3.{minor}")
    if python is None or minor == sys.version_info.minor:
        return None
    tried = subprocess.run(
        [python, "-c", "import arena.cli.replay_delivery, arena_traces.mapping, joblib"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("", "traces"))},
        capture_output=True,
        check=False,
    )
    return python if tried.returncode == 0 else None
