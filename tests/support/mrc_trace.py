"""One event of a queue pair as a row of integers, so that the same trace runs through plain and compiled handlers.

`apply` is ordinary Python that calls the law; `fairlead.fabric.mrc.compile.kernel` compiles this very function for
the other run."""

# ruff: noqa: PLR0917 - handlers take addresses and blocks

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.fabric.mrc import bits, evs, law, responder, state
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.compile import kernel, words
from fairlead.fabric.mrc.layout import NUM_SACK_FIELDS, NUM_SEND_FIELDS
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.rows import Requestor, Responder, Words, requestor_row, responder_row

NUM_OPS = 21
EVENT_WORDS = 12


def apply(tx: Requestor, rx: Responder, e: Words, out: Words, s: Words) -> int:
    """Let one event happen. e: op, now, then arguments; results of handlers go to out and s."""
    op, now = e[0], e[1]
    if op == 0:
        return law.post(tx, e[2], e[3] & 1)
    if op <= 4:
        return law.next_packet(tx, now, e[2], out)
    if op <= 8:
        return law.on_data(rx, now, e[2], e[3], e[4], e[5], e[6], s)
    if op <= 11:
        for i in range(NUM_SACK_FIELDS):
            s[i] = e[2 + i]
        return law.on_sack(tx, now, s)
    if op == 12:
        for i in range(NUM_SACK_FIELDS):
            s[i] = e[2 + i]
        return law.on_nack(tx, now, s)
    if op == 13:
        return law.on_timer(tx, now) | law.on_rx_timer(rx, now) << 8
    if op == 14:
        return law.on_ack(tx, now, e[2])
    if op == 15:
        return law.on_probe(rx, e[2], e[3], e[4], e[5], s)
    if op == 16:
        law.on_ev_reply(tx, now, e[2], e[3])
        law.on_reverse_reply(rx, now, e[2], e[3])
        return law.on_status_reply(tx, e[2])
    if op == 17:
        return law.on_ports(tx, now, e[2], e[3] & 1) | law.on_peer_ports(rx, e[4], e[5], e[6]) << 8
    if op == 18:
        sent = law.next_control(rx, now, e[2], out) | law.control_slot(rx, e[3], e[2]) << 8
        return sent ^ law.reply_slot(tx, e[2]) << 20
    if op == 19:
        law.set_peer_window(tx, e[4])
        return law.on_pressure(rx, e[2]) | law.probe_mark(e[3]) << 8
    if e[3] & 1:
        evs.deny(tx, e[2])
        responder.deny(rx, e[2])
    else:
        evs.allow(tx, e[2])
        responder.allow(rx, e[2])
    return law.ready(tx) | evs.ev_state(tx, e[2]) << 8


def apply_arrays(m: Any, tx: int, rx: int, e: Any, out: Any, s: Any) -> int:
    """The same over arrays, for compilation."""
    rows = words(m)
    return apply(requestor_row(rows, tx), responder_row(rows, rx), words(e), words(out), words(s))


def compiled() -> Callable[..., int]:
    """`apply_arrays`, compiled."""
    import numba.extending

    numba.extending.register_jitable(error_model="numpy")(apply)
    return kernel(apply_arrays, sources=[Path(__file__)])


def random_event(rng: random.Random, tx: Requestor, rx: Responder, now: int) -> list[int]:
    """An event that makes some sense: PSNs near the windows, ids that are awaited, EVs that exist."""
    op = rng.randrange(NUM_OPS)
    planes = tx.profile.planes
    num_evs = planes << tx.profile.ev_shift
    una, received = tx.una, rx.next
    slot = rng.choice((rng.randrange(num_evs), at.INFO_EV_MASK)) if op in {9, 10, 11} else rng.randrange(num_evs)
    event = [op, now] + [0] * (EVENT_WORDS - 2)
    ports = rng.choice((0xFF, 0xFF, rng.getrandbits(8)))
    sent = rng.choice((-1, max(now - rng.randrange(40_000), 0)))
    if op == 0:
        event[2:4] = rng.choice((0, 1, 50, 4096, rng.randrange(60_000))), rng.getrandbits(1)
    elif op <= 4:
        event[2] = ports
    elif op <= 8:
        flags = rng.choice((0, 0, 0, at.F_ASK, rng.getrandbits(10)))
        event[2:7] = received + rng.randrange(-4, 140) & rng.choice((-1, 0xFFFFFF)), 4096, flags, slot, sent
    elif op <= 11:
        cack = una - 1 + rng.choice((0, 0, 1, rng.randrange(-3, 40)))
        info = slot | rng.choice((0, 0, 1, 2)) << at.INFO_M_SHIFT | rng.choice((0, 0, at.INFO_RTX, at.INFO_PROBE))
        info |= rng.choice((0, 0, 0, rng.getrandbits(8) << 20)) | rng.choice((0, 0, 2)) << at.INFO_MPR_SHIFT
        psn = tx.probe_id if info & at.INFO_PROBE else una + rng.randrange(-2, 60)
        rcvd = tx.rcvd + rng.choice((0, 16, 70, -3)) & 0xFFFFFF
        word = rng.choice((0, rng.getrandbits(64), rng.getrandbits(64) & rng.getrandbits(64)))
        base = cack + 1 + rng.choice((0, 0, rng.randrange(-40, 80)))
        event[2:10] = cack, psn, base, word & bits.LOW32, word >> 32, rcvd, info, sent
    elif op == 12:
        reason = rng.choice((1, 1, 1, 2, 0x0A, 0x0B)) if rng.random() < 0.999 else at.NACK_UNEXP_EVENT
        event[3] = una + rng.randrange(-2, 40)
        event[8:10] = slot | reason << at.INFO_REASON_SHIFT, sent
    elif op == 14:
        event[2] = tx.done + rng.randrange(-1, 3) & 0xFFFFFF
    elif op == 15:
        event[2:6] = rng.getrandbits(16), rng.getrandbits(1), slot, sent
    elif op == 16:
        awaited = (tx.evp_id, rx.probe_id, tx.status >> 1, rng.getrandbits(16))
        event[2:4] = rng.choice(awaited), rng.choice((0, 0, 0, 1, 2))
    elif op == 17:
        full = (1 << planes) - 1
        event[2:5] = rng.choice((full, full, rng.randint(1, full))), 1, rng.choice((full, full, rng.randint(1, full)))
        event[5] = rng.choice((now // 1_000 & 0xFFFF, rng.getrandbits(16)))
        event[6] = rng.randrange(planes)
    elif op == 19:
        event[2:5] = rng.choice((0, 0, rng.randrange(128))), rng.getrandbits(1), rng.randrange(1, 4)
    elif op >= 18:
        event[2:4] = (ports, slot) if op == 18 else (slot, rng.choice((0, 0, 1)))
    return event


class Twins:
    """The same two rows twice: one for the plain handlers, one for the compiled."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.plain, self.other = (state.allocate([profile], 1, 1) for _ in range(2))
        for rows in (self.other, self.plain):
            self.tx = law.init_tx(rows.plain(), rows.tx(0), 0, seed, seed & 0xFFFFFF)
            self.rx = law.init_rx(rows.plain(), rows.rx(0), 0, seed + 1, seed & 0xFFFFFF)
            self.tx.responder_address = self.rx.address
        self.blocks = [np.zeros(NUM_SEND_FIELDS + NUM_SACK_FIELDS, np.int64) for _ in range(2)]

    def happen(self, event: list[int], run: Callable[..., int]) -> None:
        """Let an event happen in both and compare everything."""
        outs = [(b[:NUM_SEND_FIELDS], b[NUM_SEND_FIELDS:]) for b in self.blocks]
        one = apply(self.tx, self.rx, event, outs[0][0].data, outs[0][1].data)
        two = run(self.other.m, self.tx.address, self.rx.address, np.array(event, np.int64), *outs[1])
        assert one == two, event
        assert np.array_equal(self.plain.m, self.other.m), event
        assert np.array_equal(*self.blocks), event
