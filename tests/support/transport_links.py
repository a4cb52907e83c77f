"""Many ends of the transport in virtual time, over links that are shaped as a lab's: token buckets with a queue each.

A host has a port in each plane. A datagram waits for the port it leaves by, then for the switch port before the host it
goes to; all that goes to one host shares that last queue. Nothing marks and nothing is lost but by a full queue; where
switches trim, a data packet that finds more than so many bytes there loses its payload and goes ahead of the others."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fairlead.fabric.mrc.headers import Dscp
from fairlead.fabric.mrc.packets import WRITES
from fairlead.fabric.transport.engine import Engine
from fairlead.fabric.transport.ports import Arrival
from support.transport_net import End, Faults, Net

WIRE_BYTES = 14 + 40 + 8
"""Ethernet, IPv6 and UDP of a datagram."""
KEPT = 64
"""Bytes of a trimmed datagram, as the lab's switches leave."""
MAY_TRIM = (Dscp.TRIMMABLE, Dscp.TRIMMABLE_RETX)
PAYLOAD = 4096
DELAY_NS = 100_000
MESSAGE, DEPTH = 1 << 16, 8


@dataclass
class Port:
    """A token bucket and the queue before it; sizes in bytes, as `burst_kib` and `buffer_kib` of a lab."""

    rate_bps: float
    burst: int = 32 << 10
    limit: int = 256 << 10
    trim: int = 0
    """Queue beyond which packets are trimmed; 0: never."""
    free_ns: float = 0.0
    dropped: int = 0
    trimmed: int = 0
    deepest: int = 0

    def waits(self, now: int) -> int:
        """Bytes in the queue."""
        return int(max(self.free_ns - now, 0) * self.rate_bps / 8e9)

    def ahead(self, now: int) -> int:
        """When a packet that is trimmed now has left; it takes room, but waits for the one under way at most."""
        self.trimmed += 1
        took = 8e9 * (KEPT + WIRE_BYTES) / self.rate_bps
        self.free_ns = max(self.free_ns, now) + took
        return now + int(took)

    def leave(self, now: int, size: int) -> int | None:
        """When a datagram that comes now has left; None: there is no room for it."""
        waits = self.waits(now)
        if waits + size > self.limit:
            self.dropped += 1
            return None
        self.deepest = max(self.deepest, waits + size)
        self.free_ns = max(self.free_ns, now - 8e9 * self.burst / self.rate_bps) + 8e9 * size / self.rate_bps
        return max(now, int(self.free_ns))


@dataclass
class Host:
    """Its ports into the fabric, and the switches' ports before it; one a plane."""

    out: list[Port]
    into: list[Port]


class Links(Net):
    """Two queues on each way: out of one host, into the other."""

    def __init__(self, seed: int) -> None:
        super().__init__(Faults(), seed)
        self.hosts: dict[str, Host] = {}
        self.hops: list[tuple[int, int, str, Arrival]] = []

    def carry(self, to: str, arrival: Arrival) -> None:
        left = self.hosts[arrival.host].out[arrival.path.plane].leave(self.now, len(arrival.data) + WIRE_BYTES)
        if left is not None:
            kept = Arrival(memoryview(bytes(arrival.data)), arrival.host, arrival.path)
            heapq.heappush(self.hops, (left + DELAY_NS // 2, next(self.count), to, kept))

    def hop(self) -> None:
        """Let the next datagram into the queue before the host it goes to."""
        now, _, to, arrival = heapq.heappop(self.hops)
        port, size = self.hosts[to].into[arrival.path.plane], len(arrival.data) + WIRE_BYTES
        if port.trim and arrival.path.dscp in MAY_TRIM and port.waits(now) + size > port.trim:
            left: int | None = port.ahead(now)
            cut = replace(arrival.path, dscp=Dscp.TRIMMED_LASTHOP)
            arrival = replace(arrival, data=arrival.data[:KEPT], path=cut)
        else:
            left = port.leave(now, size)
        if left is not None:
            heapq.heappush(self.queue, (left + DELAY_NS // 2, next(self.count), self.at[to], arrival))


@dataclass(eq=False)
class Flow:
    """One writer, the end it writes to, and the packets that came there."""

    writer: End
    reader: End
    posted: int = 0
    came: set[int] = field(default_factory=set)

    def word(self, field: str) -> int:
        """A word of the requestor's row (rows.py)."""
        return getattr(self.writer.line.qp.tx, field)


class Flows:
    """A flow for each pair of host numbers (writer, reader); each begins at a drawn moment and never ends."""

    def __init__(
        self,
        pairs: Sequence[tuple[int, int]],
        *,
        planes: int,
        rate_mbps: int,
        within_ns: int,
        seed: int = 1,
        trim: int = 0,
        **changes: object,
    ) -> None:
        """`within_ns`: when the last has begun; `trim`: bytes of queue beyond which switches trim, 0 for never."""
        self.net = Links(seed)
        chance = random.Random(seed)
        numbers = itertools.chain.from_iterable(pairs)
        shaped = range(planes)
        self.hosts = {
            n: Host([Port(1e6 * rate_mbps) for _ in shaped], [Port(1e6 * rate_mbps, trim=trim) for _ in shaped])
            for n in dict.fromkeys(numbers)
        }
        options = {"rate_mbps": rate_mbps * planes, "trim": bool(trim)} | changes
        self.flows: list[Flow] = []
        self._waiting: list[tuple[int, int, Flow]] = []
        self._timers: list[tuple[int, int, End]] = []
        self._of: dict[int, tuple[End, Flow]] = {}
        for i, (one, other) in enumerate(pairs):
            ends = [
                End(self.net, name, planes, PAYLOAD, sealed=False, icrc=True, kind=Engine, burst=0, rounds=False)
                for name in (2 * i + 1, 2 * i + 2)
            ]
            flow = Flow(*ends)
            for end, peer, number in zip(ends, reversed(ends), (one, other), strict=True):
                self.net.hosts |= dict.fromkeys(end.addresses, self.hosts[number])
                end.join(peer, self.net.now, **options)
                self._of[id(end.ports)] = end, flow
            self.flows.append(flow)
            self._waiting.append((self.net.now + chance.randrange(within_ns), i, flow))
        heapq.heapify(self._waiting)
        self._region = {f: f.reader.engine.device.domain.register(bytearray(MESSAGE)) for f in self.flows}
        self._data = bytes(MESSAGE)

    def run(self, for_ns: int) -> list[float]:
        """Mb/s of new payload that came of each flow in that time."""
        end_ns = self.net.now + for_ns
        before = [len(flow.came) for flow in self.flows]
        while (now := self._next()) < end_ns:
            self.net.now = max(self.net.now, now)
            self._turn()
        self.net.now = end_ns
        return [8e3 * PAYLOAD * (len(f.came) - b) / for_ns for f, b in zip(self.flows, before, strict=True)]

    def _next(self) -> int:
        return min(q[0][0] for q in (self._waiting, self.net.hops, self.net.queue, self._timers) if q)

    def _turn(self) -> None:
        """All that is due, and what the ends it concerns make of it."""
        net, awake = self.net, dict[int, tuple[End, Flow]]()
        while self._waiting and self._waiting[0][0] <= net.now:
            flow = heapq.heappop(self._waiting)[2]
            awake[id(flow.writer.ports)] = flow.writer, flow
        while net.hops and net.hops[0][0] <= net.now:
            net.hop()
        while net.queue and net.queue[0][0] <= net.now:
            _, _, ports, arrival = heapq.heappop(net.queue)
            ports.come[arrival.path.plane].append(arrival)
            end, flow = awake[id(ports)] = self._of[id(ports)]
            if end is flow.reader and arrival.data[0] in WRITES and len(arrival.data) > KEPT:
                flow.came.add(int.from_bytes(arrival.data[9:12], "big"))
        while self._timers and self._timers[0][0] <= net.now:
            end = heapq.heappop(self._timers)[2]
            awake[id(end.ports)] = self._of[id(end.ports)]
        for end, flow in awake.values():
            self._serve(end, flow)

    def _serve(self, end: End, flow: Flow) -> None:
        engine, now = end.engine, self.net.now
        for rail in range(engine.num_rails):
            while engine.read(rail, now):
                pass
        engine.on_timers(now)
        if end is flow.writer:
            self._post(flow)
        while engine.send(now):
            pass
        due = engine.next_timer()
        if due is not None:
            heapq.heappush(self._timers, (max(due, now + 1), next(self.net.count), end))

    def _post(self, flow: Flow) -> None:
        end, region = flow.writer, self._region[flow]
        end.done += end.sends.poll(4096)
        while flow.posted - len(end.done) < DEPTH:
            end.line.qp.post_write(self._data, wr_id=flow.posted, remote_addr=region.addr, rkey=region.rkey)
            end.engine.wake(end.line)
            flow.posted += 1


def counted(flows: Sequence[Flow], field: str) -> int:
    """A counter of requestors, all together (Requestor.num_*)."""
    return sum(flow.word(field) for flow in flows)


def usual_delay_ms(flows: Sequence[Flow]) -> float:
    """The queueing delay that requestors reckon with, their mean."""
    return counted(flows, "avg_delay") / len(flows) / (1 << 10) / 1e6


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 where all are equal, 1/n where one has everything."""
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))
