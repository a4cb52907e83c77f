"""The agent's sockets: numbered packets out, in batches with pauses, and how fast packets came in.

A full-size packet fills the MTU of its route and must not be fragmented. Sending buffers are small, so that a full
queue of this node's own port holds the sender back instead of losing packets. Packets carry the number of the run, so
that a stray one of another run means nothing.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

HEAD = struct.Struct("!QIHHHHBB")
"""Run, step, sender, receiver, number, path, flow, kind."""
SMALL, FULL, SPEED, PING, PONG, ACK, KNOCK = range(7)
SO_TIMESTAMPNS, SO_MEMINFO = 35, 55
MEMINFO_DROPS = struct.Struct("32xI")
"""The ninth number of a socket's memory: what it had no room for (linux include/uapi/linux/sock_diag.h)."""
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
IP_MTU_DISCOVER, IP_MTU = 10, 14
IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24
UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX = 101, 102
PMTUDISC_PROBE = 3
"""Never fragment, and believe no earlier complaint about size."""
RECEIVE_BUFFER = 8 << 20
SEND_BUFFER = 12 << 10
"""Room for three packets of 9,000 bytes, and for at least one of any size."""
NUM_FLOWS = 8
"""Source ports a burst is spread over, so that hashing takes it over many paths."""
SMALL_BYTES = 64
MAX_BYTES = 65_000
RETRY_NS = 300_000
WINDOWS = 24
"""How many lengths of stretches a rate is taken from."""


def now_ns() -> int:
    """A clock that only goes forward."""
    return time.monotonic_ns()


def name_of(error: OSError) -> str:
    """`EHOSTUNREACH` and the like."""
    return errno.errorcode.get(error.errno or 0, str(error))


class Route:
    """One path of this node: a socket that listens, and one per flow that sends."""

    def __init__(self, address: str) -> None:
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.address = address
        self.listener = self.bound(receive=RECEIVE_BUFFER)
        self.listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.port = int(self.listener.getsockname()[1])
        if self.family == socket.AF_INET6:
            self.listener.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
        self.flows = [self.bound(send=SEND_BUFFER) for _ in range(NUM_FLOWS)]
        self.is_steered = False
        self.full: dict[str, int] = {}

    def bound(self, receive: int = 0, send: int = 0) -> socket.socket:
        """A datagram socket on this path's address."""
        sock = socket.socket(self.family, socket.SOCK_DGRAM)
        sock.setblocking(False)
        for option, force, size in (
            (socket.SO_RCVBUF, SO_RCVBUFFORCE, receive),
            (socket.SO_SNDBUF, SO_SNDBUFFORCE, send),
        ):
            if size:
                try:
                    sock.setsockopt(socket.SOL_SOCKET, force, size)
                except OSError:  # only root may go beyond the system's limit
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
        if self.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
        sock.bind((self.address, 0))
        return sock

    def steer(self, *, on: bool) -> None:
        """Send without a checksum: where the destination address is the way, switches change it, and the kernel would
        reckon with the address it sees first (RFC 9800, section 6.5; RFC 6935 allows none).
        """
        if on != self.is_steered and self.family == socket.AF_INET6:
            self.is_steered = on
            for sock in self.flows:
                sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, int(on))

    def full_bytes(self, peer: str, port: int) -> int:
        """Payload that fills the route's MTU towards a peer."""
        if peer not in self.full:
            with self.bound() as sock:
                sock.connect((peer, port))
                if self.family == socket.AF_INET6:
                    mtu = sock.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) - 48
                else:
                    mtu = sock.getsockopt(socket.IPPROTO_IP, IP_MTU) - 28
            self.full[peer] = min(mtu, MAX_BYTES)
        return self.full[peer]

    def dropped(self) -> int:
        """Packets the listener had no room for up to now, as the kernel counts them."""
        try:
            return int(
                MEMINFO_DROPS.unpack(self.listener.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO_DROPS.size))[0]
            )
        except (OSError, struct.error):  # Linux before 4.12
            return 0

    def arrivals(self, sock: socket.socket, limit: int = 64) -> Iterable[tuple[bytes, int, Any]]:
        """Up to so many packets that are there: (data, arrival by the kernel's clock, sender)."""
        for _ in range(limit):
            try:
                data, ancillary, _, sender = sock.recvmsg(1 << 16, 128)
            except OSError:
                return
            stamp = 0
            for level, what, value in ancillary:
                if level == socket.SOL_SOCKET and what == SO_TIMESTAMPNS:
                    seconds, ns = struct.unpack("qq", value[:16])
                    stamp = seconds * 1_000_000_000 + ns
            yield data, stamp, sender

    def answer(self, data: bytes, sender: Any) -> None:
        """Send one packet back."""
        with contextlib.suppress(OSError):
            self.listener.sendto(data, sender)


class Outgoing:
    """Packets on their way to one peer on one path: `batch` at once, then a pause, and whatever the socket takes.

    There is no pause while the peer has acknowledged all but `window` of the small packets: so a burst is as quick as
    the way allows, and its own packets never fill a queue there.
    """

    def __init__(
        self,
        route: Route,
        target: tuple[str, int],
        head: tuple[int, int, int, int],
        path: int,
        *,
        batch: int,
        gap_ns: int,
        window: int = 0,
    ) -> None:
        self.route, self.target, self.head, self.path = route, target, head, path
        self.batch, self.gap_ns, self.window = batch, gap_ns, window
        self.sent = self.acked = 0
        """Small packets, by number: the next one, and the one behind the last that the peer is known to have."""
        self.packets: Sequence[tuple[int, int]] = ()
        """(kind, number) of each."""
        self.next = 0
        self.began = self.due = now_ns()
        self.held_back = 0
        self.error = ""
        self.full = 0
        try:
            self.full = route.full_bytes(*target)
        except OSError as error:
            self.error = name_of(error)

    @property
    def is_done(self) -> bool:
        """Nothing is left to send."""
        return bool(self.error) or self.next >= len(self.packets)

    def cut(self) -> None:
        """Send no more."""
        self.next = len(self.packets)

    def push(self, now: int) -> None:
        """Send the next batch, or what the socket takes of it."""
        for _ in range(min(self.batch, len(self.packets) - self.next)):
            kind, number = self.packets[self.next]
            flow = number % NUM_FLOWS
            size = SMALL_BYTES if kind == SMALL else self.full
            packet = HEAD.pack(*self.head, number, self.path, flow, kind).ljust(size, b"\0")
            try:
                self.route.flows[flow].sendto(packet, self.target)
            except BlockingIOError:
                self.held_back += 1
                self.due = now + RETRY_NS
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self.due = now + RETRY_NS
                    return
                if error.errno == errno.ECONNREFUSED:  # an answer to an earlier packet; this one may go
                    continue
                self.error = name_of(error)
                return
            self.next += 1
            if kind == SMALL:
                self.sent = number + 1
        self.due = now + self.gap_ns if self.sent - self.acked >= self.window else now

    def on_ack(self, number: int) -> None:
        """The peer has a small packet, and so those before it that are not lost."""
        self.acked = max(self.acked, number + 1)
        if self.sent - self.acked < self.window:
            self.due = 0


def ping(route: Route, target: tuple[str, int], head: tuple[int, int, int, int], number: int, path: int) -> None:
    """Ask a peer for an answer."""
    with contextlib.suppress(OSError):
        route.flows[0].sendto(HEAD.pack(*head, number, path, 0, PING), target)


def rate_of(arrivals: Iterable[tuple[int, int]], saved: int, window: int) -> tuple[int, int]:
    """(bits per second, bytes in all) of (arrival ns, size).

    A shaper with rate R lets up to `saved` saved-up bytes pass at once, at the start and after every pause of the
    sender. So the quickest `saved` bytes take no time that means anything; but the quickest n bytes beyond it take
    (n - saved) / R longer, as the saved-up part is in both. That quotient is taken for several n of `window` bytes and
    more beyond the saved. A pause that no stretch of n bytes is free of makes it smaller and nothing makes it much
    larger, so the median of those within a tenth of the largest counts.
    """
    ends: list[tuple[int, int]] = []
    total = 0
    for stamp, size in sorted(arrivals):
        total += size
        ends.append((stamp, total))
    least, rates = quickest(ends, saved), []
    for i in range(WINDOWS):
        more = quickest(ends, saved + window + i * window // 6)
        if more is None:
            break
        if least and more[0] > least[0]:
            rates.append((more[1] - least[1]) * 8e9 / (more[0] - least[0]))
    good = sorted(r for r in rates if r >= 0.9 * max(rates))
    if good:
        return int(good[len(good) // 2]), total
    rest = [end for end in ends if end[1] >= saved]  # too little arrived for a whole stretch
    if len(rest) > 4 and rest[-1][0] > rest[0][0]:
        return int((rest[-1][1] - rest[0][1]) * 8e9 / (rest[-1][0] - rest[0][0])), total
    return 0, total


def quickest(ends: Sequence[tuple[int, int]], num_bytes: int) -> tuple[int, int] | None:
    """(ns, bytes) of the quickest stretch of so many bytes or a packet more; None where there is none.

    `ends` holds when each packet came, and how many bytes had come by then.
    """
    best, first = None, 0
    for stamp, reached in ends:
        while first + 1 < len(ends) and reached - ends[first + 1][1] >= num_bytes:
            first += 1
        took, size = stamp - ends[first][0], reached - ends[first][1]
        if size >= num_bytes and (best is None or took * best[1] < best[0] * size):
            best = took, size
    return best
