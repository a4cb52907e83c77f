"""What stands inside the words: bits of packed words, blocks between a handler and its driver, codes.

Where the words of a row stand is said in `rows.py`. This file knows positions only: no rule, no numpy.
"""

from __future__ import annotations

from typing import Final

FOREVER: Final = 1 << 62  # a deadline that never comes
PEER_ID_SHIFT: Final = 32  # Endpoint.peer_ports: above, the id of the update

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
DO_ACK: Final = 16  # send a transport ACK (D1) of message rx.done - 1
DID_COMPLETE: Final = 32  # at least one more message is complete
DID_FAIL: Final = 64  # the queue pair went to the error state: the row's `error` says why

# queue pair errors: the reasons there are, the peer's fatal NACK seen from both sides
ERROR_NONE, ERROR_RETRY, ERROR_REMOTE, ERROR_WIMM, ERROR_PORTS, ERROR_STUCK, ERROR_RNR = range(7)

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
