"""One node of `fairlead fabric ping`: sends numbered packets over named paths, answers those of others, times what
comes back. Standard library, Python 3.9; nothing is installed on the node.

The control side says who sends what where; packets without the token of the run, of a test that was not announced, or
from another address than its other end has, are dropped and answered by nobody. Where a node alone says that an address
is its own, a test sends one packet a window until the other end has answered. Arrivals are stamped by the kernel, and
an answer says how long it was held back, so that a busy processor counts as little as can be.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import time
from array import array

from fairlead.cluster.channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WINDOWS = 4
LINGER_S = 1.0
"""For answers under way after the last packet."""
LEFT_S = 60.0
ROWS = 200
BURST = 32
PACKET = struct.Struct("<16sIIBQ")
"""Token, test, number in the test, what it is, nanoseconds the answer was held back."""
REQUEST, ANSWER, KNOCK, HERE = range(4)
"""What a packet is: of a test, the answer to that; whether somebody is there, and the answer to that."""
KNOCKS, KNOCK_S = 8, 0.125
"""How often is asked who is there, and how long each time: until then others may not have begun."""
FEW = 2
"""Packets of a test in a window where nobody has said so."""
ROOM_BYTES = 8 << 20
# linux/socket.h, linux/udp.h, linux/in6.h, asm-generic/socket.h: names that Python's socket module lacks
SO_TIMESTAMPNS, SO_RCVBUFFORCE, UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX, IPV6_AUTOFLOWLABEL = 35, 33, 101, 102, 70
SO_MEMINFO, MEMINFO_DROPS = 55, struct.Struct("32xI")
"""linux/sock_diag.h: of the numbers about a socket's memory the ninth counts packets that it had no room for."""
TIMESPEC = struct.Struct("@ll")


class Test:
    """Packets over one path."""

    def __init__(self, rail: int, flow: int, to: tuple[str, int], peer: str, count: int) -> None:
        self.rail, self.flow, self.to, self.peer = rail, flow, to, packed(peer)
        self.is_loop = self.is_open = False
        self.sent = [0] * WINDOWS
        self.sent_ns = array("q", bytes(8 * count))
        self.rtts = [array("q") for _ in range(WINDOWS)]


class Pinger:
    """A node."""

    def __init__(self, channel: Channel, wish: dict[str, Any]) -> None:
        self.channel = channel
        self.token = bytes.fromhex(wish["token"])
        self.count, self.interval_s = int(wish["count"]), float(wish["interval_s"])
        self.padding = bytes(max(int(wish["size"]) - PACKET.size, 0))
        self.sockets: list[list[socket.socket]] = []
        self.unbound: list[tuple[int, str]] = []
        for rail, address in enumerate(wish["addresses"]):
            try:
                self.sockets.append([opened(address, steered=wish["steered"]) for _ in range(wish["flows"])])
            except OSError as error:
                self.sockets.append([])
                if address:
                    self.unbound.append((rail, error.strerror or str(error)))
        self.by_fd = {sock.fileno(): (sock, rail) for rail, own in enumerate(self.sockets) for sock in own}
        self.tests: dict[int, Test] = {}
        self.closed: dict[tuple[str, int], list[int]] = {}
        """Where nobody has said yet that it is there -> the tests that go there."""
        self.answers: dict[int, tuple[str, int, bytes]] = {}
        self.heard: dict[int, list[int]] = {}
        self.errors: dict[tuple[int, str], int] = {}
        self.has_to_stop = False

    def say(self, what: str, **said: object) -> None:
        """One line for whoever asked."""
        self.channel.say(json.dumps({"say": what, **said}))

    def run(self) -> None:
        """Say where this node listens, hear what is to be sent, do it, tell what was seen."""
        self.say("up", ports=[[s.getsockname()[1] for s in own] for own in self.sockets], unbound=self.unbound)
        while not self.has_to_stop:
            line = json.loads(self.channel.read(LEFT_S) or '{"do": "stop"}')
            if line["do"] == "stop":
                return
            if line["do"] == "go":
                break
            for number, rail, flow, address, port, peer, is_loop in line["tests"]:
                self.tests[number] = test = Test(rail, flow, (address, port), peer, self.count)
                test.is_loop = test.is_open = is_loop
                if not is_loop:
                    self.closed.setdefault(test.to, []).append(number)
            for number, address, port, peer in line["answers"]:
                self.answers[number] = (address, port, packed(peer))
                self.heard[number] = [0] * WINDOWS
        self.knock()
        self.ping()
        self.say("sent")
        end = time.monotonic() + LEFT_S
        while not self.has_to_stop and time.monotonic() < end:
            self.listen(0.2)
        self.tell()

    def knock(self) -> None:
        """Ask at every address for a word of who is there, a few times: only then is more sent.

        That an address is a node's own is that node's word.
        """
        for turn in range(KNOCKS):
            for numbers in list(self.closed.values()):
                number = numbers[turn % len(numbers)]
                self.give(self.tests[number], PACKET.pack(self.token, number, 0, KNOCK, 0))
            end = time.monotonic() + KNOCK_S
            while self.closed and not self.has_to_stop and (left := end - time.monotonic()) > 0:
                self.listen(left)

    def ping(self) -> None:
        """Every test sends a packet each interval; no two at once."""
        order = list(self.tests.items())
        gap = self.interval_s / max(len(order), 1)
        begin = time.monotonic()
        done, total = 0, self.count * len(order)
        while done < total and not self.has_to_stop:
            behind = 0
            while done < total and behind < BURST and begin + done * gap <= time.monotonic():
                number, test = order[done % len(order)]
                self.send(number, test, done // len(order))
                done += 1
                behind += 1
            self.listen(max(0.0, begin + done * gap - time.monotonic()))
        end = time.monotonic() + LINGER_S
        while (left := end - time.monotonic()) > 0 and not self.has_to_stop:
            self.listen(left)

    def send(self, number: int, test: Test, seq: int) -> None:
        """One packet; where nobody has said that it is there only the first ones of a window."""
        window = seq * WINDOWS // self.count
        if not test.is_open and test.sent[window] >= FEW:
            return
        test.sent[window] += 1
        test.sent_ns[seq] = time.time_ns()
        self.give(test, PACKET.pack(self.token, number, seq, REQUEST, 0) + self.padding)

    def give(self, test: Test, packet: bytes) -> None:
        """To the kernel; a failure here is a packet that is lost, and is counted."""
        own = self.sockets[test.rail]
        try:
            own[test.flow % len(own)].sendto(packet, test.to)
        except (OSError, ZeroDivisionError) as error:
            self.note(test.rail, error)

    def note(self, rail: int, error: Exception) -> None:
        """Count what the kernel said."""
        said = errno.errorcode.get(error.errno or 0, "error") if isinstance(error, OSError) else "no socket"
        self.errors[rail, said] = self.errors.get((rail, said), 0) + 1

    def listen(self, limit_s: float) -> None:
        """Whatever comes within a time, and at least what is there."""
        by_fd = self.by_fd
        for fd in select.select([*by_fd, self.channel.fd_in], [], [], limit_s)[0]:
            if fd == self.channel.fd_in:
                self.hear()
                continue
            source, rail = by_fd[fd]
            for _ in range(BURST):
                try:
                    data, control, _, address = source.recvmsg(1 << 16, 128)
                except BlockingIOError:
                    break
                except OSError as error:
                    self.note(rail, error)
                    continue
                self.take(source, rail, data, control, address)

    def hear(self) -> None:
        """The control side: stop, or gone."""
        try:
            waiting = self.channel.take(os.read(self.channel.fd_in, 1 << 16))
        except OSError:
            waiting = []
        self.has_to_stop |= bool(waiting) or self.channel.has_ended

    def take(self, source: socket.socket, rail: int, data: bytes, control: list[Any], address: tuple[Any, ...]) -> None:
        """A packet came."""
        if len(data) < PACKET.size:
            return
        token, number, seq, kind, held_ns = PACKET.unpack_from(data)
        if token != self.token or seq >= self.count:
            return
        came_ns = stamped(control) or time.time_ns()
        window = seq * WINDOWS // self.count
        sender = packed(address[0])
        if kind in (REQUEST, KNOCK) and number in self.answers:
            to, port, peer = self.answers[number]
            if sender != peer:
                return
            if kind == KNOCK:
                back = PACKET.pack(self.token, number, seq, HERE, 0)
            else:
                self.heard[number][window] += 1
                back = PACKET.pack(self.token, number, seq, ANSWER, max(0, time.time_ns() - came_ns)) + self.padding
            try:
                source.sendto(back, (to, port) if to else address)
            except OSError as error:
                self.note(rail, error)
        elif number in self.tests:
            test = self.tests[number]
            wanted = REQUEST if test.is_loop else ANSWER
            if kind == HERE and sender == test.peer:
                for other in self.closed.pop(test.to, ()):
                    self.tests[other].is_open = True
            elif kind == wanted and sender == test.peer and test.sent_ns[seq]:
                test.is_open = True
                test.rtts[window].append(max(1, came_ns - test.sent_ns[seq] - held_ns))
                test.sent_ns[seq] = 0  # a second one of it is none

    def tell(self) -> None:
        """What was seen, a few tests a line."""
        rows = [
            [n, [[t.sent[w], len(t.rtts[w]), min(t.rtts[w], default=0)] for w in range(WINDOWS)], *spread(t.rtts)]
            for n, t in self.tests.items()
        ]
        heard = [[n, windows] for n, windows in self.heard.items()]
        for begin in range(0, max(len(rows), len(heard)), ROWS):
            self.say("seen", rows=rows[begin : begin + ROWS], heard=heard[begin : begin + ROWS])
        errors = [[rail, said, times] for (rail, said), times in self.errors.items()]
        self.say("end", errors=errors[:ROWS], full=[[full(sock) for sock in own] for own in self.sockets])


def opened(address: str, *, steered: bool) -> socket.socket:
    """A UDP socket at an address of this node."""
    v6 = ":" in address
    sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if v6 and steered:  # switches change the address that a checksum would cover (RFC 6935)
            sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
            sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0)
        sock.bind((address, 0))
    except OSError:
        sock.close()
        raise
    return sock


def full(sock: socket.socket) -> int:
    """Packets that a socket had no room for: they did cross the fabric."""
    try:
        return int(MEMINFO_DROPS.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO_DROPS.size))[0])
    except (OSError, struct.error):  # Linux before 4.12
        return 0


def packed(address: str) -> bytes:
    """An address as the bytes of its family, so that two spellings are one."""
    host = address.partition("%")[0]
    return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)


def stamped(control: list[Any]) -> int:
    """When the kernel had it, ns of the epoch; 0: it does not say."""
    for level, kind, value in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(value) >= TIMESPEC.size:
            seconds, ns = TIMESPEC.unpack_from(value)
            return int(seconds) * 10**9 + int(ns)
    return 0


def spread(windows: list[array[int]]) -> tuple[int, int]:
    """Median and 99th percentile of all round trips; 0 of none."""
    times = sorted(t for window in windows for t in window)
    return (times[len(times) // 2], times[min(len(times) * 99 // 100, len(times) - 1)]) if times else (0, 0)


def main() -> None:
    """Read the wish and carry it out."""
    channel = Channel()
    Pinger(channel, json.loads(channel.read() or "{}")).run()
