"""Pieces of updates: in order, read ahead over the ends of blocks, never into memory that is still to be written."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from fairlead.train.belt import Belt  # noqa: E402

SIZE, PLACES = 8, 4


class Block:
    """Three pieces of one number each, and what was asked of it."""

    def __init__(self, number: int, num: int = 3) -> None:
        self.number, self.num = number, num
        self.asked: list[int] = []
        self.broken = False

    def pieces(self) -> list[tuple[int, int]]:
        return [(place * SIZE, SIZE) for place in range(self.num)]

    def reads(self, begin, size, buffers):
        def fill(flat) -> None:
            if self.broken:
                raise OSError("broken")
            flat.fill_(self.number * 100 + begin // SIZE)

        self.asked.append(begin // SIZE)
        return [lambda flat=flat: fill(flat) for flat in buffers]


@pytest.fixture
def belt():
    with ThreadPoolExecutor(2) as pool:
        yield Belt(pool, PLACES, SIZE)


def taken(belt, block):
    return [int(piece.buffers[0][0]) for piece in belt.pieces(block)]


def test_pieces_come_in_order_with_what_was_read(belt) -> None:
    blocks = [Block(number, num) for number, num in ((1, 3), (2, 0), (3, 5))]
    for block in blocks:
        belt.ask(block)
    assert [taken(belt, block) for block in blocks] == [[100, 101, 102], [], [300, 301, 302, 303, 304]]


def test_the_next_block_is_read_while_the_last_pieces_of_this_one_are_computed(belt) -> None:
    one, two = Block(1), Block(2)
    belt.ask(one)
    belt.ask(two)
    coming = belt.pieces(one)
    assert (next(coming).begin, two.asked) == (0, [])
    assert (next(coming).begin, two.asked) == (SIZE, [0])
    assert (next(coming).begin, two.asked) == (2 * SIZE, [0, 1])
    assert taken(belt, two) == [200, 201, 202]
    assert two.asked == [0, 1, 2]


def test_out_of_turn_what_was_read_ahead_is_read_again(belt) -> None:
    one, two, three = blocks = [Block(number) for number in (1, 2, 3)]
    for block in blocks:
        belt.ask(block)
    assert taken(belt, one) == [100, 101, 102]
    assert taken(belt, three) == [300, 301, 302]
    assert taken(belt, two) == [200, 201, 202]
    assert two.asked == [0, 1, 0, 1, 2]


def test_memory_is_not_read_into_before_it_is_written(belt) -> None:
    blocks = [Block(number) for number in range(4)]
    for block in blocks:
        belt.ask(block)
    may_write, found = threading.Event(), []

    def write(piece) -> None:
        may_write.wait(10)
        found.append([int(flat[0]) for flat in piece.buffers])

    with ThreadPoolExecutor(20) as writers:
        for piece in itertools.chain.from_iterable(belt.pieces(block) for block in blocks):
            piece.writes.append(writers.submit(write, piece))
            if len(blocks[0].asked) == 3 and not may_write.is_set():
                threading.Timer(0.05, may_write.set).start()
    assert sorted(found) == [[number * 100 + place] * 4 for number in range(4) for place in range(3)]


def test_a_read_that_fails_is_told_and_may_be_tried_again(belt) -> None:
    one, two = Block(1), Block(2)
    belt.ask(one)
    belt.ask(two)
    one.broken = True
    with pytest.raises(OSError, match="broken"):
        taken(belt, one)
    one.broken = False
    assert taken(belt, one) == [100, 101, 102]
    assert taken(belt, two) == [200, 201, 202]
