"""Jobs with all that a log of them holds, page by page from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from arena.domain.records import JobRecord
from arena.rpc import codec
from arena.rpc.v1 import job_service_pb2 as pb
from arena.rpc.views import job_view
from arena_scheduler.access import Caller
from arena_scheduler.cluster_view import ClusterView
from arena_scheduler.reading import JobCursor, JobQuery, Reader
from arena_scheduler.services.paging import chunked
from arena_scheduler.services.streams import StreamSlots

JOBS_PER_READ = 200


class JobExports:
    """What the store knows of jobs, newest first."""

    def __init__(self, *, reader: Reader, view: ClusterView, slots: StreamSlots) -> None:
        self._reader = reader
        self._view = view
        self._slots = slots

    async def stream(self, query: JobQuery, caller: Caller) -> AsyncIterator[pb.ExportJobsResponse]:
        """Yield the jobs that are the caller's to see in full, in chunks, and how many others there were."""
        after: JobCursor | None = None
        with self._slots.taken():
            while True:
                page = await asyncio.to_thread(self._reader.list_jobs, query, after, JOBS_PER_READ)
                own = [job for job in page.jobs if caller.owns(job.user)]
                hidden = len(page.jobs) - len(own)
                for response in await asyncio.to_thread(self._responses, own):
                    yield response
                if hidden:
                    yield pb.ExportJobsResponse(hidden_count=hidden)
                after = page.after
                if after is None:
                    break
            dropped = self._view.dropped
            if dropped.job_count and _is_of_ended(query):
                yield pb.ExportJobsResponse(dropped_count=dropped.job_count)

    def _responses(self, jobs: list[JobRecord]) -> list[pb.ExportJobsResponse]:
        attempts = self._reader.attempts_of_jobs([job.job_id for job in jobs])
        exported = (
            pb.ExportedJob(
                job=codec.job_view_to_proto(job_view(job, None, private=True)),
                # What their program wrote is no part of a log, and may be long.
                attempts=[codec.attempt_to_proto(one, private=False) for one in attempts.get(job.job_id, ())],
            )
            for job in jobs
        )
        return [pb.ExportJobsResponse(jobs=chunk) for chunk in chunked(exported)]


def _is_of_ended(query: JobQuery) -> bool:
    return not query.states or any(state.is_terminal for state in query.states)
