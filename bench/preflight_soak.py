"""Healthy runs in a row: every one must pass, without a warning.

    sudo python bench/preflight_soak.py [--num 50] [--most 20]

Each run is one line of docs/benchmarks/preflight-faults.jsonl, with load and the last commit that changed the source.
The next call goes on where the last one of that commit stopped.
Without --keep nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from preflight_faults import RESULTS, ROOT, end_on_sigterm, show

from support import scorer
from support.trials import trial, world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=50)
    parser.add_argument("--most", type=int, default=1000, help="stop after so many runs; the next call goes on")
    parser.add_argument("--keep", action="store_true", help="add to the file of results, and go on after what is in it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", default=scorer.commit_of(ROOT), help="what the results are said to be of")
    args = parser.parse_args()
    end_on_sigterm()
    kept = [t for t in scorer.read(args.results) if t.suite == "healthy" and t.commit == args.commit]
    known = kept if args.keep else []
    done: list[scorer.Trial] = []
    with world() as world_:
        for number in range(len(known), args.num)[: args.most]:
            found = trial(world_, [], suite="healthy", name=f"healthy {number + 1}", seed=0)
            found.commit = args.commit
            done.append(found)
            show(found)
            if args.keep:
                scorer.append(args.results, found)
    print(scorer.counts([*known, *done]))
    return 0 if all(t.is_hit for t in done) else 1


if __name__ == "__main__":
    sys.exit(main())
