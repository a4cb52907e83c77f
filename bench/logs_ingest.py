"""Lines a second and core into the store of logs, and bytes a line on the disk: the engine's way and Python's, in turn.

    python bench/logs_ingest.py [--lines 1000000] [--turns 3]

Lines are made in rsyslog's RFC 3339 form for 512 hosts. CPU seconds are of the whole process.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from fairlead.logs import intake
from fairlead.logs.intake import Wish, take_in
from fairlead.logs.store import Store

WORDS = ("Lost carrier", "Gained carrier", "session closed for user azhpcuser", "Deactivated successfully.",
         "NVRM: Xid (PCI:0000:1a:00): 31, pid=1942, name=python3, Ch 00000008", "handled ping of job 4711")  # fmt: skip


def written(path: Path, lines: int) -> float:
    """A file of so many lines; their mean length in bytes."""
    chance = random.Random(1)
    with path.open("w") as file:
        for n in range(lines):
            clock = f"{n // 36000 % 24:02}:{n // 600 % 60:02}:{n // 10 % 60:02}.{n % 10}00000"
            host, word = f"gpu{chance.randrange(512):03}", chance.choice(WORDS)
            file.write(f"2026-03-02T{clock}+00:00 {host} systemd-networkd[{n % 30000}]: ib{n % 8}: {word}, line {n}\n")
    return path.stat().st_size / lines


def once(path: Path, lines: int, *, engine: bool) -> tuple[float, float]:
    """Lines a CPU second, and bytes a line on the disk."""
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "store")
        began = time.process_time()
        with mock.patch.object(intake.bulk, "can", intake.bulk.can if engine else lambda *_: False):
            done = list(take_in(store, [path], Wish("node")))
        spent = time.process_time() - began
        assert [each.records for each in done] == [lines], done
        store.session.query("OPTIMIZE TABLE Logs FINAL")
        said = str(store.session.query("SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND table = 'Logs'"))
        store.close()
    return lines / spent, int(said) / lines


def main() -> None:
    """Both ways in turn; medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "syslog"
        mean = written(path, args.lines)
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for _ in range(args.turns):
            for engine, turns in found.items():
                turns.append(once(path, args.lines, engine=engine))
    print(f"{args.lines:,} lines of {mean:.0f} bytes")
    for engine, turns in found.items():
        rate = statistics.median(rate for rate, _ in turns)
        name = "engine" if engine else "Python"
        print(f"{name}: {rate:,.0f} lines a CPU second, {turns[0][1]:.1f} bytes a line on the disk")


if __name__ == "__main__":
    main()
