"""The devices of a node behind one protocol, and the virtual ones that stand for GPUs where there are none."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arena.domain.cluster import Device
from arena.domain.launch import DeviceId, NodeId
from arena_agent.files import StateFiles

_LOCK_TABLE = Path("/proc/locks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a node has to offer just now.

    Args:
        problem: Driver or hardware trouble; a node with one is degraded.
    """

    devices: tuple[Device, ...]
    problem: str | None = None


class DeviceSource(Protocol):
    """Where an agent's devices come from."""

    @property
    def gpu_type(self) -> str:
        """Catalog name of the devices."""

    def inventory(self, held: Collection[DeviceId]) -> Inventory:
        """Return the devices; those not ``held`` by an attempt of ours are dirty when anybody uses them."""

    def rank_environment(self, device_ids: Sequence[DeviceId]) -> Mapping[str, str]:
        """Return what makes exactly these devices visible to a process."""

    def lock_paths(self, device_ids: Sequence[DeviceId]) -> tuple[Path, ...]:
        """Return the files a supervisor locks while it uses the devices."""


class VirtualDevices:
    """CPU workers that count as GPUs, each with a lock file that says whether it is in use.

    Args:
        node_id: The node they belong to.
        count: How many there are.
        gpu_type: The type they pass for.
        files: The agent's files.
    """

    def __init__(self, node_id: NodeId, count: int, gpu_type: str, files: StateFiles) -> None:
        self._ids = tuple(DeviceId(f"{node_id}/vgpu-{index}") for index in range(count))
        self._gpu_type = gpu_type
        self._files = files

    @property
    def gpu_type(self) -> str:
        """The type they pass for."""
        return self._gpu_type

    def inventory(self, held: Collection[DeviceId]) -> Inventory:
        """Return the devices, dirty where a process that is none of ours holds the lock."""
        devices = [
            Device(
                device_id=device_id,
                index=index,
                dirty=None if device_id in held else _holder(self._files.device_lock(index)),
            )
            for index, device_id in enumerate(self._ids)
        ]
        return Inventory(devices=tuple(devices))

    def rank_environment(self, device_ids: Sequence[DeviceId]) -> Mapping[str, str]:
        """Return an environment without real GPUs: a virtual one must never touch them."""
        return {"CUDA_VISIBLE_DEVICES": ""}

    def lock_paths(self, device_ids: Sequence[DeviceId]) -> tuple[Path, ...]:
        """Return the lock files of the devices."""
        return tuple(self._files.device_lock(self._ids.index(device_id)) for device_id in device_ids)


def _holder(path: Path) -> str | None:
    """Return who holds the lock on a file, None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = _lock_pid(os.fstat(descriptor).st_ino)
        return f"in use by process {pid}" if pid else "in use by a process that cannot be seen"
    finally:
        os.close(descriptor)
    return None


def _lock_pid(inode: int) -> int | None:
    """Return the pid that the kernel's table of file locks names for an inode."""
    try:
        lines = _LOCK_TABLE.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if "->" not in fields and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    return None
