"""A context: the ports of this host, one thread that drives them, and what an application does with it.

    context = Context(place)                                  # or Context(addresses=["fd00::1", "fd01::1"])
    region = context.register(buffer)                         # memory that peers may write
    queue = context.completion_queue(1024)
    with context.listen("10.0.0.1", token) as listener: qp = listener.accept(queue, queue, private=remote_of(region))
    qp = context.connect("10.0.0.1", port, token, queue, queue)
    qp.post_write(data, remote, wr_id=1)                      # data: bytes, numpy array, torch CPU tensor, mmap, ...
    queue.wait(timeout_s=1.0)                                 # or poll(), or await queue.wait_async()

Calls come from any thread; each takes the context's lock for as long as it changes something. All packets are sent and
received by the context's own thread. Times and limits: a connection that does not come about ends with an error within
`limit_s`; a peer that falls silent fails its queue pair after all retries (about a second, see Profile.software); one
whose process ends, as soon as the kernel there has closed its sockets.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from fairlead.errors import FabricError, LocalProtocolError, MissingTool, RemoteProtocolError
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.headers import Dialect
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.memory import MemoryRegion
from fairlead.fabric.mrc.profile import SOFTWARE_SACK_BYTES, Profile
from fairlead.fabric.mrc.verbs import MPR_UNIT
from fairlead.fabric.transport import exchange, given, lanes, seal
from fairlead.fabric.transport.batches import run_of
from fairlead.fabric.transport.driver import Driver
from fairlead.fabric.transport.engine import Engine, Line
from fairlead.fabric.transport.exchange import Offer, Ready, Remote, Talk
from fairlead.fabric.transport.given import HEADER_BYTES, IPV6_BYTES, payload_of
from fairlead.fabric.transport.interfaces import LinkWatch, interface_of, mtu_of
from fairlead.fabric.transport.meeting import line_of, meet
from fairlead.fabric.transport.memory import view_of
from fairlead.fabric.transport.ports import UDP_BYTES, Sockets
from fairlead.fabric.transport.queuepair import QueuePair
from fairlead.fabric.transport.queues import CompletionQueue
from fairlead.fabric.transport.tape import Tape
from fairlead.records.addressbook import Place, Port

MIN_RTT_NS = 1_000_000  # two Python programs with a burst each to work off are not nearer
MAX_RTT_NS = 3_500_000  # above it the target delay leaves the range of NSCC's integers
KERNEL_SHARE = 4
"""Room of a socket for each byte of a window: the kernel counts its own twice over, and a window is 1.5 round trips."""
LIMIT_S = 10.0


def remote_of(region: MemoryRegion) -> str:
    """A region as the other end needs it, to give as `private`."""
    return msgspec.json.encode(Remote(addr=region.addr, rkey=region.rkey, length=region.length)).decode()


def _engine_of(*, compiled: bool | None) -> tuple[Callable[..., Engine], Callable[..., Sockets]]:
    """The engine and its sockets: compiled where that is possible, plain where not or where it is asked for."""
    if compiled is not False:
        try:
            from fairlead.fabric.transport.fast import kernels, start
            from fairlead.fabric.transport.fast.engine import FastEngine
            from fairlead.fabric.transport.fast.sheets import LetterSockets

            if kernels.c_functions() is not None:
                start.prepare()
                return FastEngine, LetterSockets
        except ImportError:
            pass
    if compiled:
        raise MissingTool(
            "fabric/no-compiler",
            "the compiled transport needs numba, and zlib as a shared library, on a 64-bit little-endian machine",
            hint="pip install 'fairlead[fabric]', or leave `compiled` to itself",
        )
    return Engine, Sockets


def _randoms() -> Iterator[int]:
    while True:
        yield secrets.randbits(32)


class Listener:
    """Where peers are awaited."""

    def __init__(self, context: Context, address: str, token: bytes, port: int) -> None:
        exchange.check_token(token)
        self._context = context
        self._token = token
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.create_server((address, port), family=family)
        self.port: int = sock.getsockname()[1]
        self._door = exchange.Door(sock, token)

    def accept(
        self, send_cq: CompletionQueue, recv_cq: CompletionQueue, *, private: str = "", limit_s: float = LIMIT_S
    ) -> QueuePair:
        """The next peer that knows the token; who does not is sent away, and the wait goes on."""
        end = time.monotonic() + limit_s
        while (caller := self._door.next(end)) is not None:
            talk, theirs = caller
            talk.last_until(end)
            try:
                return self._context.answer(talk, theirs, self._token, send_cq, recv_cq, private)
            except RemoteProtocolError:
                talk.sock.close()
            except BaseException:
                talk.sock.close()
                raise
        raise RemoteProtocolError("fabric/exchange", "nobody connected in time", hint="see whether the other end runs")

    def close(self) -> None:
        """Await nobody any more."""
        self._door.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Context:
    """The ports of this host and the thread that drives them."""

    def __init__(
        self,
        place: Place | None = None,
        *,
        addresses: Sequence[str] = (),
        port: int = 0,
        rate_mbps: int = 0,
        sealed: bool = False,
        icrc: bool = True,
        gso: bool = False,
        compiled: bool | None = None,
        tape: Tape | None = None,
        **changes: object,
    ) -> None:
        """`place` says where the host sits in a fabric, `addresses` are its ports where nobody knows more.

        `port` is the UDP port to receive at (0: a free one), `rate_mbps` what all ports carry together, `sealed` asks
        for authentication of every packet, `changes` are fields of Profile. Without `icrc` packets carry none, and
        nothing but the UDP checksum or the authentication tells that one was damaged. With `gso` packets are sprayed
        batch by batch, and the kernel takes a batch as one (UDP_SEGMENT); each end decides how it sends. `compiled`
        False keeps to plain Python, which does the same more slowly; by default it is used only where there is no numba
        or no zlib to be called. The first context on a machine compiles, half a minute of one core, and says so. A
        `tape` has all datagrams written down, in plain Python.
        """
        if place is None:
            place = Place(ports=tuple(Port(rail=f"rail {i}", address=a) for i, a in enumerate(addresses)))
        own = tuple(p for p in place.ports if p.address) or (Port(rail="", address=place.address),)
        given.check(own, port, rate_mbps, changes, sealed=sealed)
        self.place = msgspec.structs.replace(place, ports=own)
        self.id = secrets.token_hex(16)
        if sealed:
            seal.check()
        self._sealed = sealed
        self._rate_mbps = rate_mbps
        self._changes = changes
        steered = place.steering.by == "usid"
        if steered and not icrc and not sealed:
            raise LocalProtocolError(
                "fabric/no-check",
                "packets over steered paths carry no UDP checksum, so without an iCRC nobody would notice damage",
                hint="leave `icrc` on, or ask for `sealed`",
            )
        self._icrc = icrc
        self._gso = gso
        make_engine, make_sockets = (Engine, tape.sockets) if tape is not None else _engine_of(compiled=compiled)
        interfaces = [p.interface or interface_of(p.address) for p in own]
        self.mtu = given.check_payload(payload_of(min(mtu_of(name) for name in interfaces), sealed=sealed), interfaces)
        with contextlib.ExitStack() as opened:
            self._sockets = make_sockets(
                [p.address for p in own], steered=steered, sources=1 if steered else lanes.SOURCES, port=port, gso=gso
            )
            opened.callback(self._sockets.close)
            self._links = LinkWatch(interfaces, came_back=self._sockets.bound.again)
            opened.callback(self._links.close)
            dialect = Dialect(icrc=Icrc.PACKET if icrc else Icrc.NONE)
            device = Device(Profile.software(MIN_RTT_NS), _randoms(), dialect=dialect)
            self.engine = make_engine(device, self._sockets, len(own), gso=gso)
            self.driver = Driver(self.engine, self._sockets, self._links)
            opened.pop_all()
        self.lock = self.driver.lock

    # --- the application's calls -------------------------------------------------------------------------------------

    def completion_queue(self, depth: int = 1024) -> CompletionQueue:
        """A queue for any number of queue pairs."""
        return CompletionQueue(depth)

    def register(self, memory: Any) -> MemoryRegion:
        """Let peers write into memory, until it is deregistered."""
        with self.lock:
            return self.engine.device.domain.register(view_of(memory))

    def deregister(self, region: MemoryRegion) -> None:
        """Let nobody write there any more; a Write under way fails at its sender."""
        with self.lock:
            self.engine.device.domain.deregister(region)

    def listen(self, address: str, token: bytes, port: int = 0) -> Listener:
        """Await peers at an address of this host; `token` is what they must know, 16 bytes or more."""
        return Listener(self, address, token, port)

    def connect(
        self,
        address: str,
        port: int,
        token: bytes,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        *,
        private: str = "",
        limit_s: float = LIMIT_S,
    ) -> QueuePair:
        """Connect to a listener. Raises FabricError with the reason, within limit_s."""
        try:
            sock = socket.create_connection((address, port), timeout=limit_s)
        except OSError as exc:
            raise RemoteProtocolError(
                "fabric/exchange",
                f"nobody answers at {address} port {port}: {exc.strerror or exc}",
                hint="see whether the other end listens there",
            ) from exc
        try:
            talk = Talk(sock, token, is_caller=True, limit_s=limit_s)
            mine = self._offer(private)
            begin = time.monotonic_ns()
            talk.send(mine)
            theirs = talk.receive(Offer)
            talk.note_rtt(begin)
            line = self._line(mine, theirs, token, talk.rtt_ns, send_cq, recv_cq)
            self.driver.add(line)
            try:
                talk.send(Ready())
                self.driver.watch(line, sock)
            except BaseException:
                self.driver.drop(line, sock)
                raise
        except BaseException:
            sock.close()
            raise
        return QueuePair(self.driver, line, sock, theirs.private)

    def greet(  # noqa: PLR0917 - for who has accepted a connection itself
        self,
        sock: socket.socket,
        token: bytes,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        private: str,
        limit_s: float,
    ) -> QueuePair:
        """The other side of `connect`, on a connection that the application has accepted. Raises as `connect` does."""
        talk = exchange.Talk(sock, token, is_caller=False, limit_s=limit_s)
        return self.answer(talk, talk.receive(Offer), token, send_cq, recv_cq, private)

    def answer(  # noqa: PLR0917 - used by Listener
        self, talk: Talk, theirs: Offer, token: bytes, send_cq: CompletionQueue, recv_cq: CompletionQueue, private: str
    ) -> QueuePair:
        """The other side of `connect`."""
        mine = self._offer(private)
        try:
            line = self._line(mine, theirs, token, MIN_RTT_NS, send_cq, recv_cq)
        except FabricError:
            with contextlib.suppress(FabricError):
                talk.send(mine)  # so that the caller finds the reason, too
            raise
        self.driver.add(line)
        try:
            talk.send(mine)
            talk.receive(Ready)
            self.driver.watch(line, talk.sock)
        except BaseException:
            self.driver.drop(line, talk.sock)
            raise
        return QueuePair(self.driver, line, talk.sock, theirs.private)

    def counters(self) -> dict[str, int]:
        """What has happened to datagrams, all queue pairs together."""
        with self.lock:
            device = self.engine.device
            return {
                **self.engine.counts,
                "lost_locally": self.engine.counts["lost_locally"] + self._sockets.num_lost_locally,
                "cut_short": self._sockets.num_cut_short,
                "batches": self._sockets.num_batches,
                "bad": device.num_bad_packets,
                "foreign": self.engine.counts["foreign"] + device.num_foreign_packets,
            }

    def close(self) -> None:
        """End all queue pairs, the thread and the sockets."""
        self.driver.close()
        self._links.close()
        self._sockets.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- meeting -----------------------------------------------------------------------------------------------------

    def _offer(self, private: str) -> Offer:
        with self.lock:
            number = self.engine.device.new_qp_num()
        return Offer(
            context=self.id,
            place=self.place,
            ports=tuple(tuple(own) for own in self._sockets.numbers),
            qp_num=number,
            psn=secrets.randbits(24),
            mtu=self.mtu,
            mpr=self.engine.device.profile.mpr // MPR_UNIT,
            wimm=self.engine.device.profile.max_wimm_dest,
            sealed=self._sealed,
            icrc=self._icrc,
            private=private,
        )

    def _batched(self, mtu: int) -> dict[str, object]:
        """What a queue pair does otherwise where packets go in batches: one entropy value each, and about one SACK."""
        if not self._gso:
            return {}
        run = run_of(mtu + HEADER_BYTES + (seal.SIZE_BYTES if self._sealed else 0))
        return {"ev_run": run, "sack_bytes": max(SOFTWARE_SACK_BYTES, run * mtu)}

    def _line(  # noqa: PLR0917 - both offers, and what was found out
        self,
        mine: Offer,
        theirs: Offer,
        token: bytes,
        rtt_ns: int,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
    ) -> Line:
        """The queue pair that the two offers describe."""
        met = meet(mine, theirs)
        for lane, rail in zip(met.lanes, met.rails, strict=True):
            self._sockets.lead(rail, lane.there)
            room = self._sockets.path_mtu(rail, lane.ways[0]) + UDP_BYTES + IPV6_BYTES
            if payload_of(room, sealed=self._sealed) < met.mtu:
                raise LocalProtocolError(
                    "fabric/mtu-mismatch",
                    f"packets of {met.mtu} bytes do not fit the way to {lane.there}, which takes {room} in all",
                    hint="give all interfaces of a plane the same MTU",
                )
        rtt_ns = min(max(rtt_ns, MIN_RTT_NS), MAX_RTT_NS)
        room_mbps = self._sockets.receive_room // KERNEL_SHARE * 8_000 // rtt_ns
        driver_mbps = max(min(self.engine.driver_mbps, room_mbps), 1)
        profile = lanes.profile(
            met.lanes,
            mtu=met.mtu,
            rtt_ns=rtt_ns,
            driver_mbps=driver_mbps,
            rate_mbps=self._rate_mbps,
            **(self._batched(met.mtu) | self._changes),
        )
        with self.lock:
            self.driver.check()
            return line_of(self.engine, met, profile, token, send_cq, recv_cq)
