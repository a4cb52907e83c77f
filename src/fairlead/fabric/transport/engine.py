"""What a context does, without its thread and clock: datagrams to queue pairs, queue pairs' datagrams to ports, timers.

All rules are the core's. Here is what a driver has to know beside them:

    whose packet       (port it came by, address, source port) -> the peer of an exchange; anything else is counted
    which way          entropy value -> route: the address to send to, the socket, the flow label
    no room            what a port did not take waits; no other packet of that port is made meanwhile
    batches            with segmentation offload: packets one after the other that go the same way go as one
    fairness           a queue pair sends so many packets, then the next one

An engine is driven by one thread at a time: by `context.py`, or by a test with a network and a clock of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairlead.errors import FabricError, RemoteProtocolError
from fairlead.fabric.mrc.completion import CompletionQueue, QpFailed
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.packets import Path
from fairlead.fabric.mrc.qp import QueuePair
from fairlead.fabric.mrc.verbs import QpState
from fairlead.fabric.transport import batches
from fairlead.fabric.transport.lanes import Route
from fairlead.fabric.transport.ports import Arrival, Buffer, Outgoing, Ports
from fairlead.fabric.transport.seal import Seal, Seals

BURST = 16
"""Packets of one queue pair before others have their turn, and before the clock is read again."""
DRIVER_MBPS = 2_000
"""What this engine can hope to send in packets of 4 KB; where the ports could do more, windows are reckoned from it."""
GSO_BURST = 64
"""The same where packets go in batches."""
READ_BURST = 64
"""Datagrams of one port before others have their turn."""

COUNTED = ("received", "marked", "foreign", "unauthentic", "sent", "held", "lost_locally")
"""Names of an engine's counters of datagrams; each is there from the beginning."""


class Source(NamedTuple):
    """Where a datagram came from."""

    rail: int
    host: str
    port: int


@dataclass(slots=True, eq=False)
class Peer:
    """The context at the other end, with what its packets are checked by."""

    id: str
    planes: dict[Source, int]
    """Each place it sends from -> the plane, by number as its queue pairs count."""
    rails: dict[int, int]
    """Plane -> port here."""
    sending: Seal | None = None
    receiving: Seal | None = None
    lines: dict[Line, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Line:
    """A queue pair with the ways its packets go."""

    qp: QueuePair
    peer: Peer
    routes: dict[int, Route]
    ports: tuple[int, ...]
    """UDP port of the peer to send to, by plane."""
    error: FabricError | None = None
    sent: Counter[Route] = field(default_factory=Counter)
    """Packets by route; `Engine.sent` has all."""


class Engine:
    """Queue pairs over ports."""

    def __init__(self, device: Device, ports: Ports, num_rails: int, *, gso: bool = False) -> None:
        self.device = device
        self.ports = ports
        self.num_rails = num_rails
        self.lines: dict[Line, None] = {}  # in the order in which they were added, as those of a peer
        self.up = (1 << num_rails) - 1
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self.seals = Seals()
        self._by_qp: dict[QueuePair, Line] = {}
        self._by_source: dict[Source, Peer] = {}
        self._held: dict[int, deque[Outgoing]] = {}
        self._ready: dict[Line, None] = {}  # in the order of their turns
        self._batch: deque[Outgoing] | None = deque() if gso else None  # packets that may go as one; None: each alone
        self.burst = GSO_BURST if gso else BURST
        self.driver_mbps = DRIVER_MBPS

    # --- who is there ------------------------------------------------------------------------------------------------

    def peer(self, made: Peer) -> Peer:
        """The peer as it is known already, or this one. A new process at an old place takes the place over."""
        for known in {id(p): p for p in self._by_source.values()}.values():
            if known.id == made.id:
                return known
        for source in made.planes:
            old = self._by_source.get(source)
            if old is not None:
                for line in list(old.lines):
                    self.fail(
                        line,
                        RemoteProtocolError(
                            "fabric/peer-gone",
                            "another process has taken the place of the other end",
                            hint="see why it was started anew",
                        ),
                    )
            self._by_source[source] = made
        return made

    def create_qp(self, peer: Peer, send_cq: CompletionQueue, recv_cq: CompletionQueue, **options: Any) -> QueuePair:
        """A queue pair with this peer, in the form that this engine drives best."""
        return self.device.create_qp(send_cq, recv_cq, **options)

    def add(self, line: Line, now: int) -> None:
        """A queue pair that has been led to RTS begins."""
        self.lines[line] = line.peer.lines[line] = None
        self._by_qp[line.qp] = line
        self.device.join(line.qp, line.peer.id)
        if self.up != (1 << self.num_rails) - 1:
            line.qp.set_ports(now, self._planes_up(line))
        self.wake(line)

    def remove(self, line: Line) -> None:
        """Forget a queue pair, and its peer if that was the last."""
        line.qp.close()
        self.lines.pop(line, None)
        self._by_qp.pop(line.qp, None)
        self._ready.pop(line, None)
        self.device.leave(line.qp, line.peer.id)
        line.peer.lines.pop(line, None)
        if not line.peer.lines:
            for source in line.peer.planes:
                if self._by_source.get(source) is line.peer:
                    del self._by_source[source]

    def fail(self, line: Line, error: FabricError) -> None:
        """End a queue pair for a reason that the protocol does not know."""
        if line.qp.state is not QpState.ERR:
            line.error = line.error or error
            line.qp.modify(QpState.ERR)

    def sent(self, line: Line) -> Counter[Route]:
        """Packets of a queue pair by route."""
        return line.sent

    def wake(self, line: Line) -> None:
        """The queue pair may have something to send."""
        self._ready[line] = None

    # --- packets in --------------------------------------------------------------------------------------------------

    def read_all(self, rails: Sequence[int], now: int) -> tuple[bool, int]:
        """Take in what came by these ports; whether more may be waiting, and what time the law was told last."""
        has_more = False
        for rail in rails:
            has_more |= self.read(rail, now)
        return has_more, now

    def read(self, rail: int, now: int) -> bool:
        """Take in what came by a port; True if more may be waiting."""
        for _ in range(READ_BURST):
            arrival = self.ports.receive(rail)
            if arrival is None:
                return False
            self._take(arrival, now)
        return True

    def _take(self, arrival: Arrival, now: int, *, is_open: bool = False) -> None:
        """Take in a datagram; `is_open`: its seal has been checked and taken off."""
        path = arrival.path
        source = Source(path.plane, arrival.host, path.source_port)
        peer = self._by_source.get(source)
        if peer is None:
            self.counts["foreign"] += 1
            return
        data = arrival.data
        if peer.receiving is not None and not is_open:
            opened = peer.receiving.open(data)
            if opened is None:
                self.counts["unauthentic"] += 1
                return
            data = opened
        self.counts["received"] += 1
        self.counts["marked"] += path.is_marked
        seen = Path(path.ev, peer.planes[source], path.dscp, path.is_marked)
        for qp in self.device.receive(data, seen, peer.id, now):
            self.wake(self._by_qp[qp])

    # --- packets out -------------------------------------------------------------------------------------------------

    def send(self, now: int) -> bool:
        """One turn for each queue pair that may send; True if some have more."""
        for line in list(self._ready):
            has_more = self._burst(line, now)
            self._flush_batch()
            if has_more:
                self._ready[line] = self._ready.pop(line)
            else:
                self._ready.pop(line, None)
            self.events(line)
        return any(self._free(line) for line in self._ready)

    def _burst(self, line: Line, now: int) -> bool:
        """Send some packets of a queue pair; True if there may be more."""
        budget = self.burst
        while free := self._free(line):
            for datagram in line.qp.transmit(now, free):
                path = datagram.path
                route = line.routes[path.ev]
                parts: Sequence[Buffer] = datagram.parts
                if line.peer.sending is not None:
                    parts = (*parts, line.peer.sending.close(parts))
                line.sent[route] += 1
                budget -= 1
                if not self._put(Outgoing(route, (route.to, line.ports[path.plane]), path.dscp, parts)):
                    break  # with fewer ports free the core decides anew
                if budget <= 0:
                    return True
            else:
                return False
        return bool(self._held)

    def _put(self, packet: Outgoing) -> bool:
        """Send a packet, or have it wait for those that may go with it; False if there was no room."""
        if self._batch is None:
            return self._send([packet])
        self._batch.append(packet)
        return True

    def _flush_batch(self) -> None:
        """Send what waits for company."""
        while self._batch:
            self._send([self._batch.popleft() for _ in _together(self._batch)])

    def _send(self, packets: Sequence[Outgoing]) -> bool:
        """Send a packet, or a batch; it waits if there is no room."""
        if self._try(packets):
            return True
        self._held.setdefault(packets[0].route.rail, deque()).extend(packets)
        self.counts["held"] += len(packets)
        return False

    def _try(self, packets: Sequence[Outgoing]) -> bool:
        route, to, dscp, parts = packets[0]
        if len(packets) > 1:
            went = self.ports.send_batch(packets, sum(map(len, parts)))
        else:
            went = self.ports.send(route.rail, route.source, to, route.label, dscp, parts)
        self.counts["sent"] += len(packets) if went else 0
        return went

    def _free(self, line: Line) -> int:
        free = 0
        for plane, rail in line.peer.rails.items():
            if rail not in self._held:
                free |= 1 << plane
        return free

    @property
    def blocked(self) -> dict[int, int]:
        """Ports that have no room, and the socket of each that a packet waits for."""
        return {rail: queue[0].route.source for rail, queue in self._held.items()}

    def writable(self, rail: int) -> None:
        """A port has room again."""
        queue = self._held.get(rail)
        while queue:
            packets = _together(queue) if self._batch is not None else [queue[0]]
            if not self._try(packets):
                return
            for _ in packets:
                queue.popleft()
        self._held.pop(rail, None)
        for line in self.lines:
            self.wake(line)

    # --- time and faults ---------------------------------------------------------------------------------------------

    def next_timer(self) -> int | None:
        """When `on_timers` has work; None: not before something else happens."""
        times = [t for line in self.lines if (t := line.qp.next_timer_ns()) is not None]
        return min(times, default=None)

    def on_timers(self, now: int) -> None:
        """Run the timers that are due."""
        for line in self.lines:
            due = line.qp.next_timer_ns()
            if due is not None and due <= now:
                line.qp.on_timer(now)
                self.wake(line)

    def set_ports(self, up: int, now: int) -> None:
        """Ports (bit set by rail) that are up have changed."""
        if up == self.up:
            return
        self.up = up
        for rail in list(self._held):
            if not up >> rail & 1:
                self.counts["lost_locally"] += len(self._held.pop(rail))
        for line in list(self.lines):
            line.qp.set_ports(now, self._planes_up(line))
            self.wake(line)
            self.events(line)

    def _planes_up(self, line: Line) -> int:
        return sum(1 << plane for plane, rail in line.peer.rails.items() if self.up >> rail & 1)

    def events(self, line: Line) -> None:
        """Note why a queue pair has failed, if it has."""
        while (event := line.qp.poll_event()) is not None:
            assert isinstance(event, QpFailed)
            line.error = line.error or event.error


def _together(queue: Sequence[Outgoing] | deque[Outgoing]) -> list[Outgoing]:
    """The packets at the head of a queue that may go as one; at least the first."""
    out: list[Outgoing] = []
    first = last = 0
    for packet in queue:
        size = sum(map(len, packet.parts))
        if out and (packet[:3] != out[0][:3] or not batches.fits(first, last, len(out), size)):
            break
        first, last = first or size, size
        out.append(packet)
    return out
