"""The catalog of GPU types, as data with its sources. Pure: no I/O, no clock.

Figures of real GPUs are the vendor's (dense peaks, link bandwidth in one direction); what a kernel reaches of them is
the cost model's business. Network figures are the per-GPU share in the vendor's own 8-GPU system of that generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arena.domain.cluster import GpuType
from arena.units import GIB

_TERA = 1e12
_GIGA = 1e9
_MICRO = 1e-6

CATALOG_ROWS: tuple[GpuType, ...] = (
    GpuType(
        name="cpu",
        memory_bytes=4 * GIB,
        peak_flops_per_s={"fp32": 40 * _GIGA, "bf16": 40 * _GIGA, "fp16": 40 * _GIGA},
        memory_bandwidth_bytes_per_s=8 * _GIGA,
        link_bandwidth_bytes_per_s=1 * _GIGA,
        link_latency_s=100 * _MICRO,
        network_bandwidth_bytes_per_s=1 * _GIGA,
        network_latency_s=150 * _MICRO,
        launch_latency_s=10 * _MICRO,
        usd_per_hour=0.05,
        source="a virtual GPU: one core of a server CPU with gloo over loopback; round figures, not measured",
    ),
    GpuType(
        name="v100-16",
        memory_bytes=16 * GIB,
        peak_flops_per_s={"fp32": 15.7 * _TERA, "fp16": 125 * _TERA},
        memory_bandwidth_bytes_per_s=900 * _GIGA,
        link_bandwidth_bytes_per_s=150 * _GIGA,
        link_latency_s=8 * _MICRO,
        network_bandwidth_bytes_per_s=6.25 * _GIGA,
        network_latency_s=20 * _MICRO,
        launch_latency_s=5 * _MICRO,
        usd_per_hour=3.06,
        source="NVIDIA V100 SXM2 data sheet; network of a DGX-1 (4 x 100 Gb/s); price of an AWS p3 GPU, 2024",
    ),
    GpuType(
        name="a100-40",
        memory_bytes=40 * GIB,
        peak_flops_per_s={"fp32": 19.5 * _TERA, "fp16": 312 * _TERA, "bf16": 312 * _TERA},
        memory_bandwidth_bytes_per_s=1555 * _GIGA,
        link_bandwidth_bytes_per_s=300 * _GIGA,
        link_latency_s=6 * _MICRO,
        network_bandwidth_bytes_per_s=25 * _GIGA,
        network_latency_s=15 * _MICRO,
        launch_latency_s=4 * _MICRO,
        usd_per_hour=4.10,
        source="NVIDIA A100 SXM 40 GB data sheet; network of a DGX A100 (8 x 200 Gb/s); price of an AWS p4d GPU, 2024",
    ),
    GpuType(
        name="a100-80",
        memory_bytes=80 * GIB,
        peak_flops_per_s={"fp32": 19.5 * _TERA, "fp16": 312 * _TERA, "bf16": 312 * _TERA},
        memory_bandwidth_bytes_per_s=2039 * _GIGA,
        link_bandwidth_bytes_per_s=300 * _GIGA,
        link_latency_s=6 * _MICRO,
        network_bandwidth_bytes_per_s=25 * _GIGA,
        network_latency_s=15 * _MICRO,
        launch_latency_s=4 * _MICRO,
        usd_per_hour=5.12,
        source="NVIDIA A100 SXM 80 GB data sheet; network of a DGX A100 (8 x 200 Gb/s); price of an AWS p4de GPU, 2024",
    ),
    GpuType(
        name="h100",
        memory_bytes=80 * GIB,
        peak_flops_per_s={"fp32": 67 * _TERA, "fp16": 989 * _TERA, "bf16": 989 * _TERA},
        memory_bandwidth_bytes_per_s=3350 * _GIGA,
        link_bandwidth_bytes_per_s=450 * _GIGA,
        link_latency_s=5 * _MICRO,
        network_bandwidth_bytes_per_s=50 * _GIGA,
        network_latency_s=12 * _MICRO,
        launch_latency_s=3 * _MICRO,
        usd_per_hour=12.29,
        source="NVIDIA H100 SXM data sheet; network of a DGX H100 (8 x 400 Gb/s); price of an AWS p5 GPU, 2024",
    ),
)


def catalog(rows: Iterable[GpuType] = CATALOG_ROWS) -> Mapping[str, GpuType]:
    """Return GPU types by name."""
    return {row.name: row for row in rows}


def peak_flops_per_s(gpu_type: GpuType, precision: str) -> float:
    """Return the peak at a precision; a type without units for it computes in fp32."""
    return gpu_type.peak_flops_per_s.get(precision, gpu_type.peak_flops_per_s["fp32"])
