"""What MRC over sockets carries between two hosts of a lab, beside TCP and bare UDP on the same links, round by round.

sudo python bench/fabric_transport.py [--rounds 5] [--seconds 4] [--planes 4] [--rate 250]

Each round runs all of them one after the other, so that what else the machine does hits all alike:

    mrc       `fairlead fabric perf`, messages of 64 KiB, packets of 4 KiB, every packet on a way of its own
    sealed    the same with every packet authenticated
    udp       a bare Python loop of sendmsg and recvmsg, packets of that size, all paths in turn: Python's ceiling
    tcp       one TCP stream between the fabric addresses, plain sockets
    mptcp     the same with the kernel's MPTCP: the first subflow like tcp's, and one more in each plane (`ip mptcp`)
    iperf3    the same by iperf3, where it is installed
    quic      one connection of aioquic (plain Python, one plane), where it is installed: pip install aioquic
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path

from fairlead.cluster.enter import into_host, running
from fairlead.spec import usid

FAIRLEAD = (sys.executable, "-m", "fairlead")
PACKET = 4096 + 44
HERE, THERE = "n0", "n3"

RECEIVER = """
import socket, sys, time
kind, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
total, first, last = 0, 0.0, 0.0
if kind == "udp":
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_UDP, 102, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    sock.bind(("::", 4999))
else:
    server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 262 if kind == "mptcp" else 0)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("::", 4999))
    server.listen()
print("ready", flush=True)
if kind != "udp":
    sock, _ = server.accept()
sock.settimeout(1.0)
buffer = bytearray(1 << 17)
try:
    while n := sock.recv_into(buffer):
        last = time.monotonic()
        first = first or last
        total += min(n, size)
except TimeoutError:
    pass
print(8 * total / max(last - first, 1e-9), flush=True)
"""
SENDER = """
import socket, sys, time
kind, seconds, size, *to = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
end = time.monotonic() + seconds
if kind == "udp":
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_UDP, 101, 1)
    head, body, i = bytes(44), bytes(size - 44), 0
    while time.monotonic() < end:
        sock.sendmsg([head, body], (), 0, (to[i % len(to)], 4999))
        i += 1
else:
    sock, body = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 262 if kind == "mptcp" else 0), bytes(1 << 16)
    sock.connect((to[0], 4999))
    while time.monotonic() < end:
        sock.sendall(body)
    sock.close()
"""


@contextmanager
def a_lab(name: str, planes: int, rate: int, num_hosts: int = 4, more: str = "") -> Iterator[Path]:
    """A lab of so many hosts and planes of so many Mb/s; its cluster file. `more`: lines of [lab]."""
    with tempfile.TemporaryDirectory() as place, chdir(place):  # runs leave their folders there
        file = Path(place) / "cluster.toml"
        file.write_text(
            f'schema = 1\n[cluster]\nname = "{name}"\n[access]\nvia = "lab"\n'
            f'[[pool]]\nname = "lab"\nsize = "lab"\nnodes = "n[0-{num_hosts - 1}]"\npython = "{sys.executable}"\n'
            f'[fabric]\nlink = "ethernet"\nrdma = "mrc"\nplanes = {planes}\nt0 = 2\nt1 = 2\n'
            f"[lab]\nrate_mbps = {rate}\n{more}"
        )
        subprocess.run([*FAIRLEAD, "lab", "up", "-f", str(file)], check=True, capture_output=True)
        try:
            yield file
        finally:
            subprocess.run([*FAIRLEAD, "lab", "down", "-n", name], check=True, capture_output=True)


def on(lab: str, host: str, *words: str) -> list[str]:
    state = running(lab)
    return into_host(state, state.host(host), words)


def plain(lab: str, kind: str, seconds: float, to: list[str]) -> float:
    """What a receiver counted, b/s."""
    size = str(PACKET if kind == "udp" else 1 << 17)
    words = on(lab, THERE, sys.executable, "-c", RECEIVER, kind, to[0], size)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        sender = [sys.executable, "-c", SENDER, kind, str(seconds), str(PACKET), *to]
        subprocess.run(on(lab, HERE, *sender), check=True, timeout=seconds + 60)
        return float(receiver.stdout.readline())


def mrc(file: Path, seconds: float, *more: str) -> float:
    words = ["fabric", "perf", HERE, THERE, "-f", str(file), "--duration", str(seconds), "--message", "65536", "-q"]
    done = subprocess.run([*FAIRLEAD, *words, "--json", *more], capture_output=True, text=True, timeout=seconds + 120)
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "pass", answer
    return answer["sums"][HERE]["bits_per_s"]


def open_mptcp(lab: str, planes: int) -> None:
    """Let the receiver offer its port of each plane, and the sender join them all."""
    many = str(min(planes + 1, 8))  # the kernel takes no more: MPTCP_PM_ADDR_MAX
    for host in (HERE, THERE):
        limits = ("ip", "mptcp", "limits", "set", "subflows", many, "add_addr_accepted", many)
        subprocess.run(on(lab, host, *limits), check=True)
    for plane in range(planes):
        address, device = str(usid.port_address(plane, 1, 1)), f"eth{plane + 1}"
        subprocess.run(on(lab, THERE, "ip", "mptcp", "endpoint", "add", address, "dev", device, "signal"), check=True)


def joined(lab: str) -> int:
    """Subflows of MPTCP that the sender's host has joined so far."""
    words = on(lab, HERE, "cat", "/proc/net/netstat")
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names, values = (line.split() for line in text.splitlines() if line.startswith("MPTcpExt:"))
    return int(dict(zip(names, values, strict=True))["MPJoinSynAckRx"])


def mptcp(lab: str, seconds: float, to: str, planes: int) -> float:
    before = joined(lab)
    rate = plain(lab, "mptcp", seconds, [to])
    assert joined(lab) - before == planes, f"{joined(lab) - before} planes joined: this would measure TCP"
    return rate


def iperf3(lab: str, seconds: float, to: str) -> float:
    with subprocess.Popen(on(lab, THERE, "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL) as server:
        time.sleep(0.5)
        words = on(lab, HERE, "iperf3", "-J", "-t", str(int(seconds)), "-c", to)
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60)
        server.wait(10)
    return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]


def quic(lab: str, seconds: float, to: str) -> float:
    """What came in order, b/s, from the first line of the receiver to its last."""
    program = str(Path(__file__).with_name("fabric_quic.py"))
    words = on(lab, THERE, sys.executable, program, "serve", "::", str(seconds + 3))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        sender = on(lab, HERE, sys.executable, program, "send", "::", str(seconds), to)
        subprocess.run(sender, stderr=subprocess.DEVNULL, timeout=seconds + 60, check=False)  # it ends by its time
        lines = receiver.communicate(timeout=seconds + 60)[0].splitlines()
    (first, before), (last, after) = (map(int, lines[i].split()) for i in (0, -1))
    return 8e9 * (after - before) / (last - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 5), ("seconds", 4), ("planes", 4), ("rate", 250)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    name = f"ft{os.getpid()}"
    with a_lab(name, asked.planes, asked.rate) as file:
        fabric = running(name).host(THERE).fabric
        ways = [str(usid.path_address(p, 0, t1, 1, 1)) for t1 in range(2) for p in range(asked.planes)]
        open_mptcp(name, asked.planes)
        runs = {
            "mrc": lambda: mrc(file, asked.seconds),
            "sealed": lambda: mrc(file, asked.seconds, "--sealed"),
            "udp": lambda: plain(name, "udp", asked.seconds, ways),
            "tcp": lambda: plain(name, "tcp", asked.seconds, [fabric]),
            "mptcp": lambda: mptcp(name, asked.seconds, fabric, asked.planes),
        }
        if shutil.which("iperf3"):
            runs["iperf3"] = lambda: iperf3(name, asked.seconds, fabric)
        if find_spec("aioquic"):
            runs["quic"] = lambda: quic(name, asked.seconds, fabric)
        found: dict[str, list[float]] = {kind: [] for kind in runs}
        for _ in range(asked.rounds):
            for kind, run in runs.items():
                found[kind].append(run())
                print(f"{kind:8} {found[kind][-1] / 1e6:8.0f} Mb/s   load {os.getloadavg()[0]:.1f}", flush=True)
    shaped = asked.planes * asked.rate
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}, {shaped} Mb/s in all\n")
    print("| | median Mb/s | lowest | highest | of shaped | of bare udp |\n|---|---:|---:|---:|---:|---:|")
    for kind, rates in found.items():
        mid = statistics.median(rates) / 1e6
        share = mid / shaped
        ratio = statistics.median(a / b for a, b in zip(rates, found["udp"], strict=True))
        print(f"| {kind} | {mid:.0f} | {min(rates) / 1e6:.0f} | {max(rates) / 1e6:.0f} | {share:.0%} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
