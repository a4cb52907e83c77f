"""How long a healthy preflight takes, stage by stage, on a lab that stands, through the command itself.

    sudo python bench/preflight_time.py [ROUNDS [WAY]]

Three worlds: 8 ranks, 8 ranks as tasks of the lab's own Slurm, 16 ranks. Two ways, taking turns: one import of torch a
node, shared by its ranks (what preflight does where ranks use CPUs), and one import a rank. Medians; torch is in the
page cache. `rest` is what is neither import nor joining: from the start of the command to its end, less the time
from the first rank's import to the last rank's first all-reduce. Aims: 12 s for 8 ranks, 15 s for 16, rest 2 s.
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
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

ROUNDS = 5
FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))
WORLDS = {
    "8 ranks": (2, False, 12.0),
    "8 ranks, Slurm tasks": (2, True, 12.0),
    "16 ranks": (4, False, 15.0),
}
EACH = """
import dataclasses
import sys
from fairlead.launch.job import RankJob
whole, shared = RankJob.program, b'asked == "cpu" or (asked == "any" and not has_device())'
def each(job):
    made = whole(job)
    assert made.source.count(shared) == 1
    return dataclasses.replace(made, source=made.source.replace(shared, b"False"))
RankJob.program = each
from fairlead.cli.app import main
sys.argv[0] = "fairlead"
main()
"""
WAYS = {"one import a node": [FAIRLEAD], "one import a rank": [sys.executable, "-c", EACH]}
PHASES = ("rendezvous", "card", "rails", "ddp", "done")
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""What is installed is compiled once, not in every run."""
COLUMNS = ("wall", "nodes", "pairs", "ranks", "import", "join", "devices", "rails", "collectives", "rest")


@contextmanager
def lab(gpus: int, *, slurm: bool) -> Iterator[Path]:
    """A lab of 4 hosts, up while the block runs; its cluster file."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        name, file = f"pt{os.getpid()}", Path(folder) / "cluster.toml"
        file.write_text(
            f'schema = 1\n[cluster]\nname = "{name}"\n[access]\nvia = "lab"\n[[pool]]\nname = "lab"\nsize = "lab"\n'
            f'nodes = "n[0-3]"\ngpus = {gpus}\n[slurm]\nlab = {str(slurm).lower()}\n'
        )
        subprocess.run([FAIRLEAD, "lab", "up", "-f", file], capture_output=True, check=True)
        try:
            yield file
        finally:
            subprocess.run([FAIRLEAD, "lab", "down", "-n", name], capture_output=True, check=True)


def once(words: list[str], file: Path, runs: Path) -> dict[str, float]:
    """Seconds of one run, by column."""
    started = time.monotonic()
    argv = [*words, "preflight", "-f", str(file), "--runs", str(runs), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=ENV)
    wall = time.monotonic() - started
    result = json.loads(done.stdout)
    assert result["success"], done.stdout[-2000:]
    lines = json.loads((runs / result["run"] / "ranks.json").read_text())["lines"]
    last = {p: max(s["at_s"] for s in lines if s.get("phase") == p) for p in PHASES}
    importing = last["rendezvous"] - min(s["at_s"] for s in lines if s.get("phase") == "import")
    joining, devices, rails, together = (last[b] - last[a] for a, b in pairwise(PHASES))
    took = result["took_s"]
    values = (wall, *(took[stage] for stage in ("nodes", "pairs", "ranks")), importing, joining, devices, rails)
    values += (together, wall - importing - joining)
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    ways = {way: words for way, words in WAYS.items() if way.endswith(tuple(sys.argv[2:3]) or "")}
    day, machine = time.strftime("%Y-%m-%d", time.gmtime()), f"{os.cpu_count()} cores, Linux {platform.release()}"
    print(f"{day}, {machine}, Python {platform.python_version()}, medians of {rounds}, load {os.getloadavg()[0]:.1f}\n")
    print(f"| what | {' | '.join(COLUMNS)} | worst wall | aim |\n|---|{'---:|' * (len(COLUMNS) + 2)}")
    for name, (gpus, slurm, aim) in WORLDS.items():
        taken: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        with lab(gpus, slurm=slurm) as file, tempfile.TemporaryDirectory() as runs:
            once([FAIRLEAD], file, Path(runs))
            for _ in range(rounds):
                for way, words in ways.items():
                    taken[way].append(once(words, file, Path(runs)))
        for way, found in taken.items():
            shown = " | ".join(f"{statistics.median(f[c] for f in found):.1f}" for c in COLUMNS)
            print(f"| {name}, {way} | {shown} | {max(f['wall'] for f in found):.1f} | {aim:.0f} |", flush=True)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
