"""The order of one step as a value: which block's weights go into which slot, when, and what is computed with them.

A step visits the blocks forward, then backward. `plan` writes down every copy, compute, release and update; `hazards`
reads such a list like a suspicious reviewer: whatever it accepts may run on streams that know nothing of each other
but the order of this list's dependencies.

Pure. Must not know: torch, devices, time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Do(enum.StrEnum):
    """What happens."""

    UPDATE = "update"
    """The optimizer takes the gradients of the step before."""
    COPY = "copy"
    """The weights go into a slot of the device."""
    FORWARD = "forward"
    BACKWARD = "backward"
    """Forward again, then backward."""
    EVICT = "evict"
    """The slot may be written again."""
    KEEP = "keep"
    """The gradients leave the device."""


@dataclass(frozen=True, slots=True)
class Op:
    """One line of the schedule."""

    do: Do
    block: int
    slot: int = -1

    def __str__(self) -> str:
        place = f" slot {self.slot}" if self.slot >= 0 else ""
        return f"{self.do:<8} block {self.block}{place}"


@dataclass(frozen=True, slots=True)
class Visit:
    """A block is computed with."""

    block: int
    forward: bool
    slot: int
    load: bool
    """Whether its weights must be copied in first; false where they still lie in the slot."""
    last: bool
    """Whether the slot is free afterwards."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step over streamed blocks `0 .. num_blocks - 1`, with `num_slots` places for weights on the device."""

    num_blocks: int
    num_slots: int
    visits: tuple[Visit, ...]

    def ops(self) -> Iterator[Op]:
        """Every operation, in an order that one thread could follow."""
        for visit in self.visits:
            if visit.load and visit.forward:
                yield Op(Do.UPDATE, visit.block)
            if visit.load:
                yield Op(Do.COPY, visit.block, visit.slot)
            yield Op(Do.FORWARD if visit.forward else Do.BACKWARD, visit.block, visit.slot)
            if not visit.forward:
                yield Op(Do.KEEP, visit.block)
            if visit.last:
                yield Op(Do.EVICT, visit.block, visit.slot)

    @property
    def copies(self) -> int:
        """How often weights are copied to the device in a step."""
        return sum(visit.load for visit in self.visits)

    @property
    def loads(self) -> tuple[int, ...]:
        """How often those of each block are."""
        found = [0] * self.num_blocks
        for visit in self.visits:
            found[visit.block] += visit.load
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join(str(op) for op in self.ops())


def plan(num_blocks: int, num_slots: int) -> Schedule:
    """Forward, then backward. A block is copied into the slot that is needed again last; what still lies there is kept.

    Two slots let one copy run under one compute; each further slot lets copies run one block further ahead.
    """
    order = [(block, True) for block in range(num_blocks)] + [(block, False) for block in reversed(range(num_blocks))]
    held: dict[int, int] = {}  # slot -> block
    lines: list[tuple[int, bool, int, bool]] = []
    for place, (block, forward) in enumerate(order):
        slot = next((slot for slot, other in held.items() if other == block), None)
        load = slot is None
        if slot is None:
            slot = _farthest(held, num_slots, order[place:])
            held[slot] = block
        lines.append((block, forward, slot, load))
    visits: list[Visit] = []
    for place, (block, forward, slot, load) in enumerate(lines):
        after = next((line for line in lines[place + 1 :] if line[2] == slot), None)
        visits.append(Visit(block, forward, slot, load, last=after is None or after[3]))
    return Schedule(num_blocks, num_slots, tuple(visits))


def _farthest(held: dict[int, int], num_slots: int, ahead: Sequence[tuple[int, bool]]) -> int:
    """An empty slot, else the one whose block is needed again last."""
    for slot in range(num_slots):
        if slot not in held:
            return slot
    blocks = [block for block, _ in ahead]
    return max(held, key=lambda slot: (blocks.index(held[slot]) if held[slot] in blocks else len(blocks), -slot))


def hazards(schedule: Schedule, ops: Sequence[Op] | None = None) -> list[str]:
    """What is wrong with a list of operations; empty if nothing is. Without one, with the schedule's own."""
    wrong: list[str] = []
    slots: dict[int, int | None] = dict.fromkeys(range(schedule.num_slots))
    updated: set[int] = set()
    forward: list[int] = []
    backward: list[int] = []
    kept: set[int] = set()
    for line, op in enumerate(schedule.ops() if ops is None else ops):
        say = wrong.append
        match op.do:
            case Do.UPDATE:
                if op.block in forward or op.block in updated:
                    say(f"{line}: block {op.block} is updated after its forward, or twice")
                updated.add(op.block)
            case Do.COPY:
                if op.slot not in slots:
                    say(f"{line}: there is no slot {op.slot}")
                elif slots[op.slot] is not None:
                    say(f"{line}: slot {op.slot} still holds block {slots[op.slot]}")
                if op.block not in updated:
                    say(f"{line}: block {op.block} is copied before its update")
                slots[op.slot] = op.block
            case Do.FORWARD | Do.BACKWARD:
                if slots.get(op.slot) != op.block:
                    say(f"{line}: slot {op.slot} holds block {slots.get(op.slot)}, not {op.block}")
                (forward if op.do is Do.FORWARD else backward).append(op.block)
                if op.do is Do.BACKWARD and len(forward) < schedule.num_blocks:
                    say(f"{line}: backward of block {op.block} before the end of forward")
            case Do.EVICT:
                if slots.get(op.slot) != op.block:
                    say(f"{line}: slot {op.slot} does not hold block {op.block}")
                slots[op.slot] = None
            case Do.KEEP:
                if op.block not in backward:
                    say(f"{line}: block {op.block} has no gradients yet")
                kept.add(op.block)
    blocks = list(range(schedule.num_blocks))
    if forward != blocks or backward != blocks[::-1]:
        wrong.append("the blocks are not computed once forward and once backward, in order")
    if kept != set(blocks):
        wrong.append("gradients of a block stay on the device")
    return wrong
