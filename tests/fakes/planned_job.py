"""A job and a cluster file for tests of ``arena plan``."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.cli.main import run
from tests.fakes.command_line import Arena, Done

JOB = """
name: mine
train:
  model: {family: gpt, layers: 12, hidden: 768, heads: 12, vocab_size: 50304, seq_len: 1024}
  precision: bf16
  global_batch: 64
"""
CLUSTER = """
nodes:
  - {type: a100-40, count: 2, gpus: 4, zone: east}
  - {type: tiny, count: 1, gpus: 2, zone: west}
gpu_types:
  tiny: {like: t4, memory_gib: 1}
"""


def planning_in(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Arena:
    """Return what runs ``arena plan job.yaml --cluster cluster.yaml`` in a folder with these files."""
    monkeypatch.chdir(folder)
    (folder / "job.yaml").write_text(JOB)
    (folder / "cluster.yaml").write_text(CLUSTER)

    def call(*argv: str, job: str = "job.yaml", cluster: str = "cluster.yaml") -> Done:
        code = run(["plan", job, "--cluster", cluster, *argv])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call
