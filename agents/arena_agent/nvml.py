"""Real GPUs from the driver's library (NVML): by UUID, with whoever uses them."""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arena.domain.cluster import Device
from arena.domain.launch import DeviceId
from arena_agent.devices import Inventory
from arena_agent.visibility import VisibleCandidate, visible_uuids


class DriverError(Exception):
    """The driver or its library does not work; the text is the driver's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalGpu:
    """A GPU or MIG instance as the driver sees it.

    Args:
        index: Index of a whole GPU; None for a MIG instance.
        pids: Processes that compute on it.
        trouble: What the driver says instead, of one that it has lost; then only the index is sure.
    """

    uuid: str
    index: int | None
    name: str
    memory_bytes: int
    pids: tuple[int, ...] = ()
    trouble: str = ""


class Driver(Protocol):
    """What is asked of the driver."""

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        """Return all GPUs and, for those that are split, their MIG instances instead.

        Raises:
            DriverError: The driver does not answer.
        """


class NvmlDriver:
    """The driver through NVML; the library is loaded at the first question.

    Args:
        host: Names GPUs that were lost before they told their UUID.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._nvml: Any = None
        self._uuid_by_index: dict[int, str] = {}

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        """Return all GPUs and MIG instances; one that is lost does not hide the others."""
        nvml = self._loaded()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise DriverError(f"NVML: {error}") from error
        found = tuple(gpu for index in range(count) for gpu in self._at(nvml, index))
        if found and all(gpu.trouble for gpu in found):
            raise DriverError(found[0].trouble)
        return found

    def _at(self, nvml: Any, index: int) -> tuple[PhysicalGpu, ...]:
        try:
            parts = _parts(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            uuid = self._uuid_by_index.get(index, f"{self._host}/gpu-{index}")
            return (PhysicalGpu(uuid=uuid, index=index, name="", memory_bytes=0, trouble=f"NVML: {error}"),)
        for gpu in parts:
            if gpu.index is not None:
                self._uuid_by_index[gpu.index] = gpu.uuid
        return parts

    def _loaded(self) -> Any:
        if self._nvml is None:
            try:
                nvml = importlib.import_module("pynvml")
            except ImportError as error:
                raise DriverError("the package nvidia-ml-py is not installed") from error
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                raise DriverError(f"NVML: {error}") from error
            self._nvml = nvml
        return self._nvml


def _parts(nvml: Any, index: int, handle: Any) -> tuple[PhysicalGpu, ...]:
    instances = []
    with suppress(nvml.NVMLError):  # this GPU cannot be split
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(nvml.NVMLError):  # no instance in this place
                    instances.append(_gpu(nvml, None, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)))
            return tuple(instances)
    return (_gpu(nvml, index, handle),)


def _gpu(nvml: Any, index: int | None, handle: Any) -> PhysicalGpu:
    return PhysicalGpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        pids=tuple(sorted(int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class NvmlDevices:
    """The GPUs that this process may see.

    Args:
        visible: Value of CUDA_VISIBLE_DEVICES, None when it is not set.
        gpu_type: The catalog's name for them; None makes one of the driver's.
        driver: For tests.
        device_nodes: Returns the driver's device files, to tell a broken driver from a host without GPUs.
    """

    def __init__(
        self,
        visible: str | None,
        gpu_type: str | None,
        driver: Driver | None = None,
        device_nodes: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._visible = visible
        self._driver = driver or NvmlDriver(platform.node())
        self._device_nodes = device_nodes or _device_nodes
        self._gpu_type = gpu_type

    @property
    def gpu_type(self) -> str:
        """Catalog name of the GPUs."""
        if self._gpu_type is not None:
            return self._gpu_type
        try:
            gpus = self._visible_gpus()
        except DriverError:
            return "unknown"
        return next((catalog_name(gpu) for gpu in gpus if not gpu.trouble), "unknown")

    def inventory(self, held: Collection[DeviceId]) -> Inventory:
        """Return the visible GPUs, dirty where a process that is none of ours computes; or the driver's trouble."""
        try:
            gpus = self._visible_gpus()
        except DriverError as error:
            nodes = self._device_nodes()
            hint = f" though {nodes[0]} exists" if nodes else ""
            return Inventory(devices=(), problem=f"{error}{hint}")
        problem = None if gpus else "no GPU is visible" + (f" (CUDA_VISIBLE_DEVICES={self._visible!r})")
        names = {gpu.name for gpu in gpus if not gpu.trouble}
        if len(names) > 1:
            problem = f"GPUs of several kinds: {', '.join(sorted(names))}; show one kind with CUDA_VISIBLE_DEVICES"
        return Inventory(devices=tuple(_device(index, gpu, held) for index, gpu in enumerate(gpus)), problem=problem)

    def rank_environment(self, device_ids: Sequence[DeviceId]) -> Mapping[str, str]:
        """Return the devices by UUID, in local-rank order."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(device_ids)}

    def lock_paths(self, device_ids: Sequence[DeviceId]) -> tuple[Path, ...]:
        """Return nothing: the driver knows who uses a GPU."""
        return ()

    def _visible_gpus(self) -> tuple[PhysicalGpu, ...]:
        gpus = {gpu.uuid: gpu for gpu in self._driver.gpus()}
        candidates = [VisibleCandidate(uuid=gpu.uuid, parent_index=gpu.index) for gpu in gpus.values()]
        return tuple(gpus[uuid] for uuid in visible_uuids(self._visible, candidates))


_UNTOLD = re.compile(
    r"NVIDIA|TESLA|QUADRO|GEFORCE|GRAPHICS|DEVICE|GENERATION|SXM\d*|PCIE|NVL|DGXS|FHHL|LS|H|HBM\w*|\d+GB"
)
"""Words of a driver's name that the catalog leaves out: makes, boards, sockets and sizes."""

_SIZED = frozenset({"a100-40", "a100-80", "v100-16", "v100-32", "h100-96"})
"""Names of the catalog that a size belongs to."""


def catalog_name(gpu: PhysicalGpu) -> str:
    """Return a driver's name as the catalog writes it: ``NVIDIA A100-SXM4-80GB`` is ``a100-80``.

    A MIG instance has a name of its own, which is never that of a whole GPU.
    """
    whole, _, instance = gpu.name.upper().partition(" MIG ")
    words = [word for word in re.split(r"[^A-Z0-9]+", whole) if word and not _UNTOLD.fullmatch(word)]
    if words[:1] == ["RTX"] and len(words) > 1 and words[1][0].isalpha():
        words = words[1:]  # as in ``RTX A6000``
    base = re.sub(r"(\d)-(ti|super)\b", r"\1\2", "-".join(words).lower())
    base = base or re.sub(r"[^a-z0-9]+", "-", whole.lower()).strip("-") or "unknown"
    size = re.search(r"(\d+)\s*GB\b", whole)
    if size and f"{base}-{size.group(1)}" in _SIZED:
        base = f"{base}-{size.group(1)}"
    return f"{base}-mig-{re.sub(r'[^a-z0-9]+', '-', instance.lower())}" if instance else base


def _device(index: int, gpu: PhysicalGpu, held: Collection[DeviceId]) -> Device:
    device_id = DeviceId(gpu.uuid)
    is_foreign = bool(gpu.pids) and device_id not in held
    dirty = gpu.trouble or (f"in use by process {', '.join(map(str, gpu.pids))}" if is_foreign else None)
    return Device(device_id=device_id, index=index, dirty=dirty)


def _device_nodes() -> Sequence[str]:
    return sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
