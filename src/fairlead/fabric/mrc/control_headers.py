"""The headers of packets that carry no payload, field by field, byte-exact: SACK, NACK, probes, port status.

Written as `headers.py` says.
"""

# ruff: noqa: D102 - pack and unpack are described there, once

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from fairlead.fabric.mrc.headers import FTYPE_TIMESTAMP, Buffer, Dialect, EndpointOp


def _lead(type_: int, nxt: int, rest: int = 0) -> int:
    """The first two bytes of the reliability and endpoint headers: type (15:12), nxt (11:7), and what follows."""
    return type_ << 12 | nxt << 7 | rest


@dataclass(frozen=True, slots=True)
class Seth:
    """SACK: what has arrived. Bit 0 (the lowest) of the bitmap stands for PSN cack_psn + sack_offset."""

    SIZE: ClassVar[int] = 28
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!HhIHHIBBhQ")

    cack_psn: int  # 24 bits
    ack_psn_offset: int  # signed 16 bits; the probe id when is_probe
    sack_offset: int  # signed 16 bits
    sack_bitmap: int  # 64 bits
    entropy: int  # 32 bits, the EV of the packet answered
    m: int = 0  # M_NONE, M_SKIP_ONCE, M_ALWAYS_SKIP
    is_probe: bool = False  # pr
    mpr: int = 0  # unit 128; 0 when dynamic MPR is off
    type: int = 0
    nxt: int = 0
    spdcid: int = 0
    dpdcid: int = 0
    cc_type: int = 0
    cc_flags: int = 0

    def pack(self) -> bytes:
        return self._FORMAT.pack(
            _lead(self.type, self.nxt, self.m << 5 | self.is_probe << 1),
            self.ack_psn_offset,
            self.entropy,
            self.spdcid,
            self.dpdcid,
            self.cack_psn & 0xFFFFFF,
            self.cc_type << 4 | self.cc_flags,
            self.mpr,
            self.sack_offset,
            self.sack_bitmap,
        )

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        lead, ack_offset, entropy, spdcid, dpdcid, cack, cc, mpr, sack_offset, bitmap = cls._FORMAT.unpack_from(
            data, offset
        )
        return cls(
            cack_psn=cack & 0xFFFFFF,
            ack_psn_offset=ack_offset,
            sack_offset=sack_offset,
            sack_bitmap=bitmap,
            entropy=entropy,
            m=lead >> 5 & 3,
            is_probe=bool(lead >> 1 & 1),
            mpr=mpr,
            type=lead >> 12,
            nxt=lead >> 7 & 0x1F,
            spdcid=spdcid,
            dpdcid=dpdcid,
            cc_type=cc >> 4,
            cc_flags=cc & 0xF,
        )


@dataclass(frozen=True, slots=True)
class CcState:
    """Congestion state that follows each SETH."""

    SIZE: ClassVar[int] = 8
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!HHI")

    tx_timestamp: int  # echo
    ooo_count: int  # 15 bits
    rcvd_bytes: int  # 24 bits, unit 256 B
    rcv_cwnd_pen: int = 0  # 7 bits
    restore_cwnd: bool = False

    def pack(self) -> bytes:
        return self._FORMAT.pack(
            self.tx_timestamp,
            self.ooo_count & 0x7FFF,
            self.restore_cwnd << 31 | self.rcv_cwnd_pen << 24 | self.rcvd_bytes & 0xFFFFFF,
        )

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        timestamp, ooo, word = cls._FORMAT.unpack_from(data, offset)
        return cls(timestamp, ooo & 0x7FFF, word & 0xFFFFFF, word >> 24 & 0x7F, bool(word >> 31))


@dataclass(frozen=True, slots=True)
class Neth:
    """NACK: one packet was not taken, and why."""

    SIZE: ClassVar[int] = 20
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!HBBIHHIBBH")

    nack_psn: int  # 24 bits
    reason: int
    entropy: int
    tx_timestamp: int = 0  # echo
    type: int = 0
    nxt: int = 0
    vendor: int = 0
    spdcid: int = 0
    dpdcid: int = 0
    cc_type: int = 2
    cc_flags: int = 0

    def pack(self) -> bytes:
        return self._FORMAT.pack(
            _lead(self.type, self.nxt),
            self.reason,
            self.vendor,
            self.entropy,
            self.spdcid,
            self.dpdcid,
            self.nack_psn & 0xFFFFFF,
            self.cc_type << 4 | self.cc_flags,
            0,
            self.tx_timestamp,
        )

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        lead, reason, vendor, entropy, spdcid, dpdcid, psn, cc, _, timestamp = cls._FORMAT.unpack_from(data, offset)
        return cls(
            nack_psn=psn & 0xFFFFFF,
            reason=reason,
            entropy=entropy,
            tx_timestamp=timestamp,
            type=lead >> 12,
            nxt=lead >> 7 & 0x1F,
            vendor=vendor,
            spdcid=spdcid,
            dpdcid=dpdcid,
            cc_type=cc >> 4,
            cc_flags=cc & 0xF,
        )


@dataclass(frozen=True, slots=True)
class Peth:
    """Reliability probe: consumes no PSN, asks for a SACK."""

    SIZE: ClassVar[int] = 16
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!HBBHHHHHH")

    probe_id: int
    tx_timestamp: int = 0
    tsr: int = 0
    ftype: int = FTYPE_TIMESTAMP
    type: int = 0
    nxt: int = 0
    vendor: int = 0
    spdcid: int = 0
    dpdcid: int = 0

    def pack(self) -> bytes:
        return self._FORMAT.pack(
            _lead(self.type, self.nxt),
            0,
            self.vendor,
            self.probe_id,
            0,
            self.spdcid,
            self.dpdcid,
            self.tx_timestamp,
            self.tsr << 15 | self.ftype,
        )

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        lead, _, vendor, probe_id, _, spdcid, dpdcid, timestamp, word = cls._FORMAT.unpack_from(data, offset)
        return cls(
            probe_id=probe_id,
            tx_timestamp=timestamp,
            tsr=word >> 15,
            ftype=word & 0xF,
            type=lead >> 12,
            nxt=lead >> 7 & 0x1F,
            vendor=vendor,
            spdcid=spdcid,
            dpdcid=dpdcid,
        )


@dataclass(frozen=True, slots=True)
class Erth:
    """Endpoint request: port status, or probe of an EV; BTH.PSN[15:0] is its id."""

    SIZE: ClassVar[int] = 16
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!HBBIIHH")

    op: EndpointOp
    port_status_mask: int = 0  # bit = port that is reachable
    tx_timestamp: int = 0
    tsr: int = 0
    ftype: int = FTYPE_TIMESTAMP
    type: int = 0
    nxt: int = 0
    vendor: int = 0

    def pack(self) -> bytes:
        return self._FORMAT.pack(
            _lead(self.type, self.nxt, self.op),
            0,
            self.vendor,
            self.port_status_mask,
            0,
            self.tx_timestamp,
            self.tsr << 15 | self.ftype,
        )

    @classmethod
    def unpack(cls, data: Buffer, offset: int) -> Self:
        lead, _, vendor, mask, _, timestamp, word = cls._FORMAT.unpack_from(data, offset)
        return cls(
            op=EndpointOp(lead & 3),
            port_status_mask=mask,
            tx_timestamp=timestamp,
            tsr=word >> 15,
            ftype=word & 0xF,
            type=lead >> 12,
            nxt=lead >> 7 & 0x1F,
            vendor=vendor,
        )


@dataclass(frozen=True, slots=True)
class Eeth:
    """Answer to an endpoint request."""

    SIZE: ClassVar[int] = 36
    _FORMAT: ClassVar[struct.Struct] = struct.Struct("!H26xH6x")

    op: int
    m: int = 0  # how the probe fared; no source shows it, SETH has it in these bits; lost when op stands in 5:4
    tx_timestamp: int = 0  # echo
    type: int = 0
    nxt: int = 0

    def pack(self, dialect: Dialect) -> bytes:
        m = self.m << 5 if dialect.eeth_op_shift == 2 else 0
        return self._FORMAT.pack(
            _lead(self.type, self.nxt, m | self.op << dialect.eeth_op_shift),
            self.tx_timestamp,
        )

    @classmethod
    def unpack(cls, data: Buffer, offset: int, dialect: Dialect) -> Self:
        lead, timestamp = cls._FORMAT.unpack_from(data, offset)
        return cls(
            op=lead >> dialect.eeth_op_shift & 3,
            m=lead >> 5 & 3 if dialect.eeth_op_shift == 2 else 0,
            tx_timestamp=timestamp,
            type=lead >> 12,
            nxt=lead >> 7 & 0x1F,
        )
