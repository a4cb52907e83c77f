"""The probe: how long does it take on a node with 9 RDMA devices and 8 GPUs, and how much memory?

    python bench/probe_tree.py

Prints one Markdown table; docs/benchmarks/checks.md keeps dated ones. The program is piped to a fresh Python, as on a
node, and reads a generated tree of an H100 node in memory: what it costs beside the node's own commands (nvidia-smi
takes what it takes). Memory is that of the probe and all its children together, as shares of what they share (PSS),
looked at every few milliseconds; the largest single process is beside it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.probe import arguments, program
from support import trees

ROUNDS, LIMIT_S, LIMIT_MB = 11, 1.5, 40.0


def tree_of(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in below for one in tree_of(int(child)))]


def pss_kb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def run(root: Path | None, *, watch: bool) -> tuple[float, float, float, dict]:
    """(seconds, MB of all together, MB of the largest, the document)."""
    argv = program().words(sys.executable, arguments(root=root))
    started = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as text:
        text.write(program().stdin)
        text.seek(0)
        child = subprocess.Popen(argv, stdin=text, stdout=out)
        peak = 0
        while watch and child.poll() is None:
            peak = max(peak, sum(map(pss_kb, tree_of(child.pid))))
            time.sleep(0.002)
        _, status, used = os.wait4(child.pid, 0) if child.returncode is None else (0, child.returncode, None)
        took = time.perf_counter() - started
        assert status == 0
        out.seek(0)
        return took, peak / 1000, (used.ru_maxrss if used else 0) / 1000, json.loads(out.read())


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        machine = trees.nd_h100_v5()
        root = machine.write(Path(folder))
        timed = [run(root, watch=False) for _ in range(ROUNDS)]
        watched = [run(root, watch=True) for _ in range(5)]
    live = [run(None, watch=False)[0] for _ in range(ROUNDS)]
    facts = timed[0][3]["facts"]
    assert len(facts["ib"]["devices"]) == 9
    assert len(facts["nvidia"]["smi"]["gpus"]) == 8
    seconds = [t[0] for t in timed]
    together, largest = max(w[1] for w in watched), max(t[2] for t in timed)
    print("| what | measured | aim |\n| --- | ---: | ---: |")
    median, worst = statistics.median(seconds), max(seconds)
    print(f"| time, median and worst of {ROUNDS} | {median:.2f} s, {worst:.2f} s | < {LIMIT_S} s |")
    print(f"| peak memory, all processes (PSS) | {together:.1f} MB | < {LIMIT_MB:g} MB |")
    print(f"| peak memory, largest process (RSS) | {largest:.1f} MB | |")
    print(f"| the same program on this machine, live | {statistics.median(live):.2f} s | |")
    print(f"| document | {len(json.dumps(timed[0][3])) / 1000:.0f} kB, from {len(machine.files)} files | |")
    print(f"| program sent | {len(program().stdin) / 1000:.0f} kB | |")
    print(f"\n{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores")
    assert max(seconds) < LIMIT_S, "slower than promised"
    assert together < LIMIT_MB, "more memory than promised"


if __name__ == "__main__":
    main()
