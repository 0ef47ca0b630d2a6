"""The cluster, for admins; status and nodes for everybody."""

from __future__ import annotations

import asyncio

from arena.domain.events import NodeDrainChanged
from arena.domain.launch import NodeId
from arena.errors import UserError
from arena.policies.base import Decision
from arena.rpc import codec
from arena.rpc.v1 import admin_service_pb2 as pb
from arena.rpc.v1 import admin_service_pb2_grpc
from arena.rpc.views import DecidedJob, DecisionView
from arena_scheduler.access import Access, Caller
from arena_scheduler.cluster_view import ClusterView
from arena_scheduler.inbox import Inbox
from arena_scheduler.reading import Reader
from arena_scheduler.services.calls import change, kept_answers, unary

STATUS_JOBS_DEFAULT = 50
STATUS_JOBS_MAX = 500
NODES_PER_PAGE = 200
DECISIONS_DEFAULT = 10
DECISIONS_MAX = 50


class AdminService(admin_service_pb2_grpc.AdminServiceServicer):
    """Status, nodes, drains."""

    def __init__(self, *, access: Access, view: ClusterView, inbox: Inbox, reader: Reader) -> None:
        self.access = access
        self.answers = kept_answers()
        self._view = view
        self._inbox = inbox
        self._reader = reader

    @unary
    async def GetStatus(self, request: pb.GetStatusRequest, caller: Caller) -> pb.GetStatusResponse:  # noqa: N802
        """Return the cluster at a glance, from memory."""
        count_max = min(request.job_count_max or STATUS_JOBS_DEFAULT, STATUS_JOBS_MAX)
        return codec.status_to_proto(self._view.status(caller, count_max))

    @unary
    async def ListNodes(self, request: pb.ListNodesRequest, caller: Caller) -> pb.ListNodesResponse:  # noqa: N802
        """Return a page of nodes, by id."""
        nodes = self._view.state.nodes
        size = min(request.page_size or NODES_PER_PAGE, NODES_PER_PAGE)
        rest = sorted(node_id for node_id in nodes if node_id > request.page_token)
        page = rest[:size]
        return pb.ListNodesResponse(
            nodes=[codec.node_to_proto(nodes[node_id], self._view.state.holders) for node_id in page],
            next_page_token=page[-1] if len(rest) > size else "",
            total_count=len(nodes),
        )

    @unary
    async def ListDecisions(  # noqa: N802
        self, request: pb.ListDecisionsRequest, caller: Caller
    ) -> pb.ListDecisionsResponse:
        """Return the latest decisions, newest first."""
        count_max = min(request.count_max or DECISIONS_DEFAULT, DECISIONS_MAX)
        found = await asyncio.to_thread(self._reader.decisions, count_max)
        shown = [codec.decision_to_proto(_view_of(at_s, decision)) for at_s, decision in found]
        return pb.ListDecisionsResponse(decisions=shown)

    @change
    async def DrainNode(self, request: pb.DrainNodeRequest, caller: Caller) -> pb.DrainNodeResponse:  # noqa: N802
        """Give a node no new work; with a time, have it empty by then."""
        within_s = codec.seconds_from_proto(request.within_s, "within_s") if request.HasField("within_s") else None
        node = await self._change(request.node_id, caller, drain=True, why=request.why, within_s=within_s)
        return pb.DrainNodeResponse(node=node)

    @change
    async def UndrainNode(  # noqa: N802
        self, request: pb.UndrainNodeRequest, caller: Caller
    ) -> pb.UndrainNodeResponse:
        """Take a node back."""
        return pb.UndrainNodeResponse(node=await self._change(request.node_id, caller, drain=False, why=""))

    async def _change(
        self, name: str, caller: Caller, *, drain: bool, why: str, within_s: float | None = None
    ) -> pb.Node:
        caller.require_admin("drain nodes" if drain else "undrain nodes")
        if drain and not why.strip():
            raise UserError("a drain needs a reason", fix="give --why, for whoever finds the node idle")
        node_id = self._view.node(NodeId(name)).node_id
        change = NodeDrainChanged(node_id=node_id, drain=drain, by=caller.user, why=why, within_s=within_s)
        await self._inbox.request(change)
        return codec.node_to_proto(self._view.node(node_id), self._view.state.holders)


def _view_of(at_s: float, decision: Decision) -> DecisionView:
    jobs = tuple(
        DecidedJob(
            job_id=job_id,
            group=None if choice is None else choice.group,
            plan=None if choice is None else choice.plan,
            reasons=tuple(decision.reasons.get(job_id, ())) or (() if choice is None else (choice.cause,)),
        )
        for job_id, choice in sorted(decision.choices.items())
    )
    unchanged_count = len(decision.reasons.keys() - decision.choices.keys())
    return DecisionView(at_s=at_s, numbers=decision.numbers, jobs=jobs, unchanged_count=unchanged_count)
