"""``arena-greedy`` where it heeds deadlines, and where it knows data-parallel plans alone: by hand and as users ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from arena.domain.allocation import GpuGroup
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import JobId
from arena.domain.parallel import ParallelPlan
from arena.domain.records import JobState
from arena.policies.arena_greedy import ArenaGreedy, GreedyRules
from arena.policies.greedy_rosters import Ask, data_parallel_only
from arena.sim.replay import Replay, ReplayJob
from arena_traces.formats.log_writing import log_job, log_lines
from tests.builders import job_record, shape, train_spec
from tests.fakes.command_line import Arena
from tests.sim.test_replay import FREE, job, table
from tests.trace_files import ARENA_HEAD, written
from tests.trace_files import table as rows_of

SPEEDS = table({("a", (1,)): 2.0, ("a", (2,)): 1.0})


def ends(
    *jobs: ReplayJob, gpus: int, asks: Mapping[str, Ask], deadlines: bool, migration: bool = True
) -> dict[str, float]:
    rules = replace(GreedyRules(), deadlines=deadlines, migration=migration)
    policy = ArenaGreedy(rules=rules, asks={JobId(name): ask for name, ask in asks.items()})
    replay = Replay(shape=shape(("a", gpus, 1)), policy=policy, grids=SPEEDS, costs=FREE, check=True)
    return {str(one.job_id): one.ended_at_s for one in replay.run(jobs).outcomes}


def wide(name: str, at_s: float, steps: int, deadline_s: float | None = None) -> ReplayJob:
    return job(name, at_s, steps, kind="malleable", gpus={}, deadline_s=deadline_s)


ONE = ("a", 1)


def test_who_can_be_in_time_goes_before_who_cannot() -> None:
    """One GPU, 2 s a step: b can never be in time, c can be if it is next, also with 10 s for its start."""
    jobs = (wide("a", 0.0, 50), wide("b", 1.0, 50, deadline_s=90.0), wide("c", 2.0, 50, deadline_s=215.0))
    asks = dict.fromkeys("abc", ONE)
    assert ends(*jobs, gpus=1, asks=asks, deadlines=False) == {"a": 100.0, "b": 200.0, "c": 300.0}
    assert ends(*jobs, gpus=1, asks=asks, deadlines=True) == {"a": 100.0, "c": 200.0, "b": 300.0}


def test_who_cannot_be_in_time_gives_way_also_when_it_runs() -> None:
    """late runs from 0 s on, and will not be in time; soon comes at 20 s. late has done 10 steps, and 40 are left."""
    jobs = (wide("late", 0.0, 50, deadline_s=30.0), wide("soon", 20.0, 50, deadline_s=150.0))
    asks = dict.fromkeys(("late", "soon"), ONE)
    assert ends(*jobs, gpus=1, asks=asks, deadlines=False) == {"late": 100.0, "soon": 200.0}
    assert ends(*jobs, gpus=1, asks=asks, deadlines=True) == {"soon": 120.0, "late": 200.0}


def test_who_is_in_time_is_not_halved_out_of_it() -> None:
    """x has both GPUs and 100 steps of 1 s; halved at 10 s for y it would end at 190 s or later, and is due at 130."""
    jobs = (wide("x", 0.0, 100, deadline_s=130.0), wide("y", 10.0, 10))
    asks = {"x": ("a", 2), "y": ONE}
    free = ends(*jobs, gpus=2, asks=asks, deadlines=False)
    assert free["y"] < 100.0
    heeded = ends(*jobs, gpus=2, asks=asks, deadlines=True)
    assert heeded["x"] == 100.0
    assert heeded["y"] > 100.0


def test_without_deadlines_the_mode_changes_nothing() -> None:
    jobs = (wide("x", 0.0, 100), wide("y", 10.0, 10), wide("z", 20.0, 70))
    asks = {"x": ("a", 2), "y": ONE, "z": ONE}
    assert ends(*jobs, gpus=2, asks=asks, deadlines=True) == ends(*jobs, gpus=2, asks=asks, deadlines=False)


def plan(dp: int, tp: int, time_s: float) -> PlanEstimate:
    return PlanEstimate(plan=ParallelPlan.uniform(layer_count=4, dp=dp, tp=tp), estimate=Estimate(iter_time_s=time_s))


def test_of_each_group_the_fastest_plan_with_whole_replicas_is_left() -> None:
    group, other = GpuGroup.of("a", [4]), GpuGroup.of("a", [2])
    grid = Grid(
        cells=(
            Cell(group=other, best=plan(1, 2, 2.0)),
            Cell(group=group, best=plan(2, 2, 1.0), others=(plan(4, 1, 1.8), plan(4, 1, 1.5), plan(1, 4, 1.2))),
        )
    )
    [found] = data_parallel_only(grid).cells
    assert (found.group, found.best, found.others) == (group, plan(4, 1, 1.5), ())


def log_of(path: Path, *layers: int) -> Path:
    model = {"hidden": 4096, "heads": 32, "vocab_size": 32000, "seq_len": 1024}
    specs = [
        train_spec(f"j{index}", model={**model, "layers": count}, train={"global_batch": 64}, stop={"steps": 50})
        for index, count in enumerate(layers)
    ]
    jobs = (
        log_job(job_record(spec.name, spec, submitted_at_s=10.0 * index, state=JobState.QUEUED), spec, ())
        for index, spec in enumerate(specs)
    )
    return written(path, "".join(log_lines(jobs, exported_at_s=1e6)).encode())


def test_a_study_of_the_data_parallel_ablation_has_no_other_plans(arena: Arena, tmp_path: Path) -> None:
    """Two layers of hidden 4096 fit on one GPU; 32 layers are 16 bytes times 6.7e9 parameters, and do not."""
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: a100-40, count: 1, gpus: 8}]\n")
    trace = log_of(tmp_path / "log.jsonl", 2, 32, 2)
    policy = "arena-greedy,arena-greedy:data_parallel=1"
    options = ("--cluster", tmp_path / "cluster.yaml", "--policy", policy)
    refused = arena("replay", trace, *options)
    assert refused.code == 4
    assert "it has no data-parallel plan on this cluster" in refused.err
    out = tmp_path / "out"
    done = arena("replay", trace, *options, "--drop-unplaceable", "--json", "--out", out, "--no-report")
    assert (done.document["replayed_job_count"], done.document["unplaceable_count"]) == (2, 1)
    full, narrow = done.document["policies"]
    assert narrow["whole"]["unfinished_count"] == 0
    assert narrow["whole"]["avg_jct_s"] >= full["whole"]["avg_jct_s"]


def test_a_table_does_not_say_which_plans_are_data_parallel(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: cpu, count: 1, gpus: 1}]\n")
    (tmp_path / "steps.csv").write_text("workload,global_batch,group,step_time_s\nnet__1B,8,cpu 1,1\n")
    trace = written(tmp_path / "arena.csv", rows_of(ARENA_HEAD, "1,0,100,net__1B,-1,8,1,cpu"))
    options = ("--cluster", tmp_path / "cluster.yaml", "--grids", tmp_path / "steps.csv")
    done = arena("replay", trace, *options, "--policy", "arena-greedy:data_parallel=1")
    assert done.code == 4
    assert "which plans of net__1B are data-parallel is not known" in done.err
    assert arena("replay", trace, *options, "--policy", "arena-greedy:deadlines=1").code == 0
