"""Any bytes are a trace or a typed error; no row is lost; what is written of a scheduler's jobs is read back."""

from __future__ import annotations

import gzip
import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import AttemptRecord, EndKind, JobRecord, JobState, Progress
from arena.errors import ArenaError
from arena_traces.defects import RULES, Defect, Treatment
from arena_traces.formats import FORMATS
from arena_traces.formats.event_log import LogJob
from arena_traces.formats.log_writing import log_job, log_lines
from arena_traces.mapping import default_mapping, with_workloads
from arena_traces.parts import first_jobs, from_zero, with_offered_load
from arena_traces.reading import read_trace
from arena_traces.statistics import statistics
from arena_traces.trace import Trace
from tests.spec_strategies import counts, instants, longs, maybe, naturals, small, specs, words
from tests.strategies import groups, plans
from tests.trace_files import ARENA_HEAD, ITP_HEAD, itp_job, table, trace_of

DROPPABLE = frozenset(defect for defect, rule in RULES.items() if rule.can_drop)


@contextmanager
def file_of(content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(content)
        yield path


def read(content: bytes, dropped: frozenset[Defect] = frozenset(), format_name: str | None = None) -> Trace | None:
    """The trace, None where it is refused with a typed error."""
    with file_of(content) as path:
        try:
            return read_trace(path, dropped=dropped, format=format_name)
        except ArenaError as error:
            refusal = error
    assert refusal.details["file"] == str(path)
    assert Defect(refusal.details["defect"]) in RULES
    return None


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.csv", content)
    return buffer.getvalue()


numbers = st.one_of(
    st.integers(-3, 40).map(str),
    st.floats(0, 1e6, allow_nan=False).map(str),
    st.sampled_from(["", "NaN", "None", "-1", "1e999", "0x10", "1_0", " 7 ", "0.25", "-0", '"8"', '"', "1e-320"]),
)
ids = st.sampled_from(["a", "b", "c", "a@3", "", "j,1", '"x,y"']) | st.text("abcé\t", max_size=3)
itp_rows = st.tuples(ids, numbers, numbers, numbers).map(",".join)
arena_rows = st.tuples(
    *(ids, numbers, numbers, st.sampled_from(["bert__1B", "moe", ""])),
    *(numbers, numbers, numbers, st.sampled_from(["a100", "", "-1"])),
).map(",".join)
tables = st.one_of(
    st.lists(itp_rows, max_size=8).map(lambda rows: table(ITP_HEAD, *rows)),
    st.lists(arena_rows, max_size=8).map(lambda rows: table(ARENA_HEAD, *rows)),
)
records = st.builds(
    JobRecord,
    job_id=words,
    spec=specs,
    user=words,
    request_id=words,
    submitted_at_s=instants,
    state=st.sampled_from(JobState),
    progress=st.builds(Progress, step=naturals),
    ended_at_s=maybe(instants),
    run_time_s=instants,
    gpu_seconds=instants,
)
logged_attempts = st.builds(
    AttemptRecord,
    attempt_id=words,
    job_id=words,
    epoch=counts,
    plan=maybe(plans()),
    group=groups,
    estimate=st.none(),
    allocation=st.just(Allocation(shares=())),
    master_addr=words,
    master_port=small,
    cause=st.just(reason(ReasonCode.NOT_YET_EVALUATED)),
    decision_index=longs,
    decided_at_s=instants,
    launched_at_s=instants,
    first_step_at_s=maybe(instants),
    ended_at_s=maybe(instants),
    outcome=maybe(st.sampled_from(EndKind)),
    last_step=naturals,
)
logged_jobs = st.lists(st.tuples(records, st.lists(logged_attempts, max_size=2)), max_size=2)
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For what takes long to make."""


def log_of(entries: Sequence[tuple[JobRecord, list[AttemptRecord]]]) -> bytes:
    return "".join(log_lines(map(logged, entries), exported_at_s=1e10)).encode()


def logged(entry: tuple[JobRecord, list[AttemptRecord]]) -> LogJob:
    job, attempts = entry
    return log_job(job, job.spec, attempts)


def row_count(content: bytes) -> int:
    return sum(bool(line.strip()) for line in content.decode().split("\n")[1:])


@settings(deadline=None)
@given(tables)
def test_every_row_is_a_job_or_dropped(content: bytes) -> None:
    trace = read(content, dropped=DROPPABLE)
    if trace is None:
        assert row_count(content) == 0
        return
    accounting = trace.accounting
    assert accounting.row_count == row_count(content)
    lines = [job.row for job in trace.jobs] + [line for lines in accounting.dropped_lines.values() for line in lines]
    assert len(lines) == len(set(lines)) == accounting.row_count
    assert len({job.job_id for job in trace.jobs}) == len(trace.jobs)
    assert all(job.gpu_count >= 1 and job.submitted_at_s >= 0 for job in trace.jobs)
    assert all((job.duration_s or job.step_count or 0) > 0 for job in trace.jobs)
    assert {line for lines in accounting.repaired_lines.values() for line in lines} <= {job.row for job in trace.jobs}


@settings(deadline=None)
@given(tables)
def test_a_defect_ends_the_reading_exactly_where_its_rule_says(content: bytes) -> None:
    strict, lenient = read(content), read(content, dropped=DROPPABLE)
    if lenient is None:
        assert strict is None
        return
    ends = {defect for defect, rule in RULES.items() if rule.treatment is Treatment.ERROR}
    assert (strict is None) == bool(ends & set(lenient.accounting.dropped_lines))


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_trace_or_a_typed_error(content: bytes) -> None:
    read(content, dropped=DROPPABLE)


WHOLE = table(ITP_HEAD, *(f"job-{index},{index * 7},60.5,{index % 4}" for index in range(12)))
CONTENTS = {
    "plain": WHOLE,
    "gz": gzip.compress(WHOLE, mtime=0),
    "zip": zipped(WHOLE),
    "log": b'{"kind":"head","format":"arena-log","version":1,"exported_at_s":9}\n{"kind":"end","job_count":0}\n',
}


@pytest.mark.parametrize("name", CONTENTS)
@few
@given(data=st.data())
def test_damaged_files_are_a_trace_or_a_typed_error(name: str, data: st.DataObject) -> None:
    content = bytearray(CONTENTS[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        size = data.draw(st.integers(0, 3))
        content[at : at + size] = data.draw(st.binary(max_size=3))
    read(bytes(content[: data.draw(st.integers(1, len(content)))]), dropped=DROPPABLE)


@pytest.mark.parametrize("name", [one.name for one in FORMATS])
@few
@given(content=st.binary(max_size=200) | tables)
def test_no_format_crashes_on_what_is_not_its_own(name: str, content: bytes) -> None:
    read(content, format_name=name)


@few
@given(logged_jobs)
def test_what_a_log_says_of_jobs_is_read_back(entries: list[tuple[JobRecord, list[AttemptRecord]]]) -> None:
    # Not splitlines: it also cuts at other ends of lines, which a name may hold.
    lines = log_of(entries).split(b"\n")[1:-2]
    assert [LogJob.model_validate_json(line) for line in lines] == list(map(logged, entries))


@few
@given(logged_jobs)
def test_every_job_of_a_log_is_a_job_or_dropped(entries: list[tuple[JobRecord, list[AttemptRecord]]]) -> None:
    trace = read(log_of(entries), dropped=DROPPABLE)
    assert trace is not None
    assert trace.accounting.row_count == len(entries)
    kept = {job.row - 2: job for job in trace.jobs}
    for index, job in kept.items():
        record, _ = entries[index]
        assert (job.submitted_at_s, job.user, job.project) == (record.submitted_at_s, record.user, record.spec.project)
        assert trace.spec_by_job[job.job_id].model_dump(exclude={"command"}) == record.spec.model_dump(
            exclude={"command"}
        )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    submitted = draw(st.lists(st.floats(0, 1e10), min_size=1, max_size=12))
    durations = st.floats(1e-3, 1e7)
    return trace_of(
        itp_job(row, submitted_at_s=at_s, duration_s=draw(durations), gpu_count=draw(st.integers(1, 64)))
        for row, at_s in enumerate(submitted, start=2)
    )


CHANGES: list[Callable[[Trace], Trace]] = [
    lambda trace: with_offered_load(trace, 0.7, gpu_count=64),
    lambda trace: with_workloads(trace, default_mapping(), seed=3),
    lambda trace: first_jobs(trace, 5),
    from_zero,
]


@settings(deadline=None)
@given(traces(), st.permutations(range(len(CHANGES))))
def test_changes_of_a_trace_keep_its_accounts_in_any_order(trace: Trace, order: Sequence[int]) -> None:
    for index in order:
        try:
            trace = CHANGES[index](trace)
        except ArenaError:
            continue  # all jobs at once
        accounting = trace.accounting
        assert accounting.job_count + accounting.left_out_count == accounting.row_count
        assert statistics(trace).job_count == len(trace.jobs)
        assert [draw.row for draw in trace.draws] in ([], [job.row for job in trace.jobs])
