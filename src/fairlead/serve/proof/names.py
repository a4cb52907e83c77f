"""A name server that knows no name, and remembers who was asked for what (RFC 1035). It answers at once, so that nobody
waits for names as long as in a network where queries get lost.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

_MAX_NAME = 255
_MAX_QUERY = 4096
_TYPES = {1: "A", 2: "NS", 5: "CNAME", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV", 65: "HTTPS"}


def question(query: bytes) -> tuple[str, str, int]:
    r"""(name, type, where the question ends) of a query. Raises ValueError for bytes that are none.

    >>> question(bytes(4) + b"\0\1" + bytes(6) + b"\2hf\2co\0\0\1\0\1")
    ('hf.co', 'A', 23)
    """
    if len(query) < 12 or query[4:6] != b"\0\1" or query[2] & 0x80:
        raise ValueError("it is no query with one question")
    labels, at = list[str](), 12
    while True:
        if at >= len(query) or at - 12 > _MAX_NAME:
            raise ValueError("its name does not end")
        length = query[at]
        if length == 0:
            break
        if length > 63 or at + 1 + length > len(query):
            raise ValueError("its name has a part that is too long")
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "backslashreplace"))
        at += 1 + length
    if at + 5 > len(query):
        raise ValueError("it ends within its question")
    (kind,) = struct.unpack_from(">H", query, at + 1)
    return ".".join(labels) or ".", _TYPES.get(kind, str(kind)), at + 5


def no_such_name(query: bytes, end: int) -> bytes:
    """The answer: NXDOMAIN."""
    return query[:2] + struct.pack(">HHHHH", 0x8183 | (query[2] & 1) << 8, 1, 0, 0, 0) + query[12:end]


class NameServer:
    """On port 53 of every loopback address of this network namespace, in threads that end with the process."""

    def __init__(self, asked: Callable[[str, str, int], None]) -> None:
        """`asked(name, type, source port)` hears of each question. Raises OSError."""
        self._asked = asked
        for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - a namespace of its own
            for kind, serve in ((socket.SOCK_DGRAM, self._datagrams), (socket.SOCK_STREAM, self._streams)):
                sock = socket.socket(family, kind)
                with contextlib.suppress(OSError):  # a kernel without IPv6
                    if family == socket.AF_INET6:
                        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((host, 53))
                    threading.Thread(target=serve, args=(sock,), daemon=True).start()

    def _datagrams(self, sock: socket.socket) -> None:
        while True:
            query, peer = sock.recvfrom(_MAX_QUERY)
            with contextlib.suppress(ValueError, OSError):
                name, kind, end = question(query)
                self._asked(name, kind, peer[1])
                sock.sendto(no_such_name(query, end), peer)

    def _streams(self, sock: socket.socket) -> None:
        sock.listen(16)
        while True:
            with contextlib.suppress(ValueError, OSError):
                client, peer = sock.accept()
                with client:
                    client.settimeout(2)
                    query = client.recv(_MAX_QUERY)[2:]
                    name, kind, end = question(query)
                    self._asked(name, kind, peer[1])
                    answer = no_such_name(query, end)
                    client.sendall(struct.pack(">H", len(answer)) + answer)
