"""all_reduce of 64 MiB over the hosts of a lab: the backend `mrc` over all planes beside gloo over one, in turns.

sudo python bench/fabric_torch.py [--hosts 4] [--planes 4] [--rate 100] [--mib 64] [--rounds 5] [--cut]

All links have the same rate. gloo gets the host's fabric address, as NCCL's and gloo's users have it: TCP over one
plane. The bound is what a ring has to move: 2 (N - 1) / N of the tensor by each host's links. With `--cut` a plane is
cut a third of the way through each round, silently and for ten seconds: for gloo the plane it uses.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

from fabric_faults import plane_of_tcp
from fabric_transport import a_lab, on

from fairlead.cluster.enter import running
from fairlead.lab.faults.apply import heal, inject

PORT = 29777
LIMIT_S = 90
RANK = """
import datetime, os, sys, time
backend, store, interface = sys.argv[1:4]
rank, size, mib = map(int, sys.argv[4:])
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch
import torch.distributed as dist
if backend == "mrc":
    import fairlead.fabric.torch
host, port = store.rsplit("|", 1)
meeting = dist.TCPStore(host, int(port), size, rank == 0, datetime.timedelta(seconds=120))
dist.init_process_group(backend, store=meeting, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
small = torch.ones(1 << 16)
for _ in range(3):
    dist.all_reduce(small)
values = torch.full((mib << 18,), float(rank + 1))
dist.barrier()
print("ready", flush=True)
sys.stdin.readline()
dist.barrier()
begin = time.monotonic()
dist.all_reduce(values)
took = time.monotonic() - begin
right = bool(values.eq(size * (size + 1) / 2).all())
print("done", took, right, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def one_round(lab: str, backend: str, size: int, mib: int, cut: tuple[str, float]) -> float | None:
    """Seconds of the slowest rank; None for no right end in time. `cut`: a link, and after how long."""
    state = running(lab)
    hosts = [f"n{i}" for i in range(size)]
    place = json.loads(
        subprocess.run(on(lab, "n0", "cat", "/etc/fairlead/place.json"), check=True, capture_output=True).stdout
    )
    ranks = []
    for rank, host in enumerate(hosts):
        interface = interface_of(lab, host, str(state.host(host).fabric))
        store = f"{place['management']}|{PORT}"
        words = [sys.executable, "-c", RANK, backend, store, interface, str(rank), str(size), str(mib)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        ranks.append(subprocess.Popen(on(lab, host, *words), **pipes))
    fault = None
    try:
        assert all(rank.stdout.readline() == "ready\n" for rank in ranks), f"{backend}: the ranks did not meet"
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        if cut[0]:
            time.sleep(cut[1])
            fault = inject(lab, "silent-drop", cut[0], {})
        deadline = time.monotonic() + LIMIT_S
        took = []
        for rank in ranks:
            try:
                out, _ = rank.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            words = out.split()
            if words[-3:-2] != ["done"] or words[-1] != "True":
                return None
            took.append(float(words[-2]))
        return max(took)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        if fault:
            heal(lab, str(fault.id))


def interface_of(lab: str, host: str, address: str) -> str:
    """The device that has an address."""
    done = subprocess.run(on(lab, host, "ip", "-json", "address"), capture_output=True, text=True, check=True)
    return next(
        one["ifname"] for one in json.loads(done.stdout) if any(a.get("local") == address for a in one["addr_info"])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hosts", 4), ("planes", 4), ("rate", 100), ("mib", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cut", action="store_true")
    asked = parser.parse_args()
    name = f"fd{os.getpid()}"
    one_s = 2 * (asked.hosts - 1) / asked.hosts * asked.mib * (8 << 20) / (asked.rate * 1e6)
    found: dict[str, list[float | None]] = {"mrc": [], "gloo": []}
    with a_lab(name, asked.planes, asked.rate, asked.hosts):
        for _ in range(asked.rounds):
            for backend, times in found.items():
                bound_s = one_s / (asked.planes if backend == "mrc" else 1)
                cut = f"p{plane_of_tcp(name, 'n0', 'n1')}/n0" if asked.cut else ""
                times.append(one_round(name, backend, asked.hosts, asked.mib, (cut, bound_s / 3)))
                told = (
                    "did not end" if times[-1] is None else f"{times[-1]:.2f} s, of the bound {times[-1] / bound_s:.2f}"
                )
                print(f"{backend:5} {told}   load {os.getloadavg()[0]:.1f}", flush=True)
    shape = f"{asked.hosts} hosts, {asked.planes} planes of {asked.rate} Mb/s, {asked.mib} MiB of float32"
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}, {shape}\n")
    print("| | rounds that ended right | median s | bound s of all planes | of one plane |\n|---|---:|---:|---:|---:|")
    for backend, times in found.items():
        ended = [t for t in times if t is not None]
        middle = f"{statistics.median(ended):.2f}" if ended else ""
        print(f"| {backend} | {len(ended)} of {len(times)} | {middle} | {one_s / asked.planes:.2f} | {one_s:.2f} |")
    pairs = [g / m for m, g in zip(found["mrc"], found["gloo"], strict=True) if m and g]
    if pairs:
        print(f"\ngloo takes {statistics.median(pairs):.2f} times as long ({len(pairs)} pairs)")


if __name__ == "__main__":
    main()
