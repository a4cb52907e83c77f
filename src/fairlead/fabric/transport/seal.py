"""Authentication of datagrams between two contexts: keyed BLAKE2b (RFC 7693) with a counter, as a trailer. Pure.

    datagram   counter 8 bytes   tag 16 bytes

The tag covers direction, datagram and counter under a key that both ends make from the token of the exchange and the
random numbers of both contexts, so it is new with every process. A counter that was seen, or is far behind, is refused
(RFC 6479's window), so nothing recorded earlier is taken again. Bytes are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

COUNTER_BYTES = 8
TAG_BYTES = 16
SIZE_BYTES = COUNTER_BYTES + TAG_BYTES
WINDOW = 1 << 14
"""Datagrams that may overtake one; more than the largest window of several queue pairs on unequal paths."""

Buffer = bytes | bytearray | memoryview


class Seal:
    """One direction of traffic from one context to another."""

    def __init__(self, token: bytes, sender: bytes, receiver: bytes) -> None:
        """`sender` and `receiver` are the random numbers of the two contexts."""
        self._hash = hashlib.blake2b(
            digest_size=TAG_BYTES, key=hmac.digest(token, sender + receiver, "sha256"), person=b"fairlead mrc"
        )
        self._next = 0
        self._highest = -1
        self._seen = 0

    def _tag(self, parts: Sequence[Buffer], counter: bytes) -> bytes:
        state = self._hash.copy()
        for part in parts:
            state.update(part)
        state.update(counter)
        return state.digest()

    def close(self, parts: Sequence[Buffer]) -> bytes:
        """The trailer of a datagram."""
        counter = self._next.to_bytes(COUNTER_BYTES, "big")
        self._next += 1
        return counter + self._tag(parts, counter)

    def open(self, data: memoryview) -> memoryview | None:
        """The datagram without its trailer; None if it is forged, damaged, or was seen before."""
        if len(data) < SIZE_BYTES:
            return None
        body, counter, tag = data[:-SIZE_BYTES], bytes(data[-SIZE_BYTES:-TAG_BYTES]), data[-TAG_BYTES:]
        if not hmac.compare_digest(self._tag((body,), counter), tag):
            return None
        return body if self._is_new(int.from_bytes(counter, "big")) else None

    def _is_new(self, number: int) -> bool:
        ahead = number - self._highest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, WINDOW) | 1) & (1 << WINDOW) - 1
            self._highest = number
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self._seen & bit:
            return False
        self._seen |= bit
        return True
