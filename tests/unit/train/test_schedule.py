"""The schedule of a step, and the reviewer that reads it."""

from __future__ import annotations

import itertools

import pytest

from fairlead.train.schedule import Do, Op, hazards, plan


def test_a_step_in_words() -> None:
    assert str(plan(2, 1)).splitlines() == [
        "update   block 0",
        "copy     block 0 slot 0",
        "forward  block 0 slot 0",
        "evict    block 0 slot 0",
        "update   block 1",
        "copy     block 1 slot 0",
        "forward  block 1 slot 0",
        "backward block 1 slot 0",
        "keep     block 1",
        "evict    block 1 slot 0",
        "copy     block 0 slot 0",
        "backward block 0 slot 0",
        "keep     block 0",
        "evict    block 0 slot 0",
    ]


def test_a_step_with_embedding_and_head_in_words() -> None:
    """The slot of their own is the last; gradients of a look-up need no weights."""
    assert str(plan(3, 1, "embedding", "head")).splitlines() == [
        "update   block 0",
        "copy     block 0 slot 1",
        "forward  block 0 slot 1",
        "evict    block 0 slot 1",
        "update   block 1",
        "copy     block 1 slot 0",
        "forward  block 1 slot 0",
        "update   block 2",
        "copy     block 2 slot 1",
        "forward  block 2 slot 1",
        "backward block 2 slot 1",
        "keep     block 2",
        "evict    block 2 slot 1",
        "backward block 1 slot 0",
        "keep     block 1",
        "evict    block 1 slot 0",
        "backward block 0",
        "keep     block 0",
    ]


@pytest.mark.parametrize(
    ("break_it", "what"),
    [
        (lambda ops: ops.insert(-3, Op(Do.KEEP, 0)), "are not whole yet"),
        (lambda ops: ops.insert(0, ops.pop(1)), "copied before its update"),
        (lambda ops: ops.remove(Op(Do.FORWARD, 0, 1)), "each way in order"),
        (lambda ops: ops.insert(3, Op(Do.COPY, 1, 1)), "is not made for block 1"),
    ],
)
def test_the_reviewer_knows_what_embedding_and_head_share(break_it, what) -> None:
    schedule = plan(3, 1, "both")
    ops = list(schedule.ops())
    assert hazards(schedule, ops) == []
    break_it(ops)
    assert any(what in line for line in hazards(schedule, ops))


@pytest.mark.parametrize(("blocks", "slots", "copies"), [(32, 2, 62), (32, 3, 61), (4, 4, 4), (4, 9, 4), (1, 2, 1)])
def test_what_still_lies_in_a_slot_is_not_copied_again(blocks, slots, copies) -> None:
    assert plan(blocks, slots).copies == copies


@pytest.mark.parametrize("slots", [2, 3, 5])
def test_a_copy_runs_while_the_block_before_it_is_computed(slots) -> None:
    visits = plan(32, slots).visits
    assert [one.block for one, two in itertools.pairwise(visits) if two.load and one.slot == two.slot] == []


@pytest.mark.parametrize(("blocks", "slots"), [(32, 2), (32, 3), (7, 5), (3, 9), (1, 1)])
def test_the_first_blocks_stay_where_the_next_step_has_them(blocks, slots) -> None:
    schedule = plan(blocks, slots)
    assert schedule.stay == {block: block for block in range(min(blocks, slots))}
    assert plan(4, 1, "embedding", "head").stay == {1: 0}


@pytest.mark.parametrize(
    ("break_it", "what"),
    [
        (lambda ops: ops.remove(Op(Do.UPDATE, 1)), "copied before its update"),
        (lambda ops: ops.remove(Op(Do.EVICT, 0, 0)), "still holds block 0"),
        (lambda ops: ops.remove(Op(Do.KEEP, 2)), "gradients of a block stay"),
        (lambda ops: ops.remove(Op(Do.COPY, 1, 1)), "holds block None, not 1"),
        (lambda ops: ops.insert(0, ops.pop()), "does not hold block 0"),
        (lambda ops: ops.append(Op(Do.UPDATE, 0)), "updated after its forward"),
        (lambda ops: ops.insert(2, Op(Do.COPY, 0, 7)), "there is no slot 7"),
        (lambda ops: ops.insert(3, Op(Do.BACKWARD, 0, 0)), "before the end of forward"),
        (lambda ops: ops.insert(0, Op(Do.KEEP, 0)), "no gradients yet"),
    ],
)
def test_the_reviewer_sees_what_is_wrong(break_it, what) -> None:
    schedule = plan(4, 2)
    ops = list(schedule.ops())
    assert hazards(schedule, ops) == []
    break_it(ops)
    assert any(what in line for line in hazards(schedule, ops))
