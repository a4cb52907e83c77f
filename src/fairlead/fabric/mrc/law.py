"""The law of MRC: every event that can befall a queue pair, handled whole, in pure integer arithmetic.

A driver (a simulator's NIC, a socket loop, a test) holds packets and a clock; the law holds every rule and the order
in which the rules apply. The driver calls one handler per event and obeys the bits that come back:

    requestor   post                   a message to send
                next_packet            a port is free: what to send on which EV
                on_sack, on_nack       a control packet came back; on_ack a transport ACK
                on_timer               TX_DEADLINE has passed
                on_ev_reply            an EV probe was answered
                reply_slot             the EV for the answer to a responder's probe
    responder   on_data, on_probe      a packet came: place it or not, answer it or not
                control_slot           the EV for the answer
                next_control           DO_CONTROL was returned: a probe or a port status to send
                on_reverse_reply       a reverse EV probe was answered
                on_pressure            the host has little room for what arrives
    both        on_ports, on_peer_ports, on_status_reply

Handlers return DO_*/DID_* bits or SEND_* codes and write details to a block the driver passes (`out` or `s`, from
offset `o`; see layout.py). They allocate nothing, raise nothing, and touch one row, its profile and that block. Time
is `now`, integer nanoseconds from any origin, never falling. Files: bits, evs, paths, congestion, window, losses,
timers, sending, responder and this one: together "the law sources" that compiled kernels are keyed by.

Citations: [MRC] OCP MRC 1.0, [P1] arXiv 2605.04333, [UEC] ultraethernet/uet-htsim htsim/sim/uec.cpp.
"""
# ruff: noqa: F403, F405, PLR0917 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import bits, congestion, evs, losses, paths, responder, sending, timers, window
from fairlead.fabric.mrc.layout import *

TIMESTAMP_WRAP_MASK = (TIMESTAMP_UNIT_NS << TIMESTAMP_BITS) - 1
EARLIER = 0
LAST = 1

# --- setting up ------------------------------------------------------------------------------------------------


def _init_endpoint(m: Words, row: int, profile: int, seed: int) -> None:
    planes = (1 << m[profile + P_PLANES]) - 1
    m[row + E_PROFILE] = profile
    m[row + E_PORTS] = planes
    m[row + E_PEER_PORTS] = planes
    m[row + E_RANDOM] = bits.scramble(seed)
    m[row + E_STATUS_AT] = FOREVER


def init_tx(m: Words, tx: int, profile: int, seed: int, psn: int) -> None:
    """Set up a requestor row of zeros; `psn` is the first PSN (sq_psn)."""
    _init_endpoint(m, tx, profile, seed)
    m[tx + TX_UNA] = psn
    m[tx + TX_NEXT] = psn
    m[tx + TX_POSTED_PSN] = psn
    m[tx + TX_MPR] = m[profile + P_MPR]
    m[tx + TX_DEADLINE] = FOREVER
    m[tx + TX_RTO_AT] = FOREVER
    m[tx + TX_PROBE_AT] = FOREVER
    m[tx + TX_EVP_AT] = FOREVER
    m[tx + TX_HOLD_AT] = FOREVER
    m[tx + TX_LOSS_AT] = FOREVER
    m[tx + TX_RECOVERY] = -1
    m[tx + TX_REVERSE] = -1
    m[tx + TX_PROBE_SENT] = -1
    m[tx + TX_DELIVERED_AT] = -FOREVER
    m[tx + TX_EVP_ID] = bits.random32(m, tx + E_RANDOM) & timers.ID_MASK & ~1  # even; odd ids are the responder's
    congestion.init_cc(m, tx)
    evs.init_evs(m, tx)


def init_rx(m: Words, rx: int, profile: int, seed: int, psn: int) -> None:
    """Set up a responder row of zeros; `psn` is the first PSN expected (rq_psn)."""
    _init_endpoint(m, rx, profile, seed)
    m[rx + RX_NEXT] = psn
    m[rx + RX_MAX] = psn - 1
    m[rx + RX_LOW] = psn
    m[rx + RX_DEADLINE] = FOREVER
    m[rx + RX_PROBE_ID] = bits.random32(m, rx + E_RANDOM) & timers.ID_MASK | 1
    responder.init_reverse(m, rx)


# --- requestor: sending ------------------------------------------------------------------------------------------


def post(m: Words, tx: int, num_bytes: int, is_imm: int) -> int:
    """Queue an RDMA Write (is_imm 1: Write-with-Imm) of num_bytes; 0 if the ring is full or the queue pair failed."""
    if m[tx + E_ERROR]:
        return 0
    return window.add_message(m, tx, num_bytes, is_imm)


def ready(m: Words, tx: int) -> int:
    """1 if next_packet would send something, given a free port on an open plane."""
    if m[tx + E_ERROR]:
        return 0
    if m[tx + E_STATUS] & 1 or m[tx + TX_PROBE_DUE] or m[tx + TX_EVP_STATE] == EVP_DUE:
        return 1
    return 1 if sending.next_psn(m, tx) >= 0 else 0


def next_packet(m: Words, tx: int, now: int, ports: int, out: Words, o: int) -> int:
    """Choose the next packet for a free port out of the bit set `ports`; its fields go to out[o:] (D_*).

    Control first, then the oldest retransmission, then new data ([MRC]: retransmissions go ahead). SEND_NOTHING
    leaves the row as it was. The EV is chosen here, at the moment of sending, among the ports that are free.
    """
    if m[tx + E_ERROR]:
        return SEND_NOTHING
    kind = sending.next_control(m, tx, now, ports, out, o)
    if kind != SEND_NOTHING:
        return kind
    psn = sending.next_psn(m, tx)
    if psn < 0:
        return SEND_NOTHING
    again = psn < m[tx + TX_NEXT]
    if again:
        slot = paths.choose(m, tx, ports, window.record_ev(m[window.record_address(m, tx, psn)]))
    else:
        slot = paths.choose_in_run(m, tx, ports)
    if slot < 0:
        return SEND_NOTHING
    sending.send_data(m, tx, now, psn, slot, out, o)
    return SEND_DATA


# --- requestor: hearing ----------------------------------------------------------------------------------------


def on_sack(m: Words, tx: int, now: int, s: Words, o: int) -> int:
    """A SACK came: its fields are s[o:] (S_*)."""
    if m[tx + E_ERROR]:
        return DID_NOTHING
    m[tx + TX_NUM_SACKS] += 1
    p = m[tx + E_PROFILE]
    info = s[o + S_INFO]
    slot = info & INFO_EV_MASK
    mark = info >> INFO_M_SHIFT & 3
    marked = 1 if mark == M_SKIP_ONCE else 0
    done = m[tx + TX_DONE]
    mistakes = m[tx + TX_NUM_SPURIOUS]

    arrived = _newly_received(m, tx, s[o + S_RCVD])
    m[tx + TX_IN_FLIGHT] -= arrived
    congestion.penalise(m, tx, arrived, info >> INFO_PEN_SHIFT & 0x7F)
    if info & INFO_RESTORE:
        congestion.restore(m, tx)
    if info >> INFO_MPR_SHIFT & 0xFF:
        set_peer_window(m, tx, info >> INFO_MPR_SHIFT & 0xFF)  # dynamic MPR; 0 when off

    sent = _send_time(m, tx, now, s[o + S_PSN], info, s[o + S_ECHO])  # before the bitmap takes the packet out of flight
    delay = congestion.usual_delay(m, tx)
    if 0 <= sent < now:  # a clock that has not moved measures nothing
        delay = congestion.observe_rtt(m, tx, now, now - sent, marked)
        timers.learn_rtt(m, tx, now, now - sent)

    una = m[tx + TX_UNA]
    window.acknowledge_below(m, tx, bits.unwrap(s[o + S_CACK], una) + 1)
    base = bits.unwrap(s[o + S_BASE], una)
    window.acknowledge_bitmap(m, tx, base, s[o + S_LOW])
    window.acknowledge_bitmap(m, tx, base + bits.WORD_BITS, s[o + S_HIGH])
    window.close_gap(m, tx)
    if m[tx + TX_UNA] == m[tx + TX_NEXT]:
        m[tx + TX_IN_FLIGHT] = 0  # whatever the two ends think a packet counts

    _judge_path(m, tx, now, slot, mark, info & INFO_PROBE)
    congestion.on_arrival(m, tx, now, arrived, delay, marked)
    if m[tx + TX_NUM_SPURIOUS] > mistakes:
        timers.learn_mistake(m, tx, now)
    if m[tx + TX_RECOVERY] >= 0 and m[tx + TX_UNA] >= m[tx + TX_RECOVERY]:
        window.end_recovery(m, tx)
    if sent >= 0 and m[p + P_REORDER_NS] > 0:
        losses.on_arrival(m, tx, now, sent)
    _heard(m, tx, now)
    return DID_COMPLETE if m[tx + TX_DONE] > done else DID_NOTHING


def _newly_received(m: Words, tx: int, rcvd: int) -> int:
    """Bytes by which rcvd_bytes (24 bits, unit 256) has grown; an older SACK overtaken on its way adds nothing."""
    units = (rcvd - m[tx + TX_RCVD]) & responder.RCVD_MASK
    if units > responder.RCVD_MASK >> 1:
        return 0
    m[tx + TX_RCVD] = rcvd
    return units << responder.RCVD_UNIT_SHIFT


def set_peer_window(m: Words, tx: int, mpr: int) -> None:
    """The range of PSNs that the peer accepts (unit 128), never more than this row's rings hold."""
    m[tx + TX_MPR] = min(mpr << responder.MPR_UNIT_SHIFT, m[m[tx + E_PROFILE] + P_RING_MASK] + 1)


def _send_time(m: Words, tx: int, now: int, psn: int, info: int, echo: int) -> int:
    """When the packet that this SACK answers was sent; -1 if that cannot be told.

    The record says when it was last sent. If the answer is to an earlier transmission, sending again was a mistake, and
    the reorder window learns from it.
    """
    if info & INFO_PROBE:
        return m[tx + TX_PROBE_SENT] if psn & timers.ID_MASK == m[tx + TX_PROBE_ID] else -1
    psn = bits.unwrap(psn, m[tx + TX_UNA])
    if not window.is_in_flight(m, tx, psn):
        return -1
    record = m[window.record_address(m, tx, psn)]
    sent = window.sent_at(record, now)
    which = _transmission(record, sent, info, echo)
    if which == EARLIER:
        window.note_mistake(m, tx)
        if _is_ours(m, tx, info & INFO_EV_MASK):
            paths.forgive(m, tx, info & INFO_EV_MASK)
    return sent if which == LAST else -1


def _is_ours(m: Words, tx: int, slot: int) -> bool:
    """Whether a slot that a peer has named is one of this row."""
    p = m[tx + E_PROFILE]
    return slot >> m[p + P_EV_SHIFT] < m[p + P_PLANES]


def _transmission(record: int, sent: int, info: int, echo: int) -> int:
    """Which transmission of a packet an answer is about: the LAST, an EARLIER one, or -1 if that cannot be told.

    An echoed timestamp tells, however often it has wrapped meanwhile. Without one the echoed rtx bit tells of packets
    sent once or twice ([UEC] validateSendTs).
    """
    if echo >= 0:
        return LAST if (sent - echo) & TIMESTAMP_WRAP_MASK < TIMESTAMP_UNIT_NS else EARLIER
    tries = window.record_tries(record)
    if info & INFO_RTX:
        return LAST if tries == 1 else -1
    return LAST if tries == 0 else EARLIER


def _judge_path(m: Words, tx: int, now: int, slot: int, mark: int, is_probe: int) -> None:
    """The EV a SACK echoes was good, marked, or is to be dropped; a good one also serves the other direction."""
    if not _is_ours(m, tx, slot):
        return
    if is_probe:
        evs.probe_answered(m, tx, slot, mark)  # of no effect on an EV that is not ASSUMED_BAD
        evs.restore_plane(m, tx, slot)
    if mark == M_ALWAYS_SKIP:
        paths.feedback(m, tx, now, slot, PATH_IS_LOSSY)
        return
    paths.feedback(m, tx, now, slot, PATH_IS_GOOD if mark == M_NONE else PATH_IS_MARKED)
    if m[tx + TX_REVERSE] >= 0 and mark == M_NONE:
        responder.set_reverse(m, m[tx + TX_REVERSE], now, slot)


def on_nack(m: Words, tx: int, now: int, s: Words, o: int) -> int:
    """A NACK came: the packet goes again ([MRC]: on a fresh EV).

        TRIMMED                           congestion in the fabric: at once if the window allows; the EV loses a turn
        TRIMMED_LASTHOP                   congestion before the receiver: the same, and the EV is innocent
        NO_*, PSN_OOR_WINDOW, others      the receiver has no room, the network does: after a pause (timers.hold)
        UNEXP_EVENT                       fatal

    It is believed of a packet in flight only, and the fatal one only if it also names the EV that the packet took: one
    that is old, or was guessed, ends no queue pair.
    """
    if m[tx + E_ERROR]:
        return DID_NOTHING
    m[tx + TX_NUM_NACKS] += 1
    info = s[o + S_INFO]
    reason = info >> INFO_REASON_SHIFT & 0xFF
    p = m[tx + E_PROFILE]
    psn = bits.unwrap(s[o + S_PSN], m[tx + TX_UNA])
    if not window.is_in_flight(m, tx, psn):
        return DID_NOTHING
    record = m[window.record_address(m, tx, psn)]
    sent = window.sent_at(record, now)
    if s[o + S_ECHO] >= 0 and _transmission(record, sent, info, s[o + S_ECHO]) == EARLIER:
        return DID_NOTHING  # a later one is on its way
    slot = window.record_ev(record)
    if reason == NACK_UNEXP_EVENT:
        return timers.fail(m, tx, ERROR_REMOTE) if info & INFO_EV_MASK == slot else DID_NOTHING
    if m[p + P_RTT_ON_NACK] and sent < now:
        congestion.learn_base_rtt(m, tx, now, now - sent)
    trimmed = reason in (NACK_TRIMMED, NACK_TRIMMED_LASTHOP)
    if trimmed:
        congestion.on_nack(m, tx, now, window.record_bytes(record))
    window.mark_lost(m, tx, psn)
    if reason == NACK_TRIMMED:
        paths.feedback(m, tx, now, slot, PATH_IS_TRIMMED)
    elif trimmed:
        marked = info >> INFO_M_SHIFT & 3 != M_NONE
        paths.feedback(m, tx, now, slot, PATH_IS_MARKED if marked else PATH_IS_GOOD)
    # between programs retries are finite, to tell that a peer is dead: one that answers of what was trimmed is not
    if psn == m[tx + TX_UNA] and not (trimmed and m[p + P_DELAY_MARKS]) and timers.retry(m, tx):
        return DID_FAIL
    # nor can a window of one packet get smaller: what is left is to send it less often
    if not trimmed or (m[p + P_DELAY_MARKS] and m[tx + TX_CWND] <= m[p + P_MIN_CWND]):
        timers.hold(m, tx, now)
    _heard(m, tx, now)
    return DID_NOTHING


def on_ack(m: Words, tx: int, now: int, msn: int) -> int:
    """A transport ACK (D1) came: messages up to and including `msn` (24 bits) are complete at the responder."""
    if m[tx + E_ERROR]:
        return DID_NOTHING
    done = m[tx + TX_DONE]
    last = bits.unwrap(msn, done)
    if last < done or last >= m[tx + TX_POSTED]:
        return DID_NOTHING
    window.acknowledge_below(m, tx, m[window.message_address(m, tx, last) + MSG_END])
    window.close_gap(m, tx)
    _heard(m, tx, now)
    return DID_COMPLETE if m[tx + TX_DONE] > done else DID_NOTHING


def _heard(m: Words, tx: int, now: int) -> None:
    """Set the timers anew after news from the peer."""
    p = m[tx + E_PROFILE]
    if m[tx + TX_UNA] == m[tx + TX_NEXT]:
        m[tx + TX_RTO_AT] = FOREVER
        m[tx + TX_PROBE_AT] = FOREVER
        m[tx + TX_PROBE_DUE] = 0
    else:
        m[tx + TX_RTO_AT] = min(m[tx + TX_RTO_AT], now + timers.timeout(m, tx))
        if m[p + P_PROBE_NS] > 0:
            m[tx + TX_PROBE_AT] = now + timers.probe_in(m, tx)
    timers.watch_evs(m, tx, now)
    timers.set_deadline(m, tx)


# --- requestor: time -------------------------------------------------------------------------------------------


def on_timer(m: Words, tx: int, now: int) -> int:
    """TX_DEADLINE has passed. It may have been set for something that happened meanwhile; then it is only moved on."""
    if m[tx + E_ERROR]:
        m[tx + TX_DEADLINE] = FOREVER
    if now < m[tx + TX_DEADLINE]:
        return DID_NOTHING
    did = DID_NOTHING
    if now >= m[tx + TX_RTO_AT]:
        did = timers.expire(m, tx, now)
    if now >= m[tx + TX_LOSS_AT]:
        losses.on_timer(m, tx, now)
    if now >= m[tx + TX_PROBE_AT]:
        m[tx + TX_PROBE_DUE] = 1
        m[tx + TX_PROBE_AT] = now + timers.probe_again_in(m, tx)
    if now >= m[tx + TX_HOLD_AT]:
        m[tx + TX_HOLD_AT] = FOREVER
    if now >= m[tx + TX_EVP_AT]:
        timers.probe_next_ev(m, tx, now)
    if now >= m[tx + E_STATUS_AT]:
        m[tx + E_STATUS] |= 1
        m[tx + E_STATUS_AT] = FOREVER
    timers.watch_evs(m, tx, now)
    timers.set_deadline(m, tx)
    return did


def on_ev_reply(m: Words, tx: int, now: int, probe_id: int, mark: int) -> int:
    """An EV probe came back, marked as SETH.m would say."""
    if m[tx + TX_EVP_STATE] == EVP_WAITING and probe_id == m[tx + TX_EVP_ID]:
        m[tx + TX_EVP_STATE] = EVP_IDLE
        m[tx + TX_EVP_MISSED] = 0
        evs.probe_answered(m, tx, m[tx + TX_EVP_SLOT], mark)
        evs.restore_plane(m, tx, m[tx + TX_EVP_SLOT])
        timers.watch_evs(m, tx, now)
        timers.set_deadline(m, tx)
    return DID_NOTHING


def reply_slot(m: Words, tx: int, ports: int) -> int:
    """The EV on which a requestor answers its responder's probe: the next in rotation, not the one of that number.

    The probe asks whether the way back works. An answer that got lost on a bad way there would say that it does not.
    """
    return paths.choose_aside(m, tx, ports)


def probe_mark(flags: int) -> int:
    """What the far end answers to an EV probe that arrived with these flags; it keeps no state for it."""
    return M_SKIP_ONCE if flags & F_ECN else M_NONE


# --- responder ---------------------------------------------------------------------------------------------------


def on_data(
    m: Words, rx: int, now: int, psn: int, num_bytes: int, flags: int, slot: int, echo: int, s: Words, o: int
) -> int:
    """A data packet came: payload size (before trimming), F_* flags, the EV it took, when it was sent (-1: not said).

    DO_PLACE: the payload is new, write it. DO_SACK, DO_NACK: send s[o:]. DO_ACK: send a transport ACK too.
    DID_COMPLETE: messages up to RX_DONE are whole.
    """
    if m[rx + E_ERROR]:
        return DID_NOTHING
    did = responder.accept(m, rx, psn, num_bytes, flags, slot, echo, s, o)
    if m[m[rx + E_PROFILE] + P_REVERSE_PROBE_NS] > 0 and now >= m[rx + RX_PROBE_AT]:
        m[rx + RX_PROBE_DUE] = 1
    if m[rx + RX_PROBE_DUE] or m[rx + E_STATUS] & 1:
        did |= DO_CONTROL
    return did


def on_probe(m: Words, rx: int, probe_id: int, flags: int, slot: int, echo: int, s: Words, o: int) -> int:
    """A reliability probe came: always answered, and on another EV than before, for the sender has heard nothing."""
    if m[rx + E_ERROR]:
        return DID_NOTHING
    responder.doubt_reverse(m, rx, slot)
    did = DID_NOTHING
    if m[m[rx + E_PROFILE] + P_REVERSE_PROBE_NS] > 0:
        m[rx + RX_PROBE_DUE] = 1
        did = DO_CONTROL
    return did | responder.write_probe_sack(m, rx, probe_id, flags, slot, echo, s, o)


def on_pressure(m: Words, rx: int, penalty: int) -> int:
    """The receiving host is short of room (rcv_cwnd_pen 1 to 127, by how much) or has room again (0)."""
    if penalty == 0 and m[rx + RX_PENALTY] > 0:
        m[rx + RX_RESTORE] = responder.RESTORE_SACKS
    elif penalty > 0:
        m[rx + RX_RESTORE] = 0
    m[rx + RX_PENALTY] = penalty
    return DID_NOTHING


def control_slot(m: Words, rx: int, slot: int, ports: int) -> int:
    """The EV for the answer to a packet that came on `slot`; -1 when no port of `ports` is open.

    The plane it came by carries the answer too, unless it closed meanwhile. Within the plane: the same EV
    (REVERSE_ECHO), or the plane's reverse EV, which is known to work in this direction ([P1] 2.4).
    """
    p = m[rx + E_PROFILE]
    usable = evs.open_planes(m, rx) & ports
    if usable == 0:
        return -1
    plane = slot >> m[p + P_EV_SHIFT]
    if m[p + P_REVERSE_RULE] == REVERSE_SET and m[rx + m[p + P_RX_REVERSE] + plane] < 0:
        usable &= responder.reverse_planes(m, rx)
        if usable == 0:
            return -1
    if not usable >> plane & 1:
        plane = evs.next_plane(m, rx, usable)
        m[rx + E_PLANE] = plane
    if m[p + P_REVERSE_RULE] == REVERSE_SET:
        return m[rx + m[p + P_RX_REVERSE] + plane]
    return plane << m[p + P_EV_SHIFT] | slot & ((1 << m[p + P_EV_SHIFT]) - 1)


def next_control(m: Words, rx: int, now: int, ports: int, out: Words, o: int) -> int:
    """What a responder sends unasked: a Port Status Update, or once per P_REVERSE_PROBE_NS a probe of a random EV."""
    p = m[rx + E_PROFILE]
    usable = evs.open_planes(m, rx) & ports
    if m[rx + E_ERROR] or not (m[rx + E_STATUS] & 1 or m[rx + RX_PROBE_DUE]):
        return SEND_NOTHING
    usable &= responder.reverse_planes(m, rx)
    if usable == 0:
        return SEND_NOTHING
    plane = evs.next_plane(m, rx, usable)
    if m[rx + E_STATUS] & 1:
        m[rx + E_PLANE] = plane
        sending.send_status(m, rx, now, m[rx + m[p + P_RX_REVERSE] + plane], out, o)
        m[rx + RX_DEADLINE] = m[rx + E_STATUS_AT]
        return SEND_PORT_STATUS
    m[rx + RX_PROBE_DUE] = 0
    m[rx + E_PLANE] = plane
    number = bits.random32(m, rx + E_RANDOM) & ((1 << m[p + P_EV_SHIFT]) - 1)
    m[rx + RX_PROBE_SLOT] = responder.allowed_in(m, rx, plane << m[p + P_EV_SHIFT] | number)
    m[rx + RX_PROBE_ID] = (m[rx + RX_PROBE_ID] + 2) & timers.ID_MASK
    m[rx + RX_PROBE_AT] = now + m[p + P_REVERSE_PROBE_NS]
    sending.describe(m, rx, m[rx + RX_PROBE_ID], m[rx + RX_PROBE_SLOT], 0, out, o)
    return SEND_EV_PROBE


def on_reverse_reply(m: Words, rx: int, now: int, probe_id: int, mark: int) -> int:
    """A reverse EV probe came back: an unmarked one makes its EV the plane's reverse EV."""
    if probe_id == m[rx + RX_PROBE_ID] and mark == M_NONE:
        responder.set_reverse(m, rx, now, m[rx + RX_PROBE_SLOT])
    return DID_NOTHING


# --- ports -------------------------------------------------------------------------------------------------------


def on_ports(m: Words, row: int, now: int, up: int, announce: int) -> int:
    """Local ports changed: bit set of planes that are up. With `announce` the peer is told, until it answers."""
    up &= (1 << m[m[row + E_PROFILE] + P_PLANES]) - 1
    changed = up != m[row + E_PORTS]
    m[row + E_PORTS] = up
    if evs.open_planes(m, row) == 0:
        m[row + E_ERROR] = ERROR_PORTS
        return DID_FAIL
    if announce and changed:
        m[row + E_STATUS] = ((m[row + E_STATUS] >> 1) + 1 & timers.ID_MASK) << 1 | 1
        m[row + E_STATUS_AT] = FOREVER
        return DO_CONTROL
    return DID_NOTHING


def on_peer_ports(m: Words, row: int, up: int, status_id: int, plane: int) -> int:
    """The peer says, in a packet that came by `plane`, which of its ports are up.

    No news if a newer update (ids wrap at 16 bits) has overtaken this. Not believed if it denies the plane it came by,
    or leaves none in common: such an update could not have come, and must not end the queue pair.
    """
    newest = (m[row + E_PEER_PORTS] >> PEER_ID_SHIFT) - 1
    if newest >= 0 and (status_id - newest) & timers.ID_MASK > timers.ID_MASK >> 1:
        return DID_NOTHING
    planes = up & (1 << m[m[row + E_PROFILE] + P_PLANES]) - 1
    if planes >> plane & 1 and planes & m[row + E_PORTS]:
        m[row + E_PEER_PORTS] = planes | (status_id & timers.ID_MASK) + 1 << PEER_ID_SHIFT
    return DID_NOTHING


def on_status_reply(m: Words, row: int, status_id: int) -> int:
    """The peer has heard of our ports."""
    if status_id == m[row + E_STATUS] >> 1:
        m[row + E_STATUS] &= ~1
        m[row + E_STATUS_AT] = FOREVER
    return DID_NOTHING


def on_rx_timer(m: Words, rx: int, now: int) -> int:
    """RX_DEADLINE has passed: a Port Status Update was not answered."""
    if m[rx + E_ERROR]:
        m[rx + E_STATUS_AT] = FOREVER
    if now < m[rx + E_STATUS_AT]:
        m[rx + RX_DEADLINE] = m[rx + E_STATUS_AT]
        return DID_NOTHING
    m[rx + RX_DEADLINE] = FOREVER
    m[rx + E_STATUS] |= 1
    m[rx + E_STATUS_AT] = FOREVER
    return DO_CONTROL
