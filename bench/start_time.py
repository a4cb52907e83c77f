"""Start time: what a person waits before the first word, against a bare interpreter; or against another source tree.

    python bench/start_time.py [ROUNDS]
    python bench/start_time.py [ROUNDS] --beside OTHER/src     # both in turns: a change's cost, also on a busy machine

Prints one Markdown table; docs/benchmarks/start.md keeps dated ones. Each row is the wall time of a whole process,
files cached, best and median of some rounds that take turns; beside another tree also the processor time, which other
work on the machine changes little. Aims: 0.15 s for --version, 0.3 s for --help.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROUNDS = 15
OURS = Path(__file__).parents[1] / "src"
RUN = "import sys; sys.argv[0] = 'fairlead'; from fairlead.cli.app import main; sys.exit(main())"
ROWS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": (["-c", "pass"], None),
    "fairlead --version": (["-c", RUN, "--version"], 0.15),
    "fairlead --help": (["-c", RUN, "--help"], 0.3),
    "fairlead explain cli/bug": (["-c", RUN, "explain", "cli/bug"], None),
    "fairlead check --help": (["-c", RUN, "check", "--help"], None),
    "fairlead check": (["-c", RUN, "check", "-f", "{preset}"], None),
}


class Took(NamedTuple):
    """Seconds of one process."""

    wall: float
    cpu: float


def took(words: list[str], src: Path) -> Took:
    """One start of a command from a source tree."""
    env = {**os.environ, "PYTHONPATH": str(src)}
    words = [word.replace("{preset}", str(OURS / "fairlead/spec/presets/lab.toml")) for word in words]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    parser.add_argument("--beside", type=Path)
    asked = parser.parse_args()
    trees = [OURS, *([asked.beside] if asked.beside else [])]
    taken: dict[tuple[str, Path], list[Took]] = {(name, tree): [] for name in ROWS for tree in trees}
    for number in range(asked.rounds + 1):
        for name, (words, _) in ROWS.items():
            for tree in trees if number % 2 else reversed(trees):
                found = took(words, tree)
                if number:  # the first one fills the caches
                    taken[name, tree].append(found)
    day, load = time.strftime("%Y-%m-%d", time.gmtime()), os.getloadavg()[0]
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{day}, {machine}, {asked.rounds} rounds, load {load:.1f}\n")
    if asked.beside:
        print("| what | median before | now | processor time before | now | ratio |\n|---|---:|---:|---:|---:|---:|")
    else:
        print("| what | best | median | aim |\n|---|---:|---:|---:|")
    for name, (_, aim) in ROWS.items():
        ours = taken[name, OURS]
        wall, cpu = (statistics.median(t[i] for t in ours) for i in (0, 1))
        if asked.beside:
            theirs = taken[name, asked.beside]
            old_wall, old_cpu = (statistics.median(t[i] for t in theirs) for i in (0, 1))
            print(
                f"| `{name}` | {old_wall:.3f} s | {wall:.3f} s | {old_cpu:.3f} s | {cpu:.3f} s | {cpu / old_cpu:.2f} |"
            )
        else:
            shown = f"{aim:.2f} s" if aim else ""
            print(f"| `{name}` | {min(t.wall for t in ours):.3f} s | {wall:.3f} s | {shown} |")


if __name__ == "__main__":
    main()
