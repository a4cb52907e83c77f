"""One model onto every host of a lab: fairlead, and every host downloading by itself (curl), in turns on the same
links. Then, by fairlead alone: everything is there already, and one host that has nothing.

The bound is arithmetic: max(S/E, S/B), S the bytes, E what the origin gives, B what a host's link is shaped to; headers
count against whoever sends them. Ratios of runs that follow each other say something on a busy machine; seconds do not.
Only fairlead writes for good (fsync) and publishes; curl verifies nothing.

    sudo python bench/weights_spread.py [--hosts 8] [--mib 256] [--mbps 200] [--rounds 3]
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    """A line of JSON for each run, then the table."""
    said = argparse.ArgumentParser()
    for name, usual in (("hosts", 8), ("mib", 256), ("mbps", 200), ("rounds", 3)):
        said.add_argument(f"--{name}", type=int, default=usual)
    asked = said.parse_args()
    size, link = asked.mib << 20, 2 * asked.mbps * 1e6 / 8
    ways: dict[str, Callable[[World, Origin], float]] = {"fairlead": spread, "each by itself": each}
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


if __name__ == "__main__":
    main()
