"""The watch: how much of a core and how much memory does it take on a node with 8 ports?

    python bench/watch_cost.py [SECONDS]

Prints one Markdown table; docs/benchmarks/watch.md keeps dated ones. Processor time, user and system, of the program
itself; the machine need not be quiet. Rows: the program as nodes run it, on files of eight ports that change at every
look, on a disk; then its parts in this process with RDMA objects of a large job besides: 8 devices, 64 processes, 256
queue pairs and 1,000 memory regions a device, as bytes of netlink that are decoded at every look. What the kernel needs
to write those bytes is not in it, nor what a firmware needs to read a counter.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fairlead.probe.readers.tree import Tree
from fairlead.watch.onnode import rdma
from fairlead.watch.onnode.chain import Chain
from fairlead.watch.onnode.judge import Judge
from fairlead.watch.onnode.metrics import metrics_text
from fairlead.watch.onnode.sample import Machine
from support.watching import Running, hca, settings

PORTS, PERIOD_S, GLANCE_S = 8, 10.0, 2.0
GOAL_PERCENT = 1.0


def attr(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def u32(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=I", value))


class Replay:
    """In the place of the socket: the same answers at every look, with one queue pair that changes."""

    def __init__(self, devices: int = 8, pids: int = 64, qps: int = 256, mrs: int = 1000) -> None:
        me = [os.getpid() + i for i in range(pids)]
        self.looks = 0
        self.devices = [u32(1, i) + attr(2, f"mlx5_{i}\0".encode()) + u32(3, 1) for i in range(devices)]
        per = pids // devices
        self.qps, self.others = {}, {}
        for i in range(devices):
            mine = me[i * per : (i + 1) * per]
            rows = [
                attr(21, u32(3, 1) + u32(22, 100 + n) + u32(23, 5000 + n) + u32(24, n) + u32(25, n) + attr(26, b"\2")
                     + attr(27, b"\3") + u32(28, mine[n % per]) + u32(58, n))
                for n in range(qps)
            ]  # fmt: skip
            regions = [attr(41, attr(45, struct.pack("=Q", 1 << 20)) + u32(28, mine[n % per])) for n in range(mrs)]
            contexts = [attr(87, u32(28, pid)) for pid in mine]
            self.qps[i] = rows
            self.others[i] = {13: attr(40, b"".join(regions)), 22: attr(86, b"".join(contexts)), 11: b""}

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        command = kind - rdma.NLDEV
        if command == 1:
            return self.devices
        index = struct.unpack_from("=I", body, 4)[0]
        if command != 10:
            return [self.others[index][command]]
        self.looks += 1
        numbers = u32(3, 1) + u32(22, 90_000 + self.looks) + u32(28, os.getpid())
        fresh = attr(21, numbers + attr(26, b"\2") + attr(27, b"\3"))
        rows = [*self.qps[index], fresh]
        return [attr(19, b"".join(rows[at : at + 128])) for at in range(0, len(rows), 128)]

    def close(self) -> None:
        pass


def move(root: Path, step: int) -> None:
    for i in range(PORTS):
        hca(root, f"mlx5_{i}", port_rcv_data=step * 10**9, port_xmit_data=step * 10**9)


def as_program(place: Path, seconds: float) -> tuple[float, float, float]:
    """(milliseconds a look, ms of the rest a second, MB) of the program on files alone."""
    root = place / "node"
    move(root, 0)
    period_s = 0.5
    with Running(place / "its", root=str(root), period_s=period_s, glance_s=0.25) as watch:
        first = watch.until(lambda now: len(now["ports"]) == PORTS)
        began, step = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            step += 1
            move(root, step)
            time.sleep(period_s)
        last = watch.now()
    looks = (last["t"] - first["t"]) / 1e9 / period_s
    return 1000 * (last["self"]["cpu_s"] - first["self"]["cpu_s"]) / looks, looks, last["self"]["rss_bytes"] / 1e6


def in_process(place: Path, rounds: int, *, with_rdma: bool) -> tuple[float, float]:
    """(milliseconds a look, milliseconds a glance) of the parts, `with_rdma` with the objects of a large job."""
    root = place / "node"
    move(root, 0)
    told = settings()
    machine = Machine(Tree(str(root)), [c["counter"] for c in told["counters"] if c["where"] == "hw_counters"])
    judge, chain = Judge(told), Chain(str(place / f"chain-{with_rdma}"))
    if with_rdma:
        replay = machine.rdma = Replay()
        # a captured tree has no netlink; here it has these answers
        vars(machine)["_connect"] = lambda: machine.indexes.update({f"mlx5_{i}": i for i in range(PORTS)})
        machine.owners.tree = Tree("/")
    looks, glances = [], []
    for step in range(rounds):
        move(root, step)
        began = time.process_time()
        sample = machine.look()
        sample["events"] = []
        judge.suspects(sample)
        chain.append(judge.step(sample))
        metrics_text({**judge.now, "head": list(chain.head)})
        json.dumps(judge.now)
        looks.append(time.process_time() - began)
        began = time.process_time()
        if with_rdma:
            machine.rdma = replay
        machine.glance()
        glances.append(time.process_time() - began)
    return 1000 * statistics.fmean(looks), 1000 * statistics.fmean(glances)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o700)
        (place / "chain-True").mkdir(mode=0o700)
        (place / "chain-False").mkdir(mode=0o700)
        whole_ms, num, memory = as_program(place, seconds)
        plain_ms, _ = in_process(place, 200, with_rdma=False)
        large_ms, glance_ms = in_process(place, 200, with_rdma=True)

    def share(look_ms: float, glance: float = 0.0) -> float:
        return 100 * (look_ms + glance * (PERIOD_S / GLANCE_S - 1)) / 1000 / PERIOD_S

    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {num:.0f} looks\n")
    print(f"| what, {PORTS} ports | ms a look | of a core at {PERIOD_S:g} s | memory |")
    print("|---|---|---|---|")
    print(f"| the program, files alone | {whole_ms:.1f} | {share(whole_ms):.2f} % | {memory:.0f} MB |")
    print(f"| its parts, files alone | {plain_ms:.1f} | {share(plain_ms):.2f} % | |")
    print(f"| its parts, 2,048 queue pairs, 8,000 regions | {large_ms:.1f} + {glance_ms:.1f} a glance "
          f"| {share(large_ms, glance_ms):.2f} % | |")  # fmt: skip
    met = share(large_ms, glance_ms) < GOAL_PERCENT and share(whole_ms) < GOAL_PERCENT
    print(f"\ngoal: less than {GOAL_PERCENT:g} %: {'met' if met else 'missed'}")


if __name__ == "__main__":
    main()
