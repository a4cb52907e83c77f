"""A bundle written, verified, pushed into a registry and pulled again, against plain copy and hash of the same bytes,
in turns; peak memory.

    .venv/bin/python bench/serve_bundle.py --gib 8 --rounds 5 --place /mnt/nvme [--limit 540] [--page]

What it is held against: `dd` of each shard to the same disk, then `openssl dgst -sha256` of it, as a person would; for
verify, the digest alone. The registry is docker-registry on the loopback, its store and the clients' files on the same
disk; skopeo is the client. What the registry takes and gives by itself, asked by curl for the same shards, is said
beside it. After each step the file system is synced, and that counts. `--limit`: after so many seconds no further round
begins, and the page says how many there were. `--page` writes docs/benchmarks/serve.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from page import preface, write

SHARDS = 4
PAGE = Path(__file__).parents[1] / "docs/benchmarks/serve.md"
HELD = {"bundle": "copy", "verify": "hash", "push": "copy", "pull": "copy"}
"""What each step is held against."""


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


def timed(words: list[list[str]], place: Path) -> tuple[float, int]:
    """(seconds until all is on the disk, peak memory of the largest in KiB) of programs one after the other."""
    began, peak = time.monotonic(), 0
    for argv in [*words, ["sync", "-f", str(place)]]:
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, argv
        peak = max(peak, used.ru_maxrss)
    return time.monotonic() - began, peak


@contextlib.contextmanager
def registry(place: Path) -> Iterator[str]:
    """docker-registry on the loopback."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    config = place / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {place / 'store'}}}}}\n"
        f"http: {{addr: '{address}'}}\nlog: {{level: error}}\n"
    )
    words = ["docker-registry", "serve", str(config)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/", timeout=2):
                    break
                time.sleep(0.05)
            yield address
        finally:
            run.terminate()


def by_curl(place: Path, address: str, shards: list[str]) -> dict[str, float]:
    """Seconds in which the registry takes the shards as blobs, and gives them back."""
    ways = dict[str, list[list[str]]](took=[], gave=[])
    for shard in shards:
        with Path(shard).open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        begun = urllib.request.Request(f"http://{address}/v2/models/curl/blobs/uploads/", method="POST")
        with urllib.request.urlopen(begun, timeout=10) as answer:
            where = f"{answer.headers['Location']}&digest={digest}"
        header = "Content-Type: application/octet-stream"
        ways["took"].append(["curl", "-sf", "-H", header, "-T", shard, "-X", "PUT", where])
        blob = f"http://{address}/v2/models/curl/blobs/{digest}"
        ways["gave"].append(["curl", "-sf", "-o", str(place / "back" / Path(shard).name), "--create-dirs", blob])
    return {way: timed(words, place)[0] for way, words in ways.items()}


def turn(place: Path, number: int, address: str) -> tuple[dict[str, float], int]:
    """(seconds of each step, peak memory of fairlead in KiB) of one round; its files are gone afterwards."""
    fairlead = str(Path(sys.executable).parent / "fairlead")
    shards = [str(p) for p in sorted((place / "m").iterdir())]
    plain, bundle, back = place / "plain", place / "b", place / "back"
    plain.mkdir()
    name = f"{address}/models/m:{number}"
    steps = {
        "bundle": [[fairlead, "serve", "bundle", str(place / "m"), str(bundle), "--unsigned", "-q"]],
        "copy": [
            *([ "dd", f"if={p}", f"of={plain / Path(p).name}", "bs=4M", "status=none"] for p in shards),
            ["openssl", "dgst", "-sha256", *(str(plain / Path(p).name) for p in shards)],
        ],
        "verify": [[fairlead, "serve", "verify", str(bundle), "-q"]],
        "hash": [["openssl", "dgst", "-sha256", *shards]],
        "push": [["skopeo", "copy", "-q", "--dest-tls-verify=false", "--preserve-digests", f"oci:{bundle}:latest",
                  f"docker://{name}"]],
        "pull": [["skopeo", "copy", "-q", "--src-tls-verify=false", "--dest-oci-accept-uncompressed-layers",
                  f"docker://{name}", f"oci:{back}:latest"]],
    }  # fmt: skip
    order = ["bundle", "copy", "verify", "hash", "push", "pull"]
    took, peak = dict[str, float](), 0
    for step in order if number % 2 == 0 else ["copy", "bundle", "hash", "verify", "push", "pull"]:
        if step not in ("push", "pull") or address:
            took[step], used = timed(steps[step], place)
            peak = max(peak, used if step in ("bundle", "verify") else 0)
    if address:
        same = {p.name for p in (bundle / "blobs/sha256").iterdir()} == {
            p.name for p in (back / "blobs/sha256").iterdir()
        }
        assert same, "what came back is not what was pushed"
        took |= by_curl(place, address, shards)
    for folder in (plain, bundle, back, place / "store"):
        shutil.rmtree(folder, ignore_errors=True)
    return took, peak


def table(rounds: list[dict[str, float]], gib: float) -> str:
    """Markdown: a row a step, medians of rounds."""
    rows = ["| step | median s | MiB/s | held against | of its speed |", "|---|---:|---:|---|---:|"]
    for step in ("copy", "hash", *HELD):
        if step in rounds[0]:
            took = statistics.median(r[step] for r in rounds)
            against = HELD.get(step, "")
            of = f"{statistics.median(r[against] / r[step] for r in rounds):.2f}" if against else ""
            rows.append(f"| {step} | {took:.1f} | {gib * 1024 / took:.0f} | {against} | {of} |")
    steps = [step for step in HELD if step in rounds[0]]
    whole = statistics.median(sum(r[HELD[s]] for s in steps) / sum(r[s] for s in steps) for r in rounds)
    rows.append(f"| all of them | | | the same, copied and hashed | {whole:.2f} |")
    if "took" not in rounds[0]:
        return "\n".join(rows)
    rate = {way: gib * 1024 / statistics.median(r[way] for r in rounds) for way in ("took", "gave")}
    of = {
        step: statistics.median(r[way] / r[step] for r in rounds) for step, way in (("push", "took"), ("pull", "gave"))
    }
    return "\n".join(rows) + (
        f"\n\nThe registry alone, by curl: it takes {rate['took']:.0f} MiB/s and gives {rate['gave']:.0f}; push reaches"
        f" {of['push']:.2f} of that, pull {of['pull']:.2f}."
    )


def main() -> None:
    """A line a round, then medians."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--gib", type=float, default=2)
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--place", type=Path, default=None)
    args.add_argument("--limit", type=float, default=540)
    args.add_argument("--page", action="store_true")
    said = args.parse_args()
    began, rounds, peaks = time.monotonic(), list[dict[str, float]](), list[int]()
    tools = shutil.which("docker-registry") and shutil.which("skopeo")
    with tempfile.TemporaryDirectory(dir=said.place) as name, contextlib.ExitStack() as stack:
        place = Path(name)
        model(place / "m", said.gib)
        address = stack.enter_context(registry(place)) if tools else ""
        longest = 0.0
        for number in range(said.rounds):
            start = time.monotonic()
            if rounds and start - began + longest > said.limit:
                break
            took, peak = turn(place, number, address)
            longest = max(longest, time.monotonic() - start)
            rounds.append(took)
            peaks.append(peak)
            print(" ".join(f"{k} {v:.2f} s" for k, v in took.items()), f"peak {peak >> 10} MiB", flush=True)
    text = (
        f"{preface()} {said.gib:g} GiB in {SHARDS} shards, {len(rounds)} rounds in turns.\n\n{table(rounds, said.gib)}"
    )
    text += f"\n\nPeak memory of `serve bundle` and `serve verify`: {max(peaks) >> 10} MiB (aim: 256)."
    text += " Aim: 0.80 of copy and hash." + (
        "" if tools else " Without skopeo and docker-registry: not pushed, not pulled."
    )
    print(text)
    if said.page:
        write(PAGE, "Serve", "A bundle, written, verified, pushed and pulled", text)


if __name__ == "__main__":
    main()
