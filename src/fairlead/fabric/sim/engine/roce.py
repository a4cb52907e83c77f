"""The transport that MRC is compared with: RoCE RC, go-back-N on one path, rate-controlled by DCQCN.

Sender. Packets leave in order at the flow's rate, as long as fewer than a window of them are unacknowledged. A NAK (the
receiver missed a packet) or a timeout sends everything again from there. A congestion notification (CNP) cuts the rate,
timers and bytes raise it again (Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM 2015):

    CNP                      target = rate; rate *= 1 - alpha / 2; alpha += (1 - alpha) / 256; at most once in 50 us
    55 us without CNP        alpha -= alpha / 256
    each 55 us, each 10 MB   first five: rate = (rate + target) / 2; then target += step first;
                             after five of both: ten steps

Receiver. In-order packets are placed; the first out-of-order one is answered by one NAK; every 16 packets, and the
last of a message, by an ACK; a marked packet by a CNP, at most one in 50 us. Priority flow control, where there is
any, is the switches' business (`lossless.py`).

All of a flow's packets carry the same entropy, so that equal-cost routing gives it one path.

Knows: the rules above and one flow's rows. Must not know: MRC, or the fabric.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead.fabric.mrc.layout import F_ECN, F_LAST, F_TRIMMED
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, row_of

(
    RT_UNA,
    RT_NEXT,
    RT_END,  # first PSN after the last message posted
    RT_HIGHEST,  # first PSN never sent
    RT_AT,  # the rate allows the next packet then, ps
    RT_TIMEOUT_AT,
    RT_RATE,  # kb/s
    RT_TARGET,
    RT_ALPHA,  # in 1 / 2^20
    RT_ALPHA_AT,
    RT_RAISE_AT,
    RT_RAISE_BYTES,
    RT_TIMES,  # raises by timer since the last cut
    RT_VOLUMES,  # raises by bytes
    RT_CUT_AT,
    RT_CURSOR,  # message of the flow that RT_NEXT belongs to
    RT_NUM_NEW,
    RT_NUM_RTX,
    RT_NUM_ACKS,
    RT_NUM_NAKS,
    RT_NUM_CNPS,
    RT_NUM_TIMEOUTS,
    RT_DONE,  # messages acknowledged
    RT_POSTED,
) = range(24)
RT_COLUMNS: Final = 24

RR_NEXT, RR_NAK_SENT, RR_SINCE_ACK, RR_CNP_AT, RR_DONE, RR_NUM_DUPLICATES, RR_NUM_GAPS = range(7)
RR_COLUMNS: Final = 8  # a cache line

# parameters, one vector: T_ROCE
(
    RP_RATE,  # line rate, kb/s
    RP_MIN_RATE,
    RP_STEP,  # additive increase, kb/s
    RP_WINDOW,  # packets
    RP_TIMEOUT,  # ps
    RP_MTU,  # payload
    RP_DCQCN,  # 1: rate control on
    RP_COALESCE,  # packets per ACK
    NUM_PARAMETERS,
) = range(9)

ALPHA_ONE: Final = 1 << 20
G_SHIFT: Final = 8
CUT_PERIOD: Final = 50_000_000
ALPHA_PERIOD: Final = 55_000_000
RAISE_PERIOD: Final = 55_000_000
RAISE_BYTES: Final = 10_000_000
FAST_STEPS: Final = 5
HYPER_STEPS: Final = 10


@engine
def start_flow(w: Any, flow: int) -> None:
    """A fresh sender at line rate."""
    row, p = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow), row_of(w, at.T_ROCE, NUM_PARAMETERS, 0)
    row[RT_RATE] = row[RT_TARGET] = p[RP_RATE]
    row[RT_ALPHA] = ALPHA_ONE
    row[RT_TIMEOUT_AT] = row[RT_ALPHA_AT] = row[RT_RAISE_AT] = at.NEVER


@engine
def post(w: Any, flow: int) -> None:
    """One more message of the flow may be sent."""
    row = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow)
    first = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)[at.FL_MESSAGE0]
    row[RT_END] = row_of(w, at.T_MESSAGES, at.MESSAGE_COLUMNS, first + row[RT_POSTED])[at.MS_END_PSN]
    row[RT_POSTED] += 1


@engine
def has_packet(w: Any, flow: int) -> bool:
    """Whether anything may be sent once the rate allows it."""
    row = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow)
    window = row_of(w, at.T_ROCE, NUM_PARAMETERS, 0)[RP_WINDOW]
    return row[RT_NEXT] < row[RT_END] and row[RT_NEXT] - row[RT_UNA] < window


@engine
def next_packet(w: Any, flow: int, now: int, out: Any) -> bool:
    """The next packet in order: PSN, payload and flags to out[0:3]. False if the rate or the window says no."""
    row, p = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow), row_of(w, at.T_ROCE, NUM_PARAMETERS, 0)
    if now < row[RT_AT] or not has_packet(w, flow):
        return False
    first = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)[at.FL_MESSAGE0]
    psn = row[RT_NEXT]
    while row_of(w, at.T_MESSAGES, at.MESSAGE_COLUMNS, first + row[RT_CURSOR])[at.MS_END_PSN] <= psn:
        row[RT_CURSOR] += 1
    message = row_of(w, at.T_MESSAGES, at.MESSAGE_COLUMNS, first + row[RT_CURSOR])
    packets = max((message[at.MS_BYTES] + p[RP_MTU] - 1) // p[RP_MTU], 1)
    index = psn - (message[at.MS_END_PSN] - packets)
    payload = min(p[RP_MTU], message[at.MS_BYTES] - index * p[RP_MTU])
    is_last = index == packets - 1
    row[RT_NEXT] = psn + 1
    if psn < row[RT_HIGHEST]:
        row[RT_NUM_RTX] += 1
    else:
        row[RT_NUM_NEW] += 1
        row[RT_HIGHEST] = psn + 1
    if row[RT_TIMEOUT_AT] == at.NEVER:
        row[RT_TIMEOUT_AT] = now + p[RP_TIMEOUT]
    wire = payload + w[at.W_OVERHEAD]
    row[RT_AT] = max(row[RT_AT], now) + wire * 8_000_000_000 // row[RT_RATE]
    if p[RP_DCQCN]:
        _count_bytes(row, p, wire, now)
    out[0], out[1], out[2] = psn, payload, F_LAST if is_last else 0
    return True


@engine
def on_ack(w: Any, flow: int, now: int, psn: int) -> int:
    """Everything below `psn` arrived; returns how many messages are complete."""
    row = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow)
    row[RT_NUM_ACKS] += 1
    _acknowledge(w, flow, now, psn)
    return row[RT_DONE]


@engine
def on_nak(w: Any, flow: int, now: int, psn: int) -> int:
    """The receiver missed `psn`: everything below arrived, everything from there on goes again."""
    row = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow)
    row[RT_NUM_NAKS] += 1
    _acknowledge(w, flow, now, psn)
    if psn >= row[RT_UNA]:
        _go_back(row, psn)
    return row[RT_DONE]


@engine
def _go_back(row: Any, psn: int) -> None:
    row[RT_NEXT] = psn
    row[RT_CURSOR] = row[RT_DONE]


@engine
def _acknowledge(w: Any, flow: int, now: int, psn: int) -> None:
    row, p = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow), row_of(w, at.T_ROCE, NUM_PARAMETERS, 0)
    if psn <= row[RT_UNA]:
        return
    row[RT_UNA] = psn
    row[RT_NEXT] = max(row[RT_NEXT], psn)
    first = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)[at.FL_MESSAGE0]
    while (
        row[RT_DONE] < row[RT_POSTED]
        and row_of(w, at.T_MESSAGES, at.MESSAGE_COLUMNS, first + row[RT_DONE])[at.MS_END_PSN] <= psn
    ):
        row[RT_DONE] += 1
    row[RT_CURSOR] = max(row[RT_CURSOR], min(row[RT_DONE], row[RT_POSTED] - 1))
    row[RT_TIMEOUT_AT] = now + p[RP_TIMEOUT] if row[RT_UNA] < row[RT_HIGHEST] else at.NEVER


# --- rate -------------------------------------------------------------------------------------------------------------


@engine
def on_cnp(w: Any, flow: int, now: int) -> None:
    """A packet of this flow was marked on its way."""
    row, p = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow), row_of(w, at.T_ROCE, NUM_PARAMETERS, 0)
    row[RT_NUM_CNPS] += 1
    if not p[RP_DCQCN] or (now - row[RT_CUT_AT] < CUT_PERIOD and row[RT_CUT_AT] > 0):
        return
    row[RT_CUT_AT] = now
    row[RT_TARGET] = row[RT_RATE]
    row[RT_RATE] = max(row[RT_RATE] - row[RT_RATE] * row[RT_ALPHA] // (2 * ALPHA_ONE), p[RP_MIN_RATE])
    row[RT_ALPHA] += (ALPHA_ONE - row[RT_ALPHA]) >> G_SHIFT
    row[RT_TIMES] = row[RT_VOLUMES] = row[RT_RAISE_BYTES] = 0
    row[RT_ALPHA_AT] = now + ALPHA_PERIOD
    row[RT_RAISE_AT] = now + RAISE_PERIOD


@engine
def _count_bytes(row: Any, p: Any, num_bytes: int, now: int) -> None:
    if row[RT_RAISE_AT] == at.NEVER:
        if row[RT_RATE] >= p[RP_RATE]:
            return
        row[RT_RAISE_AT] = now + RAISE_PERIOD  # busy again after a pause
    row[RT_RAISE_BYTES] += num_bytes
    if row[RT_RAISE_BYTES] >= RAISE_BYTES:
        row[RT_RAISE_BYTES] = 0
        row[RT_VOLUMES] += 1
        _raise(row, p)


@engine
def _raise(row: Any, p: Any) -> None:
    if min(row[RT_TIMES], row[RT_VOLUMES]) > FAST_STEPS:
        row[RT_TARGET] += HYPER_STEPS * p[RP_STEP]
    elif max(row[RT_TIMES], row[RT_VOLUMES]) > FAST_STEPS:
        row[RT_TARGET] += p[RP_STEP]
    row[RT_TARGET] = min(row[RT_TARGET], p[RP_RATE])
    row[RT_RATE] = (row[RT_RATE] + row[RT_TARGET]) // 2


@engine
def on_timer(w: Any, flow: int, now: int) -> None:
    """Whatever of the flow's timers has come."""
    row, p = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow), row_of(w, at.T_ROCE, NUM_PARAMETERS, 0)
    if row[RT_TIMEOUT_AT] <= now:
        row[RT_NUM_TIMEOUTS] += 1
        _go_back(row, row[RT_UNA])
        row[RT_TIMEOUT_AT] = now + p[RP_TIMEOUT]
    if row[RT_ALPHA_AT] <= now:
        row[RT_ALPHA] -= row[RT_ALPHA] >> G_SHIFT
        row[RT_ALPHA_AT] = now + ALPHA_PERIOD
    if row[RT_RAISE_AT] <= now:
        row[RT_TIMES] += 1
        _raise(row, p)
        row[RT_RAISE_AT] = now + RAISE_PERIOD
    if row[RT_UNA] == row[RT_END]:
        row[RT_ALPHA_AT] = row[RT_RAISE_AT] = at.NEVER  # idle: timers start again with the next packet or CNP


@engine
def deadline(w: Any, flow: int) -> int:
    """When on_timer, or the rate, next has something for this flow, ps."""
    row = row_of(w, at.T_ROCE_TX, RT_COLUMNS, flow)
    return min(row[RT_TIMEOUT_AT], row[RT_ALPHA_AT], row[RT_RAISE_AT])


# --- receiver ---------------------------------------------------------------------------------------------------------

PLACE: Final = 1
ACK: Final = 2
NAK: Final = 4
CNP: Final = 8
COMPLETE: Final = 16


@engine
def on_data(w: Any, receiver: int, now: int, psn: int, flags: int) -> int:
    """What becomes of a data packet: a set of PLACE, ACK, NAK, CNP, COMPLETE. ACK and NAK carry the next PSN."""
    row, p = row_of(w, at.T_ROCE_RX, RR_COLUMNS, receiver), row_of(w, at.T_ROCE, NUM_PARAMETERS, 0)
    did = 0
    if flags & F_ECN and (now >= row[RR_CNP_AT]):
        row[RR_CNP_AT] = now + CUT_PERIOD
        did = CNP
    if flags & F_TRIMMED:
        return did
    if psn == row[RR_NEXT]:
        row[RR_NEXT] = psn + 1
        row[RR_NAK_SENT] = 0
        row[RR_SINCE_ACK] += 1
        did |= PLACE
        if flags & F_LAST:
            row[RR_DONE] += 1
            did |= COMPLETE
        if flags & F_LAST or row[RR_SINCE_ACK] >= p[RP_COALESCE]:
            row[RR_SINCE_ACK] = 0
            did |= ACK
    elif psn < row[RR_NEXT]:
        row[RR_NUM_DUPLICATES] += 1
        did |= ACK
    else:
        row[RR_NUM_GAPS] += 1
        if not row[RR_NAK_SENT]:
            row[RR_NAK_SENT] = 1
            did |= NAK
    return did
