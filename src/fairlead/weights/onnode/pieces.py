"""A stream made of pieces that arrive whole and in order, so many ahead at most: what transports of messages share.

The other end has room for SLOTS pieces; who has read some gives their room back. So memory is bounded, and nobody waits
for more than the slowest of the two. Python 3.9.
"""

from __future__ import annotations

import threading
from collections import deque

from fairlead.weights.onnode.streams import Broken, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLOT_BYTES, SLOTS = 256 << 10, 16
COPIED_BYTES = 4096
"""What is so short goes from a copy, and nobody waits until it has arrived."""


class PieceStream(Stream):
    """Whoever carries the pieces calls `arrived`, `got`, `given` and `end`, from a thread of its own."""

    def __init__(self) -> None:
        self.moved = threading.Condition()
        self.came: deque[memoryview] = deque()
        self.under_way: dict[int, Any] = {}
        self.room, self.freed, self.num_out, self.num_in, self.num_posted = SLOTS, 0, 0, 0, 0
        self.why = ""

    def put(self, number: int, piece: Any, slot: int) -> None:
        """Carry a piece into a slot of the other end; `arrived(number)` says that its memory is free again."""
        raise NotImplementedError

    def give_room(self, num: int) -> None:
        """Tell the other end that so many slots are empty again."""
        raise NotImplementedError

    # ---- what a node calls -------------------------------------------------------------------------------------------

    def send(self, data: Any) -> None:
        """See Stream."""
        view = memoryview(data).cast("B")
        is_copied = len(view) <= COPIED_BYTES
        if is_copied:
            view = memoryview(bytes(view))
        posted = []
        while view:
            with self.moved:
                self.wait_for(lambda: self.room > 0)
                self.room -= 1
                slot, self.num_out = self.num_out % SLOTS, self.num_out + 1
                number = self.begun(view[:SLOT_BYTES])
            self.put(number, view[:SLOT_BYTES], slot)
            posted.append(number)
            view = view[SLOT_BYTES:]
        for number in () if is_copied else posted:
            with self.moved:
                self.wait_for(lambda number=number: number not in self.under_way)

    def read(self, into: memoryview) -> None:
        """See Stream."""
        while into:
            with self.moved:
                self.wait_for(lambda: bool(self.came))
                piece = self.came.popleft()
            num = min(len(into), len(piece))
            into[:num] = piece[:num]
            into = into[num:]
            with self.moved:
                if num < len(piece):
                    self.came.appendleft(piece[num:])
                    continue
                self.freed += 1
                given, self.freed = (self.freed, 0) if self.freed >= SLOTS // 4 else (0, self.freed)
            if given:
                self.give_room(given)

    def has_news(self, wait_s: float) -> bool:
        """See Stream."""
        with self.moved:
            return bool(self.moved.wait_for(lambda: self.came or self.why, wait_s))

    def close(self) -> None:
        """See Stream."""
        self.end("it is closed")

    # ---- what carries it calls ---------------------------------------------------------------------------------------

    def begun(self, data: Any) -> int:
        """A number for what goes now, and a hold on its memory."""
        with self.moved:
            self.num_posted += 1
            self.under_way[self.num_posted] = data
            return self.num_posted

    def arrived(self, number: int) -> None:
        """What has this number is no longer under way."""
        with self.moved:
            self.under_way.pop(number, None)
            self.moved.notify_all()

    def got(self, piece: memoryview) -> None:
        """The next piece. Raises Broken for one that no honest end sends."""
        with self.moved:
            if not 0 < len(piece) <= SLOT_BYTES or len(self.came) >= SLOTS:
                raise Broken("a piece that there is no room for")
            self.num_in += 1
            self.came.append(piece)
            self.moved.notify_all()

    def given(self, num: int) -> None:
        """The other end has room again. Raises Broken for more than was taken."""
        with self.moved:
            self.room += num
            if self.room > SLOTS:
                raise Broken("more room was given back than was taken")
            self.moved.notify_all()

    def end(self, why: str) -> None:
        """It cannot go on."""
        with self.moved:
            self.why = self.why or why
            self.moved.notify_all()

    def wait_for(self, is_so: Any) -> None:
        """Until it is so, with the lock. Raises Broken or OSError."""
        so = self.moved.wait_for(lambda: self.why or is_so(), self.limit_s)
        if self.why:
            raise Broken(self.why)
        if not so:
            raise OSError(f"nothing came for {self.limit_s:g} s")
