"""The simulator's queue: order, and what is called off does not happen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arena.sim.kernel import Kernel

ITEMS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=30)


@given(items=ITEMS)
def test_what_was_not_called_off_comes_in_order(items: list[tuple[int, int, bool]]) -> None:
    kernel: Kernel[int] = Kernel()
    entries = [kernel.push(float(at_s), index, priority=priority) for index, (at_s, priority, _) in enumerate(items)]
    for entry, (_, _, is_cancelled) in zip(entries, items, strict=True):
        if is_cancelled:
            kernel.cancel(entry)
            kernel.cancel(entry)
    kept = [(at_s, priority, index) for index, (at_s, priority, gone) in enumerate(items) if not gone]
    assert len(kernel) == len(kept)
    taken = []
    while (at_s := kernel.peek_s()) is not None:
        index = kernel.pop()
        assert kernel.now_s == at_s
        taken.append((items[index][0], items[index][1], index))
    assert taken == sorted(kept)
    assert len(kernel) == 0


def test_the_past_is_now() -> None:
    kernel: Kernel[str] = Kernel()
    kernel.push(5.0, "first")
    kernel.pop()
    kernel.push(1.0, "late")
    assert kernel.peek_s() == 5.0
