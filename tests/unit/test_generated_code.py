"""The committed code under arena/rpc/v1 is what proto/ gives today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = Path("arena/rpc/v1")


def test_the_generated_code_is_fresh(tmp_path: Path) -> None:
    protos = sorted((ROOT / "proto" / PACKAGE).glob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "mypy")]
    argv = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto"), *outputs, *map(str, protos)]
    # protoc finds the mypy plugin beside this interpreter.
    path = {"PATH": str(Path(sys.executable).parent)}
    subprocess.run(argv, check=True, timeout=60, env=path)
    made = {file.name: file.read_text() for file in (tmp_path / PACKAGE).iterdir()}
    committed = {file.name: file.read_text() for file in (ROOT / PACKAGE).glob("*_pb2*.py*") if file.is_file()}
    assert set(made) == set(committed)
    stale = sorted(name for name in made if made[name] != committed[name])
    assert not stale, "run `make proto`"
