"""Two queue pairs, a virtual clock and a link that misbehaves as told.

The harness is a driver like any other: it calls the six verbs and nothing else. Every datagram that a queue pair
transmits is judged by a `Link` (lost, doubled, marked, trimmed, delayed) and arrives later; `run` jumps from one
arrival or timer to the next."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fairlead.fabric.mrc import headers
from fairlead.fabric.mrc.completion import Completion, CompletionQueue, QpFailed
from fairlead.fabric.mrc.headers import Bth, Dscp, Meth, Opcode, Reth, Tseth
from fairlead.fabric.mrc.memory import MemoryRegion, ProtectionDomain
from fairlead.fabric.mrc.packets import Datagram
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.qp import QueuePair
from fairlead.fabric.mrc.verbs import QpState

HEADERS_WITH_IMM = Bth.SIZE + Meth.SIZE + Tseth.SIZE + Reth.SIZE + 4
TRIMMABLE = (Dscp.TRIMMABLE, Dscp.TRIMMABLE_RETX)


@dataclass
class Link:
    """One direction of the network: what happens to datagrams, drawn from a seeded stream."""

    seed: int = 0
    delay_ns: int = 5_000
    jitter_ns: int = 0  # each datagram is delayed by up to so much more, which reorders
    loss: float = 0.0
    double: float = 0.0
    mark: float = 0.0
    trim: float = 0.0
    last_hop: float = 0.0  # share of trims that happen at the last hop
    dead_planes: set[int] = field(default_factory=set)
    dead_evs: set[int] = field(default_factory=set)
    drop_next: int = 0  # lose so many datagrams for certain
    largest: int = 1 << 16  # bytes of a datagram that still pass: an MTU that nobody tells of
    tap: Callable[[Datagram], None] | None = None
    num_lost: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def carry(self, datagram: Datagram) -> list[tuple[int, Datagram]]:
        """What arrives of a datagram: delays and datagrams."""
        if self.tap is not None:
            self.tap(datagram)
        chance = self.random.random
        path = datagram.path
        dead = path.plane in self.dead_planes or path.ev in self.dead_evs
        dead |= len(datagram.data) > self.largest
        if dead or self.drop_next or chance() < self.loss:
            self.drop_next = max(self.drop_next - 1, 0)
            self.num_lost += 1
            return []
        if path.dscp in TRIMMABLE and chance() < self.trim:
            dscp = Dscp.TRIMMED_LASTHOP if chance() < self.last_hop else Dscp.TRIMMED
            datagram = Datagram(datagram.data[:HEADERS_WITH_IMM], replace(path, dscp=dscp))
        elif path.dscp != Dscp.CONTROL and chance() < self.mark:
            datagram = Datagram(datagram.data, replace(path, is_marked=True))
        copies = 2 if chance() < self.double else 1
        return [(self.delay_ns + int(chance() * self.jitter_ns), datagram) for _ in range(copies)]


@dataclass
class End:
    """One side: its queue pair, its queues and its memory."""

    qp: QueuePair
    send_cq: CompletionQueue
    recv_cq: CompletionQueue
    domain: ProtectionDomain
    out: Link
    completions: list[Completion] = field(default_factory=list)
    received: list[Completion] = field(default_factory=list)
    events: list[QpFailed] = field(default_factory=list)
    ports: int = 0xFFFFFFFF

    def region(self, num_bytes: int) -> tuple[bytearray, MemoryRegion]:
        """A registered buffer of zeros."""
        buffer = bytearray(num_bytes)
        return buffer, self.domain.register(buffer)


def end(
    profile: Profile,
    qp_num: int,
    seed: int,
    *,
    link: Link | None = None,
    dialect: headers.Dialect = headers.DEFAULT_DIALECT,
    evs: Sequence[int] | None = None,
) -> End:
    """A side with a queue pair in RESET."""
    numbers = random.Random(seed ^ 0xABCDEF)
    domain = ProtectionDomain(iter(lambda: numbers.getrandbits(32), None))
    send_cq, recv_cq = CompletionQueue(4096), CompletionQueue(4096)
    qp = QueuePair(
        qp_num=qp_num,
        profile=profile,
        domain=domain,
        send_cq=send_cq,
        recv_cq=recv_cq,
        seed=seed,
        ev_values=evs,
        dialect=dialect,
    )
    return End(qp, send_cq, recv_cq, domain, link or Link(seed))


class Pair:
    """Two ends joined by two links."""

    def __init__(
        self,
        profile: Profile | None = None,
        *,
        seed: int = 1,
        there: Link | None = None,
        back: Link | None = None,
        psn: tuple[int, int] = (0, 0),
        rts: dict[str, object] | None = None,
        rtr: dict[str, object] | None = None,
        dialect: headers.Dialect = headers.DEFAULT_DIALECT,
        evs: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
    ) -> None:
        profile = profile or Profile.mrc()
        self.now = 1_000_000
        self.a = end(profile, 17, seed, link=there, dialect=dialect, evs=evs[0])
        self.b = end(profile, 29, seed + 1, link=back or Link(seed + 1), dialect=dialect, evs=evs[1])
        self._queue: list[tuple[int, int, End, Datagram]] = []
        self._count = itertools.count()
        for side, peer, mine, theirs in ((self.a, self.b, psn[0], psn[1]), (self.b, self.a, psn[1], psn[0])):
            side.qp.modify(QpState.INIT)
            side.qp.modify(QpState.RTR, dest_qp_num=peer.qp.qp_num, rq_psn=theirs, **(rtr or {}))
            side.qp.modify(QpState.RTS, sq_psn=mine, **(rts or {}))

    def inject(self, to: End, datagram: Datagram, delay_ns: int = 0) -> None:
        """Let a datagram arrive that nobody sent."""
        heapq.heappush(self._queue, (self.now + delay_ns, next(self._count), to, datagram))

    def deliver(self, to: End, datagram: Datagram) -> None:
        """Hand over what has arrived."""
        to.qp.receive(datagram.data, datagram.path, self.now)

    def pump(self) -> None:
        """Send what both ends have to send now."""
        for side, peer in ((self.a, self.b), (self.b, self.a)):
            for datagram in side.qp.transmit(self.now, side.ports):
                for delay, arriving in side.out.carry(datagram):
                    self.inject(peer, arriving, delay)
            side.completions += side.send_cq.poll(4096)
            side.received += side.recv_cq.poll(4096)
            while (event := side.qp.poll_event()) is not None:
                side.events.append(event)

    def next_time(self) -> float:
        """When the next arrival or timer is due; infinity: never."""
        times = [side.qp.next_timer_ns() for side in (self.a, self.b)]
        times += [self._queue[0][0] if self._queue else None]
        return min((t for t in times if t is not None), default=math.inf)

    def step(self) -> bool:
        """Go to the next arrival or timer; False when nothing more will ever happen."""
        self.pump()
        due = self.next_time()
        if due == math.inf:
            return False
        self.now = max(self.now, int(due))
        while self._queue and self._queue[0][0] <= self.now:
            _, _, to, datagram = heapq.heappop(self._queue)
            self.deliver(to, datagram)
        for side in (self.a, self.b):
            timer = side.qp.next_timer_ns()
            if timer is not None and timer <= self.now:
                side.qp.on_timer(self.now)
        return True

    def run(
        self, done: Callable[[], bool] | None = None, *, for_ns: int = 60_000_000_000, steps: int = 200_000
    ) -> None:
        """Run until `done`, for so long at most; without `done` until all is quiet or the time is over."""
        limit = self.now + for_ns
        for _ in range(steps):
            if (done is not None and done()) or self.now > limit:
                break
            if not self.step() and (done is None or done() or not self.step()):
                break  # nothing is under way, and `done`, which may have posted more, has not changed that
        self.pump()

    def write(self, num_bytes: int, *, imm: int | None = None, wr_id: int = 0) -> tuple[bytes, bytearray]:
        """Post a Write of random bytes from a to b; what was sent and where it should appear."""
        data = self.a.out.random.randbytes(num_bytes)
        buffer, region = self.b.region(max(num_bytes, 1))
        self.a.qp.post_write(data, wr_id=wr_id, remote_addr=region.addr, rkey=region.rkey, imm=imm)
        return data, buffer


def opcode_of(datagram: Datagram) -> Opcode:
    """What kind of packet a datagram is."""
    return Opcode(datagram.data[0])
