"""A queue pair: the law over one requestor row and one responder row, with bytes on both sides.

The object holds what the law has no use for (payloads, addresses, keys, work requests) and translates between packets
and the law's blocks of integers. It decides nothing: what to send, what to place, what to answer, when to give up all
come back from `law` as bits. A driver uses six verbs; what an application calls stands in work.py:

    receive(datagram, path, now_ns)    a UDP payload came, and how it travelled
    transmit(now_ns, ports)            datagrams to send now, each with its path
    next_timer_ns()                    when on_timer is due
    on_timer(now_ns)
    poll_event()                       what went wrong for good
    set_ports(now_ns, up)              local ports changed
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import bits, blocks, law, packets
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.classes import dscp_of
from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.control_headers import Eeth
from fairlead.fabric.mrc.headers import DEFAULT_DIALECT, ENDPOINT_QP, Aeth, Bth, Dialect, EndpointOp, Opcode
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.memory import ProtectionDomain
from fairlead.fabric.mrc.packets import (
    Ack,
    Datagram,
    Nack,
    Packet,
    Path,
    Probe,
    Request,
    Response,
    Sack,
    WireError,
    Write,
)
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState
from fairlead.fabric.mrc.work import ALL_PORTS, WorkPair

__all__ = ["ALL_PORTS", "QueuePair"]

MAX_ANSWERS = 4096  # control packets waiting to be sent; SACKs are cumulative, so the oldest may go
OWN_ROTATION = -1  # in place of the slot that a packet came on: its answer takes the requestor's next EV
PROBE_ID_MASK = 0xFFFF  # an endpoint packet's id is BTH.PSN[15:0]


class QueuePair(WorkPair):
    """One end of a Multipath Reliable Connection."""

    def __init__(
        self,
        *,
        qp_num: int,
        profile: Profile,
        domain: ProtectionDomain,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        seed: int,
        ev_values: Sequence[int] | None = None,
        dialect: Dialect = DEFAULT_DIALECT,
        profile_of: Callable[[int | None, int | None], Profile] | None = None,
    ) -> None:
        """`ev_values` are the 32-bit entropy values by slot, plane by plane; by default `default_evs`.

        `profile_of` finds the profile that ev_profile_id and cc_profile_id name; a device has it.
        """
        if dialect.icrc is Icrc.ROCE:
            raise LocalProtocolError(
                "fabric/bad-attribute",
                "the iCRC variant ROCE covers addresses, which a queue pair does not see",
                hint="use Icrc.PACKET, or Icrc.NONE and let the driver add and check it",
            )
        super().__init__(
            qp_num=qp_num,
            profile=profile,
            domain=domain,
            send_cq=send_cq,
            recv_cq=recv_cq,
            seed=seed,
            ev_values=ev_values,
            profile_of=profile_of,
        )
        self.dialect = dialect
        self.num_bad_packets = 0
        self._block = [0] * max(at.NUM_SACK_FIELDS, at.NUM_SEND_FIELDS)
        self._answers: deque[tuple[Packet, int]] = deque(maxlen=MAX_ANSWERS)

    # --- the driver's verbs ----------------------------------------------------------------------------------------

    def next_timer_ns(self) -> int | None:
        """When on_timer has work; None: not before something else happens."""
        earliest = at.FOREVER
        if self.state is QpState.RTS:
            earliest = self.tx.deadline
        if self.state in (QpState.RTR, QpState.RTS):
            earliest = min(earliest, self.rx.deadline)
        return earliest if earliest < at.FOREVER else None

    def on_timer(self, now_ns: int) -> None:
        """The time next_timer_ns named has come; being early does no harm."""
        if self.state in (QpState.RTR, QpState.RTS):
            self._obey(law.on_rx_timer(self.rx, now_ns))
        if self.state is QpState.RTS:
            self._obey(law.on_timer(self.tx, now_ns))

    def transmit(self, now_ns: int, ports: int = ALL_PORTS) -> Iterator[Datagram]:
        """Datagrams to send now on the free ports (bit set of planes), answers first; stop taking them at any time."""
        while self._answers:  # also in the error state: the last one may say why
            packet, arrived_on = self._answers[0]
            if arrived_on == OWN_ROTATION and self.state is QpState.RTS:
                slot = law.reply_slot(self.tx, ports)
            else:
                slot = law.control_slot(self.rx, max(arrived_on, 0), ports)
            if slot < 0:
                return
            self._answers.popleft()
            yield self._datagram(packet, slot)
        block = self._block
        while self.state in (QpState.RTR, QpState.RTS):
            kind = law.next_control(self.rx, now_ns, ports, block)
            if kind == at.SEND_NOTHING:
                break
            yield self._control(kind, now_ns)
        while self.state is QpState.RTS:
            kind = law.next_packet(self.tx, now_ns, ports, block)
            if kind == at.SEND_NOTHING:
                break
            yield self._data(now_ns) if kind == at.SEND_DATA else self._control(kind, now_ns)

    def receive(self, data: bytes | bytearray | memoryview, path: Path, now_ns: int) -> None:
        """Take in a UDP payload. What is no packet for this queue pair is counted and dropped."""
        try:
            packet = packets.decode(data, self.dialect, is_trimmed=path.is_trimmed)
        except WireError:
            self.num_bad_packets += 1
            return
        self.take(packet, path, now_ns)

    def take(self, packet: Packet, path: Path, now_ns: int, *, answer: bool = True) -> None:
        """The same for a packet that is decoded; without `answer` another queue pair answers an endpoint request."""
        if self.state not in (QpState.RTR, QpState.RTS) or packet.bth.dest_qp not in (self.qp_num, ENDPOINT_QP):
            self.num_bad_packets += 1
            return
        match packet:
            case Write():
                self._on_write(packet, path, now_ns)
            case Probe():
                self._on_probe(packet, path, now_ns)
            case Request():
                self._on_request(packet, path, answer=answer)
            case Response():
                self._on_response(packet, now_ns)
            case _ if self.state is QpState.RTS:
                self._on_control(packet, now_ns)

    # --- sending ---------------------------------------------------------------------------------------------------

    def _datagram(self, packet: Packet, slot: int) -> Datagram:
        plane = slot // self.profile.evs_per_plane
        header, payload, tail = packets.encode_parts(packet, self.dialect)
        dscp = dscp_of(packet.bth.opcode, trims=self.profile.trim, is_rtx=packet.bth.rtx)
        return Datagram(header, Path(ev=self.evs[slot], plane=plane, dscp=dscp), payload, tail)

    def _data(self, now_ns: int) -> Datagram:
        """The data packet that the law described in the block."""
        block = self._block
        send = self._sends[block[at.D_MSN] - self.tx.done]
        packet = blocks.write_packet(
            block,
            dest_qp=self.dest_qp_num,
            data=send.data,
            remote_addr=send.remote_addr,
            rkey=send.rkey,
            imm=send.imm,
            stamp=packets.timestamp(now_ns),
        )
        return self._datagram(packet, block[at.D_EV])

    def _control(self, kind: int, now_ns: int) -> Datagram:
        """The probe or port status that the law described in the block."""
        packet = blocks.control_packet(kind, self._block, self.dest_qp_num, packets.timestamp(now_ns))
        return self._datagram(packet, self._block[at.D_EV])

    def _answer(self, packet: Packet, path: Path) -> None:
        self._answers.append((packet, self._arrival_slot(path)))

    def _arrival_slot(self, path: Path) -> int:
        """An EV slot of our own on the plane a packet came by, another for another EV of the peer."""
        per_plane = self.profile.evs_per_plane
        return min(path.plane, self.profile.planes - 1) * per_plane + path.ev % per_plane

    # --- receiving as a responder ----------------------------------------------------------------------------------

    def _on_write(self, packet: Write, path: Path, now_ns: int) -> None:
        bth, reth = packet.bth, packet.reth
        flags = blocks.arrival_flags(path) | (at.F_RTX if bth.rtx else 0) | (at.F_ASK if bth.ack_request else 0)
        is_last = bth.opcode in packets.LASTS
        if is_last:
            flags |= at.F_LAST
        if packet.imm is not None:
            flags |= at.F_IMM
            if self.rx.wimm >= len(self._receives):
                flags |= at.F_NO_RESOURCE
        region = self._domain.admit(reth.rkey, reth.va, reth.dma_len, len(packet.payload))
        if region is None or len(packet.payload) > self.profile.mtu:
            flags |= at.F_NO_ACCESS
        echo = packets.time_of(packet.tseth.tx_timestamp, now_ns) if packet.tseth is not None else -1
        psn = bits.unwrap(bth.psn, self.rx.next)
        block = self._block
        slot = self._arrival_slot(path)
        did = law.on_data(self.rx, now_ns, psn, len(packet.payload), flags, slot, echo, block)
        if did & at.DO_PLACE:
            if region is not None and packet.payload:
                start = reth.va - region.addr
                region.buffer[start : start + len(packet.payload)] = packet.payload
            if is_last:
                heapq.heappush(self._lasts, (psn, len(packet.payload), packet.imm))
        if did & at.DO_SACK:
            self._answer(blocks.sack_packet(block, self.dest_qp_num, path.ev), path)
        if did & at.DO_NACK:
            self._answer(blocks.nack_packet(block, self.dest_qp_num, path.ev), path)
        if did & at.DO_ACK:
            aeth = Aeth(0, self.rx.done - 1)
            self._answer(Ack(Bth(Opcode.ACK, self.dest_qp_num, bth.psn), aeth), path)
        self._deliver(self.rx.next)
        self._obey(did)

    def _on_probe(self, packet: Probe, path: Path, now_ns: int) -> None:
        echo = packets.time_of(packet.peth.tx_timestamp, now_ns)
        probe_id = packet.peth.probe_id
        flags = blocks.arrival_flags(path)
        if law.on_probe(self.rx, probe_id, flags, self._arrival_slot(path), echo, self._block):
            self._answer(blocks.sack_packet(self._block, self.dest_qp_num, path.ev), path)

    # --- receiving as a requestor ----------------------------------------------------------------------------------

    def _on_control(self, packet: Sack | Nack | Ack, now_ns: int) -> None:
        block = self._block
        match packet:
            case Sack():
                blocks.read_sack(packet, block, self._slots, now_ns)
                self._obey(law.on_sack(self.tx, now_ns, block))
            case Nack():
                blocks.read_nack(packet, block, self._slots, now_ns)
                self._obey(law.on_nack(self.tx, now_ns, block))
            case _:
                self._obey(law.on_ack(self.tx, now_ns, packet.aeth.msn))

    # --- endpoint packets ------------------------------------------------------------------------------------------

    def _on_request(self, packet: Request, path: Path, *, answer: bool) -> None:
        """Answer an EV probe or a port status; both halves learn of the peer's ports."""
        erth = packet.erth
        if erth.op is EndpointOp.PORT_STATUS:
            number = packet.bth.psn & PROBE_ID_MASK
            for row in (self.tx, self.rx) if self.state is QpState.RTS else (self.rx,):
                law.on_peer_ports(row, erth.port_status_mask, number, path.plane)
        if not answer:
            return
        eeth = Eeth(erth.op, law.probe_mark(blocks.arrival_flags(path)), erth.tx_timestamp)
        response = Response(Bth(Opcode.ENDPOINT_RESPONSE, ENDPOINT_QP, packet.bth.psn), eeth)
        if erth.op is EndpointOp.EV_PROBE and packet.bth.psn & 1 and self.state is QpState.RTS:
            self._answers.append((response, OWN_ROTATION))  # odd: the peer's responder asks
        else:
            self._answer(response, path)

    def _on_response(self, packet: Response, now_ns: int) -> None:
        """An answer to a request of either half; ids tell which."""
        number = packet.bth.psn & PROBE_ID_MASK
        rows = (self.tx, self.rx) if self.state is QpState.RTS else (self.rx,)
        if packet.eeth.op == EndpointOp.PORT_STATUS:
            for row in rows:
                law.on_status_reply(row, number)
        else:
            law.on_reverse_reply(self.rx, now_ns, number, packet.eeth.m)
            if self.state is QpState.RTS:
                law.on_ev_reply(self.tx, now_ns, number, packet.eeth.m)
