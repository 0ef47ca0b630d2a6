"""Bad input through the real command line: a clear error, nothing lost, everything else goes on."""

from __future__ import annotations

import getpass
import hashlib
import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import trustme
import yaml

from arena.domain.records import EntryKind, JobState
from arena.rpc.version import PROTOCOL_VERSION
from arena.units import KIB, MIB
from tests.builders import train_spec
from tests.fakes.local_cluster import ARENA, DEADLINE_S, Node, ProcessCluster, process_cluster

pytestmark = pytest.mark.slow

MODEL = {"layers": 2, "hidden": 32, "heads": 2, "seq_len": 32}
JOB = """\
name: tiny
stop: {steps: 40}
train:
  model: {family: gpt, layers: 2, hidden: 32, heads: 2, seq_len: 32}
  global_batch: 8
"""
SMALL_DISK_BYTES = 8 * MIB
ROOM_BYTES = 64 * KIB
OTHER_PROTOCOL = """
import arena.rpc.version as version
version.PROTOCOL_VERSION = 99
from arena.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("bad"), nodes=1, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    """The cluster of this module; after each test it is idle and still trains."""
    yield shared
    shared.assert_sound()


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def exit_of(node: Node) -> tuple[int, str]:
    """Run an agent that will not stay; return its exit status and its last line."""
    node.service.start()
    assert node.service.process is not None
    code = node.service.process.wait(DEADLINE_S)
    return code, node.service.text().splitlines()[-1]


def test_a_typo_is_told_with_its_place_and_what_was_meant(cluster: ProcessCluster, job_file: Path) -> None:
    job_file.write_text(JOB.replace("global_batch", "global_bach"))
    done = cluster.arena("submit", job_file)
    assert done.returncode == 4
    assert done.stdout == ""
    assert f"error: {job_file}:5:3: train.global_bach: unknown field, did you mean 'global_batch'?" in done.stderr
    assert list(cluster.client.jobs()) == []


def test_a_model_that_fits_nowhere_is_refused_with_what_would_fit(cluster: ProcessCluster, job_file: Path) -> None:
    done = cluster.arena(
        "submit", job_file, "--set", "train.model={family: gpt, layers: 96, hidden: 12288, heads: 96, seq_len: 2048}"
    )
    assert done.returncode == 4
    assert "no group of this cluster can hold job 'tiny'" in done.stderr
    assert "largest feasible now:" in done.stderr
    assert "GiB" in done.stderr
    done = cluster.arena("--json", "submit", job_file, "--set", "gpus.count=64")
    assert done.returncode == 4
    assert json.loads(done.stderr)["error"]["details"] == {"largest_feasible": "2", "gpu_count": "2"}


def test_a_node_id_that_is_taken_is_refused_and_its_holder_not_disturbed(cluster: ProcessCluster) -> None:
    job_id, gate = cluster.submit_gated(train_spec("tiny", model=MODEL, stop={"steps": 40}))
    cluster.wait_entry(job_id, EntryKind.ATTEMPT_STARTED)
    code, said = exit_of(cluster.make_node("n1", gpus=2))
    assert code == 3
    assert "node n1 is already connected from" in said
    assert "--node-id" in said
    gate.open()
    cluster.wait_succeeded(job_id)
    assert cluster.client.job(job_id).job.epoch == 1


def test_an_agent_of_another_protocol_is_refused_with_both_versions(cluster: ProcessCluster) -> None:
    node = cluster.make_node("n9", gpus=1)
    node.service.argv = [sys.executable, "-c", OTHER_PROTOCOL, *node.service.argv[1:]]
    code, said = exit_of(node)
    assert code == 7
    assert "agent n9" in said
    assert "protocol version 99" in said
    assert f"speaks {PROTOCOL_VERSION}" in said
    assert "the scheduler is older" in said
    assert [found.node_id for found in cluster.client.nodes()] == ["n1"]


class SmallDisk:
    """A place that can be made full: a file system of its own for root, else a limit on the size of ranks' files."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self._ballast = place / "ballast"
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(place)]
        done = subprocess.run(mount, capture_output=True, check=False)
        self._place = place if done.returncode == 0 else None

    def fill(self, pids: Iterable[int]) -> str:
        """Leave room for small files only; return what an error has to say of it."""
        if self._place is None:
            self._limit(pids, ROOM_BYTES)
            return f"free in {self._ballast.parent}"
        with self._ballast.open("wb") as ballast:
            ballast.write(bytes(shutil.disk_usage(self._place).free - ROOM_BYTES))
        return "KiB free in"

    def clear(self, pids: Iterable[int]) -> None:
        if self._place is None:
            self._limit(pids, resource.RLIM_INFINITY)
        self._ballast.unlink(missing_ok=True)

    def remove(self) -> None:
        if self._place is not None:
            subprocess.run(["umount", str(self._place)], check=True)

    def _limit(self, pids: Iterable[int], size_bytes: int) -> None:
        for pid in pids:
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            soft = hard if hard != resource.RLIM_INFINITY and size_bytes == resource.RLIM_INFINITY else size_bytes
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(shared: ProcessCluster) -> Iterator[tuple[Path, SmallDisk]]:
    place = shared.directory / "small"
    disk = SmallDisk(place)
    yield place, disk
    disk.remove()


def test_a_full_checkpoint_disk_fails_the_save_and_not_the_job(
    small_disk: tuple[Path, SmallDisk], cluster: ProcessCluster
) -> None:
    place, disk = small_disk
    checkpoint = {"interval_steps": 10, "dir": str(place)}
    job_id, gate = cluster.submit_gated(
        train_spec("tiny", model=MODEL, stop={"steps": 60}, checkpoint=checkpoint, gpus={"count": 1})
    )
    attempt_id = f"{job_id}.1"
    gate.let_pass_until(lambda: cluster.saved_step(attempt_id) >= 10, "the first checkpoint is there")
    pids = tuple(cluster.rank_pids(attempt_id).values())
    said = disk.fill(pids)
    gate.let_pass_until(lambda: cluster.reports(attempt_id, "checkpoint_failed"), "a save has failed")
    failed = cluster.wait_entry(job_id, EntryKind.CHECKPOINT_FAILED)
    assert said in str(failed.data["error"])
    assert cluster.client.job(job_id).job.progress.durable_step < int(str(failed.data["step"]))
    disk.clear(pids)
    gate.open()
    cluster.wait_succeeded(job_id)
    assert cluster.steps(job_id) == [(attempt_id, step) for step in range(1, 61)]
    assert cluster.client.job(job_id).job.progress.durable_step == 60


def test_a_scheduler_does_not_listen_off_loopback_without_tokens_and_tls(tmp_path: Path) -> None:
    argv = [str(ARENA), "scheduler", "--host", "0.0.0.0", "--port", "0", "--db", str(tmp_path / "arena.db")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("error: the scheduler may not listen on 0.0.0.0 like this")
    assert "--tokens" in done.stderr
    assert "--tls-cert" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[ProcessCluster]:
    """A cluster with tokens and TLS; its own client is an admin's, who has an account on this machine."""
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    cert, key, ca, tokens = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem", "tokens.yaml"))
    pair.cert_chain_pems[0].write_to_path(cert)
    pair.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    grants = {"boss": (getpass.getuser(), "admin"), "bob": ("bob", "user"), "node": ("nodes", "agent")}
    digests = {hashlib.sha256(token.encode()).hexdigest(): grant for token, grant in grants.items()}
    tokens.write_text(
        yaml.safe_dump({digest: {"user": user, "role": role} for digest, (user, role) in digests.items()})
    )
    words = ["--tokens", tokens, "--tls-cert", cert, "--tls-key", key]
    place = tmp_path / "cluster"
    place.mkdir()
    with process_cluster(place, nodes=0, words=words, settings={"token": "boss", "tls_ca": ca}) as cluster:
        cluster.add_node("n1", gpus=1, ARENA_TOKEN="node", ARENA_CA=str(ca))
        yield cluster


def test_tokens_and_tls_let_in_who_has_them_and_hide_what_is_somebody_elses(
    guarded: ProcessCluster, tmp_path: Path
) -> None:
    ca = str(tmp_path / "ca.pem")
    job_id, gate = guarded.submit_gated(train_spec("secret sauce", model=MODEL, stop={"steps": 20}))
    guarded.wait_entry(job_id, EntryKind.ATTEMPT_STARTED)
    mine = guarded.arena_json("job", job_id, ARENA_TOKEN="boss", ARENA_CA=ca)["job"]
    seen = guarded.arena_json("job", job_id, ARENA_TOKEN="bob", ARENA_CA=ca)["job"]
    assert mine["spec"]["train"]["model"]["hidden"] == 32
    assert seen["spec"] is None
    for field in ("job_id", "state", "plan", "group"):
        assert seen[field] == mine[field]
        assert seen[field]
    for words in (("logs", job_id), ("cancel", job_id), ("hold", job_id)):
        refused = guarded.arena(*words, ARENA_TOKEN="bob", ARENA_CA=ca)
        assert (refused.returncode, "you are bob" in refused.stderr) == (6, True), refused.stderr
    assert guarded.arena("jobs", ARENA_TOKEN="nobody's", ARENA_CA=ca).returncode == 6
    assert guarded.arena("jobs", ARENA_CA=ca).returncode == 6
    assert guarded.arena("jobs", ARENA_TOKEN="boss").returncode == 3
    gate.open()
    guarded.wait_succeeded(job_id)
    assert guarded.client.job(job_id).job.state is JobState.SUCCEEDED


def test_an_agent_without_the_right_token_stays_out(guarded: ProcessCluster, tmp_path: Path) -> None:
    node = guarded.make_node("n2", gpus=1, ARENA_TOKEN="bob", ARENA_CA=str(tmp_path / "ca.pem"))
    code, said = exit_of(node)
    assert code == 6
    assert "only an agent may register a node" in said


def test_ctrl_c_ends_an_agent_and_the_node_comes_back(cluster: ProcessCluster) -> None:
    node = cluster.nodes["n1"]
    assert node.service.end(signal.SIGINT) == 0
    node.service.start()
    cluster.wait_ready("n1")
