"""A bundle written and verified, against plain copy and hash of the same bytes, in interleaved pairs; peak memory.

    .venv/bin/python bench/serve_bundle.py --gib 8 --rounds 5 --place /mnt/nvme

What it is held against: `dd` of each shard to the same disk with fsync, then `openssl dgst -sha256` of it, as a person
would; the bundle's own work is the tar around it and a second digest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARDS = 4


def model(folder: Path, gib: float) -> None:
    """Shards of random bytes with a header of safetensors."""
    folder.mkdir()
    size = int(gib * (1 << 30)) // SHARDS
    for i in range(SHARDS):
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with (folder / f"model-{i}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            left = size
            while left:
                left -= file.write(os.urandom(min(left, 8 << 20)))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")


def timed(words: list[list[str]]) -> tuple[float, int]:
    """(seconds, peak memory of the largest in KiB) of programs one after the other."""
    began = time.monotonic()
    for argv in words:
        subprocess.run(argv, check=True, capture_output=True)
    return time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def main() -> None:
    """A line a round, then medians."""
    args = argparse.ArgumentParser()
    args.add_argument("--gib", type=float, default=2)
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--place", type=Path, default=None)
    said = args.parse_args()
    fairlead = str(Path(sys.executable).parent / "fairlead")
    with tempfile.TemporaryDirectory(dir=said.place) as name:
        place = Path(name)
        model(place / "m", said.gib)
        shards = [str(p) for p in sorted((place / "m").iterdir())]
        rows = []
        for number in range(said.rounds):
            plain, bundle = place / "plain", place / "b"
            plain.mkdir()
            copies = [["dd", f"if={p}", f"of={plain / Path(p).name}", "bs=4M", "conv=fsync"] for p in shards]
            steps = {
                "make": [[fairlead, "serve", "bundle", str(place / "m"), str(bundle), "--unsigned", "-q"]],
                "copy": [*copies, ["openssl", "dgst", "-sha256", *shards]],
                "verify": [[fairlead, "serve", "verify", str(bundle), "-q"]],
                "hash": [["openssl", "dgst", "-sha256", *shards]],
            }
            order = list(steps) if number % 2 == 0 else ["copy", "make", "hash", "verify"]
            peak = 0
            took = {}
            for step in order:
                took[step], peak = timed(steps[step])
            rows.append((took["copy"] / took["make"], took["hash"] / took["verify"]))
            print(" ".join(f"{k} {v:.2f} s" for k, v in took.items()), f"peak {peak >> 10} MiB", flush=True)
            shutil.rmtree(plain)
            shutil.rmtree(bundle)
    print(f"of copy and hash: make {statistics.median(r[0] for r in rows):.2f}, of hash: verify "
          f"{statistics.median(r[1] for r in rows):.2f}; {said.gib} GiB, {said.rounds} rounds")  # fmt: skip


if __name__ == "__main__":
    main()
