"""`python -m support.incidents FOLDER [--healthy 200] [--seeds 1]`: every incident, once a seed, and healthy runs."""

import argparse
from pathlib import Path

from support.incidents import INCIDENTS, Incident, healthy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path)
parser.add_argument("--healthy", type=int, default=200)
parser.add_argument("--seeds", type=int, default=1)
args = parser.parse_args()
for seed in range(args.seeds):
    for name, happens in INCIDENTS.items():
        told = Incident(seed)
        happens(told)
        told.write(args.folder / f"{name}-{seed}")
for seed in range(args.healthy):
    healthy(seed).write(args.folder / f"healthy-{seed:03}")
print(f"{len(INCIDENTS) * args.seeds} incidents and {args.healthy} healthy runs in {args.folder}")
