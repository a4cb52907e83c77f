"""How long labs take to come and go, what they weigh, and whether anything of them is left.

sudo python bench/lab_updown.py                 build and tear-down times, memory
sudo python bench/lab_updown.py --cycles 200    up and down again and again, and a census of what is left
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SIZES = ((4, 2, 2), (16, 4, 4), (32, 8, 4), (64, 8, 8))


def shape_of(hosts, t0, t1, **more):
    from fairlead.lab.shape import LabShape

    return LabShape(name=f"bench{os.getpid()}", nodes=tuple(f"n{i}" for i in range(hosts)), t0=t0, t1=t1, **more)


def available_kib():
    gc.collect()
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0])


def times(rounds):
    from fairlead.lab.shape import SCRATCH_SHARE
    from fairlead.lab.up import down, up

    print("| hosts x planes | switches | links | up, median (worst) | down, median (worst) | memory | estimate |")
    print("|---|---|---|---|---|---|---|")
    for hosts, t0, t1 in SIZES:
        shape = shape_of(hosts, t0, t1)
        ups, downs, weights = [], [], []
        for _ in range(rounds):
            before = available_kib()
            began = time.monotonic()
            up(shape)
            ups.append(time.monotonic() - began)
            weights.append(before - available_kib())
            began = time.monotonic()
            down(shape.name)
            downs.append(time.monotonic() - began)
            time.sleep(1.0)  # the kernel frees namespaces in the background; the next round's memory should not see it
        topo = shape.topology
        scratch = hosts * shape.scratch_mib * 1024 // SCRATCH_SHARE
        print(
            f"| {hosts} x {shape.planes} | {topo.num_switches} | {topo.num_host_links + topo.num_fabric_links} "
            f"| {statistics.median(ups):.2f} s ({max(ups):.2f}) | {statistics.median(downs):.2f} s ({max(downs):.2f}) "
            f"| {statistics.median(weights) / 1024:.0f} MiB | {(shape.memory_kib - scratch) / 1024:.0f} MiB |"
        )


def services(rounds):
    from fairlead.lab.up import down, up

    took = []
    for _ in range(rounds):
        shape = shape_of(4, 2, 2, sshd=True, slurm=True)
        began = time.monotonic()
        up(shape)
        took.append(time.monotonic() - began)
        down(shape.name)
    print(f"\n4 hosts with OpenSSH and Slurm, every node idle: {statistics.median(took):.2f} s ({max(took):.2f})")


def slab(name):
    for line in Path("/proc/slabinfo").read_text().splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return -1


def cycles(count):
    from fairlead.lab.up import down, up
    from support import lab_census as census

    shape = shape_of(4, 2, 2)
    up(shape)
    down(shape.name)
    time.sleep(3)
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    before = {"net_namespace": slab("net_namespace"), "mounts": mounts, "available_kib": available_kib()}
    began = time.monotonic()
    for _ in range(count):
        state = up(shape)
        names = census.namespaces_of(state)
        down(shape.name)
        left = census.left_of(shape.name, state.cgroup_roots)
        assert not left, left
        assert not census.in_use(names)
    took_s = time.monotonic() - began
    time.sleep(10)
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    after = {"net_namespace": slab("net_namespace"), "mounts": mounts, "available_kib": available_kib()}
    print(f"{count} cycles in {took_s:.0f} s ({took_s / count:.2f} s each): nothing left after any of them")
    print(f"before {before}\nafter  {after}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FAIRLEAD_LABS"] = f"{folder}/labs"
        if args.cycles:
            cycles(args.cycles)
        else:
            times(args.rounds)
            services(args.rounds)


if __name__ == "__main__":
    main()
