"""Every RPC of the generated services is served: what the generated code leaves open is filled in by ours."""

from __future__ import annotations

import inspect

import pytest

from arena.rpc.v1.admin_service_pb2_grpc import AdminServiceServicer
from arena.rpc.v1.agent_service_pb2_grpc import AgentServiceServicer
from arena.rpc.v1.job_service_pb2_grpc import JobServiceServicer
from arena_scheduler.services.admin import AdminService
from arena_scheduler.services.agents import AgentService
from arena_scheduler.services.jobs import JobService


@pytest.mark.parametrize(
    ("generated", "ours"),
    [(AdminServiceServicer, AdminService), (AgentServiceServicer, AgentService), (JobServiceServicer, JobService)],
)
def test_every_rpc_is_served(generated: type, ours: type) -> None:
    rpcs = [name for name, _ in inspect.getmembers(generated, inspect.isfunction)]
    assert rpcs
    assert [name for name in rpcs if getattr(ours, name) is getattr(generated, name)] == []
