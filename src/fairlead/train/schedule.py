"""The order of one step as a value: which block's weights go into which slot, when, and what is computed with them.

A step visits the blocks forward, then backward. Embedding and head are wide: they have a slot of their own, which one
needs before the layers and the other after them. Where they are one weight it is visited twice each way, and stays.
`plan` writes down every copy, compute, release and update; `hazards` reads such a list like a suspicious reviewer:
whatever it accepts may run on streams that know nothing of each other but the order of this list's dependencies.

Pure. Must not know: torch, devices, time.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.train.layout import Block, Role


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
    blind: bool = False
    """Gradients alone are made, for which the weights are not read; the slot may hold anything."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step over streamed blocks `0 .. num_blocks - 1`, with `num_slots` places for weights on the device.

    Where there are wide blocks, the last slot is theirs.
    """

    num_blocks: int
    num_slots: int
    visits: tuple[Visit, ...]
    order: tuple[int, ...]
    """Of forward."""
    wide: frozenset[int] = frozenset()

    def ops(self) -> Iterator[Op]:
        """Every operation, in an order that one thread could follow."""
        final = {visit.block: place for place, visit in enumerate(self.visits)}
        for place, visit in enumerate(self.visits):
            if visit.load and visit.forward:
                yield Op(Do.UPDATE, visit.block)
            if visit.load:
                yield Op(Do.COPY, visit.block, visit.slot)
            yield Op(Do.FORWARD if visit.forward else Do.BACKWARD, visit.block, -1 if visit.blind else visit.slot)
            if final[visit.block] == place:
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

    @property
    def stay(self) -> dict[int, int]:
        """Slots by block: whose weights lie at the end of a step where the next one has them first."""
        loads = [(visit.block, visit.slot) for visit in self.visits if visit.load]
        first, last = ({slot: block for block, slot in order} for order in (loads[::-1], loads))
        return {block: slot for slot, block in first.items() if last[slot] == block}

    def __str__(self) -> str:
        return "\n".join(str(op) for op in self.ops())


def plan(num_blocks: int, num_slots: int, first: Role = "", last: Role = "") -> Schedule:
    """Forward, then backward. A block is copied into the slot that is needed again last; what still lies there is kept.

    Two slots let one copy run under one compute; each further slot lets copies run one block further ahead. `first` and
    `last` say what the first and the last block are, if they are no layers; they have one slot more, together.
    """
    forward = [*range(num_blocks), *([0] if first == "both" else [])]
    order = [(block, True) for block in forward] + [(block, False) for block in reversed(forward)]
    wide = frozenset([*([0] if first else []), *([num_blocks - 1] if last else [])])
    narrow = range(min(num_slots, num_blocks - len(wide)) if wide else num_slots)
    held: dict[int, int] = {}  # slot -> block
    lines: list[tuple[int, bool, int, bool, bool]] = []
    for place, (block, is_forward) in enumerate(order):
        slot = next((slot for slot, other in held.items() if other == block), None)
        blind = slot is None and not is_forward and first == "embedding" and block == 0
        load = slot is None and not blind
        if slot is None:
            among = [len(narrow)] if block in wide else narrow
            slot = _farthest(held, among, order[:place], order[place:])
        if load:
            held[slot] = block
        lines.append((block, is_forward, slot, load, blind))
    visits: list[Visit] = []
    for place, (block, is_forward, slot, load, blind) in enumerate(lines):
        after = next((line for line in lines[place + 1 :] if line[2] == slot and not line[4]), None)
        visits.append(Visit(block, is_forward, slot, load, not blind and (after is None or after[3]), blind))
    return Schedule(num_blocks, len(narrow) + bool(wide), tuple(visits), tuple(forward), wide)


def schedule_of(streamed: Sequence[Block], slots: int) -> Schedule:
    """Of a step over these blocks, with at most so many slots for layers."""
    layers = sum(not block.role for block in streamed)
    first, last = (streamed[0].role, streamed[-1].role) if streamed else ("", "")
    return plan(
        len(streamed), min(slots, max(1, layers)), first if first != "head" else "", last if last == "head" else ""
    )


def slot_sizes(streamed: Sequence[Block], schedule: Schedule) -> list[int]:
    """Elements of each slot."""
    layers = max((block.numel for block in streamed if not block.role), default=0)
    ends = [block.numel for block in streamed if block.role]
    if not streamed:
        return []
    return [layers] * (schedule.num_slots - bool(ends)) + ([max(ends)] if ends else [])


def _farthest(
    held: dict[int, int], slots: Sequence[int], behind: Sequence[tuple[int, bool]], ahead: Sequence[tuple[int, bool]]
) -> int:
    """An empty slot, else the one whose block is needed again last; of those not needed again, the one that is free
    first: the copy into it runs while the others are computed with.
    """
    for slot in slots:
        if slot not in held:
            return slot
    past, blocks = [block for block, _ in reversed(behind)], [block for block, _ in ahead]

    def worth(slot: int) -> tuple[int, int]:
        block = held[slot]
        return (blocks.index(block), 0) if block in blocks else (len(blocks), past.index(block))

    return max(slots, key=worth)


def hazards(schedule: Schedule, ops: Sequence[Op] | None = None) -> list[str]:
    """What is wrong with a list of operations; empty if nothing is. Without one, with the schedule's own."""
    wrong: list[str] = []
    slots: dict[int, int | None] = dict.fromkeys(range(schedule.num_slots))
    blind = {visit.block for visit in schedule.visits if visit.blind}
    times = Counter(schedule.order)
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
                if schedule.wide and (op.slot == schedule.num_slots - 1) != (op.block in schedule.wide):
                    say(f"{line}: slot {op.slot} is not made for block {op.block}")
                if op.block not in updated:
                    say(f"{line}: block {op.block} is copied before its update")
                slots[op.slot] = op.block
            case Do.FORWARD | Do.BACKWARD:
                is_blind = op.do is Do.BACKWARD and op.block in blind
                if slots.get(op.slot) != op.block and not is_blind:
                    say(f"{line}: slot {op.slot} holds block {slots.get(op.slot)}, not {op.block}")
                (forward if op.do is Do.FORWARD else backward).append(op.block)
                if op.do is Do.BACKWARD and len(forward) < len(schedule.order):
                    say(f"{line}: backward of block {op.block} before the end of forward")
            case Do.EVICT:
                if slots.get(op.slot) != op.block:
                    say(f"{line}: slot {op.slot} does not hold block {op.block}")
                slots[op.slot] = None
            case Do.KEEP:
                if not backward.count(op.block):
                    say(f"{line}: block {op.block} has no gradients yet")
                elif backward.count(op.block) < times[op.block]:
                    say(f"{line}: gradients of block {op.block} are not whole yet")
                kept.add(op.block)
    if tuple(forward) != schedule.order or tuple(backward) != schedule.order[::-1]:
        wrong.append("the blocks are not computed forward and backward, each way in order")
    if kept != set(range(schedule.num_blocks)):
        wrong.append("gradients of a block stay on the device")
    return wrong
