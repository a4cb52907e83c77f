"""The pair phase of 1,024 nodes: the real scheduler and the real blame, over a fabric that draws lots.

    python bench/preflight_1024.py [NODES] [PLANES]

What agents would say is drawn by tests/support/fabric_draws.py and handed over as the bytes they would write; what is
timed is the control side alone: deciding rounds, reading answers, blame and findings. Aims: 5 s of it; n-1 rounds of
bursts; at most 2 log2 n + 6 rounds for rates, round trips and suspicion; the fault named first, and nobody else.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.schedule import MAX_BATCHES
from fairlead.preflight.pairs.steps import Plan
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support.fabric_draws import BLOCKED, DARK, LATE, LOSSY, MTU, SLOW, Fabric

A, B = 700, 301


def hiccups(fabric: Fabric) -> None:
    """One healthy burst in a thousand loses packets, as on busy machines; the chance is one of a batch of rounds."""
    fabric.hiccups = -(-fabric.num_nodes // MAX_BATCHES) / 1000


CASES: dict[str, tuple[Callable[[Fabric], object], list[str]]] = {
    "healthy": (lambda _: None, []),
    "healthy, busy: 1 burst in 1,000 loses a packet": (hiccups, []),
    "a blocked pair": (lambda f: f.hit(f.pair(A, B), BLOCKED), ["pair n301,n700"]),
    "a pair blocked one way": (lambda f: f.hit(f.pair(A, B, one_way=True), BLOCKED), ["pair n700,n301"]),
    "a port that loses 5 % outward": (lambda f: f.hit(f.port(A, 1, "out"), LOSSY), ["port n700 plane 0"]),
    "a port at 1/20 rate": (lambda f: f.hit(f.port(A, 1), SLOW), ["port n700 plane 0"]),
    "a port with late round trips": (lambda f: f.hit(f.port(A, 1), LATE), ["port n700 plane 0"]),
    "an MTU black hole at a port": (lambda f: f.hit(f.port(A, 2), MTU), ["port n700 plane 1"]),
    "a node off the fabric": (lambda f: f.hit(f.node(A), BLOCKED), ["node n700"]),
    "a node that stops answering": (lambda f: f.dead.add(A), ["node n700"]),
    "a dead plane": (lambda f: f.hit(f.plane(2), BLOCKED), ["plane plane 1"]),
    "half of a plane's flows dark": (lambda f: f.hit(f.plane(2), DARK), ["plane plane 1"]),
    "two ports and a pair": (
        lambda f: (f.hit(f.port(A, 1), SLOW), f.hit(f.port(B, 2), MTU), f.hit(f.pair(5, 900), BLOCKED)),
        ["pair n5,n900", "port n301 plane 1", "port n700 plane 0"],
    ),
    "100 blocked pairs": (
        lambda f: [f.hit(f.pair(i, i + 411), BLOCKED) for i in range(100)],
        [f"pair n{i},n{i + 411}" for i in range(100)],
    ),
}


def name_of(finding: Finding) -> str:
    subject = finding.subject
    return f"{subject.kind} {','.join(subject.nodes)} {subject.name}".replace("  ", " ").strip()


def main() -> None:
    n, planes = (int(w) for w in [*sys.argv[1:], *["1024", "4"][len(sys.argv) - 1 :]][:2])
    names = tuple(f"n{i}" for i in range(n))
    paths = ("fabric", *(f"plane {p}" for p in range(planes)))
    addresses = tuple((f"fd00::{i:x}",) * len(paths) for i in range(n))
    bound = 2 * math.ceil(math.log2(n)) + 6
    day = time.strftime("%Y-%m-%d", time.gmtime())
    print(f"{day}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
          f"one run each, load {os.getloadavg()[0]:.1f}; {n} nodes, {planes} planes\n")  # fmt: skip
    print(f"| fault | CPU of the control side | burst rounds | speed + adaptive (at most {bound}) | named | others |")
    print("|---|---:|---:|---:|---|---:|")
    for case, (put, want) in CASES.items():
        fabric = Fabric(n, planes)
        put(fabric)
        started = time.process_time()
        facts = fabric.run(pair_phase(Plan(nodes=names, paths=paths, addresses=addresses)))
        judged = judge_pairs(facts)
        took_s = time.process_time() - started - fabric.sim_s
        accused = [name_of(f) for f in judged if f.verdict in (Verdict.FAIL, Verdict.WARN)]
        named = "all" if len(want) > 1 and set(want) <= set(accused) else ", ".join(accused[:1]) or "nobody"
        missed = len(set(want) - set(accused))
        named += f", {missed} MISSED" if missed else ""
        rounds = facts.rounds
        fast = rounds.get("speed", 0) + rounds.get("adaptive", 0)
        print(
            f"| {case} | {took_s:.1f} s | {rounds['burst']} | {fast} | {named} | {len(set(accused) - set(want))} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
