"""All fitted constants of the time and memory model, each with its unit and what it was fitted on.

Pure: no I/O, no clock. ``experiments/planner_accuracy/fit.py`` fits them again. None belongs to a source of
measurements: they belong to a kind of hardware or operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A fitted constant.

    Args:
        fitted_on: The measurements it was fitted on, or where it was read.
        date: When.
    """

    name: str
    value: float
    unit: str
    fitted_on: str
    date: str


_PRODUCTS = "3.1k matrix products on A100, H100 and A40 (Vidur)"
_COLLECTIVES = "26.5k collectives on A100, H100, H200 and B200 nodes (Vidur, ml-engineering, Galvatron)"
_RUNS = "published training runs in bf16 and fp16"
_DATE = "2026-11-29"


def _constant(value: float, unit: str, fitted_on: str) -> float:
    return field(default=value, metadata={"unit": unit, "fitted_on": fitted_on, "date": _DATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The constants by name."""

    product_share_volta: float = _constant(0.6, "of the peak, large product", _RUNS)
    product_share_t4: float = _constant(0.2359, "of the peak, large product", _RUNS)
    product_share_ampere: float = _constant(0.7776, "of the peak, large product", _RUNS)
    product_share_hopper: float = _constant(0.5895, "of the peak, large product", _RUNS)
    product_share_blackwell: float = _constant(0.65, "of the peak, large product", _RUNS)
    product_bandwidth_share: float = _constant(0.77, "of the memory bandwidth", _PRODUCTS)
    tiling_share: float = _constant(0.5753, "of the loss to unfilled waves of tiles that remains", _RUNS)
    flash_share: float = _constant(0.3626, "of a large product's rate, long heads", _RUNS)
    flash_head_size: float = _constant(2.439, "head size at which half of that is reached", _RUNS)
    stored_share: float = _constant(0.4222, "of a large product's rate", _RUNS)
    odd_head_share: float = _constant(0.08553, "of the rate, head size no multiple of 8", _RUNS)
    unaligned_share: float = _constant(0.981, "of the rate, width no multiple of 64 on a rank", _RUNS)
    activation_passes: float = _constant(2.081, "reads and writes of each kept activation, forward", _RUNS)
    launch_share: float = _constant(7.455, "of the launch latency that is not hidden", _RUNS)
    link_share: float = _constant(0.72, "of the nominal link bandwidth", _COLLECTIVES)
    bus_share: float = _constant(0.3622, "of the nominal bandwidth of links over PCIe", _RUNS)
    network_share: float = _constant(0.4113, "of the nominal network bandwidth", _RUNS)
    network_crowding: float = _constant(0.01373, "loss of network bandwidth for each doubling of the nodes", _RUNS)
    collective_latencies: float = _constant(4, "link latencies of a collective", _COLLECTIVES)
    hop_latencies: float = _constant(3.918, "latencies of each rank in a ring", _RUNS)
    send_times: float = _constant(1.521, "times a send counts: sender and receiver wait, computing hides", _RUNS)
    hiding_share: float = _constant(1, "of the computing that collectives can hide behind", _RUNS)
    unhidden_share: float = _constant(0.1901, "of the collectives that is never hidden", _RUNS)
    rank_context_bytes: float = _constant(
        4.1e9,
        "bytes of context, libraries, communication buffers and fragments on a GPU among others",
        "62 device peaks of BLOOM prototypes and of OPT-350M on GH200",
    )

    def product_share(self, gpu_name: str) -> float:
        """Return what share of its peak a GPU type reaches in large products."""
        for prefixes, share in (
            (("cpu",), 0.76),
            (("v100", "rtx-2080", "titan"), self.product_share_volta),
            (("t4",), self.product_share_t4),
            (("h100", "h200", "gh200", "l40", "rtx-4090"), self.product_share_hopper),
            (("b200", "b300", "gb200", "gb300"), self.product_share_blackwell),
        ):
            if gpu_name.startswith(prefixes):
                return share
        return self.product_share_ampere


CALIBRATION = Calibration()
"""The constants in use."""


def constants(calibration: Calibration = CALIBRATION) -> tuple[Constant, ...]:
    """Return all constants with their unit and origin."""
    return tuple(
        Constant(name=one.name, value=getattr(calibration, one.name), **one.metadata) for one in fields(calibration)
    )
