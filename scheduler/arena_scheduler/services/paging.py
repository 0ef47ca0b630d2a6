"""Page tokens and chunks: every list in bounded messages."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from arena.domain.job import JobId
from arena.errors import UserError
from arena_scheduler.reading import JobCursor

CHUNK_BYTES_MAX = 48 * 1024
CHUNK_ITEMS_MAX = 200


class _Sized(Protocol):
    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        ...


Message = TypeVar("Message", bound=_Sized)


def token_of(cursor: JobCursor | None) -> str:
    """Return a cursor as an opaque page token; empty for None."""
    if cursor is None:
        return ""
    return base64.urlsafe_b64encode(json.dumps([cursor.submitted_at_s, cursor.job_id]).encode()).decode()


def cursor_of(token: str) -> JobCursor | None:
    """Return the cursor of a page token.

    Raises:
        UserError: The token is not one of ours.
    """
    if not token:
        return None
    try:
        submitted_at_s, job_id = json.loads(base64.urlsafe_b64decode(token.encode()))
        return JobCursor(submitted_at_s=float(submitted_at_s), job_id=JobId(str(job_id)))
    except (ValueError, TypeError, binascii.Error) as error:
        raise UserError("the page token is not valid", fix="pass next_page_token as it was returned") from error


def chunked(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield messages in lists that stay below 64 KiB together (one larger message goes alone)."""
    chunk: list[Message] = []
    size = 0
    for message in messages:
        message_size = message.ByteSize() + 8
        if chunk and (size + message_size > CHUNK_BYTES_MAX or len(chunk) >= CHUNK_ITEMS_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += message_size
    if chunk:
        yield chunk
