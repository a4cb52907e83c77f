"""The program that stays on a node during the pair phase: it sends, listens, counts, and says what it saw.

Control lines come in on standard input, one JSON object each, the same for all nodes; answers go out as JSON lines.
Nodes and paths are numbers: into the node list, and into the list of addresses a node has. No file is written.

    setup    everybody's addresses    -> the UDP port bound on each of mine, the TCP port, what could not be bound,
                                         the counters of my ports
    peers    everybody's ports        -> nothing; also which path each steered path goes out by
    knock    where, or everywhere     -> nothing
    knocked  -                        -> the knocks that were heard, and the secret that mine were made from
    clock    -                        -> my time of day
    work     an amount of arithmetic  -> how long it took, by the wall and by the CPU
    burst    who sends to whom        -> bursts that did not arrive whole
    speed    who sends to whom        -> rates as received, round-trip times
    collect  -                        -> the answer to a burst or speed order, once nothing more arrives
    tcp      who connects to whom     -> connections that did not carry a message
    counters -                        -> the counters of my ports once more
    bye      -                        -> nothing

Who sends to whom is a list of pairs, or shifts: in round r each member sends to the r-th behind it. A steered path is
one whose way is in the destination address: the order says the address of each pair; a node may send to itself. A node
that has sent all and misses something says `sent`; it answers when everything has come, or when `collect` tells it to
wait no longer.

That an address is a node's own is that node's word, so each is knocked at before anything else is sent there: a few
short packets that nobody can know who is not there. Until its node has said what they held, a burst or stream to it is
one packet, and nobody connects to it; `closed` names those.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import sys
import threading
import time

from fairlead.preflight.pairs.onnode.coming import TCP_BYTES, Heard, Server, knock_of, ports_of, senders
from fairlead.preflight.pairs.onnode.counting import read_counters
from fairlead.preflight.pairs.onnode.wire import (
    ACK,
    FULL,
    HEAD,
    KNOCK,
    NUM_FLOWS,
    PING,
    PONG,
    SMALL,
    SPEED,
    Outgoing,
    Route,
    name_of,
    now_ns,
    ping,
    rate_of,
)
from fairlead.preflight.pairs.onnode.working import fixed_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

TCP_AT_ONCE = 16
SAY_SENT_NS = 20_000_000
PING_NS = 100_000_000
SPEED_BATCH = 32
"""Packets offered at once when rates are measured: more than the sockets take, so that a port never waits for us."""
HOLD_NS = 10_000_000
"""From the order to the stream: by then others have had our answers to their pings, for which we now have no time."""
TICK_S = 0.005
ACK_EVERY = 16
"""Small packets, by number, of which one is acknowledged: a quarter of the smallest window that is asked for."""
AT_ONCE = 256
"""Packets taken from a socket before anything else is done."""
MAX_KNOCKERS = 16
"""Nodes that knock at an address, however many there are."""
MAX_WAITING = 1 << 17
"""Packets that wait in a socket at most: its buffer, in the smallest of them."""


class Pings:
    """Round trips to one peer, one after the other."""

    def __init__(self, left: int) -> None:
        self.left, self.best_ns, self.asked_at = left, 0, 0


class Agent:
    """Everything this node knows of the run."""

    def __init__(self) -> None:
        self.select = selectors.DefaultSelector()
        self.select.register(0, selectors.EVENT_READ)
        self.routes: list[Route | None] = []
        self.addresses: list[list[str]] = []
        self.peers: list[list[int]] = []
        self.steered: dict[int, int] = {}
        """Steered path -> the path whose port it leaves by and whose address it arrives at."""
        self.to: dict[tuple[int, int, int], str] = {}
        self.secret = os.urandom(32)
        self.knocks: dict[tuple[int, int], str] = {}
        """(node, path) -> what it knocked with."""
        self.closed: set[tuple[int, int]] = set()
        """(node, path) where nobody has shown that the node is there."""
        self.run = self.me = self.step = 0
        self.buffer = b""
        self.ports: list[list[Any]] = []
        self.counters: list[list[str]] = []
        self.is_over = False
        self.senders: dict[tuple[int, int], str] = {}
        """(node, path) -> where its packets come from."""
        self.heard: dict[tuple[int, int], Heard] = {}
        """(node, path) -> what came: a quick sender may be heard before its order."""
        self.space = bytearray(1 << 16)
        self.begin({"step": 0})

    def begin(self, order: dict[str, Any]) -> None:
        """A new step: nothing sent, nothing expected."""
        self.step = order["step"]
        self.order = order
        self.task: Callable[[], None] | None = None
        self.outgoing: dict[tuple[int, int], Outgoing] = {}
        self.expected: dict[tuple[int, int], int] = {}
        self.pings: dict[tuple[int, int], Pings] = {}
        self.has_said_sent = self.is_collecting = False
        self.quiet_ns = self.last_heard = self.sent_at = self.wait_until = 0
        self.begun_at = now_ns()
        self.heard = {key: heard for key, heard in self.heard.items() if heard.step >= self.step}
        self.drops_before = [r.dropped() if r else 0 for r in self.routes]
        self.to = {(src, dst, path): address for src, dst, path, address in order.get("to", ())}
        for route in self.routes:
            if route:
                route.steer(on=bool(self.to))

    def route(self, path: int) -> Route | None:
        """The sockets of a path."""
        return self.routes[self.steered.get(path, path)]

    def say(self, **fields: Any) -> None:
        """One answer."""
        sys.stdout.write(json.dumps({"step": self.order["step"], **fields}, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until told to end, or nobody is there to tell."""
        while not self.is_over:
            now = now_ns()
            waiting = [o for o in self.outgoing.values() if not o.is_done]
            for out in waiting:
                if out.due <= now:
                    out.push(now)
            wait = TICK_S if self.task else None
            if waiting:
                wait = max(0.0, min(min(o.due for o in waiting) - now_ns(), int(TICK_S * 1e9)) / 1e9)
            for key, _ in self.select.select(wait):
                if key.fd == 0:
                    self.read_control()
                else:
                    self.read_packets(*key.data)
            if self.task:
                self.task()

    def read_control(self) -> None:
        """Orders, whole lines of them."""
        data = os.read(0, 1 << 20)
        if not data:
            self.is_over = True
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            order = json.loads(line) if line.strip() else {}
            if order and self.me in order.get("only", (self.me,)):
                getattr(self, "do_" + order["do"])(order)

    def read_packets(self, path: int, sock: socket.socket) -> int:
        """Some of what has arrived on one socket; how many packets."""
        route = self.routes[path]
        assert route is not None
        if self.task == self.burst_task:
            return self.read_burst(route, sock)
        num = 0
        for data, stamp, sender in route.arrivals(sock):
            num += 1
            if len(data) >= HEAD.size:
                head = HEAD.unpack_from(data)
                if head[-1] == KNOCK and self.is_from(head, sender):
                    self.knocks[head[2], head[5]] = data[HEAD.size : HEAD.size + 16].hex()
                self.take(route, head, stamp, len(data), sender)
        return num

    def read_burst(self, route: Route, sock: socket.socket) -> int:
        """The same where packets are many and their times do not count."""
        space, unpack, take, num = self.space, HEAD.unpack_from, self.take, 0
        with contextlib.suppress(OSError):
            for _ in range(AT_ONCE):
                size, sender = sock.recvfrom_into(space)
                num += 1
                if size >= HEAD.size:
                    take(route, unpack(space), 0, size, sender)
        return num

    def is_from(self, head: tuple[int, ...], sender: Any) -> bool:
        """Whether a packet is of this run, for this node, and came from where its sender is."""
        return head[0] == self.run and head[3] == self.me and self.senders.get((head[2], head[5])) == sender[0]

    def take(self, route: Route, head: tuple[int, ...], stamp: int, size: int, sender: Any) -> None:
        """One packet; whose it is, is where it came from."""
        if not self.is_from(head, sender):
            return
        run, step, src, _, number, on, flow, kind = head
        if kind == PING:
            route.answer(HEAD.pack(run, step, self.me, src, number, on, flow, PONG), sender)
        elif kind == PONG:
            self.on_pong(src, on, number)
        elif kind == ACK:
            if step == self.step and (out := self.outgoing.get((src, on))):
                out.on_ack(number)
        elif step >= self.step:
            self.last_heard = now_ns()
            heard = self.heard.get((src, on))
            if heard is None or heard.step < step:
                heard = self.heard[src, on] = Heard(step)
            elif heard.step > step:
                return
            if kind == SPEED:
                heard.timed(stamp, size)
            elif kind in (SMALL, FULL):
                heard.numbers.add(2 * number + kind)
                if kind == SMALL and number % ACK_EVERY == ACK_EVERY - 1:
                    route.answer(HEAD.pack(run, step, self.me, src, number, on, 0, ACK), sender)

    # ---- orders ------------------------------------------------------------------------------------------------------

    def do_setup(self, order: dict[str, Any]) -> None:
        """Open sockets on my addresses."""
        self.run, self.me = order["run"], order["nodes"].index(os.environ["FAIRLEAD_NODE"])
        self.addresses = order["addresses"]
        self.senders = senders(self.addresses)
        self.peers = ports_of([], len(self.addresses), len(self.addresses[self.me]))
        self.order = order
        errors = []
        for path, address in enumerate(self.addresses[self.me]):
            route = None
            if address:
                try:
                    route = Route(address)
                except OSError as error:
                    errors.append([path, name_of(error)])
                else:
                    for sock in (route.listener, *route.flows):
                        self.select.register(sock, selectors.EVENT_READ, (path, sock))
            self.routes.append(route)
        tcp_port = 0
        if self.routes[0]:
            server = socket.create_server((self.addresses[self.me][0], 0), family=self.routes[0].family, backlog=1024)
            tcp_port = server.getsockname()[1]
            serving = Server(server, [row[0] for row in self.addresses])
            threading.Thread(target=serving.serve, daemon=True).start()
        self.drops_before = [0 for _ in self.routes]
        self.ports, self.counters = (order.get("ports") or {self.me: ()})[self.me], order.get("counters", ())
        self.say(
            counters=read_counters(self.ports, self.counters),
            ports=[r.port if r else 0 for r in self.routes],
            tcp=tcp_port,
            errors=errors,
        )

    def do_peers(self, order: dict[str, Any]) -> None:
        """Learn where the others listen."""
        self.peers = ports_of(order["peers"], len(self.addresses), len(self.addresses[self.me]))
        self.steered = dict(order.get("steered", ()))
        self.senders = senders(self.addresses, self.steered.items())

    def do_knock(self, order: dict[str, Any]) -> None:
        """Let some of the others show where they are, by what only they can hear."""
        only, num = {(dst, path) for dst, path in order.get("at", ())}, len(self.addresses)
        for dst in {(self.me - shift) % num for shift in range(1, min(num, MAX_KNOCKERS + 1))}:
            for path, route in enumerate(self.routes):
                address, port = self.addresses[dst][path], self.peers[dst][path]
                if route and address and port and (not only or (dst, path) in only):
                    head = self.run, self.step, self.me, dst
                    for number, sock in enumerate(route.flows):
                        knock = HEAD.pack(*head, number, path, number, KNOCK) + knock_of(self.secret, dst, path)
                        with contextlib.suppress(OSError):
                            sock.sendto(knock, (address, port))

    def do_knocked(self, order: dict[str, Any]) -> None:
        """Tell who knocked."""
        self.order = order
        self.take_all()
        self.say(knocks=[[*key, text] for key, text in sorted(self.knocks.items())], secret=self.secret.hex())

    def do_clock(self, order: dict[str, Any]) -> None:
        """Tell the time."""
        self.order = order
        self.say(clock_ns=time.time_ns())

    def do_work(self, order: dict[str, Any]) -> None:
        """Do a fixed amount of arithmetic."""
        self.order = order
        self.say(**fixed_work(order["blocks"]))

    def do_counters(self, order: dict[str, Any]) -> None:
        """Read the counters of my ports again."""
        self.order = order
        self.say(counters=read_counters(self.ports, self.counters), clock_ns=time.time_ns())

    def do_bye(self, order: dict[str, Any]) -> None:
        """End."""
        self.is_over = True

    def do_burst(self, order: dict[str, Any]) -> None:
        """Send numbered packets, and count those that come."""
        self.begin(order)
        self.closed = {(dst, path) for dst, path in order.get("closed", ())}
        smalls = dict(order.get("smalls", ()))
        made: dict[int, list[tuple[int, int]]] = {}
        for src, dst, path in self.pairs():
            small = smalls.get(path, order["small"])
            packets = made.get(small) or made.setdefault(small, burst_of(small, order["full"]))
            if src == self.me and self.route(path):
                out = self.send(dst, path, order["batch"], order["gap_us"] * 1000, order["window"])
                out.packets = packets[:1] if self.is_closed(dst, path) else packets
            if dst == self.me:
                self.expected[src, path] = len(packets)
        self.task = self.burst_task

    def do_speed(self, order: dict[str, Any]) -> None:
        """Measure round trips, then send a stream, and time those that come."""
        self.begin(order)
        self.closed = {(dst, path) for dst, path in order.get("closed", ())}
        for src, dst, path in self.pairs():
            if src == self.me and self.route(path):
                self.pings[dst, path] = Pings(order["pings"])
                if order["pings"]:
                    self.ping(dst, path)
                else:
                    self.send_speed(dst, path)
            if dst == self.me:
                self.expected[src, path] = order["bytes"]
        self.task = self.speed_task

    def do_collect(self, order: dict[str, Any]) -> None:
        """Wait for late packets no longer than until it has been quiet for a while."""
        if self.task and order["step"] == self.step:
            self.is_collecting = True
            self.last_heard = max(self.last_heard, now_ns())
            self.quiet_ns = order["quiet_ms"] * 1_000_000
            self.wait_until = now_ns() + order["most_ms"] * 1_000_000

    def is_over_with_waiting(self) -> bool:
        """Whether late packets are waited for no longer: it has been quiet, or somebody sends without end.

        Then what has come up to now still counts, however slowly it is read here.
        """
        now = now_ns()
        if not self.is_collecting or (now - self.last_heard <= self.quiet_ns and now < self.wait_until):
            return False
        if now >= self.wait_until:
            self.take_all()
        return True

    def take_all(self) -> None:
        """All that has come up to now."""
        for path, route in enumerate(self.routes):
            num = 0
            while route and num < MAX_WAITING and (more := self.read_packets(path, route.listener)):
                num += more

    def do_tcp(self, order: dict[str, Any]) -> None:
        """Connect to some of the others."""
        self.begin(order)
        self.closed = {(dst, path) for dst, path in order.get("closed", ())}
        targets = [dst for src, dst, _ in self.pairs() if src == self.me]
        threading.Thread(target=self.connect_to, args=(targets, order["wait_s"]), daemon=True).start()

    # ---- who to whom -------------------------------------------------------------------------------------------------

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """The directed pairs of the order that concern this node, path by path."""
        order = self.order
        members = order.get("members") or range(len(self.addresses))
        if "shifts" in order and self.me in members:
            at, num = members.index(self.me), len(members)
            for shift in order["shifts"]:
                for path in order["paths"]:
                    yield self.me, members[(at + shift) % num], path
                    yield members[(at - shift) % num], self.me, path
        for src, dst, paths in order.get("pairs", ()):
            if self.me in (src, dst):
                for path in paths:
                    yield src, dst, path

    def is_closed(self, dst: int, path: int) -> bool:
        """Whether nobody has shown that another node is at its address of a path, or of the one that a way ends at."""
        return dst != self.me and (dst, self.steered.get(path, path)) in self.closed

    def came(self, key: tuple[int, int]) -> Heard | None:
        """What has come from (node, path) in this step."""
        heard = self.heard.get(key)
        return heard if heard and heard.step == self.step else None

    def target(self, dst: int, path: int) -> tuple[str, int]:
        """Where a peer listens on a path; a peer without it has no such place, and sending fails."""
        own = self.steered.get(path, path)
        return self.to.get((self.me, dst, path)) or self.addresses[dst][own] or "::", self.peers[dst][own]

    def send(self, dst: int, path: int, batch: int, gap_ns: int, window: int = 0) -> Outgoing:
        """Begin to send to a peer."""
        route, head = self.route(path), (self.run, self.step, self.me, dst)
        assert route is not None
        out = Outgoing(route, self.target(dst, path), head, path, batch=batch, gap_ns=gap_ns, window=window)
        self.outgoing[dst, path] = out
        return out

    # ---- bursts ------------------------------------------------------------------------------------------------------

    def burst_task(self) -> None:
        """Answer as soon as there is an answer."""
        if not all(o.is_done for o in self.outgoing.values()):
            return
        now = now_ns()
        self.sent_at = self.sent_at or now
        whole = all((got := self.came(key)) and len(got.numbers) >= num for key, num in self.expected.items())
        sizes = sorted({(path, o.full) for (_, path), o in self.outgoing.items()})
        if whole and not any(o.error for o in self.outgoing.values()):
            self.say(ok=len(self.expected), full=sizes)
        elif self.is_over_with_waiting():
            self.say(bad=self.damage(), errors=self.send_errors(), full=sizes)
        else:
            if not self.has_said_sent and now - self.sent_at > SAY_SENT_NS:
                self.has_said_sent = True
                self.say(sent=True)
            return
        self.task = None

    def damage(self) -> list[list[int]]:
        """Bursts that came in pieces: from, path, small, full, flows that came whole, flows not at all, lost here."""
        smalls = dict(self.order.get("smalls", ()))
        out = []
        for (src, path), num in sorted(self.expected.items()):
            got = self.came((src, path))
            numbers = got.numbers if got else set()
            if len(numbers) >= num:
                continue
            flows = [number // 2 % NUM_FLOWS for number in numbers if number % 2 == SMALL]
            counts = [flows.count(f) for f in range(NUM_FLOWS)]
            small = smalls.get(path, self.order["small"])
            per_flow = [len(range(f, small, NUM_FLOWS)) for f in range(NUM_FLOWS)]
            whole = sum(count == want for count, want in zip(counts, per_flow))  # noqa: B905 - Python 3.9
            own = self.steered.get(path, path)
            route = self.routes[own]
            lost_here = route.dropped() - self.drops_before[own] if route else 0
            out.append([src, path, len(flows), len(numbers) - len(flows), whole, counts.count(0), lost_here])
        return out

    def send_errors(self) -> list[list[Any]]:
        """Peers this node's own kernel would not send to."""
        return [[dst, path, o.error] for (dst, path), o in sorted(self.outgoing.items()) if o.error]

    # ---- rates and round trips ---------------------------------------------------------------------------------------

    def ping(self, dst: int, path: int) -> None:
        """Ask a peer for one more round trip."""
        state, route = self.pings[dst, path], self.route(path)
        assert route is not None
        state.asked_at = now_ns()
        ping(route, self.target(dst, path), (self.run, self.step, self.me, dst), state.left, path)

    def on_pong(self, src: int, path: int, number: int) -> None:
        """A round trip is complete."""
        state = self.pings.get((src, path))
        if state and state.left and state.left == number:
            took_ns = now_ns() - state.asked_at
            state.best_ns = min(state.best_ns or took_ns, took_ns)
            state.left -= 1
            if state.left:
                self.ping(src, path)
            else:
                self.send_speed(src, path)

    def send_speed(self, dst: int, path: int) -> None:
        """Round trips are known, or given up: now the stream."""
        self.pings[dst, path].left = 0
        out = self.send(dst, path, SPEED_BATCH, 0)
        out.due = self.begun_at + HOLD_NS
        if out.full:
            num = 1 if self.is_closed(dst, path) else -(-self.order["bytes"] // out.full)
            out.packets = [(SPEED, i) for i in range(num)]

    def speed_task(self) -> None:
        """The same for streams."""
        now = now_ns()
        for (dst, path), state in self.pings.items():
            if state.left and now - state.asked_at > PING_NS:  # an answer that is lost is not waited for
                self.send_speed(dst, path)
        for out in self.outgoing.values():
            if now - out.began > self.order["budget_ms"] * 1_000_000:
                out.cut()
        if any(p.left for p in self.pings.values()) or not all(o.is_done for o in self.outgoing.values()):
            return
        whole = all((got := self.came(key)) and got.size >= num for key, num in self.expected.items())
        if whole or self.is_over_with_waiting():
            self.say(rates=[[*key, *self.rate(key)] for key in sorted(self.expected)], sent_to=self.sent_to(),
                     errors=self.send_errors())  # fmt: skip
            self.task = None
        elif not self.has_said_sent:
            self.has_said_sent = True
            self.say(sent=True)

    def rate(self, key: tuple[int, int]) -> tuple[int, int]:
        """How fast a stream came in, and how much of it."""
        got = self.came(key)
        return rate_of(got.stream if got else (), self.order["skip"], self.order["window"])

    def sent_to(self) -> list[list[int]]:
        """To whom, on which path, the shortest round trip, how often held back by this node's own port."""
        out = []
        for (dst, path), state in sorted(self.pings.items()):
            sent = self.outgoing.get((dst, path))
            out.append([dst, path, state.best_ns, sent.held_back if sent else 0])
        return out

    # ---- connections -------------------------------------------------------------------------------------------------

    def connect_to(self, targets: list[int], wait_s: float) -> None:
        """Carry a message to each peer over a connection, a few at a time."""
        errors: list[list[Any]] = []

        def one(dst: int) -> None:
            if self.is_closed(dst, 0):
                errors.append([dst, "EADDRNOTAVAIL"])
                return
            try:
                place = (self.addresses[dst][0], self.peers[dst][-1])
                with socket.create_connection(place, wait_s, (self.addresses[self.me][0], 0)) as sock:
                    sock.sendall(bytes(TCP_BYTES))
                    sock.shutdown(socket.SHUT_WR)
                    if sock.recv(16) != b"%d" % TCP_BYTES:
                        errors.append([dst, "EPROTO"])
            except OSError as error:
                errors.append([dst, errno.errorcode.get(error.errno or 0, "ETIMEDOUT")])

        for i in range(0, len(targets), TCP_AT_ONCE):
            threads = [threading.Thread(target=one, args=(dst,), daemon=True) for dst in targets[i : i + TCP_AT_ONCE]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.say(errors=sorted(errors), ok=len(targets) - len(errors))


def burst_of(small: int, full: int) -> list[tuple[int, int]]:
    """(kind, number) of each packet of a burst: full-size packets evenly among the small ones."""
    every = max(1, small // max(1, full))
    packets = []
    for i in range(small):
        packets.append((SMALL, i))
        if i % every == every - 1 and i // every < full:
            packets.append((FULL, i // every))
    return packets


if __name__ == "__main__":
    Agent().serve()
