"""What a second thread gains: the same run with one and with two, in turn, so that a busy machine disturbs both alike.

    python bench/fabric_threads.py                  # 8,192 and 32,768 NICs: about two minutes
    python bench/fabric_threads.py --largest        # 131,072 too: two minutes more, 4 GB

8 planes, 256 NICs a T0, 256 T1 a plane, 1 MB from each NIC to another; the median of five (largest: of one).
"""

from __future__ import annotations

import sys
from statistics import median

import simruns

CASES = ((32, 5), (128, 5), (512, 1))  # T0 of each plane, repetitions


def main() -> None:
    print(simruns.machine(), "\n")
    rows = []
    for t0, times in CASES if "--largest" in sys.argv else CASES[:-1]:
        found: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(times):
            for threads, seconds in found.items():
                seconds.append(simruns.measured(simruns.PERMUTATION.format(t0=t0, threads=threads)).play_s)
        one, two = median(found[1]), median(found[2])
        spans = [f"{min(s):.2f} to {max(s):.2f} s" for s in found.values()]
        rows.append([f"{t0 * 256:,}", f"{one:.2f} s", spans[0], f"{two:.2f} s", spans[1], f"{one / two:.2f}"])
    print(simruns.table(["NICs", "1 thread", "span", "2 threads", "span", "gain"], rows))
    print("\n" + simruns.machine())


if __name__ == "__main__":
    main()
