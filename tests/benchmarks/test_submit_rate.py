"""How many submits a scheduler takes from 16 clients, each one RPC and one durable commit."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import grpc.aio
import pytest

from arena.rpc import codec
from arena.rpc.v1 import job_service_pb2 as pb
from arena.rpc.v1 import job_service_pb2_grpc
from arena.rpc.version import hello
from tests.builders import train_spec

CLIENTS = 16
CLIENT_PROCESSES = 2
SUBMITS = 3_000

_SERVER = """
import asyncio, signal, sys
from pathlib import Path
from arena_scheduler.app import collect_garbage_rarely, start
from arena_scheduler.config import SchedulerConfig
from arena_scheduler.store.writes import SqliteStore

class Counting(SqliteStore):
    commit_count = 0

    def commit(self, steps):
        super().commit(steps)
        self.commit_count += 1

async def main():
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    path = Path(sys.argv[1]) / "arena.db"
    store = Counting.open(path)
    running = await start(SchedulerConfig(db=path, port=0), store=store)
    print(running.address, flush=True)
    await stopping.wait()
    await running.stop()
    print(store.commit_count, flush=True)

collect_garbage_rarely()
asyncio.run(main())
"""

_CLIENTS = """
import asyncio, sys
from tests.benchmarks.test_submit_rate import run_clients
print(asyncio.run(run_clients(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
"""


async def _client(address: str, count: int) -> None:
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        submit = job_service_pb2_grpc.JobServiceStub(channel).SubmitJob
        spec = codec.spec_to_proto(train_spec("benchmark"))
        for _ in range(count):
            await submit(pb.SubmitJobRequest(hello=hello(), request_id=uuid.uuid4().hex, spec=spec))


async def run_clients(address: str, client_count: int, submit_count: int) -> float:
    """Submit from so many clients, each with a connection of its own; return the seconds."""
    started_s = time.monotonic()
    await asyncio.gather(*(_client(address, submit_count // client_count) for _ in range(client_count)))
    return time.monotonic() - started_s


def syncs_per_s(directory: Path, count: int = 200) -> float:
    """How often a 4 KiB append to a file there can be made durable."""
    fd = os.open(directory / "sync-probe", os.O_RDWR | os.O_CREAT, 0o600)
    started_s = time.monotonic()
    for _ in range(count):
        os.write(fd, b"x" * 4096)
        os.fdatasync(fd)
    elapsed_s = time.monotonic() - started_s
    os.close(fd)
    return count / elapsed_s


def _python(*arguments: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True, cwd=root)


@pytest.mark.benchmark
def test_submits_per_second_from_sixteen_clients(tmp_path: Path) -> None:
    server = _python(_SERVER, str(tmp_path))
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        started_s = time.monotonic()
        each = (str(CLIENTS // CLIENT_PROCESSES), str(SUBMITS // CLIENT_PROCESSES))
        clients = [_python(_CLIENTS, address, *each) for _ in range(CLIENT_PROCESSES)]
        outputs = [client.communicate(timeout=120)[0] for client in clients]
        with_start_s = time.monotonic() - started_s
        server.terminate()
        commits = int(server.communicate(timeout=30)[0].split()[-1])
    finally:
        server.kill()
        server.wait()
    submits = SUBMITS // CLIENTS * CLIENTS
    elapsed_s = max(float(output) for output in outputs)
    result = {
        "submits_per_s": round(submits / elapsed_s),
        "submits_per_commit": round(submits / commits, 1),
        "fdatasync_per_s": round(syncs_per_s(tmp_path)),
        "clients": CLIENTS,
        "elapsed_s": round(elapsed_s, 2),
        "with_client_start_s": round(with_start_s, 2),
    }
    print("\nsubmit rate:", json.dumps(result))
    assert all(client.returncode == 0 for client in clients)
    assert result["submits_per_s"] > 50
