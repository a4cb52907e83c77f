"""One model onto every host of a lab: fairlead, and every host downloading by itself (curl), in turns.

The bound is arithmetic: max(S/E, S/B), S the bytes, E what the origin gives, B what a host's link is shaped to; headers
count against whoever sends them. Ratios of runs that follow each other say something on a busy machine; seconds do not.

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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.cluster.enter import into_host, running
from support.origins import serving
from support.spreads import NAME, Run
from support.trials import world


def main() -> None:
    """The table, and a line of JSON for each run."""
    said = argparse.ArgumentParser()
    for name, usual in (("hosts", 8), ("mib", 256), ("mbps", 200), ("rounds", 3)):
        said.add_argument(f"--{name}", type=int, default=usual)
    asked = said.parse_args()
    size, link = asked.mib << 20, 2 * asked.mbps * 1e6 / 8
    ratios: dict[str, list[float]] = {"fairlead": [], "each by itself": []}
    with (
        tempfile.TemporaryDirectory() as place,
        world(hosts=asked.hosts, gpus=1, planes=2, rate_mbps=asked.mbps) as lab,
    ):
        (Path(place) / NAME).write_bytes(random.Random(1).randbytes(size))
        python = f'gpus = 1\npython = "{sys.executable}"\n'
        lab.file.write_text(lab.file.read_text().replace("gpus = 1\n", python))
        for number in range(asked.rounds):
            for name in ratios if number % 2 == 0 else reversed(ratios):
                with serving(Path(place), rate=link) as origin:
                    for host in lab.nodes:
                        origin.also_in(running(lab.name).host(host).anchor.pid)
                    took_s = (spread if name == "fairlead" else each)(lab, origin)
                    ratio, egress = took_s * link / size, origin.given / size
                for host in lab.nodes:
                    lab.sh(host, "rm -rf /tmp/b-*")
                ratios[name].append(ratio)
                told = {
                    "way": name,
                    "seconds": round(took_s, 2),
                    "of_bound": round(ratio, 3),
                    "egress": round(egress, 3),
                }
                print(json.dumps(told), flush=True)
    print(f"{asked.hosts} hosts, {asked.mib} MiB, origin and links of {link / 1e6:.1f} MB/s; bound {size / link:.2f} s")
    for name, all_ in ratios.items():
        print(f"{name:16} {statistics.median(all_):6.2f} of the bound ({min(all_):.2f} to {max(all_):.2f})")


def spread(lab, origin) -> float:
    """Seconds of the spread itself: verified and published everywhere."""
    status, result = Run(lab, origin, "/tmp/b-one").end()
    assert status == 0, result["findings"]
    return result["took_s"]["spread"]


def each(lab, origin) -> float:
    """Every host downloads the whole by itself, at once; nothing is verified."""
    state, began = running(lab.name), time.monotonic()
    words = ["curl", "-sf", "--create-dirs", "-o", f"/tmp/b-curl/{NAME}", f"{origin.url}/{NAME}"]
    running_ = [subprocess.Popen(into_host(state, state.host(host), words)) for host in lab.nodes]
    assert all(child.wait() == 0 for child in running_)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
