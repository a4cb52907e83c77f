"""What nodes say to each other, over whatever stream a transport gives: one that takes connects to one that has, both
prove that they know the run's key, and chunks come. Python 3.9.

Every message counts its number and carries a keyed digest (BLAKE2s, key of this connection and direction); a chunk's
bytes carry their own digest, which stands in the message. So nobody without the key can put in, leave out, repeat or
change a byte. Nothing is kept secret: weights go over the wire as they are.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct

from fairlead.weights.onnode.streams import QUIET_S, Broken, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"fairlead-weights/1\n"
NONCE_BYTES = MAC_BYTES = 32
MESSAGE = struct.Struct(">cIHiIQ32s16s")
"""Kind, chunk, hops, who fetched it, bytes behind it, number of the message, digest of the bytes, keyed digest."""
CHUNK, HAVE, LACK, STILL = b"C", b"H", b"L", b"S"
"""Here is a chunk; I have got these otherwise; what came was not whole; nothing to say."""
MAX_HELLO_BYTES = 1 << 20
MAX_NOTICE_BYTES = 1 << 16


class Link:
    """One connection, greeted: messages with numbers and keyed digests."""

    def __init__(self, stream: Stream, key_out: bytes, key_in: bytes) -> None:
        self.stream, self.key_out, self.key_in = stream, key_out, key_in
        self.sent = self.heard = 0
        self.head = bytearray(MESSAGE.size)

    def send(
        self, kind: bytes, data: Any = b"", *, chunk: int = 0, hops: int = 0, first: int = -1, digest: bytes = b""
    ) -> None:
        """One message. Raises Broken or OSError."""
        digest = digest or hashlib.blake2s(data).digest()
        plain = MESSAGE.pack(kind, chunk, hops, first, len(data), self.sent, digest, b"")
        mac = hashlib.blake2s(plain, key=self.key_out, digest_size=16).digest()
        self.sent += 1
        self.stream.send(plain[:-16] + mac)
        if len(data):
            self.stream.send(data)

    def has_news(self, wait_s: float) -> bool:
        """Whether the other end has said something; waits so long."""
        return self.stream.has_news(wait_s)

    def receive(self) -> tuple[bytes, int, int, int, int, bytes]:
        """(kind, chunk, hops, who fetched it, bytes behind it, their digest). Raises Broken or OSError."""
        self.stream.read(memoryview(self.head))
        kind, chunk, hops, first, length, number, digest, mac = MESSAGE.unpack(self.head)
        plain = bytes(self.head[:-16]) + bytes(16)
        if not hmac.compare_digest(mac, hashlib.blake2s(plain, key=self.key_in, digest_size=16).digest()):
            raise Broken("a message that was not made with this run's key")
        if number != self.heard:
            raise Broken("a message that is out of order")
        self.heard += 1
        return kind, chunk, hops, first, length, digest

    def read(self, into: memoryview) -> None:
        """The bytes behind a message. Raises Broken or OSError."""
        self.stream.read(into)

    def notice(self, length: int, digest: bytes) -> bytes:
        """The same for a short message. Raises Broken or OSError."""
        if length > MAX_NOTICE_BYTES:
            raise Broken(f"a message of {length} bytes")
        data = bytearray(length)
        self.stream.read(memoryview(data))
        if hashlib.blake2s(data).digest() != digest:
            raise Broken("a message that was changed on the way")
        return bytes(data)

    def close(self) -> None:
        """End it; whoever waits on it is woken."""
        self.stream.close()


def greet(stream: Stream, key: bytes, hello: dict[str, Any]) -> Link:
    """To a node that has: say who takes what. Raises Broken or OSError."""
    try:
        mine, theirs = os.urandom(NONCE_BYTES), bytearray(NONCE_BYTES)
        stream.send(MAGIC + mine)
        stream.read(memoryview(theirs))
        both = mine + bytes(theirs)
        said = json.dumps(hello).encode()
        stream.send(len(said).to_bytes(4, "big") + said + prove(key, b"takes", both + said))
        answer = bytearray(MAC_BYTES)
        stream.read(memoryview(answer))
        if not hmac.compare_digest(bytes(answer), prove(key, b"gives", both + said)):
            raise Broken("the other end does not know this run's key")  # noqa: TRY301
    except BaseException:
        stream.close()
        raise
    stream.limit_s = QUIET_S
    return Link(stream, prove(key, b"up", both), prove(key, b"down", both))


def greeted(stream: Stream, key: bytes) -> tuple[Link, dict[str, Any]]:
    """The other side: who has connected, and what it asks for. Raises Broken or OSError."""
    start = bytearray(len(MAGIC) + NONCE_BYTES)
    stream.read(memoryview(start))
    if bytes(start[: len(MAGIC)]) != MAGIC:
        raise Broken("somebody who speaks otherwise")
    mine = os.urandom(NONCE_BYTES)
    stream.send(mine)
    both = bytes(start[len(MAGIC) :]) + mine
    size = bytearray(4)
    stream.read(memoryview(size))
    length = int.from_bytes(size, "big")
    if length > MAX_HELLO_BYTES:
        raise Broken("a greeting that is too long")
    said = bytearray(length + MAC_BYTES)
    stream.read(memoryview(said))
    if not hmac.compare_digest(bytes(said[length:]), prove(key, b"takes", both + bytes(said[:length]))):
        raise Broken("somebody who does not know this run's key")
    hello = json.loads(bytes(said[:length]))
    stream.send(prove(key, b"gives", both + bytes(said[:length])))
    stream.limit_s = QUIET_S
    return Link(stream, prove(key, b"down", both), prove(key, b"up", both)), hello


def prove(key: bytes, what: bytes, data: bytes) -> bytes:
    """A keyed digest, of a purpose of its own."""
    return hmac.new(key, what + b"\0" + data, hashlib.sha256).digest()
