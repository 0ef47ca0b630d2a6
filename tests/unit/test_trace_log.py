"""Arena's own log: what a scheduler writes of its jobs comes back as a trace, and a cut log does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from arena.domain.job import JobId, JobSpec
from arena.domain.records import AttemptRecord, JobRecord, JobState, Progress
from arena.domain.trace import TraceOutcome
from arena_traces.defects import Defect, TraceError
from arena_traces.formats.log_writing import log_job, log_lines
from arena_traces.reading import read_trace
from tests.builders import command_spec, job_record, logged_attempt, train_spec
from tests.trace_files import written

NOW_S = 10_000.0


def attempt(
    job_id: str, epoch: int, counts: list[int], *, from_s: float | None, to_s: float | None, gpu_type: str = "a100"
) -> AttemptRecord:
    return logged_attempt(job_id, counts, from_s=from_s, to_s=to_s, gpu_type=gpu_type, epoch=epoch)


def logged(path: Path, *jobs: tuple[JobRecord, list[AttemptRecord]]) -> Path:
    lines = log_lines(
        (log_job(job, job.spec, attempts) for job, attempts in jobs), exported_at_s=NOW_S, arena_version="0.1.0"
    )
    return written(path, "".join(lines).encode())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_a_job_that_changed_its_gpus_keeps_its_gpu_time(file: Path) -> None:
    spec = train_spec("j1", deadline_s=500.0, project="vision")
    job = job_record("j1", spec, submitted_at_s=50.0, state=JobState.SUCCEEDED, progress=Progress(step=1000))
    logged(
        file,
        (job, [attempt("j1", 2, [4, 4], from_s=300.0, to_s=400.0), attempt("j1", 1, [2], from_s=100.0, to_s=200.0)]),
    )
    trace = read_trace(file)
    (found,) = trace.jobs
    assert (found.gpu_count, found.duration_s) == (8, (100 * 2 + 100 * 8) / 8)
    assert (found.step_count, found.submitted_at_s, found.deadline_s) == (1000, 50.0, 500.0)
    assert (found.user, found.project, found.gpu_type) == ("ann", "vision", "a100")
    assert found.outcome is TraceOutcome.COMPLETED
    assert trace.spec_by_job == {"j1": spec}
    assert trace.source.format_name == "arena-log"


def test_a_command_ran_on_what_it_asked_for(file: Path) -> None:
    job = job_record("c1", command_spec("c1", count=4), state=JobState.FAILED)
    logged(file, (job, [attempt("c1", 1, [4], from_s=10.0, to_s=70.0)]))
    (found,) = read_trace(file).jobs
    assert (found.gpu_count, found.duration_s, found.step_count) == (4, 60.0, None)
    assert found.outcome is TraceOutcome.FAILED


def test_what_starts_took_is_the_mean_over_launches_of_programs(file: Path) -> None:
    program = job_record("c1", command_spec("c1"), state=JobState.SUCCEEDED)
    trained = job_record("j1", state=JobState.SUCCEEDED, progress=Progress(step=9))
    starts = [attempt("c1", 1, [1], from_s=2.0, to_s=7.0), attempt("c1", 2, [1], from_s=0.0, to_s=9.0)]
    logged(file, (program, starts), (trained, [attempt("j1", 1, [1], from_s=90.0, to_s=100.0)]))
    assert read_trace(file).program_start_s == 1.0
    logged(file, (trained, [attempt("j1", 1, [1], from_s=90.0, to_s=100.0)]))
    assert read_trace(file).program_start_s is None


def test_a_cancelled_job_is_as_long_as_it_was(file: Path) -> None:
    job = job_record("j1", state=JobState.CANCELLED, progress=Progress(step=17))
    logged(file, (job, [attempt("j1", 1, [1], from_s=10.0, to_s=27.0)]))
    (found,) = read_trace(file).jobs
    assert (found.step_count, found.duration_s, found.outcome) == (17, 17.0, TraceOutcome.CANCELLED)


def test_jobs_that_are_not_over_have_all_their_steps_before_them(file: Path) -> None:
    running = job_record("j1", state=JobState.RUNNING, progress=Progress(step=17))
    queued = job_record("j2", train_spec("j2", gpus={"min": 2, "max": 8}))
    logged(file, (running, [attempt("j1", 1, [2], from_s=9_000.0, to_s=None)]), (queued, []))
    first, second = read_trace(file).jobs
    assert (first.step_count, first.duration_s, first.gpu_count) == (1000, 1000.0, 2)
    assert (second.step_count, second.duration_s, second.gpu_count) == (1000, None, 2)
    assert first.outcome is second.outcome is TraceOutcome.RUNNING


def test_a_pinned_plan_says_how_many_gpus_were_asked_for(file: Path) -> None:
    spec = train_spec("j1", kind="rigid", parallel={"plan": "dp2 tp2 pp1 mb1"})
    logged(file, (job_record("j1", spec), []))
    assert read_trace(file).jobs[0].gpu_count == 4


def test_a_workload_known_by_measurements_is_kept(file: Path) -> None:
    spec = JobSpec.model_validate(
        {"name": "j1", "workload": {"name": "moe__1.3B", "global_batch": 256}, "stop": {"steps": 9}}
    )
    logged(file, (job_record("j1", spec), []))
    assert read_trace(file).jobs[0].workload == spec.workload


def test_jobs_that_did_nothing_are_dropped_and_counted(file: Path) -> None:
    logged(
        file,
        (job_record("j1", state=JobState.CANCELLED), []),
        (job_record("c1", command_spec("c1")), []),
        (job_record("j2"), []),
    )
    trace = read_trace(file)
    assert [job.job_id for job in trace.jobs] == ["j2"]
    assert trace.accounting.dropped_lines == {Defect.NO_TIME: (2,), Defect.NO_WORK: (3,)}


def test_the_environment_of_a_command_stays_at_home(file: Path) -> None:
    spec = JobSpec.model_validate(
        {
            **command_spec("c1").model_dump(exclude={"command"}, exclude_unset=True),
            "command": {"argv": ["python", "train.py"], "env": {"API_KEY": "hush"}},
        }
    )
    logged(file, (job_record("c1", spec), [attempt("c1", 1, [1], from_s=1.0, to_s=2.0)]))
    assert b"hush" not in file.read_bytes()
    assert read_trace(file).spec_by_job[JobId("c1")].command is not None


def test_a_log_without_jobs_is_a_trace_without_jobs(file: Path) -> None:
    assert read_trace(logged(file)).jobs == ()


def refusal(path: Path, content: bytes) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(written(path, content))
    return caught.value


def test_a_log_that_was_cut_anywhere_is_refused(file: Path) -> None:
    content = logged(file, (job_record("j1"), []), (job_record("j2"), [])).read_bytes()
    for length in range(0, len(content) - 1, 97):
        refusal(file, content[:length])
    lines = content.splitlines(keepends=True)
    assert refusal(file, b"".join(lines[:-1])).details["defect"] == Defect.CUT_FILE
    error = refusal(file, b"".join([*lines[:2], lines[-1]]))
    assert "should hold 2 jobs, and holds 1" in error.message
    assert "goes on after its end" in refusal(file, content + lines[1]).message
    written(file, content[:-1])
    assert len(read_trace(file).jobs) == 2, "the closing line is whole without its line end"


def test_a_log_that_is_cut_inside_a_line_says_so_and_how_to_keep_the_rest(file: Path) -> None:
    content = logged(file, (job_record("j1"), []), (job_record("j2"), []), (job_record("j3"), [])).read_bytes()
    lines = content.splitlines(keepends=True)
    error = refusal(file, b"".join(lines[:3]) + lines[3][:50])
    assert error.details == {"file": str(file), "line": "4", "defect": "cut_file", "whole_row_count": "2"}
    assert "the file looks cut: it stops inside this line" in error.message
    assert "2 whole rows before that. Fetch or export it again, or wait until it is written" in error.message
    # The command of the error makes a log of what was whole, also where it was cut between two lines.
    for cut in (b"".join(lines[:3]) + lines[3][:50], b"".join(lines[:3])):
        command = refusal(file, cut).message.partition("take the whole rows alone: ")[2]
        subprocess.run(["/bin/sh", "-c", command], cwd=file.parent, check=True)
        assert [job.job_id for job in read_trace(file.parent / "part").jobs] == ["j1", "j2"]
    assert "stops inside this line" in refusal(file, lines[0][:-9]).message
    broken = refusal(file, b"".join([*lines[:2], lines[2][:50] + b"\n", *lines[3:]]))
    assert broken.details["defect"] == Defect.BAD_RECORD
    assert broken.message.endswith("Leave such rows out, and count them, with --drop bad_record")


def test_a_line_that_is_none_of_a_log_is_told_by_its_field(file: Path) -> None:
    head, job, end = logged(file, (job_record("j1"), [])).read_bytes().splitlines(keepends=True)
    for broken, text in [
        (job.replace(b'"queued"', b'"asleep"'), "line 2: state: got 'asleep'; allowed: queued"),
        (job.replace(b'"user":', b'"usr":'), "line 2: user: is required"),
        (job.replace(b'"submitted_at_s":0.0', b'"submitted_at_s":-5'), "submitted_at_s: got -5; allowed: at least 0"),
        (job.replace(b'"submitted_at_s":0.0', b'"submitted_at_s":NaN'), "submitted_at_s: "),
        (b"[" * 100_000 + b"\n", "line 2: Invalid JSON"),
        (b"{}\n", "line 2: Unable to extract tag"),
        (head, "begins in the middle"),
    ]:
        error = refusal(file, head + broken + end)
        assert error.details["defect"] == Defect.BAD_RECORD
        assert text in error.message
    assert refusal(file, end + job).details["defect"] == Defect.UNKNOWN_FORMAT
    later = refusal(file, head.replace(b'"version":1', b'"version":2') + job + end)
    assert "a later version of Arena wrote the log" in later.message
