"""Cluster files: what they say, and every mistake with what would do instead."""

from __future__ import annotations

import pytest

from arena.domain.cluster import NodePool
from arena.errors import SpecError
from arena.planner.clusterfile import Cluster, parse_cluster
from arena.planner.hardware import catalog
from arena.units import GIB

NODES = "nodes: [{type: a100-80, count: 4, gpus: 8}]\n"
OWN = """
nodes: [{type: mine, gpus: 4}]
gpu_types:
  mine:
    memory_gib: 192
    peak_tflops: {fp32: 160, bf16: 1300}
    memory_gb_per_s: 5300
    link_gb_per_s: 448
    network_gb_per_s: 50
    usd_per_hour: 6
"""


def read(text: str) -> Cluster:
    return parse_cluster(text, source="c.yaml")


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        read(text)
    return caught.value.message


def test_nodes_that_are_alike_are_one_pool_and_zones_are_kept_apart() -> None:
    cluster = read(
        "nodes:\n"
        "- {type: h100, count: 2, gpus: 8, zone: west}\n"
        "- {type: a100-80, gpus: 8, zone: east}\n"
        "- {type: h100, count: 3, gpus: 8, zone: west}\n"
        "- {type: h100, count: 1, gpus: 4, zone: west}\n"
    )
    assert cluster.shape.pools == (
        NodePool(gpu_type="a100-80", zone="east", gpus_per_node=8, node_count=1),
        NodePool(gpu_type="h100", zone="west", gpus_per_node=4, node_count=1),
        NodePool(gpu_type="h100", zone="west", gpus_per_node=8, node_count=5),
    )
    assert cluster.gpu_types == catalog()


def test_a_type_of_the_users_own_in_the_units_of_data_sheets() -> None:
    mine = read(OWN).gpu_types["mine"]
    assert mine.memory_bytes == 192 * GIB
    assert mine.peak_flops_per_s == {"fp32": 160e12, "bf16": 1300e12}
    assert mine.memory_bandwidth_bytes_per_s == 5300e9
    assert mine.link_bandwidth_bytes_per_s == 448e9
    assert mine.network_bandwidth_bytes_per_s == 50e9
    assert mine.usd_per_hour == 6
    assert 0 < mine.launch_latency_s < mine.link_latency_s < mine.network_latency_s < 1e-3
    assert mine.source == "cluster file"


def test_a_type_of_the_catalog_with_another_network_and_price() -> None:
    text = NODES + "gpu_types: {a100-80: {network_gb_per_s: 3.1, network_us: 40, usd_per_hour: 0}}"
    found, row = read(text).gpu_types["a100-80"], catalog()["a100-80"]
    assert found.network_bandwidth_bytes_per_s == 3.1e9
    assert found.network_latency_s == pytest.approx(40e-6)
    assert found.usd_per_hour == 0
    assert found.memory_bytes == row.memory_bytes
    assert found.peak_flops_per_s == row.peak_flops_per_s
    assert found.source.startswith("cluster file, the rest as a100-80: NVIDIA")


def test_a_type_like_another() -> None:
    text = "nodes: [{type: big, gpus: 8}]\ngpu_types: {big: {like: h100, memory_bytes: 100000000000, source: ours}}"
    found = read(text).gpu_types["big"]
    assert (found.name, found.memory_bytes, found.source) == ("h100", 100_000_000_000, "ours")
    assert found.link_bandwidth_bytes_per_s == catalog()["h100"].link_bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: [{type: a100-81, gpus: 8}]", "c.yaml:1:16: nodes.0.type: unknown GPU type 'a100-81', did you mean"),
        ("nodes: [{type: a100-81, gpus: 8}]", "known: a10, a100-40, a100-80, "),
        ("nodes: [{type: a100-81, gpus: 8}]", "or describe it under gpu_types"),
        ("nodes: [{type: a100-80, gpus: 0}]", "nodes.0.gpus: got 0; allowed: at least 1"),
        ("nodes: [{type: a100-80, gpus: 8, count: -1}]", "nodes.0.count: got -1; allowed: at least 1"),
        ("nodes: [{type: a100-80, gpus: 8, count: 1000000}]", "allowed: at most 16384"),
        ("nodes: [{type: a100-80}]", "nodes.0.gpus: is required"),
        ("nodes: [{type: a100-80, gpus: 2.5}]", "allowed: a whole number"),
        ("nodes: [{type: a100-80, gpu: 8}]", "unknown field, did you mean 'gpus'?; allowed: count, gpus, type, zone"),
        ('nodes: [{type: a100-80, gpus: 8, zone: "a\\e"}]', "must not hold control characters"),
        ("nodes: []", "nodes: is empty; a cluster file looks like this"),
        ("nodes: 3", "nodes: got 3; allowed: a list"),
        ("gpu_types: {}", "nodes: is required"),
        ("node: []", "unknown field, did you mean 'nodes'?; allowed: gpu_types, links, nodes"),
        ("", "A cluster file looks like this: nodes: [{type: a100-80, count: 4, gpus: 8, zone: east}]"),
        ("- 1", "a cluster is a mapping: got a list"),
        ("nodes: [", "c.yaml:1:"),
        (NODES + "nodes: []", "given twice"),
    ],
)
def test_a_wrong_node_is_told_with_its_place_and_what_would_do(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("memory_gb_per_s: 0", "mine.memory_gb_per_s: got 0; allowed: at least 0.001 (in the catalog "),
        ("link_gb_per_s: -3", "got -3; allowed: at least 0.001"),
        ("network_gb_per_s: .inf", "mine.network_gb_per_s"),
        ("network_gb_per_s: 1e300", "allowed: at most 1000000"),
        ("usd_per_hour: -0.5", "mine.usd_per_hour: got -0.5; allowed: at least 0.0 (in the catalog 0.05, cpu, to "),
        ("memory_gib: 0", "mine.memory_gib: got 0; allowed: at least 0.001"),
        ("memory_gib: lots", "allowed: a number"),
        ("launch_us: -1", "allowed: at least 0"),
        ("peak_tflops: {fp64: 3}", "mine.peak_tflops.fp64: is no name for one; allowed: fp32, bf16, fp16"),
        ("peak_tflops: {fp32: 0}", "mine.peak_tflops.fp32: got 0; allowed: at least 0.001"),
        ("memory_gigabytes: 3", "unknown field"),
        ("memory_gigabytes: 3", "memory_gib, network_gb_per_s"),
        ("like: h1000", "mine.like: unknown GPU type 'h1000', did you mean 'h100'?; known: a10, "),
        ("like: h100, memory_gib: 3, memory_bytes: 3000000", "give memory_gib or memory_bytes, not both"),
        ("memory_gib: 3", "needs peak_tflops.fp32, memory_gb_per_s, link_gb_per_s, network_gb_per_s, usd_per_hour"),
        ("memory_gib: 3", "or like: NAME for the rest, known: a10, "),
        ("peak_tflops: {bf16: 3}", "needs memory_gib, peak_tflops.fp32"),
    ],
)
def test_a_wrong_type_is_told_with_its_field_and_what_would_do(fields: str, said: str) -> None:
    assert said in refusal(f"{NODES}gpu_types: {{mine: {{{fields}}}}}")


def test_a_type_needs_a_name_that_can_be_shown() -> None:
    assert "is no name for one; allowed: up to 64 letters" in refusal(NODES + "gpu_types: {'a b': {like: h100}}")


def test_everything_wrong_is_told_at_once_in_order_of_place() -> None:
    lines = refusal("gpu_types: {mine: {usd_per_hour: -1}}\nnodes: [{type: x, gpus: 0}, {}]").splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "gpu_types.mine.usd_per_hour",
        "nodes.0.gpus",
        "nodes.1.gpus",
        "nodes.1.type",
    ]


def test_what_is_written_out_reads_as_the_catalog_has_it() -> None:
    """Every type of the catalog can be said in a file: nothing of it is out of bounds."""
    for name, row in catalog().items():
        peaks = ", ".join(f"{key}: {value / 1e12!r}" for key, value in row.peak_flops_per_s.items())
        fields = (
            f"memory_bytes: {row.memory_bytes}, peak_tflops: {{{peaks}}}, "
            f"memory_gb_per_s: {row.memory_bandwidth_bytes_per_s / 1e9}, "
            f"link_gb_per_s: {row.link_bandwidth_bytes_per_s / 1e9}, link_us: {row.link_latency_s * 1e6}, "
            f"network_gb_per_s: {row.network_bandwidth_bytes_per_s / 1e9}, network_us: {row.network_latency_s * 1e6}, "
            f"launch_us: {row.launch_latency_s * 1e6}, usd_per_hour: {row.usd_per_hour}"
        )
        found = read(f"{NODES}gpu_types: {{copy: {{{fields}}}}}").gpu_types["copy"]
        for field in ("memory_bytes", "memory_bandwidth_bytes_per_s", "link_latency_s", "usd_per_hour"):
            assert getattr(found, field) == pytest.approx(getattr(row, field)), name
        assert found.peak_flops_per_s == pytest.approx(dict(row.peak_flops_per_s)), name


ZONES = "nodes: [{type: h100, gpus: 8, zone: west}, {type: a100-80, gpus: 8, zone: east}]\n"


def test_links_between_zones_hold_both_ways() -> None:
    links = read(ZONES + "links: [{between: [west, east], gb_per_s: 1.25, us: 30000, usd_per_gb: 0.02}]").links
    for pair in (("east", "west"), ("west", "east")):
        assert links.tier(*pair).bandwidth_bytes_per_s == 1.25e9
        assert links.tier(*pair).latency_s == pytest.approx(0.03)
        assert links.price(*pair) == pytest.approx(2e-11)


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("{between: [east, wst], gb_per_s: 1}", "unknown zone 'wst', did you mean 'west'?; nodes are in: east, west"),
        ("{between: [east, west], gb_per_s: 0}", "links.0.gb_per_s: got 0; allowed: at least 0.001"),
        ("{between: [east, west], gb_per_s: 1, us: -1}", "links.0.us: got -1; allowed: at least 0"),
        ("{between: [east, west]}", "links.0.gb_per_s: is required"),
        ("{between: [east, east], gb_per_s: 1}", "joins two zones, got 'east', 'east'; zones: east, west"),
        ("{between: [east], gb_per_s: 1}", "joins two zones, got 'east'; zones: east, west"),
        (
            "{between: [east, west], gb_per_s: 1}, {between: [west, east], gb_per_s: 2}",
            "links.1.between: is given twice",
        ),
        ("{zones: [east, west], gb_per_s: 1}", "unknown field; allowed: between, gb_per_s, us, usd_per_gb"),
    ],
)
def test_a_wrong_link_is_told_with_its_place_and_what_would_do(link: str, said: str) -> None:
    assert said in refusal(f"{ZONES}links: [{link}]")
