"""Devices: what CUDA_VISIBLE_DEVICES leaves, what the driver says, who uses a virtual GPU."""

from __future__ import annotations

import fcntl
import os
from types import SimpleNamespace

import pytest

from arena.domain.launch import NodeId
from arena.planner.hardware import catalog
from arena_agent.devices import VirtualDevices
from arena_agent.files import StateFiles
from arena_agent.nvml import DriverError, NvmlDevices, NvmlDriver, PhysicalGpu, catalog_name
from arena_agent.visibility import VisibleCandidate, visible_uuids

UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-cc33")
MIG = "MIG-4f5e"
CANDIDATES = (
    *(VisibleCandidate(uuid=uuid, parent_index=index) for index, uuid in enumerate(UUIDS)),
    VisibleCandidate(uuid=MIG, parent_index=None),
)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, (*UUIDS, MIG)),
        ("", ()),
        ("-1", ()),
        ("0,2", ("GPU-aa11", "GPU-cc33")),
        ("2,0", ("GPU-cc33", "GPU-aa11")),
        (" 1 ", ("GPU-ab22",)),
        ("0,0", ()),
        ("0,7,1", ("GPU-aa11",)),
        ("0,-1,1", ("GPU-aa11",)),
        ("GPU-ab", ("GPU-ab22",)),
        ("GPU-a", ()),
        ("GPU-cc33,GPU-aa11", ("GPU-cc33", "GPU-aa11")),
        ("GPU-zz,0", ()),
        ("MIG-4f5e", (MIG,)),
        ("nonsense", ()),
        ("1x", ("GPU-ab22",)),
        ("0,GPU-aa11", ()),
    ],
)
def test_visible_devices_follow_cudas_rules(variable, expected):
    assert visible_uuids(variable, CANDIDATES) == expected


class Driver:
    def __init__(self, *gpus: PhysicalGpu, error: str = "") -> None:
        self._gpus = gpus
        self._error = error

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        if self._error:
            raise DriverError(self._error)
        return self._gpus


def gpu(index: int, *pids: int, name: str = "NVIDIA A100-SXM4-80GB") -> PhysicalGpu:
    return PhysicalGpu(uuid=f"GPU-{index}{index}", index=index, name=name, memory_bytes=80 << 30, pids=pids)


def test_only_visible_gpus_are_offered():
    devices = NvmlDevices("0,1", None, Driver(*(gpu(index) for index in range(8))))
    inventory = devices.inventory(frozenset())
    assert [device.device_id for device in inventory.devices] == ["GPU-00", "GPU-11"]
    assert (inventory.problem, devices.gpu_type) == (None, "a100-80")
    assert devices.rank_environment([device.device_id for device in inventory.devices][::-1]) == {
        "CUDA_VISIBLE_DEVICES": "GPU-11,GPU-00"
    }


def test_a_gpu_with_a_foreign_process_is_dirty_one_of_ours_is_not():
    devices = NvmlDevices(None, None, Driver(gpu(0, 1234), gpu(1, 77)))
    first, second = devices.inventory({devices.inventory(frozenset()).devices[1].device_id}).devices
    assert first.dirty == "in use by process 1234"
    assert second.dirty is None


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        (["/dev/nvidia0"], "NVML: Driver Not Loaded though /dev/nvidia0 exists"),
        ([], "NVML: Driver Not Loaded"),
    ],
)
def test_a_broken_driver_is_a_problem_with_its_own_words(nodes, problem):
    devices = NvmlDevices(None, "h100", Driver(error="NVML: Driver Not Loaded"), lambda: nodes)
    inventory = devices.inventory(frozenset())
    assert (inventory.devices, inventory.problem) == ((), problem)


def test_no_visible_gpu_is_a_problem():
    inventory = NvmlDevices("-1", None, Driver(gpu(0))).inventory(frozenset())
    assert inventory.problem == "no GPU is visible (CUDA_VISIBLE_DEVICES='-1')"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A10", "a10"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("Tesla V100-PCIE-32GB", "v100-32"),
        ("NVIDIA H100 96GB HBM3", "h100-96"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080ti"),
        ("NVIDIA TITAN RTX", "titan-rtx"),
        ("Tesla T4", "t4"),
        ("Tesla V100-DGXS-32GB", "v100-32"),
        ("Tesla V100-FHHL-16GB", "v100-16"),
        ("Tesla V100-SXM2-32GB-LS", "v100-32"),
        ("Tesla V100-SXM3-32GB-H", "v100-32"),
        ("NVIDIA Graphics Device", "nvidia-graphics-device"),
        ("", "unknown"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-mig-1g-10gb"),
    ],
)
def test_driver_names_become_catalog_names(name, expected):
    assert catalog_name(gpu(0, name=name)) == expected


def test_a_slice_of_a_gpu_is_never_taken_for_a_whole_one():
    names = [name for name in catalog() if name != "cpu"]
    slices = {catalog_name(gpu(0, name=f"NVIDIA {name.upper()} MIG {part}")) for name in names for part in ("1g.5gb",)}
    assert not slices & set(catalog())


class LosingNvml:
    """The library of a host with eight GPUs, of which some are lost."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return []


@pytest.mark.parametrize("lost", [{0}, {3}, {0, 7}])
@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_gpu_that_is_lost_hides_none_of_the_others(lost: set[int], is_seen_before: bool) -> None:
    nvml, driver = LosingNvml(), NvmlDriver("host-1")
    driver._nvml = nvml
    devices = NvmlDevices(None, None, driver)
    before = devices.inventory(frozenset()).devices if is_seen_before else ()
    nvml.lost = lost
    inventory = devices.inventory(frozenset())
    assert (devices.gpu_type, inventory.problem) == ("h100", None)
    dirty = {device.index: device.dirty for device in inventory.devices if device.dirty}
    assert dirty == dict.fromkeys(sorted(lost), "NVML: GPU is lost")
    assert len({device.device_id for device in inventory.devices}) == 8
    if before:
        assert [one.device_id for one in inventory.devices] == [one.device_id for one in before]


def test_where_all_are_lost_it_is_the_driver() -> None:
    driver = NvmlDriver("host-1")
    driver._nvml = nvml = LosingNvml()
    nvml.lost = set(range(8))
    assert NvmlDevices(None, "h100", driver, list).inventory(frozenset()).problem == "NVML: GPU is lost"


def test_a_virtual_gpu_is_dirty_while_somebody_else_holds_its_lock(tmp_path):
    files = StateFiles(directory=tmp_path)
    files.device_locks.mkdir()
    devices = VirtualDevices(NodeId("n"), 2, "cpu", files)
    ids = [device.device_id for device in devices.inventory(frozenset()).devices]
    assert ids == ["n/vgpu-0", "n/vgpu-1"]
    with files.device_lock(1).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        dirty = [device.dirty for device in devices.inventory(frozenset()).devices]
        assert dirty == [None, f"in use by process {os.getpid()}"]
        assert [device.dirty for device in devices.inventory({ids[1]}).devices] == [None, None]
    assert [device.dirty for device in devices.inventory(frozenset()).devices] == [None, None]


def test_virtual_gpus_hide_the_real_ones(tmp_path):
    devices = VirtualDevices(NodeId("n"), 1, "cpu", StateFiles(directory=tmp_path))
    assert devices.rank_environment([]) == {"CUDA_VISIBLE_DEVICES": ""}
