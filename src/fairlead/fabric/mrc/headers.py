"""The headers of MRC packets, field by field, byte-exact: what all begin with, and Writes.

Each class is one header: `pack` gives its bytes, `unpack` reads them at an offset of a buffer that is long enough
(packets.py sees to that). Offsets are those of OCP MRC 1.0 tables 6-3 to 7-23 as two independent public
implementations write them; where they differ, the reading is a field of `Dialect`. Reserved bits are sent as zero and
ignored on receipt. Big endian throughout.

    BTH 12   METH 4   TSETH 4   RETH 16   ImmDt 4   AETH 4      here
    SETH 28 + CC_STATE 8   NETH 20   PETH 16   ERTH 16   EETH 36      control_headers.py
"""

# ruff: noqa: D102 - pack and unpack are described once, above

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from fairlead.fabric.mrc.icrc import Icrc

Buffer = bytes | bytearray | memoryview

PORT_ROCE = 4791
PORT_SPEC = 4971  # OCP MRC 1.0 section 7.5.5.2 as printed; a transposition of the RoCEv2 port, it seems
UDP_PORTS = (PORT_ROCE, PORT_SPEC)  # accepted; PORT_ROCE is sent
ENDPOINT_QP = 0x2  # BTH.QP of endpoint requests and responses
FTYPE_TIMESTAMP = 1


class Opcode(enum.IntEnum):
    """BTH byte 0; the top three bits are 110."""

    WRITE_FIRST = 0xC6
    WRITE_MIDDLE = 0xC7
    WRITE_LAST = 0xC8
    WRITE_LAST_IMM = 0xC9
    WRITE_ONLY = 0xCA
    WRITE_ONLY_IMM = 0xCB
    ACK = 0xD1
    ENDPOINT_REQUEST = 0xD8
    ENDPOINT_RESPONSE = 0xD9
    SACK = 0xDC
    NACK = 0xDD
    PROBE = 0xDE


class EndpointOp(enum.IntEnum):
    """ERTH.op."""

    PORT_STATUS = 0
    EV_PROBE = 1


class Dscp(enum.IntEnum):
    """Traffic classes, by the numbers of one implementation; the specification names the classes only."""

    NO_TRIM = 0
    TRIMMABLE = 4
    TRIMMABLE_RETX = 8
    TRIMMED = 12
    TRIMMED_LASTHOP = 16
    CONTROL = 46


@dataclass(frozen=True, slots=True)
class Dialect:
    """How disputed bytes are read and written. The defaults follow IBTA, or the more cautious source."""

    bth_m_bit: int = 6  # BTH byte 1: M at bit 6 and SE at bit 7 (IBTA), or the other way round (7)
    eeth_op_shift: int = 2  # EETH byte 1: op in bits 3:2, which leaves 6:5 to m as in SETH; or in bits 5:4 (4)
    icrc: Icrc = Icrc.PACKET

    @property
    def bth_se_bit(self) -> int:
        """Where SE is: the place M leaves."""
        return 13 - self.bth_m_bit


DEFAULT_DIALECT = Dialect()


@dataclass(frozen=True, slots=True)
class Bth:
    """Base transport header."""

    SIZE: ClassVar[int] = 12
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!BBHII")

    opcode: Opcode
    dest_qp: int  # 24 bits
    psn: int  # 24 bits
    ack_request: bool = False
    rtx: bool = False
    has_timestamp: bool = False
    solicited: bool = False
    migrate: bool = False
    pad: int = 0
    tver: int = 0
    pkey: int = 0xFFFF
    variant: int = 0

    def pack(self, dialect: Dialect) -> bytes:
        flags = self.solicited << dialect.bth_se_bit | self.migrate << dialect.bth_m_bit | self.pad << 4 | self.tver
        bits = self.ack_request << 31 | self.rtx << 29 | self.has_timestamp << 28
        return self._FORMAT.pack(
            self.opcode, flags, self.pkey, self.variant << 24 | self.dest_qp & 0xFFFFFF, bits | self.psn & 0xFFFFFF
        )

    @classmethod
    def unpack(cls, data: Buffer, opcode: Opcode, dialect: Dialect) -> Self:
        _, flags, pkey, qp, word = cls._FORMAT.unpack_from(data)
        return cls(
            opcode=opcode,
            dest_qp=qp & 0xFFFFFF,
            psn=word & 0xFFFFFF,
            ack_request=bool(word >> 31 & 1),
            rtx=bool(word >> 29 & 1),
            has_timestamp=bool(word >> 28 & 1),
            solicited=bool(flags >> dialect.bth_se_bit & 1),
            migrate=bool(flags >> dialect.bth_m_bit & 1),
            pad=flags >> 4 & 3,
            tver=flags & 0xF,
            pkey=pkey,
            variant=qp >> 24,
        )


@dataclass(frozen=True, slots=True)
class Meth:
    """Message extended header: which message a packet belongs to."""

    SIZE: ClassVar[int] = 4
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!HH")

    rqmsn: int  # counts Write-with-Imm
    msn: int

    def pack(self) -> bytes:
        return self._FORMAT.pack(self.rqmsn & 0xFFFF, self.msn & 0xFFFF)

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        return cls(*cls._FORMAT.unpack_from(data, offset))


@dataclass(frozen=True, slots=True)
class Tseth:
    """Requestor timestamp, unit 128 ns; present iff BTH.ts."""

    SIZE: ClassVar[int] = 4
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!HH")

    tx_timestamp: int
    tsr: int = 0
    ftype: int = FTYPE_TIMESTAMP

    def pack(self) -> bytes:
        return self._FORMAT.pack(self.tx_timestamp, self.tsr << 15 | self.ftype)

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        timestamp, word = cls._FORMAT.unpack_from(data, offset)
        return cls(timestamp, word >> 15, word & 0xF)


@dataclass(frozen=True, slots=True)
class Reth:
    """Where this packet's payload goes: the address is advanced per packet, so that packets are placed in any order."""

    SIZE: ClassVar[int] = 16
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!QII")

    va: int
    rkey: int
    dma_len: int

    def pack(self) -> bytes:
        return self._FORMAT.pack(self.va, self.rkey, self.dma_len)

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        return cls(*cls._FORMAT.unpack_from(data, offset))


@dataclass(frozen=True, slots=True)
class Aeth:
    """Transport ACK: messages up to msn are complete."""

    SIZE: ClassVar[int] = 4
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!I")

    syndrome: int
    msn: int  # 24 bits

    def pack(self) -> bytes:
        return self._FORMAT.pack(self.syndrome << 24 | self.msn & 0xFFFFFF)

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        (word,) = cls._FORMAT.unpack_from(data, offset)
        return cls(word >> 24, word & 0xFFFFFF)
