"""Three jobs share four virtual GPUs: the first changes its plan while it trains, and all finish.

Everything printed and drawn comes from ``arena events --json`` of a real scheduler, real agents and real workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import matplotlib as mpl
import numpy as np

from arena.cli.output import Output, ReaderGoneError
from arena.cli.quoting import escaped

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).resolve().parent
ARENA = Path(sys.executable).with_name("arena")
QUIET_KINDS = frozenset({"checkpoint_saved", "grid_built", "decision", "node_state", "scheduler_started"})
OTHERS = ("second", "third")
MEAN_STEPS = 10
PARTS = ("stop_s", "place_s", "launch_s", "load_s", "first_step_s")
JOB_COLUMN = 10
"""Where the job's name stands in the line of an entry, and where a long one goes on."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BROKEN_PIPE = 128 + signal.SIGPIPE
Entry = Mapping[str, Any]


class StoppedError(BaseException):
    """A signal ends the demo; its number is the argument.

    No ``Exception``, as ``KeyboardInterrupt`` is none.
    """


def end_at_signals() -> None:
    """Have Ctrl-C, TERM and the end of the terminal end the demo with all that it started."""

    def stop(number: int, frame: object) -> NoReturn:
        with suppress(OSError):  # the terminal may be what went away
            os.write(2, f"\n{signal.Signals(number).name}: ending the cluster and its jobs\n".encode())
        raise StoppedError(number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup is to be kept
            signal.signal(number, stop)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let what must not be left half done be done: signals that would end it are delivered afterwards."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A scheduler and its agents, as ``arena up`` made them."""

    directory: Path
    environment: Mapping[str, str]

    def arena(self, *words: str) -> Any:
        """Run one command of the CLI and return the JSON it prints."""
        done = arena_done(["--json", *words], self.environment)
        if done.returncode:
            raise SystemExit(f"arena {' '.join(words)} failed: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def follow(self) -> Generator[Entry, None, None]:
        """Yield history entries as they appear."""
        argv = [str(ARENA), "--json", "events", "--follow"]
        with subprocess.Popen(
            argv, env=self.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as events:
            assert events.stdout is not None
            try:
                for line in events.stdout:
                    yield json.loads(line)
            finally:
                events.terminate()


def arena_done(words: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one command of the CLI to its end; a Ctrl-C reaches the demo alone, which ends what it started in order."""
    argv = [str(ARENA), *words]
    return subprocess.run(argv, env=environment, check=False, capture_output=True, text=True, start_new_session=True)


@contextmanager
def cluster_of(directory: Path, *, agents: int, gpus_per_agent: int) -> Iterator[Cluster]:
    """Start a scheduler and agents, and stop them at the end."""
    words = ["--port", "0", "--agents", str(agents), "--gpus-per-agent", str(gpus_per_agent)]
    try:
        with signals_held_back():  # what is half started cannot be found to be ended
            done = arena_done(["up", "--detach", "--dir", str(directory), *words], os.environ)
        if done.returncode:
            raise SystemExit(f"arena up failed: {done.stdout}{done.stderr}")
        address = (directory / "address").read_text(encoding="utf-8").strip()
        yield Cluster(directory=directory, environment={**os.environ, "ARENA_SCHEDULER": address})
    finally:
        with signals_held_back():
            arena_done(["down", "--dir", str(directory)], os.environ)


def play(cluster: Cluster, out: Output, *, others_at_step: int) -> list[Entry]:
    """Submit the first job, the others once it has come far enough, and return all entries of all three."""
    names = {cluster.arena("submit", str(HERE / "first.yaml"))["job_id"]: "first"}
    entries: list[Entry] = []
    began_at_s: float | None = None
    open_jobs = set(names)
    with closing(cluster.follow()) as history:
        for entry in history:
            job_id = entry["job_id"]
            if job_id not in names:
                continue
            entries.append(entry)
            began_at_s = entry["at_s"] if began_at_s is None else began_at_s
            if entry["kind"] not in QUIET_KINDS and worth_a_line(entry):
                show(out, entry, names[job_id], began_at_s)
            if len(names) == 1 and entry["kind"] == "job_progress" and entry["data"]["step"] >= others_at_step:
                others = {cluster.arena("submit", str(HERE / f"{name}.yaml"))["job_id"]: name for name in OTHERS}
                names |= others
                open_jobs |= set(others)
            if entry["kind"] == "job_state" and entry["data"]["after"] in {"succeeded", "failed", "cancelled"}:
                open_jobs.discard(job_id)
                if not open_jobs:
                    break
    failed = [entry["message"] for entry in entries if entry["data"].get("after") in {"failed", "cancelled"}]
    if failed:
        raise SystemExit(f"a job did not finish: {'; '.join(failed)}")
    return [{**entry, "job": names[entry["job_id"]]} for entry in entries]


def worth_a_line(entry: Entry) -> bool:
    """Tell whether an entry is shown; of progress, about one in ten."""
    return bool(entry["kind"] != "job_progress" or entry["index"] % 10 == 0)


def show(out: Output, entry: Entry, job: str, began_at_s: float) -> None:
    """Write an entry as one line, or on a narrow terminal as few."""
    head = f"{entry['at_s'] - began_at_s:6.1f} s  {job:6}  {entry['kind']:22}"
    out.sentence(f"{head}  {escaped(entry['message'])}", hanging=JOB_COLUMN)


def show_changes(out: Output, entries: list[Entry]) -> None:
    """Write every plan change with the parts of its cost."""
    parts = [part.removesuffix("_s").upper() for part in PARTS]
    rows = []
    for entry in entries:
        if entry["kind"] == "plan_changed":
            data = entry["data"]
            costs = [f"{data[part]:.2f}" for part in (*PARTS, "cost_s")]
            change = f"{data['from_group']} {data['from_plan']} -> {data['to_group']} {data['to_plan']}"
            rows.append([entry["job"], str(data["step"]), *costs, change, data["why"]])
    numbers = ["STEP", *parts, "TOTAL"]
    out.line()
    out.sentence("PLAN CHANGES, and the seconds that each part of them took", style="bold")
    out.table(["JOB", *numbers, "CHANGE", "WHY"], rows, right=numbers)


def draw(entries: list[Entry], path: Path) -> None:
    """Draw the loss of the jobs over their steps (each step pale, running mean bold), plan changes marked."""
    figure, axes = plt.subplots(figsize=(10, 5.5), layout="constrained")
    for job, colour in (("first", "tab:blue"), ("second", "tab:orange"), ("third", "tab:green")):
        progress = [entry["data"] for entry in entries if entry["job"] == job and entry["kind"] == "job_progress"]
        steps = np.array([step for data in progress for step in data["steps"]])
        losses = np.array([loss for data in progress for loss in data["losses"]])
        axes.plot(steps, losses, color=colour, linewidth=0.8, alpha=0.35)
        label = f"{job}: {losses[0]:.2f} to {losses[-MEAN_STEPS:].mean():.2f} nats"
        axes.plot(steps[MEAN_STEPS - 1 :], running_mean(losses), color=colour, linewidth=2, label=label)
    changes = [entry["data"] for entry in entries if entry["kind"] == "plan_changed"]
    for index, data in enumerate(changes):
        axes.axvline(data["step"], color="grey", linestyle="--", linewidth=1)
        text = f"step {data['step']}: {data['from_plan']}\n→ {data['to_plan']} ({data['cost_s']:.1f} s)"
        height = 0.97 - 0.12 * (index % 4)
        axes.text(data["step"], height, f" {text}", transform=axes.get_xaxis_transform(), va="top", fontsize=9)
    axes.set(xlabel="optimizer step", ylabel="training loss (nats per byte)", title="Training loss across plan changes")
    axes.legend(loc="center right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def running_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of each ``MEAN_STEPS`` neighbours."""
    return np.convolve(values, np.ones(MEAN_STEPS) / MEAN_STEPS, mode="valid")


def run(out: Output, *, others_at_step: int, keep: bool) -> list[Entry]:
    """Play on a cluster of its own, of which nothing is left, and return all entries."""
    directory = Path(tempfile.mkdtemp(prefix="arena-demo-"))
    try:
        with cluster_of(directory, agents=2, gpus_per_agent=2) as cluster:
            return play(cluster, out, others_at_step=others_at_step)
    finally:
        if keep:
            out.line(f"files in {directory}")
        else:
            with signals_held_back():
                shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="where the picture goes")
    parser.add_argument("--others-at-step", type=int, default=60, help="step of the first job at which the others come")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's files")
    arguments = parser.parse_args()
    out = Output(json_mode=False)
    end_at_signals()
    try:
        entries = run(out, others_at_step=arguments.others_at_step, keep=arguments.keep)
        if not any(entry["kind"] == "plan_changed" for entry in entries):
            raise SystemExit("no plan changed; that is not the demo")
        show_changes(out, entries)
        arguments.out.mkdir(parents=True, exist_ok=True)
        picture = arguments.out / "loss.png"
        draw(entries, picture)
        out.line(f"loss curve: {picture}")
    except StoppedError as stopped:
        return 128 + int(stopped.args[0])
    except ReaderGoneError:
        # Keep the interpreter from complaining at its exit that it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
