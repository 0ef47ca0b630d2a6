"""The study of Arena's published data: its pure parts on made-up cells, and the data themselves where they are."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from experiments.arena_data.clusters import gpu_type_of, links_by_type
from experiments.arena_data.data import (
    Collective,
    Hardware,
    Outcome,
    Workload,
    cell_of,
    cells_of,
    collectives_of,
    data_folder,
    estimates_of,
    hardware_of,
    is_consistent,
    workload_of,
)
from experiments.arena_data.models import BERT_SHAPES, MOE_SHAPES, RESNET_SHAPES, trained
from experiments.arena_data.predict import (
    Layout,
    PlanPrediction,
    Prediction,
    chosen_by_estimates,
    is_refused,
    is_searched,
    layouts_of,
    predict,
)
from experiments.arena_data.results import feasibility, results
from experiments.arena_data.run import main
from experiments.arena_data.score import (
    Timing,
    agreement,
    constants,
    errors,
    left_out_errors,
    regret,
    regrets,
    spread,
)

FOLDER = data_folder()
needs_data = pytest.mark.skipif(FOLDER is None, reason="Arena's data are not here (set ARENA_DATA_DIR)")


def test_balanced_accuracy_counts_both_classes_alike():
    said_and_so = [(True, True), (True, True), (False, True), (True, True), (False, False), (True, False)]
    found = agreement(said_and_so)
    assert found.balanced_pct == pytest.approx(100 * (3 / 4 + 1 / 2) / 2)
    assert found.plain_pct == pytest.approx(100 * 4 / 6)
    assert found.always_yes_pct == pytest.approx(100 * 4 / 6)
    assert (found.ran_said, found.ran, found.failed_said, found.failed) == (3, 4, 1, 2)


def test_always_yes_has_half_of_the_balanced_accuracy():
    assert agreement([(True, True)] * 29 + [(True, False)]).balanced_pct == 50.0


def test_one_class_alone_has_no_balanced_accuracy():
    assert agreement([(True, True)]).balanced_pct is None
    assert agreement([]).plain_pct is None


def timing(model: str, predicted_s: float, measured_s: float, gpu_type: str = "a40") -> Timing:
    return Timing(gpu_type=gpu_type, model=model, family="bert", predicted_s=predicted_s, measured_s=measured_s)


def test_a_factor_is_the_median_ratio_of_its_gpu_type():
    timings = [timing("a", 1, 2), timing("b", 1, 3), timing("c", 1, 10), timing("a", 4, 2, "a100")]
    factors = constants(timings)
    assert factors == {"a40": 3.0, "a100": 0.5}
    assert errors(timings, factors) == pytest.approx([0.5, 0.0, -0.7, 0.0])


def test_a_left_out_model_does_not_see_its_own_cells():
    timings = [timing("a", 1, 2), timing("a", 2, 4), timing("b", 1, 1), timing("c", 1, 1, "a100")]
    found = left_out_errors(timings)
    # Of b alone the factor is 1, which halves the times of a; of a alone it is 2, which doubles those of b.
    assert found[:3] == pytest.approx([-0.5, -0.5, 1.0])
    assert math.isnan(found[3]), "no other model ran on that type"
    assert spread(found).count == 3


def test_spread_is_of_sizes_and_its_bias_of_signs():
    found = spread([-0.1, -0.2, 0.3])
    assert (found.median_pct, found.bias_pct) == (pytest.approx(20.0), pytest.approx(-10.0))
    assert found.mean_pct == pytest.approx(20.0)
    assert found.median_interval_pct is not None
    assert found.median_interval_pct[0] >= 10.0
    assert found.median_interval_pct[1] <= 30.0
    assert spread([]).median_pct is None


def test_regret_is_by_what_a_choice_is_slower_than_the_best():
    assert regret(12.0, [10.0, 12.0, math.inf]) == pytest.approx(0.2)


def test_choices_without_room_count_for_no_mean():
    found = regrets([0.0, 0.2, math.inf])
    assert (found.count, found.best_chosen, found.without_room) == (3, 1, 1)
    assert found.mean_pct == pytest.approx(10.0)
    assert found.worst_pct == pytest.approx(20.0)


def test_keys_name_workloads_and_hardware():
    assert workload_of("wide_resnet_500M_256") == Workload(family="wide_resnet", size="500M", batch=256)
    assert workload_of("bert_1.3B_128") == Workload(family="bert", size="1.3B", batch=128)
    assert hardware_of("8_a40_8_n_2_d") == Hardware(gpu_type="a40", node_count=8, gpus_per_node=2)
    assert is_consistent("2_a100_2_n_2_d")
    assert not is_consistent("1_a100_2_n_2_d")
    with pytest.raises(ValueError, match="names no model"):
        workload_of("bert_128")
    with pytest.raises(ValueError, match="names no GPUs"):
        hardware_of("a40")


def test_the_faster_of_two_estimates_of_a_plan_counts_and_failures_are_infinite():
    rows = [
        [[1, 2, 1], 9.0, 0.2, 0.0, 9.2],
        [[1, 2, 1], 9.0, 0.1, 0.0, 9.1],
        [[2, 1, 1], math.inf, math.nan, math.nan, math.inf],
        -1,
    ]
    assert estimates_of(rows) == {(1, 2, 1): 9.1, (2, 1, 1): math.inf}


@pytest.mark.parametrize(
    ("seconds", "outcome", "time_s"),
    [(1.5, Outcome.RAN, 1.5), (-1.0, Outcome.FAILED, None), (None, Outcome.UNTRIED, None)],
)
def test_a_negative_time_is_a_failure_and_none_was_not_tried(
    seconds: float | None, outcome: Outcome, time_s: float | None
):
    cell = cell_of("bert_760M_128", "1_a40_1_n_1_d", seconds, [])
    assert (cell.outcome, cell.time_s, cell.is_estimated_feasible) == (outcome, time_s, False)


def all_reduce(hardware: Hardware, ranks: tuple[int, ...], size_bytes: float, time_s: float) -> Collective:
    return Collective(hardware=hardware, kind="all-reduce", ranks=ranks, size_bytes=size_bytes, time_s=time_s)


def test_links_are_what_large_all_reduces_reach():
    one, two = (Hardware(gpu_type="a40", node_count=count, gpus_per_node=2) for count in (1, 2))
    size = 1e9
    links = links_by_type(
        [
            all_reduce(one, (0, 1), size, 0.1),  # 2 (n - 1) / n of 1 GB in 0.1 s
            all_reduce(one, (0, 1), 1e3, 1.0),  # small: tells latency
            all_reduce(two, (0, 2), size, 0.5),  # one rank of each node, and another group at the same time
        ]
    )
    found = gpu_type_of(two, links)
    assert found.link_bandwidth_bytes_per_s == pytest.approx(10e9)
    assert found.network_bandwidth_bytes_per_s == pytest.approx(2e9)
    alone = gpu_type_of(Hardware(gpu_type="a40", node_count=2, gpus_per_node=1), links)
    assert alone.network_bandwidth_bytes_per_s == pytest.approx(4e9)


@pytest.mark.parametrize(
    ("family", "size", "tolerance"),
    [
        *(("bert", size, 0.11) for size in BERT_SHAPES),  # the names leave the second of two embeddings out
        *(("moe", size, 0.06) for size in MOE_SHAPES),
        *(("wide_resnet", size, 0.03) for size in RESNET_SHAPES),
    ],
)
def test_models_have_the_parameters_that_their_names_say(family: str, size: str, tolerance: float):
    model = trained(Workload(family=family, size=size, batch=1024)).model
    named = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
    assert model.parameter_count == pytest.approx(named, rel=tolerance)


def test_layers_sum_to_the_model_and_all_of_them_are_there():
    work = trained(Workload(family="wide_resnet", size="13B", batch=256))
    assert work.model.unit_count - 2 == work.train.model.layers == 33
    mixture = trained(Workload(family="moe", size="690M", batch=256)).model
    assert [mixture.layer(index).expert_count for index in range(4)] == [16, 0, 16, 0]


@pytest.mark.parametrize(
    ("workload", "hardware", "refused"),
    [
        ("moe_2.4B_256", "1_v100_1_n_16_d", True),  # 16 samples, 8 groups of tokens, a mesh of 16 is compiled
        ("moe_2.4B_512", "1_v100_1_n_16_d", False),
        ("moe_2.4B_256", "8_a40_8_n_2_d", False),  # meshes of at most four nodes
        ("bert_2.6B_128", "1_v100_1_n_16_d", False),  # 8 samples: a mesh of 16 replicas is not looked at
    ],
)
def test_the_compiler_fails_where_a_mesh_divides_samples_but_not_groups(workload: str, hardware: str, refused: bool):
    assert is_refused(workload_of(workload), hardware_of(hardware)) is refused


def test_the_search_keeps_stages_on_four_nodes_and_even():
    hardware = hardware_of("8_a40_8_n_2_d")
    model = trained(workload_of("bert_1.3B_512")).model

    def searched(degrees: tuple[int, int, int], stage_layers: tuple[int, ...]) -> bool:
        return is_searched(Layout(degrees=degrees, stage_layers=stage_layers), model, hardware)

    assert searched((2, 8, 1), (12, 12))
    assert not searched((2, 8, 1), (18, 6))
    assert not searched((1, 16, 1), (24,))


def test_layouts_fill_the_gpus_and_keep_tensor_parallelism_inside_a_node():
    hardware = hardware_of("4_a40_4_n_2_d")
    layouts = list(layouts_of(workload_of("bert_760M_128"), hardware))
    assert {math.prod(layout.degrees) for layout in layouts} == {8}
    assert max(layout.degrees[2] for layout in layouts) == 2
    assert all(sum(layout.stage_layers) == 24 for layout in layouts)


def priced(degrees: tuple[int, int, int], time_s: float, memory_bytes: float, *, ep: int = 1) -> PlanPrediction:
    layout = Layout(degrees=degrees, stage_layers=(6,) * degrees[0], expert_parallel=ep)
    fits = memory_bytes <= 10.0
    return PlanPrediction(layout=layout, time_s=time_s, memory_bytes=memory_bytes, fits=fits, is_searched=True)


def predicted(*plans: PlanPrediction) -> Prediction:
    rows = [[[1, 2, 1], 0, 0, 0, 8.0], [[2, 1, 1], 0, 0, 0, 9.0]]
    cell = cell_of("moe_690M_256", "1_a40_1_n_2_d", 7.0, rows)
    return Prediction(cell=cell, plans=plans, is_refused=False, limit_bytes=10.0)


def test_our_choice_is_the_fastest_that_fits_of_those_the_judge_knows():
    quick = priced((1, 2, 1), 1.0, 9.0, ep=2)
    big, small = priced((1, 2, 1), 2.0, 11.0), priced((2, 1, 1), 3.0, 9.0)
    assert predicted(quick, big, small).best == quick
    assert chosen_by_estimates(predicted(quick, big, small)) == small
    assert chosen_by_estimates(predicted(quick, big)) == big, "where none fits, the leanest"


def test_results_tell_what_is_wrong_and_can_be_written():
    one = predicted(priced((1, 2, 1), 2.0, 11.0), priced((2, 1, 1), 3.0, 12.0))
    found = results([one], [0.1])
    assert [cell["cell"] for cell in found["wrongly_infeasible"]] == ["moe_690M_256 on 1x2 a40"]
    assert found["times"]["overall"]["count"] == 0
    assert found["regret"]["none_fits"] == 1
    json.dumps(found, allow_nan=False)


def test_without_data_the_study_says_so_and_counts_a_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ARENA_DATA_DIR", str(tmp_path))
    out = tmp_path / "out.json"
    assert main(["--json", str(out)]) == 0
    assert "skipped 1 check" in capsys.readouterr().out
    assert json.loads(out.read_text())["skipped"] == 1


@needs_data
def test_arenas_own_estimates_agree_with_185_of_243_cells():
    assert FOLDER is not None
    tried = [cell for cell in cells_of(FOLDER) if cell.outcome is not Outcome.UNTRIED]
    yes = agreement((True, cell.outcome is Outcome.RAN) for cell in tried)
    assert yes.plain_pct == pytest.approx(96.7, abs=0.05)
    theirs = agreement(
        (cell.is_estimated_feasible, cell.outcome is Outcome.RAN) for cell in tried if cell.estimates_s is not None
    )
    assert (theirs.right, theirs.count) == (185, 243)


@needs_data
def test_a_part_of_the_data_is_told_as_well_as_the_readme_says():
    assert FOLDER is not None
    cells = cells_of(FOLDER)
    links = links_by_type(collectives_of(FOLDER))
    failed = [cell for cell in cells if cell.outcome is Outcome.FAILED]
    ran = [cell for cell in cells if cell.outcome is Outcome.RAN][::5]
    predictions = [predict(cell, links) for cell in (*failed, *ran)]

    found = results(predictions, [])

    assert feasibility(predictions)["ours"]["balanced_pct"] > 90
    assert found["times"]["overall"]["median_pct"] < 12
    assert found["regret"]["ours"]["mean_pct"] < 5
