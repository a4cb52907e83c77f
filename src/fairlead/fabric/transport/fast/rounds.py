"""Reading, taking in and sending, round after round, as long as Python need not hear of it (compiled).

The compiled form of turns of `Driver` and `Engine`: what has come by all ports, then one turn for each queue pair that
has something to send, in the same order. A stream keeps two ends here for most of their time; what Python has to do
ends it, and so does a limit of time, for others wait for the lock.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.mrc.compile import call_address
from fairlead.fabric.transport.fast import packing, parsing, wire
from fairlead.fabric.transport.fast.layout import *
from fairlead.fabric.transport.fast.memory import part, words_at

CLOCK_MONOTONIC = 1  # linux/time.h
NS = 1_000_000_000


@part
def _clock(x: Any) -> int:
    call_address(x[X_CLOCK], CLOCK_MONOTONIC, x[X_TIME])
    time = words_at(x[X_TIME])
    return time[0] * NS + time[1]


@part
def go(k: Any, x: Any, budget: int, most_out: int, until: int) -> int:
    """Rounds, until the time; ROUNDS_* says why they ended, below zero: the negative errno that nobody foresaw.

    ROUNDS_STOPPED: letter X_TAKEN of X_COME is Python's, or a queue pair has failed. ROUNDS_HELD: letters on the desk
    found no room. News and turns stand on the desk, whatever the end.
    """
    x[X_IS_FULL] = 1
    while k[K_NUM_NEWS] <= k[K_MOST_NEWS]:
        now = _clock(x)
        come = 0
        x[X_NOW], x[X_IS_FULL] = now, 0
        for rail in range(x[X_NUM_RAILS]):
            num = wire.collect(k, x, words_at(x[X_RAILS])[rail], rail, x[X_MAX_READ], x[X_STEERED])
            if num < 0:
                return num
            if x[X_NUM_READ] == x[X_MAX_READ]:
                x[X_IS_FULL] = 1
            news = k[K_NUM_NEWS]
            taken = parsing.take(k, 0, num, now)
            x[X_RAIL], x[X_COME], x[X_TAKEN] = rail, num, taken
            if _gather(k, news) or taken < num:
                return ROUNDS_STOPPED
            come += num
            if k[K_NUM_NEWS] > k[K_MOST_NEWS]:
                x[X_IS_FULL] = 1
                break
        if come == 0 and k[K_NUM_TURNS] == 0:
            return ROUNDS_DONE
        x[X_NOW] = _clock(x)
        held = _turns(k, x, x[X_NOW], budget, most_out)
        if held != 0:
            return held if held < 0 else ROUNDS_HELD
        if x[X_NOW] > until:  # not before the first round: a thread that lost its core would never get further
            break
    return ROUNDS_MORE


@part
def _gather(k: Any, first: int) -> bool:
    """Turn news of queue pairs that woke into turns; True if one has failed."""
    kept, has_failed = first, False
    for n in range(first, k[K_NUM_NEWS]):
        news = words_at(k[K_NEWS] + n * NEWS_ROW * WORD)
        if news[N_KIND] == NEWS_WAKE:
            words_at(k[K_TURNS])[k[K_NUM_TURNS]] = news[N_A]
            k[K_NUM_TURNS] += 1
            continue
        has_failed = has_failed or news[N_KIND] == NEWS_FAIL
        to = words_at(k[K_NEWS] + kept * NEWS_ROW * WORD)
        for i in range(NEWS_ROW):
            to[i] = news[i]
        kept += 1
    k[K_NUM_NEWS] = kept
    return has_failed


@part
def _turns(k: Any, x: Any, now: int, budget: int, most_out: int) -> int:
    """One turn for each queue pair, and what they have to send is sent; how many letters found no room."""
    turns = words_at(k[K_TURNS])
    kept = 0
    for i in range(k[K_NUM_TURNS]):
        if k[K_NUM_OUT] + budget > most_out:
            held = _post(k, x)
            if held != 0:
                for rest in range(i, k[K_NUM_TURNS]):
                    turns[kept] = turns[rest]
                    kept += 1
                k[K_NUM_TURNS] = kept
                return held
        c = words_at(turns[i])
        num = packing.fill(k, c, now, c[C_PLANES], budget)
        c[C_READY] = 1 if num == budget else 0
        if c[C_READY]:
            turns[kept] = turns[i]
            kept += 1
    k[K_NUM_TURNS] = kept
    return _post(k, x)


@part
def _post(k: Any, x: Any) -> int:
    if k[K_NUM_OUT] == 0:
        return 0
    held = wire.post(k, x)
    if held == 0:
        k[K_SENT] += k[K_NUM_OUT]
        k[K_NUM_OUT] = 0
    return held
