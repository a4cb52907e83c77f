"""The rows of MRC state, field by field: the one place that says what stands where, for plain Python and compiled code.

All state is one flat sequence of signed 64-bit integers, called `m` (memory) throughout. A *row* is a run of words in
it and is named by the address of its first word; the law sees it by one of these classes and writes `tx.una = psn`:

    Parameters   the profile: constants shared by many queue pairs, sizes, timers, congestion-control gains
    Requestor    the sending half of a queue pair
    Responder    the receiving half of a queue pair

Requestor and responder rows begin with the same few words (Endpoint), so that port and probe handling is one piece of
law for both. The halves are separate rows because in a simulator they live at different hosts and run in different
threads.

A field of kind `int` is one word. A field of kind `Words` is an area: a run of words behind them, as long as the
profile asks for (`Profile.tx_areas`), with its own offset in the profile; PSN rings stand at PSN & ring_mask. To add a
field is to write a line here.

One array and integer addresses, instead of one array per field, for two reasons: a handler touches two to six cache
lines of one row and not sixty; and compiled code passes a pointer and a number. There `compile.py` turns `tx.una` into
one load. Plain Python reads the same words through a C structure laid over them.

Bitmaps use 32 bits of each word, so that no operation ever meets the sign bit and numba and Python agree without care.
This file knows positions only: no rule, no numpy.
"""

from __future__ import annotations

from ctypes import Structure, c_int64
from typing import Final, Protocol, TypeVar

WORD_BYTES: Final = 8
LINE_WORDS: Final = 8  # one 64-byte cache line
PROFILE_AT: Final = 0  # every row of a queue pair begins with the address of its profile


class Words(Protocol):
    """A flat run of signed 64-bit integers: a list, a memoryview of format "q", or a pointer under numba."""

    def __getitem__(self, index: int, /) -> int:
        """The word at an address."""

    def __setitem__(self, index: int, value: int, /) -> None:
        """Write a word."""


class Row(Structure):
    """A row in plain Python, made by `profile_row`, `requestor_row` or `responder_row`."""

    m: memoryview  # the memory it stands in
    address: int  # where


AnyRow = TypeVar("AnyRow", bound=type[Row])


def kinds(row: type[Row], kind: str) -> tuple[str, ...]:
    """Fields of a row of a kind ("int" or "Words"), those of its bases first, in the order they are written in."""
    return tuple(
        name
        for base in reversed(row.__mro__)
        if base is not Row and issubclass(base, Row)
        for name, said in base.__annotations__.items()
        if said == kind
    )


def _words(row: AnyRow) -> AnyRow:
    """Lay a class out: its own fields of kind int behind those of its base."""
    row._fields_ = [(name, c_int64) for name, kind in row.__annotations__.items() if kind == "int"]
    return row


@_words
class Endpoint(Row):
    """What requestor and responder rows begin with."""

    profile_at: int  # address of the profile
    ports: int  # bit = plane whose local port is up
    peer_ports: int  # bit = plane whose port at the peer is up | id of the update that said so + 1 << PEER_ID_SHIFT
    stream: int  # state of the random stream, 32 bits, never 0
    plane: int  # plane used last
    status_at: int  # when to send the Port Status Update again; FOREVER: it is answered
    status: int  # id of the last update << 1 | it is to be sent now
    error: int  # ERROR_*; 0 while the queue pair lives

    profile: Parameters


@_words
class Requestor(Endpoint):
    """The sending half of a queue pair."""

    # window of PSNs [una, next)
    una: int  # oldest PSN not acknowledged
    next: int  # next new PSN
    lost: int  # PSNs waiting for retransmission
    lost_hint: int  # no lost PSN stands below this one
    in_flight: int  # bytes believed in the network; dips below 0 by up to 255, for rcvd_bytes is rounded up
    cwnd: int
    deadline: int  # earliest time on_timer has work; FOREVER: none
    mpr: int  # PSN range the peer accepts now
    # messages [done, posted): MSG_* ring
    done: int  # messages completed
    current: int  # message that new packets come from
    posted: int  # messages posted
    posted_psn: int  # first PSN after the last posted message
    wimm: int  # Write-with-Imm sent and not completed
    wimm_posted: int
    hold_at: int  # until then no data goes: the receiver has no room, or it is paced; FOREVER: it may go
    # congestion control (NSCC names)
    rcvd: int  # rcvd_bytes of the newest SACK, in units of 256 B, 24 bits
    base_rtt: int
    least_rtt: int  # shortest sample since the last renewal of the base RTT; FOREVER: none
    renew_at: int  # when the base RTT is renewed
    max_cwnd: int
    avg_delay: int  # ns * 1024
    saved_cwnd: int  # the window before the receiver asked for less; 0: it did not
    achieved: int
    received: int
    inc: int
    last_adjust: int
    last_dec: int
    qa_end: int
    qa_armed: int
    qa_ignore: int
    qa_ignored: int
    fi_count: int
    fi_on: int
    # timers and recovery
    rto_at: int
    srtt: int  # smoothed round trip; 0: none was measured
    rttvar: int  # its variation
    round_rtt: int  # longest round trip of this round, which ends at round_at
    round_at: int
    expired_age: int  # how long the packets that ran out of time last had been on their way; 0: none, or it was told
    retries: int  # timeouts and NACKs since una moved
    rounds: int  # of these the timeouts
    stuck_psn: int  # the oldest packet, where it was found lost more than once
    stuck_at: int  # when it was, or when that was last counted as a round
    delivered_at: int  # send time of the latest-sent packet known to have arrived
    delivered_rtt: int  # its round trip
    loss_at: int  # when the oldest packet in flight will be lost by that; FOREVER: none was sent before it
    reorder: int  # quarters by which mistakes have widened the reorder window
    reorder_left: int  # recoveries without a mistake until it is narrow again
    recovery: int  # the recovery from inferred losses ends when una reaches this PSN; -1: there is none
    probe_at: int
    probe_due: int
    probe_id: int
    probe_sent: int  # -1: no reliability probe was sent yet
    evp_at: int
    evp_state: int  # EVP_*
    evp_slot: int  # EV probed last
    evp_id: int
    evp_missed: int  # EV probes in a row that were not answered
    responder_address: int  # responder row of the same queue pair, whose reverse EVs data SACKs refresh; -1: none
    # paths
    planes_ok: int  # bit = plane with an EV in rotation
    ev_active: int  # EVs in rotation
    ev_bad: int  # EVs ASSUMED_BAD
    cut: int  # bit = plane whose EVs were found bad together
    aside_plane: int  # plane of the last packet without payload
    losing: int  # plane over which nothing has arrived since a loss
    losing_num: int  # losses since then
    losing_psn: int  # the first of them
    run_ev: int  # EV of the last new data packet
    run_left: int  # new data packets that are still to share it
    ring_head: int  # where the next recycled EV goes
    ring_fresh: int  # recycled EVs not used yet
    ring_count: int  # valid length of the ring while frozen
    frozen_until: int  # REPS freezing; 0: not frozen
    frozen_next: int
    explore: int
    # counters
    num_new: int
    num_rtx: int
    num_sacks: int
    num_nacks: int
    num_timeouts: int
    num_lost: int  # losses inferred from order
    num_spurious: int  # packets declared lost that had only been late
    # pace
    leaves_at: int  # when the next packet would leave at the pace, if none had waited for a burst

    # areas
    messages: Words  # ring of posted messages, MSG_*
    plane_words: Words  # by plane, PLANE_*
    ev_words: Words  # for each 32 EVs, EV_*
    nibbles: Words  # a small counter for each EV
    ring: Words  # of recycled EVs
    acked_bits: Words  # PSN ring: arrived
    lost_bits: Words  # PSN ring: waiting for retransmission
    records: Words  # PSN ring: REC_*

    responder: Responder  # of the same queue pair; see responder_of


@_words
class Responder(Endpoint):
    """The receiving half of a queue pair."""

    next: int  # lowest PSN not received: cack_psn + 1
    max: int  # highest PSN received
    low: int  # every PSN received below this one has been reported in a SACK
    out_of_order: int  # PSNs received above next
    trigger: int  # bytes since the last SACK
    asked: int  # an ACK request waits for the gaps to close (prev_ar)
    rcvd: int  # bytes received, packets counted as overhead says
    done: int  # messages completed, in order
    wimm: int  # Write-with-Imm received and not completed
    wimm_done: int
    penalty: int  # rcv_cwnd_pen to send, 0..127
    restore: int  # SACKs that are still to carry restore_cwnd
    probe_at: int  # from then on, data that arrives lets a reverse EV be probed
    probe_due: int
    probe_slot: int
    probe_id: int
    trusted: int  # reliability probes for which a reverse EV found good is still believed
    deadline: int
    # counters
    num_packets: int
    num_duplicates: int
    num_sacks: int
    num_nacks: int

    # areas
    reverse: Words  # by plane: EV of answers; -1: all are denied
    seen_bits: Words  # PSN ring: received
    last_bits: Words  # PSN ring: last of a message
    imm_bits: Words  # PSN ring: carries immediate data
    denied_bits: Words  # by EV slot


TX_AREAS: Final = kinds(Requestor, "Words")
RX_AREAS: Final = kinds(Responder, "Words")


@_words
class Parameters(Row):
    """A profile in words; `Profile` has the same names where people say a value, and derives the others."""

    # packets and windows
    mtu: int  # payload bytes of a full packet
    overhead: int  # bytes added to the payload for congestion accounting; MRC counts UDP length + 40
    mpr: int  # max_psn_range: PSNs a responder accepts beyond cack; multiple of 128
    ring_mask: int  # PSN ring size - 1; the ring is the power of two at or above mpr
    message_mask: int  # message ring size - 1
    max_wimm: int  # Write-with-Imm a requestor may have in flight, as negotiated
    max_wimm_dest: int  # Write-with-Imm a responder takes before it has completed them
    # paths
    path_rule: int  # PATH_*
    planes: int
    ev_shift: int  # log2 of EVs per plane; slot = plane << ev_shift | number in the plane
    evs_active: int  # EVs per plane in rotation; the rest stand by as replacements
    ev_min_active: int  # EVs that stay in rotation, all planes together, whatever happens
    ev_run: int  # new data packets in a row that share an EV, for drivers that send them as one; 1: each has its own
    ev_probe_ns: int  # an ASSUMED_BAD EV is probed every so often, ever more rarely while nothing answers; 0: never
    ev_probe_ok: int  # successful probes in a row that bring it back
    own_turns: int  # 1: packets without payload take planes in turns of their own
    plane_losses: int  # so many losses, and nothing that arrives over the plane: all its EVs are bad; 0: each by itself
    ring_size: int  # entries of the ring of recycled EVs (REPS, mixed)
    freeze_ns: int  # how long REPS stays frozen after a timeout
    reverse_rule: int  # REVERSE_*
    reverse_probe_ns: int  # a responder probes one random EV this often; 0: never
    # loss recovery
    rto_ns: int  # local ACK timeout
    rto_most_ns: int  # above rto_ns: the timeout follows measured round trips, between both
    retry_linear: int
    retry_exp: int
    reorder_ns: int  # a hole is lost when a packet sent so much later has arrived; 0: only NACKs and timeouts tell
    reorder_timer: int  # 1: a hole is also lost when such a packet would have arrived by now (RFC 8985 6.3), not before
    probe_ns: int  # silence before the first reliability probe; 0: never
    probe_retry_ns: int
    trim: int  # 1: switches trim, so that a silent loss is a path fault and not congestion
    # SACK generation
    sack_bytes: int  # bytes received that trigger a SACK
    sack_floor: int  # every packet counts as at least this many
    sack_rule: int  # SACK_*
    message_ack: int  # 1: a transport ACK (D1) follows each completed message
    dynamic_mpr: int  # 1: SETH carries mpr
    # congestion control
    cc_rule: int  # CC_*
    whole_packet: int  # 1: the next packet must fit in cwnd; 0: any room is enough
    first_cwnd: int  # initial window, bytes
    min_cwnd: int
    rate_mbps: int  # NIC rate, all ports together
    network_rtt_ns: int  # unloaded round trip of the longest path; first base RTT
    target_ns: int  # target queueing delay
    alpha: int  # alpha * target: bytes, see profile.py
    fi: int
    fi_scale: int  # in 1/65536
    fi_delay_ns: int  # fast increase below this delay
    eta: int
    qa_gate: int
    qa_threshold_ns: int
    quick_adapt: int
    adjust_ns: int
    adjust_bytes: int
    rtt_on_nack: int  # 1: a NACK may lower the base RTT
    base_rtt_floor_ns: int  # the base RTT is never believed to be shorter
    delay_marks: int  # 1: switches do not mark, and a queueing delay at or above the target stands for a mark
    avg_divisor: int  # the delay average follows a sample by one part in so many
    base_rtt_age_ns: int  # a sample counts towards the base RTT for one to two of these; 0: for ever
    pace_percent: int  # data leaves at so much of a window in a round trip; 0: as soon as the window allows
    pace_burst_ns: int  # what so long a time makes up for may leave at once


# behind them, where each area of a row begins, in words from the row
AREA_OFFSETS: Final = {name: len(kinds(Parameters, "int")) + i for i, name in enumerate(TX_AREAS + RX_AREAS)}
NUM_PARAMETERS: Final = len(kinds(Parameters, "int")) + len(AREA_OFFSETS)


def place(row: type[Row], field: str) -> int:
    """Where a field stands in its rows, in words; for tables that hold many rows."""
    return kinds(row, "int").index(field)


def num_fields(row: type[Row]) -> int:
    """Words of a row before its areas."""
    return len(kinds(row, "int"))


# --- rows in plain Python; compile.py has the like for compiled code --------------------------------------------


def profile_row(m: Words, address: int) -> Parameters:
    """The profile at an address."""
    return _see(Parameters, m, address)


def endpoint_row(m: Words, address: int) -> Endpoint:
    """What requestor and responder rows begin with."""
    return _see_endpoint(Endpoint, m, address)


def requestor_row(m: Words, address: int) -> Requestor:
    """The requestor row at an address, which says where its profile stands."""
    return _see_endpoint(Requestor, m, address)


def responder_row(m: Words, address: int) -> Responder:
    """The responder row at an address, which says where its profile stands."""
    return _see_endpoint(Responder, m, address)


def responder_of(tx: Requestor) -> Responder:
    """The responder row of the same queue pair, where there is one (`tx.responder_address` >= 0)."""
    if "responder" not in vars(tx) or tx.responder.address != tx.responder_address:
        tx.responder = responder_row(tx.m, tx.responder_address)
    return tx.responder


R = TypeVar("R", bound=Row)
E = TypeVar("E", bound=Endpoint)


def _see(row: type[R], m: Words, address: int) -> R:
    assert isinstance(m, memoryview), "rows are seen in the memory of a State: state.plain()"
    seen = row.from_buffer(m, address * WORD_BYTES)
    seen.m = m
    seen.address = address
    return seen


def _see_endpoint(row: type[E], m: Words, address: int) -> E:
    seen = _see(row, m, address)
    seen.profile = profile_row(m, seen.profile_at)
    for name in kinds(row, "Words"):
        setattr(seen, name, seen.m[address + m[seen.profile_at + AREA_OFFSETS[name]] :])
    return seen
