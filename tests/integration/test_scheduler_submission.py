"""What a submission is judged by: the nodes that are there when it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arena.errors import InfeasibleError, SpecError
from tests.builders import node_info, train_spec
from tests.fakes.running_scheduler import cluster_of, quick_config


async def test_a_node_counts_from_the_moment_it_has_registered(tmp_path: Path) -> None:
    spec = train_spec("two", gpus={"count": 2})
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        first = await cluster.agent(node_info("n1", gpus=1))
        await first.next_of("verdict")
        with pytest.raises(InfeasibleError):
            await client.submit(spec)
        second = await cluster.agent(node_info("n2", gpus=1))
        await second.next_of("verdict")
        assert await client.submit(spec)


async def test_a_pinned_plan_that_cannot_be_read_is_refused_even_where_nothing_is_known_of_the_cluster(
    tmp_path: Path,
) -> None:
    spec = train_spec("two", parallel={"plan": "dq2"})
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        for allow_infeasible in (False, True):
            with pytest.raises(SpecError, match="unknown word 'dq2'"):
                await client.submit(spec, allow_infeasible=allow_infeasible)
        assert await client.submit(train_spec("two", parallel={"plan": "dp2"}))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"model": {"variant": {"attention_window": 8}}},
            r"attends to all positions \(model.variant: attention_window\)",
        ),
        ({"model": {"family": "t5", "encoder_layers": 2}}, "the worker trains no encoder-decoder"),
        ({"train": {"precision": "fp16"}}, "precision fp16 needs loss scaling"),
        ({"gpus": {"count": 4}, "parallel": {"plan": "dp2"}}, "is for 2 GPUs, gpus.count is 4"),
    ],
)
async def test_a_job_that_no_cluster_could_run_is_refused_and_not_queued(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        for allow_infeasible in (False, True):
            with pytest.raises(SpecError, match=why):
                await client.submit(train_spec("never", **fields), allow_infeasible=allow_infeasible)
