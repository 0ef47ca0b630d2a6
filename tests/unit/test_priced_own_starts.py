"""What a running job will need that is stopped for others until its block of time and then started again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.policies.base import Snapshot
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, chosen, command_spec, holding_of, node_info, scaling_grid, snapshot_of
from tests.builders import train_spec as train

NOW_S = 1_000.0
ONE, TWO, FOUR = (scaling_grid("cpu", [(count,)], power=0.0) for count in (1, 2, 4))
IN_THE_WAY = {ReasonCode.DEADLINE_LATE, ReasonCode.DEADLINE_OPEN}


def beside_others(counts: tuple[int, ...]) -> Snapshot:
    """Rigid jobs share a node; one that was promised its deadline too must soon have the whole node.

    Args:
        counts: GPUs of these jobs, which have deadlines that were promised, one after the other on the second node.
    """
    grids = {1: ONE, 2: TWO}
    jobs = {"lasting": (command_spec("lasting", preemptible=False), ONE)}
    running = {"lasting": holding_of(ONE, allocation_on(("n0", (0,))), movable=False)}
    begins = 0
    for at, count in enumerate(counts):
        spec = train(f"r{at}", kind="rigid", gpus={"count": count}, stop={"steps": 300}, deadline_s=400.0)
        jobs[spec.name] = (spec, grids[count])
        devices = allocation_on(("n1", tuple(range(begins, begins + count))))
        running[spec.name] = holding_of(grids[count], devices, since_s=NOW_S - 200.0)
        begins += count
    whole = train("whole", kind="rigid", gpus={"count": 4}, stop={"steps": 100}, deadline_s=135.0)
    nodes = [node_info(f"n{at}", gpus=4) for at in range(2)]
    found = snapshot_of(nodes, {**jobs, "whole": (whole, FOUR)}, running=running, now_s=NOW_S, restart_s=10.0)
    asked = {
        name: replace(job, submitted_at_s=NOW_S, is_deadline_promised=job.spec.deadline_s is not None)
        for name, job in found.jobs.items()
    }
    return replace(found, jobs=found.jobs.update(asked))  # type: ignore[attr-defined]  # an immutable map


@pytest.mark.parametrize("counts", [(2,), (1, 2), (1,), (1, 1, 1)])
def test_the_block_of_a_running_job_breaks_no_node_that_only_what_it_has_now_breaks(counts: tuple[int, ...]) -> None:
    """They find room beside the one that lasts, so the node is free as a whole, and nobody is late."""
    snapshot, policy = beside_others(counts), PricedPolicy()
    decision = policy.decide(snapshot)
    assert chosen(decision, "whole").group.gpu_count == 4
    told = {one.code for reasons in decision.reasons.values() for one in reasons}
    assert not told & IN_THE_WAY
    asking = replace(snapshot.jobs[JobId("whole")], is_deadline_promised=False)
    answer = policy.admission(replace(snapshot, jobs=snapshot.jobs.set(asking.job_id, asking)), asking.job_id)  # type: ignore[attr-defined]
    assert answer is not None
    assert answer.is_promised
