"""One model onto every host of a lab: fairlead; every host downloading by itself (curl); BitTorrent (libtorrent, the
origin as its web seed; `pip install libtorrent`), in turns on the same links. Then, by fairlead alone: everything is
there already, and one host that has nothing.

The bound is arithmetic: max(S/E, S/B), S the bytes, E what the origin gives, B what a host's link is shaped to; headers
count against whoever sends them. Ratios of runs that follow each other say something on a busy machine; seconds do not.
Only fairlead writes for good (fsync) and publishes; libtorrent verifies its pieces, curl nothing.

    sudo python bench/weights_spread.py [--hosts 8] [--mib 256] [--mbps 200] [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.cluster.enter import into_host, running
from support.injector import World
from support.origins import Origin, serving
from support.spreads import NAME, Run
from support.trials import world

PIECE_BYTES = 1 << 20


def main() -> None:
    """A line of JSON for each run, then the table."""
    said = argparse.ArgumentParser()
    for name, usual in (("hosts", 8), ("mib", 256), ("mbps", 200), ("rounds", 3)):
        said.add_argument(f"--{name}", type=int, default=usual)
    asked = said.parse_args()
    size, link = asked.mib << 20, 2 * asked.mbps * 1e6 / 8
    ways: dict[str, Callable[[World, Origin], float]] = {"fairlead": spread, "each by itself": each}
    if importlib.util.find_spec("libtorrent"):
        ways["BitTorrent"] = swarm
    else:
        print("BitTorrent is left out: pip install libtorrent", flush=True)
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    with (
        tempfile.TemporaryDirectory() as place,
        world(hosts=asked.hosts, gpus=1, planes=2, rate_mbps=asked.mbps) as lab,
    ):
        (Path(place) / NAME).write_bytes(random.Random(1).randbytes(size))
        python = f'gpus = 1\npython = "{sys.executable}"\n'
        lab.file.write_text(lab.file.read_text().replace("gpus = 1\n", python))
        for number in range(asked.rounds):
            for name in sorted(ways, reverse=bool(number % 2)):
                with serving(Path(place), rate=link) as origin:
                    listen_everywhere(lab, origin)
                    took_s = ways[name](lab, origin)
                    ratio, egress = took_s * link / size, origin.given / size
                clear(lab)
                ratios[name].append(ratio)
                what = {"seconds": round(took_s, 2), "of_bound": round(ratio, 3), "egress": round(egress, 3)}
                print(json.dumps({"way": name, **what}), flush=True)
        with serving(Path(place), rate=link) as origin:
            listen_everywhere(lab, origin)
            again(lab, origin)
    print(f"{asked.hosts} hosts, {asked.mib} MiB, origin and links of {link / 1e6:.1f} MB/s; bound {size / link:.2f} s")
    for name, all_ in ratios.items():
        print(f"{name:16} {statistics.median(all_):6.2f} of the bound ({min(all_):.2f} to {max(all_):.2f})")


def listen_everywhere(lab: World, origin: Origin) -> None:
    """The same address for all hosts."""
    for host in lab.nodes:
        origin.also_in(running(lab.name).host(host).anchor.pid)


def clear(lab: World) -> None:
    """Nothing of a run is left on the hosts."""
    for host in lab.nodes:
        lab.sh(host, "rm -rf /tmp/b-*")


def spread(lab: World, origin: Origin) -> float:
    """Seconds of the spread itself: verified, on the disk and published everywhere."""
    return one(lab, origin)["took_s"]["spread"]


def one(lab: World, origin: Origin) -> dict:
    """A run that every host ends well."""
    status, result = Run(lab, origin, "/tmp/b-one").end()
    assert status == 0, result["findings"]
    return result


def again(lab: World, origin: Origin) -> None:
    """Everything is there; then one host has nothing."""
    one(lab, origin)
    for what, host in (("everything is there", ""), ("one host has nothing", lab.nodes[1])):
        if host:
            lab.sh(host, "rm -rf /tmp/b-one")
        before = origin.given
        took = one(lab, origin)["took_s"]
        told = {
            "way": what,
            "seconds": {k: round(v, 2) for k, v in took.items()},
            "origin_bytes": origin.given - before,
        }
        print(json.dumps(told), flush=True)
    clear(lab)


def each(lab: World, origin: Origin) -> float:
    """Every host downloads the whole by itself, at once; nothing is verified."""
    state, began = running(lab.name), time.monotonic()
    words = ["curl", "-sf", "--create-dirs", "-o", f"/tmp/b-curl/{NAME}", f"{origin.url}/{NAME}"]
    running_ = [subprocess.Popen(into_host(state, state.host(host), words)) for host in lab.nodes]
    assert all(child.wait() == 0 for child in running_)
    return time.monotonic() - began


def swarm(lab: World, origin: Origin) -> float:
    """Every host is a peer of a torrent; the time of making it does not count, that of starting peers does."""
    import libtorrent as lt

    files = lt.file_storage()
    files.add_file(NAME, (origin.folder / NAME).stat().st_size)
    made = lt.create_torrent(files, PIECE_BYTES, lt.create_torrent.v1_only)
    lt.set_piece_hashes(made, str(origin.folder))
    made.add_url_seed(f"{origin.url}/{NAME}")
    torrent, program = lt.bencode(made.generate()), (Path(__file__).parent / "torrent_node.py").read_bytes()
    state = running(lab.name)
    addresses = {host: state.host(host).fabric for host in lab.nodes}
    for host in lab.nodes:
        for path, data in (("/tmp/b-torrent/t", torrent), ("/tmp/b-torrent/node.py", program)):
            words = ["sh", "-c", f"mkdir -p /tmp/b-torrent; cat > {path}"]
            subprocess.run(into_host(state, state.host(host), words), input=data, check=True)
    began, children = time.monotonic(), []
    for host in lab.nodes:
        peers = [address for other, address in addresses.items() if other != host]
        words = [
            sys.executable,
            "/tmp/b-torrent/node.py",
            "/tmp/b-torrent/t",
            "/tmp/b-torrent",
            addresses[host],
            *peers,
        ]
        argv = into_host(state, state.host(host), words)
        children.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    try:
        assert all(child.stdout.readline() == "done\n" for child in children)
        return time.monotonic() - began
    finally:
        for child in children:
            child.communicate()


if __name__ == "__main__":
    main()
