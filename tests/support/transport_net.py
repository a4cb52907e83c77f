"""Two engines of the transport on a network of a test: virtual time, real packets, faults drawn from a seed.

What a datagram meets: it is lost, doubled, delayed (which reorders), has bits turned, is cut short, or comes once more
under a stranger's address; a plane or single paths may lose everything for a time, and an end may stand still."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from fairlead.fabric.mrc.completion import Completion, CompletionQueue
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.headers import Dialect
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.packets import Path
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.transport import lanes
from fairlead.fabric.transport.engine import READ_BURST, Engine, Line
from fairlead.fabric.transport.exchange import Offer
from fairlead.fabric.transport.fast import layout as at
from fairlead.fabric.transport.meeting import line_of, meet
from fairlead.fabric.transport.ports import Arrival
from fairlead.records.addressbook import Place, Port

TOKEN = b"sixteen bytes or more"
RTT_NS = 1_000_000
STRANGER = "2001:db8::bad"


@dataclass
class Faults:
    """Shares of datagrams."""

    loss: float = 0.0
    double: float = 0.0
    corrupt: float = 0.0
    cut: float = 0.0
    stranger: float = 0.0
    jitter_ns: int = 0
    full: float = 0.0  # the socket has no room
    dead_from_ns: dict[int, int] = field(default_factory=dict)  # plane -> since when it loses everything
    dead: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(plane, bits of the source ports, from ns, until ns): paths that lose everything meanwhile."""
    still: list[tuple[str, int, int]] = field(default_factory=list)
    """("a" or "b", from ns, until ns): an end that does nothing meanwhile; what comes waits in its sockets."""


class Net:
    """Arrivals to come, for both ends."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.random = random.Random(seed)
        self.now = 1_000_000_000
        self.queue: list[tuple[int, int, NetPorts, Arrival]] = []
        self.count = itertools.count()
        self.at: dict[str, NetPorts] = {}
        self.log: list[tuple[object, ...]] = []  # every datagram as it was sent

    def carry(self, to: str, arrival: Arrival) -> None:
        faults, chance = self.faults, self.random.random
        data = bytes(arrival.data)
        self.log.append((self.now, arrival.host, to, arrival.path, data))
        if faults.dead_from_ns.get(arrival.path.plane, self.now + 1) <= self.now or chance() < faults.loss:
            return
        way = 1 << (arrival.path.source_port & 7)
        if any(p == arrival.path.plane and way & bits and a <= self.now < z for p, bits, a, z in faults.dead):
            return
        if chance() < faults.corrupt:
            bad = bytearray(data)
            for _ in range(self.random.randint(1, 4)):
                bad[self.random.randrange(len(bad))] ^= 1 << self.random.randrange(8)
            data = bytes(bad)
        if chance() < faults.cut:
            data = data[: self.random.randrange(len(data))]
        copies = [(arrival.host, data)] * (2 if chance() < faults.double else 1)
        if chance() < faults.stranger:
            copies.append((STRANGER, data))
        for host, body in copies:
            due = self.due(to, arrival.path, body)
            if due is not None:
                entry = (due, next(self.count), self.at[to], Arrival(memoryview(body), host, arrival.path))
                heapq.heappush(self.queue, entry)

    def due(self, to: str, path: Path, data: bytes) -> int | None:
        """When a datagram arrives; None where a queue has no room for it. These links have no rate."""
        return self.now + 50_000 + int(self.random.random() * self.faults.jitter_ns)


class NetPorts:
    """What an engine sends and receives by."""

    def __init__(self, net: Net, addresses: Sequence[str], numbers: Sequence[Sequence[int]]) -> None:
        self.net, self.addresses, self.numbers = net, addresses, numbers
        self.come: list[list[Arrival]] = [[] for _ in addresses]
        self.engine: Engine
        net.at |= dict.fromkeys(addresses, self)

    def send(self, rail, source, to, label, dscp, parts) -> bool:  # noqa: PLR0917 - as Ports has it
        if self.net.random.random() < self.net.faults.full:
            return False
        path = Path(self.numbers[rail][source] << 16 | label, rail, dscp)
        self.net.carry(to[0], Arrival(memoryview(b"".join(parts)), self.addresses[rail], path))
        return True

    def receive(self, rail: int) -> Arrival | None:
        return self.come[rail].pop(0) if self.come[rail] else None

    # the same for letters

    goes_round = False

    def post(self, sheets) -> list[int]:
        held = []
        for i in range(sheets.desk.num_out):
            packet = self.engine.packet(i)
            route = packet.route
            if not self.send(route.rail, route.source, packet.to, route.label, packet.dscp, packet.parts):
                held.append(i)
        return held

    def collect(self, sheets, rail: int) -> int:
        num = 0
        while num < READ_BURST and (arrival := self.receive(rail)) is not None:
            sheets.put(num, arrival)
            num += 1
        return sheets.sort(num, rail, steered=True)

    def fd(self, rail: int, source: int) -> int:
        return -1

    def aim(self, rail: int, source: int, to: str, port: int) -> bool:
        return False

    def release(self, rail: int, source: int) -> None:
        raise AssertionError


class RoundPorts(NetPorts):
    """The same for rounds, in which compiled code sends and receives by itself: it is given other system calls."""

    goes_round = True

    def go(self, sheets, budget: int, until: int) -> int:
        def sendmmsg(fd: int, hdrs: int, count: int, flags: int) -> int:
            if hdrs == sheets.words[at.X_OUT_HDRS]:  # the first call of several, one a socket: all, in their order
                assert self.post(sheets) == []
            return count

        def recvmmsg(rail: int, hdrs: int, count: int, flags: int, timeout: int) -> int:
            num = 0
            while num < count and (arrival := self.receive(rail)) is not None:
                sheets.put(num, arrival)
                num += 1
            return num

        def clock(which: int, to: int) -> int:
            ctypes.memmove(to, struct.pack("=qq", *divmod(self.net.now, 10**9)), 16)
            return 0

        calls = {at.X_SENDMMSG: sendmmsg, at.X_RECVMMSG: recvmmsg, at.X_CLOCK: clock}
        kept = []
        for place, call in calls.items():
            kind = ctypes.CFUNCTYPE(*[ctypes.c_longlong] * (1 + call.__code__.co_argcount))
            kept.append(kind(call))
            sheets.words[place] = ctypes.cast(kept[-1], ctypes.c_void_p).value
        return sheets.go(range(len(self.addresses)), steered=True, budget=budget, until=self.net.now)


class End:
    """One engine with some queue pairs, of which the first is `line`."""

    def __init__(
        self,
        net: Net,
        name: int,
        planes: int,
        mtu: int,
        *,
        sealed: bool,
        icrc: bool,
        kind: type[Engine],
        burst: int,
        rounds: bool,
        qps: int = 1,
    ) -> None:
        self.addresses = [f"2001:db8:{name}:{plane + 1:x}::1" for plane in range(planes)]
        numbers = tuple(tuple(range(40_000 + 100 * plane, 40_008 + 100 * plane)) for plane in range(planes))
        self.ports = (RoundPorts if rounds and kind is not Engine else NetPorts)(net, self.addresses, numbers)
        chance = random.Random(name)
        dialect = Dialect(icrc=Icrc.PACKET if icrc else Icrc.NONE)
        device = Device(Profile.software(RTT_NS), iter(lambda: chance.getrandbits(32), None), dialect=dialect)
        self.engine = self.ports.engine = kind(device, self.ports, planes)
        if burst:
            self.engine.burst = burst
        self.sends, self.receives = CompletionQueue(4096), CompletionQueue(4096)
        self.done: list[Completion] = []
        self.got: list[Completion] = []
        self.lines: list[Line]
        self.line: Line
        self.offer = Offer(
            context=f"{name:032x}",
            place=Place(ports=tuple(Port(rail=f"plane {i}", address=a) for i, a in enumerate(self.addresses))),
            ports=numbers,
            qp_num=min(device.new_qp_num() for _ in range(qps)),
            psn=(1 << 24) - 5 + name & 0xFFFFFF,  # wraps soon
            mtu=mtu,
            mpr=8,
            wimm=64,
            sealed=sealed,
            icrc=icrc,
        )
        self.qps = qps

    def offers(self) -> list[Offer]:
        """Of each queue pair."""
        one = self.offer
        return [
            msgspec.structs.replace(one, qp_num=one.qp_num + i, psn=one.psn + 1000 * i & 0xFFFFFF)
            for i in range(self.qps)
        ]

    def join(self, other: End, now: int, **changes: object) -> None:
        self.lines = []
        for mine, theirs in zip(self.offers(), other.offers(), strict=True):
            met = meet(mine, theirs)
            profile = lanes.profile(met.lanes, mtu=met.mtu, rtt_ns=RTT_NS, driver_mbps=2_000, **changes)
            self.lines.append(line_of(self.engine, met, profile, TOKEN, self.sends, self.receives))
            self.engine.add(self.lines[-1], now)
        self.line = self.lines[0]


class Pair:
    """Two ends and their network."""

    kind_of_net = Net

    def __init__(
        self,
        faults: Faults,
        *,
        seed: int = 1,
        planes: int = 2,
        mtu: int = 512,
        sealed: bool = False,
        icrc: bool = True,
        kind: type[Engine] = Engine,
        burst: int = 0,
        rounds: bool = False,
        qps: int = 1,
        **changes: object,
    ) -> None:
        """With `rounds` an end that is awake reads and sends in turns, until there is nothing more."""
        self.net = self.kind_of_net(faults, seed)
        self.rounds = rounds
        self.a, self.b = (
            End(self.net, name, planes, mtu, sealed=sealed, icrc=icrc, kind=kind, burst=burst, rounds=rounds, qps=qps)
            for name in (1, 2)
        )
        self.a.join(self.b, self.net.now, **changes)
        self.b.join(self.a, self.net.now, **changes)

    def turn(self) -> bool:
        """Go to the next arrival or timer; False if nothing will ever happen."""
        net = self.net
        awake = self._awake()
        for end in awake:
            while end.engine.send(net.now):
                pass
            end.done += end.sends.poll(4096)
            end.got += end.receives.poll(4096)
        times = [t for end in awake if (t := end.engine.next_timer()) is not None]
        times += [net.queue[0][0]] if net.queue else []
        times += [net.now + 10_000] if any(end.engine.blocked for end in awake) else []
        times += [until for _, since, until in net.faults.still if since <= net.now < until]
        if not times:
            return False
        net.now = max(net.now, min(times))
        while net.queue and net.queue[0][0] <= net.now:
            _, _, ports, arrival = heapq.heappop(net.queue)
            ports.come[arrival.path.plane].append(replace(arrival))
        for end in self._awake():
            for rail in end.engine.blocked:
                end.engine.writable(rail)
            if self.rounds:
                self._rounds(end.engine)
            else:
                for rail in range(end.engine.num_rails):
                    while end.engine.read(rail, net.now):
                        pass
            end.engine.on_timers(net.now)
        return True

    def _rounds(self, engine: Engine) -> None:
        has_more = True
        while has_more:
            has_more, now = engine.read_all(range(engine.num_rails), self.net.now)
            assert now == self.net.now
            has_more |= engine.send(self.net.now)

    def _awake(self) -> list[End]:
        still, now = self.net.faults.still, self.net.now
        stopped = {name for name, since, until in still if since <= now < until}
        return [end for name, end in (("a", self.a), ("b", self.b)) if name not in stopped]

    def run(self, done: Callable[[], bool], *, for_ns: int, turns: int = 200_000) -> bool:
        """Run until `done`; False if the time, or the number of turns, was over first."""
        end = self.net.now + for_ns
        for _ in range(turns):
            if done():
                return True
            if self.net.now > end or not self.turn():
                break
        return done()
