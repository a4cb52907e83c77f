"""Whole MRC packets: UDP payloads from the BTH to the iCRC, to and from bytes.

`encode` and `decode` are inverse to each other. `decode` takes any bytes and raises nothing but `WireError`. What the
network adds (the EV in UDP source port and flow label, ECN, traffic class) is not in these bytes; it travels beside
them as a `Path`.

    opcodes        after the BTH
    C6-C8, CA      METH, [TSETH], RETH, payload
    C9, CB         METH, [TSETH], RETH, ImmDt, payload
    D1             AETH
    D8 / D9        ERTH / EETH
    DC / DD / DE   SETH CC_STATE / NETH / PETH
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fairlead.errors import RemoteProtocolError
from fairlead.fabric.mrc import icrc
from fairlead.fabric.mrc.control_headers import CcState, Eeth, Erth, Neth, Peth, Seth
from fairlead.fabric.mrc.headers import (
    DEFAULT_DIALECT,
    Aeth,
    Bth,
    Buffer,
    Dialect,
    Dscp,
    EndpointOp,
    Meth,
    Opcode,
    Reth,
    Tseth,
)
from fairlead.fabric.mrc.layout import TIMESTAMP_BITS, TIMESTAMP_UNIT_NS

_IMM = struct.Struct("!I")
_TIMESTAMP_MASK = (1 << TIMESTAMP_BITS) - 1


class WireError(RemoteProtocolError):
    """Bytes that are no MRC packet."""

    def __init__(self, message: str) -> None:
        super().__init__("fabric/bad-packet", message, hint="check that both ends speak MRC with the same dialect")


@dataclass(frozen=True, slots=True)
class Path:
    """What the network knows of a datagram: how it travelled, or is to travel."""

    ev: int  # 32 bits: UDP source port << 16 | low 16 bits of the flow label
    plane: int = 0
    dscp: int = Dscp.NO_TRIM
    is_marked: bool = False  # ECN congestion experienced

    @property
    def is_trimmed(self) -> bool:
        """Whether a switch has cut the payload away."""
        return self.dscp in (Dscp.TRIMMED, Dscp.TRIMMED_LASTHOP)

    @property
    def source_port(self) -> int:
        """UDP source port of this EV."""
        return self.ev >> 16

    @property
    def flow_label(self) -> int:
        """Low 16 bits of the IPv6 flow label of this EV."""
        return self.ev & 0xFFFF


@dataclass(frozen=True, slots=True)
class Datagram:
    """A UDP payload to send and the path to send it on. It comes in parts, so that nobody has to copy the payload."""

    header: Buffer
    path: Path
    payload: Buffer = b""
    tail: Buffer = b""

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """What to send, one behind the other."""
        return (self.header, self.payload, self.tail) if self.tail else (self.header,)

    @property
    def data(self) -> bytes:
        """The same in one piece, copied."""
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class Write:
    """A packet of an RDMA Write."""

    bth: Bth
    meth: Meth
    reth: Reth
    payload: bytes | memoryview
    tseth: Tseth | None = None
    imm: int | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """A transport ACK."""

    bth: Bth
    aeth: Aeth


@dataclass(frozen=True, slots=True)
class Sack:
    """A reliability SACK."""

    bth: Bth
    seth: Seth
    cc: CcState


@dataclass(frozen=True, slots=True)
class Nack:
    """A reliability NACK."""

    bth: Bth
    neth: Neth


@dataclass(frozen=True, slots=True)
class Probe:
    """A reliability probe."""

    bth: Bth
    peth: Peth


@dataclass(frozen=True, slots=True)
class Request:
    """An endpoint request."""

    bth: Bth
    erth: Erth


@dataclass(frozen=True, slots=True)
class Response:
    """An endpoint response."""

    bth: Bth
    eeth: Eeth


Packet = Write | Ack | Sack | Nack | Probe | Request | Response

WRITES = frozenset(range(Opcode.WRITE_FIRST, Opcode.WRITE_ONLY_IMM + 1))
WITH_IMM = frozenset({Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM})
LASTS = frozenset({Opcode.WRITE_LAST, Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM})
_OPCODES = {opcode.value: opcode for opcode in Opcode}
CONTROL_LENGTHS = {  # of the headers after the BTH, for packets without payload
    Opcode.ACK: Aeth.SIZE,
    Opcode.ENDPOINT_REQUEST: Erth.SIZE,
    Opcode.ENDPOINT_RESPONSE: Eeth.SIZE,
    Opcode.SACK: Seth.SIZE + CcState.SIZE,
    Opcode.NACK: Neth.SIZE,
    Opcode.PROBE: Peth.SIZE,
}


def write_opcode(*, is_first: bool, is_last: bool, has_imm: bool) -> Opcode:
    """The opcode of a Write packet by its place in the message."""
    if is_last:
        last = Opcode.WRITE_ONLY if is_first else Opcode.WRITE_LAST
        return Opcode(last + has_imm)
    return Opcode.WRITE_FIRST if is_first else Opcode.WRITE_MIDDLE


def timestamp(now_ns: int) -> int:
    """A time as TSETH carries it: 16 bits, unit 128 ns."""
    return now_ns // TIMESTAMP_UNIT_NS & _TIMESTAMP_MASK


def time_of(stamp: int, now_ns: int) -> int:
    """The latest time not after now that has this timestamp, rounded down to the unit; unambiguous for 8.4 ms."""
    units = now_ns // TIMESTAMP_UNIT_NS
    return (units - ((units - stamp) & _TIMESTAMP_MASK)) * TIMESTAMP_UNIT_NS


# --- encoding ------------------------------------------------------------------------------------------------------


def encode(packet: Packet, dialect: Dialect = DEFAULT_DIALECT, network: bytes = b"") -> bytes:
    """The UDP payload of a packet. `network` (IP and UDP headers) is needed for the iCRC variant ROCE only.

    The caller sets bth.pad to what `padding` says of the payload.
    """
    return b"".join(encode_parts(packet, dialect, network))


def encode_parts(
    packet: Packet, dialect: Dialect = DEFAULT_DIALECT, network: bytes = b""
) -> tuple[bytes, Buffer, bytes]:
    """The same as headers, payload (where it lies, not copied), padding with iCRC."""
    parts: list[Buffer] = [packet.bth.pack(dialect)]
    payload: Buffer = b""
    pad = b""
    match packet:
        case Write():
            parts.append(packet.meth.pack())
            if packet.tseth is not None:
                parts.append(packet.tseth.pack())
            parts.append(packet.reth.pack())
            if packet.imm is not None:
                parts.append(_IMM.pack(packet.imm))
            payload, pad = packet.payload, bytes(packet.bth.pad)
        case Sack():
            parts += (packet.seth.pack(), packet.cc.pack())
        case Response():
            parts.append(packet.eeth.pack(dialect))
        case Ack():
            parts.append(packet.aeth.pack())
        case Nack():
            parts.append(packet.neth.pack())
        case Probe():
            parts.append(packet.peth.pack())
        case _:
            parts.append(packet.erth.pack())
    header = b"".join(parts)
    return header, payload, pad + icrc.compute(dialect.icrc, header, network, (payload, pad))


def padding(num_bytes: int) -> int:
    """BTH.pad for a payload: the bytes that fill it up to a multiple of 4."""
    return -num_bytes & 3


# --- decoding ------------------------------------------------------------------------------------------------------


def decode(
    data: Buffer, dialect: Dialect = DEFAULT_DIALECT, network: bytes = b"", *, is_trimmed: bool = False
) -> Packet:
    """The packet in a UDP payload; WireError if there is none.

    A trimmed packet has lost payload and iCRC; its headers up to RETH or ImmDt are read and nothing after them.
    """
    view = memoryview(data)
    if len(view) < Bth.SIZE + icrc.SIZE_BYTES and not (is_trimmed and len(view) >= Bth.SIZE):
        raise WireError(f"{len(view)} bytes are too few for a BTH and an iCRC")
    opcode = _OPCODES.get(view[0])
    if opcode is None:
        raise WireError(f"opcode {view[0]:#04x} is not of MRC")
    if is_trimmed:
        if opcode not in WRITES:
            raise WireError(f"a switch trimmed a packet of opcode {opcode:#04x}, which carries no payload")
        return _decode_write(view, Bth.unpack(view, opcode, dialect), is_trimmed=True)
    body = view[: -icrc.SIZE_BYTES]
    _check_icrc(dialect.icrc, view, network)
    bth = Bth.unpack(body, opcode, dialect)
    if opcode in WRITES:
        return _decode_write(body, bth, is_trimmed=False)
    if len(body) != Bth.SIZE + CONTROL_LENGTHS[opcode]:
        raise WireError(f"{len(data)} bytes are not the length of a packet of opcode {opcode:#04x}")
    return _decode_control(body, bth, dialect)


def _check_icrc(variant: icrc.Icrc, view: memoryview, network: bytes) -> None:
    if variant is icrc.Icrc.NONE:
        return
    if variant is icrc.Icrc.ROCE and not icrc.udp_offset(network):
        raise WireError(f"{len(network)} bytes are no whole IP and UDP headers, which the invariant CRC covers")
    if icrc.compute(variant, view[: -icrc.SIZE_BYTES], network) != bytes(view[-icrc.SIZE_BYTES :]):
        raise WireError("the invariant CRC does not match")


def _decode_write(body: memoryview, bth: Bth, *, is_trimmed: bool) -> Write:
    has_imm = bth.opcode in WITH_IMM
    at = Bth.SIZE + Meth.SIZE + (Tseth.SIZE if bth.has_timestamp else 0)
    start = at + Reth.SIZE + (_IMM.size if has_imm else 0)
    if len(body) < start:
        raise WireError(f"{len(body)} bytes are too few for the headers of a Write")
    end = len(body) - bth.pad
    if not is_trimmed and (len(body) % 4 or end < start):
        raise WireError(f"{len(body) - start} bytes of payload and padding with pad {bth.pad} cannot be")
    return Write(
        bth=bth,
        meth=Meth.unpack(body, Bth.SIZE),
        reth=Reth.unpack(body, at),
        payload=b"" if is_trimmed else body[start:end],
        tseth=Tseth.unpack(body, Bth.SIZE + Meth.SIZE) if bth.has_timestamp else None,
        imm=_IMM.unpack_from(body, at + Reth.SIZE)[0] if has_imm else None,
    )


def _decode_control(body: memoryview, bth: Bth, dialect: Dialect) -> Packet:
    match bth.opcode:
        case Opcode.SACK:
            return Sack(bth, Seth.unpack(body, Bth.SIZE), CcState.unpack(body, Bth.SIZE + Seth.SIZE))
        case Opcode.NACK:
            return Nack(bth, Neth.unpack(body, Bth.SIZE))
        case Opcode.PROBE:
            return Probe(bth, Peth.unpack(body, Bth.SIZE))
        case Opcode.ACK:
            return Ack(bth, Aeth.unpack(body, Bth.SIZE))
        case Opcode.ENDPOINT_RESPONSE:
            return Response(bth, Eeth.unpack(body, Bth.SIZE, dialect))
        case _:
            if body[Bth.SIZE + 1] & 3 not in _ENDPOINT_OPS:
                raise WireError(f"endpoint request of unknown op {body[Bth.SIZE + 1] & 3}")
            return Request(bth, Erth.unpack(body, Bth.SIZE))


_ENDPOINT_OPS = frozenset(op.value for op in EndpointOp)
