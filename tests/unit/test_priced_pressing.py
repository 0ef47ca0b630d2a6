"""Who finds devices where several deadlines press at once, and nodes are kept for more than one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.policies.base import Holding, Snapshot
from arena.policies.priced.policy import PricedPolicy
from tests.builders import (
    allocation_on,
    chosen,
    holding_of,
    node_info,
    scaling_grid,
    snapshot_of,
    train_spec,
)

NOW_S = 1_000.0
RESTART_S = 10.0
WIDE = scaling_grid("cpu", [(1,), (2,), (4,)])
SMALL = scaling_grid("cpu", [(1,)])
PAIR = scaling_grid("cpu", [(2,)])

Runs = tuple[Grid, int, int, float]
"""Its grid, the GPUs it has, the steps it has left and the time until its deadline."""


def pressed(nodes: list[list[Runs]], steps: int, left_s: float) -> Snapshot:
    """Promised jobs on full nodes, and one that waits for a whole node: its block has come."""
    jobs, running = dict[str, tuple[JobSpec, Grid]](), dict[str, Holding]()
    for node, runs in enumerate(nodes):
        begins = 0
        for grid, gpus, own_steps, own_left_s in runs:
            name = f"r{len(jobs)}"
            jobs[name] = (train_spec(name, stop={"steps": own_steps}, deadline_s=own_left_s), grid)
            devices = allocation_on((f"n{node}", tuple(range(begins, begins + gpus))))
            running[name] = holding_of(grid, devices, since_s=NOW_S - 200.0)
            begins += gpus
    jobs["w"] = (train_spec("w", stop={"steps": steps}, deadline_s=left_s), WIDE)
    infos = [node_info(f"n{at}", gpus=4) for at in range(len(nodes))]
    return promised(snapshot_of(infos, jobs, running=running, now_s=NOW_S, restart_s=RESTART_S))


def promised(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot in which all were submitted now, and those with deadlines were promised them."""
    records = {
        name: replace(job, submitted_at_s=NOW_S, is_deadline_promised=job.spec.deadline_s is not None)
        for name, job in snapshot.jobs.items()
    }
    return replace(snapshot, jobs=snapshot.jobs.update(records))  # type: ignore[attr-defined]  # an immutable map


TWO_PRESS = [
    [(SMALL, 1, 830, 1_044.0), (WIDE, 1, 1_350, 2_147.0), (WIDE, 2, 615, 2_407.0)],
    [(SMALL, 1, 290, 1_320.0), (SMALL, 1, 710, 1_230.0), (WIDE, 2, 960, 410.0)],
]


@pytest.mark.parametrize("nodes", [TWO_PRESS, TWO_PRESS[::-1]])
def test_a_node_is_cleared_for_one_though_the_other_is_kept_for_another(nodes: list[list[Runs]]) -> None:
    """The last job of the second node must soon have a whole one, and the values take two GPUs of each node."""
    decision = PricedPolicy().decide(pressed(nodes, 100, 64.0))
    assert chosen(decision, "w").group.gpu_count == 4


ONE_SPARED = [
    [(WIDE, 2, 1_313, 700.0), (SMALL, 1, 689, 785.0), (SMALL, 1, 82, 112.0)],
    [(SMALL, 1, 724, 2_700.0), (SMALL, 1, 563, 645.0), (SMALL, 1, 72, 2_080.0), (WIDE, 1, 992, 1_113.0)],
]


@pytest.mark.parametrize("nodes", [ONE_SPARED, ONE_SPARED[::-1]])
def test_a_node_kept_for_one_whose_block_has_not_come_is_open_to_those_whose_blocks_have(
    nodes: list[list[Runs]],
) -> None:
    """The two small ones beside the first job must run on: they find room where a node is kept for it."""
    decision = PricedPolicy().decide(pressed(nodes, 300, 138.0))
    assert chosen(decision, "w").group.gpu_count == 4
    must_run = [JobId(name) for name in ("r1", "r2")] if nodes is ONE_SPARED else [JobId("r5"), JobId("r6")]
    assert all(decision.choices.get(name, "kept") is not None for name in must_run)


@pytest.mark.parametrize("soon_s", [0.5, 3.0, 9.0])
@pytest.mark.parametrize("steps", [290, 400])
def test_who_must_run_again_before_another_would_is_not_the_one_that_is_stopped(soon_s: float, steps: int) -> None:
    """A pair's block comes soon, a small one's later. Beside the pair others last: it would find no two GPUs together.

    Args:
        soon_s: Time until the pair's block comes.
        steps: That the small one has left: fewer than the pair, so it is worth more.
    """
    lasting = {f"l{at}": holding_of(SMALL, allocation_on((f"n{at // 3}", (at % 3,))), movable=False) for at in range(5)}
    rigid = {
        "small": (SMALL, 1, steps, 652.0),
        "pair": (PAIR, 2, 960, 20.0 + 1.1 * 960 / 2**0.8 + soon_s + RESTART_S),
        "waits": (SMALL, 1, 736, 20.0 + 1.1 * 736 + RESTART_S),
    }
    jobs = {name: (train_spec(name, stop={"steps": 200}, preemptible=False), SMALL) for name in lasting} | {
        name: (train_spec(name, kind="rigid", gpus={"count": count}, stop={"steps": left}, deadline_s=due_s), grid)
        for name, (grid, count, left, due_s) in rigid.items()
    }
    running = lasting | {
        "small": holding_of(SMALL, allocation_on(("n0", (3,))), since_s=NOW_S - 200.0),
        "pair": holding_of(PAIR, allocation_on(("n1", (2, 3))), since_s=NOW_S - 200.0),
    }
    nodes = [node_info(f"n{at}", gpus=4) for at in range(2)]
    decision = PricedPolicy().decide(
        promised(snapshot_of(nodes, jobs, running=running, now_s=NOW_S, restart_s=RESTART_S))
    )
    assert JobId("pair") not in decision.choices
    assert chosen(decision, "waits").allocation.node_ids == ("n0",)
