"""The reader of measured runs, what it makes of them, and the experiment on a made-up file."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from arena.domain.parallel import Recompute
from arena.planner.implementation import Attention
from experiments.planner_accuracy.cases import UnscorableError, case_of, measured_time_s
from experiments.planner_accuracy.predict import Prediction, cases_of, predict
from experiments.planner_accuracy.programs import full_stages_first, network_gb_per_s
from experiments.planner_accuracy.rows import BadRow, MeasuredRow, complete, read_rows, source_name
from experiments.planner_accuracy.run import main
from experiments.planner_accuracy.score import ordered_pairs, score

MADE_UP = Path(__file__).parent / "data" / "made_up_runs.csv"


def rows_of(path: Path = MADE_UP) -> list[MeasuredRow]:
    return [row for row in read_rows(path) if isinstance(row, MeasuredRow)]


def changed(tmp_path: Path, **cells: str) -> MeasuredRow | BadRow:
    """Return the first made-up row with some cells changed."""
    with MADE_UP.open(newline="") as stream:
        reader = csv.DictReader(stream)
        first = next(reader)
    path = tmp_path / "changed.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(first))
        writer.writeheader()
        writer.writerow({**first, **cells})
    return next(iter(read_rows(path)))


def good(row: MeasuredRow | BadRow) -> MeasuredRow:
    assert isinstance(row, MeasuredRow), row
    return row


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"layers": "many"}, "layers = 'many' is no number"),
        ({"layers": "2.5"}, "layers = '2.5' is no whole number"),
        ({"iter_time_s": "-1"}, "iter_time_s = '-1' is not positive and finite"),
        ({"tp": "0"}, "tp = '0' is not positive and finite"),
        ({"mfu": "nonsense"}, ""),
    ],
)
def test_a_line_that_cannot_be_read_says_why(tmp_path: Path, cells: dict[str, str], reason: str):
    found = changed(tmp_path, **cells)
    assert (found.reason if isinstance(found, BadRow) else "") == reason


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"precision": "MXFP8"}, "products in MXFP8"),
        ({"gpu_type": "abacus"}, "GPU type 'abacus' is not in the catalog"),
        ({"micro_batch": ""}, "not stated: micro_batch"),
        ({"hidden": "1000", "heads": "3"}, "must be a multiple of heads"),
        ({"num_gpus": "9"}, "is not for 9 GPUs"),
        ({"cp": "2"}, "context parallelism"),
        ({"iter_time_s": "", "peak_mem_gb": ""}, "nothing measured"),
    ],
)
def test_a_row_that_cannot_be_scored_says_why(tmp_path: Path, cells: dict[str, str], reason: str):
    with pytest.raises(UnscorableError, match=reason):
        case_of(good(changed(tmp_path, **cells)))


def test_a_row_becomes_a_workload_a_plan_and_a_group(tmp_path: Path):
    case = case_of(good(changed(tmp_path, recompute="selective+seqpar", zero_or_fsdp="zero1", attention_impl="flash")))
    assert str(case.group) == "a100-80 8+8"
    assert (case.plan.dp, case.plan.tp, case.plan.pp, case.plan.zero) == (2, 4, 2, 1)
    assert case.plan.recompute is Recompute.SELECTIVE
    assert case.plan.sequence_parallel
    assert case.implementation.attention is Attention.FLASH
    assert case.time_s == 2.0


def test_stages_are_as_the_note_lists_them_less_the_two_ends(tmp_path: Path):
    case = case_of(good(changed(tmp_path, note="layer partition [0 6 14]", layers="12")))
    assert [stage.layer_count for stage in case.plan.stages] == [5, 7]


def test_operations_per_second_become_a_time_with_or_without_recomputation(tmp_path: Path):
    """96 B s l h^2 (1 + s / 6h + V / 16lh) with recomputation, three quarters of it without."""
    cells = {"iter_time_s": "", "tflops_per_gpu": "100", "recompute": "full", "primary_metric": "tflops_per_gpu"}
    flops = 96 * 64 * 2048 * 12 * 1024**2 * (1 + 2048 / (6 * 1024) + 50000 / (16 * 12 * 1024))
    for kind, share in (("hardware(incl recompute)", 1.0), ("model", 0.75)):
        row = good(changed(tmp_path, tflops_kind=kind, **cells))
        assert measured_time_s(row, case_of(row).train) == pytest.approx(share * flops / (16 * 100e12))


@pytest.mark.parametrize(
    ("note", "gb_per_s"),
    [
        ("fabric 4x100Gbps OPA per node", 6.25),
        ("1600 Gbps node-node", 25.0),
        ("400Gb/s RDMA per GPU", 50.0),
        ("4x p3.8xlarge", 0.15625),
        ("nothing said", None),
    ],
)
def test_the_network_is_what_the_row_says(tmp_path: Path, note: str, gb_per_s: float | None):
    assert network_gb_per_s(good(changed(tmp_path, note=note))) == gb_per_s


def test_a_shape_is_completed_from_its_source(tmp_path: Path):
    rows = complete([*rows_of(), good(changed(tmp_path, layers="", heads="", params_b="0.202"))])
    assert (rows[-1].layers, rows[-1].heads) == (12, 16)


def test_sections_of_a_document_are_one_source():
    assert source_name("owner/repo@1a2b path/README.md [H100 table]") == "owner/repo path/README.md"
    assert source_name("a/b runs/N4/plan_config_N4_D1.json") == "a/b runs"


def test_repeats_are_merged_by_their_median():
    cases, unscored = cases_of(rows_of())
    assert [len(case.rows) for case in cases] == [3, 1, 1, 1]
    assert cases[0].time_s == 2.0
    assert [one.reason for one in unscored] == ["products in FP8: the worker has no such precision"]


def test_a_perfect_model_scores_perfectly():
    predictions = [
        Prediction(case=case, time_s=case.time_s or 0.0, memory_gb=case.memory_gb or 1.0)
        for case in cases_of(rows_of())[0]
    ]
    found = score(predictions)
    assert found.time_mape_pct == 0.0
    assert found.memory_mape_pct == 0.0
    assert found.spearman == pytest.approx(1.0)
    assert found.pairs_right_pct == 100.0


def test_order_counts_only_between_comparable_runs_that_differ():
    cases = [case for case in cases_of(rows_of())[0] if case.time_s]
    reversed_times = [Prediction(case=case, time_s=1.0 / (case.time_s or 1.0), memory_gb=1.0) for case in cases]
    right, count = ordered_pairs(reversed_times)
    assert (right, count) == (0, 1)


def test_predictions_of_the_made_up_runs_are_of_the_right_size():
    for case in cases_of(rows_of())[0]:
        prediction = predict(case)
        assert 0.0 < prediction.memory_gb < 80.0
        assert 1e-3 < prediction.time_s < 100.0


def test_the_experiment_runs_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "result.json"
    assert main(["--measured", str(MADE_UP), "--json", str(out), "--plot", str(tmp_path / "scatter.png")]) == 0
    found = json.loads(out.read_text())
    assert found["overall"]["time_count"] == 3
    assert set(found["sources"]) == {"made up runs", "made up others"}
    assert [one["reason"] for one in found["unscored"]] == [
        "products in FP8: the worker has no such precision",
        "layers = 'several' is no number",
    ]
    assert all(one["unit"] and one["fitted_on"] and one["date"] for one in found["constants"])
    assert (tmp_path / "scatter.png").read_bytes().startswith(b"\x89PNG")
    assert "overall" in capsys.readouterr().out


def test_without_data_the_experiment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ARENA_DATA_DIR", str(tmp_path))
    out = tmp_path / "result.json"
    assert main(["--json", str(out)]) == 0
    assert json.loads(out.read_text())["skipped"] == 1
    assert "skipped 1 check" in capsys.readouterr().out


def test_a_missing_file_is_an_error(tmp_path: Path):
    assert main(["--measured", str(tmp_path / "none.csv"), "--json", str(tmp_path / "result.json")]) == 2


def test_deepspeed_fills_stages_from_the_front_and_counts_ends_where_they_come_out_even() -> None:
    assert full_stages_first(72, 12) == (6,) * 12
    assert full_stages_first(78, 12) == (7,) * 11 + (1,)
    assert full_stages_first(70, 12) == (5, *[6] * 10, 5)
    assert full_stages_first(9, 8) is None, "a stage would be empty"


def test_what_is_known_of_a_program_is_taken_from_its_words(tmp_path: Path) -> None:
    plain = case_of(good(changed(tmp_path))).implementation
    assert not plain.waits_for_kernels
    assert not plain.sends_in_turn
    deepspeed = case_of(good(changed(tmp_path, note="run by DeepSpeed"))).implementation
    assert deepspeed.sends_in_turn
    assert not deepspeed.waits_for_kernels


def test_what_a_program_does_one_after_the_other_takes_longer(tmp_path: Path) -> None:
    case = case_of(good(changed(tmp_path)))
    base = predict(case).time_s
    for change in ({"sends_in_turn": True}, {"waits_for_kernels": True}):
        assert predict(replace(case, implementation=replace(case.implementation, **change))).time_s > base


def test_memory_follows_what_programs_keep(tmp_path: Path) -> None:
    case = case_of(good(changed(tmp_path, zero_or_fsdp="zero1")))
    base = predict(case).memory_gb

    def gb(**changes: object) -> float:
        return predict(replace(case, implementation=replace(case.implementation, **changes))).memory_gb

    assert gb(buffer_bytes=1e9) == pytest.approx(base + 1.0)
    assert gb(kept_share_bytes=4.0) > base
    assert gb(logits_bytes=4.0) < base


def test_keeping_every_other_product_needs_less_than_all_and_more_than_none(tmp_path: Path) -> None:
    rows = {
        mode: case_of(good(changed(tmp_path, recompute=mode, micro_batch="8")))
        for mode in ("none", "selective", "full")
    }
    peaks = {mode: predict(case).memory_gb for mode, case in rows.items()}
    case = rows["selective"]
    kept = replace(case, implementation=replace(case.implementation, keeps_every_other_product=True))
    assert peaks["full"] < predict(kept).memory_gb < peaks["none"]


def test_regret_is_what_the_run_predicted_fastest_loses(tmp_path: Path) -> None:
    case = case_of(good(changed(tmp_path)))
    # Measured and predicted seconds of three runs of one model on the same GPUs.
    three = [
        Prediction(case=replace(case, time_s=measured), time_s=predicted, memory_gb=1.0)
        for measured, predicted in ((10.0, 12.0), (11.0, 9.0), (20.0, 21.0))
    ]
    assert score(three).regret_pct == pytest.approx(10.0)
    assert score(three[:2]).regret_pct is None, "two are no choice"
