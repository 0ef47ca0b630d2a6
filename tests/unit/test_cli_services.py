"""`arena scheduler` and `arena agent`: flags and ARENA_* variables reach the configuration; bad ones are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from arena.cli.main import run
from arena.cli.policy_choice import MAY_STARVE
from arena.policies.registry import policy_names


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """State of its own, and logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def check(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    code = run(["agent", "--check", "--json", "--address", "127.0.0.1", *argv])
    document = json.loads(capsys.readouterr().out)
    assert (code == 0) == document["healthy"]
    return document["agent"]


def test_a_check_shows_what_would_be_registered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    agent = check(capsys, "--node-id", "n1", "--virtual-gpus", "2", "--place", str(tmp_path / "ckpt"))
    devices = agent["inventory"]["devices"]  # type: ignore[index]
    assert [device["device_id"] for device in devices] == ["n1/vgpu-0", "n1/vgpu-1"]
    assert agent["gpu_type"] == "cpu"
    assert list(agent["visible_places"]) == [str(tmp_path / "ckpt")]  # type: ignore[call-overload]


def test_a_check_is_readable_too(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["agent", "--check", "--node-id", "n1", "--virtual-gpus", "1", "--address", "127.0.0.1"]
    assert run(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 cpu GPU at 127.0.0.1"
    assert "  0: n1/vgpu-0 clean" in lines


def test_options_of_the_agent_come_from_the_environment_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARENA_AGENT_VIRTUAL_GPUS", "3")
    monkeypatch.setenv("ARENA_AGENT_NODE_ID", "from-env")
    devices = check(capsys)["inventory"]["devices"]  # type: ignore[index]
    assert [device["device_id"] for device in devices] == [f"from-env/vgpu-{index}" for index in range(3)]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["agent", "--check", "--node-id", "a b", "--virtual-gpus", "1"], "node id 'a b' cannot be used"),
        (["agent", "--check", "--ports", "1-x", "--virtual-gpus", "1"], "--ports 1-x is no range"),
        (["agent", "--check", "--ports", "9-10", "--virtual-gpus", "1"], "port range 9-10 cannot be used"),
        (["agent", "--check", "--label", "rack", "--virtual-gpus", "1"], "--label rack has no value"),
        (["scheduler", "--host", "0.0.0.0"], "it demands a token and TLS. Give --tokens and --tls-cert and --tls-key"),
        (["scheduler", "--metrics-port", "0", "--metrics-host", "::"], "metrics may not be served on :: like this"),
        (["scheduler", "--port", "7", "--metrics-port", "7"], "port 7 is the scheduler's own. Give another"),
        (["scheduler", "--policy", "best"], "unknown policy 'best'. Use one of"),
        (["scheduler", "--policy-option", "x=y"], "--policy-option x=y has no number"),
        (["scheduler", "--policy-option", "x=1"], "has no option 'x'"),
        (["scheduler", "--tokens", "gone.yaml"], "tokens file gone.yaml cannot be read"),
        (["scheduler", "--tls-cert", "c.pem"], "TLS needs both files"),
        (["scheduler", "--node-grace", "1"], "the node grace is too short"),
    ],
)
def test_settings_that_cannot_work_are_refused(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 4
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err


def test_the_scheduler_takes_its_options_from_the_environment_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARENA_SCHEDULER_HOST", "0.0.0.0")
    assert run(["scheduler"]) == 4
    assert "may not listen on 0.0.0.0" in capsys.readouterr().err


def test_helps_warn_of_what_nobody_would_expect(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(MAY_STARVE) < set(policy_names())
    for command, said in (
        (["scheduler"], "under arena-greedy, srtf and tiresias a large job may starve"),
        (["up"], "under arena-greedy, srtf and tiresias a large job may starve"),
        (["agent"], "jobs cannot ask for one"),
    ):
        assert run([*command, "--help"]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
