"""A push: the same file to every node from here, and handed on from node to node.

    python bench/cluster_push.py            # the Slurm rows need root, for a private Slurm on the loopback

Prints one Markdown table; docs/benchmarks/cluster.md keeps dated ones. All nodes are this machine: they share its
processors, its disk and its loopback, so a row shows what the sender is spared, and no fabric.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Cluster
from fairlead.cluster.backend import Backend
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend

MIB = 1 << 20


def row(backend: Backend, nodes: str, size: int) -> tuple[str, str, str]:
    """One after the other, into a folder that is gone afterwards: seconds, and MB/s that all nodes together took."""
    names = list(NodeSet(nodes))
    taken = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, Cluster(Engine(backend, fanout=64)) as cluster:
        source = Path(folder) / "source"
        source.write_bytes(os.urandom(MIB) * (size // MIB))
        cluster.run(nodes, ["true"], limit_s=120)
        for addresses in (None, dict.fromkeys(names, "127.0.0.1")):
            started, cpu = time.perf_counter(), time.process_time()
            results = cluster.push(nodes, source, f"{folder}/target", limit_s=600, addresses=addresses)
            assert all(r.ok for r in results), [str(r) for r in results if not r.ok]
            took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
            taken.append(f"{took_s:.1f} s, {len(names) * size / took_s / 1e6:.0f} MB/s, {cpu_s:.1f} s of CPU here")
    return (f"{size // MIB} MiB to {len(names)} nodes", *taken)


def main() -> None:
    rows = [("local", *row(LocalBackend(), "n[1-8]", 128 * MIB)), ("local", *row(LocalBackend(), "n[1-32]", 32 * MIB))]
    if os.geteuid() == 0 and shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin"):
        from fairlead.cluster.slurm import Ask, SlurmBackend
        from support.slurm import PrivateSlurm

        slurm = PrivateSlurm(8)
        try:
            slurm.start()
            with tempfile.TemporaryDirectory() as folder:
                backend = SlurmBackend(Ask(pending_s=60), folder=Path(folder), environ=slurm.env)
                rows.append(("slurm", *row(backend, "n[1-8]", 64 * MIB)))
        finally:
            slurm.stop()
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, Linux {platform.release()}, "
          f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print("| backend | what | each from here | from node to node |\n|---|---|---|---|")
    for one in rows:
        print("| " + " | ".join(one) + " |")


if __name__ == "__main__":
    main()
