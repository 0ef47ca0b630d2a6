"""What a text stands for: an id, a name, or the beginning of an id, in this order whatever jobs there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from arena.cli.find import find_job_id
from arena.client import ArenaClient, JobDetail
from arena.domain.records import JobState
from arena.errors import NotFoundError, UserError
from arena.rpc.views import JobView, job_view
from tests.builders import job_record, train_spec


@dataclass
class Jobs:
    """What a client knows of jobs, newest first."""

    views: tuple[JobView, ...]

    def job(self, job_id: str, *, explain: bool = False) -> JobDetail:
        for view in self.views:
            if view.job_id == job_id:
                return JobDetail(job=view, attempts=())
        raise NotFoundError(f"there is no job {job_id!r}")

    def jobs(self) -> Iterator[JobView]:
        return iter(self.views)


def found(views: tuple[JobView, ...], text: str, *, asks: bool) -> str | None:
    """The id that a text stands for, None where it is refused."""
    try:
        return find_job_id(cast("ArenaClient", Jobs(views)), text, tell=(lambda _: None) if asks else None)
    except (NotFoundError, UserError):
        return None


# Few letters, so that names are beginnings of ids, and equal, often.
STORES = st.text("pd8", min_size=1, max_size=3)
IDS = st.tuples(STORES, st.integers(1, 120)).map(lambda parts: f"{parts[0]}-{parts[1]}")
TEXTS = st.one_of(st.text("pd8-1", min_size=1, max_size=5), IDS)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[JobView, ...]:
    ids = draw(st.lists(IDS, min_size=1, max_size=8, unique=True))
    return tuple(
        job_view(
            job_record(job_id, train_spec(draw(TEXTS)), state=draw(st.sampled_from(list(JobState)))),
            None,
            private=True,
        )
        for job_id in ids
    )


def one(job_id: str, name: str) -> JobView:
    return job_view(job_record(job_id, train_spec(name)), None, private=True)


@given(clusters(), st.data(), st.booleans())
@example((one("pdd8-1", "precious"), one("x-7", "p")), None, False)
def test_an_exact_name_always_wins_over_the_beginning_of_an_id(
    views: tuple[JobView, ...], data: st.DataObject | None, asks: bool
) -> None:
    text = views[-1].name if data is None else data.draw(st.sampled_from([view.name for view in views]))
    named = [view.job_id for view in views if view.name == text]
    if any(view.job_id == text for view in views):
        named = [text]
    answer = found(views, text, asks=asks)
    assert answer in (named if len(named) == 1 else [None, *named])


@given(clusters(), TEXTS, st.booleans())
@example((one("pdd8-1", "precious"),), "p", False)
@example((one("pdd8-1", "precious"),), "pdd8-", False)
def test_a_text_without_the_dash_and_a_digit_never_finds_a_job_by_the_beginning_of_its_id(
    views: tuple[JobView, ...], text: str, asks: bool
) -> None:
    answer = found(views, text, asks=asks)
    if not re.search(r"-\d", text):
        assert answer is None or text in {answer, *(view.name for view in views if view.job_id == answer)}


@given(clusters(), TEXTS, st.booleans())
def test_what_is_found_has_that_id_that_name_or_that_beginning(
    views: tuple[JobView, ...], text: str, asks: bool
) -> None:
    answer = found(views, text, asks=asks)
    name_by_id = {view.job_id: view.name for view in views}
    assert answer is None or name_by_id[answer] == text or answer.startswith(text)
    if text in name_by_id:
        assert answer == text
