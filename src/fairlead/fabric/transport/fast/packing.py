"""What a queue pair sends now, as letters: the law asked, headers and iCRC written, payload left where it lies.

The compiled form of `QueuePair.transmit`, `blocks` and `packets.encode_parts`. It decides nothing:
which packet goes, and on which entropy value, is the law's word here too. A test compares both forms byte by byte.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.mrc import law
from fairlead.fabric.mrc.classes import dscp_of
from fairlead.fabric.mrc.compile import call_address
from fairlead.fabric.mrc.headers import ENDPOINT_QP, FTYPE_TIMESTAMP, EndpointOp, Opcode
from fairlead.fabric.mrc.layout import *
from fairlead.fabric.mrc.qp import OWN_ROTATION
from fairlead.fabric.mrc.rows import requestor_row, responder_row
from fairlead.fabric.transport.fast import gcm
from fairlead.fabric.transport.fast.layout import *
from fairlead.fabric.transport.fast.memory import (
    crc32,
    part,
    store8,
    store16,
    store32,
    store64,
    timestamp,
    words_at,
)
from fairlead.fabric.transport.seal import COUNTER_BYTES, SIZE_BYTES

WRITE_FIRST, WRITE_MIDDLE = int(Opcode.WRITE_FIRST), int(Opcode.WRITE_MIDDLE)
WRITE_LAST, WRITE_ONLY = int(Opcode.WRITE_LAST), int(Opcode.WRITE_ONLY)
ACK, SACK, NACK, PROBE = int(Opcode.ACK), int(Opcode.SACK), int(Opcode.NACK), int(Opcode.PROBE)
REQUEST, RESPONSE = int(Opcode.ENDPOINT_REQUEST), int(Opcode.ENDPOINT_RESPONSE)
OP_PORT_STATUS, OP_EV_PROBE = int(EndpointOp.PORT_STATUS), int(EndpointOp.EV_PROBE)
WRITE_CLASS = int(dscp_of(Opcode.WRITE_ONLY, trims=False))
TRIMMABLE = int(dscp_of(Opcode.WRITE_ONLY, trims=True))
TRIMMABLE_RETX = int(dscp_of(Opcode.WRITE_ONLY, trims=True, is_rtx=True))
PROBE_CLASS, REQUEST_CLASS = (int(dscp_of(opcode, trims=True)) for opcode in (Opcode.PROBE, Opcode.ENDPOINT_REQUEST))
CONTROL = int(dscp_of(Opcode.SACK, trims=True))
PKEY = 0xFFFF
BTH, VARIANT_AT = 12, 4
RTX, STAMPED, ASK = 1 << 29, 1 << 28, 1 << 31
NACK_CC_TYPE = 2
SIGNED16_LEAST = -0x8000


@part
def fill(k: Any, c: Any, now: int, ports: int, budget: int) -> int:
    """Write letters of one queue pair for the free ports (bit set of planes), answers first; how many."""
    m, block = words_at(c[C_M]), words_at(k[K_BLOCK])
    tx, rx = c[C_TX], c[C_RX]
    num = 0
    while c[C_HEAD] < c[C_TAIL] and num < budget:
        a = words_at(c[C_ANSWERS] + c[C_HEAD] % MAX_ANSWERS * ANSWER_ROW * WORD)
        if a[A_SLOT] == OWN_ROTATION and c[C_STATE] == STATE_RTS:
            slot = law.reply_slot(requestor_row(m, tx), ports)
        else:
            slot = law.control_slot(responder_row(m, rx), max(a[A_SLOT], 0), ports)
        if slot < 0:
            return num
        c[C_HEAD] += 1
        _answer(k, c, a, slot)
        num += 1
    while c[C_STATE] != STATE_OTHER and num < budget:
        kind = law.next_control(responder_row(m, rx), now, ports, block)
        if kind == SEND_NOTHING:
            break
        _control(k, c, block, kind, now)
        num += 1
    while c[C_STATE] == STATE_RTS and num < budget:
        kind = call_address(k[K_NEXT_PACKET], c[C_M], tx, now, ports, k[K_BLOCK])
        if kind == SEND_NOTHING:
            break
        if kind == SEND_DATA:
            _data(k, c, m, block, now)
        else:
            _control(k, c, block, kind, now)
        num += 1
    return num


@part
def _head(k: Any) -> int:
    """Where the header of the next letter goes."""
    return k[K_HEADS] + k[K_NUM_OUT] * HEAD_ROOM


@part
def _bth(head: int, opcode: int, dest_qp: int, psn: int, bits: int, pad: int) -> None:
    store8(head, opcode)
    store8(head + 1, pad << 4)
    store16(head + 2, PKEY)
    store32(head + 4, dest_qp & 0xFFFFFF)
    store32(head + 8, bits | psn & 0xFFFFFF)


@part
def _post(k: Any, c: Any, slot: int, dscp: int, head_length: int, data: int, length: int, pad: int) -> None:
    """The letter whose headers stand there is whole but for the iCRC, which leaves out BTH byte 4."""
    head = _head(k)
    tail = head + TAIL_AT
    crc = 0
    store32(tail, 0)
    if k[K_CRC] != 0:
        store8(head + VARIANT_AT, 0xFF)
        crc = crc32(k[K_CRC], 0, head, head_length)
        store8(head + VARIANT_AT, 0)
        if length > 0:
            crc = crc32(k[K_CRC], crc, data, length)
            crc = crc32(k[K_CRC], crc, tail, pad)
    for i in range(4):
        store8(tail + pad + i, crc >> 8 * i)
    o = words_at(k[K_OUT] + k[K_NUM_OUT] * OUT_ROW * WORD)
    o[O_CARD] = c[C_NUMBER]
    o[O_ROUTES] = c[C_ROUTES]
    o[O_SLOT] = slot
    o[O_DSCP] = dscp
    o[O_SOCKET] = words_at(c[C_ROUTES] + slot * ROUTE_ROW * WORD)[ROUTE_SOCKET]
    o[O_HEAD_LENGTH] = head_length
    o[O_DATA] = data
    o[O_DATA_LENGTH] = length
    o[O_TAIL_LENGTH] = pad + 4
    if c[C_SEAL] != 0:
        o[O_TAIL_LENGTH] += _close(k, words_at(c[C_SEAL]), head, head_length, data, length, tail, pad + 4)
    words_at(c[C_SENT])[slot] += 1
    k[K_NUM_OUT] += 1


@part
def _close(k: Any, s: Any, head: int, head_length: int, data: int, length: int, tail: int, tail_length: int) -> int:
    """Write the seal behind the trailer; how long it is."""
    at = tail + tail_length
    store64(at, s[L_NEXT])
    gcm.begin(k, s, s[L_NEXT])
    gcm.add(k, s, head, head_length)
    gcm.add(k, s, data, length)
    gcm.add(k, s, tail, tail_length)
    gcm.end(k, s, at + COUNTER_BYTES)
    s[L_NEXT] += 1
    return SIZE_BYTES


@part
def _data(k: Any, c: Any, m: Any, block: Any, now: int) -> None:
    """The data packet that the law described."""
    p = requestor_row(m, c[C_TX]).profile
    send = words_at(c[C_SENDS] + (block[D_MSN] & p.message_mask) * SEND_ROW * WORD)
    flags, offset, length = block[D_FLAGS], block[D_OFFSET], block[D_BYTES]
    has_imm = 1 if flags & F_IMM else 0
    if flags & F_LAST:
        opcode = (WRITE_ONLY if flags & F_FIRST else WRITE_LAST) + has_imm
    else:
        opcode = WRITE_FIRST if flags & F_FIRST else WRITE_MIDDLE
    pad = -length & 3
    head = _head(k)
    bits = STAMPED | (ASK if flags & F_ASK else 0) | (RTX if flags & F_RTX else 0)
    _bth(head, opcode, c[C_DEST], block[D_PSN], bits, pad)
    store16(head + BTH, block[D_RQMSN])
    store16(head + BTH + 2, block[D_MSN])
    store16(head + BTH + 4, timestamp(now))
    store16(head + BTH + 6, FTYPE_TIMESTAMP)
    store64(head + BTH + 8, send[SEND_VA] + offset)
    store32(head + BTH + 16, send[SEND_KEY])
    store32(head + BTH + 20, send[SEND_LENGTH] - offset)
    head_length = BTH + 24
    if has_imm:
        store32(head + head_length, send[SEND_IMM])
        head_length += 4
    dscp = WRITE_CLASS
    if p.trim:
        dscp = TRIMMABLE_RETX if flags & F_RTX else TRIMMABLE
    _post(k, c, block[D_EV], dscp, head_length, send[SEND_ADDRESS] + offset, length, pad)


@part
def _control(k: Any, c: Any, block: Any, kind: int, now: int) -> None:
    """The probe or port status that the law described."""
    head = _head(k)
    stamp = timestamp(now)
    if kind == SEND_PROBE:
        _bth(head, PROBE, c[C_DEST], 0, 0, 0)
        store32(head + BTH, 0)
        store16(head + BTH + 4, block[D_PSN])
        store32(head + BTH + 6, 0)
        store16(head + BTH + 10, 0)
    else:
        _bth(head, REQUEST, ENDPOINT_QP, block[D_PSN], 0, 0)
        store32(head + BTH, (OP_PORT_STATUS if kind == SEND_PORT_STATUS else OP_EV_PROBE) << 16)
        store32(head + BTH + 4, block[D_OFFSET])
        store32(head + BTH + 8, 0)
    store16(head + BTH + 12, stamp)
    store16(head + BTH + 14, FTYPE_TIMESTAMP)
    dscp = PROBE_CLASS if kind == SEND_PROBE else REQUEST_CLASS
    _post(k, c, block[D_EV], dscp, BTH + 16, 0, 0, 0)


@part
def _answer(k: Any, c: Any, a: Any, slot: int) -> None:
    """An answer that waited, on the entropy value that the law has chosen for it."""
    head = _head(k)
    kind = a[A_KIND]
    if kind == ANSWER_SACK:
        length = _sack(head, c[C_DEST], a)
    elif kind == ANSWER_NACK:
        length = _nack(head, c[C_DEST], a)
    elif kind == ANSWER_ACK:
        _bth(head, ACK, c[C_DEST], a[A_NUMBER], 0, 0)
        store32(head + BTH, a[A_BLOCK] & 0xFFFFFF)
        length = BTH + 4
    else:
        _bth(head, RESPONSE, ENDPOINT_QP, a[A_NUMBER], 0, 0)
        for i in range(9):
            store32(head + BTH + 4 * i, 0)
        store16(head + BTH, a[A_BLOCK])
        store16(head + BTH + 28, a[A_BLOCK + 1])
        length = BTH + 36
    _post(k, c, slot, CONTROL, length, 0, 0, 0)


@part
def _echo(a: Any) -> int:
    return timestamp(a[A_BLOCK + S_ECHO]) if a[A_BLOCK + S_ECHO] >= 0 else 0


@part
def _sack(head: int, dest_qp: int, a: Any) -> int:
    """SETH and CC_STATE; control_headers.py has their fields."""
    info, cack = a[A_BLOCK + S_INFO], a[A_BLOCK + S_CACK]
    is_probe = 1 if info & INFO_PROBE else 0
    _bth(head, SACK, dest_qp, 0, RTX if info & INFO_RTX else 0, 0)
    at = head + BTH
    store16(at, (info >> INFO_M_SHIFT & 3) << 5 | is_probe << 1)
    store16(at + 2, a[A_BLOCK + S_PSN] if is_probe else max(a[A_BLOCK + S_PSN] - cack, SIGNED16_LEAST))
    store32(at + 4, a[A_EV])
    store32(at + 8, 0)
    store32(at + 12, cack & 0xFFFFFF)
    store8(at + 16, 0)
    store8(at + 17, info >> INFO_MPR_SHIFT)
    store16(at + 18, max(a[A_BLOCK + S_BASE] - cack, SIGNED16_LEAST))
    store32(at + 20, a[A_BLOCK + S_HIGH])
    store32(at + 24, a[A_BLOCK + S_LOW])
    store16(at + 28, _echo(a))
    store16(at + 30, info >> INFO_OOO_SHIFT & 0x7FFF)
    restore = 1 if info & INFO_RESTORE else 0
    store32(at + 32, restore << 31 | (info >> INFO_PEN_SHIFT & 0x7F) << 24 | a[A_BLOCK + S_RCVD] & 0xFFFFFF)
    return BTH + 36


@part
def _nack(head: int, dest_qp: int, a: Any) -> int:
    """NETH."""
    info = a[A_BLOCK + S_INFO]
    _bth(head, NACK, dest_qp, 0, RTX if info & INFO_RTX else 0, 0)
    at = head + BTH
    store16(at, 0)
    store8(at + 2, info >> INFO_REASON_SHIFT)
    store8(at + 3, 0)
    store32(at + 4, a[A_EV])
    store32(at + 8, 0)
    store32(at + 12, a[A_BLOCK + S_PSN] & 0xFFFFFF)
    store8(at + 16, NACK_CC_TYPE << 4)
    store8(at + 17, 0)
    store16(at + 18, _echo(a))
    return BTH + 20
