"""UDP sockets of a host's ports: datagrams out with entropy value and class, datagrams in with how they travelled.

The thin edge to the Linux kernel; it decides nothing. What has to be known of the kernel stands here:

- A switch of micro-segments changes the destination address on the way, and the UDP checksum covers it. So steered
  ports send without one (RFC 6935: allowed over IPv6 where the payload is protected; the iCRC is) and accept that.
- A flow label is given by the address to send to, and heard as a control message. Where it is not ours to choose, the
  kernel is told to send 0, or it would make one up.
- Class and ECN are the traffic class octet, each way as a control message. The kernel copies no ECN mark from an outer
  header it takes off; steered packets have one header only, so marks arrive.
- Nothing is fragmented, neither here nor on the way.
- The kernel takes several packets as one, and gives what came as one, where it is asked to (`batches.py`). It refuses
  that to a socket that sends no checksum.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from fairlead.errors import LocalProtocolError, MissingTool
from fairlead.fabric.mrc.headers import Dscp
from fairlead.fabric.mrc.packets import Path
from fairlead.fabric.transport.batches import UDP_GRO, UDP_SEGMENT
from fairlead.fabric.transport.bound import Bound
from fairlead.fabric.transport.lanes import Route

# linux/in.h, linux/in6.h, linux/udp.h: names that Python's socket module lacks
IP_RECVTOS = 13
IPV6_FLOWINFO = 11
IPV6_FLOWINFO_SEND = 33
IPV6_AUTOFLOWLABEL = 70
IPV6_MTU_DISCOVER = 23
IP_MTU_DISCOVER = 10
PMTUDISC_PROBE = 3
IP_MTU = 14
IPV6_MTU = 24
SO_RCVBUFFORCE = 33
UDP_NO_CHECK6_TX = 101
UDP_NO_CHECK6_RX = 102

ECN_ECT0 = 2
ECN_CE = 3
ECN_MASK = 3
DSCP_SHIFT = 2
LABEL_MASK = 0xFFFF
MAX_DATAGRAM = 1 << 16
CONTROL_BYTES = 128
RECEIVE_BYTES = 8 << 20  # asked for; without CAP_NET_ADMIN net.core.rmem_max may allow less
SEND_BYTES = 256 << 10
UDP_BYTES = 8
_CLASS = Dscp.NO_TRIM << DSCP_SHIFT | ECN_ECT0  # of packets that ask for no other
_INT = struct.Struct("=i")
_SHORT = struct.Struct("=H")

# an interface that went down or lost its address: the packet is lost like any other, and the law finds out
LOST_LOCALLY = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.EPERM}
    | {errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EMSGSIZE, errno.ECONNREFUSED, errno.EACCES}
)

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Arrival:
    """A datagram that came. `data` is overwritten by the next one."""

    data: memoryview
    host: str
    path: Path
    """`plane` is the number of the local port."""


class Outgoing(NamedTuple):
    """A datagram to be sent."""

    route: Route
    to: tuple[str, int]
    dscp: int
    parts: Sequence[Buffer]


class Ports(Protocol):
    """What carries datagrams: the kernel's sockets, or a network of a test."""

    def send(  # noqa: PLR0917 - once a packet
        self, rail: int, source: int, to: tuple[str, int], label: int, dscp: int, parts: Sequence[Buffer]
    ) -> bool:
        """Send a datagram out of a port; False: no room now, the same again later."""

    def send_batch(self, packets: Sequence[Outgoing], size: int) -> bool:
        """Send datagrams of one way and class as one, each of `size` bytes but for a shorter last one."""

    def receive(self, rail: int) -> Arrival | None:
        """The next datagram that came by a port; None: there is none now."""


class Sockets:
    """The sockets of one host: for each port one to receive by, and more where source ports are the entropy."""

    def __init__(
        self, addresses: Sequence[str], *, steered: bool, sources: int = 1, port: int = 0, gso: bool = False
    ) -> None:
        """`addresses` are those of the ports, by rail; `port` is the UDP port to receive at, 0 a free one each.

        With `gso` packets may be sent in batches, and are received so.
        """
        if gso and steered:
            raise LocalProtocolError(
                "fabric/no-offload",
                "segmentation offload cannot be had over steered paths, whose packets carry no UDP checksum, which the "
                "kernel asks of a batch",
                hint="leave `gso` away, or give addresses of ports that are not steered",
            )
        self.gso = gso
        self.num_batches = 0
        self._pending: dict[int, deque[Arrival]] = {}
        self._aims: dict[tuple[int, int], tuple[str, int]] = {}
        self.addresses = tuple(addresses)
        self.num_lost_locally = 0
        self.num_cut_short = 0
        self._buffers = [memoryview(bytearray(MAX_DATAGRAM)) for _ in (self.addresses if gso else (0,))]
        self.is_steered = steered
        self.rails: list[list[socket.socket]] = []
        self._v6 = [ip_address(address).version == 6 for address in self.addresses]
        try:
            for address in self.addresses:
                own: list[socket.socket] = []
                self.rails.append(own)
                own.append(_open(address, port, steered=steered, receives=True))
                own += (_open(address, 0, steered=steered, receives=False) for _ in range(sources - 1))
                if gso:
                    _set_gso(own[0])
        except BaseException:
            self.close()
            raise
        self.bound = Bound(self.addresses, self.rails)

    @property
    def numbers(self) -> list[list[int]]:
        """UDP ports of the sockets; the first of each port is the one to send to."""
        return [[sock.getsockname()[1] for sock in own] for own in self.rails]

    @property
    def receive_room(self) -> int:
        """Bytes that may wait to be received, all ports together, as the kernel counts them."""
        return sum(own[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for own in self.rails)

    def send(  # noqa: PLR0917 - as Ports has it
        self, rail: int, source: int, to: tuple[str, int], label: int, dscp: int, parts: Sequence[Buffer]
    ) -> bool:
        """Send a datagram; False if the socket has no room."""
        return self._send(rail, source, to, label, dscp, parts)

    def send_batch(self, packets: Sequence[Outgoing], size: int) -> bool:
        """Send datagrams as one; False if the socket has no room for them."""
        route, to, dscp, _ = packets[0]
        parts = [part for packet in packets for part in packet.parts]
        went = self._send(route.rail, route.source, to, route.label, dscp, parts, len(packets), size)
        self.num_batches += went
        return went

    def _send(  # noqa: PLR0917 - once a packet
        self,
        rail: int,
        source: int,
        to: tuple[str, int],
        label: int,
        dscp: int,
        parts: Sequence[Buffer],
        num: int = 1,
        size: int = 0,
    ) -> bool:
        tclass = _INT.pack(dscp << DSCP_SHIFT | ECN_ECT0)
        v6 = self._v6[rail]
        control: list[tuple[int, int, bytes]] = [
            (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tclass) if v6 else (socket.IPPROTO_IP, socket.IP_TOS, tclass)
        ]
        if size:
            control.append((socket.IPPROTO_UDP, UDP_SEGMENT, _SHORT.pack(size)))
        address = (*to, label, 0) if v6 else to
        while True:
            try:
                self.rails[rail][source].sendmsg(parts, control, socket.MSG_DONTWAIT, address)
            except BlockingIOError:
                return False
            except ConnectionRefusedError:
                continue  # news of an earlier packet (ICMP), told once: the one in hand has not gone
            except OSError as exc:
                if exc.errno not in LOST_LOCALLY:
                    raise_if_refused(exc.errno or 0, gso=self.gso)
                    raise
                self.num_lost_locally += num
            return True

    def receive(self, rail: int) -> Arrival | None:
        """The next datagram that came by a port."""
        pending = self._pending.get(rail)
        if pending:
            return pending.popleft()
        buffer = self._buffers[rail if self.gso else 0]
        while True:
            try:
                num_bytes, control, flags, address = self.rails[rail][0].recvmsg_into(
                    [buffer], CONTROL_BYTES, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return None
            except OSError as exc:
                if exc.errno not in LOST_LOCALLY:
                    raise
                continue  # news of an earlier packet (ICMP), not a datagram
            if flags & socket.MSG_TRUNC:
                self.num_cut_short += 1
                continue
            break
        tclass = label = step = 0
        for level, kind, value in control:
            if level == socket.IPPROTO_UDP and kind == UDP_GRO:
                (step,) = _INT.unpack(value)
            elif kind == IPV6_FLOWINFO:
                label = int.from_bytes(value[2:4], "big")
            elif kind in (socket.IPV6_TCLASS, socket.IP_TOS):
                tclass = value[0]
        if not self.is_steered:
            label = 0
        ev = address[1] << 16 | label
        path = Path(ev=ev, plane=rail, dscp=tclass >> DSCP_SHIFT, is_marked=tclass & ECN_MASK == ECN_CE)
        first = step or num_bytes
        if first < num_bytes:
            parts = (buffer[at : min(at + step, num_bytes)] for at in range(step, num_bytes, step))
            self._pending[rail] = deque(Arrival(part, address[0], path) for part in parts)
        return Arrival(buffer[: min(first, num_bytes)], address[0], path)

    def aim(self, rail: int, source: int, to: str, port: int) -> bool:
        """Connect a socket that only sends to whom it sends first; True if that is this one.

        The kernel then keeps the way, which it looks up anew for each packet else. Others are still sent to by name.
        """
        if source == 0 or self.is_steered:
            return False
        aimed = self._aims.setdefault((rail, source), (to, port))
        if aimed != (to, port):
            return False
        with contextlib.suppress(OSError):  # no way there now: by name, too, packets are lost until there is one
            self.rails[rail][source].connect(aimed)
            return True
        del self._aims[rail, source]
        return False

    def release(self, rail: int, source: int) -> None:
        """Let a socket be connected to the next peer: nobody relies on the one it was connected to."""
        self._aims.pop((rail, source), None)

    def lead(self, rail: int, to: str) -> None:
        """Have what a port sends leave by the interface of its address; a steered fabric's addresses are of none."""
        if not self.is_steered:
            self.bound.lead(rail, to)

    def path_mtu(self, rail: int, to: str) -> int:
        """The largest UDP payload that the kernel would send out of a port to an address."""
        v6 = self._v6[rail]
        with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.bind((self.addresses[rail], 0))
                self.bound.apply(rail, sock)
                sock.connect((to, 9))
                level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if v6 else (socket.IPPROTO_IP, IP_MTU)
                mtu = sock.getsockopt(level, option)
            except OSError as exc:
                raise LocalProtocolError(
                    "fabric/no-route",
                    f"no packet can go from {self.addresses[rail]} to {to}: {exc.strerror}",
                    hint="look at the port and its routes: ip -6 route get ADDRESS from SOURCE",
                ) from exc
        return mtu - (40 if v6 else 20) - UDP_BYTES

    def close(self) -> None:
        """Close all sockets."""
        for own in self.rails:
            for sock in own:
                sock.close()


def _open(address: str, port: int, *, steered: bool, receives: bool) -> socket.socket:
    if not hasattr(socket, "SO_BINDTODEVICE"):
        raise MissingTool("fabric/needs-linux", "the transport needs Linux sockets", hint="run it on a Linux machine")
    v6 = ip_address(address).version == 6
    sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        _set_room(sock, RECEIVE_BYTES if receives else 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        if v6:
            level = socket.IPPROTO_IPV6
            sock.setsockopt(level, IPV6_FLOWINFO_SEND, 1)
            sock.setsockopt(level, IPV6_FLOWINFO, int(steered))
            sock.setsockopt(level, socket.IPV6_RECVTCLASS, 1)
            sock.setsockopt(level, socket.IPV6_TCLASS, _CLASS)
            sock.setsockopt(level, IPV6_AUTOFLOWLABEL, 0)
            sock.setsockopt(level, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
            if steered:
                sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
                sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _CLASS)
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
        sock.bind((address, port))
    except (OSError, OverflowError) as exc:
        sock.close()
        raise LocalProtocolError(
            "fabric/no-port",
            f"no socket at {address} port {port}: {getattr(exc, 'strerror', exc)}",
            hint="give an address that this host owns, and a UDP port that is free",
        ) from exc
    return sock


def _set_gso(sock: socket.socket) -> None:
    """Receive what came as one as one; LocalProtocolError where the kernel knows neither this nor sending so."""
    try:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    except OSError as exc:
        raise _refused(exc.strerror or str(exc)) from exc


def raise_if_refused(number: int, *, gso: bool) -> None:
    """LocalProtocolError if this is what the kernel says of a batch that it cannot send on this way."""
    if gso and number == errno.EIO:
        raise _refused("the port reckons no UDP checksums, or the way is encrypted")


def _refused(why: str) -> LocalProtocolError:
    return LocalProtocolError(
        "fabric/no-offload", f"the kernel refuses segmentation offload: {why}", hint="leave `gso` away"
    )


def _set_room(sock: socket.socket, num_bytes: int) -> None:
    """How many bytes may wait to be received, the kernel's own for each packet included."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, num_bytes)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, num_bytes)
