"""A queue pair whose bursts are compiled: `mrc.QueuePair` with a card on a desk.

Calls of the application, timers, ports, endpoint packets and endings are the core's own functions, on the same rows.
"""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairlead.fabric.mrc import layout as law_at
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.mrc.layout import TIMESTAMP_UNIT_NS
from fairlead.fabric.mrc.packets import Ack, Datagram, Nack, Packet, Path, Response, Sack
from fairlead.fabric.mrc.qp import ALL_PORTS, QueuePair
from fairlead.fabric.mrc.verbs import QpState
from fairlead.fabric.transport.fast import kernels
from fairlead.fabric.transport.fast import layout as at
from fairlead.fabric.transport.fast.desk import Desk, Words, address_of, address_of_bytes, signed, table

_STATES = {QpState.RTR: at.STATE_RTR, QpState.RTS: at.STATE_RTS}


class Answers:
    """The answers that wait, on the card: what Python has to add goes behind what kernels have added."""

    def __init__(self, card: Words) -> None:
        self._card = card
        self.ring: Words = np.zeros((at.MAX_ANSWERS, at.ANSWER_ROW), dtype=np.int64)
        card[at.C_ANSWERS] = address_of(self.ring)

    def __len__(self) -> int:
        return int(self._card[at.C_TAIL] - self._card[at.C_HEAD])

    def append(self, answer: tuple[Packet, int]) -> None:
        """A packet, and the slot that what it answers has come on."""
        packet, slot = answer
        card = self._card
        row = self.ring[card[at.C_TAIL] % at.MAX_ANSWERS]
        row[:] = 0
        row[at.A_SLOT] = slot
        row[at.A_NUMBER] = packet.bth.psn
        match packet:
            case Sack():
                row[at.A_KIND], row[at.A_EV] = at.ANSWER_SACK, packet.seth.entropy
                row[at.A_BLOCK :] = _sack_block(packet)
            case Nack():
                row[at.A_KIND], row[at.A_EV] = at.ANSWER_NACK, packet.neth.entropy
                row[at.A_BLOCK + law_at.S_PSN] = packet.neth.nack_psn
                rtx = law_at.INFO_RTX if packet.bth.rtx else 0
                row[at.A_BLOCK + law_at.S_INFO] = packet.neth.reason << law_at.INFO_REASON_SHIFT | rtx
                row[at.A_BLOCK + law_at.S_ECHO] = packet.neth.tx_timestamp * TIMESTAMP_UNIT_NS
            case Ack():
                row[at.A_KIND] = at.ANSWER_ACK
                row[at.A_BLOCK] = packet.aeth.msn
            case Response():
                row[at.A_KIND] = at.ANSWER_RESPONSE
                row[at.A_BLOCK] = packet.eeth.m << 5 | packet.eeth.op << 2
                row[at.A_BLOCK + 1] = packet.eeth.tx_timestamp
            case _:
                raise AssertionError(packet)
        card[at.C_TAIL] += 1
        card[at.C_HEAD] = max(card[at.C_HEAD], card[at.C_TAIL] - at.MAX_ANSWERS)


def _sack_block(packet: Sack) -> list[int]:
    """The block of the law that `blocks.sack_packet` made a SACK of, as far as the SACK shows it."""
    seth, cc = packet.seth, packet.cc
    block = [0] * law_at.NUM_SACK_FIELDS
    block[law_at.S_CACK] = seth.cack_psn
    block[law_at.S_PSN] = seth.ack_psn_offset if seth.is_probe else seth.cack_psn + seth.ack_psn_offset
    block[law_at.S_BASE] = seth.cack_psn + seth.sack_offset
    block[law_at.S_LOW] = seth.sack_bitmap & 0xFFFFFFFF
    block[law_at.S_HIGH] = seth.sack_bitmap >> 32
    block[law_at.S_RCVD] = cc.rcvd_bytes
    block[law_at.S_INFO] = (
        seth.m << law_at.INFO_M_SHIFT
        | (law_at.INFO_PROBE if seth.is_probe else 0)
        | (law_at.INFO_RTX if packet.bth.rtx else 0)
        | (law_at.INFO_RESTORE if cc.restore_cwnd else 0)
        | cc.rcv_cwnd_pen << law_at.INFO_PEN_SHIFT
        | cc.ooo_count << law_at.INFO_OOO_SHIFT
        | seth.mpr << law_at.INFO_MPR_SHIFT
    )
    block[law_at.S_ECHO] = cc.tx_timestamp * TIMESTAMP_UNIT_NS
    return block


class BurstPair(QueuePair):
    """A queue pair of a `FastEngine`."""

    def __init__(self, *, desk: Desk, **options: Any) -> None:
        self.desk = desk
        self.card: Words = np.zeros(at.NUM_CARD_WORDS, dtype=np.int64)
        self.card_address = address_of(self.card)
        super().__init__(**options)
        self._answers = Answers(self.card)  # type: ignore[assignment]
        self._enter()

    def _enter(self) -> None:
        """Write the card, after anything that changes rows or state."""
        per_slot = len(self.evs)
        self._posted: Words = np.zeros((self.profile.max_messages, at.SEND_ROW), dtype=np.int64)
        self.routes: Words = np.zeros((per_slot, at.ROUTE_ROW), dtype=np.int64)
        self.sent_by_slot: Words = np.zeros(per_slot, dtype=np.int64)
        self._values: Words = np.array(self.evs, dtype=np.int64)
        rows = [((ev ^ ev >> 16) * at.HASH >> 7, (ev + 1, slot)) for ev, slot in self._slots.items()]
        self._by_ev = table(rows, at.EV_ROW, at.EV_MASK + 1)
        card = self.card
        card[at.C_M], card[at.C_TX], card[at.C_RX] = address_of(self.rows.m), self.tx.address, self.rx.address
        card[at.C_EVS], card[at.C_SLOTS] = address_of(self._values), address_of(self._by_ev)
        card[at.C_SENDS], card[at.C_ROUTES] = address_of(self._posted), address_of(self.routes)
        card[at.C_SENT], card[at.C_QP] = address_of(self.sent_by_slot), self.qp_num

    def modify(self, target: QpState, **attributes: object) -> None:
        """Lead the queue pair on, as `QueuePair.modify` says."""
        super().modify(target, **attributes)
        if target is QpState.INIT:
            self._enter()
        self.card[at.C_DEST] = self.dest_qp_num
        self.card[at.C_STATE] = _STATES.get(self.state, at.STATE_OTHER)

    def _fail(self, status: Status) -> None:
        self.card[at.C_STATE] = at.STATE_OTHER
        super()._fail(status)

    def post_write(
        self, data: bytes | bytearray | memoryview, *, wr_id: int, remote_addr: int, rkey: int, imm: int | None = None
    ) -> None:
        """Queue an RDMA Write, as `QueuePair.post_write` says."""
        number = self.tx.posted
        super().post_write(data, wr_id=wr_id, remote_addr=remote_addr, rkey=rkey, imm=imm)
        view = self._sends[-1].data
        row = (address_of_bytes(view), len(view), signed(remote_addr), rkey, imm or 0)
        self._posted[number % self.profile.max_messages] = row

    def post_recv(self, *, wr_id: int) -> None:
        """Be ready for one more Write-with-Imm."""
        super().post_recv(wr_id=wr_id)
        self.card[at.C_RECEIVES] += 1

    def hear(self, kind: int, a: int, b: int, c: int) -> None:
        """What a burst has brought about; see layout.py."""
        match kind:
            case at.NEWS_SENT:
                self._complete_sends(a)
            case at.NEWS_LAST:
                heapq.heappush(self._lasts, (a, b, c if c >= 0 else None))
            case at.NEWS_DELIVER:
                self._deliver(a)
            case at.NEWS_FAIL:
                self._obey(a)

    def transmit(self, now_ns: int, ports: int = ALL_PORTS) -> Iterator[Datagram]:
        """Datagrams to send now, copied: for drivers that do not send letters. None may wait on the desk."""
        fill, desk = kernels.fill(), self.desk
        assert desk.num_out == 0
        while fill(desk.address, self.card_address, now_ns, ports, 1):
            row = desk.out[0]
            slot = int(row[at.O_SLOT])
            path = Path(self.evs[slot], slot // self.profile.evs_per_plane, int(row[at.O_DSCP]))
            parts = self.parts(0)
            desk.words[at.K_NUM_OUT] = 0
            yield Datagram(parts[0], path, parts[1], parts[2])

    def parts(self, index: int) -> tuple[bytes, bytes, bytes]:
        """Headers, payload and trailer of a letter of this queue pair, copied."""
        row = self.desk.out[index]
        head = self.desk.heads[index]
        tail = bytes(head[at.TAIL_AT : at.TAIL_AT + int(row[at.O_TAIL_LENGTH])])
        body = ctypes.string_at(int(row[at.O_DATA]), int(row[at.O_DATA_LENGTH])) if row[at.O_DATA_LENGTH] else b""
        return bytes(head[: int(row[at.O_HEAD_LENGTH])]), body, tail
