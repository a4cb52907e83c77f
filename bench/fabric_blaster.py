"""What a bare blaster of batches depends on: which cores its ends run on, the room of the socket, datagrams a call.

python bench/fabric_blaster.py [--rounds 2] [--seconds 1.5]

The blaster of bench/fabric_loopback.py with segmentation offload, 15 packets of 4 KB a datagram; variants in turns.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import socket
import statistics
import subprocess
import sys
import time

from fabric_loopback import BATCH, MSG_WAITFORONE, PARTS, PAYLOAD, SO_RCVBUFFORCE, UDP_GRO, UDP_SEGMENT, cpu, sheet

FREE = -1
VARIANTS = {
    # core of the sender, of the receiver, bytes of room, datagrams a call
    "8 MiB of room, 8 datagrams a call": (FREE, FREE, 8 << 20, 8),
    "the same, a core each": (0, 1, 8 << 20, 8),
    "the same, one core for both": (0, 0, 8 << 20, 8),
    "1 MiB of room": (FREE, FREE, 1 << 20, 8),
    "256 KiB of room, a core each": (0, 1, 1 << 18, 8),
    "2 datagrams a call, a core each": (0, 1, 8 << 20, 2),
}


def stay(core: int) -> None:
    if core != FREE:
        os.sched_setaffinity(0, {core})


def sink(core: int, room: int, count: int) -> None:
    stay(core)
    libc, sock = ctypes.CDLL(None), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, room)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    sock.bind(("::1", 0))
    hdrs, _kept = sheet(count, 1, 65536)
    print(sock.getsockname()[1], flush=True)
    num, first, last, begin = 0, 0.0, 0.0, cpu()
    while True:
        got = libc.recvmmsg(sock.fileno(), ctypes.c_void_p(hdrs.ctypes.data), count, MSG_WAITFORONE, None)
        lengths = hdrs[: max(got, 0), 7] & 0xFFFFFFFF
        if (lengths == 0).any():
            break
        num += int(lengths.sum())
        last = time.monotonic()
        first = first or last
    print(num / sum(PARTS), max(last - first, 1e-9), cpu() - begin, flush=True)


def blast(port: int, seconds: float, core: int, count: int) -> None:
    stay(core)
    libc, sock = ctypes.CDLL(None), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.connect(("::1", port))
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, sum(PARTS))
    hdrs, _kept = sheet(count, BATCH, *PARTS)
    num, begin, end = 0, cpu(), time.monotonic() + seconds
    while time.monotonic() < end:
        num += libc.sendmmsg(sock.fileno(), ctypes.c_void_p(hdrs.ctypes.data), count, 0)
    print(num * BATCH, cpu() - begin, flush=True)
    for _ in range(20):  # one may find no room
        sock.send(b"")
        time.sleep(0.01)


def once(variant: tuple[int, int, int, int], seconds: float) -> tuple[float, float, float, float]:
    """Gb/s that came, share that found no room, processor time a packet of sender and receiver, us."""
    mine, theirs, room, count = variant
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    words = [sys.executable, __file__, "--seconds", str(seconds), "--end"]
    with subprocess.Popen([*words, f"sink {theirs} {room} {count}"], **pipes) as there:
        port = there.stdout.readline().strip()
        with subprocess.Popen([*words, f"blast {port} {mine} {count}"], **pipes) as here:
            sent, used = map(float, here.stdout.readline().split())
            num, took, other = map(float, there.stdout.readline().split())
            here.kill()
    return num / took * PAYLOAD * 8 / 1e9, 1 - num / sent, used / sent * 1e6, other / num * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--end", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.end:
        role, *numbers = asked.end.split()
        first, *more = map(int, numbers)
        return sink(first, *more) if role == "sink" else blast(first, asked.seconds, *more)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in VARIANTS}
    for _ in range(asked.rounds):
        for name, seen in found.items():
            seen.append(once(VARIANTS[name], asked.seconds))
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}\n")
    print("| | Gb/s: median | lowest | highest | no room | us a packet, sender | receiver |\n|---|" + "---:|" * 6)
    for name, seen in found.items():
        rate, lost, mine, theirs = zip(*seen, strict=True)
        cells = [
            f"{statistics.median(rate):.1f}",
            f"{min(rate):.1f}",
            f"{max(rate):.1f}",
            f"{statistics.median(lost):.1%}",
        ]
        cells += [f"{statistics.median(mine):.2f}", f"{statistics.median(theirs):.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")
    return None


if __name__ == "__main__":
    main()
