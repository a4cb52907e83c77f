"""Between the law's blocks of integers and packets: every field of one has its place in the other.

Pure translation, both ways, for the drivers that carry real bytes. A simulator passes the blocks themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.fabric.mrc import bits, packets
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.control_headers import CcState, Erth, Neth, Peth, Seth
from fairlead.fabric.mrc.headers import ENDPOINT_QP, Bth, Dscp, EndpointOp, Meth, Opcode, Reth, Tseth
from fairlead.fabric.mrc.packets import Nack, Path, Probe, Request, Sack, Write


def arrival_flags(path: Path) -> int:
    """F_* bits that the network gave a packet: ECN mark, trimmed, trimmed at the last hop."""
    flags = at.F_ECN if path.is_marked else 0
    if path.dscp in (Dscp.TRIMMED, Dscp.TRIMMED_LASTHOP):
        flags |= at.F_TRIMMED | (at.F_LAST_HOP if path.dscp == Dscp.TRIMMED_LASTHOP else 0)
    return flags


def write_packet(
    block: list[int], *, dest_qp: int, data: memoryview, remote_addr: int, rkey: int, imm: int | None, stamp: int
) -> Write:
    """The data packet that next_packet described, of a message with these bytes and this remote place.

    RETH is advanced per packet: its address is this packet's, its length what is left of the message from there.
    """
    flags = block[at.D_FLAGS]
    offset = block[at.D_OFFSET]
    payload = data[offset : offset + block[at.D_BYTES]]
    has_imm = bool(flags & at.F_IMM)
    bth = Bth(
        opcode=packets.write_opcode(
            is_first=bool(flags & at.F_FIRST), is_last=bool(flags & at.F_LAST), has_imm=has_imm
        ),
        dest_qp=dest_qp,
        psn=block[at.D_PSN],
        ack_request=bool(flags & at.F_ASK),
        rtx=bool(flags & at.F_RTX),
        has_timestamp=True,
        pad=packets.padding(len(payload)),
    )
    return Write(
        bth=bth,
        meth=Meth(block[at.D_RQMSN] & 0xFFFF, block[at.D_MSN] & 0xFFFF),
        reth=Reth(remote_addr + offset, rkey, len(data) - offset),
        payload=payload,
        tseth=Tseth(stamp),
        imm=imm if has_imm else None,
    )


def control_packet(kind: int, block: list[int], dest_qp: int, stamp: int) -> Probe | Request:
    """The reliability probe (SEND_PROBE) or endpoint request (SEND_EV_PROBE, SEND_PORT_STATUS) the law described."""
    number = block[at.D_PSN]
    if kind == at.SEND_PROBE:
        return Probe(Bth(Opcode.PROBE, dest_qp, 0), Peth(number, stamp))
    op = EndpointOp.PORT_STATUS if kind == at.SEND_PORT_STATUS else EndpointOp.EV_PROBE
    return Request(Bth(Opcode.ENDPOINT_REQUEST, ENDPOINT_QP, number), Erth(op, block[at.D_OFFSET], stamp))


def sack_packet(block: list[int], dest_qp: int, ev: int) -> Sack:
    """The SACK that the responder described, to a packet that came on this EV."""
    info = block[at.S_INFO]
    cack = block[at.S_CACK]
    is_probe = bool(info & at.INFO_PROBE)
    seth = Seth(
        cack_psn=cack,
        # a duplicate may be older than 16 bits can say; below cack_psn all bits are set, so the nearest will do
        ack_psn_offset=_signed16(block[at.S_PSN]) if is_probe else max(block[at.S_PSN] - cack, -0x8000),
        sack_offset=max(block[at.S_BASE] - cack, -0x8000),
        sack_bitmap=block[at.S_HIGH] << 32 | block[at.S_LOW],
        entropy=ev,
        m=info >> at.INFO_M_SHIFT & 3,
        is_probe=is_probe,
        mpr=info >> at.INFO_MPR_SHIFT & 0xFF,
    )
    cc = CcState(
        tx_timestamp=_echo(block),
        ooo_count=info >> at.INFO_OOO_SHIFT & 0x7FFF,
        rcvd_bytes=block[at.S_RCVD],
        rcv_cwnd_pen=info >> at.INFO_PEN_SHIFT & 0x7F,
        restore_cwnd=bool(info & at.INFO_RESTORE),
    )
    return Sack(Bth(Opcode.SACK, dest_qp, 0, rtx=bool(info & at.INFO_RTX)), seth, cc)


def nack_packet(block: list[int], dest_qp: int, ev: int) -> Nack:
    """The NACK that the responder described."""
    info = block[at.S_INFO]
    neth = Neth(
        nack_psn=block[at.S_PSN],
        reason=info >> at.INFO_REASON_SHIFT & 0xFF,
        entropy=ev,
        tx_timestamp=_echo(block),
    )
    return Nack(Bth(Opcode.NACK, dest_qp, 0, rtx=bool(info & at.INFO_RTX)), neth)


def read_sack(packet: Sack, block: list[int], slots: Mapping[int, int], now_ns: int) -> None:
    """Fill the block on_sack reads. `slots` maps this queue pair's EVs to slots; any other EV is ignored."""
    seth, cc = packet.seth, packet.cc
    block[at.S_CACK] = seth.cack_psn
    block[at.S_PSN] = seth.ack_psn_offset if seth.is_probe else seth.cack_psn + seth.ack_psn_offset
    block[at.S_BASE] = seth.cack_psn + seth.sack_offset
    block[at.S_LOW] = seth.sack_bitmap & bits.LOW32
    block[at.S_HIGH] = seth.sack_bitmap >> 32
    block[at.S_RCVD] = cc.rcvd_bytes
    block[at.S_INFO] = (
        slots.get(seth.entropy, at.INFO_EV_MASK)
        | seth.m << at.INFO_M_SHIFT
        | (at.INFO_PROBE if seth.is_probe else 0)
        | (at.INFO_RTX if packet.bth.rtx else 0)
        | (at.INFO_RESTORE if cc.restore_cwnd else 0)
        | cc.rcv_cwnd_pen << at.INFO_PEN_SHIFT
        | cc.ooo_count << at.INFO_OOO_SHIFT
        | seth.mpr << at.INFO_MPR_SHIFT
    )
    block[at.S_ECHO] = packets.time_of(cc.tx_timestamp, now_ns)


def read_nack(packet: Nack, block: list[int], slots: Mapping[int, int], now_ns: int) -> None:
    """Fill the block on_nack reads. NETH has no ECN state, so the reason alone speaks of the EV."""
    block[at.S_PSN] = packet.neth.nack_psn
    block[at.S_INFO] = slots.get(packet.neth.entropy, at.INFO_EV_MASK) | packet.neth.reason << at.INFO_REASON_SHIFT
    block[at.S_ECHO] = packets.time_of(packet.neth.tx_timestamp, now_ns)


def _echo(block: list[int]) -> int:
    """The timestamp to echo; 0 where the packet had none."""
    return packets.timestamp(block[at.S_ECHO]) if block[at.S_ECHO] >= 0 else 0


def _signed16(value: int) -> int:
    return (value & 0x7FFF) - (value & 0x8000)
