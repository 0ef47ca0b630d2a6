"""The parts of an agent go on when something fails in them: without its agent a node is lost, and its jobs with it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from arena.domain.launch import DeviceId, NodeId
from arena.errors import UserError
from arena_agent import agent as agent_module
from arena_agent import link as link_module
from arena_agent import warm as warm_module
from arena_agent.agent import Agent
from arena_agent.config import AgentConfig
from arena_agent.devices import Inventory, VirtualDevices
from arena_agent.files import StateFiles
from arena_agent.journal import Journal
from arena_agent.link import Link
from arena_agent.machine import AgentState, LaunchAsked, StopAsked, SupervisorUp
from arena_agent.notice import NoticeFile
from arena_agent.procfs import ProcessIdentity, process_entry
from arena_agent.shares import ShareKeeper
from arena_agent.warm import WarmLauncher
from tests.builders import node_info
from tests.fakes.agent_process import command_launch

LIMIT_S = 30.0
FAULTS = (OSError(errno.EMFILE, "Too many open files"), BlockingIOError(errno.EAGAIN, "fork"), ValueError("no number"))


class Faulty:
    """A call that fails so many times before it works."""

    def __init__(self, call: Callable[..., Any], error: Exception, times: int) -> None:
        self.call, self.error, self.times_left, self.count = call, error, times, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        if self.times_left > 0:
            self.times_left -= 1
            raise self.error
        return self.call(*args, **kwargs)


class Devices(VirtualDevices):
    """Two virtual GPUs that can be looked at through ``look``."""

    look: Callable[[Collection[DeviceId]], Inventory] | None = None

    def inventory(self, held: Collection[DeviceId]) -> Inventory:
        return self.look(held) if self.look is not None else super().inventory(held)


def agent_in(directory: Path) -> tuple[Agent, Devices, ShareKeeper, NoticeFile]:
    files = StateFiles(directory=directory)
    files.attempts.mkdir()
    files.device_locks.mkdir()
    journal = Journal(files.journal, wall_s=lambda: 1.0, boot_s=lambda: 1.0)
    journal.open()
    devices = Devices(NodeId("n1"), 2, "cpu", files)
    keeper = ShareKeeper(NodeId("n1"), files, 15.0)
    notice = NoticeFile(files.notice, files.notice_dismissed, boot_s=lambda: 1.0, wall_s=lambda: 1.0)
    unused: Any = None
    agent = Agent(
        info=node_info("n1"),
        state=AgentState(node_id=NodeId("n1")),
        files=files,
        journal=journal,
        devices=devices,
        starter=unused,
        keeper=keeper,
        logs_kept_max=1,
        notice=notice,
    )
    return agent, devices, keeper, notice


@asynccontextmanager
async def running(part: Awaitable[None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a part; fail if it ended by itself."""
    task = asyncio.ensure_future(part)
    try:
        yield task
        assert not task.done() or task.exception() is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            assert not task.done() or task.exception() is None, task.exception()
            await asyncio.sleep(0.001)


def logged(caplog: pytest.LogCaptureFixture, error: Exception) -> int:
    """Return how often an error was logged with where it came from."""
    return sum(1 for record in caplog.records if record.exc_info is not None and record.exc_info[1] is error)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_DEVICE_CHECK_S", "_NOTICE_CHECK_S", "_RETRY_S"):
        monkeypatch.setattr(agent_module, name, 0.001)
    monkeypatch.setattr(warm_module, "_RESTART_PAUSES_S", (0.001,))


@pytest.mark.parametrize("error", FAULTS, ids=repr)
async def test_the_looks_at_devices_and_notice_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    agent, devices, _, notice = agent_in(tmp_path)
    devices.look = look = Faulty(VirtualDevices.inventory.__get__(devices), error, 3)
    word = Faulty(notice.in_force, error, 3)
    monkeypatch.setattr(notice, "in_force", word)
    async with running(agent.watch_devices()) as task:
        await until(lambda: look.count > 4, task)
    assert logged(caplog, error) == 3
    async with running(agent.watch_notice()) as task:
        await until(lambda: word.count > 4, task)
    assert logged(caplog, error) == 6


@pytest.mark.parametrize("error", FAULTS, ids=repr)
async def test_strays_are_cleared_away_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    agent, devices, keeper, _ = agent_in(tmp_path)
    clear = Faulty(keeper.clear_stray, error, 2)
    monkeypatch.setattr(keeper, "clear_stray", clear)
    devices.look = Faulty(VirtualDevices.inventory.__get__(devices), error, 1)
    agent.mark_strays(["old.1"])
    async with asyncio.timeout(LIMIT_S):
        await agent.clean(["old.1"])
    assert clear.count == 3
    assert logged(caplog, error) == 3
    assert agent.registration().info.problem is None


@pytest.mark.parametrize("error", FAULTS, ids=repr)
async def test_a_stop_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    agent, _, keeper, _ = agent_in(tmp_path)
    monkeypatch.setattr(agent, "_run_share", lambda _: asyncio.sleep(LIMIT_S))  # nothing is started
    stopped: list[str] = []

    async def stop(share: Any, mode: str, _grace_s: float) -> None:
        stopped.append(f"{share.attempt_id} {mode}")

    monkeypatch.setattr(keeper, "stop", Faulty(stop, error, 2))
    launch = command_launch("x", master_port=20_000)
    agent.take(LaunchAsked(launch=launch))
    agent.take(SupervisorUp(attempt_id=launch.attempt_id, supervisor=ProcessIdentity(pid=1, start_ticks=1)))
    agent.take(StopAsked(attempt_id=launch.attempt_id, mode="kill", grace_s=0.0))
    async with asyncio.timeout(LIMIT_S):
        while not stopped:
            await asyncio.sleep(0.001)
    assert stopped == ["j.1 kill"]
    assert logged(caplog, error) == 2
    await agent.close()


@pytest.mark.parametrize("error", FAULTS, ids=repr)
@pytest.mark.parametrize("step", ["socketpair", "log", "Popen"])
async def test_a_warm_launcher_is_started_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    warm = WarmLauncher(("sleep", "600"), os.environ, tmp_path / "launcher.log")
    started: list[int] = []

    def popen(*args: Any, **kwargs: Any) -> Any:
        process = subprocess.Popen(*args, **kwargs)
        started.append(process.pid)
        return process

    class Subprocess:
        Popen = Faulty(popen, error, 2 if step == "Popen" else 0)

    monkeypatch.setattr(warm_module, "subprocess", Subprocess)
    if step == "socketpair":
        monkeypatch.setattr(warm_module.socket, "socketpair", Faulty(warm_module.socket.socketpair, error, 2))
    if step == "log":
        real = Path.open

        def opened(path: Path, *args: Any, **kwargs: Any) -> Any:
            return faulty(path, *args, **kwargs) if path.name == "launcher.log" else real(path, *args, **kwargs)

        faulty = Faulty(real, error, 2)
        monkeypatch.setattr(Path, "open", opened)
    async with running(warm.run()) as task:
        await until(lambda: bool(started), task)
    assert logged(caplog, error) == 2
    assert process_entry(started[0]) is None


async def test_pauses_grow_while_no_launcher_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure, of whatever kind, is followed by a pause that is no shorter than the one before it."""
    monkeypatch.setattr(warm_module, "_RESTART_PAUSES_S", (1.0, 2.0, 3.0, 4.0))
    pauses_s: list[float] = []

    async def pause(wait_s: float) -> None:
        pauses_s.append(wait_s)
        if len(pauses_s) == 6:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", pause)
    monkeypatch.setattr(warm_module.socket, "socketpair", Faulty(None, FAULTS[0], 100))
    warm = WarmLauncher(("false",), {}, tmp_path / "launcher.log")
    with pytest.raises(asyncio.CancelledError):
        await warm.run()
    assert pauses_s == [2.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    assert not await warm.wait_ready(1e9)


@pytest.mark.parametrize("part", ["watch_devices", "watch_notice"])
async def test_a_look_that_fails_is_followed_by_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    agent, devices, _, notice = agent_in(tmp_path)
    for name in ("_DEVICE_CHECK_S", "_NOTICE_CHECK_S"):
        monkeypatch.setattr(agent_module, name, 3600.0)
    devices.look = look = Faulty(None, FAULTS[0], 1000)  # type: ignore[arg-type]
    monkeypatch.setattr(notice, "in_force", look)
    async with running(getattr(agent, part)()):
        for _ in range(100):
            await asyncio.sleep(0)
    assert look.count == 1


async def test_a_certificate_that_cannot_be_read_any_more_does_not_end_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read anew for every stream, since it may be renewed; one that was never there is the user's error."""
    monkeypatch.setattr(link_module, "_BACKOFF_S_MIN", 0.001)
    monkeypatch.setattr(link_module, "_BACKOFF_S_MAX", 0.001)
    authority = tmp_path / "ca.pem"
    config = AgentConfig(node_id="n1", scheduler="127.0.0.1:9", state_dir=tmp_path, tls_ca=authority)
    agent, _, _, _ = agent_in(tmp_path)
    with pytest.raises(UserError, match=r"ca\.pem"):
        await Link(config, agent).run()
    authority.write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        async with running(Link(config, agent).run()) as task:
            await until(lambda: "no session with the scheduler" in caplog.text, task)
            authority.unlink()
            await until(lambda: "ca.pem cannot be read" in caplog.text, task)
