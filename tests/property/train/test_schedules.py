"""No schedule has a hazard, and the reviewer misses no operation that is left out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.train.schedule import Do, hazards, plan
from support.depth import cases

shapes = st.tuples(st.integers(1, 40), st.integers(1, 12))


@settings(max_examples=cases(100))
@given(shapes)
def test_no_hazard(shape) -> None:
    schedule = plan(*shape)
    assert hazards(schedule) == []
    blocks, slots = shape
    assert schedule.copies == 2 * blocks - min(blocks, slots)


@settings(max_examples=cases(100))
@given(shapes, st.data())
def test_whatever_is_left_out_is_missed(shape, data) -> None:
    schedule = plan(*shape)
    ops = list(schedule.ops())
    left_out = data.draw(st.integers(0, len(ops) - 1))
    gone = ops.pop(left_out)
    last_of_its_slot = gone.do is Do.EVICT and all(op.slot != gone.slot for op in ops[left_out:])
    assert bool(hazards(schedule, ops)) is not last_of_its_slot
