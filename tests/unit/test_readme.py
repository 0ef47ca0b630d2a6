"""What README.md has people write into files is taken as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from arena.cli.main import COMMANDS
from arena.domain.specfile import parse_spec
from arena.engine.state import ClusterState
from arena.planner.clusterfile import parse_cluster
from arena.planner.tenantfile import parse_tenants
from arena_scheduler.metrics import Observed, metrics_of

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(name: str) -> str:
    """The YAML file that is shown under a name."""
    found: str
    (found,) = re.findall(rf"```yaml\n# {name}\n(.*?)```", README, re.DOTALL)
    return found


def test_the_job_and_the_shares_are_read() -> None:
    def read_text(path: str) -> str:
        raise AssertionError(path)

    spec = parse_spec(block("job.yaml"), source="job.yaml", base_dir="/", read_text=read_text, overrides=())
    assert spec.name == "my-gpt"
    assert parse_tenants(block("tenants.yaml"), source="tenants.yaml", gpu_types=["cpu"])


@pytest.mark.parametrize("line", re.findall(r"nodes: \[.*?\]", README))
def test_every_cluster_is_read(line: str) -> None:
    assert parse_cluster(line, source="cluster.yaml").shape.pools


def test_every_file_of_a_replay_is_made_by_a_line_before_it() -> None:
    section = README[README.index("## Replay") : README.index("## On a cluster")]
    (replay,) = re.findall(r"^    arena replay .*", section, re.MULTILINE)
    before = section[: section.index(replay)]
    trace, cluster = re.findall(r"\S+\.(?:jsonl|csv|yaml)\b", replay)
    assert re.search(rf"^    .*(?:--out|>) {re.escape(trace)}\b", before, re.MULTILINE)
    assert re.search(rf"^    .*> {re.escape(cluster)}\b", before, re.MULTILINE)


def test_every_command_shown_exists() -> None:
    shown = re.findall(r"^    (?:\$ )?arena ([a-z]+)\b", README, re.MULTILINE)
    assert shown
    assert set(shown) <= set(COMMANDS)


def test_every_metric_shown_exists_and_its_files_can_be_read() -> None:
    section = README[README.index("## Watching a cluster") : README.index("## Speed")]
    seen = Observed(now_s=1.0, state=ClusterState(decided_at_s=0.0), version="1", policy="p", policy_version="1")
    known = {one.name + "_total" * (one.type == "counter") for one in metrics_of(seen)}
    scrape, alerts = (yaml.safe_load(block(name)) for name in ("prometheus.yml", "alerts.yml"))
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    samples = re.findall(r"^    (arena_[a-z_]+)", section, re.MULTILINE)
    shown = {*samples, *re.findall(r"arena_[a-z_]+", " ".join(rules))}
    assert set(samples)
    assert shown <= known
    assert f'job="{scrape["scrape_configs"][0]["job_name"]}"' in rules[0]
