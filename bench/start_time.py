"""Start time: what a person waits before the first word, against a bare interpreter.

    python bench/start_time.py [ROUNDS]

Prints one Markdown table; docs/benchmarks/start.md keeps dated ones. Each row is the wall time of a whole process,
files cached, best and median of some rounds that take turns. Aims: 0.15 s for --version, 0.3 s for --help.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
FAIRLEAD = shutil.which("fairlead", path=str(Path(sys.executable).parent)) or "fairlead"
ROWS = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "fairlead --version": ([FAIRLEAD, "--version"], 0.15),
    "fairlead --help": ([FAIRLEAD, "--help"], 0.3),
    "fairlead explain cli/bug": ([FAIRLEAD, "explain", "cli/bug"], None),
    "fairlead check --help": ([FAIRLEAD, "check", "--help"], None),
}


def wall_s(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    taken: dict[str, list[float]] = {name: [] for name in ROWS}
    for argv, _ in ROWS.values():
        wall_s(argv)
    for _ in range(rounds):
        for name, (argv, _) in ROWS.items():
            taken[name].append(wall_s(argv))
    day, load = time.strftime("%Y-%m-%d", time.gmtime()), os.getloadavg()[0]
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{day}, {machine}, best and median of {rounds}, load {load:.1f}\n")
    print("| what | best | median | aim |\n|---|---:|---:|---:|")
    for name, (_, aim) in ROWS.items():
        shown = f"{aim:.2f} s" if aim else ""
        print(f"| `{name}` | {min(taken[name]):.3f} s | {statistics.median(taken[name]):.3f} s | {shown} |")


if __name__ == "__main__":
    main()
