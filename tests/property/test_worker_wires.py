"""What travels between stages: every receiver gets all of its input once, in the order in which it is sent."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.job import TrainSpec
from arena.domain.micro_batches import micro_batches
from arena.domain.parallel import ParallelPlan
from arena.domain.schedule import Pass, schedule_of
from arena_agent.worker.placement import Placement
from arena_agent.worker.wires import Itinerary, Message, itinerary, routes
from tests.property.layout_strategies import layouts

Layout = tuple[TrainSpec, ParallelPlan]
degrees = st.sampled_from([1, 2, 3, 4, 6, 8])


@settings(deadline=None)
@given(sender_tp=degrees, receiver_tp=degrees)
def test_whole_activations_come_from_one_rank_each(sender_tp: int, receiver_tp: int) -> None:
    found = list(routes(sender_tp, receiver_tp, None))
    assert [receiver for _, receiver, _ in found] == list(range(receiver_tp))
    assert all(0 <= sender < sender_tp and run is None for sender, _, run in found)
    # Senders share the work as evenly as they can.
    loads = Counter(sender for sender, _, _ in found)
    assert max(loads.values()) <= -(-receiver_tp // sender_tp)


@settings(deadline=None)
@given(sender_tp=degrees, receiver_tp=degrees, length=st.integers(1, 6).map(lambda each: each * 24))
def test_each_receivers_run_of_the_sequence_comes_once_from_who_holds_it(
    sender_tp: int, receiver_tp: int, length: int
) -> None:
    received: dict[int, list[int]] = {receiver: [] for receiver in range(receiver_tp)}
    for sender, receiver, run in routes(sender_tp, receiver_tp, length):
        assert run is not None
        assert length * sender // sender_tp <= run.start < run.stop <= length * (sender + 1) // sender_tp
        received[receiver] += run
    for receiver, positions in received.items():
        own = range(length * receiver // receiver_tp, length * (receiver + 1) // receiver_tp)
        assert sorted(positions) == list(own)


def itineraries(layout: Layout) -> tuple[Placement, dict[int, Itinerary]]:
    train, plan = layout
    placement = Placement(spec=train.model, plan=plan)
    batches = micro_batches(plan, train.global_batch)
    orders = schedule_of(plan, batches)
    return placement, {at.rank: itinerary(placement, batches, orders, at.rank) for at in placement.ranks}


@settings(deadline=None)
@given(layout=layouts())
def test_each_message_that_is_sent_is_awaited_once_where_it_goes(layout: Layout) -> None:
    _, plans = itineraries(layout)
    sent = Counter(message for plan in plans.values() for part in plan.sent.values() for message in part)
    awaited = Counter(message for plan in plans.values() for part in plan.awaited.values() for message in part)
    assert sent == awaited
    assert set(sent.values()) <= {1}
    for rank, plan in plans.items():
        assert all(message.source == rank for part in plan.sent.values() for message in part)
        assert all(message.destination == rank for part in plan.awaited.values() for message in part)


@settings(deadline=None)
@given(layout=layouts())
def test_every_pass_gets_all_of_its_input(layout: Layout) -> None:
    """All but the model's first forward and last backward passes wait for the whole sequence, or their run of it."""
    placement, plans = itineraries(layout)
    train, plan = layout
    orders = schedule_of(plan, micro_batches(plan, train.global_batch))
    for at in placement.ranks:
        awaited = plans[at.rank].awaited
        for action in orders[at.stage, at.replica]:
            is_start = (
                action.chunk == 0 if action.direction is Pass.FORWARD else action.chunk == len(placement.chunks) - 1
            )
            parts = awaited.get(action, ())
            assert bool(parts) != is_start
            if parts and plan.sequence_parallel:
                length = train.model.sequence_length
                own = range(length * at.tp_index // at.tp, length * (at.tp_index + 1) // at.tp)
                assert sorted(position for part in parts for position in part.run or ()) == list(own)
            elif parts:
                assert [part.run for part in parts] == [None]


@settings(deadline=None)
@given(layout=layouts())
def test_receivers_post_in_the_order_in_which_a_sender_sends(layout: Layout) -> None:
    placement, plans = itineraries(layout)
    train, plan = layout
    orders = schedule_of(plan, micro_batches(plan, train.global_batch))
    for at in placement.ranks:
        channels: dict[tuple[int, Pass], list[Message]] = {}
        for action in orders[at.stage, at.replica]:
            for message in plans[at.rank].sent.get(action, ()):
                channels.setdefault((message.destination, action.direction), []).append(message)
        for (destination, direction), messages in channels.items():
            assert list(plans[destination].order[at.rank, direction]) == messages
