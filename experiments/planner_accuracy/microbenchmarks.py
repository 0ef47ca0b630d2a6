"""Fits what single products and collectives tell: shares of peaks and bandwidths, and latencies of collectives."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from arena.planner.hardware import catalog

Floats = npt.NDArray[np.float64]

_GPU_TYPES = {"a100": "a100-80", "h100": "h100", "a40": "a40"}
_NODES = {"A100 DGX": "a100-80", "H100 DGX": "h100", "A100 NVSwitch": "a100-80", "H200 NVSwitch": "h200"}
_COLLECTIVES = ("all_reduce", "send_recv")
_OUTLIER = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the files of single operations tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds gemm_measured.csv.gz and comm_measured.csv.gz")
    folder = parser.parse_args(arguments).folder
    for name, known in _GPU_TYPES.items():
        rows = [row for row in _rows(folder / "gemm_measured.csv.gz") if row["gpu"] == name]
        share, bandwidth, start_us, error = fit_products(rows, known)
        print(
            f"products on {known}: {share:.3f} of the peak, {bandwidth:.3f} of the memory bandwidth, "
            f"{start_us:.1f} us each; mean error {100 * error:.1f} % of {len(rows)}"
        )
    collectives = list(_rows(folder / "comm_measured.csv.gz"))
    for key in sorted({_key(row) for row in collectives if row["gpu"] in _NODES and row["collective"] in _COLLECTIVES}):
        print(_collective_line(key, [row for row in collectives if _key(row) == key]))
    return 0


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    with gzip.open(path) as stream:
        yield from csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8"))


def fit_products(rows: Sequence[Mapping[str, str]], gpu_name: str) -> tuple[float, float, float, float]:
    """Return the share of the peak and of the memory bandwidth, microseconds of a start, and the mean error."""
    gpu_type = catalog()[gpu_name]
    table = np.array([[float(row[name]) for name in ("M_tokens", "N", "K", "time_ms_median")] for row in rows])
    high, wide, inner, measured = table[table[:, 3] > 0].T
    compute_s = 2.0 * high * wide * inner / gpu_type.peak_flops_per_s["bf16"]
    memory_s = 2.0 * (high * wide + high * inner + wide * inner) / gpu_type.memory_bandwidth_bytes_per_s

    def log_ratios(logs: Floats) -> Floats:
        share, bandwidth, start_us = np.exp(logs)
        blended = ((compute_s / share) ** 4 + (memory_s / bandwidth) ** 4) ** 0.25
        ratios: Floats = np.log((1e-6 * start_us + blended) / (1e-3 * measured))
        return ratios

    found = least_squares(log_ratios, np.log([0.8, 0.8, 5.0]), loss="soft_l1", f_scale=_OUTLIER)
    share, bandwidth, start_us = np.exp(found.x)
    error = float(np.abs(np.exp(log_ratios(found.x)) - 1.0).mean())
    return float(share), float(bandwidth), float(start_us), error


def _key(row: Mapping[str, str]) -> tuple[str, str, str, int]:
    return row["gpu"], row["topology"], row["collective"], int(row["n_ranks"])


def _collective_line(key: tuple[str, str, str, int], rows: Sequence[Mapping[str, str]]) -> str:
    gpu, topology, collective, ranks = key
    share_moved = 2.0 * (ranks - 1.0) / ranks if collective == "all_reduce" else 1.0
    moved = share_moved * np.array([float(row["bytes"]) for row in rows])
    measured = 1e-6 * np.array([float(row["time_us"]) for row in rows])
    known = measured > 0

    def log_ratios(logs: Floats) -> Floats:
        ratios: Floats = np.log((1e-6 * np.exp(logs[0]) + moved / (1e9 * np.exp(logs[1])))[known] / measured[known])
        return ratios

    found = least_squares(log_ratios, np.log([30.0, 100.0]), loss="soft_l1", f_scale=_OUTLIER)
    start_us, gb_per_s = np.exp(found.x)
    nominal = catalog()[_NODES[gpu]].link_bandwidth_bytes_per_s / 1e9
    share = f", {gb_per_s / nominal:.2f} of the link" if topology.startswith(f"{ranks}/") else " across nodes"
    return f"{collective} of {ranks} on {gpu} ({topology}): {start_us:.0f} us + bytes / {gb_per_s:.0f} GB/s{share}"


if __name__ == "__main__":
    sys.exit(main())
