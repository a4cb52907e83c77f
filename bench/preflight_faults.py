"""The fault matrix: every kind of fault in a live lab, by seed; what preflight said first, how long it took.

sudo python bench/preflight_faults.py single [--seed N] [--hosts 8] [--gpus 1] [--rate 100] [--only WORD]
sudo python bench/preflight_faults.py double [--seed N] [--num 20]
sudo python bench/preflight_faults.py soak [--num 50]
--table FILE writes the rows as Markdown; --keep FOLDER keeps the run folders of trials that were not right.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.injector import KINDS, Trial, World, trial, world


def single(world_: World, rng: random.Random, only: str) -> list[tuple[str, Trial]]:
    kinds = [k for k in KINDS.values() if only in k.name]
    rng.shuffle(kinds)
    rows = []
    for kind in kinds:
        truth, inject = kind.draw(world_, rng)
        tasks = truth.kind.split(" ")[0] if kind.inside else ""
        rows.append((kind.name, show(kind.name, trial(world_, [(truth, inject)], tasks=tasks))))
    return rows


def double(world_: World, rng: random.Random, num: int) -> list[tuple[str, Trial]]:
    kinds = [k for k in KINDS.values() if not k.inside]
    rows = []
    while len(rows) < num:
        a, b = rng.sample(kinds, 2)
        drawn = [kind.draw(world_, rng) for kind in (a, b)]
        if not independent(a.name, b.name, drawn[0][0], drawn[1][0]):
            continue
        name = f"{a.name} + {b.name}"
        rows.append((name, show(name, trial(world_, drawn))))
    return rows


def independent(a: str, b: str, x, y) -> bool:
    """Both can be seen at all: other nodes, other planes, and no rank on a node that is left out for its own fault."""
    planes = {"silent plane drop"}
    if set(x.nodes) & set(y.nodes):
        return False
    if (a in planes or b in planes) and set(x.part) & set(y.part):
        return False
    return not (a.startswith("rank") and b.startswith("rank"))


def soak(world_: World, num: int) -> list[tuple[str, Trial]]:
    return [(f"healthy {i + 1}", show(f"healthy {i + 1}", trial(world_, []))) for i in range(num)]


def show(name: str, found: Trial) -> Trial:
    right = "right" if found.is_right and (found.truths or found.verdict == "pass") else "WRONG"
    where = ", ".join(t.target for t in found.truths)
    print(f"{right}  {found.wall_s:6.1f} s  {name:34} {where:22} {found.verdict:8} {found.first[:80]}", flush=True)
    if right == "WRONG":
        print(
            f"       detected {found.detected}, first {found.is_first}, accused {found.accused}, run {found.run}, {found.took_s}",
            flush=True,
        )
    return found


def table(rows: list[tuple[str, Trial]]) -> str:
    lines = ["| fault | where | said first | named first | seconds |", "|---|---|---|---|---|"]
    for name, found in rows:
        where = ", ".join(t.target for t in found.truths)
        good = "yes" if found.is_right else "**no**"
        lines.append(f"| {name} | {where} | {found.first} | {good} | {found.wall_s:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["single", "double", "soak"], nargs="?", default="single")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rate", type=int, default=250)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-slurm", action="store_true")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with world(hosts=args.hosts, gpus=args.gpus, rate_mbps=args.rate, slurm=not args.no_slurm) as world_:
        if args.what == "single":
            rows = single(world_, rng, args.only)
        elif args.what == "double":
            rows = double(world_, rng, args.num)
        else:
            rows = soak(world_, args.num)
        if args.keep:
            for _, found in rows:
                if not found.is_right and found.run:
                    shutil.copytree(world_.file.parent / "runs" / found.run, args.keep / found.run, dirs_exist_ok=True)
    right = sum(f.is_right and bool(f.truths or f.verdict == "pass") for _, f in rows)
    slowest = max(f.wall_s for _, f in rows)
    print(
        f"{right} of {len(rows)} right, slowest {slowest:.1f} s, seed {args.seed}, {args.hosts} hosts, {args.rate} Mb/s"
    )
    if args.table:
        args.table.write_text(table(rows))
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
