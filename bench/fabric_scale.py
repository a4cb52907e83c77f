"""The largest published fabric, packet by packet: 131,072 NICs x 8 planes (8 x 512 T0 x 256 T1), 4,194,304 queues.

    python bench/fabric_scale.py            # about five minutes; takes up to 10 GB
    python bench/fabric_scale.py permutation --json

permutation   each NIC sends 1 MB to another at 800 Gb/s; at 10 us, in the middle of it, one T1 dies for good
all-reduce    one step: every NIC's 256 KB reduced over a binary tree of all NICs and sent back, 16 chunks in a pipeline

Two threads. The run includes everything from the first packet to the last acknowledgement.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import simruns

FABRIC = """
[topology]
planes = 8
t0 = 512
t1 = 256
hosts_per_t0 = 256
[run]
threads = 2
"""
CASES = {
    "permutation": FABRIC
    + """
[[traffic]]
kind = "permutation"
size_bytes = 1_000_000
[[fault]]
kind = "t1"
plane = 3
t1 = 77
at_us = 10
""",
    "all-reduce": FABRIC
    + """
[[traffic]]
kind = "tree-all-reduce"
size_bytes = 262_144
""",
}


def main() -> None:
    chosen = [name for name in CASES if not set(CASES) & set(sys.argv[1:]) or name in sys.argv[1:]]
    head = simruns.machine()
    found = {name: simruns.measured(CASES[name], verbose=sys.stderr.isatty()) for name in chosen}
    if "--json" in sys.argv:
        print(json.dumps({"machine": head, "cases": {name: asdict(r) for name, r in found.items()}}, indent=1))
        return
    print(head, "\n")
    rows = [
        [
            name, f"{r.play_s:.1f} s", f"{r.process_s:.1f} s", f"{r.peak_mib / 1024:.1f} GiB", f"{r.hops:,}",
            f"{r.hops / r.play_s / 1e6:.2f} M/s", f"{r.packets['new']:,}", f"{r.packets['retransmitted']:,}",
            f"{r.packets['dropped']:,}", f"{r.time_us:.1f} us", f"{r.done:,} of {r.messages:,}",
            f"{r.median_us:.1f}-{r.tail_us:.1f} us",
        ]
        for name, r in found.items()
    ]  # fmt: skip
    header = ["case", "run", "whole process", "peak memory", "hops", "pace", "data packets", "again", "dropped"]
    print(simruns.table([*header, "fabric time", "messages", "FCT median-tail"], rows))


if __name__ == "__main__":
    main()
