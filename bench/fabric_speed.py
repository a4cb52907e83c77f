"""The 8,192-NIC permutation that the reference simulator publishes, and how fast it plays here.

    python bench/fabric_speed.py            # about a minute once the kernels are compiled
    python bench/fabric_speed.py --json

Two tiers (128 T0 x 64 T1, 64 NICs a T0, 100 Gb/s, 1 us a link), each NIC sends 1 MB to another: what
`perm_8192n_8192c_1MB.cm` on `leaf_spine_8192_100g.topo` of ultraethernet/uet-htsim is, with a permutation of our own.
Three seeds with one thread and with two; the median is compared. Measured on a machine of this kind, the reference
takes 49-53 s of processor time (64 s on the wall) and 740 MB.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from statistics import median

import simruns

SCENARIO = """
[topology]
t0 = 128
t1 = 64
hosts_per_t0 = 64
[[traffic]]
kind = "permutation"
size_bytes = 1_000_000
[transport]
kind = "{kind}"
[queues]
ecn_last_hop = {last_hop}
[run]
seed = {seed}
threads = {threads}
"""
CASES = (("uec", 1), ("uec", 2), ("mrc", 2))
SEEDS = (1, 2, 3)
REFERENCE_S = 50.0  # processor time of its one thread


def main() -> None:
    for kind in ("uec", "mrc"):
        simruns.measured(scenario_of(kind, 1, 1))  # compiles, if need be
    head = simruns.machine()
    found = {case: [simruns.measured(scenario_of(*case, seed)) for seed in SEEDS] for case in CASES}
    if "--json" in sys.argv:
        cases = [{"transport": k, "threads": t, "runs": [asdict(r) for r in runs]} for (k, t), runs in found.items()]
        print(json.dumps({"machine": head, "cases": cases}, indent=1))
        return
    print(head, "\n")
    header = ["transport", "run", "whole process", "peak memory", "hops", "against 50 s", "FCT", "again", "SACKs"]
    print(simruns.table(header, [row(*case, runs) for case, runs in found.items()]))


def scenario_of(kind: str, threads: int, seed: int) -> str:
    last_hop = "true" if kind == "uec" else "false"
    return SCENARIO.format(kind=kind, last_hop=last_hop, seed=seed, threads=threads)


def row(kind: str, threads: int, runs: list[simruns.Measured]) -> list[str]:
    play = median(r.play_s for r in runs)
    return [
        f"{kind}, {threads} thread{'s' * (threads > 1)}",
        f"{play:.2f} s",
        f"{median(r.process_s for r in runs):.2f} s",
        f"{max(r.peak_mib for r in runs)} MiB",
        f"{median(r.hops / r.play_s for r in runs) / 1e6:.1f} M/s",
        f"{REFERENCE_S / play:.0f} x",
        f"{median(r.first_us for r in runs):.1f}-{median(r.tail_us for r in runs):.1f} us",
        f"{median(r.packets['retransmitted'] for r in runs):,.0f}",
        f"{median(r.packets['sacks'] for r in runs):,.0f}",
    ]


if __name__ == "__main__":
    main()
