"""An audit: judging 1,000 captured nodes on one core, and the probe on a node with 9 RDMA devices and 8 GPUs.

    python bench/audit.py

Prints two Markdown tables; docs/benchmarks/audit.md keeps dated ones. Every node is an H100 node under Slurm with an
accelerated NIC, read from a generated tree; one in 16 has a VF that does not come back. The processor's time is what
counts: on a busy machine the clock on the wall measures the others. The probe's memory is its largest process (RSS).
"""

from __future__ import annotations

import copy
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import msgspec

from fairlead.audit import judge_audit
from fairlead.probe import arguments, program
from support import guests, trees
from support.judging import facts_of, spec_of

NODES, ROUNDS, JUDGE_S, PROBE_S, PROBE_MB = 1000, 3, 5.0, 1.5, 40.0


def machine() -> trees.Machine:
    m = guests.accelerated(trees.nd_h100_v5())
    guests.slurm(m)
    return m


def judged() -> None:
    well, ill = machine(), machine()
    guests_log = guests.kmsg((*guests.BOOT, *guests.TAKEN))
    ill.put("/dev/kmsg", guests_log)
    bases = [facts_of(well), facts_of(ill)]
    records = []
    for index in range(NODES):
        base = bases[index % 16 == 3]
        records.append(msgspec.structs.replace(base, node=f"n{index:04}", facts=copy.deepcopy(base.facts)))
    spec = spec_of("Standard_ND96isr_H100_v5", nodes=f"n[0000-{NODES - 1:04}]")
    took = []
    for _ in range(ROUNDS):
        started = time.process_time()
        findings = judge_audit(records, spec)
        took.append(time.process_time() - started)
    counts = Counter(str(f.verdict) for f in findings)
    said = ", ".join(f"{n} {v}" for v, n in counts.most_common())
    print("| nodes | processor time, median and worst | aim | findings |\n| ---: | ---: | ---: | --- |")
    print(f"| {NODES} | {statistics.median(took):.2f} s, {max(took):.2f} s | < {JUDGE_S:g} s | {said} |\n")
    if max(took) >= JUDGE_S:
        print("the aim is missed\n")


def probed() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        root = machine().write(Path(folder))
        words = program().words(sys.executable, arguments(root=root))
        took = []
        for _ in range(ROUNDS * 3):
            started = time.perf_counter()
            done = subprocess.run(words, input=program().stdin, capture_output=True, check=True)
            took.append(time.perf_counter() - started)
    # a child's peak counts what it was forked from, so a small Python starts this one
    small = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); "
    small += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    words = (sys.executable, "-I", "-S", "-c", small, *words)
    largest_kb = int(subprocess.run(words, input=program().stdin, capture_output=True, check=True).stdout)
    facts = msgspec.json.decode(done.stdout)["facts"]
    assert len(facts["ib"]["devices"]) == 9
    assert len(facts["nvidia"]["smi"]["gpus"]) == 8
    median, worst = statistics.median(took), max(took)
    print("| probe | measured | aim |\n| --- | ---: | ---: |")
    print(f"| wall, median and worst of {len(took)} | {median:.2f} s, {worst:.2f} s | < {PROBE_S} s |")
    print(f"| largest process (RSS) | {largest_kb / 1000:.1f} MB | < {PROBE_MB:g} MB |")
    print(f"| program sent, answer | {len(program().stdin) / 1000:.0f} kB, {len(done.stdout) / 1000:.0f} kB | |")


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    judged()
    probed()
    print(f"\n{platform.platform()}, Python {platform.python_version()}, one core; load {os.getloadavg()[0]:.1f}")
