"""The catalog of GPU types: all that are promised, each with its figures and where they come from."""

from __future__ import annotations

import pytest

from arena.planner.hardware import catalog, peak_flops_per_s

PROMISED = (
    *("v100-16", "v100-32", "t4", "a10", "a40", "a6000", "a100-40", "a100-80", "a800", "h100", "h200", "gh200", "l40s"),
    *("rtx-2080ti", "rtx-3090", "rtx-4090", "titan-rtx", "b200", "b300", "gb200", "gb300", "cpu"),
)


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_type_is_there_with_a_source(name: str) -> None:
    row = catalog()[name]
    assert row.name == name
    assert len(row.source) > 20


@pytest.mark.parametrize("name", sorted(catalog()))
def test_figures_are_of_the_right_size(name: str) -> None:
    """A slip of a unit is a factor of a thousand."""
    row = catalog()[name]
    is_gpu = name != "cpu"
    assert 4 * 2**30 <= row.memory_bytes <= 300 * 2**30
    assert is_gpu == (catalog()[name].processor_count is not None)
    assert (8e12 if is_gpu else 1e9) <= peak_flops_per_s(row, "fp32") <= peak_flops_per_s(row, "fp16") <= 3e15
    assert (
        row.memory_bandwidth_bytes_per_s >= row.link_bandwidth_bytes_per_s >= row.network_bandwidth_bytes_per_s >= 1e9
    )
    assert 0 < row.link_latency_s <= row.network_latency_s < 1e-4
    assert 0 < row.launch_latency_s < 1e-4
    assert 0 < row.usd_per_hour < 100


def test_a_precision_without_units_of_its_own_is_computed_in_fp32() -> None:
    row = catalog()["v100-16"]
    assert peak_flops_per_s(row, "bf16") == peak_flops_per_s(row, "fp32") < peak_flops_per_s(row, "fp16")
