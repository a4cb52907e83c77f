"""A queue pair: the law over one requestor row and one responder row, with bytes on both sides.

The object holds what the law has no use for (payloads, addresses, keys, work requests) and translates between packets
and the law's blocks of integers. It decides nothing: what to send, what to place, what to answer, when to give up all
come back from `law` as bits. A driver uses six verbs and the application calls:

    receive(datagram, path, now_ns)    a UDP payload came, and how it travelled
    transmit(now_ns, ports)            datagrams to send now, each with its path
    next_timer_ns()                    when on_timer is due
    on_timer(now_ns)
    poll_event()                       what went wrong for good
    set_ports(now_ns, up)              local ports changed

    modify(state, ...), post_write(...), post_recv(...), close()
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import bits, blocks, evs, law, packets, responder, state
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.classes import dscp_of
from fairlead.fabric.mrc.completion import FAILURES, Completion, CompletionQueue, QpFailed, Status, WorkOpcode
from fairlead.fabric.mrc.control_headers import Eeth
from fairlead.fabric.mrc.entropy import default_evs, slots_of
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
from fairlead.fabric.mrc.rows import requestor_row, responder_row
from fairlead.fabric.mrc.verbs import (
    MAX_PENALTY,
    MPR_UNIT,
    EvState,
    QpHint,
    QpState,
    check_range,
    check_step,
    check_write,
    profile_changes,
)

ALL_PORTS = 0xFFFFFFFF
MAX_ANSWERS = 4096  # control packets waiting to be sent; SACKs are cumulative, so the oldest may go
OWN_ROTATION = -1  # in place of the slot that a packet came on: its answer takes the requestor's next EV
PROBE_ID_MASK = 0xFFFF  # an endpoint packet's id is BTH.PSN[15:0]


@dataclass(frozen=True, slots=True)
class _Send:
    """A posted Write."""

    wr_id: int
    data: memoryview
    remote_addr: int
    rkey: int
    imm: int | None


class QueuePair:
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
        self.qp_num = qp_num
        self.state = QpState.RESET
        self.dialect = dialect
        self._domain = domain
        self._send_cq = send_cq
        self._recv_cq = recv_cq
        self._seed = seed
        self._profile_of = profile_of
        self._hint: QpHint | None = None
        self._ports = ALL_PORTS
        self._set_up(profile, ev_values)
        self.dest_qp_num = 0
        self.num_bad_packets = 0
        self._block = [0] * max(at.NUM_SACK_FIELDS, at.NUM_SEND_FIELDS)
        self._sends: deque[_Send] = deque()
        self._receives: deque[int] = deque()
        self._lasts: list[tuple[int, int, int | None]] = []  # heap of messages' last packets: PSN, bytes, immediate
        self._message_psn = 0  # first PSN of the oldest incomplete message received
        self._answers: deque[tuple[Packet, int]] = deque(maxlen=MAX_ANSWERS)
        self._events: deque[QpFailed] = deque()

    def _set_up(self, profile: Profile, ev_values: Sequence[int] | None) -> None:
        """Rows and EVs as the profile asks."""
        self.profile = profile
        self.evs = tuple(ev_values) if ev_values is not None else default_evs(profile, self._seed)
        self._slots = slots_of(self.evs, profile)
        self.rows = state.allocate([profile], 1, 1)
        self.m = self.rows.plain()
        self.tx = requestor_row(self.m, self.rows.tx(0))
        self.rx = responder_row(self.m, self.rows.rx(0))

    # --- states ----------------------------------------------------------------------------------------------------

    def modify(self, target: QpState, **attributes: object) -> None:
        """Lead the queue pair on: INIT, RTR, RTS (verbs.py has the attributes), or ERR from anywhere."""
        if target is QpState.ERR:
            self._fail(Status.WR_FLUSH_ERR)
            return
        check_step(self.state, target, attributes)
        get = attributes.get
        self._set_profile(profile_changes(attributes))
        if target is QpState.INIT:
            self._to_init(attributes)
        elif target is QpState.RTR:
            self.dest_qp_num = _int(get("dest_qp_num"))
            self._message_psn = _int(get("rq_psn"))
            self.rx = law.init_rx(self.m, self.rx.address, self.rows.profiles[0], self._seed ^ 1, self._message_psn)
        else:
            self.tx = law.init_tx(self.m, self.tx.address, self.rows.profiles[0], self._seed, _int(get("sq_psn")))
            law.set_peer_window(self.tx, _int(get("mpr") or self.profile.mpr // MPR_UNIT))
            self.tx.responder_address = self.rx.address
            for field in ("ports", "peer_ports", "status"):  # what the responder heard and said since RTR
                setattr(self.tx, field, getattr(self.rx, field))
        self.state = target
        if target is QpState.RTR:
            self._obey(law.on_ports(self.rx, 0, self._ports, 1))

    def _to_init(self, attributes: Mapping[str, object]) -> None:
        chosen = [attributes.get(name) for name in ("ev_profile_id", "cc_profile_id")]
        if chosen != [None, None]:
            if self._profile_of is None:
                raise LocalProtocolError(
                    "fabric/bad-attribute",
                    "this queue pair has no device to find profiles on",
                    hint="use Device.create_qp",
                )
            ids = [None if number is None else _int(number) for number in chosen]
            self._set_up(self._profile_of(*ids), None)
        hint = attributes.get("hint")
        if isinstance(hint, QpHint):
            self._hint = hint
            hint.num_users += 1

    def _set_profile(self, changes: dict[str, object]) -> None:
        """Take negotiated values into the profile block; rows keep their size, so windows may only shrink."""
        profile = replace(self.profile, **changes)  # type: ignore[arg-type]
        if profile.ring > self.profile.ring:
            raise LocalProtocolError(
                "fabric/bad-attribute",
                f"the window is {profile.mpr} PSNs and the queue pair was created for {self.profile.mpr}",
                hint="create the queue pair with a profile of larger mpr",
            )
        block = profile.parameters()
        for name in changes:
            setattr(self.tx.profile, name, block[name])
        self.profile = replace(profile, mpr=self.profile.mpr)

    # --- application calls -----------------------------------------------------------------------------------------

    def post_write(
        self, data: bytes | bytearray | memoryview, *, wr_id: int, remote_addr: int, rkey: int, imm: int | None = None
    ) -> None:
        """Queue an RDMA Write, with `imm` a Write-with-Imm. `data` is not copied: let it be till then."""
        view = memoryview(data).cast("B")
        self._need(QpState.RTS)
        check_write(len(view), remote_addr=remote_addr, rkey=rkey, imm=imm)
        self._send_cq.reserve()
        if not law.post(self.tx, len(view), 0 if imm is None else 1):
            self._send_cq.release()
            raise LocalProtocolError(
                "fabric/queue-full",
                f"{self.profile.max_messages} messages are posted and not complete",
                hint="wait for a completion",
            )
        self._sends.append(_Send(wr_id, view, remote_addr, rkey, imm))

    def post_recv(self, *, wr_id: int) -> None:
        """Be ready for one more Write-with-Imm; MRC has no other use of receive requests."""
        if self.state not in (QpState.INIT, QpState.RTR, QpState.RTS):
            self._need(QpState.RTR)
        self._recv_cq.reserve()
        self._receives.append(wr_id)

    def set_ports(self, now_ns: int, up: int) -> None:
        """Local ports changed (bit set of planes); the peer will be told, once there is one."""
        self._ports = up
        if self.state in (QpState.RTR, QpState.RTS):
            self._obey(law.on_ports(self.rx, now_ns, up, 0 if self.state is QpState.RTS else 1))
        if self.state is QpState.RTS:
            self._obey(law.on_ports(self.tx, now_ns, up, 1))

    def set_penalty(self, penalty: int) -> None:
        """Ask the peer for less (rcv_cwnd_pen, 1 to 127), or as much as before (0)."""
        check_range("penalty", penalty, 0, MAX_PENALTY)
        law.on_pressure(self.rx, penalty)

    def ev_states(self) -> dict[int, EvState]:
        """The state of each entropy value."""
        self._need(QpState.RTS)
        return {ev: EvState(evs.ev_state(self.tx, slot)) for slot, ev in enumerate(self.evs)}

    def deny_ev(self, ev: int) -> None:
        """A controller takes an entropy value out of use."""
        evs.deny(self.tx, self._slot(ev))
        responder.deny(self.rx, self._slot(ev))

    def allow_ev(self, ev: int) -> None:
        """A controller lets an entropy value be used again."""
        evs.allow(self.tx, self._slot(ev))
        responder.allow(self.rx, self._slot(ev))

    def _slot(self, ev: int) -> int:
        self._need(QpState.RTS)
        if ev not in self._slots:
            raise LocalProtocolError(
                "fabric/bad-evs", f"queue pair {self.qp_num} has no EV {ev:#010x}", hint="`evs` lists those it has"
            )
        return self._slots[ev]

    def close(self) -> None:
        """Give up all outstanding work; it completes as flushed."""
        if self.state is not QpState.ERR:
            self._fail(Status.WR_FLUSH_ERR)

    def _need(self, wanted: QpState) -> None:
        if self.state is not wanted:
            raise LocalProtocolError(
                "fabric/wrong-state",
                f"queue pair {self.qp_num} is in state {self.state.name}, this needs {wanted.name}",
                hint="lead it there with modify",
            )

    # --- the six verbs ---------------------------------------------------------------------------------------------

    def poll_event(self) -> QpFailed | None:
        """The next thing to tell the application beside completions."""
        return self._events.popleft() if self._events else None

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

    def _deliver(self, before: int) -> None:
        """Complete received messages up to this PSN, the window's lower edge; immediates come out in message order."""
        while self._lasts and self._lasts[0][0] < before:
            psn, num_bytes, imm = heapq.heappop(self._lasts)
            total = (psn - self._message_psn) * self.profile.mtu + num_bytes
            self._message_psn = psn + 1
            if imm is not None:
                done = Completion(
                    self._receives.popleft(), self.qp_num, WorkOpcode.RECV_RDMA_WITH_IMM, Status.SUCCESS, total, imm
                )
                self._recv_cq.add(done)

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

    # --- endings ---------------------------------------------------------------------------------------------------

    def _obey(self, did: int) -> None:
        """Complete what the law says is complete, and fail if it says so."""
        self._complete_sends(self.tx.done)
        if did & at.DID_FAIL:
            reason = self.tx.error or self.rx.error
            kind, status, message = FAILURES[reason]
            self._events.append(
                QpFailed(self.qp_num, kind("fabric/qp-failed", message, hint="see the QP counters and EV states"))
            )
            self._fail(status)

    def _complete_sends(self, num_done: int) -> None:
        """So many messages are complete since the beginning."""
        while len(self._sends) > self.tx.posted - num_done:
            self._complete(self._sends.popleft(), Status.SUCCESS)

    def _fail(self, status: Status) -> None:
        """Enter the error state; the oldest request fails with the reason, the others are flushed."""
        self.state = QpState.ERR
        if self._hint is not None:
            self._hint.num_users -= 1
            self._hint = None
        while self._sends:
            self._complete(self._sends.popleft(), status)
            status = Status.WR_FLUSH_ERR
        while self._receives:
            wr_id = self._receives.popleft()
            self._recv_cq.add(Completion(wr_id, self.qp_num, WorkOpcode.RECV_RDMA_WITH_IMM, Status.WR_FLUSH_ERR))

    def _complete(self, send: _Send, status: Status) -> None:
        num_bytes = len(send.data) if status is Status.SUCCESS else 0
        self._send_cq.add(Completion(send.wr_id, self.qp_num, WorkOpcode.RDMA_WRITE, status, num_bytes, send.imm))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
