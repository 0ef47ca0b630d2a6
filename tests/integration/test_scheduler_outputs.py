"""Two training jobs that are not over never write their models to one place, and their checkpoints are never mixed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from arena.errors import RefusedError
from arena_scheduler.config import SchedulerConfig
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.running_scheduler import cluster_of, eventually, quick_config

PLACE = "/models/one"


@pytest.fixture
def config(tmp_path: Path) -> SchedulerConfig:
    return quick_config(tmp_path)


@pytest.mark.parametrize("again", [PLACE, "/models/one/", "/models/./two/../one"])
async def test_a_place_that_another_job_writes_to_is_refused_until_that_is_over(
    config: SchedulerConfig, again: str
) -> None:
    async with cluster_of(config) as cluster:
        client = cluster.client()
        first = await client.submit(train_spec("a", output_dir=PLACE))
        second = train_spec("b", output_dir=again)
        with pytest.raises(RefusedError, match=f"job {first} does, and is not over") as refused:
            await client.submit(second)
        assert refused.value.details["job_id"] == first
        with pytest.raises(RefusedError):
            await client.submit(second, dry_run=True)
        assert await client.submit(train_spec("c", output_dir="/models/two"))
        assert await client.submit(command_spec("d").model_copy(update={"output_dir": PLACE}))
        await client.call("CancelJobs", job_ids=[first], request_id="x")
        assert await client.submit(second)


async def test_of_several_that_come_at_once_one_gets_the_place(config: SchedulerConfig) -> None:
    async with cluster_of(config) as cluster:
        client = cluster.client()
        specs = [train_spec(f"j{number}", output_dir=PLACE) for number in range(8)]
        found = await asyncio.gather(*map(client.submit, specs), return_exceptions=True)
        assert sorted(isinstance(one, RefusedError) for one in found) == [False] + [True] * 7


async def test_a_place_that_the_scheduler_chose_for_another_job_is_refused(config: SchedulerConfig) -> None:
    async with cluster_of(config) as cluster:
        client = cluster.client()
        first = await client.submit(train_spec("a"))
        with pytest.raises(RefusedError, match=first):
            await client.submit(train_spec("b", output_dir=f"{config.output_root}/{first}"))


async def test_a_scheduler_that_starts_anew_knows_whose_place_it_is(config: SchedulerConfig) -> None:
    spec = train_spec("a", output_dir=PLACE)
    async with cluster_of(config) as cluster:
        first = await cluster.client().submit(spec, request_id="r1")
    async with cluster_of(config) as cluster:
        client = cluster.client()
        with pytest.raises(RefusedError, match=first):
            await client.submit(spec, request_id="r2")
        assert await client.submit(spec, request_id="r1") == first, "the same request is the same job"


async def test_jobs_that_name_one_place_for_checkpoints_have_a_directory_each(
    config: SchedulerConfig, tmp_path: Path
) -> None:
    async with cluster_of(config) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1", gpus=2))
        spec = train_spec("a", kind="rigid", gpus={"count": 1}, checkpoint={"dir": str(tmp_path)})
        job_ids = [await client.submit(spec) for _ in range(2)]
        await eventually(lambda: agent.kinds.count("launch") == 2, "both run")
        launches = [await agent.next_of("launch") for _ in range(2)]
        assert {launch.checkpoint_dir for launch in launches} == {f"{tmp_path}/{job_id}" for job_id in job_ids}
