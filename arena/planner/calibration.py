"""All fitted constants of the time and memory model, each with its unit and what it was fitted on.

Pure: no I/O, no clock. ``experiments/planner_accuracy/fit.py`` fits them again. None belongs to a source of
measurements: they belong to a kind of hardware or operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from arena.domain.cluster import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A fitted constant.

    Args:
        fitted_on: The measurements it was fitted on, or where it was read.
        date: When.
        prior: What one would take without these measurements; where they say nothing, it stays.
    """

    name: str
    value: float
    unit: str
    fitted_on: str
    date: str
    prior: float


_PRODUCTS = "3.1k matrix products on A100, H100 and A40 (Vidur)"
_COLLECTIVES = "26.5k collectives on A100, H100, H200 and B200 nodes (Vidur, ml-engineering, Galvatron)"
_SENDS = "single sends, which reach 0.72 to 0.96 of links and networks (A100, H100: Vidur; GH200: Sailor)"
_RUNS = "published training runs in bf16 and fp16"
_DATE = "2026-11-29"


def _constant(value: float, unit: str, fitted_on: str, *, prior: float | None = None) -> float:
    metadata = {"unit": unit, "fitted_on": fitted_on, "date": _DATE, "prior": value if prior is None else prior}
    return field(default=value, metadata=metadata)


_HOST_SHARE = 0.76


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The constants by name."""

    product_share_volta: float = _constant(0.5731, "of the peak, large product", _RUNS, prior=0.72)
    product_share_ampere: float = _constant(0.7405, "of the peak, large product", _RUNS, prior=0.72)
    product_share_hopper: float = _constant(0.5606, "of the peak, large product", _RUNS, prior=0.72)
    product_share_blackwell: float = _constant(0.65, "of the peak, large product", _RUNS)
    product_bandwidth_share: float = _constant(0.77, "of the memory bandwidth", _PRODUCTS)
    tiling_share: float = _constant(0.5143, "of the loss to unfilled waves of tiles that remains", _RUNS, prior=0.5)
    flash_share: float = _constant(0.3733, "of a large product's rate", _RUNS, prior=0.5)
    stored_share: float = _constant(0.4568, "of a large product's rate", _RUNS, prior=0.5)
    odd_head_share: float = _constant(0.1127, "of the rate, head size no multiple of 8", _RUNS, prior=0.25)
    activation_passes: float = _constant(2.343, "reads and writes of each kept activation, forward", _RUNS, prior=2.0)
    launch_times: float = _constant(
        20.36, "launch latencies of the host for a kernel of the model's list", _RUNS, prior=10.0
    )
    waited_launch_times: float = _constant(47.73, "the same where the host waits for each kernel", _RUNS, prior=30.0)
    link_share: float = _constant(0.72, "of the nominal link bandwidth", _COLLECTIVES)
    bus_share: float = _constant(
        0.3525, "of the nominal bandwidth of links over PCIe, through the host", _RUNS, prior=0.36
    )
    network_share: float = _constant(0.4074, "of the nominal network bandwidth", _RUNS, prior=0.6)
    network_crowding: float = _constant(
        0.01818, "loss of network bandwidth for each doubling of the nodes", _RUNS, prior=0.02
    )
    collective_latencies: float = _constant(4, "link latencies of a collective", _COLLECTIVES)
    hop_latencies: float = _constant(3.707, "latencies of each rank in a ring", _RUNS, prior=4.0)
    send_times: float = _constant(0.5, "of what a send would take at the rate of collectives", _SENDS)
    unhidden_share: float = _constant(0.1127, "of the collectives that is never hidden", _RUNS, prior=0.1)
    rank_context_bytes: float = _constant(
        4.1e9,
        "bytes of context, libraries, communication buffers and fragments on a GPU among others",
        "62 device peaks of BLOOM prototypes and of OPT-350M on GH200",
    )

    def product_share(self, generation: Generation) -> float:
        """Return what share of its peak, at the clock that it holds, a generation reaches in large products."""
        match generation:
            case Generation.HOST:
                return _HOST_SHARE
            case Generation.VOLTA | Generation.TURING:
                return self.product_share_volta
            case Generation.AMPERE:
                return self.product_share_ampere
            case Generation.ADA | Generation.HOPPER:
                return self.product_share_hopper
            case Generation.BLACKWELL:
                return self.product_share_blackwell


CALIBRATION = Calibration()
"""The constants in use."""


def constants(calibration: Calibration = CALIBRATION) -> tuple[Constant, ...]:
    """Return all constants with their unit and origin."""
    return tuple(
        Constant(name=one.name, value=getattr(calibration, one.name), **one.metadata) for one in fields(calibration)
    )
