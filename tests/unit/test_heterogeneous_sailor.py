"""Sailor's planner cases: its simulator's formulas, and our plans beside its own (where the data are)."""

import json

import pytest

from experiments.sailor_cases.run import Row, data_folder, row_of
from experiments.sailor_cases.simulator import Simulator

FOLDER = data_folder()
needs_data = pytest.mark.skipif(FOLDER is None, reason="Sailor's data are not here (set ARENA_DATA_DIR)")


@needs_data
@pytest.mark.parametrize("case", ["A", "B", "C", "D", "F", "H", "K"])
def test_no_plan_of_ours_is_slower_than_sailors(case: str) -> None:
    assert FOLDER is not None
    path = next((FOLDER / "planner_cases").glob(f"{case}_*.json"))

    row: Row = row_of(FOLDER, path)

    assert row.sailor_formula_s == pytest.approx(row.sailor_simulated_s, rel=1e-9)
    assert row.is_as_good, f"{row.arena_s} s against {row.sailor_simulated_s} s"
    budget = json.loads(path.read_text())["case"].get("max_cost")
    assert budget is None or row.arena_usd <= budget


@needs_data
def test_memory_of_sailors_plans_is_what_its_simulator_says() -> None:
    assert FOLDER is not None
    told = json.loads((FOLDER / "planner_cases" / "K_opt350_8A100_1zone_small.json").read_text())["chosen"]
    simulator = Simulator(root=FOLDER / "sailor", model="OPT-350")

    found = simulator.memory_bytes(("A100-40", 2, "us-central1-a"), 2, range(26), 1)

    assert found == told["sim_mem_per_stage"][0]["bytes"]
