"""Where every word of MRC state stands: the register map that the law reads and writes.

All state is one flat sequence of signed 64-bit integers, called `m` (memory) throughout. A *row* is a run of words in
it and is named by the address of its first word; three kinds of row exist:

    profile    constants shared by many queue pairs: sizes, timers, congestion-control gains        P_*
    requestor  the sending half of a queue pair                                                   TX_*
    responder  the receiving half of a queue pair                                                 RX_*

Requestor and responder rows begin with the same few words (E_*, the endpoint), so that port and probe handling is one
piece of law for both. The halves are separate rows because in a simulator they live at different hosts and run in
different threads.

One array and integer addresses, instead of one array per field, for three reasons: a handler touches two to six cache
lines of one row and not sixty; compiled code passes one bare pointer; and plain Python runs the very same source over
a `memoryview`, whose items are Python integers.

Bitmaps use 32 bits of each word, so that no operation ever meets the sign bit and numba and Python agree without care.
Ring positions are PSN & (ring size - 1). This file knows positions only: no rule, no numpy.
"""

from __future__ import annotations

from typing import Final, Protocol


class Words(Protocol):
    """A flat run of signed 64-bit integers: a list, a memoryview of format "q", or a pointer under numba."""

    def __getitem__(self, index: int, /) -> int:
        """The word at an address."""

    def __setitem__(self, index: int, value: int, /) -> None:
        """Write a word."""


FOREVER: Final = 1 << 62  # a deadline that never comes
LINE_WORDS: Final = 8  # one 64-byte cache line

# --- profile ------------------------------------------------------------------------------------------------
(
    # packets and windows
    P_MTU,  # payload bytes of a full packet
    P_OVERHEAD,  # bytes added to the payload for congestion accounting; MRC counts UDP length + 40
    P_MPR,  # max_psn_range: PSNs a responder accepts beyond cack; multiple of 128
    P_RING_MASK,  # PSN ring size - 1; the ring is the power of two at or above P_MPR
    P_MSG_MASK,  # message ring size - 1
    P_MAX_WIMM,  # Write-with-Imm a requestor may have in flight, as negotiated
    P_MAX_WIMM_DEST,  # Write-with-Imm a responder takes before it has completed them
    # where the variable areas of a row begin, in words from the row
    P_TX_RECORDS,
    P_TX_ACKED,
    P_TX_LOST,
    P_TX_MSGS,
    P_TX_PLANES,
    P_TX_EVS,
    P_TX_NIBBLES,
    P_TX_RING,
    P_RX_SEEN,
    P_RX_LAST,
    P_RX_IMM,
    P_RX_REVERSE,
    P_RX_DENIED,
    # paths
    P_PATH_RULE,  # PATH_*
    P_PLANES,
    P_EV_SHIFT,  # log2 of EVs per plane; slot = plane << P_EV_SHIFT | number in the plane
    P_EV_ACTIVE,  # EVs per plane in rotation; the rest stand by as replacements
    P_EV_MIN_ACTIVE,  # EVs that stay in rotation, all planes together, whatever happens
    P_EV_RUN,  # new data packets in a row that share an EV, for drivers that send them as one; 1: each has its own
    P_EV_PROBE_NS,  # an ASSUMED_BAD EV is probed every so often, ever more rarely while nothing answers; 0: never
    P_EV_PROBE_OK,  # successful probes in a row that bring it back
    P_OWN_TURNS,  # 1: packets without payload take planes in turns of their own
    P_PLANE_LOSSES,  # so many losses, and nothing that arrives over the plane: all its EVs are bad; 0: each by itself
    P_RING_SIZE,  # entries of the ring of recycled EVs (REPS, mixed)
    P_FREEZE_NS,  # how long REPS stays frozen after a timeout
    P_REVERSE_RULE,  # REVERSE_*
    P_REVERSE_PROBE_NS,  # a responder probes one random EV this often; 0: never
    # loss recovery
    P_RTO_NS,  # local ACK timeout
    P_RTO_MOST_NS,  # above P_RTO_NS: the timeout follows measured round trips, between both
    P_RETRY_LINEAR,
    P_RETRY_EXP,
    P_REORDER_NS,  # a hole is lost when a packet sent so much later has arrived; 0: only NACKs and timeouts tell
    P_REORDER_TIMER,  # 1: a hole is also lost when such a packet would have arrived by now (RFC 8985 6.3), not before
    P_PROBE_NS,  # silence before the first reliability probe; 0: never
    P_PROBE_RETRY_NS,
    P_TRIM,  # 1: switches trim, so that a silent loss is a path fault and not congestion
    # SACK generation
    P_SACK_BYTES,  # bytes received that trigger a SACK
    P_SACK_FLOOR,  # every packet counts as at least this many
    P_SACK_RULE,  # SACK_*
    P_MESSAGE_ACK,  # 1: a transport ACK (D1) follows each completed message
    P_DYNAMIC_MPR,  # 1: SETH carries mpr
    # congestion control
    P_CC_RULE,  # CC_*
    P_WHOLE_PACKET,  # 1: the next packet must fit in cwnd; 0: any room is enough
    P_CWND,  # initial window, bytes
    P_MIN_CWND,
    P_RATE_MBPS,  # NIC rate, all ports together
    P_NET_RTT_NS,  # unloaded round trip of the longest path; first base RTT
    P_TARGET_NS,  # target queueing delay
    P_ALPHA,  # alpha * target: bytes, see profile.py
    P_FI,
    P_FI_SCALE,  # in 1/65536
    P_FI_DELAY_NS,  # fast increase below this delay
    P_ETA,
    P_QA_GATE,
    P_QA_THRESHOLD_NS,
    P_QA_ON,
    P_ADJUST_NS,
    P_ADJUST_BYTES,
    P_RTT_ON_NACK,  # 1: a NACK may lower the base RTT
    P_BASE_FLOOR_NS,  # the base RTT is never believed to be shorter
    P_DELAY_MARKS,  # 1: switches do not mark, and a queueing delay at or above the target stands for a mark
    P_AVG_DIVISOR,  # the delay average follows a sample by one part in so many
    P_BASE_AGE_NS,  # a sample counts towards the base RTT for one to two of these; 0: for ever
    NUM_PROFILE_FIELDS,
) = range(71)

# --- endpoint: the first words of requestor and responder rows ----------------------------------------------
(
    E_PROFILE,  # address of the profile
    E_PORTS,  # bit = plane whose local port is up
    E_PEER_PORTS,  # bit = plane whose port at the peer is up | id of the update that said so + 1 << PEER_ID_SHIFT
    E_RANDOM,  # state of the random stream, 32 bits, never 0
    E_PLANE,  # plane used last
    E_STATUS_AT,  # when to send the Port Status Update again; FOREVER: it is answered
    E_STATUS,  # id of the last update << 1 | it is to be sent now
    E_ERROR,  # ERROR_*; 0 while the queue pair lives
    NUM_ENDPOINT_FIELDS,
) = range(9)
PEER_ID_SHIFT: Final = 32

# --- requestor ----------------------------------------------------------------------------------------------
(
    # window of PSNs [una, next)
    TX_UNA,  # oldest PSN not acknowledged
    TX_NEXT,  # next new PSN
    TX_LOST,  # PSNs waiting for retransmission
    TX_LOST_HINT,  # no lost PSN stands below this one
    TX_IN_FLIGHT,  # bytes believed in the network; dips below 0 by up to 255, for rcvd_bytes is rounded up
    TX_CWND,
    TX_DEADLINE,  # earliest time on_timer has work; FOREVER: none
    TX_MPR,  # PSN range the peer accepts now
    # messages [done, posted): MSG_* ring
    TX_DONE,  # messages completed
    TX_CURRENT,  # message that new packets come from
    TX_POSTED,  # messages posted
    TX_POSTED_PSN,  # first PSN after the last posted message
    TX_WIMM,  # Write-with-Imm sent and not completed
    TX_WIMM_POSTED,
    TX_HOLD_AT,  # until then the receiver has no room and no data goes; FOREVER: it has room
    # congestion control (NSCC names)
    TX_RCVD,  # rcvd_bytes of the newest SACK, in units of 256 B, 24 bits
    TX_BASE_RTT,
    TX_LEAST_RTT,  # shortest sample since the last renewal of the base RTT; FOREVER: none
    TX_RENEW_AT,  # when the base RTT is renewed
    TX_MAX_CWND,
    TX_AVG_DELAY,  # ns * 1024
    TX_SAVED_CWND,  # the window before the receiver asked for less; 0: it did not
    TX_ACHIEVED,
    TX_RECEIVED,
    TX_INC,
    TX_LAST_ADJUST,
    TX_LAST_DEC,
    TX_QA_END,
    TX_QA_ARMED,
    TX_QA_IGNORE,
    TX_QA_IGNORED,
    TX_FI_COUNT,
    TX_FI_ON,
    # timers and recovery
    TX_RTO_AT,
    TX_SRTT,  # smoothed round trip; 0: none was measured
    TX_RTTVAR,  # its variation
    TX_ROUND_RTT,  # longest round trip of this round, which ends at TX_ROUND_AT
    TX_ROUND_AT,
    TX_EXPIRED_AGE,  # how long the packets that ran out of time last had been on their way; 0: none, or it was told
    TX_RETRIES,  # timeouts and NACKs since una moved
    TX_ROUNDS,  # of these the timeouts
    TX_DELIVERED_AT,  # send time of the latest-sent packet known to have arrived
    TX_DELIVERED_RTT,  # its round trip
    TX_LOSS_AT,  # when the oldest packet in flight will be lost by that; FOREVER: none was sent before it
    TX_REORDER,  # quarters by which mistakes have widened the reorder window
    TX_REORDER_LEFT,  # recoveries without a mistake until it is narrow again
    TX_RECOVERY,  # the recovery from inferred losses ends when una reaches this PSN; -1: there is none
    TX_PROBE_AT,
    TX_PROBE_DUE,
    TX_PROBE_ID,
    TX_PROBE_SENT,  # -1: no reliability probe was sent yet
    TX_EVP_AT,
    TX_EVP_STATE,  # EVP_*
    TX_EVP_SLOT,  # EV probed last
    TX_EVP_ID,
    TX_EVP_MISSED,  # EV probes in a row that were not answered
    TX_REVERSE,  # responder row of the same queue pair, whose reverse EVs data SACKs refresh; -1: none
    # paths
    TX_PLANES_OK,  # bit = plane with an EV in rotation
    TX_EV_ACTIVE,  # EVs in rotation
    TX_EV_BAD,  # EVs ASSUMED_BAD
    TX_CUT,  # bit = plane whose EVs were found bad together
    TX_ASIDE_PLANE,  # plane of the last packet without payload
    TX_LOSING,  # plane over which nothing has arrived since a loss
    TX_LOSING_NUM,  # losses since then
    TX_LOSING_PSN,  # the first of them
    TX_RUN_EV,  # EV of the last new data packet
    TX_RUN_LEFT,  # new data packets that are still to share it
    TX_RING_HEAD,  # where the next recycled EV goes
    TX_RING_FRESH,  # recycled EVs not used yet
    TX_RING_COUNT,  # valid length of the ring while frozen
    TX_FROZEN_UNTIL,  # REPS freezing; 0: not frozen
    TX_FROZEN_NEXT,
    TX_EXPLORE,
    # counters
    TX_NUM_NEW,
    TX_NUM_RTX,
    TX_NUM_SACKS,
    TX_NUM_NACKS,
    TX_NUM_TIMEOUTS,
    TX_NUM_LOST,  # losses inferred from order
    TX_NUM_SPURIOUS,  # packets declared lost that had only been late
    NUM_TX_FIELDS,
) = range(NUM_ENDPOINT_FIELDS, NUM_ENDPOINT_FIELDS + 81)

# a sent packet, one word: send time (38 bits) | transmissions - 1, at most 3 (2) | bytes (14) | EV slot (8)
REC_BYTES_SHIFT: Final = 8
REC_TRIES_SHIFT: Final = 22
REC_TIME_SHIFT: Final = 24
REC_EV_MASK: Final = 0xFF
REC_BYTES_MASK: Final = 0x3FFF
REC_TIME_MASK: Final = (1 << 38) - 1

# a posted message
MSG_START, MSG_END, MSG_BYTES, MSG_FLAGS, NUM_MSG_FIELDS = range(5)  # flags: immediates before it << 1 | has one

# a plane of a requestor: cursor (bits 0-15) | exclusive-or mask (16-31) | EVs in rotation (32-47)
PLANE_XOR_SHIFT: Final = 16
PLANE_ACTIVE_SHIFT: Final = 32

# EV states, four bitmap words for each 32 EVs; none set and not in rotation = a GOOD EV standing by
EV_ACTIVE, EV_SKIP, EV_BAD, EV_DENIED, NUM_EV_WORDS = range(5)

# --- responder ----------------------------------------------------------------------------------------------
(
    RX_NEXT,  # lowest PSN not received: cack_psn + 1
    RX_MAX,  # highest PSN received
    RX_LOW,  # every PSN received below this one has been reported in a SACK
    RX_OUT_OF_ORDER,  # PSNs received above RX_NEXT
    RX_TRIGGER,  # bytes since the last SACK
    RX_ASKED,  # an ACK request waits for the gaps to close (prev_ar)
    RX_RCVD,  # bytes received, packets counted as P_OVERHEAD says
    RX_DONE,  # messages completed, in order
    RX_WIMM,  # Write-with-Imm received and not completed
    RX_WIMM_DONE,
    RX_PENALTY,  # rcv_cwnd_pen to send, 0..127
    RX_RESTORE,  # SACKs that are still to carry restore_cwnd
    RX_PROBE_AT,  # from then on, data that arrives lets a reverse EV be probed
    RX_PROBE_DUE,
    RX_PROBE_SLOT,
    RX_PROBE_ID,
    RX_TRUSTED,  # reliability probes for which a reverse EV found good is still believed
    RX_DEADLINE,
    # counters
    RX_NUM_PACKETS,
    RX_NUM_DUPLICATES,
    RX_NUM_SACKS,
    RX_NUM_NACKS,
    NUM_RX_FIELDS,
) = range(NUM_ENDPOINT_FIELDS, NUM_ENDPOINT_FIELDS + 23)

# --- blocks that cross between a handler and its driver -----------------------------------------------------
# control packet: SACK or NACK, one cache line
S_CACK, S_PSN, S_BASE, S_LOW, S_HIGH, S_RCVD, S_INFO, S_ECHO, NUM_SACK_FIELDS = range(9)
INFO_EV_MASK: Final = 0xFFFF
INFO_M_SHIFT: Final = 16  # 2 bits
INFO_PROBE: Final = 1 << 18  # pr: S_PSN is a probe id
INFO_RTX: Final = 1 << 19  # the triggering packet carried rtx
INFO_RESTORE: Final = 1 << 20
INFO_PEN_SHIFT: Final = 21  # 7 bits
INFO_REASON_SHIFT: Final = 28  # 8 bits, NACK only
INFO_OOO_SHIFT: Final = 36  # 15 bits
INFO_MPR_SHIFT: Final = 51  # 8 bits, unit 128

# packet to send
(
    D_PSN,  # or the probe id
    D_EV,
    D_PLANE,
    D_FLAGS,  # F_*
    D_BYTES,  # payload
    D_MSN,
    D_OFFSET,  # of the payload in its message
    D_RQMSN,
    NUM_SEND_FIELDS,
) = range(9)

# --- codes --------------------------------------------------------------------------------------------------
# packet flags, in D_FLAGS and in the flags argument of on_data
F_ECN: Final = 1  # congestion experienced (receive only)
F_RTX: Final = 2  # BTH.rtx
F_ASK: Final = 4  # BTH.A: acknowledge at once
F_FIRST: Final = 8
F_LAST: Final = 16
F_IMM: Final = 32
F_TRIMMED: Final = 64  # payload cut away by a switch
F_LAST_HOP: Final = 128  # ... by the switch before the receiver
F_NO_ACCESS: Final = 256  # the driver found RETH outside every memory region it may write
F_NO_RESOURCE: Final = 512  # the driver has no receive request for the immediate

# what next_packet and next_control hand out
SEND_NOTHING, SEND_DATA, SEND_PROBE, SEND_EV_PROBE, SEND_PORT_STATUS = range(5)

# what a handler reports, a set of bits
DID_NOTHING: Final = 0
DO_SACK: Final = 1  # send the control block as a SACK
DO_NACK: Final = 2  # ... as a NACK
DO_PLACE: Final = 4  # write the payload to memory: it is new
DO_CONTROL: Final = 8  # call next_control
DO_ACK: Final = 16  # send a transport ACK (D1) of message RX_DONE - 1
DID_COMPLETE: Final = 32  # at least one more message is complete
DID_FAIL: Final = 64  # the queue pair went to the error state: E_ERROR says why

# queue pair errors: the four reasons there are, the peer's fatal NACK seen from both sides
ERROR_NONE, ERROR_RETRY, ERROR_REMOTE, ERROR_WIMM, ERROR_PORTS = range(5)

# the EV probe of a requestor
EVP_IDLE, EVP_DUE, EVP_WAITING = range(3)

# SETH.m
M_NONE, M_SKIP_ONCE, M_ALWAYS_SKIP = range(3)

# NETH reasons
NACK_TRIMMED: Final = 0x01
NACK_TRIMMED_LASTHOP: Final = 0x02
NACK_NO_BITMAP: Final = 0x06
NACK_NO_PKT_BUFFER: Final = 0x07
NACK_NO_RESOURCE: Final = 0x0A
NACK_PSN_OOR_WINDOW: Final = 0x0B
NACK_UNEXP_EVENT: Final = 0x19

# what a path is told about an EV it used
PATH_IS_GOOD, PATH_IS_MARKED, PATH_IS_TRIMMED, PATH_IS_SUSPECT, PATH_IS_LOSSY = range(5)

# choices of a profile
PATH_MRC, PATH_OBLIVIOUS, PATH_BITMAP, PATH_REPS, PATH_MIXED = range(5)
REVERSE_ECHO, REVERSE_SET = range(2)
CC_CONSTANT, CC_NSCC = range(2)
SACK_MRC, SACK_UEC = range(2)

# states of an EV, as ev_state reports them
STATE_GOOD, STATE_SKIP, STATE_ASSUMED_BAD, STATE_DENIED, STATE_STANDBY = range(5)

RETRY_EXP_INFINITE: Final = 25  # mrc.h
TIMESTAMP_UNIT_NS: Final = 128  # TSETH, CC_STATE
TIMESTAMP_BITS: Final = 16
