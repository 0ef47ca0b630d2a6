"""Records, events, grids and decisions as JSON, and back."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from arena.domain.cluster import ClusterShape
from arena.domain.events import EVENT_JSON, Event, GridBuilt, JobSubmitted
from arena.domain.grid import Grid
from arena.domain.paces import MeasuredPace
from arena.domain.records import AttemptRecord, HistoryEntry, JobRecord, NodeRecord
from arena.engine.ports import RestartCost
from arena.policies.base import Decision

JOB_JSON: TypeAdapter[JobRecord] = TypeAdapter(JobRecord)
ATTEMPT_JSON: TypeAdapter[AttemptRecord] = TypeAdapter(AttemptRecord)
NODE_JSON: TypeAdapter[NodeRecord] = TypeAdapter(NodeRecord)
GRID_JSON: TypeAdapter[Grid] = TypeAdapter(Grid)
SHAPE_JSON: TypeAdapter[ClusterShape] = TypeAdapter(ClusterShape)
HISTORY_JSON: TypeAdapter[HistoryEntry] = TypeAdapter(HistoryEntry)
DECISION_JSON: TypeAdapter[Decision] = TypeAdapter(Decision)
RESTART_COST_JSON: TypeAdapter[RestartCost] = TypeAdapter(RestartCost)
PACES_JSON: TypeAdapter[tuple[MeasuredPace, ...]] = TypeAdapter(tuple[MeasuredPace, ...])

DECISION_BYTES_MAX = 64 * 1024
_EMPTY_GRID = Grid(cells=())
_SHAPES_REMEMBERED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GridText:
    """A grid as bytes under their digest."""

    grid: Grid
    digest: str
    text: bytes


class GridTexts:
    """Remembers the JSON of recent grid objects, since many jobs share one."""

    def __init__(self) -> None:
        self._recent: OrderedDict[int, GridText] = OrderedDict()

    def text_of(self, grid: Grid) -> GridText:
        """Return a grid's bytes and digest."""
        known = self._recent.get(id(grid))
        if known is not None:  # it holds the grid, so the id cannot have been given to another object
            return known
        text = GRID_JSON.dump_json(grid)
        entry = GridText(grid=grid, digest=hashlib.sha256(text).hexdigest(), text=text)
        self._recent[id(grid)] = entry
        if len(self._recent) > _SHAPES_REMEMBERED:
            self._recent.popitem(last=False)
        return entry


def event_text(event: Event) -> bytes:
    """Return an event as JSON, without the grid that it brings."""
    return EVENT_JSON.dump_json(with_grid(event, _EMPTY_GRID))


def with_grid(event: Event, grid: Grid) -> Event:
    """Return an event with another grid in place of the one that it brings; as it is, where it brings none."""
    match event:
        case GridBuilt():
            return replace(event, grid=grid)
        case JobSubmitted(planned=GridBuilt() as planned):
            return replace(event, planned=replace(planned, grid=grid))
        case _:
            return event


def decision_text(decision: Decision) -> str:
    """Return a decision as JSON of bounded size: one that is too large keeps its choices' ids and its numbers."""
    text = DECISION_JSON.dump_json(decision)
    if len(text) > DECISION_BYTES_MAX:
        text = DECISION_JSON.dump_json(replace(decision, reasons={}))
    if len(text) > DECISION_BYTES_MAX:
        text = DECISION_JSON.dump_json(Decision(numbers=decision.numbers, rest=decision.rest))
    return text.decode()
