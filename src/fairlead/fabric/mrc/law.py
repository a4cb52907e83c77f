"""The law of MRC: every event that can befall a queue pair, handled whole, in pure integer arithmetic.

A driver (a simulator's NIC, a socket loop, a test) holds packets and a clock; the law holds every rule and the order
in which the rules apply. The driver calls one handler per event and obeys the bits that come back:

    requestor   post                   a message to send
                next_packet            a port is free: what to send on which EV
                on_sack, on_nack       a control packet came back; on_ack a transport ACK
                on_timer               tx.deadline has passed
                on_ev_reply            an EV probe was answered
                reply_slot             the EV for the answer to a responder's probe
    responder   on_data, on_probe      a packet came: place it or not, answer it or not
                control_slot           the EV for the answer
                next_control           DO_CONTROL was returned: a probe or a port status to send
                on_reverse_reply       a reverse EV probe was answered
                on_pressure            the host has little room for what arrives
    both        on_ports, on_peer_ports, on_status_reply

Handlers return DO_*/DID_* bits or SEND_* codes and write details to a block the driver passes (`out` or `s`, see
layout.py). They allocate nothing, raise nothing, and touch one row (rows.py), its profile and that block. Time is
`now`, integer nanoseconds from any origin, never falling. "The law" are the files that compile.LAW_MODULES lists;
compiled kernels are keyed by their sources.

Citations: [MRC] OCP MRC 1.0, [P1] arXiv 2605.04333, [UEC] ultraethernet/uet-htsim htsim/sim/uec.cpp.
"""
# ruff: noqa: PLR0917 - handlers take rows and integers

from __future__ import annotations

from fairlead.fabric.mrc import (
    bits,
    congestion,
    evs,
    hearing,
    losses,
    paths,
    responder,
    rotation,
    sending,
    timers,
    window,
)
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import PROFILE_AT, Endpoint, Requestor, Responder, Words, requestor_row, responder_row

# --- setting up ------------------------------------------------------------------------------------------------


def _init_endpoint(row: Endpoint, seed: int) -> None:
    planes = (1 << row.profile.planes) - 1
    row.ports = planes
    row.peer_ports = planes
    row.stream = bits.scramble(seed)
    row.status_at = at.FOREVER


def init_tx(m: Words, address: int, profile: int, seed: int, psn: int) -> Requestor:
    """Set up a requestor row of zeros by the profile at an address; `psn` is the first PSN (sq_psn)."""
    m[address + PROFILE_AT] = profile
    tx = requestor_row(m, address)
    _init_endpoint(tx, seed)
    tx.una = psn
    tx.next = psn
    tx.posted_psn = psn
    tx.mpr = tx.profile.mpr
    tx.deadline = at.FOREVER
    tx.rto_at = at.FOREVER
    tx.probe_at = at.FOREVER
    tx.evp_at = at.FOREVER
    tx.hold_at = at.FOREVER
    tx.loss_at = at.FOREVER
    tx.recovery = -1
    tx.stuck_psn = -1
    tx.responder_address = -1
    tx.probe_sent = -1
    tx.delivered_at = -at.FOREVER
    tx.evp_id = bits.random32(tx) & timers.ID_MASK & ~1  # even; odd ids are the responder's
    congestion.init_cc(tx)
    evs.init_evs(tx)
    return tx


def init_rx(m: Words, address: int, profile: int, seed: int, psn: int) -> Responder:
    """Set up a responder row of zeros by the profile at an address; `psn` is the first PSN expected (rq_psn)."""
    m[address + PROFILE_AT] = profile
    rx = responder_row(m, address)
    _init_endpoint(rx, seed)
    rx.next = psn
    rx.max = psn - 1
    rx.low = psn
    rx.deadline = at.FOREVER
    rx.probe_id = bits.random32(rx) & timers.ID_MASK | 1
    responder.init_reverse(rx)
    return rx


# --- requestor: sending ------------------------------------------------------------------------------------------


def post(tx: Requestor, num_bytes: int, is_imm: int) -> int:
    """Queue an RDMA Write (is_imm 1: Write-with-Imm) of num_bytes; 0 if the ring is full or the queue pair failed."""
    if tx.error:
        return 0
    return window.add_message(tx, num_bytes, is_imm)


def ready(tx: Requestor) -> int:
    """1 if next_packet would send something, given a free port on an open plane."""
    if tx.error:
        return 0
    if tx.status & 1 or tx.probe_due or tx.evp_state == at.EVP_DUE:
        return 1
    return 1 if sending.next_psn(tx) >= 0 else 0


def next_packet(tx: Requestor, now: int, ports: int, out: Words) -> int:
    """`next_unpaced`, and when the one after it may go, where the profile has a pace."""
    kind = next_unpaced(tx, now, ports, out)
    if kind == at.SEND_DATA and tx.profile.pace_percent > 0:
        timers.pace(tx, now, window.wire_bytes(tx, out[at.D_BYTES]))
        timers.set_deadline(tx)
    return kind


def next_unpaced(tx: Requestor, now: int, ports: int, out: Words) -> int:
    """Choose the next packet for a free port out of the bit set `ports`; its fields go to `out` (D_*).

    Control first, then the oldest retransmission, then new data ([MRC]: retransmissions go ahead). SEND_NOTHING
    leaves the row as it was. The EV is chosen here, at the moment of sending, among the ports that are free.
    """
    if tx.error:
        return at.SEND_NOTHING
    kind = sending.next_control(tx, now, ports, out)
    if kind != at.SEND_NOTHING:
        return kind
    psn = sending.next_psn(tx)
    if psn < 0:
        return at.SEND_NOTHING
    again = psn < tx.next
    if again:
        slot = paths.choose(tx, ports, window.record_ev(window.record_of(tx, psn)))
    else:
        slot = paths.choose_in_run(tx, ports)
    if slot < 0:
        return at.SEND_NOTHING
    sending.send_data(tx, now, psn, slot, out)
    return at.SEND_DATA


# --- requestor: hearing ------------------------------------------------------------------------------------------

on_sack = hearing.on_sack
on_nack = hearing.on_nack
on_ack = hearing.on_ack
set_peer_window = hearing.set_peer_window


# --- requestor: time -------------------------------------------------------------------------------------------


def on_timer(tx: Requestor, now: int) -> int:
    """tx.deadline has passed. It may have been set for something that happened meanwhile; then it is only moved on."""
    if tx.error:
        tx.deadline = at.FOREVER
    if now < tx.deadline:
        return at.DID_NOTHING
    did = at.DID_NOTHING
    if now >= tx.rto_at:
        did = timers.expire(tx, now)
    if now >= tx.loss_at:
        losses.on_timer(tx, now)
        if tx.error:
            did = at.DID_FAIL
    if now >= tx.probe_at:
        tx.probe_due = 1
        tx.probe_at = now + timers.probe_again_in(tx)
    if now >= tx.hold_at:
        tx.hold_at = at.FOREVER
    if now >= tx.evp_at:
        timers.probe_next_ev(tx, now)
    if now >= tx.status_at:
        tx.status |= 1
        tx.status_at = at.FOREVER
    timers.watch_evs(tx, now)
    timers.set_deadline(tx)
    return did


def on_ev_reply(tx: Requestor, now: int, probe_id: int, mark: int) -> int:
    """An EV probe came back, marked as SETH.m would say."""
    if tx.evp_state == at.EVP_WAITING and probe_id == tx.evp_id:
        tx.evp_state = at.EVP_IDLE
        tx.evp_missed = 0
        evs.probe_answered(tx, tx.evp_slot, mark)
        evs.restore_plane(tx, tx.evp_slot)
        timers.watch_evs(tx, now)
        timers.set_deadline(tx)
    return at.DID_NOTHING


def reply_slot(tx: Requestor, ports: int) -> int:
    """The EV on which a requestor answers its responder's probe: the next in rotation, not the one of that number.

    The probe asks whether the way back works. An answer that got lost on a bad way there would say that it does not.
    """
    return paths.choose_aside(tx, ports)


def probe_mark(flags: int) -> int:
    """What the far end answers to an EV probe that arrived with these flags; it keeps no state for it."""
    return at.M_SKIP_ONCE if flags & at.F_ECN else at.M_NONE


# --- responder ---------------------------------------------------------------------------------------------------


def on_data(rx: Responder, now: int, psn: int, num_bytes: int, flags: int, slot: int, echo: int, s: Words) -> int:
    """A data packet came: payload size (before trimming), F_* flags, the EV it took, when it was sent (-1: not said).

    DO_PLACE: the payload is new, write it. DO_SACK, DO_NACK: send `s`. DO_ACK: send a transport ACK too.
    DID_COMPLETE: messages up to rx.done are whole.
    """
    if rx.error:
        return at.DID_NOTHING
    did = responder.accept(rx, psn, num_bytes, flags, slot, echo, s)
    if rx.profile.reverse_probe_ns > 0 and now >= rx.probe_at:
        rx.probe_due = 1
    if rx.probe_due or rx.status & 1:
        did |= at.DO_CONTROL
    return did


def on_probe(rx: Responder, probe_id: int, flags: int, slot: int, echo: int, s: Words) -> int:
    """A reliability probe came: always answered, and on another EV than before, for the sender has heard nothing."""
    if rx.error:
        return at.DID_NOTHING
    responder.doubt_reverse(rx, slot)
    did = at.DID_NOTHING
    if rx.profile.reverse_probe_ns > 0:
        rx.probe_due = 1
        did = at.DO_CONTROL
    return did | responder.write_probe_sack(rx, probe_id, flags, slot, echo, s)


def on_pressure(rx: Responder, penalty: int) -> int:
    """The receiving host is short of room (rcv_cwnd_pen 1 to 127, by how much) or has room again (0)."""
    if penalty == 0 and rx.penalty > 0:
        rx.restore = responder.RESTORE_SACKS
    elif penalty > 0:
        rx.restore = 0
    rx.penalty = penalty
    return at.DID_NOTHING


def control_slot(rx: Responder, slot: int, ports: int) -> int:
    """The EV for the answer to a packet that came on `slot`; -1 when no port of `ports` is open.

    The plane it came by carries the answer too, unless it closed meanwhile. Within the plane: the same EV
    (REVERSE_ECHO), or the plane's reverse EV, which is known to work in this direction ([P1] 2.4).
    """
    p = rx.profile
    usable = evs.open_planes(rx) & ports
    if usable == 0:
        return -1
    plane = slot >> p.ev_shift
    if p.reverse_rule == at.REVERSE_SET and rx.reverse[plane] < 0:
        usable &= responder.reverse_planes(rx)
        if usable == 0:
            return -1
    if not usable >> plane & 1:
        plane = rotation.next_plane(rx, usable)
        rx.plane = plane
    if p.reverse_rule == at.REVERSE_SET:
        return rx.reverse[plane]
    return plane << p.ev_shift | slot & ((1 << p.ev_shift) - 1)


def next_control(rx: Responder, now: int, ports: int, out: Words) -> int:
    """What a responder sends unasked: a Port Status Update, or once per reverse_probe_ns a probe of a random EV."""
    p = rx.profile
    usable = evs.open_planes(rx) & ports
    if rx.error or not (rx.status & 1 or rx.probe_due):
        return at.SEND_NOTHING
    usable &= responder.reverse_planes(rx)
    if usable == 0:
        return at.SEND_NOTHING
    plane = rotation.next_plane(rx, usable)
    if rx.status & 1:
        rx.plane = plane
        sending.send_status(rx, now, rx.reverse[plane], out)
        rx.deadline = rx.status_at
        return at.SEND_PORT_STATUS
    rx.probe_due = 0
    rx.plane = plane
    number = bits.random32(rx) & ((1 << p.ev_shift) - 1)
    rx.probe_slot = responder.allowed_in(rx, plane << p.ev_shift | number)
    rx.probe_id = (rx.probe_id + 2) & timers.ID_MASK
    rx.probe_at = now + p.reverse_probe_ns
    sending.describe(rx, rx.probe_id, rx.probe_slot, 0, out)
    return at.SEND_EV_PROBE


def on_reverse_reply(rx: Responder, now: int, probe_id: int, mark: int) -> int:
    """A reverse EV probe came back: an unmarked one makes its EV the plane's reverse EV."""
    if probe_id == rx.probe_id and mark == at.M_NONE:
        responder.set_reverse(rx, now, rx.probe_slot)
    return at.DID_NOTHING


# --- ports -------------------------------------------------------------------------------------------------------


def on_ports(row: Endpoint, now: int, up: int, announce: int) -> int:
    """Local ports changed: bit set of planes that are up. With `announce` the peer is told, until it answers."""
    up &= (1 << row.profile.planes) - 1
    changed = up != row.ports
    row.ports = up
    if evs.open_planes(row) == 0:
        row.error = at.ERROR_PORTS
        return at.DID_FAIL
    if announce and changed:
        row.status = ((row.status >> 1) + 1 & timers.ID_MASK) << 1 | 1
        row.status_at = at.FOREVER
        return at.DO_CONTROL
    return at.DID_NOTHING


def on_peer_ports(row: Endpoint, up: int, status_id: int, plane: int) -> int:
    """The peer says, in a packet that came by `plane`, which of its ports are up.

    No news if a newer update (ids wrap at 16 bits) has overtaken this. Not believed if it denies the plane it came by,
    or leaves none in common: such an update could not have come, and must not end the queue pair.
    """
    newest = (row.peer_ports >> at.PEER_ID_SHIFT) - 1
    if newest >= 0 and (status_id - newest) & timers.ID_MASK > timers.ID_MASK >> 1:
        return at.DID_NOTHING
    planes = up & (1 << row.profile.planes) - 1
    if planes >> plane & 1 and planes & row.ports:
        row.peer_ports = planes | (status_id & timers.ID_MASK) + 1 << at.PEER_ID_SHIFT
    return at.DID_NOTHING


def on_status_reply(row: Endpoint, status_id: int) -> int:
    """The peer has heard of our ports."""
    if status_id == row.status >> 1:
        row.status &= ~1
        row.status_at = at.FOREVER
    return at.DID_NOTHING


def on_rx_timer(rx: Responder, now: int) -> int:
    """rx.deadline has passed: a Port Status Update was not answered."""
    if rx.error:
        rx.status_at = at.FOREVER
    if now < rx.status_at:
        rx.deadline = rx.status_at
        return at.DID_NOTHING
    rx.deadline = at.FOREVER
    rx.status |= 1
    rx.status_at = at.FOREVER
    return at.DO_CONTROL
