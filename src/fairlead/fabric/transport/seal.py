"""Authentication of datagrams between two contexts: AES-256-GMAC (NIST SP 800-38D) with a counter, as a trailer. Pure.

    datagram   counter 8 bytes   tag 16 bytes

The tag is that of AES-GCM without plaintext, by the `cryptography` package; the datagram is its additional data, and
four zero bytes with the counter are the nonce. Key: HKDF (RFC 5869) of the token of the exchange and the random numbers
of both contexts, another for each direction, so it is new with every process. Under one key no nonce may come twice:
`Seals` keeps the counters of a peer for as long as the context lives, also while they have no queue pair in common. A
counter that was seen, or is far behind, is refused (RFC 6479's window), so nothing recorded earlier is taken again.
Bytes are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

from fairlead.errors import MissingTool

COUNTER_BYTES = 8
TAG_BYTES = 16
SIZE_BYTES = COUNTER_BYTES + TAG_BYTES
NONCE_LEAD = bytes(4)
PURPOSE = b"fairlead mrc"
WINDOW = 1 << 14
"""Datagrams that may overtake one; more than the largest window of several queue pairs on unequal paths."""

Buffer = bytes | bytearray | memoryview


def check() -> None:
    """Raise MissingTool where packets cannot be sealed."""
    try:
        import cryptography  # noqa: F401
    except ImportError as exc:
        raise MissingTool(
            "fabric/no-seal",
            "authentication of packets needs the package cryptography",
            hint="pip install 'fairlead[fabric]'",
        ) from exc


def key_of(token: bytes, sender: bytes, receiver: bytes) -> bytes:
    """The key of one direction, 32 bytes. `sender` and `receiver` are the random numbers of the two contexts."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=sender + receiver, info=PURPOSE).derive(token)


class Seal:
    """One direction of traffic from one context to another."""

    def __init__(self, token: bytes, sender: bytes, receiver: bytes) -> None:
        """As `key_of`."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key_of(token, sender, receiver))
        self._next = 0
        self._highest = -1
        self._seen = 0

    def close(self, parts: Sequence[Buffer]) -> bytes:
        """The trailer of a datagram."""
        counter = self._take_number().to_bytes(COUNTER_BYTES, "big")
        return counter + self._cipher.encrypt(NONCE_LEAD + counter, b"", b"".join(parts))

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1

    def open(self, data: memoryview) -> memoryview | None:
        """The datagram without its trailer; None if it is forged, damaged, or was seen before."""
        if len(data) < SIZE_BYTES:
            return None
        body, counter, tag = data[:-SIZE_BYTES], bytes(data[-SIZE_BYTES:-TAG_BYTES]), data[-TAG_BYTES:]
        if not hmac.compare_digest(self._cipher.encrypt(NONCE_LEAD + counter, b"", body), tag):
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


class Directions(NamedTuple):
    """The seals towards one peer and from it."""

    sending: Seal
    receiving: Seal


class Seals:
    """The seals of one context, one pair for each peer and token, for as long as it lives."""

    def __init__(self) -> None:
        self._by_peer: dict[tuple[bytes, bytes], Directions] = {}

    def of(self, token: bytes, here: bytes, there: bytes) -> Directions:
        """Those with the peer `there`; they go on where they were."""
        name = (there, hashlib.sha256(token).digest())
        if name not in self._by_peer:
            self._by_peer[name] = self._make(token, here, there)
        return self._by_peer[name]

    def _make(self, token: bytes, here: bytes, there: bytes) -> Directions:
        return Directions(Seal(token, here, there), Seal(token, there, here))
