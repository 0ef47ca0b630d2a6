"""What every command that writes tables looks like on a terminal of 80 columns: it fits, and tells what it omits."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arena.cli import timed_policy
from arena.cli.folding import column_widths, columns_that_fit, folded
from arena.cli.output import Output
from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId
from arena.domain.launch import AttemptId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import EntryKind, HistoryEntry
from arena.rpc.views import DecidedJob, DecisionView, TenantShare
from tests.builders import job_record, node_info, train_spec
from tests.fakes import cluster_of_views as canned
from tests.fakes.checkpoint_places import place_at, save
from tests.fakes.command_line import Arena, terminal_of
from tests.fakes.scheduler_server import FakeScheduler
from tests.trace_files import ITP_HEAD, table, written

COLUMNS = 80
JOB = """
name: pretrain
train:
  model: {family: gpt, layers: 24, hidden: 2048, heads: 16, vocab_size: 50304, seq_len: 2048}
  precision: bf16
  global_batch: 512
"""
NODES = "nodes: [{type: a100-80, count: 2, gpus: 8, zone: us-east-1a}, {type: t4, count: 2, gpus: 4, zone: us-east-1b}]"
_HOST = "gpu-{:02d}.cluster-7.example.org"


def _offers() -> list[Reason]:
    """What a job has, and what else it could be given."""
    names = ("gpu_count", "node_count", "steps_per_s", "usd_per_hour", "value", "price")
    numbers = ((32, 4, 12.75, 117.9648, 123456.789, 98765.4321), (16, 2, 6.4, 58.98, 61728.4, 49382.72))
    return [
        reason(code, group=group, **dict(zip(names, map(float, of_group), strict=True)))
        for code, group, of_group in zip(
            (ReasonCode.OUTBID, ReasonCode.NEXT_BEST), ("a100-80 8+8+8+8", "a100-80 8+8"), numbers, strict=True
        )
    ]


def _decision() -> DecisionView:
    moved = DecidedJob(
        job_id=JobId("7k2-1"),
        group=GpuGroup.of("a100-80", [8, 8, 8, 8]),
        plan=None,
        reasons=(reason(ReasonCode.GREW, before=16, after=32, speedup=1.8), *_offers()),
    )
    prices = {f"price a100-80/us-east-1{zone} by 8": 1234.5 + ord(zone) for zone in "abcdef"}
    return DecisionView(
        at_s=canned.NOW_S, numbers={"value": 123456.0, "gap": 0.0123, **prices}, jobs=(moved,), unchanged_count=1234
    )


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    """Serves the cluster of views, with jobs on many nodes of long names, and shares of many projects."""
    places = tuple((_HOST.format(index), tuple(range(8))) for index in range(4))
    wide = replace(
        canned.attempt("7k2-1", 2, places, canned.TRAINING.plan, stop_cause=reason(ReasonCode.OUTBID)),
        attempt_id=AttemptId("7k2-1.1000"),
        resumed_step=1_234_567,
        last_step=2_345_678,
        save_s=125.5,
    )
    tenants = tuple(
        TenantShare(project=f"speech-and-language-{index}", guaranteed={"a100-80": 16, "t4": 128}, used=1000 + index)
        for index in range(6)
    )
    with canned.served() as server:
        server.status = replace(server.status, tenants=tenants)
        server.attempts.append(wide)
        server.nodes += [
            replace(server.nodes[2], node_id=_HOST.format(index), info=node_info(_HOST.format(index), gpus=8))
            for index in range(4)
        ]
        server.explanation = _offers()
        server.decisions = [_decision()]
        server.add_job(job_record("7k2-9", train_spec("finetune-7b-seed-1234-of-the-second-sweep", project="speech")))
        server.append(
            HistoryEntry(
                index=1,
                at_s=canned.NOW_S,
                kind=EntryKind.PLAN_CHANGED,
                message="grew from 16 to 32 GPUs, 1.80x faster by its grid; saved in 12.5 s, ready in 31 s",
                job_id="7k2-1",
                attempt_id="7k2-1.1000",
            )
        )
        yield server


@pytest.fixture
def folder(asks_fake: None, tmp_path: Path) -> Path:
    """Where command lines run: a job file, a cluster, a trace, a place with checkpoints."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "cluster.yaml").write_text(NODES)
    (tmp_path / "tenants.yaml").write_text("projects: {speech-and-language: {gpus: {a100-80: 8}}}\n")
    rows = (f"job-{index},{3600 * index},{86400 + index},{2 ** (index % 4)},speech-and-language" for index in range(12))
    written(tmp_path / "trace.csv", table(f"{ITP_HEAD},project", *rows, "cpu,3700,5,0,", "half,3700,50,0.5,"))
    place = place_at(tmp_path / "j-1", epoch=4, keep=99)
    for step in (10, 1_234_567):
        save(place, step)
    (place.root / "step-00000040").mkdir()
    return tmp_path


class _StoppedClock:
    """How long decisions take is the same in two runs."""

    def perf_counter(self) -> float:
        return 0.0


REPLAY = ("replay", "trace.csv", "--cluster", "cluster.yaml", "--restart-s", 10)


@pytest.mark.parametrize(
    "argv",
    [
        ("status",),
        ("jobs",),
        ("job", "7k2-1"),
        ("job", "7k2-2"),
        ("nodes",),
        ("nodes", "--devices"),
        ("why", "7k2-1"),
        ("why", "big"),
        ("decisions",),
        ("events",),
        ("ckpt", "list", "j-1"),
        ("ckpt", "verify", "j-1"),
        ("trace", "check", "trace.csv"),
        ("trace", "stats", "trace.csv", "--gpus", 24),
        ("plan", "job.yaml", "--cluster", "cluster.yaml", "--details"),
        ("plan", "job.yaml", "--cluster", "cluster.yaml", "--explain", "dp2 tp4 pp2 mb4 zero1"),
        (*REPLAY, "--policy", "fcfs,tiresias,arena", "--tenants", "tenants.yaml"),
        (*REPLAY, "--policy", "fcfs,elastic,srtf", "--seeds", 2, "--lengths", "predicted"),
    ],
    ids=lambda argv: " ".join(map(str, argv)),
)
def test_eighty_columns_hold_it_and_every_number_of_it_but_of_columns_that_are_named_as_left_out(
    arena: Arena, folder: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[object, ...]
) -> None:
    monkeypatch.setattr(timed_policy, "time", _StoppedClock())
    tables = _tables_written(monkeypatch)
    piped = arena(*argv)
    assert piped.out, piped.err
    written_tables = list(tables)
    terminal = terminal_of(COLUMNS, monkeypatch)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert arena(*argv).code == piped.code
    too_wide = [line for line in terminal.lines if len(line) > COLUMNS and " " in line.strip()]
    assert not too_wide, "\n".join(too_wide)
    lost = Counter(_numbers(piped.out)) - Counter(_numbers("\n".join(terminal.lines)))
    left_out = _left_out(terminal.lines)
    for columns, rows in written_tables:
        cells = [cell for row in rows for column, cell in zip(columns, row, strict=True) if column in left_out]
        lost -= Counter(_numbers(" ".join([*cells, *left_out.intersection(columns)])))
    assert not lost, "\n".join(terminal.lines)


def _tables_written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Return a list that gets the columns and rows of every table that is written from now on."""
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = []
    write = Output.table

    def table(out: Output, columns: Sequence[str], rows: Sequence[Sequence[str]], **how: Any) -> None:
        tables.append((columns, rows))
        write(out, columns, rows, **how)

    monkeypatch.setattr(Output, "table", table)
    return tables


def _left_out(lines: Sequence[str]) -> set[str]:
    """Return the headings that a terminal names as left out."""
    found = re.findall(r"left out: ([A-Z/ ,]*) \(", " ".join(line.strip() for line in lines))
    return {name for names in found for name in names.split(", ")}


@pytest.fixture
def plain_folder(folder: Path, fake: FakeScheduler) -> Path:
    """The same with a cluster as most are: short names, and few nodes."""
    jobs = (canned.training_job(), canned.command_job())
    named = [
        replace(job, user="ann", spec=job.spec.model_copy(update={"name": name}))
        for job, name in zip(jobs, ("gpt-long", "evaluate"), strict=True)
    ]
    attempts = (canned.TRAINING, canned.COMMAND)
    active = [
        replace(view, name=job.spec.name, user="ann")
        for view, job in zip(canned.status().active_jobs, named, strict=True)
    ]
    fake.status = replace(canned.status(), active_jobs=tuple(active))
    fake.jobs = {job.job_id: job for job in (*canned.waiting_jobs(), *named)}
    fake.attempts = [canned.BEFORE, *attempts]
    fake.nodes = canned.nodes()
    return folder


@pytest.mark.parametrize(
    ("argv", "shown", "left_out"),
    [
        (("status",), ("NAME", "STATE", "GROUP", "PLAN", "STEP", "WHY"), {"RESTARTS", "CHECKPOINT"}),
        (("jobs",), ("JOB", "NAME", "USER", "STATE", "GROUP", "STEP", "RUN TIME"), {"PROJECT", "PLAN", "SUBMITTED"}),
        (("job", "7k2-1"), ("ATTEMPT", "STATE", "GROUP", "STEPS", "WHY"), {"LAUNCHED", "SAVE"}),
        (("nodes",), ("NODE", "STATE", "TYPE", "GPUS", "USED", "WHY"), {"ADDRESS", "SKEW"}),
        (("ckpt", "list", "j-1"), ("STEP", "COMPLETED", "SIZE", "PLAN", "STATE"), set()),
        (("plan", "job.yaml", "--cluster", "cluster.yaml"), ("GROUP", "PLAN", "STEP", "TOKENS/S"), set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_ordinary_tables_are_tables_on_eighty_columns(
    arena: Arena,
    plain_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: tuple[str, ...],
    shown: tuple[str, ...],
    left_out: set[str],
) -> None:
    tables = _tables_written(monkeypatch)
    terminal = terminal_of(COLUMNS, monkeypatch)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert arena(*argv).code == 0
    text = "\n".join(terminal.lines)
    assert set(shown) & _left_out(terminal.lines) == set(), text
    assert left_out <= _left_out(terminal.lines), text
    for columns, rows in tables:
        kept = [index for index, column in enumerate(columns) if column not in _left_out(terminal.lines)]
        heads = [" ".join(" ".join(columns[index] for index in some).split()) for some in (kept, range(len(columns)))]
        assert any(" ".join(line.split()) in heads for line in terminal.lines), text
        for row in rows:
            whole = [row[index] for index in kept if not _is_long(row[index])]
            assert any(all(cell in line for cell in whole) for line in terminal.lines), (row, text)


def _is_long(text: str) -> bool:
    """Return whether a text is a sentence, or a plan with much said of it, which may fold in its column."""
    return len(text) > len("dp2 tp4 pp1 mb4 zero1")


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (34, ["JOB", "USER", "GROUP", "PLAN", "WHY"]),
        (33, ["JOB", "GROUP", "PLAN", "WHY"]),
        (28, ["JOB", "GROUP", "PLAN", "WHY"]),
        (27, ["JOB", "GROUP", "WHY"]),
        (19, ["JOB", "GROUP", "WHY"]),
        (18, ["JOB", "WHY"]),
        (11, ["JOB", "WHY"]),
        (10, []),
    ],
)
def test_what_matters_least_is_left_out_first_and_never_what_matters_most(width: int, kept: list[str]) -> None:
    columns = ["JOB", "USER", "GROUP", "PLAN", "WHY"]
    rows = [["7k2-1", "anna", "a100 4", "dp2 tp4", "late"]]
    found = columns_that_fit(columns, rows, width, spare=("USER", "PLAN", "GROUP"))
    assert [columns[index] for index in found or []] == kept


def _numbers(text: str) -> list[str]:
    """Return the words that are numbers, or have one in them, as ids do."""
    return re.findall(r"\S*[0-9]\S*", text)


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_a_text_breaks_between_words_and_never_in_what_is_to_be_copied(columns: int) -> None:
    text = (
        "WARNING  it stopped; to go on: `arena release 7k2-1 --budget 300`; see gpu-01.cluster-7.example.org (12.5%)."
    )
    lines = folded(text, columns, hanging=9)
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert sum("`arena release 7k2-1 --budget 300`;" in line for line in lines) == 1
    whole = {"`arena release 7k2-1 --budget 300`;", "gpu-01.cluster-7.example.org (12.5%)."}
    assert all(len(line) <= columns or line.strip() in whole for line in lines)


def test_a_column_is_as_wide_as_its_longest_number() -> None:
    rows = [["j-1", "a " * 40 + "gpu-01.cluster-7.example.org"]]
    assert column_widths(["JOB", "WHY"], rows, 33) == [3, 28]
    assert column_widths(["JOB", "WHY"], rows, 32) is None
    assert column_widths(["JOB", "WHY"], rows, 1000) == [3, 108]
