"""What a job's program wrote is for its user and admins: no history entry and no view shows it to anybody else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from tests.builders import node_info, train_spec
from tests.fakes.agent_session import AgentSession
from tests.fakes.running_scheduler import Cluster, cluster_of, eventually, quick_config

SECRET = "/home/ann/merger-plans.txt"
ROLES = {"ann": "user", "bob": "user", "root": "admin", "nodes": "agent"}


def tokens_file(directory: Path) -> Path:
    path = directory / "tokens.yaml"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ROLES}
    path.write_text(yaml.safe_dump({digests[name]: {"user": name, "role": role} for name, role in ROLES.items()}))
    return path


async def agent_of(cluster: Cluster, node: str) -> AgentSession:
    session = cluster.session(node_info(node, gpus=1), metadata=(("authorization", "Bearer nodes"),))
    await session.register()
    await session.heartbeats(0.1)
    await session.next_of("verdict")
    return session


async def fail(agent: AgentSession, attempt_id: str) -> None:
    """Start, say that a checkpoint was skipped, and fail; all of it with a text of the program's."""
    ready = f'{{"kind":"ready","resumed_step":0,"checkpoint":null,"skipped":{{"step-1":"{SECRET}"}},'
    reports = (
        ready + '"rendezvous_s":0.1,"load_s":0.1}',
        f'{{"kind":"checkpoint_failed","step":1,"error":"{SECRET}"}}',
        f'{{"kind":"error","code":"checkpoint","rank":0,"message":"{SECRET}"}}',
    )
    await agent.send(pb.OpenSessionRequest(attempt_started=pb.AttemptStarted(attempt_id=attempt_id)))
    for text in reports:
        message = pb.WorkerReport(attempt_id=attempt_id, report_json=text)
        await agent.send(pb.OpenSessionRequest(worker_report=message))
    await end(agent, attempt_id)


async def end(agent: AgentSession, attempt_id: str) -> None:
    failed = common_pb2.NodeEnd(
        node_id=agent.info.node_id,
        kind=common_pb2.END_KIND_FAILED,
        error_code="checkpoint",
        message=SECRET,
        log_tail=SECRET,
    )
    await agent.send(pb.OpenSessionRequest(attempt_ended=pb.AttemptEnded(attempt_id=attempt_id, end=failed)))


async def test_nothing_that_a_program_wrote_is_shown_to_other_users(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, tokens=tokens_file(tmp_path))) as cluster:
        ann, bob, root = (cluster.client(token=name) for name in ("ann", "bob", "root"))
        first, second = await agent_of(cluster, "n1"), await agent_of(cluster, "n2")
        job_id = await ann.submit(train_spec("x", kind="rigid", gpus={"count": 2}))
        attempt_id = (await first.next_of("launch")).attempt_id
        await fail(first, attempt_id)
        await second.next_of("stop_attempt")
        await end(second, attempt_id)

        async def is_held() -> bool:
            return bool((await ann.job(job_id)).state == common_pb2.JOB_STATE_HELD)

        await eventually(is_held, "the job waits for its user")
        for client, sees in ((ann, True), (root, True), (bob, False)):
            entries: list[Any] = await client.entries(job_id=job_id)
            shown = [str(entry) for entry in entries]
            assert any(SECRET in text for text in shown) is sees
            assert (SECRET in str(await client.call("GetJob", job_id=job_id))) is sees
            assert {"attempt_launched", "attempt_ended", "checkpoint_skipped"} <= {entry.kind for entry in entries}
