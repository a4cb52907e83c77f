"""What a simulation costs as the fabric grows: 1K, 8K, 32K and 131K NICs, 8 planes, 1 MB from each NIC to another.

    python bench/fabric_cost_curve.py            # about two minutes; takes up to 4 GB
    python bench/fabric_cost_curve.py --json

256 NICs a T0 and 256 T1 a plane throughout; the number of T0 grows. Two threads.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import simruns

SIZES = (4, 32, 128, 512)  # T0 of each plane


def main() -> None:
    head = simruns.machine()
    found = [
        simruns.measured(simruns.PERMUTATION.format(t0=t0, threads=2), verbose=sys.stderr.isatty()) for t0 in SIZES
    ]
    if "--json" in sys.argv:
        print(json.dumps({"machine": head, "runs": [asdict(r) for r in found]}, indent=1))
        return
    print(head, "\n")
    rows = [
        [
            f"{r.nics:,}", f"{r.build_s:.1f} s", f"{r.play_s:.1f} s", f"{r.peak_mib:,} MiB",
            f"{r.peak_mib * 1024 / r.nics:.0f} KiB", f"{r.hops:,}", f"{r.hops / r.play_s / 1e6:.1f} M/s",
            f"{r.play_s * 1e9 / r.packets['new']:,.0f} ns", f"{r.median_us:.1f}-{r.tail_us:.1f} us",
        ]
        for r in found
    ]  # fmt: skip
    header = ["NICs", "build", "run", "peak memory", "a NIC", "hops", "pace", "a data packet", "FCT median-tail"]
    print(simruns.table(header, rows))


if __name__ == "__main__":
    main()
