"""Tables of step times as files: three forms, and every mistake with its line."""

from __future__ import annotations

import json

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.job import WorkloadSpec
from arena.errors import SpecError
from arena.planner.table_files import parse_table

HEAD = "workload,global_batch,group,step_time_s"
NET = WorkloadSpec(name="net__1B", global_batch=8)


def test_a_csv_has_times_and_failures() -> None:
    table = parse_table(f"{HEAD}\nnet__1B,8,a100 4+4,0.5\r\nnet__1B,8,a100 2,\n\n", source="t.csv")
    assert table.iter_time_s == {NET: {GpuGroup.of("a100", [4, 4]): 0.5, GpuGroup.of("a100", [2]): None}}
    assert table.version == "t.csv"


def test_columns_may_stand_in_any_order_and_a_mark_before_them() -> None:
    table = parse_table("\ufeffgroup,step_time_s,workload,global_batch\nv100 1,2,net__1B,8\n", source="t.csv")
    assert table.iter_time_s == {NET: {GpuGroup.of("v100", [1]): 2.0}}


def test_json_says_the_same() -> None:
    row = {"workload": "net__1B", "global_batch": 8, "group": "a100 4+4", "step_time_s": 0.5}
    table = parse_table(json.dumps({"arena_table": 1, "name": "lab", "rows": [row]}), source="t.json")
    assert table.iter_time_s == {NET: {GpuGroup.of("a100", [4, 4]): 0.5}}
    assert table.version == "lab"


def test_the_artifacts_form_is_read() -> None:
    text = json.dumps({"optimal": {"wide_resnet_1B_256": {"2_a100_2_n_4_d": 0.5, "1_v100_1_n_1_d": -1}}})
    table = parse_table(text, source="prof_database.json")
    workload = WorkloadSpec(name="wide_resnet__1B", global_batch=256)
    assert table.iter_time_s == {workload: {GpuGroup.of("a100", [4, 4]): 0.5, GpuGroup.of("v100", [1]): None}}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("net,8,a100,1", "line 2: group is a GPU type and the GPUs on each node"),
        ("net,8,a100 0,1", "line 2: group is a GPU type and the GPUs on each node"),
        ("net,x,a100 1,1", "line 2: global_batch is a whole number"),
        ("net,0,a100 1,1", "line 2: global_batch is at least 1"),
        ("net,8,a100 1,-1", "line 2: step_time_s is above 0"),
        ("net,8,a100 1,nan", "line 2: step_time_s is a number"),
        ("net,8,a100 1,1_0.5", "line 2: step_time_s is a number"),
        ("net,1_0,a100 1,1", "line 2: global_batch is a whole number"),
        (",8,a100 1,1", "line 2: workload is a name"),
        ("net,8,a100 1", "line 2: 3 fields, 4 columns"),
        ("net,8,a100 1,1\nnet,8,a100 1,2", "line 3: net, batch 8, on a100 1 is there twice"),
        ("", "has no rows"),
    ],
)
def test_a_bad_row_is_told_with_its_line(row: str, told: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_table(f"{HEAD}\n{row}\n", source="t.csv")
    assert told in error.value.message


@pytest.mark.parametrize("field", ["global_batch", "step_time_s"])
@pytest.mark.parametrize("value", [True, 10**400, "1e999", [1], float("inf")])
def test_a_number_of_json_is_a_finite_number(field: str, value: object) -> None:
    row = {"workload": "net__1B", "global_batch": 8, "group": "a100 1", "step_time_s": 0.5, field: value}
    with pytest.raises(SpecError, match=f"row 1: {field} is a .*number"):
        parse_table(json.dumps({"arena_table": 1, "rows": [row]}), source="t.json")


@pytest.mark.parametrize(
    ("workload", "group", "value", "told"),
    [
        ("net_1B_0", "1_a100_1_n_1_d", 1.0, "is no <family>_<size>_<batch>"),
        ("net_1B_8", "0_a100_0_n_1_d", 1.0, "is no <nodes>_<type>"),
        ("net_1B_8", "2_a100_4_n_1_d", 1.0, "is no <nodes>_<type>"),
        ("net_1B_8", "1_a100_1_n_1_d", float("inf"), "step_time_s is a number"),
        ("net_1B_8", "1_a100_1_n_1_d", float("nan"), "step_time_s is a number"),
        ("net_1B_8", "1_a100_1_n_1_d", -3.0, "step_time_s is above 0"),
    ],
)
def test_a_mistake_in_the_artifacts_form_is_told(workload: str, group: str, value: float, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        parse_table(json.dumps({"optimal": {workload: {group: value}}}), source="t.json")


def test_only_line_ends_end_a_line() -> None:
    table = parse_table(f"{HEAD}\rnet\u2028one,8,a100 1,0.5\r", source="t.csv")
    assert [workload.name for workload in table.iter_time_s] == ["net\u2028one"]


BROKEN = ["", "a,b\n1,2\n", "{", '{"rows": []}', '{"optimal": {}}', '{"optimal": {"x": {}}}']
LONG = [f"{HEAD}\n{'x' * 200_000},8,a100 1,1\n", '{"a":' + "[" * 100_000]


@pytest.mark.parametrize("text", [*BROKEN, *LONG], ids=range(8))
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_table(text, source="t")


def test_only_the_first_mistakes_are_told() -> None:
    rows = "\n".join(f"net,8,bad{index},1" for index in range(50))
    with pytest.raises(SpecError) as error:
        parse_table(f"{HEAD}\n{rows}\n", source="t.csv")
    assert len(error.value.what.splitlines()) == 6
    assert error.value.what.endswith("and 45 more")


def test_a_csv_table_whose_last_line_does_not_end_may_be_cut() -> None:
    whole = "workload,global_batch,group,step_time_s\nnet__1B,8,cpu 1,6.15\n"
    assert parse_table(whole, source="t.csv").iter_time_s
    for length in range(whole.index("\n") + 2, len(whole)):
        with pytest.raises(SpecError, match="last line does not end"):
            parse_table(whole[:length], source="t.csv")
