"""What one event of the MRC core costs: compiled with rows in cache and out of it, and in plain Python.

    python bench/mrc_cost.py            # about two minutes, most of it compiling the first time
    python bench/mrc_cost.py --json

Rounds of 32 packets on each of N queue pairs: all are sent, then all arrive, then all SACKs are heard; each phase is
timed by itself, in processor time of the thread, so that other work on the machine disturbs little; the median of all
rounds counts. Nothing is lost, so this is the common case.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np

from fairlead.fabric.mrc import law, state
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.compile import kernel, words, words_at
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.rows import requestor_row, responder_row

WINDOW = 32  # packets per queue pair and round
SEND, SACK = at.NUM_SEND_FIELDS, at.NUM_SACK_FIELDS


def start(array, txs, rxs, profile):
    m = words(array)
    for k in range(len(txs)):
        law.init_tx(m, txs[k], profile, k, 0)
        law.init_rx(m, rxs[k], profile, k, 0)


def send(array, txs, now, blocks):
    m, out = words(array), blocks.ctypes.data
    for k in range(len(txs)):
        tx = requestor_row(m, txs[k])
        law.post(tx, WINDOW * 4096, 0)
        for i in range(WINDOW):
            law.next_packet(tx, now, 0xFF, words_at(out + (k * WINDOW + i) * SEND * 8))


def arrive(array, rxs, now, blocks, sacks, num_sacks):  # noqa: PLR0917
    m, sent, out = words(array), words(blocks), sacks.ctypes.data
    for k in range(len(rxs)):
        n = k * WINDOW
        rx = responder_row(m, rxs[k])
        for i in range(k * WINDOW, (k + 1) * WINDOW):
            o = i * SEND
            did = law.on_data(
                rx,
                now,
                sent[o],
                sent[o + at.D_BYTES],
                sent[o + at.D_FLAGS],
                sent[o + at.D_EV],
                -1,
                words_at(out + n * SACK * 8),
            )
            if did & at.DO_SACK:
                n += 1
        num_sacks[k] = n - k * WINDOW


def hear(array, txs, now, sacks, num_sacks):
    m, heard = words(array), sacks.ctypes.data
    for k in range(len(txs)):
        tx = requestor_row(m, txs[k])
        for i in range(num_sacks[k]):
            law.on_sack(tx, now, words_at(heard + (k * WINDOW + i) * SACK * 8))


def measure(profile: Profile, num_qps: int, rounds: int) -> dict[str, float]:
    """Nanoseconds per event."""
    run = [kernel(f, sources=[Path(__file__)]) for f in (start, send, arrive, hear)]
    rows = state.allocate([profile], num_qps, num_qps)
    txs = np.array([rows.tx(i) for i in range(num_qps)])
    rxs = np.array([rows.rx(i) for i in range(num_qps)])
    blocks = np.zeros(num_qps * WINDOW * SEND, np.int64)
    sacks = np.zeros(num_qps * WINDOW * SACK, np.int64)
    num_sacks = np.zeros(num_qps, np.int64)
    run[0](rows.m, txs, rxs, 0)
    spent: list[list[float]] = [[], [], []]
    heard = 0
    for r in range(rounds + 1):
        now = 1_000_000 + 20_000 * r
        t0 = time.thread_time()
        run[1](rows.m, txs, now, blocks)
        t1 = time.thread_time()
        run[2](rows.m, rxs, now + 5_000, blocks, sacks, num_sacks)
        t2 = time.thread_time()
        run[3](rows.m, txs, now + 10_000, sacks, num_sacks)
        t3 = time.thread_time()
        if r:  # the first round compiles and touches the memory
            for phase, seconds in zip(spent, (t1 - t0, t2 - t1, t3 - t2), strict=True):
                phase.append(seconds * 1e9)
            heard += int(num_sacks.sum())
    packets = num_qps * WINDOW
    sent, arrived, acknowledged = (statistics.median(phase) for phase in spent)
    assert requestor_row(rows.plain(), int(txs[-1])).num_new == WINDOW * (rounds + 1), "the window never closed"
    return {
        "next_packet": sent / packets,
        "on_data": arrived / packets,
        "on_sack": acknowledged / (heard / rounds),
        "sacks per packet": heard / rounds / packets,
        "per packet": (sent + arrived + acknowledged) / packets,
    }


def plain(profile: Profile, rounds: int) -> dict[str, float]:
    """The same in plain Python, one queue pair."""
    rows = state.allocate([profile], 1, 1)
    tx = law.init_tx(rows.plain(), rows.tx(0), 0, 1, 0)
    rx = law.init_rx(rows.plain(), rows.rx(0), 0, 2, 0)
    out, block = [0] * SEND, [0] * SACK
    begin = time.thread_time()
    for r in range(rounds):
        now = 1_000_000 + 20_000 * r
        law.post(tx, WINDOW * 4096, 0)
        for _ in range(WINDOW):
            law.next_packet(tx, now, 0xFF, out)
            flags = out[at.D_FLAGS]
            if law.on_data(rx, now, out[0], out[at.D_BYTES], flags, out[at.D_EV], -1, block) & at.DO_SACK:
                law.on_sack(tx, now + 10_000, block)
    return {"per packet": (time.thread_time() - begin) / rounds / WINDOW * 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = {
        "MRC, 256 EVs, SACK per packet": Profile.mrc(mpr=256, max_messages=4),
        "MRC, 256 EVs, SACK per 16 KB": Profile.mrc(mpr=256, max_messages=4, sack_bytes=16_384),
        "UEC bitmap, 64 EVs": Profile.uec(mpr=256, max_messages=4, path_rule=at.PATH_BITMAP, cwnd=1 << 20),
    }
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    results = {"machine": machine, "load": os.getloadavg()[0], "ns": {}}
    for name, profile in cases.items():
        for num_qps, rounds in ((16, 2_000), (20_000, 10)):
            results["ns"][f"{name}, {num_qps} queue pairs"] = measure(profile, num_qps, rounds)
        results["ns"][f"{name}, plain Python"] = plain(profile, 300)
        results["ns"][f"{name}, bytes per row"] = {"requestor": profile.tx_words * 8, "responder": profile.rx_words * 8}
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for name, values in results["ns"].items():
        print(f"{name:48}", "  ".join(f"{key} {value:.6g}" for key, value in values.items()))


if __name__ == "__main__":
    main()
