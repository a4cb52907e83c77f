"""No schedule has a hazard, and the reviewer misses no operation that is left out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.train.schedule import Do, hazards, plan
from support.depth import cases

shapes = st.tuples(st.integers(1, 40), st.integers(1, 12))
ends = st.sampled_from([("embedding", "head"), ("both", ""), ("embedding", ""), ("", "head")])


@settings(max_examples=cases(100))
@given(shapes)
def test_no_hazard(shape) -> None:
    schedule = plan(*shape)
    assert hazards(schedule) == []
    blocks, slots = shape
    assert schedule.copies == 2 * blocks - min(blocks, slots)


@settings(max_examples=cases(100))
@given(shapes, ends)
def test_embedding_and_head_have_a_slot_to_themselves_and_are_copied_once(shape, kind) -> None:
    layers, slots = shape
    wide = sum(map(bool, kind))
    schedule = plan(layers + wide, slots, *kind)
    assert hazards(schedule) == []
    assert schedule.num_slots == min(layers, slots) + 1
    assert schedule.copies == 2 * layers - min(layers, slots) + wide
    assert {visit.slot for visit in schedule.visits if visit.block in schedule.wide} == {schedule.num_slots - 1}
    assert len(schedule.wide) == wide
    kept = [op.block for op in schedule.ops() if op.do is Do.KEEP]
    assert sorted(kept) == list(range(layers + wide))


@settings(max_examples=cases(100))
@given(shapes, ends, st.data())
def test_a_step_with_embedding_and_head_lacks_nothing_that_is_left_out(shape, kind, data) -> None:
    layers, slots = shape
    schedule = plan(layers + sum(map(bool, kind)), slots, *kind)
    ops = list(schedule.ops())
    gone = ops.pop(data.draw(st.sampled_from([at for at, op in enumerate(ops) if op.do is not Do.EVICT])))
    assert hazards(schedule, ops), gone


@settings(max_examples=cases(100))
@given(shapes, st.data())
def test_whatever_is_left_out_is_missed(shape, data) -> None:
    schedule = plan(*shape)
    ops = list(schedule.ops())
    left_out = data.draw(st.integers(0, len(ops) - 1))
    gone = ops.pop(left_out)
    last_of_its_slot = gone.do is Do.EVICT and all(op.slot != gone.slot for op in ops[left_out:])
    assert bool(hazards(schedule, ops)) is not last_of_its_slot
