"""A record of datagrams as the sockets of a context took and gave them, and what can be made of it: events, a capture.

A tape holds so many datagrams, and of each its first bytes; what comes later is counted only. A capture has IP and UDP
headers made from what the sockets were told: addresses, ports, flow label, class and ECN are those on the wire. Not
known, and written as 0 or a guess: hop limit, UDP checksum (steered packets have none), the address that a packet was
sent to by its sender, of packets received. File format: draft-ietf-opsawg-pcap, nanoseconds, LINKTYPE_RAW.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.fabric.mrc.packets import WRITES, Packet, WireError, decode
from fairlead.fabric.transport.ports import DSCP_SHIFT, ECN_CE, ECN_ECT0, Arrival, Buffer, Outgoing, Sockets
from fairlead.records.fabricevent import FabricEvent

SNAP_BYTES = 128
"""Of each datagram: all headers of a Write, and whole packets of any other kind."""
MAX_DATAGRAMS = 20_000
MAGIC_NS, LINKTYPE_RAW = 0xA1B23C4D, 101
HOP_LIMIT = 64
_FILE = struct.Struct("<IHHiIII")
_RECORD = struct.Struct("<IIII")
_IPV6 = struct.Struct("!IHBB16s16s")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")

Address = Annotated[str, Meta(max_length=64)]
_Number = Annotated[int, Meta(ge=0, le=0xFFFF)]


class Taped(msgspec.Struct, frozen=True, array_like=True):
    """A datagram."""

    at_ns: Annotated[int, Meta(ge=0, le=1 << 62)]
    is_sent: bool
    rail: Annotated[int, Meta(ge=0, le=255)]
    """Number of the local port."""
    source: Address
    source_port: _Number
    to: Address
    to_port: _Number
    label: Annotated[int, Meta(ge=0, le=0xFFFFF)]
    tclass: Annotated[int, Meta(ge=0, le=255)]
    size: _Number
    """UDP payload, bytes."""
    head: Annotated[bytes, Meta(max_length=SNAP_BYTES)]
    """Its first bytes."""

    def __post_init__(self) -> None:
        if ip_address(self.source).version != ip_address(self.to).version:
            raise ValueError("the two addresses are of two families")


class Tape:
    """What a context sent and received, up to a number of datagrams."""

    def __init__(self, most: int = MAX_DATAGRAMS) -> None:
        self.most = most
        self.taped: list[Taped] = []
        self.num_left_out = 0

    def sockets(self, *args: Any, **options: Any) -> Sockets:
        """Sockets that write down what they do."""
        return _TapedSockets(self, *args, **options)

    def add(self, taped: Taped) -> None:
        """One more; behind the last place it is only counted."""
        if len(self.taped) < self.most:
            self.taped.append(taped)
        else:
            self.num_left_out += 1


class _TapedSockets(Sockets):
    def __init__(self, tape: Tape, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tape = tape
        self._numbers = self.numbers

    def send(  # noqa: PLR0917 - as Ports has it
        self, rail: int, source: int, to: tuple[str, int], label: int, dscp: int, parts: Sequence[Buffer]
    ) -> bool:
        """Send a datagram, and write it down if it went."""
        if not super().send(rail, source, to, label, dscp, parts):
            return False
        self._note(rail, source, to, label, dscp, parts)
        return True

    def send_batch(self, packets: Sequence[Outgoing], size: int) -> bool:
        """Send datagrams as one, and write each down if they went."""
        went = super().send_batch(packets, size)
        for route, to, dscp, parts in packets if went else ():
            self._note(route.rail, route.source, to, route.label, dscp, parts)
        return went

    def _note(  # noqa: PLR0917 - as Ports has it
        self, rail: int, source: int, to: tuple[str, int], label: int, dscp: int, parts: Sequence[Buffer]
    ) -> None:
        head = b"".join(bytes(memoryview(part)[:SNAP_BYTES]) for part in parts)[:SNAP_BYTES]
        size = sum(len(part) for part in parts)
        here, tclass = self.addresses[rail], dscp << DSCP_SHIFT | ECN_ECT0
        at = (time.time_ns(), True, rail, here, self._numbers[rail][source], *to, label, tclass, size, head)
        self._tape.add(Taped(*at))

    def receive(self, rail: int) -> Arrival | None:
        """The next datagram, written down."""
        arrival = super().receive(rail)
        if arrival is not None:
            path, head = arrival.path, bytes(arrival.data[:SNAP_BYTES])
            tclass = path.dscp << DSCP_SHIFT | (ECN_CE if path.is_marked else ECN_ECT0)
            here = (self.addresses[rail], self._numbers[rail][0])
            at = (time.time_ns(), False, rail, arrival.host, path.source_port, *here, path.flow_label, tclass)
            self._tape.add(Taped(*at, len(arrival.data), head))
        return arrival


# ---- what is made of it ----------------------------------------------------------------------------------------------


def events(taped: Iterable[Taped], node: str, planes: Sequence[int | None]) -> Iterator[FabricEvent]:
    """Packets of MRC as events; `planes` are the numbers of the local ports' planes."""
    for one in taped:
        packet = _packet(one)
        plane = planes[one.rail] if one.rail < len(planes) else None
        bth = packet.bth if packet else None
        yield FabricEvent(
            at_ns=one.at_ns,
            what="sent" if one.is_sent else "received",
            node=node,
            plane=one.rail if plane is None else plane,
            path=one.to,
            ev=one.source_port << 16 | one.label & 0xFFFF,
            op=bth.opcode.name.lower() if bth else "",
            qp=bth.dest_qp if bth else None,
            psn=bth.psn if bth else None,
            num_bytes=one.size,
            again=bth.rtx if bth else False,
            marked=one.tclass & 3 == ECN_CE,
        )


def _packet(one: Taped) -> Packet | None:
    """The packet, as far as its first bytes say; None: it is none of MRC, or was damaged."""
    try:
        is_write = bool(one.head) and one.head[0] in WRITES
        return decode(one.head, is_trimmed=is_write and one.size > len(one.head))
    except WireError:
        return None


def capture(taped: Iterable[Taped]) -> bytes:
    """A file that Wireshark and tcpdump read."""
    out = [_FILE.pack(MAGIC_NS, 2, 4, 0, 0, 1 << 16, LINKTYPE_RAW)]
    for one in taped:
        headers = _network(one)
        seconds, ns = divmod(one.at_ns, 10**9)
        sizes = len(headers) + len(one.head), len(headers) + max(one.size, len(one.head))
        out += [_RECORD.pack(seconds & 0xFFFFFFFF, ns, *sizes), headers, one.head]
    return b"".join(out)


def _network(one: Taped) -> bytes:
    """IP and UDP headers."""
    source, to = ip_address(one.source).packed, ip_address(one.to).packed
    length = _UDP.size + one.size
    udp = _UDP.pack(one.source_port, one.to_port, length & 0xFFFF, 0)
    if len(source) == 16:
        first = 6 << 28 | one.tclass << 20 | one.label
        return _IPV6.pack(first, length & 0xFFFF, socket.IPPROTO_UDP, HOP_LIMIT, source, to) + udp
    total = (_IPV4.size + length) & 0xFFFF
    head = _IPV4.pack(0x45, one.tclass, total, 0, 0x4000, HOP_LIMIT, socket.IPPROTO_UDP, 0, source, to)
    folded = sum(struct.unpack("!10H", head))
    while folded >> 16:
        folded = (folded & 0xFFFF) + (folded >> 16)
    return head[:10] + struct.pack("!H", folded ^ 0xFFFF) + head[12:] + udp
