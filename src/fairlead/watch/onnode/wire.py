"""Netlink: messages and attributes as bytes, and a socket that asks the kernel for a dump. Knows no family.

Layout: linux include/uapi/linux/netlink.h. Numbers are in the machine's own order unless an attribute says otherwise.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = struct.Struct("=IHHII")
"""Length, type, flags, sequence, port."""
ATTRIBUTE = struct.Struct("=HH")
"""Length, type."""
TYPE_MASK = 0x3FFF
"""Without NLA_F_NESTED and NLA_F_NET_BYTEORDER."""
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP, NLM_F_DUMP_INTR = 0x1, 0x300, 0x10
MAX_DATAGRAM = 1 << 17
MAX_DUMP = 16 << 20
"""A node with 100,000 queue pairs answers with 8 MB."""


class Garbled(ValueError):
    """Bytes that are no netlink."""


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, sequence, payload) of each message. Raises Garbled at one whose length leads out."""
    at = 0
    while at < len(data):
        if len(data) - at < HEADER.size:
            raise Garbled("a message of %d bytes" % (len(data) - at))
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size or at + length > len(data):
            raise Garbled("a message that says it has %d bytes, where %d are left" % (length, len(data) - at))
        yield kind, flags, sequence, data[at + HEADER.size : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """(type, payload) of each attribute. Raises Garbled at one whose length leads out."""
    while at < len(data):
        if len(data) - at < ATTRIBUTE.size:
            raise Garbled("an attribute of %d bytes" % (len(data) - at))
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < ATTRIBUTE.size or at + length > len(data):
            raise Garbled("an attribute that says it has %d bytes, where %d are left" % (length, len(data) - at))
        yield kind & TYPE_MASK, data[at + ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def unsigned(payload: bytes) -> int:
    """A number of one, two, four or eight bytes. Raises Garbled."""
    if len(payload) not in (1, 2, 4, 8):
        raise Garbled("a number of %d bytes" % len(payload))
    return int.from_bytes(payload, sys.byteorder)


def string(payload: bytes) -> str:
    """Text that ends with a zero; bytes that are no text are shown as escapes."""
    return payload.split(b"\0", 1)[0][:256].decode("utf-8", "backslashreplace")


class Asked:
    """One netlink socket: asks, and takes only what the kernel itself answers."""

    def __init__(self, protocol: int, limit_s: float = 2.0) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            self.socket.bind((0, 0))
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(limit_s)
        self.sequence = 0

    def close(self) -> None:
        """Let go of it."""
        self.socket.close()

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The payloads of all messages that answer. Raises OSError (what the kernel says, or no answer) or Garbled."""
        for _ in range(3):
            found, is_whole = self._dump(kind, body)
            if is_whole:
                break  # else it changed under the kernel's eyes: what came is true, but some may be missing
        return found

    def _dump(self, kind: int, body: bytes) -> tuple[list[bytes], bool]:
        self.sequence = self.sequence % 0xFFFFFFFF + 1
        head = HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | NLM_F_DUMP, self.sequence, 0)
        self.socket.sendto(head + body, (0, 0))
        found: list[bytes] = []
        size, is_whole = 0, True
        while True:
            data, sender = self.socket.recvfrom(MAX_DATAGRAM)
            if sender[0]:
                continue  # another process, not the kernel
            size += len(data)
            if size > MAX_DUMP:
                raise Garbled("an answer of more than %d bytes" % MAX_DUMP)
            for answer, flags, sequence, payload in messages(data):
                if sequence != self.sequence:
                    continue  # of a request that was given up
                is_whole = is_whole and not flags & NLM_F_DUMP_INTR
                if answer == NLMSG_DONE:
                    return found, is_whole
                if answer == NLMSG_ERROR:
                    number = -int.from_bytes(payload[:4], sys.byteorder, signed=True)
                    if not number:
                        return found, is_whole
                    raise OSError(number, os.strerror(number))
                found.append(payload)
