"""Domain values for tests: small, valid, with what a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from immutables import Map

from arena.domain.allocation import Allocation, GpuGroup, NodeShare
from arena.domain.cluster import ClusterShape, Device, NodeInfo, NodePool
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import AttemptRecord, EndKind, JobRecord, JobState
from arena.policies.base import Choice, Decision, Holding, Snapshot
from arena.policies.capacity import Capacity

TINY_MODEL: Mapping[str, Any] = {
    "family": "gpt",
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "vocab_size": 256,
    "seq_len": 64,
}


def train_spec(name: str = "job", *, model: Mapping[str, Any] | None = None, **fields: Any) -> JobSpec:
    """A malleable training job of a tiny GPT; ``fields`` go to the spec, ``model`` to the model."""
    train = {"model": {**TINY_MODEL, **(model or {})}, "global_batch": 8, **fields.pop("train", {})}
    return JobSpec.model_validate({"name": name, "train": train, "stop": {"steps": 1000}, **fields})


def command_spec(name: str = "script", *, count: int = 1, **fields: Any) -> JobSpec:
    """A command job on so many GPUs."""
    command = fields.pop("command", {"argv": ("python", "train.py")})
    return JobSpec.model_validate(
        {"name": name, "command": command, "kind": "rigid", "gpus": {"count": count}, **fields}
    )


def job_record(job_id: str = "j1", spec: JobSpec | None = None, **fields: Any) -> JobRecord:
    """A queued job."""
    return JobRecord(
        job_id=JobId(job_id),
        spec=spec or train_spec(job_id),
        user=fields.pop("user", "ann"),
        request_id=fields.pop("request_id", f"request-{job_id}"),
        submitted_at_s=fields.pop("submitted_at_s", 0.0),
        **fields,
    )


def device_id(node: str, index: int) -> DeviceId:
    """The name of a node's virtual GPU."""
    return DeviceId(f"{node}/vgpu-{index}")


def node_info(node: str = "n1", *, gpus: int = 2, gpu_type: str = "cpu", **fields: Any) -> NodeInfo:
    """A node with virtual GPUs."""
    return NodeInfo(
        node_id=NodeId(node),
        incarnation=fields.pop("incarnation", f"{node}-1"),
        gpu_type=gpu_type,
        devices=tuple(Device(device_id=device_id(node, index), index=index) for index in range(gpus)),
        address=fields.pop("address", "127.0.0.1"),
        port_low=fields.pop("port_low", 20000),
        port_high=fields.pop("port_high", 20099),
        **fields,
    )


def shape(*pools: tuple[str, int, int] | tuple[str, int, int, str]) -> ClusterShape:
    """A cluster shape from (type, GPUs per node, nodes[, zone])."""
    return ClusterShape(
        pools=tuple(
            sorted(
                NodePool(gpu_type=pool[0], gpus_per_node=pool[1], node_count=pool[2], zone=(*pool, "default")[3])
                for pool in pools
            )
        )
    )


def shape_of_nodes(nodes: Iterable[NodeInfo]) -> ClusterShape:
    """The shape of some nodes."""
    counts: dict[tuple[str, int, str], int] = {}
    for node in nodes:
        key = (node.gpu_type, len(node.devices), node.zone)
        counts[key] = counts.get(key, 0) + 1
    return shape(*((gpu_type, gpus, count, zone) for (gpu_type, gpus, zone), count in counts.items()))


def capacity_of(nodes: Iterable[NodeInfo], taken: Iterable[Allocation] = ()) -> Capacity:
    """The free devices of some nodes, all clean and usable, after some allocations."""
    capacity = Capacity()
    for node in nodes:
        devices = tuple((device.index, device.device_id) for device in node.devices)
        pool = (node.gpu_type, node.zone)
        capacity = capacity.with_devices(node.node_id, pool, devices).with_node(node.node_id, pool, devices)
    for allocation in taken:
        capacity = capacity.take_all(allocation)
    return capacity


def allocation_on(*shares: tuple[str, Sequence[int]]) -> Allocation:
    """An allocation from (node, device indexes)."""
    return Allocation(
        shares=tuple(
            NodeShare(node_id=NodeId(node), device_ids=tuple(device_id(node, index) for index in indexes))
            for node, indexes in shares
        )
    )


def cell(gpu_type: str, counts: Sequence[int], iter_time_s: float, *, plan: ParallelPlan | None = None) -> Cell:
    """A grid cell; data-parallel over its GPUs unless a plan is given."""
    group = GpuGroup.of(gpu_type, counts)
    best = plan or ParallelPlan.uniform(layer_count=4, dp=group.gpu_count)
    return Cell(group=group, best=PlanEstimate(plan=best, estimate=Estimate(iter_time_s=iter_time_s)))


def grid_of(*cells: Cell) -> Grid:
    """A grid, sorted as grids are."""
    return Grid(
        cells=tuple(sorted(cells, key=lambda one: (one.group.gpu_count, one.best.estimate.iter_time_s, one.group))),
        source="test",
    )


def scaling_grid(gpu_type: str, groups: Iterable[Sequence[int]], *, one_gpu_s: float = 1.0, power: float = 0.8) -> Grid:
    """A grid whose speed grows as count ** power."""
    return grid_of(*(cell(gpu_type, counts, one_gpu_s / sum(counts) ** power) for counts in groups))


def holding_of(grid: Grid, allocation: Allocation, *, movable: bool = True, since_s: float = 0.0) -> Holding:
    """What a job has that runs on the cell of its allocation's shape."""
    counts = tuple(sorted((len(share.device_ids) for share in allocation.shares), reverse=True))
    found = next(one for one in grid.cells if one.group.parts[0].node_counts == counts)
    return Holding(
        group=found.group,
        plan=found.best.plan,
        estimate=found.best.estimate,
        allocation=allocation,
        movable=movable,
        since_s=since_s,
    )


def snapshot_of(
    nodes: Sequence[NodeInfo],
    jobs: Mapping[str, tuple[JobSpec, Grid]],
    *,
    running: Mapping[str, Holding] | None = None,
    now_s: float = 1000.0,
    **fields: Any,
) -> Snapshot:
    """A snapshot in which ``running`` jobs hold devices and the others wait, in the order of ``jobs``."""
    held = running or {}
    records = {
        job_id: job_record(
            job_id,
            spec,
            submitted_at_s=now_s - 10.0,
            state=JobState.RUNNING if job_id in held else JobState.QUEUED,
        )
        for job_id, (spec, _) in jobs.items()
    }
    return Snapshot(
        now_s=now_s,
        decision_index=1,
        jobs=Map({JobId(job_id): record for job_id, record in records.items()}),
        waiting=tuple(JobId(job_id) for job_id in jobs if job_id not in held),
        holding=Map({JobId(job_id): holding for job_id, holding in held.items()}),
        grids=Map({JobId(job_id): grid for job_id, (_, grid) in jobs.items()}),
        capacity=capacity_of(nodes, [holding.allocation for holding in held.values()]),
        shape=shape_of_nodes(nodes),
        **fields,
    )


def chosen(decision: Decision, job_id: str) -> Choice:
    """The choice for a job that must have one."""
    choice = decision.choices[JobId(job_id)]
    assert choice is not None
    return choice


def logged_attempt(
    job_id: str,
    counts: Sequence[int] = (1,),
    *,
    from_s: float | None,
    to_s: float | None,
    gpu_type: str = "cpu",
    epoch: int = 1,
) -> AttemptRecord:
    """An attempt as a log tells of it: launched at 0 s, its first step and its end where it had them."""
    return AttemptRecord(
        attempt_id=AttemptId(f"{job_id}.{epoch}"),
        job_id=JobId(job_id),
        epoch=epoch,
        plan=None,
        group=GpuGroup.of(gpu_type, counts),
        estimate=None,
        allocation=Allocation(shares=()),
        master_addr="127.0.0.1",
        master_port=1,
        cause=reason(ReasonCode.NOT_YET_EVALUATED),
        decision_index=1,
        decided_at_s=0.0,
        launched_at_s=0.0,
        first_step_at_s=from_s,
        ended_at_s=to_s,
        outcome=None if to_s is None else EndKind.FINISHED,
    )
