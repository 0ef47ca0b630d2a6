"""Plan Sailor's planner cases with our search and print both tools' plans, judged by Sailor's own simulator.

Usage: python -m experiments.sailor_cases.run [--json OUT]. The cases and profiles are looked for in
``$ARENA_DATA_DIR/data/sailor`` (default: ``../shared`` where it exists).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from arena.planner.heterogeneous.goal import Goal
from arena.planner.heterogeneous.offer import Constraints, HeterogeneousResult, Space
from arena.planner.heterogeneous.tree import Hunt
from experiments.sailor_cases.judge import SailorJudge, offer_of, stages_of, tables_of_case, train_of
from experiments.sailor_cases.simulator import SailorKind, Simulator

MODELS = {"opt_350": "OPT-350", "gpt_neo27": "GPT-Neo-2.7"}
PP_MAX = 3
"""Our plans stay at depths for which the formulas reproduce the simulator to the last digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: Sailor's plan and ours; seconds and dollars by the simulator's formulas."""

    case: str
    sailor_plan: str
    sailor_planner_s: float
    sailor_simulated_s: float
    sailor_formula_s: float
    sailor_usd: float
    arena_plan: str
    arena_s: float
    arena_usd: float
    arena_bound_s: float

    @property
    def is_as_good(self) -> bool:
        """Whether ours is not slower."""
        return self.arena_s <= self.sailor_simulated_s * (1 + 1e-9)


def data_folder() -> Path | None:
    """Return where Sailor's data lie, None where nobody has them."""
    base = Path(os.environ.get("ARENA_DATA_DIR", "../shared"))
    found = base / "data" / "sailor"
    return found if (found / "planner_cases").is_dir() else None


def row_of(folder: Path, path: Path) -> Row:
    """Plan one case."""
    told = json.loads(path.read_text())
    simulator = Simulator(root=folder / "sailor", model=MODELS[told["case"]["train_cfg"]])
    chosen = told["chosen"]
    stages, cuts = _sailor_stages(chosen["plan"])
    found = planned(simulator, told["case"])
    if found.plan is None or found.estimate is None:
        raise SystemExit(f"no plan for {path.name}: {'; '.join(map(str, found.reasons))}")
    own, own_cuts = stages_of(found.plan)
    return Row(
        case=path.name.split("_", 1)[0],
        sailor_plan=_shown(stages, cuts, chosen["plan"]["mbs"]),
        sailor_planner_s=chosen["plan"]["planner_iter_time_s"],
        sailor_simulated_s=chosen["sim_iter_time_s"],
        sailor_formula_s=simulator.step_s(stages, cuts, chosen["plan"]["mbs"]),
        sailor_usd=chosen["sim_cost_per_iter"],
        arena_plan=_shown(own, own_cuts, found.plan.micro_batch_size),
        arena_s=found.estimate.iter_time_s,
        arena_usd=found.estimate.usd_per_step,
        arena_bound_s=found.bound,
    )


def planned(simulator: Simulator, case: dict[str, Any]) -> HeterogeneousResult:
    """Return our plan for a case, with equal micro-batch counts as Sailor's plans have."""
    offer = offer_of(case["cluster"])
    budget = case.get("max_cost")
    goal = Goal(
        constraints=Constraints(usd_per_step_max=budget),
        usd_per_s=np.array([offer[key].gpu_type.usd_per_hour / 3600 for key in sorted(offer)]),
    )
    return Hunt(
        judge=SailorJudge(simulator=simulator, train=train_of(simulator), offer=offer),
        tables=tables_of_case(simulator, offer),
        space=Space(unequal_micro_batches=False, allow_unsupported=True, pp_max=PP_MAX),
        goal=goal,
    ).run()


def _sailor_stages(plan: dict[str, Any]) -> tuple[list[list[SailorKind]], list[int]]:
    only = plan["pipeline_list"][0]
    cuts = [0]
    for layers in only["layers_per_stage"]:
        cuts.append(cuts[-1] + len(layers))
    return [[(one[0][0][0], one[1], one[0][0][2]) for one in stage] for stage in only["tmp_per_stage"]], cuts


def _shown(stages: list[list[SailorKind]], cuts: list[int], size: int) -> str:
    texts = []
    for at, stage in enumerate(stages):
        runs = [f"{len(list(same))} x {name} tp{tp} {zone}" for (name, tp, zone), same in groupby(sorted(stage))]
        texts.append(f"{cuts[at + 1] - cuts[at]} layers: " + " + ".join(runs))
    return f"mb{size} [" + " | ".join(texts) + "]"


def main() -> int:
    """Print the table; exit 1 where a plan of ours is slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = data_folder()
    if folder is None:
        print("0 cases planned, all skipped: Sailor's data are not here (set ARENA_DATA_DIR)")
        return 0
    rows = [row_of(folder, path) for path in sorted((folder / "planner_cases").glob("*.json"))]
    print("case  Sailor: planner s / simulator s / $    Arena: simulator s / bound s / $")
    for row in rows:
        print(
            f"{row.case:4}  {row.sailor_planner_s:8.3f} {row.sailor_simulated_s:8.3f} {row.sailor_usd:8.4f}"
            f"   {row.arena_s:8.3f} {row.arena_bound_s:8.3f} {row.arena_usd:8.4f}  {'' if row.is_as_good else 'SLOWER'}"
        )
        print(f"        Sailor {row.sailor_plan}\n        Arena  {row.arena_plan}")
    print(f"{len(rows)} cases planned, 0 skipped; {sum(not row.is_as_good for row in rows)} slower than Sailor's")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return int(any(not row.is_as_good for row in rows))


if __name__ == "__main__":
    sys.exit(main())
