"""The shape of the repository: what STYLE-like rules a tool does not check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("arena", "scheduler/arena_scheduler", "agents/arena_agent", "traces/arena_traces", "experiments")
TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", "Makefile"),
    *("proto", "arena", "scheduler", "agents", "traces", "experiments", "tests"),
}
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
LONG_FUNCTIONS: frozenset[str] = frozenset()
"""Functions that may be longer, as ``path:name``; empty, and meant to stay so."""


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "/rpc/v1/" not in path.as_posix():
                yield path


def test_the_top_level_holds_what_it_should_and_nothing_else() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = {line.split("/")[0] for line in done.stdout.splitlines()}
    assert {name for name in found if not name.startswith(".")} == TOP_LEVEL


@pytest.mark.parametrize("folder", ["scheduler", "agents", "traces"])
def test_component_folders_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists(), f"{folder} would collide with others' packages of that name"


def test_no_function_is_too_long() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
        and f"{path.relative_to(ROOT)}:{node.name}" not in LONG_FUNCTIONS
    ]
    assert long == []


def test_no_file_is_too_long() -> None:
    counts = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {name: count for name, count in counts.items() if count > FILE_LINES_MAX} == {}


def test_nothing_waits_in_a_way_that_loses_a_cancellation() -> None:
    """Before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that comes when what it waits for is there."""
    found = [str(path.relative_to(ROOT)) for path in sources() if "asyncio.wait_for(" in path.read_text("utf-8")]
    assert found == [], "use asyncio.timeout"


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if "migrations" not in path.parts and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("arena.cli.main", ("sqlalchemy", "scipy", "torch", "numpy")),
        ("arena.engine.engine", ("grpc", "google", "sqlalchemy", "torch")),
        ("arena_agent.app", ("torch", "sqlalchemy")),
        ("arena_scheduler.app", ("torch",)),
        ("arena_agent.worker.main", ("grpc", "sqlalchemy")),
        ("arena_agent.checkpoints.audit", ("torch", "grpc", "click")),
        ("arena_agent.checkpoints.place", ("torch", "grpc", "click")),
    ],
)
def test_a_start_imports_only_what_it_needs(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {forbidden!r} if name in sys.modules])"
    path = ":".join(str(ROOT / part) for part in (".", "scheduler", "agents", "traces"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": path}
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_which_states_of_jobs_are_live_is_said_in_one_place() -> None:
    again = re.compile(r"in JobState if (not )?\w+\.is_terminal")
    found = [path for path in sources() if again.search(path.read_text())]
    assert found == [ROOT / "arena/domain/records.py"], "LIVE_JOB_STATES and ENDED_JOB_STATES are there"
