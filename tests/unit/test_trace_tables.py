"""Tables become jobs, and every row that does not is told or counted."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from arena.domain.job import WorkloadSpec
from arena.errors import UserError
from arena_traces.defects import Defect, TraceError
from arena_traces.lines import Limits
from arena_traces.reading import read_trace
from tests.trace_files import ARENA_HEAD, ITP_HEAD, table, written


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def refusal(path: Path, **options: object) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(path, **options)  # type: ignore[arg-type]
    return caught.value


def test_a_row_of_microsofts_is_a_job(file: Path) -> None:
    written(file, table(ITP_HEAD, "d36ea58c,3793,1183.5,8"))
    trace = read_trace(file)
    (job,) = trace.jobs
    assert (job.job_id, job.row, job.submitted_at_s, job.duration_s, job.gpu_count) == ("d36ea58c", 2, 3793, 1183.5, 8)
    assert job.step_count is job.workload is job.gpu_type is job.deadline_s is None
    assert trace.source.format_name == "microsoft-itp"


def test_a_row_of_arenas_is_a_job_whose_deadline_counts_from_its_submission(file: Path) -> None:
    written(file, table(ARENA_HEAD, "f910,1750472,2622,wide_resnet__500M,1798867.5,256,2,a10"))
    trace = read_trace(file)
    (job,) = trace.jobs
    assert job.workload == WorkloadSpec(name="wide_resnet__500M", global_batch=256)
    assert (job.step_count, job.deadline_s, job.gpu_count, job.gpu_type) == (2622, 48395.5, 2, "a10")
    assert job.duration_s is None
    assert trace.source.format_name == "arena-csv"


def test_jobs_are_in_the_order_of_submission_and_then_of_rows(file: Path) -> None:
    written(file, table(ITP_HEAD, "late,9,1,1", "b,5,1,1", "a,5,1,1", "early,0,1,1"))
    assert [job.job_id for job in read_trace(file).jobs] == ["early", "b", "a", "late"]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_delimiters_case_and_order_of_columns_do_not_matter(file: Path, delimiter: str) -> None:
    lines = ("NUM_GPU, Duration ,job_id,submission_time,note,", '4,60,"a",7,"x, y; z",')
    written(file, "".join(f"{line}\n" for line in lines).replace(",", delimiter).encode())
    trace = read_trace(file)
    (job,) = trace.jobs
    assert (job.job_id, job.gpu_count, job.duration_s, job.submitted_at_s) == ("a", 4, 60, 7)
    assert trace.source.ignored_columns == ("note",)


DROPPED = [
    (Defect.NO_GPUS, "x,1,5,0"),
    (Defect.NO_GPU_COUNT, "x,1,5,"),
    (Defect.NO_GPU_COUNT, "x,1,5,NaN"),
    (Defect.NO_ID, ",1,5,1"),
    (Defect.NO_SUBMISSION, "x,None,5,1"),
    (Defect.NO_SUBMISSION, "x,-1,5,1"),
    (Defect.NO_WORK, "x,1,nan,1"),
    (Defect.NO_TIME, "x,1,0,1"),
    (Defect.REPEATED_ROW, "first,1,5,1"),
    (Defect.NO_ID, ",,,"),
]


@pytest.mark.parametrize(("defect", "row"), DROPPED)
def test_rows_without_what_matters_are_dropped_and_counted(file: Path, defect: Defect, row: str) -> None:
    written(file, table(ITP_HEAD, "first,1,5,1", row, "last,2,5,1"))
    trace = read_trace(file)
    assert [job.job_id for job in trace.jobs] == ["first", "last"]
    assert trace.accounting.dropped_lines == {defect: (3,)}
    assert trace.accounting.repaired_lines == {}
    assert (trace.accounting.row_count, trace.accounting.dropped_count) == (3, 1)


REFUSED = [
    (Defect.NEGATIVE, "x,-4,5,1", "submission_time must not be negative, found '-4'"),
    (Defect.NEGATIVE, "x,4,-5,1", "duration must not be negative"),
    (Defect.NEGATIVE, "x,4,5,-2", "num_gpu must not be negative"),
    (Defect.NOT_A_NUMBER, "x,4,5h,1", "duration must be a number, found '5h'"),
    (Defect.NOT_A_NUMBER, "x,2017-10-03 12:00:00,5,1", "submission_time must be a number"),
    (Defect.NOT_A_NUMBER, "x,1_0,5,1", "submission_time must be a number"),
    (Defect.NOT_A_NUMBER, 'x,"1,000",5,1', "submission_time must be a number"),
    (Defect.NOT_A_NUMBER, "x,٣,5,1", "submission_time must be a number"),
    (Defect.NOT_A_NUMBER, "x,inf,5,1", "submission_time must be a number"),
    (Defect.OUT_OF_RANGE, "x,1e400,5,1", "submission_time must be at most"),
    (Defect.OUT_OF_RANGE, "x,1627776000000,5,1", "submission_time must be at most"),
    (Defect.OUT_OF_RANGE, "x,1,5,1e7", "num_gpu must be at most 1,000,000"),
    (Defect.OUT_OF_RANGE, f"{'x' * 200},1,5,1", "job_id must be at most 128 printable characters"),
    (Defect.OUT_OF_RANGE, "x\x1b[2J,1,5,1", "job_id must be at most 128 printable characters"),
    (Defect.FIELD_COUNT, "x,1,5", "the row has 3 fields, there are 4 columns"),
    (Defect.FIELD_COUNT, "x,1,5,1,7", "the row has 5 fields, there are 4 columns"),
    (Defect.BAD_QUOTES, '"x,1,5,1', "the row cannot be read"),
    (Defect.BAD_QUOTES, '"x"y,1,5,1', "the row cannot be read"),
]


@pytest.mark.parametrize(("defect", "row", "text"), REFUSED)
def test_rows_that_cannot_be_meant_end_the_reading_with_their_line(
    file: Path, defect: Defect, row: str, text: str
) -> None:
    written(file, table(ITP_HEAD, "first,1,5,1", row, "last,2,5,1"))
    error = refusal(file)
    assert f"{file}, line 3: {text}" in error.message
    assert error.details == {"file": str(file), "line": "3", "defect": str(defect)}
    assert error.exit_code == 4
    assert error.fix.endswith(f"leave such rows out, and count them, with --drop {defect}")
    trace = read_trace(file, dropped=frozenset({defect}))
    assert trace.accounting.dropped_lines == {defect: (3,)}
    assert len(trace.jobs) == 2


def test_times_that_are_dates_or_milliseconds_are_told_what_they_should_be(file: Path) -> None:
    for found, fix in (("2021-07-01 00:00:00", "write times as seconds"), ("1627776000000", "not in milliseconds")):
        written(file, table(ITP_HEAD, f"x,{found},5,1"))
        assert fix in refusal(file).fix


ARENA_REFUSED = [
    (Defect.BAD_MODEL_NAME, "x,1,9,bert,5,8,1,a10"),
    (Defect.BAD_MODEL_NAME, "x,1,9,__1B,5,8,1,a10"),
    (Defect.NEGATIVE, "x,7,9,bert__1B,5,8,1,a10"),
    (Defect.NOT_A_NUMBER, "x,1,9.5,bert__1B,5,8,1,a10"),
]


@pytest.mark.parametrize(("defect", "row"), ARENA_REFUSED)
def test_models_deadlines_and_iterations_are_examined(file: Path, defect: Defect, row: str) -> None:
    written(file, table(ARENA_HEAD, row))
    assert refusal(file).details == {"file": str(file), "line": "2", "defect": str(defect)}


@pytest.mark.parametrize(
    ("defect", "row"),
    [
        (Defect.NO_WORK, "x,1,,bert__1B,5,8,1,a10"),
        (Defect.NO_WORK, "x,1,9,,5,8,1,a10"),
        (Defect.NO_WORK, "x,1,9,bert__1B,5,,1,a10"),
        (Defect.NO_TIME, "x,1,0,bert__1B,5,8,1,a10"),
        (Defect.NO_TIME, "x,1,9,bert__1B,5,0,1,a10"),
    ],
)
def test_jobs_of_which_the_work_is_not_known_are_dropped(file: Path, defect: Defect, row: str) -> None:
    written(file, table(ARENA_HEAD, row))
    assert read_trace(file).accounting.dropped_lines == {defect: (2,)}


def test_what_may_be_missing_is_none(file: Path) -> None:
    written(file, table(ARENA_HEAD, "x,1,9,bert__1B,-1,8,1,"))
    (job,) = read_trace(file).jobs
    assert job.deadline_s is job.gpu_type is None


def test_shares_of_a_gpu_are_rounded_up_and_counted(file: Path) -> None:
    written(file, table(ITP_HEAD, "a,1,5,0.25", "b,1,5,2.0", "c,1,5,2.5"))
    trace = read_trace(file)
    assert [job.gpu_count for job in trace.jobs] == [1, 2, 3]
    assert trace.accounting.repaired_lines == {Defect.GPU_SHARE: (2, 4)}
    assert read_trace(file, dropped=frozenset({Defect.GPU_SHARE})).accounting.dropped_lines == {
        Defect.GPU_SHARE: (2, 4)
    }


def test_an_id_of_two_jobs_is_made_two_and_a_job_written_twice_is_one(file: Path) -> None:
    written(file, table(ITP_HEAD, "a,1,5,1", "a@3,1,5,1", "a,2,5,0.5", "a,2,5,0.5", "a,1,5,1", "a@4,9,9,9"))
    trace = read_trace(file)
    assert [job.job_id for job in trace.jobs] == ["a", "a@3", "a@4", "a@4@7"]
    assert trace.accounting.dropped_lines == {Defect.REPEATED_ROW: (5, 6)}
    assert trace.accounting.repaired_lines == {Defect.GPU_SHARE: (4,), Defect.REPEATED_ID: (4, 7)}
    assert trace.accounting.repaired_count == 2


def test_thousands_of_jobs_with_one_id_are_read_like_others(file: Path) -> None:
    """Compared each with each they would take an hour."""
    count = 20_000
    written(file, table(ITP_HEAD, *(f"a,{row},5,1" for row in range(count)), "a,7,5,1"))
    trace = read_trace(file)
    assert len({job.job_id for job in trace.jobs}) == count
    assert trace.accounting.dropped_lines == {Defect.REPEATED_ROW: (count + 2,)}


def test_a_repeat_that_is_dropped_is_no_job_that_others_could_repeat(file: Path) -> None:
    written(file, table(ITP_HEAD, "a,1,5,1", "a,2,5,1", "b,3,5,1", "a,2,5,1"))
    trace = read_trace(file, dropped=frozenset({Defect.REPEATED_ID}))
    assert [job.job_id for job in trace.jobs] == ["a", "b"]
    assert trace.accounting.dropped_lines == {Defect.REPEATED_ID: (3, 5)}


def test_a_request_larger_than_any_cluster_is_a_job(file: Path) -> None:
    written(file, table(ITP_HEAD, "a,1,5,2048"))
    assert read_trace(file).jobs[0].gpu_count == 2048


def test_missing_columns_are_named_with_those_found_and_a_guess(file: Path) -> None:
    written(file, table("job_id,submit_time,duration,num_gpu", "a,1,5,1"))
    error = refusal(file)
    assert error.details["defect"] == Defect.UNKNOWN_FORMAT
    assert "the nearest, microsoft-itp, lacks column submission_time" in error.message
    assert "found 'job_id', 'submit_time', 'duration', 'num_gpu'" in error.message
    assert "Rename 'submit_time' to submission_time in the first line, if that is meant" in error.message
    named = refusal(file, format="arena-csv")
    assert named.details["defect"] == Defect.BAD_COLUMNS
    assert "it needs job_id, submission_time, num_iteration, model_name" in named.message
    assert "Rename 'submit_time' to submission_time in the first line, if that is meant; add columns " in named.message


def test_every_missing_column_has_its_own_nearest_name_or_is_to_be_added(file: Path) -> None:
    written(file, table("jobid,submission time,run,num_gpus", "a,1,5,1"))
    fix = refusal(file).fix
    assert "rename 'jobid' to job_id, 'submission time' to submission_time, 'num_gpus' to num_gpu in the first" in fix
    assert fix.endswith("; add column duration, or rename what holds it")
    # What is there under its own name is not meant to be another.
    written(file, table("submission_time,num_gpu,duration", "1,1,5"))
    assert refusal(file).fix == "add column job_id, or rename what holds it"


def test_a_table_without_names_of_columns_is_refused(file: Path) -> None:
    written(file, table("193e6fdd,b150d2ee,Failed,531744.0,1136554.0"))
    assert "names its columns (arena-csv: job_id, submission_time" in refusal(file).message


def test_a_column_that_is_there_twice_is_refused(file: Path) -> None:
    written(file, table(f"{ITP_HEAD},duration", "a,1,5,1,6"))
    assert refusal(file).details["defect"] == Defect.BAD_COLUMNS


def test_blank_lines_are_no_rows(file: Path) -> None:
    written(file, b"\n" + table(ITP_HEAD, "a,1,5,1", "", "  ", "b,1,5,1", ""))
    trace = read_trace(file)
    assert [job.row for job in trace.jobs] == [3, 6]
    assert trace.accounting.row_count == 2


def test_columns_without_rows_are_refused(file: Path) -> None:
    written(file, table(ITP_HEAD))
    assert refusal(file).details["defect"] == Defect.NO_ROWS


def test_limits_end_the_reading_at_their_line(file: Path) -> None:
    written(file, table(ITP_HEAD, *(f"j{index},1,5,1" for index in range(9))))
    assert refusal(file, limits=Limits(line_count=4)).details["line"] == "5"
    assert refusal(file, limits=Limits(byte_count=80)).details["defect"] == Defect.TOO_MANY_ROWS
    assert refusal(file, limits=Limits(line_bytes=20)).details["defect"] == Defect.LINE_TOO_LONG


def test_what_concerns_a_whole_file_cannot_be_dropped(file: Path) -> None:
    with pytest.raises(UserError, match="is about a whole file"):
        read_trace(file, dropped=frozenset({Defect.CUT_FILE}))


def test_an_unknown_format_names_those_there_are(file: Path) -> None:
    with pytest.raises(UserError, match="Formats: arena-log, arena-csv, microsoft-itp"):
        read_trace(file, format="swf")


def test_errors_of_traces_can_be_pickled(file: Path) -> None:
    error = refusal(file)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.details) == (TraceError, error.message, error.details)
