"""The processes of ``arena up``: started, watched, and ended without leftovers."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arena.cli.children import Child, death, end, ended_text, started
from arena.cli.ports import PortRange, usual_port
from arena.cli.settings import user_name
from arena.cli.up_files import UpFiles
from arena.cli.up_jobs import POLL_S, hold_all, release_held, wait_until_served
from arena.cli.up_orphans import SCHEDULER, end_orphans, kill_ranks, orphans
from arena.client import ArenaClient, ClientSettings
from arena.errors import ArenaError, UnavailableError
from arena.units import format_count

START_LIMIT_S = 60.0
RESTARTS_MAX = 5
"""How often in a row the scheduler, and each agent, is started again where it has ended by itself."""
RESTART_S = 3.0
"""What a restart costs on virtual GPUs: 2.1 to 3.0 s measured on 2 cores."""
NODE_GRACE_S = 15.0
"""Absence of an agent after which its jobs are started elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """What to start.

    Args:
        directory: Holds everything: database, checkpoints, results, logs, the agents' directories.
        port: Of the scheduler; 0 takes a free one, None the usual one where that is free.
        policy_options: Of the policy, each ``NAME=NUMBER``.
        tenants: File of guaranteed shares.
        metrics_port: Where the scheduler serves metrics, None where it does not.
    """

    directory: Path
    agents: int
    gpus_per_agent: int
    gpu_type: str
    policy: str
    port: int | None
    policy_options: tuple[str, ...] = ()
    tenants: Path | None = None
    metrics_port: int | None = None

    @property
    def files(self) -> UpFiles:
        """Names of the files that it writes."""
        return UpFiles(directory=self.directory)

    def policy_words(self) -> list[object]:
        """Return the words of a command line that choose the policy and what it keeps to."""
        options = [word for item in self.policy_options for word in ("--policy-option", item)]
        return ["--policy", self.policy, *options, *(["--tenants", self.tenants] if self.tenants else [])]

    def metrics_words(self) -> list[object]:
        """Return the words of a command line that have metrics served."""
        return [] if self.metrics_port is None else ["--metrics-port", self.metrics_port]

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are, None where there are none."""
        return None if self.metrics_port is None else f"http://127.0.0.1:{self.metrics_port}/metrics"

    def scheduler_argv(self, port: int) -> list[str]:
        """Return the command of the scheduler."""
        words: list[object] = ["scheduler", "--host", "127.0.0.1", "--port", port, *self.policy_words()]
        words += ["--restart", RESTART_S, "--node-grace", NODE_GRACE_S, *self.metrics_words()]
        words += ["--db", self.files.database, "--address-file", self.files.address]
        words += ["--checkpoint-root", self.directory / "checkpoints", "--output-root", self.directory / "output"]
        return arena_argv(words)

    def agent_argv(self, index: int, address: str, ports: PortRange) -> list[str]:
        """Return the command of an agent; each has ports of its own, since all share this host."""
        words: list[object] = ["agent", "--node-id", f"node-{index + 1}", "--scheduler", address]
        words += ["--virtual-gpus", self.gpus_per_agent, "--gpu-type", self.gpu_type, "--address", "127.0.0.1"]
        words += ["--ports", ports.part(index, self.agents), "--place", self.directory / "checkpoints"]
        return arena_argv([*words, "--state-dir", self.files.agent(index)])


def arena_argv(words: Sequence[object]) -> list[str]:
    """Return the command line of another process of this program."""
    return [sys.executable, "-m", "arena.cli.main", *map(str, words)]


@dataclass(slots=True)
class LocalCluster:
    """The processes of one ``arena up``.

    Args:
        ports: On which the agents' ranks meet.
        tell: Told how far a start is: seconds go by without anything else to see.
    """

    plan: UpPlan
    ports: PortRange
    address: str = ""
    children: list[Child] = field(default_factory=list)
    tell: Callable[[str], None] = lambda _: None

    def take_over(self) -> str:
        """End what an ``arena up`` that was killed left running here, and say what that was; the jobs go on.

        Agents that are started again go on with their ranks; those of agents that are not end here.
        """
        left = orphans(self.plan.files)
        end_orphans(left)
        kept = {self.plan.files.agent(index) for index in range(self.plan.agents)}
        kill_ranks([directory for directory in self.plan.files.agents() if directory not in kept])
        named = ", ".join(orphan.name for orphan in left)
        return f"ended {named}, left by an `arena up` that was killed; they start again, jobs go on" if left else ""

    def start(self, stopping: threading.Event) -> None:
        """Start the scheduler, then the agents, and wait until all nodes are registered."""
        plan = self.plan
        self.tell("starting the scheduler ...")
        plan.files.address.unlink(missing_ok=True)
        port = plan.port if plan.port is not None else usual_port() or 0
        scheduler = self._start(SCHEDULER, plan.scheduler_argv(port))
        self._wait_for(plan.files.address.exists, "the scheduler to serve", stopping)
        if stopping.is_set():
            return
        self.address = plan.files.address.read_text().strip()
        scheduler.argv = plan.scheduler_argv(int(self.address.rpartition(":")[2]))  # the same one, whenever it restarts
        for index in range(plan.agents):
            self._start(f"node-{index + 1}", plan.agent_argv(index, self.address, self.ports))
        with self.client() as client:
            arrivals = _Arrivals(client, plan.agents, self.tell)
            self._wait_for(arrivals.are_complete, "the agents to register", stopping)
            release_held(client, plan.files.held)

    def client(self) -> ArenaClient:
        """Return a client of this cluster's scheduler, as its own user."""
        return ArenaClient(ClientSettings(address=self.address, user=user_name()))

    def mend(self) -> Iterator[str]:
        """Start again what has ended by itself, and yield what becomes of each, in words.

        The first time that is at once, later it waits longer and longer. An agent that ends time and again is left
        out with what still runs of its jobs, as the scheduler starts those elsewhere; the rest goes on.

        Raises:
            InternalError: The scheduler ends time and again.
        """
        for child in self._ended():
            child.forgive()
            if child.restarts >= RESTARTS_MAX:
                if child.name == SCHEDULER:
                    raise death(child, f"after {RESTARTS_MAX} restarts")
                child.is_left_out = True
                kill_ranks([self.plan.directory / child.name])
                yield f"{ended_text(child)}; left out after {RESTARTS_MAX} restarts, the rest goes on; see {child.log}"
                continue
            if child.due_at_s is None:
                wait_s = _pause_s(child.restarts)
                child.due_at_s = time.monotonic() + wait_s
                yield f"{ended_text(child)}; {_restart_text(child, wait_s)}"
            if time.monotonic() >= child.due_at_s:
                child.start_again()

    def _ended(self) -> list[Child]:
        return [child for child in self.children if not child.is_left_out and child.process.poll() is not None]

    def stop(self, stopping: threading.Event) -> None:
        """Hold the jobs, then end agents and scheduler, and whatever their jobs left behind."""
        stopping.set()
        try:
            if self.address:
                self._hold_jobs()
        except (ArenaError, OSError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted"
            sys.stderr.write(f"warning: jobs were not saved, they go on from their last checkpoints: {why}\n")
        finally:
            # What follows is bounded and must not be cut short: it would leave processes behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            agents = [child for child in self.children if child.name != SCHEDULER]
            end(agents)
            kill_ranks([self.plan.directory / child.name for child in agents])
            end([child for child in self.children if child.name == SCHEDULER])

    def _hold_jobs(self) -> None:
        """Hold the jobs; who waits for a restart gets it now, as jobs can be saved by nobody else.

        Raises:
            ArenaError: The scheduler does not serve, or not all are held in time.
        """
        for child in self._ended():
            child.forgive()
        self._check_scheduler(RESTARTS_MAX)
        for child in self._ended():
            if child.restarts < RESTARTS_MAX:
                sys.stderr.write(f"{ended_text(child)}; started again, so that jobs are saved\n")
                child.start_again()
        with self.client() as client:
            wait_until_served(client, self._check_scheduler)
            hold_all(client, self.plan.files.held)

    def _check_scheduler(self, restarts_min: int = 0) -> None:
        """Raise what the scheduler ended of, if it has and was started again so often."""
        for child in self._ended():
            if child.name == SCHEDULER and child.restarts >= restarts_min:
                raise death(child)

    def _start(self, name: str, argv: Sequence[str]) -> Child:
        child = started(name, argv, self.plan.directory / f"{name}.log")
        self.children.append(child)
        return child

    def _wait_for(self, condition: Callable[[], bool], what: str, stopping: threading.Event) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not stopping.is_set() and not condition():
            for child in self._ended():
                raise death(child)
            if time.monotonic() > deadline_s:
                raise UnavailableError(f"gave up waiting for {what}", fix=f"see the logs in {self.plan.directory}")
            stopping.wait(POLL_S)


def _pause_s(restarts: int) -> float:
    return 2.0**restarts - 1.0


def _restart_text(child: Child, wait_s: float) -> str:
    """Return which restart comes and when; that jobs go on only where its node is back within its grace.

    An agent that dies again and again may not have been back since its first death. Without a scheduler jobs go on
    for as long as it takes.
    """
    away_s = sum(_pause_s(restarts) + RESTART_S for restarts in range(child.restarts + 1))
    promise = ", jobs go on" if child.name == SCHEDULER or away_s < NODE_GRACE_S else ""
    when = f" in {wait_s:.0f} s" if wait_s else ""
    return f"restart {child.restarts + 1} of at most {RESTARTS_MAX}{when}{promise}"


@dataclass(slots=True)
class _Arrivals:
    """Counts the nodes whose agents are here, and tells each new count."""

    client: ArenaClient
    wanted_count: int
    tell: Callable[[str], None]
    told_count: int = -1

    def are_complete(self) -> bool:
        """Return whether all are here, whatever state they were left in (drained, quarantined)."""
        count = sum(node.connected for node in self.client.nodes())
        if count != self.told_count:
            self.told_count = count
            self.tell(f"{count} of {format_count(self.wanted_count, 'agent')} here")
        return count >= self.wanted_count
