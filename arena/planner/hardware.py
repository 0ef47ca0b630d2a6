"""The catalog of GPU types, as data with its sources. Pure: no I/O, no clock.

Figures of real GPUs are the vendor's (dense peaks, link bandwidth in one direction); what a kernel reaches of them is
the cost model's business. Network figures are the per-GPU share in the vendor's own 8-GPU system of that generation.
16-bit peaks are those with accumulation in fp32; fp32 peaks are those of the plain units, without TF32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from arena.domain.cluster import Generation, GpuType
from arena.units import GIB

_TERA = 1e12
_GIGA = 1e9
_MICRO = 1e-6

_PROCESSORS: Mapping[str, tuple[int, Generation]] = {
    "v100-16": (80, Generation.VOLTA),
    "v100-32": (80, Generation.VOLTA),
    "t4": (40, Generation.TURING),
    "rtx-2080ti": (68, Generation.TURING),
    "titan-rtx": (72, Generation.TURING),
    "rtx-3090": (82, Generation.AMPERE),
    "rtx-4090": (128, Generation.ADA),
    "a10": (72, Generation.AMPERE),
    "a40": (84, Generation.AMPERE),
    "a6000": (84, Generation.AMPERE),
    "l40s": (142, Generation.ADA),
    "a100-40": (108, Generation.AMPERE),
    "a100-80": (108, Generation.AMPERE),
    "a800": (108, Generation.AMPERE),
    "h100": (132, Generation.HOPPER),
    "h100-96": (132, Generation.HOPPER),
    "h200": (132, Generation.HOPPER),
    "gh200": (132, Generation.HOPPER),
    "b200": (148, Generation.BLACKWELL),
    "b300": (148, Generation.BLACKWELL),
    "gb200": (148, Generation.BLACKWELL),
    "gb300": (148, Generation.BLACKWELL),
}
"""Streaming multiprocessors and generation by GPU type, from the vendor's architecture papers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What distinguishes GPU types, in the data sheets' units; bandwidths in one direction and per GPU.

    Args:
        base_mhz, boost_mhz: Clocks, where the power limit holds a card to the base clock under load.
    """

    memory_gib: float
    fp32_tflops: float
    half_tflops: float
    memory_gb_per_s: float
    link_gb_per_s: float
    network_gb_per_s: float
    usd_per_hour: float
    source: str
    has_bf16: bool = True
    link_us: float = 6.0
    network_us: float = 15.0
    launch_us: float = 4.0
    base_mhz: float = 1.0
    boost_mhz: float = 1.0


def _gpu(name: str, figures: _Figures) -> GpuType:
    half = {"fp16": figures.half_tflops * _TERA}
    if figures.has_bf16:
        half["bf16"] = figures.half_tflops * _TERA
    processors, generation = _PROCESSORS[name]
    return GpuType(
        name=name,
        memory_bytes=int(figures.memory_gib * GIB),
        peak_flops_per_s={"fp32": figures.fp32_tflops * _TERA, **half},
        memory_bandwidth_bytes_per_s=figures.memory_gb_per_s * _GIGA,
        link_bandwidth_bytes_per_s=figures.link_gb_per_s * _GIGA,
        link_latency_s=figures.link_us * _MICRO,
        network_bandwidth_bytes_per_s=figures.network_gb_per_s * _GIGA,
        network_latency_s=figures.network_us * _MICRO,
        launch_latency_s=figures.launch_us * _MICRO,
        usd_per_hour=figures.usd_per_hour,
        source=figures.source,
        generation=generation,
        processor_count=processors,
        sustained_clock_share=figures.base_mhz / figures.boost_mhz,
    )


CATALOG_ROWS: tuple[GpuType, ...] = (
    GpuType(
        name="cpu",
        memory_bytes=4 * GIB,
        peak_flops_per_s={"fp32": 40 * _GIGA, "bf16": 40 * _GIGA, "fp16": 40 * _GIGA},
        memory_bandwidth_bytes_per_s=8 * _GIGA,
        link_bandwidth_bytes_per_s=1 * _GIGA,
        link_latency_s=15 * _MICRO,
        network_bandwidth_bytes_per_s=1 * _GIGA,
        network_latency_s=15 * _MICRO,
        launch_latency_s=4 * _MICRO,
        usd_per_hour=0.05,
        generation=Generation.HOST,
        source="a virtual GPU: a core of its own and gloo over loopback; round figures, not measured",
    ),
    _gpu(
        "v100-16",
        _Figures(
            memory_gib=16,
            fp32_tflops=15.7,
            half_tflops=125,
            memory_gb_per_s=900,
            link_gb_per_s=150,
            network_gb_per_s=6.25,
            usd_per_hour=3.06,
            has_bf16=False,
            link_us=8.0,
            network_us=20.0,
            launch_us=5.0,
            source="NVIDIA V100 SXM2 data sheet; network of a DGX-1 (4 x 100 Gb/s); price of an AWS p3 GPU, 2024",
        ),
    ),
    _gpu(
        "v100-32",
        _Figures(
            memory_gib=32,
            fp32_tflops=15.7,
            half_tflops=125,
            memory_gb_per_s=900,
            link_gb_per_s=150,
            network_gb_per_s=6.25,
            usd_per_hour=3.9,
            has_bf16=False,
            link_us=8.0,
            network_us=20.0,
            launch_us=5.0,
            source="NVIDIA V100 SXM2 data sheet; network of a DGX-1 (4 x 100 Gb/s); price of an AWS p3dn GPU, 2024",
        ),
    ),
    _gpu(
        "t4",
        _Figures(
            memory_gib=16,
            fp32_tflops=8.1,
            half_tflops=65,
            memory_gb_per_s=320,
            link_gb_per_s=7.9,
            network_gb_per_s=1.56,
            usd_per_hour=0.53,
            has_bf16=False,
            link_us=10.0,
            network_us=30.0,
            launch_us=5.0,
            base_mhz=585,
            boost_mhz=1590,
            source="NVIDIA T4 data sheet (70 W); PCIe 3 x8; AWS g4dn.12xlarge network (50 Gb/s for 4); its price, 2024",
        ),
    ),
    _gpu(
        "rtx-2080ti",
        _Figures(
            memory_gib=11,
            fp32_tflops=13.45,
            half_tflops=53.8,
            memory_gb_per_s=616,
            link_gb_per_s=12.0,
            network_gb_per_s=1.25,
            usd_per_hour=0.3,
            has_bf16=False,
            link_us=10.0,
            network_us=30.0,
            launch_us=5.0,
            source="NVIDIA TU102 white paper (fp32 accumulation); PCIe 3 x16; 10 Gb/s network; price assumed",
        ),
    ),
    _gpu(
        "titan-rtx",
        _Figures(
            memory_gib=24,
            fp32_tflops=16.3,
            half_tflops=130,
            memory_gb_per_s=672,
            link_gb_per_s=12.0,
            network_gb_per_s=1.25,
            usd_per_hour=0.4,
            has_bf16=False,
            link_us=10.0,
            network_us=30.0,
            launch_us=5.0,
            source="NVIDIA Titan RTX data sheet; PCIe 3 x16; 10 Gb/s network; price assumed",
        ),
    ),
    _gpu(
        "rtx-3090",
        _Figures(
            memory_gib=24,
            fp32_tflops=35.6,
            half_tflops=71,
            memory_gb_per_s=936,
            link_gb_per_s=25.0,
            network_gb_per_s=1.25,
            usd_per_hour=0.4,
            link_us=10.0,
            network_us=30.0,
            source="NVIDIA GA102 white paper (fp32 accumulation); PCIe 4 x16; 10 Gb/s network; price assumed",
        ),
    ),
    _gpu(
        "rtx-4090",
        _Figures(
            memory_gib=24,
            fp32_tflops=82.6,
            half_tflops=165.2,
            memory_gb_per_s=1008,
            link_gb_per_s=25.0,
            network_gb_per_s=3.1,
            usd_per_hour=0.6,
            link_us=10.0,
            network_us=30.0,
            source="NVIDIA AD102 white paper (fp32 accumulation); PCIe 4 x16; 25 Gb/s network; price assumed",
        ),
    ),
    _gpu(
        "a10",
        _Figures(
            memory_gib=24,
            fp32_tflops=31.2,
            half_tflops=125,
            memory_gb_per_s=600,
            link_gb_per_s=25.0,
            network_gb_per_s=3.1,
            usd_per_hour=1.21,
            link_us=10.0,
            network_us=30.0,
            source="NVIDIA A10 data sheet; PCIe 4 x16; AWS g5.12xlarge network (40 Gb/s); its price, 2024",
        ),
    ),
    _gpu(
        "a40",
        _Figures(
            memory_gib=48,
            fp32_tflops=37.4,
            half_tflops=149.7,
            memory_gb_per_s=696,
            link_gb_per_s=56,
            network_gb_per_s=12.5,
            usd_per_hour=1.8,
            link_us=8.0,
            network_us=20.0,
            source="NVIDIA A40 data sheet; NVLink bridge between pairs; 100 Gb/s network; price assumed",
        ),
    ),
    _gpu(
        "a6000",
        _Figures(
            memory_gib=48,
            fp32_tflops=38.7,
            half_tflops=154.8,
            memory_gb_per_s=768,
            link_gb_per_s=56,
            network_gb_per_s=12.5,
            usd_per_hour=1.6,
            link_us=8.0,
            network_us=20.0,
            source="NVIDIA RTX A6000 data sheet; NVLink bridge between pairs; 100 Gb/s network; price assumed",
        ),
    ),
    _gpu(
        "l40s",
        _Figures(
            memory_gib=48,
            fp32_tflops=91.6,
            half_tflops=362,
            memory_gb_per_s=864,
            link_gb_per_s=25.0,
            network_gb_per_s=12.5,
            usd_per_hour=1.86,
            link_us=8.0,
            network_us=20.0,
            source="NVIDIA L40S data sheet; PCIe 4 x16; 100 Gb/s network; price of an AWS g6e GPU, 2024",
        ),
    ),
    _gpu(
        "a100-40",
        _Figures(
            memory_gib=40,
            fp32_tflops=19.5,
            half_tflops=312,
            memory_gb_per_s=1555,
            link_gb_per_s=300,
            network_gb_per_s=25,
            usd_per_hour=4.1,
            source="NVIDIA A100 SXM 40 GB data sheet; DGX A100 network (8 x 200 Gb/s); price of an AWS p4d, 2024",
        ),
    ),
    _gpu(
        "a100-80",
        _Figures(
            memory_gib=80,
            fp32_tflops=19.5,
            half_tflops=312,
            memory_gb_per_s=2039,
            link_gb_per_s=300,
            network_gb_per_s=25,
            usd_per_hour=5.12,
            source="NVIDIA A100 SXM 80 GB data sheet; DGX A100 network (8 x 200 Gb/s); price of an AWS p4de, 2024",
        ),
    ),
    _gpu(
        "a800",
        _Figures(
            memory_gib=80,
            fp32_tflops=19.5,
            half_tflops=312,
            memory_gb_per_s=2039,
            link_gb_per_s=200,
            network_gb_per_s=12.5,
            usd_per_hour=4.5,
            source="NVIDIA A100 SXM 80 GB data sheet with NVLink cut to 400 GB/s; 8 x 100 Gb/s network; price assumed",
        ),
    ),
    _gpu(
        "h100",
        _Figures(
            memory_gib=80,
            fp32_tflops=67,
            half_tflops=989,
            memory_gb_per_s=3350,
            link_gb_per_s=450,
            network_gb_per_s=50,
            usd_per_hour=12.29,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA H100 SXM data sheet; network of a DGX H100 (8 x 400 Gb/s); price of an AWS p5 GPU, 2024",
        ),
    ),
    _gpu(
        "h100-96",
        _Figures(
            memory_gib=96,
            fp32_tflops=67,
            half_tflops=989,
            memory_gb_per_s=2400,
            link_gb_per_s=450,
            network_gb_per_s=50,
            usd_per_hour=12.29,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA H100 SXM with HBM2e (2.4 TB/s, 500 W); 400 Gb/s for each GPU; price of an h100",
        ),
    ),
    _gpu(
        "h200",
        _Figures(
            memory_gib=141,
            fp32_tflops=67,
            half_tflops=989,
            memory_gb_per_s=4800,
            link_gb_per_s=450,
            network_gb_per_s=50,
            usd_per_hour=13.0,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA H200 SXM data sheet; network of a DGX H200 (8 x 400 Gb/s); price of an AWS p5e, 2024",
        ),
    ),
    _gpu(
        "gh200",
        _Figures(
            memory_gib=96,
            fp32_tflops=67,
            half_tflops=989,
            memory_gb_per_s=4000,
            link_gb_per_s=450,
            network_gb_per_s=25,
            usd_per_hour=10.0,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA GH200 96 GB data sheet; a node of four with 200 Gb/s for each; price assumed",
        ),
    ),
    _gpu(
        "b200",
        _Figures(
            memory_gib=180,
            fp32_tflops=80,
            half_tflops=2250,
            memory_gb_per_s=8000,
            link_gb_per_s=900,
            network_gb_per_s=50,
            usd_per_hour=16.0,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA B200 SXM data sheet; network of a DGX B200 (8 x 400 Gb/s); price assumed",
        ),
    ),
    _gpu(
        "b300",
        _Figures(
            memory_gib=288,
            fp32_tflops=80,
            half_tflops=2250,
            memory_gb_per_s=8000,
            link_gb_per_s=900,
            network_gb_per_s=100,
            usd_per_hour=19.0,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA B300 SXM data sheet; network of a DGX B300 (8 x 800 Gb/s); price assumed",
        ),
    ),
    _gpu(
        "gb200",
        _Figures(
            memory_gib=186,
            fp32_tflops=80,
            half_tflops=2500,
            memory_gb_per_s=8000,
            link_gb_per_s=900,
            network_gb_per_s=50,
            usd_per_hour=18.0,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA GB200 NVL72 data sheet; 400 Gb/s for each GPU; price assumed",
        ),
    ),
    _gpu(
        "gb300",
        _Figures(
            memory_gib=288,
            fp32_tflops=80,
            half_tflops=2500,
            memory_gb_per_s=8000,
            link_gb_per_s=900,
            network_gb_per_s=100,
            usd_per_hour=21.0,
            link_us=5.0,
            network_us=12.0,
            launch_us=3.0,
            source="NVIDIA GB300 NVL72 data sheet; 800 Gb/s for each GPU; price assumed",
        ),
    ),
)


def catalog(rows: Iterable[GpuType] = CATALOG_ROWS) -> Mapping[str, GpuType]:
    """Return GPU types by name."""
    return {row.name: row for row in rows}


def peak_flops_per_s(gpu_type: GpuType, precision: str) -> float:
    """Return the peak at a precision; a type without units for it computes in fp32."""
    return gpu_type.peak_flops_per_s.get(precision, gpu_type.peak_flops_per_s["fp32"])
