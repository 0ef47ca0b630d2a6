"""A running scheduler looks for groups over several GPU types beside a job's grid, and remembers what it found."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from arena.errors import InfeasibleError
from arena.planner.mixed import MixedCells
from arena.planner.source import PlannerGridSource
from arena_scheduler.grids import GridCache
from tests.builders import node_info, shape, train_spec
from tests.fakes.running_scheduler import cluster_of, quick_config

WIDE = train_spec("wide", gpus={"count": 2})
PAIR = shape(("t4", 1, 1), ("v100-16", 1, 1))


async def test_a_job_that_fits_two_types_only_is_launched_on_both_in_rank_order(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, policy="arena")) as cluster:
        client = cluster.client()
        agents = [await cluster.agent(node_info(name, gpus=1, gpu_type=name)) for name in ("v100-16", "t4")]
        for agent in agents:
            await agent.next_of("verdict")
        await client.submit(WIDE)
        launches = [(await agent.next_of("launch")) for agent in agents]

    by_type = {launch.gpu_type: list(launch.node_ranks) for launch in launches}
    assert by_type == {"t4": [0], "v100-16": [1]}
    assert {launch.world_size for launch in launches} == {2}


async def test_a_policy_that_cannot_use_such_groups_is_not_offered_any(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, policy="fcfs")) as cluster:
        for name in ("v100-16", "t4"):
            await (await cluster.agent(node_info(name, gpus=1, gpu_type=name))).next_of("verdict")
        with pytest.raises(InfeasibleError):
            await cluster.client().submit(WIDE)


async def test_jobs_that_are_alike_share_one_search() -> None:
    grids = GridCache(PlannerGridSource(), monotonic, mixed=MixedCells())
    plain = await grids.get(WIDE, PAIR)
    first, second = await grids.widened(WIDE, PAIR), await grids.widened(WIDE.model_copy(update={"name": "b"}), PAIR)
    grids.close()

    assert plain.grid.mixed == ()
    assert [str(cell.group) for cell in first.grid.mixed] == ["t4 1, v100-16 1"]
    assert second.grid is first.grid
    assert (first.build_s > 0, second.build_s) == (True, 0.0)
