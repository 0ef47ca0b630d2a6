"""Three jobs share four virtual GPUs: the first changes its plan while it trains, and all finish.

Everything printed and drawn comes from ``arena events --json`` of a real scheduler, real agents and real workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from arena.cli.output import Output
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
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A scheduler and its agents, as ``arena up`` made them."""

    directory: Path
    environment: Mapping[str, str]

    def arena(self, *words: str) -> Any:
        """Run one command of the CLI and return the JSON it prints."""
        done = subprocess.run(
            [str(ARENA), "--json", *words], env=self.environment, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"arena {' '.join(words)} failed: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def follow(self) -> Iterator[Entry]:
        """Yield history entries as they appear."""
        argv = [str(ARENA), "--json", "events", "--follow"]
        with subprocess.Popen(argv, env=self.environment, stdout=subprocess.PIPE, text=True) as events:
            assert events.stdout is not None
            try:
                for line in events.stdout:
                    yield json.loads(line)
            finally:
                events.terminate()


@contextmanager
def cluster_of(directory: Path, *, agents: int, gpus_per_agent: int) -> Iterator[Cluster]:
    """Start a scheduler and agents, and stop them at the end."""
    argv = [str(ARENA), "up", "--detach", "--port", "0", "--dir", str(directory)]
    argv += ["--agents", str(agents), "--gpus-per-agent", str(gpus_per_agent)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"arena up failed: {done.stdout}{done.stderr}")
    address = (directory / "address").read_text(encoding="utf-8").strip()
    try:
        yield Cluster(directory=directory, environment={**os.environ, "ARENA_SCHEDULER": address})
    finally:
        subprocess.run([str(ARENA), "down", "--dir", str(directory)], check=False, capture_output=True)


def play(cluster: Cluster, out: Output, *, others_at_step: int) -> list[Entry]:
    """Submit the first job, the others once it has come far enough, and return all entries of all three."""
    names = {cluster.arena("submit", str(HERE / "first.yaml"))["job_id"]: "first"}
    entries: list[Entry] = []
    began_at_s: float | None = None
    open_jobs = set(names)
    for entry in cluster.follow():
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


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="where the picture goes")
    parser.add_argument("--others-at-step", type=int, default=60, help="step of the first job at which the others come")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's files")
    arguments = parser.parse_args()
    out = Output(json_mode=False)
    directory = Path(tempfile.mkdtemp(prefix="arena-demo-"))
    try:
        with cluster_of(directory, agents=2, gpus_per_agent=2) as cluster:
            entries = play(cluster, out, others_at_step=arguments.others_at_step)
    finally:
        if arguments.keep:
            out.line(f"files in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if not any(entry["kind"] == "plan_changed" for entry in entries):
        raise SystemExit("no plan changed; that is not the demo")
    show_changes(out, entries)
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "loss.png"
    draw(entries, picture)
    out.line(f"loss curve: {picture}")


if __name__ == "__main__":
    main()
