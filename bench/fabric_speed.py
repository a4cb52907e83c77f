"""The 8,192-NIC permutation that the reference simulator publishes, and how fast it plays here.

    python bench/fabric_speed.py                                   # half a minute once the kernels are compiled
    python bench/fabric_speed.py --reference DIR/htsim_uec --json  # ultraethernet/uet-htsim beside it, two minutes more

Two tiers (128 T0 x 64 T1, 64 NICs a T0, 100 Gb/s, 1 us a link), each NIC sends 1 MB to another: what
`perm_8192n_8192c_1MB.cm` on `leaf_spine_8192_100g.topo` of ultraethernet/uet-htsim is, with a permutation of our own.
Three seeds with one thread and with two; the median is compared. The reference's binary stands in its own folder,
`htsim/sim/datacenter`, beside its matrices and topologies (see fabric_fidelity.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
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
[run]
seed = {seed}
threads = {threads}
"""
CASES = (("uec", 1), ("uec", 2), ("mrc", 2))
SEEDS = (1, 2, 3)
MATRIX, TOPOLOGY = "connection_matrices/perm_8192n_8192c_1MB.cm", "topologies/leaf_spine_8192_100g.topo"


@dataclass(frozen=True)
class Peer:
    """One run of the reference."""

    wall_s: float
    processor_s: float
    peak_mib: int
    first_us: float
    tail_us: float
    new: int
    retransmitted: int
    sacks: int


def main() -> None:
    ask = argparse.ArgumentParser(description="Speed of the simulator at 8,192 NICs.")
    ask.add_argument("--reference", type=Path, help="the reference's binary, in its own folder")
    ask.add_argument("--json", action="store_true")
    given = ask.parse_args()
    for kind in ("uec", "mrc"):
        simruns.measured(SCENARIO.format(kind=kind, seed=1, threads=1))  # compiles, if need be
    head = simruns.machine()
    found = {
        (kind, threads): [simruns.measured(SCENARIO.format(kind=kind, seed=s, threads=threads)) for s in SEEDS]
        for kind, threads in CASES
    }
    peer = reference(given.reference.absolute()) if given.reference else None
    if given.json:
        cases = [{"transport": k, "threads": t, "runs": [asdict(r) for r in runs]} for (k, t), runs in found.items()]
        print(json.dumps({"machine": head, "cases": cases, "reference": asdict(peer) if peer else None}, indent=1))
        return
    print(head, "\n")
    rows = [row(*case, runs) for case, runs in found.items()] + ([peer_row(peer)] if peer else [])
    header = ["simulator", "run", "whole process", "peak memory", "hops", "FCT", "new", "again", "SACKs"]
    print(simruns.table(header, rows))
    if peer:
        best = min(median(r.play_s for r in runs) for (kind, _), runs in found.items() if kind == "uec")
        print(f"\n{peer.wall_s / best:.0f} times as fast as the reference on the wall, same machine, same day")


def row(kind: str, threads: int, runs: list[simruns.Measured]) -> list[str]:
    def middle(name: str) -> str:
        return f"{median(r.packets[name] for r in runs):,.0f}"

    return [
        f"{kind}, {threads} thread{'s' * (threads > 1)}",
        f"{median(r.play_s for r in runs):.2f} s",
        f"{median(r.process_s for r in runs):.2f} s",
        f"{max(r.peak_mib for r in runs)} MiB",
        f"{median(r.hops / r.play_s for r in runs) / 1e6:.1f} M/s",
        f"{median(r.first_us for r in runs):.1f}-{median(r.tail_us for r in runs):.1f} us",
        middle("new"),
        middle("retransmitted"),
        middle("sacks"),
    ]


def peer_row(peer: Peer) -> list[str]:
    return [
        "uet-htsim", f"{peer.wall_s:.1f} s ({peer.processor_s:.1f} s processor)", "", f"{peer.peak_mib} MiB", "",
        f"{peer.first_us:.1f}-{peer.tail_us:.1f} us", f"{peer.new:,}", f"{peer.retransmitted:,}", f"{peer.sacks:,}",
    ]  # fmt: skip


def reference(binary: Path) -> Peer:
    """Run the reference once, on its own matrix."""
    with tempfile.NamedTemporaryFile(suffix=".dat") as log, tempfile.TemporaryFile("w+") as answer:
        words = [binary, "-o", log.name, "-tm", MATRIX, "-topo", TOPOLOGY, "-sender_cc_only", "-end", "1000"]
        begun = time.monotonic()
        run = subprocess.Popen(words, cwd=binary.parent, stdout=answer)
        _, status, used = os.wait4(run.pid, 0)
        wall = time.monotonic() - begun
        answer.seek(0)
        said = answer.read()
    times = [float(t) for t in re.findall(r"^Flow \S+ flowId .* finished at (\S+)", said, re.MULTILINE)]
    counted = re.search(r"^New: (\d+) Rtx: (\d+) .*ACKs: (\d+) NACKs", said, re.MULTILINE)
    if status or not counted:
        raise SystemExit(f"{binary}: status {status}\n{said[-2000:]}")
    new, again, sacks = (int(n) for n in counted.groups())
    processor = round(used.ru_utime + used.ru_stime, 1)
    return Peer(round(wall, 1), processor, used.ru_maxrss // 1024, min(times), max(times), new, again, sacks)


if __name__ == "__main__":
    main()
