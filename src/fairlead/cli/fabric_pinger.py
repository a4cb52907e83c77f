"""One node of `fairlead fabric ping`: sends numbered packets over named paths, answers those of others, times what
comes back. Standard library, Python 3.9; nothing is installed on the node.

The control side says who sends what where; packets without the token of the run, of a test that was not announced, or
from another address than its other end has, are dropped and answered by nobody. Where a node alone says that an address
is its own, a test sends one packet a window until the other end has answered. Arrivals are stamped by the kernel, and
an answer says how long it was held back, so that a busy processor counts as little as can be.

Packets leave by the NIC that has their source address, also where the kernel would route them by another, and do not
count where they come in by another: several NICs in one subnet are no reason to test one of them for all. Each window
has one packet of full size besides, with Don't Fragment, so that a hop with a smaller MTU shows.
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

from fairlead.cli.fabric_nics import Nic, nic_of, route
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
REQUEST, ANSWER, KNOCK, HERE, BIG, BIG_ANSWER = range(6)
"""What a packet is: of a test, the answer to that; whether somebody is there, and the answer to that; of full size, and
the answer to that, of full size, too."""
KNOCKS, KNOCK_S = 8, 0.125
"""How often is asked who is there, and how long each time: until then others may not have begun."""
FEW = 2
"""Packets of a test in a window where nobody has said so."""
ROOM_BYTES = 8 << 20
# linux/socket.h, linux/udp.h, linux/in6.h, asm-generic/socket.h: names that Python's socket module lacks
SO_TIMESTAMPNS, SO_RCVBUFFORCE, UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX, IPV6_AUTOFLOWLABEL = 35, 33, 101, 102, 70
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_PROBE, IPV6_DONTFRAG = 10, 23, 3, 62
IP_PKTINFO, IPV6_RECVPKTINFO, IPV6_PKTINFO = 8, 49, 50
INFO4, INFO6 = struct.Struct("=I4s4s"), struct.Struct("=16sI")
"""struct in_pktinfo, in6_pktinfo: the interface, and addresses."""
SO_MEMINFO, MEMINFO_DROPS = 55, struct.Struct("32xI")
"""linux/sock_diag.h: of the numbers about a socket's memory the ninth counts packets that it had no room for."""
TIMESPEC = struct.Struct("@ll")


class Test:
    """Packets over one path."""

    def __init__(self, rail: int, flow: int, to: tuple[str, int], peer: str, count: int) -> None:
        self.rail, self.flow, self.to, self.peer = rail, flow, to, packed(peer)
        self.is_loop = self.is_open = False
        self.leave: list[Any] = []
        """What sendmsg is told besides: the NIC to leave by, where the kernel would take another."""
        self.sent = [0] * WINDOWS
        self.aside = [0] * WINDOWS
        """Answers that came otherwise than they should."""
        self.bigs = [0, 0]
        """Full-size packets sent, and answered by such."""
        self.sent_ns = array("q", bytes(8 * count))
        self.rtts = [array("q") for _ in range(WINDOWS)]


class Pinger:
    """A node."""

    def __init__(self, channel: Channel, wish: dict[str, Any]) -> None:
        self.channel = channel
        self.token = bytes.fromhex(wish["token"])
        self.count, self.interval_s = int(wish["count"]), float(wish["interval_s"])
        self.padding = bytes(max(int(wish["size"]) - PACKET.size, 0))
        self.nics: list[Nic | None] = [nic_of(packed(a)) if a else None for a in wish["addresses"]]
        self.own = [packed(a) if a else b"" for a in wish["addresses"]]
        self.ports = {nic.index: nic.name for nic in self.nics if nic and nic.is_port}
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
        self.big_heard: dict[int, int] = {}
        self.aside: dict[int, list[int]] = {}
        """Packets of others that came otherwise than they should."""
        self.refused: dict[int, list[int]] = {}
        """Answers that this node's own kernel did not let out."""
        self.odd: dict[tuple[int, str, bytes, str], list[int]] = {}
        """(path, how it differed, whose packet, by which NIC or from which address) -> a test, and packets."""
        self.leads: dict[tuple[int, bytes], list[Any]] = {}
        self.refusals = [0] * len(self.sockets)
        self.errors: dict[tuple[int, str], int] = {}
        self.has_to_stop = False

    def say(self, what: str, **said: object) -> None:
        """One line for whoever asked."""
        self.channel.say(json.dumps({"say": what, **said}))

    def run(self) -> None:
        """Say where this node listens, hear what is to be sent, do it, tell what was seen."""
        self.say(
            "up",
            ports=[[s.getsockname()[1] for s in own] for own in self.sockets],
            unbound=self.unbound,
            payload=[nic.payload if nic else 0 for nic in self.nics],
        )
        while not self.has_to_stop:
            line = json.loads(self.channel.read(LEFT_S) or '{"do": "stop"}')
            if line["do"] == "stop":
                return
            if line["do"] == "go":
                break
            for number, rail, flow, address, port, peer, is_loop in line["tests"]:
                self.tests[number] = test = Test(rail, flow, (address, port), peer, self.count)
                test.is_loop = test.is_open = is_loop
                test.leave = self.lead(rail, number, packed(address))
                if not is_loop:
                    self.closed.setdefault(test.to, []).append(number)
            for number, address, port, peer in line["answers"]:
                self.answers[number] = (address, port, packed(peer))
                self.heard[number], self.big_heard[number] = [0] * WINDOWS, 0
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

    def lead(self, rail: int, number: int, target: bytes) -> list[Any]:
        """What sendmsg is told so that packets to an address leave by the NIC that has ours, where they would not.

        Where nothing leads there by that NIC, or its own filter drops what comes in there, that is noted.
        """
        key = (rail, target)
        nic, own = self.nics[rail], self.own[rail]
        if key in self.leads or nic is None or not nic.is_port:
            return self.leads.setdefault(key, [])
        found = route(own, target)
        if found is None or found[0] == nic.index or found[0] not in self.ports:
            return self.leads.setdefault(key, [])
        if nic.is_strict:
            self.strange(rail, "filter", number, target, self.ports[found[0]])
        by_own = route(own, target, nic.index)
        if not nic.reaches(target) and not (by_own and by_own[0] == nic.index and by_own[1]):
            self.strange(rail, "route", number, target, self.ports[found[0]])
            return self.leads.setdefault(key, [])
        if len(own) == 4:
            said = (socket.IPPROTO_IP, IP_PKTINFO, INFO4.pack(nic.index, own, bytes(4)))
        else:
            said = (socket.IPPROTO_IPV6, IPV6_PKTINFO, INFO6.pack(own, nic.index))
        return self.leads.setdefault(key, [said])

    def strange(self, rail: int, how: str, number: int, whose: bytes, what: str) -> None:
        """Note a packet that took another way than it should."""
        self.odd.setdefault((rail, how, whose, what), [number, 0])[1] += 1

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
        """One packet; where nobody has said that it is there only the first ones of a window.

        The first one of a window goes with one of full size.
        """
        window = seq * WINDOWS // self.count
        if not test.is_open and test.sent[window] >= FEW:
            return
        test.sent_ns[seq] = time.time_ns()
        if self.give(test, PACKET.pack(self.token, number, seq, REQUEST, 0) + self.padding):
            test.sent[window] += 1
        nic = self.nics[test.rail]
        if nic and test.is_open and (seq == 0 or (seq - 1) * WINDOWS // self.count < window):
            packet = PACKET.pack(self.token, number, seq, BIG, 0)
            test.bigs[0] += self.give(test, packet.ljust(nic.payload, b"\0"))

    def give(self, test: Test, packet: bytes) -> bool:
        """To the kernel; False where it does not let it out. Another failure is a packet that is lost, and is noted."""
        own = self.sockets[test.rail]
        try:
            own[test.flow % len(own)].sendmsg([packet], test.leave, 0, test.to)
        except PermissionError:
            self.refusals[test.rail] += 1
            return False
        except (OSError, ZeroDivisionError) as error:
            self.note(test.rail, error)
        return True

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
        if token != self.token or seq >= self.count or not (number in self.answers or number in self.tests):
            return
        came_ns, by = stamped(control)
        came_ns = came_ns or time.time_ns()
        window = seq * WINDOWS // self.count
        sender = packed(address[0])
        own, is_asked = self.nics[rail], number in self.answers
        peer = self.answers[number][2] if is_asked else self.tests[number].peer
        is_by_other = own is not None and by != own.index and by in self.ports
        if sender != peer or (is_by_other and kind not in (KNOCK, HERE)):
            if kind == (REQUEST if is_asked or self.tests[number].is_loop else ANSWER):
                if sender != peer:
                    self.strange(rail, "source", number, peer, address[0].partition("%")[0])
                else:
                    self.strange(rail, "nic", number, peer, self.ports[by])
                aside = self.aside.setdefault(number, [0] * WINDOWS) if is_asked else self.tests[number].aside
                aside[window] += 1
        elif is_asked:
            self.answer(source, rail, number, seq, kind, came_ns, address)
        else:
            self.hear_back(number, seq, kind, came_ns - held_ns)

    def answer(  # noqa: PLR0917 - what a packet says, and where it came
        self, source: socket.socket, rail: int, number: int, seq: int, kind: int, came_ns: int, address: tuple[Any, ...]
    ) -> None:
        """A packet of another's test."""
        to, port, _ = self.answers[number]
        window, nic = seq * WINDOWS // self.count, self.nics[rail]
        if kind == KNOCK:
            back = PACKET.pack(self.token, number, seq, HERE, 0)
        elif kind == REQUEST:
            self.heard[number][window] += 1
            back = PACKET.pack(self.token, number, seq, ANSWER, max(0, time.time_ns() - came_ns)) + self.padding
        elif kind == BIG:
            self.big_heard[number] += 1
            back = PACKET.pack(self.token, number, seq, BIG_ANSWER, 0).ljust(nic.payload if nic else 0, b"\0")
        else:
            return
        try:
            target = (to, port) if to else address
            source.sendmsg([back], self.lead(rail, number, packed(target[0])), 0, target)
        except PermissionError:
            self.refusals[rail] += 1
            if kind == REQUEST:
                self.refused.setdefault(number, [0] * WINDOWS)[window] += 1
        except OSError as error:
            self.note(rail, error)

    def hear_back(self, number: int, seq: int, kind: int, came_ns: int) -> None:
        """An answer, or a packet that went round; `came_ns` is less what it was held back."""
        test, window = self.tests[number], seq * WINDOWS // self.count
        if kind == HERE:
            for other in self.closed.pop(test.to, ()):
                self.tests[other].is_open = True
        elif kind == (REQUEST if test.is_loop else ANSWER) and test.sent_ns[seq]:
            test.is_open = True
            test.rtts[window].append(max(1, came_ns - test.sent_ns[seq]))
            test.sent_ns[seq] = 0  # a second one of it is none
        elif kind == (BIG if test.is_loop else BIG_ANSWER):
            test.bigs[1] += 1

    def tell(self) -> None:
        """What was seen, a few tests a line."""
        rows = [
            [n, [[t.sent[w], len(t.rtts[w]), min(t.rtts[w], default=0)] for w in range(WINDOWS)], *spread(t.rtts)]
            for n, t in self.tests.items()
        ]
        aside = {**self.aside, **{n: t.aside for n, t in self.tests.items() if any(t.aside)}}
        told: dict[str, list[Any]] = {
            "rows": rows,
            "heard": [[n, windows] for n, windows in self.heard.items()],
            "bigs": [[n, *t.bigs] for n, t in self.tests.items()] + [[n, num, 0] for n, num in self.big_heard.items()],
            "aside": [[n, windows] for n, windows in aside.items()],
            "refused": [[n, windows] for n, windows in self.refused.items()],
        }
        for begin in range(0, max(map(len, told.values())), ROWS):
            self.say("seen", **{key: found[begin : begin + ROWS] for key, found in told.items()})
        errors = [[rail, said, times] for (rail, said), times in self.errors.items()]
        odd = [[rail, how, number, what, times] for (rail, how, _, what), (number, times) in self.odd.items()]
        no_room = [[full(sock) for sock in own] for own in self.sockets]
        self.say("end", errors=errors[:ROWS], full=no_room, odd=odd[:ROWS], refusals=self.refusals)


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
        if v6:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_DONTFRAG, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
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


def stamped(control: list[Any]) -> tuple[int, int]:
    """When the kernel had it, ns of the epoch, and by which interface it came; 0: it does not say."""
    came_ns, by = 0, 0
    for level, kind, value in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(value) >= TIMESPEC.size:
            seconds, ns = TIMESPEC.unpack_from(value)
            came_ns = int(seconds) * 10**9 + int(ns)
        elif level == socket.IPPROTO_IP and kind == IP_PKTINFO and len(value) >= INFO4.size:
            by = int(INFO4.unpack_from(value)[0])
        elif level == socket.IPPROTO_IPV6 and kind == IPV6_PKTINFO and len(value) >= INFO6.size:
            by = int(INFO6.unpack_from(value)[1])
    return came_ns, by


def spread(windows: list[array[int]]) -> tuple[int, int]:
    """Median and 99th percentile of all round trips; 0 of none."""
    times = sorted(t for window in windows for t in window)
    return (times[len(times) // 2], times[min(len(times) * 99 // 100, len(times) - 1)]) if times else (0, 0)


def main() -> None:
    """Read the wish and carry it out."""
    channel = Channel()
    Pinger(channel, json.loads(channel.read() or "{}")).run()
