"""Fan-out: does a call keep its time limit whatever nodes do, and what does a node cost beyond a bare ssh?

    python bench/cluster_fanout.py            # ssh rows need root, for a private sshd on the loopback

Prints one Markdown table; docs/benchmarks/cluster.md keeps dated ones. All nodes are this machine, so every row pays
for both ends of every connection: on a real cluster an interpreter's start and half of ssh's handshake are the nodes'.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.cluster import Cluster, Result
from fairlead.cluster.backend import Backend
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend

NODES, FANOUT, SSH_FANOUT, LIMIT_S, ROUNDS = "n[1-64]", 64, 8, 5.0, 5
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
FAULTS = """
case $FAIRLEAD_NODE in
    n7|n21|n50) trap '' TERM HUP INT; while :; do sleep 3600; done;;
    n13|n40) exit 3;;
esac"""


def cluster(backend: Backend, fanout: int = FANOUT) -> Cluster:
    return Cluster(Engine(backend, fanout=fanout, python_of=lambda _: PYTHON))


def timed(call) -> tuple[float, list[Result]]:
    started = time.perf_counter()
    results = call()
    return time.perf_counter() - started, results


def faults(backend: Backend) -> str:
    with cluster(backend) as nodes:
        took_s, results = timed(lambda: nodes.run(NODES, ["sh", "-c", FAULTS], limit_s=LIMIT_S))
    states = [str(r.state) for r in results]
    assert len(results) == 64
    assert (states.count("done"), states.count("failed"), states.count("timeout")) == (59, 2, 3), states
    return f"{took_s:.2f} s (limit {LIMIT_S:g} s + 1 s)"


def beside_bare(backend: Backend, argv: list[str], fanout: int) -> tuple[str, str]:
    """64 no-ops by us and 64 plain subprocesses (no limit, no clean-up), turn by turn; the median of each."""

    def bare(_: int) -> None:
        subprocess.run(argv, capture_output=True, check=True)

    ours, theirs = [], []
    with cluster(backend, fanout) as nodes, ThreadPoolExecutor(fanout) as pool:
        for _ in range(ROUNDS):
            ours.append(timed(lambda: nodes.run(NODES, ["true"], limit_s=120))[0])
            theirs.append(timed(lambda: list(pool.map(bare, range(64))))[0])
    return tuple(f"{(s := statistics.median(taken)):.2f} s, {s / 64 * 1e3:.1f} ms a node" for taken in (ours, theirs))


def rates(backend: Backend) -> list[tuple[str, str]]:
    size = 200 << 20
    with tempfile.TemporaryDirectory() as name, cluster(backend) as nodes:
        source, target = Path(name) / "source", Path(name) / "target"
        source.write_bytes(os.urandom(1 << 20) * (size >> 20))
        push_s, pushed = timed(lambda: nodes.push("n1", source, str(target), limit_s=300))
        fetch_s, fetched = timed(lambda: nodes.fetch("n1", str(target), Path(name), limit_s=300, max_bytes=1 << 40))
        out_s, out = timed(lambda: nodes.run("n1", ["head", "-c", str(10 * size), "/dev/zero"], limit_s=300))
        assert all(r.ok for r in (*pushed, *fetched, *out))
    return [
        ("push one file of 200 MiB, checked", f"{size / push_s / 1e6:.0f} MB/s"),
        ("fetch it back, checked", f"{size / fetch_s / 1e6:.0f} MB/s"),
        ("2 GiB of output, 1 MiB kept", f"{10 * size / out_s / 1e6:.0f} MB/s"),
    ]


def main() -> None:
    rows = [("local", "64 no-ops, 3 hung, 2 failing: 64 results in", faults(LocalBackend()))]
    ours, theirs = beside_bare(LocalBackend(), [PYTHON, "-I", "-S", "-c", "pass"], FANOUT)
    rows.append(("local", f"64 no-ops, fan-out {FANOUT}", ours))
    rows.append(("local", "64 bare interpreters, same fan-out", theirs))
    rows += [("local", *row) for row in rates(LocalBackend())]
    if os.geteuid() == 0 and shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin"):
        from support.sshd import PrivateSshd

        server = PrivateSshd()
        server.start()
        try:
            backend = server.backend()
            ours, theirs = beside_bare(backend, backend.wrap("n1", ["true"]), SSH_FANOUT)
            rows.append(("ssh", f"64 no-ops, fan-out {SSH_FANOUT}", ours))
            rows.append(("ssh", "64 bare `ssh NODE true`, same fan-out", theirs))
            rows += [("ssh", *row) for row in rates(backend)]
        finally:
            server.stop()
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, Linux {platform.release()}, "
          f"Python {platform.python_version()}, nodes' Python {PYTHON}\n")  # fmt: skip
    print("| backend | what | result |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
