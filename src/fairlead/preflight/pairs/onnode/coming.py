"""What comes from other nodes: who may be heard, how much of it is kept, and connections, each to its end.

A packet counts as its sender's only if it came from the address where that node is, and a node spoils no more than its
own tests: what it sends is kept once for each path, never without bound, and never in the place of another's.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import threading
import time
from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

MAX_STREAM = 1 << 16
"""Packets of one stream that are timed: sixteen times what 2 MiB are at an MTU of 576 (RFC 791)."""
TCP_BYTES = 256 << 10
"""A message over a connection."""
TCP_SERVE_S = 10.0
TCP_EACH, TCP_STRANGERS = 4, 64
"""Connections held at once from one node, which makes one at a time, and from addresses that are no node's."""


class Heard:
    """What came from one sender on one path in the step it was in last."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.numbers: set[int] = set()
        """Of a burst: twice the number, and one more for a full-size packet; each once, however often it came."""
        self.stream: list[tuple[int, int]] = []
        """Of a stream: arrival by the kernel's clock, ns, and size."""
        self.size = 0
        """Bytes of the stream."""

    def timed(self, stamp: int, size: int) -> None:
        """One packet of a stream."""
        if len(self.stream) < MAX_STREAM:
            self.stream.append((stamp, size))
            self.size += size


def plain(address: str) -> str:
    """An address as the kernel writes it where a packet came from; empty where it is none.

    >>> plain("FD00:0::1"), plain("10.0.0.1"), plain("")
    ('fd00::1', '10.0.0.1', '')
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, address))
    except OSError:
        return ""


def senders(addresses: Sequence[Sequence[str]], steered: Iterable[tuple[int, int]] = ()) -> dict[tuple[int, int], str]:
    """(node, path) -> where that node's packets on that path come from; a steered one leaves by another path's port."""
    found = {(n, p): plain(a) for n, own in enumerate(addresses) for p, a in enumerate(own) if a}
    return found | {
        (n, path): found[n, own] for path, own in steered for n in range(len(addresses)) if (n, own) in found
    }


def knock_of(secret: bytes, dst: int, path: int) -> bytes:
    """What a node sends to another's path once, so that who hears it can say so and nobody else can: 16 bytes."""
    return hmac.new(secret, b"%d %d" % (dst, path), hashlib.sha256).digest()[:16]


def ports_of(said: Any, num_nodes: int, num_paths: int) -> list[list[int]]:
    """Every node's ports as they can be used: 0, where nobody listens, instead of what is no port.

    >>> ports_of([[4000, 70000, -1], [], None], 3, 2)
    [[4000, 0, 0], [0, 0, 0], [0, 0, 0]]
    """
    rows = [row if isinstance(row, list) else [] for row in (said if isinstance(said, list) else [])]
    rows = [*rows[:num_nodes], *([[]] * (num_nodes - len(rows)))]
    return [
        [p if type(p) is int and 0 < p < 65536 else 0 for p in [*row, *([0] * (num_paths + 1))][: num_paths + 1]]
        for row in rows
    ]


class Server:
    """Takes connections for ever; reads each to its end, or as much as there can be, and answers how much came."""

    def __init__(self, server: socket.socket, nodes: Iterable[str]) -> None:
        """`nodes`: addresses of the other nodes."""
        self.server, self.nodes = server, frozenset(map(plain, nodes))
        self.open: Counter[str] = Counter()
        """Connections by where they come from; all strangers are one."""
        self.lock = threading.Lock()

    def serve(self) -> None:
        """In a thread of its own."""
        while True:
            try:
                link, (address, *_) = self.server.accept()
            except OSError:
                time.sleep(0.05)
                continue
            who = address if address in self.nodes else ""
            with self.lock:
                is_too_many = self.open[who] >= (TCP_EACH if who else TCP_STRANGERS)
                self.open[who] += not is_too_many
            if is_too_many:
                link.close()
            else:
                threading.Thread(target=self.one, args=(link, who), daemon=True).start()

    def one(self, link: socket.socket, who: str) -> None:
        """One connection."""
        deadline, num = time.monotonic() + TCP_SERVE_S, 0
        try:
            with contextlib.suppress(OSError), link:
                while num <= TCP_BYTES:
                    link.settimeout(max(0.001, deadline - time.monotonic()))
                    data = link.recv(1 << 16)
                    if not data:
                        link.sendall(b"%d" % num)
                        return
                    num += len(data)
        finally:
            with self.lock:
                self.open[who] -= 1
