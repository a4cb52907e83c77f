"""The fault matrix: every kind of fault in a live lab, drawn by seed; what preflight said first, and how long it took.

    sudo python bench/preflight_faults.py single [--seed N] [--hosts 8] [--gpus 1] [--rate 100] [--only WORD]
    sudo python bench/preflight_faults.py double [--num 20]
    sudo python bench/preflight_faults.py tables

Each trial is one line of docs/benchmarks/preflight-faults.jsonl, with seed, load and the last commit that changed the
source; those that are there already, of that commit, are left out, so a long run may be stopped and begun again. What
cannot be run costs only itself. `tables` writes the tables of docs/benchmarks/preflight-faults.md from that file.
Without --keep nothing is written.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import scorer  # noqa: E402
from support.injector import KINDS, Kind, World  # noqa: E402
from support.trials import draw, trial, world  # noqa: E402

RESULTS = ROOT / "docs/benchmarks/preflight-faults.jsonl"
PAGE = RESULTS.with_suffix(".md")
NO_COLLECTIVE = ("silent plane drop", "silent trunk", "two silent trunks")
"""Where these are, ranks only start."""
TRIES = 3
"""On a busy machine a collective may be over before its rank can be killed; nothing was done then."""
MOST_FAILURES = 3
"""After so many trials that could not be run at all, something is wrong with the machine."""


def chosen(suite: str, num: int, rng: random.Random, only: str) -> Iterator[tuple[str, list[Kind]]]:
    """The trials of a suite, in an order drawn by seed: name and kinds."""
    kinds = [k for k in KINDS.values() if only in k.name]
    if suite == "single":
        rng.shuffle(kinds)
        yield from ((k.name, [k]) for k in kinds)
        return
    both = [(a, b) for a in kinds for b in kinds if a.name < b.name and _can_go_together(a, b)]
    for a, b in rng.sample(both, num):
        yield f"{a.name} + {b.name}", [a, b]


def _can_go_together(a: Kind, b: Kind) -> bool:
    """Whether there is any place where both can be seen."""
    ranks = [k.name.startswith("rank") for k in (a, b)]
    hides = any(k.name in NO_COLLECTIVE for k in (a, b)) and (a.needs_collective or b.needs_collective)
    return not (a.is_job or b.is_job or hides or all(ranks))


def run(args: argparse.Namespace) -> list[scorer.Trial | None]:
    """Every trial of the suite that is not in the file yet; None for one that could not be run."""
    known = {(*t.key, t.commit) for t in scorer.read(args.results)} if args.keep else set()
    shape = (args.hosts, args.gpus, args.rate)
    planned = list(chosen(args.suite, args.num, random.Random(args.seed), args.only))
    planned = [p for p in planned if (args.suite, p[0], args.seed, *shape, args.commit) not in known][: args.most]
    done: list[scorer.Trial | None] = []
    while planned and done.count(None) <= MOST_FAILURES:
        with world(hosts=args.hosts, gpus=args.gpus, rate_mbps=args.rate) as world_:
            while planned:
                name, kinds = planned.pop(0)
                try:
                    done.append(_run_one(args, world_, name, kinds))
                except Exception:  # noqa: BLE001 - it must not cost the others, which get a new lab
                    traceback.print_exc()
                    print(f"BROKEN {name}", flush=True)
                    done.append(None)
                    break
    return done


def _run_one(args: argparse.Namespace, world_: World, name: str, kinds: list[Kind]) -> scorer.Trial:
    """One trial, kept as soon as it is over."""
    # each trial has numbers of its own, so that one that is left out changes nothing for the others
    for _ in range(TRIES):
        drawn = draw(world_, kinds, random.Random(f"{args.seed} {name}"))
        found = trial(world_, drawn, suite=args.suite, name=name, seed=args.seed)
        if all(t.was_done for t in found.truths):
            break
    found.commit = args.commit
    show(found)
    if args.keep:
        scorer.append(args.results, found)
    if args.folders and not (found.is_hit and not found.accused) and found.run:
        source = world_.file.parent / "runs" / found.run
        shutil.copytree(source, args.folders / found.run, dirs_exist_ok=True)
    return found


def end_on_sigterm() -> None:
    """Take the lab down when `timeout` or a shell ends this program."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def show(found: scorer.Trial) -> None:
    """A line a trial."""
    where = ", ".join(t.target for t in found.truths)
    word = "hit " if found.is_hit else "MISS"
    print(f"{word} {found.wall_s:6.1f} s  {found.name:34} {where:24} {found.first[:70]}", flush=True)
    if not found.is_hit or found.accused:
        undone = [t.kind for t in found.truths if not t.was_done]
        print(
            f"       named {found.named} first {found.is_first} accused {found.accused} not done {undone} "
            f"verdict {found.verdict} {found.run} {found.took_s} load {found.load}",
            flush=True,
        )


def tables(results: Path, page: Path) -> None:
    """Fill the page's marked places from the file."""
    trials = scorer.read(results)

    def fill(match: re.Match[str]) -> str:
        suite, hosts, rate = match[1], int(match[2]), int(match[3])
        mine = [t for t in trials if (t.suite, t.hosts, t.rate_mbps) == (suite, hosts, rate)]
        if not mine:
            return f"{match[0].splitlines()[0]}\nNot run.\n<!-- end -->"
        rows = "" if suite == "healthy" else "\n" + scorer.table(mine)
        return f"{match[0].splitlines()[0]}\n{scorer.counts(mine)}\n{rows}<!-- end -->"

    page.write_text(
        re.sub(r"<!-- (\w+) (\d+) hosts (\d+) Mb/s -->\n.*?<!-- end -->", fill, page.read_text(), flags=re.DOTALL)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["single", "double", "tables"], nargs="?", default="single")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rate", type=int, default=250, help="Mb/s of every host port")
    parser.add_argument("--num", type=int, default=20, help="how many doubles")
    parser.add_argument("--most", type=int, default=1000, help="stop after so many trials; the next call goes on")
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--keep", action="store_true", help="add to the file of results, and leave out what is in it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", default=scorer.commit_of(ROOT), help="what the results are said to be of")
    parser.add_argument("--folders", type=Path, help="where run folders of misses go")
    args = parser.parse_args()
    if args.suite == "tables":
        tables(args.results, PAGE)
        return 0
    end_on_sigterm()
    done = run(args)
    if well := [t for t in done if t]:
        print(scorer.counts(well))
    return 0 if all(t and t.is_hit for t in done) else 1


if __name__ == "__main__":
    sys.exit(main())
