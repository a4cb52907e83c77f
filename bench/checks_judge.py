"""Judging: how long do the facts of 128 and of 1,000 nodes take on one core?

    python bench/checks_judge.py

Prints one Markdown table; docs/benchmarks/checks.md keeps dated ones. Every node is an H100 node with 8 GPUs and 9 RDMA
devices, read once from a generated tree; one node in 16 has a fault of its own, so that findings are not all alike.
"""

from __future__ import annotations

import copy
import gc
import os
import platform
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import msgspec

from fairlead.checks import judge
from fairlead.records.codec import from_json, to_json
from fairlead.records.facts import NodeFacts
from support import trees
from support.judging import facts_of, spec_of

ROUNDS, LIMITS_S = 5, {128: 1.0, 1000: 5.0}


def fleet(num: int) -> list[bytes]:
    """Facts as they come from nodes: JSON, each with its own names and GPUs."""
    base = facts_of(trees.nd_h100_v5())
    out = []
    for index in range(num):
        facts = copy.deepcopy(base.facts)
        links = facts["nvidia"]["nvlink"]["links"]
        for number, gpu in enumerate(facts["nvidia"]["smi"]["gpus"].values()):
            links[f"GPU-{index:08x}-{number}"] = links.pop(gpu["uuid"])
            gpu["uuid"] = f"GPU-{index:08x}-{number}"
        if index % 16 == 3:
            facts["ib"]["devices"][f"mlx5_ib{index // 16 % 8}"]["ports"]["1"]["rate"] = "200 Gb/sec (2X NDR)"
        out.append(to_json(msgspec.structs.replace(base, node=f"n{index:04}", facts=facts), indent=0).encode())
    return out


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print("| nodes | facts | decode | judge, processor (median, worst of 5) | judge, wall (median) | aim | findings |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for num, limit_s in LIMITS_S.items():
        raw = fleet(num)
        spec = spec_of("Standard_ND96isr_H100_v5", nodes=f"n[0000-{num - 1:04}]")
        started = time.perf_counter()
        records = [from_json(text, NodeFacts) for text in raw]
        decode_s = time.perf_counter() - started
        wall, cpu = [], []
        for _ in range(ROUNDS):
            gc.collect()
            started, used = time.perf_counter(), time.process_time()
            findings = judge(records, spec)
            wall.append(time.perf_counter() - started)
            cpu.append(time.process_time() - used)
        counts = Counter(str(f.verdict) for f in findings)
        assert counts["fail"] >= num // 16
        size = sum(map(len, raw)) / 1e6
        said = ", ".join(f"{n} {v}" for v, n in counts.most_common())
        seconds = f"{statistics.median(cpu):.2f} s, {max(cpu):.2f} s | {statistics.median(wall):.2f} s"
        print(f"| {num} | {size:.1f} MB | {decode_s:.2f} s | {seconds} | < {limit_s:g} s | {said} |")
        # the processor's time: on a busy machine the clock on the wall measures the others
        assert max(cpu) < limit_s, "slower than promised"
    print(f"\n{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores, one used")


if __name__ == "__main__":
    main()
