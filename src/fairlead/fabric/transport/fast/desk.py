"""The memory of the compiled path of one context, and the tables that it looks things up in.

Arrays of words whose addresses stand in the desk; this object keeps them alive. Layouts: layout.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fairlead.fabric.mrc import units
from fairlead.fabric.mrc.layout import NUM_SACK_FIELDS
from fairlead.fabric.mrc.memory import MemoryRegion
from fairlead.fabric.transport.fast import kernels
from fairlead.fabric.transport.fast import layout as at

Words = NDArray[np.int64]
MAX_OUT = 256
"""Letters that go at once."""
MAX_IN = 64
NEWS_CALLS = 4
"""So many times the letters of one call may bring news before Python hears them."""
_UNITS = (
    (at.K_NEXT_PACKET, units.next_packet),
    (at.K_ON_DATA, units.on_data),
    (at.K_ON_SACK, units.on_sack),
    (at.K_ON_NACK, units.on_nack),
)
_SIGN = 1 << 63
_WORD_MASK = (1 << 64) - 1


def signed(number: int) -> int:
    """The lowest 64 bits of a number as a word has them."""
    return ((number & _WORD_MASK) ^ _SIGN) - _SIGN


def address_of(array: np.ndarray) -> int:
    """Where an array begins."""
    return int(array.ctypes.data)


def address_of_bytes(view: memoryview) -> int:
    """Where the bytes of a buffer begin; 0 for none."""
    return int(np.frombuffer(view, np.uint8).ctypes.data) if len(view) else 0


def table(rows: Iterable[tuple[int, Sequence[int]]], row_words: int, num_slots: int = 0) -> Words:
    """Rows by open addressing, each with the hash of its key, of which the lowest bits count; at most half taken."""
    rows = list(rows)
    size = num_slots or max(64, 1 << (4 * len(rows)).bit_length())
    out = np.zeros((size, row_words), dtype=np.int64)
    for number, row in rows:
        i = number & size - 1
        while out[i, 0]:
            i = i + 1 & size - 1
        out[i] = [signed(word) for word in row]
    return out


class Desk:
    """What kernels are given: the address of words that hold all other addresses."""

    def __init__(self, max_in: int = MAX_IN) -> None:
        """`kernels.c_functions` says whether this machine has what kernels call; `max_in` letters come at once."""
        functions = kernels.c_functions()
        assert functions is not None
        self.functions = functions
        self.words: Words = np.zeros(at.NUM_DESK_WORDS, dtype=np.int64)
        self.address = address_of(self.words)
        self.out: Words = np.zeros((MAX_OUT, at.OUT_ROW), dtype=np.int64)
        self.heads = np.zeros((MAX_OUT, at.HEAD_ROOM), dtype=np.uint8)
        self.letters: Words = np.zeros((max_in, at.IN_ROW), dtype=np.int64)
        self._max_news = NEWS_CALLS * max_in * at.NEWS_PER_LETTER
        self.words[at.K_MOST_NEWS] = (NEWS_CALLS - 1) * max_in * at.NEWS_PER_LETTER
        self._block: Words = np.zeros(2 * NUM_SACK_FIELDS, dtype=np.int64)
        self.words[at.K_CRC] = functions["crc32"]
        fixed = ((at.K_OUT, self.out), (at.K_HEADS, self.heads), (at.K_IN, self.letters), (at.K_BLOCK, self._block))
        for place, array in fixed:
            self.words[place] = address_of(array)
        for place, unit in _UNITS:
            self.words[place] = units.address(unit)
        self.set_cards({})
        self.set_places({})
        self.set_regions(())

    def set_cards(self, cards: dict[int, int]) -> None:
        """Queue pair number -> address of its card."""
        self._cards = table(((qp * at.HASH, (qp, card)) for qp, card in cards.items()), at.CARD_ROW)
        self._enter(at.K_CARDS, self._cards)
        self.turns: Words = np.zeros(max(len(cards), 1), dtype=np.int64)
        self.news: Words = np.zeros(
            (self._max_news + len(cards), at.NEWS_ROW), dtype=np.int64
        )  # each may wake once more
        self.words[at.K_NEWS] = address_of(self.news)
        self.words[at.K_TURNS] = address_of(self.turns)

    def set_places(self, places: dict[tuple[int, int, int, int], tuple[int, int, int, int]]) -> None:
        """Rail, UDP port, address (high and low word) -> number of the peer, plane, addresses of cards or 0.

        The cards are that of its seal, and that of its queue pair if it has one alone.
        """
        rows = []
        for (rail, port, high, low), (peer, plane, seal, card) in places.items():
            key = (rail << 16 | port) + 1
            row = key, high, low, peer << at.PLACE_PLANE_BITS | plane, seal, card
            rows.append(((key + low) * at.HASH, row))
        self._places = table(rows, at.PLACE_ROW)
        self._enter(at.K_PLACES, self._places)

    def set_regions(self, regions: Iterable[MemoryRegion]) -> None:
        """The memory that peers may write now. The domain keeps it where it lies."""
        rows = [
            (r.rkey * at.HASH, (r.rkey + 1, r.addr, r.length, address_of_bytes(r.buffer))) for r in regions if r.length
        ]
        self._regions = table(rows, at.REGION_ROW)
        self._enter(at.K_REGIONS, self._regions)

    def _enter(self, place: int, made: Words) -> None:
        self.words[place] = address_of(made)
        self.words[place + 1] = len(made) - 1

    @property
    def num_out(self) -> int:
        """Letters that wait to be sent."""
        return int(self.words[at.K_NUM_OUT])
