"""What came, taken in: source looked up, headers read, iCRC and key checked, payload put in its place, the law told.

The compiled form of `Engine._take`, `Device.receive` and `QueuePair.take` for the packets that make up the traffic:
Writes, SACKs, NACKs and transport ACKs of queue pairs that stand, and EV probes, which are for all of a peer. All else
(other endpoint packets, reliability probes, trimmed, damaged or misdirected ones) is left to those functions
themselves, so what is wrong with a packet is said in one place.

What applications and the engine have to hear is written down as news, in the order in which it happened.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.mrc import bits, law
from fairlead.fabric.mrc.compile import call_address
from fairlead.fabric.mrc.headers import ENDPOINT_QP, Dscp, Opcode
from fairlead.fabric.mrc.layout import *
from fairlead.fabric.mrc.qp import OWN_ROTATION, PROBE_ID_MASK
from fairlead.fabric.mrc.rows import requestor_row, responder_row
from fairlead.fabric.transport.fast import gcm
from fairlead.fabric.transport.fast.layout import *
from fairlead.fabric.transport.fast.memory import (
    copy,
    crc32,
    load8,
    load16,
    load32,
    load64,
    part,
    store8,
    time_of,
    words_at,
)
from fairlead.fabric.transport.fast.packing import (
    ACK,
    BTH,
    NACK,
    OP_EV_PROBE,
    OP_PORT_STATUS,
    REQUEST,
    RESPONSE,
    SACK,
    VARIANT_AT,
)

WRITE_FIRST, WRITE_LAST = int(Opcode.WRITE_FIRST), int(Opcode.WRITE_LAST)
WRITE_LAST_IMM, WRITE_ONLY_IMM = int(Opcode.WRITE_LAST_IMM), int(Opcode.WRITE_ONLY_IMM)
TRIMMED, TRIMMED_LASTHOP = int(Dscp.TRIMMED), int(Dscp.TRIMMED_LASTHOP)
ICRC = 4
SACK_LENGTH, NACK_LENGTH, ACK_LENGTH = BTH + 36 + ICRC, BTH + 20 + ICRC, BTH + 4 + ICRC
REQUEST_LENGTH, RESPONSE_LENGTH = BTH + 16 + ICRC, BTH + 36 + ICRC
WRITE_LEAST = BTH + 4 + 16 + ICRC


@part
def take(k: Any, first: int, count: int, now: int) -> int:
    """Take in letters from `first` on; the one that Python has to take, or `count`.

    Ends early, behind the letter, where a queue pair has failed: nothing more may be judged before Python knows.
    """
    for i in range(first, count):
        letter = words_at(k[K_IN] + i * IN_ROW * WORD)
        if letter[I_PEER] == PEER_FOREIGN:
            k[K_FOREIGN] += 1
            continue
        if letter[I_PEER] == PEER_SLOW:
            return i
        if letter[I_SEAL] != 0 and not gcm.open_letter(k, letter):
            k[K_UNAUTHENTIC] += 1
            continue
        c_address = _card_of(k, letter)
        if c_address == 0:
            return i
        c = words_at(c_address)
        num_news = k[K_NUM_NEWS]
        opcode = load8(letter[I_DATA])
        if opcode in (SACK, NACK, ACK):
            taken = _control(k, c, letter, now)
        elif opcode == REQUEST:
            taken = _request(k, c, letter)
        elif opcode == RESPONSE:
            taken = _response(k, c_address, letter, now)
        else:
            taken = _write(k, c, letter, now)
        if not taken:
            return i
        k[K_RECEIVED] += 1
        k[K_MARKED] += letter[I_MARKED]
        _wake(k, c_address)
        for n in range(num_news, k[K_NUM_NEWS]):
            if words_at(k[K_NEWS] + n * NEWS_ROW * WORD)[N_KIND] == NEWS_FAIL:
                return i + 1
    return count


@part
def _tell(k: Any, c: Any, kind: int, a: int, b: int, more: int) -> None:
    news = words_at(k[K_NEWS] + k[K_NUM_NEWS] * NEWS_ROW * WORD)
    news[N_KIND] = kind
    news[N_CARD] = c[C_NUMBER]
    news[N_A] = a
    news[N_B] = b
    news[N_C] = more
    k[K_NUM_NEWS] += 1


@part
def _wake(k: Any, c_address: int) -> None:
    """The queue pair may have something to send."""
    c = words_at(c_address)
    if not c[C_READY]:
        c[C_READY] = 1
        _tell(k, c, NEWS_WAKE, c_address, 0, 0)


@part
def _card_of(k: Any, letter: Any) -> int:
    """Address of the card of the queue pair that a whole, intact packet of a known kind is for; 0: let Python see."""
    data, length = letter[I_DATA], letter[I_LENGTH]
    if length < BTH + ICRC or letter[I_DSCP] in (TRIMMED, TRIMMED_LASTHOP):
        return 0
    opcode = load8(data)
    if opcode == SACK:
        fits = length == SACK_LENGTH
    elif opcode == NACK:
        fits = length == NACK_LENGTH
    elif opcode == ACK:
        fits = length == ACK_LENGTH
    elif opcode == REQUEST:
        fits = length == REQUEST_LENGTH
    elif opcode == RESPONSE:
        fits = length == RESPONSE_LENGTH
    else:
        fits = WRITE_FIRST <= opcode <= WRITE_ONLY_IMM and length >= WRITE_LEAST
    if not fits:
        return 0
    qp = load32(data + 4) & 0xFFFFFF
    if opcode in (REQUEST, RESPONSE):
        return _standing(letter[I_CARD]) if qp == ENDPOINT_QP and _is_intact(k, data, length) else 0
    at = qp * HASH & k[K_CARDS_MASK]
    while True:
        row = words_at(k[K_CARDS] + at * CARD_ROW * WORD)
        if row[CARD_QP] == 0:
            return 0
        if row[CARD_QP] == qp:
            break
        at = at + 1 & k[K_CARDS_MASK]
    c = words_at(row[CARD_ADDRESS])
    if c[C_PEER] != letter[I_PEER] or c[C_STATE] == STATE_OTHER:
        return 0
    return row[CARD_ADDRESS] if _is_intact(k, data, length) else 0


@part
def _standing(card: int) -> int:
    """The first card from this one on, of those of a peer, whose queue pair hears; 0: none."""
    while card != 0 and words_at(card)[C_STATE] == STATE_OTHER:
        card = words_at(card)[C_BESIDE]
    return card


@part
def _is_intact(k: Any, data: int, length: int) -> bool:
    if k[K_CRC] == 0:
        return True
    variant = load8(data + VARIANT_AT)
    store8(data + VARIANT_AT, 0xFF)
    crc = crc32(k[K_CRC], 0, data, length - ICRC)
    store8(data + VARIANT_AT, variant)
    for i in range(ICRC):
        if load8(data + length - ICRC + i) != crc >> 8 * i & 0xFF:
            return False
    return True


@part
def _arrival_slot(m: Any, c: Any, letter: Any) -> int:
    """An EV slot of our own on the plane a packet came by, another for another EV of the peer."""
    p = responder_row(m, c[C_RX]).profile
    shift = p.ev_shift
    return min(letter[I_PLANE], p.planes - 1) << shift | letter[I_EV] & (1 << shift) - 1


@part
def _wait_to_answer(c: Any, block: Any, kind: int, slot: int, ev: int, number: int) -> None:
    """An answer waits for its turn; of too many the oldest is dropped, for SACKs are cumulative."""
    a = words_at(c[C_ANSWERS] + c[C_TAIL] % MAX_ANSWERS * ANSWER_ROW * WORD)
    a[A_KIND] = kind
    a[A_SLOT] = slot
    a[A_EV] = ev
    a[A_NUMBER] = number
    for i in range(NUM_SACK_FIELDS):
        a[A_BLOCK + i] = block[i]
    c[C_TAIL] += 1
    c[C_HEAD] = max(c[C_HEAD], c[C_TAIL] - MAX_ANSWERS)


@part
def _write(k: Any, c: Any, letter: Any, now: int) -> bool:
    """A packet of a Write; False if its lengths do not fit together."""
    data, length = letter[I_DATA], letter[I_LENGTH] - ICRC
    opcode = load8(data)
    word = load32(data + 8)
    pad = load8(data + 1) >> 4 & 3
    has_imm = opcode in (WRITE_LAST_IMM, WRITE_ONLY_IMM)
    reth = data + BTH + 4 + (4 if word >> 28 & 1 else 0)
    start = reth + 16 + (4 if has_imm else 0) - data
    num_bytes = length - pad - start
    if length % 4 or num_bytes < 0:
        return False
    m, block = words_at(c[C_M]), words_at(k[K_BLOCK])
    rx = responder_row(m, c[C_RX])
    flags = (F_ECN if letter[I_MARKED] else 0) | (F_RTX if word >> 29 & 1 else 0) | (F_ASK if word >> 31 & 1 else 0)
    is_last = opcode >= WRITE_LAST
    if is_last:
        flags |= F_LAST
    imm = -1
    if has_imm:
        imm = load32(reth + 16)
        flags |= F_IMM
        if rx.wimm + rx.wimm_done >= c[C_RECEIVES]:
            flags |= F_NO_RESOURCE
    to = _place(k, load64(reth), load32(reth + 8), load32(reth + 12), num_bytes)
    if to < 0 or num_bytes > rx.profile.mtu:
        flags |= F_NO_ACCESS
    echo = time_of(load16(data + BTH + 4), now) if word >> 28 & 1 else -1
    psn = bits.unwrap(word & 0xFFFFFF, rx.next)
    slot = _arrival_slot(m, c, letter)
    did = call_address(k[K_ON_DATA], c[C_M], rx.address, now, psn, num_bytes, flags, slot, echo, k[K_BLOCK])
    if did & DO_PLACE:
        if num_bytes > 0:
            copy(to, data + start, num_bytes)
        if is_last:
            _tell(k, c, NEWS_LAST, psn, num_bytes, imm)
    if did & DO_SACK:
        _wait_to_answer(c, block, ANSWER_SACK, slot, letter[I_EV], 0)
    if did & DO_NACK:
        _wait_to_answer(c, block, ANSWER_NACK, slot, letter[I_EV], 0)
    if did & DO_ACK:
        block[0] = rx.done - 1
        _wait_to_answer(c, block, ANSWER_ACK, slot, letter[I_EV], word & 0xFFFFFF)
    if did & DID_COMPLETE:
        _tell(k, c, NEWS_DELIVER, rx.next, 0, 0)
    if did & DID_FAIL:
        _tell(k, c, NEWS_FAIL, did, 0, 0)
    return True


@part
def _place(k: Any, va: int, key: int, length: int, num_bytes: int) -> int:
    """Where in memory a packet with the rest of its message may write; -1: nowhere. Without bytes no key is needed."""
    if num_bytes > length:
        return -1
    if length == 0:
        return 0
    at = key * HASH & k[K_REGIONS_MASK]
    while True:
        row = words_at(k[K_REGIONS] + at * REGION_ROW * WORD)
        if row[REGION_KEY] == 0:
            return -1
        if row[REGION_KEY] == key + 1:
            break
        at = at + 1 & k[K_REGIONS_MASK]
    offset = va - row[REGION_VA]
    if offset < 0 or offset > row[REGION_LENGTH] - length:
        return -1
    return row[REGION_MEMORY] + offset


@part
def _slot_of(c: Any, ev: int) -> int:
    """The slot of an entropy value of ours; INFO_EV_MASK for any other."""
    at = (ev ^ ev >> 16) * HASH >> 7 & EV_MASK
    while True:
        row = words_at(c[C_SLOTS] + at * EV_ROW * WORD)
        if row[EV_VALUE] == 0:
            return INFO_EV_MASK
        if row[EV_VALUE] == ev + 1:
            return row[EV_SLOT]
        at = at + 1 & EV_MASK


@part
def _control(k: Any, c: Any, letter: Any, now: int) -> bool:
    """A SACK, NACK or transport ACK for the requestor; False if there is none yet."""
    if c[C_STATE] != STATE_RTS:
        return False
    m, block = words_at(c[C_M]), words_at(k[K_BLOCK])
    tx, data = requestor_row(m, c[C_TX]), letter[I_DATA]
    rtx = INFO_RTX if load32(data + 8) >> 29 & 1 else 0
    done = tx.done
    opcode = load8(data)
    at = data + BTH
    if opcode == SACK:
        lead, cack, word = load16(at), load32(at + 12), load32(at + 32)
        is_probe = lead >> 1 & 1
        offset = _signed16(load16(at + 2))
        block[S_CACK] = cack
        block[S_PSN] = offset if is_probe else cack + offset
        block[S_BASE] = cack + _signed16(load16(at + 18))
        block[S_LOW] = load32(at + 24)
        block[S_HIGH] = load32(at + 20)
        block[S_RCVD] = word & 0xFFFFFF
        block[S_INFO] = (
            _slot_of(c, load32(at + 4))
            | (lead >> 5 & 3) << INFO_M_SHIFT
            | (INFO_PROBE if is_probe else 0)
            | rtx
            | (INFO_RESTORE if word >> 31 else 0)
            | (word >> 24 & 0x7F) << INFO_PEN_SHIFT
            | (load16(at + 30) & 0x7FFF) << INFO_OOO_SHIFT
            | load8(at + 17) << INFO_MPR_SHIFT
        )
        block[S_ECHO] = time_of(load16(at + 28), now)
        did = call_address(k[K_ON_SACK], c[C_M], tx.address, now, k[K_BLOCK])
    elif opcode == NACK:
        block[S_PSN] = load32(at + 12)
        block[S_INFO] = _slot_of(c, load32(at + 4)) | load8(at + 2) << INFO_REASON_SHIFT
        block[S_ECHO] = time_of(load16(at + 18), now)
        did = call_address(k[K_ON_NACK], c[C_M], tx.address, now, k[K_BLOCK])
    else:
        did = law.on_ack(tx, now, load32(at) & 0xFFFFFF)
    if tx.done > done:
        _tell(k, c, NEWS_SENT, tx.done, 0, 0)
    if did & DID_FAIL:
        _tell(k, c, NEWS_FAIL, did, 0, 0)
    return True


@part
def _request(k: Any, c: Any, letter: Any) -> bool:
    """An EV probe, to be answered; False for anything else that is asked of the endpoint."""
    data, block = letter[I_DATA], words_at(k[K_BLOCK])
    if load16(data + BTH) & 3 != OP_EV_PROBE:
        return False
    psn = load32(data + 8) & 0xFFFFFF
    block[0] = law.probe_mark(F_ECN if letter[I_MARKED] else 0) << 5 | OP_EV_PROBE << 2
    block[1] = load16(data + BTH + 12)
    slot = _arrival_slot(words_at(c[C_M]), c, letter)
    if psn & 1 and c[C_STATE] == STATE_RTS:  # odd: the peer's responder asks
        slot = OWN_ROTATION
    _wait_to_answer(c, block, ANSWER_RESPONSE, slot, letter[I_EV], psn)
    return True


@part
def _response(k: Any, card: int, letter: Any, now: int) -> bool:
    """The answer to an EV probe of a queue pair with this peer, which knows it by its number; False for any other."""
    data = letter[I_DATA]
    lead = load16(data + BTH)
    if lead >> 2 & 3 == OP_PORT_STATUS:
        return False
    number, mark = load32(data + 8) & PROBE_ID_MASK, lead >> 5 & 3
    while card != 0:
        c = words_at(card)
        m = words_at(c[C_M])
        law.on_reverse_reply(responder_row(m, c[C_RX]), now, number, mark)
        if c[C_STATE] == STATE_RTS:
            law.on_ev_reply(requestor_row(m, c[C_TX]), now, number, mark)
        _wake(k, card)
        card = _standing(c[C_BESIDE])
    return True


@part
def _signed16(value: int) -> int:
    return (value & 0x7FFF) - (value & 0x8000)
