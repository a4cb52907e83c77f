"""What one program sends another over the loopback in packets of 4 KB: MRC compiled, sealed, plain, and bare blasters.

python bench/fabric_loopback.py [--rounds 5] [--seconds 4]

Each round runs all of them one after the other. The blaster is sendmmsg and recvmmsg, 64 datagrams a call of three
parts each, nothing else: what the kernel takes for itself. CPU is that of both ends, user and system, a packet
of payload: it tells the cost also on a machine that does other work. Packets of "bare" kinds have no iCRC. Kinds with
"gso" send and receive with segmentation offload, 15 packets a datagram, and are compared with the blaster that does.
Those with "paced", which run only if named, send at a pace: --kinds "compiled,paced,gso,gso paced".
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import time

import numpy as np

from fairlead.fabric.transport.context import Context, remote_of

PAYLOAD, BURST, MESSAGE, DEPTH = 4096, 64, 1 << 20, 16
PARTS = (40, PAYLOAD, 4)
BATCH, GSO_BURST = 15, 8
UDP_SEGMENT, UDP_GRO = 103, 104
KINDS = "blaster,compiled,bare,sealed,bare sealed,plain,gso blaster,gso,gso bare,gso sealed,gso bare sealed,gso plain"
TOKEN = b"a token of this benchmark"
SO_RCVBUFFORCE, MSG_WAITFORONE = 33, 0x10000


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def sheet(count: int, batch: int, *parts: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """struct mmsghdr for a burst of so many datagrams, each of `batch` times parts of so many bytes."""
    hdrs, iovs = np.zeros((count, 8), np.int64), np.zeros((count, batch, len(parts), 2), np.int64)
    data = [np.zeros((count, batch, size), np.uint8) for size in parts]
    for i, j in np.ndindex(count, batch):
        for k, size in enumerate(parts):
            iovs[i, j, k] = data[k][i, j].ctypes.data, size
    hdrs[:, 2] = [row.ctypes.data for row in iovs]
    hdrs[:, 3] = batch * len(parts)
    return hdrs, [iovs, *data]


def sink(gso: bool) -> None:
    libc = ctypes.CDLL(None)
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    if gso:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    sock.bind(("::1", 0))
    print(sock.getsockname()[1], flush=True)
    count = GSO_BURST if gso else BURST
    hdrs, _kept = sheet(count, 1, 65536 if gso else 8192)
    num, first, last, begin = 0, 0.0, 0.0, cpu()
    while True:
        got = libc.recvmmsg(sock.fileno(), ctypes.c_void_p(hdrs.ctypes.data), count, MSG_WAITFORONE, None)
        lengths = hdrs[: max(got, 0), 7] & 0xFFFFFFFF
        if (lengths == 0).any():
            break
        num += int(lengths.sum())
        last = time.monotonic()
        first = first or last
    packets = num / sum(PARTS)
    print(packets, packets / max(last - first, 1e-9), cpu() - begin, flush=True)


def blast(port: int, seconds: float, gso: bool) -> float:
    libc = ctypes.CDLL(None)
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.connect(("::1", port))
    if gso:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, sum(PARTS))
    count = GSO_BURST if gso else BURST
    hdrs, _kept = sheet(count, BATCH if gso else 1, *PARTS)
    begin, end = cpu(), time.monotonic() + seconds
    while time.monotonic() < end:
        libc.sendmmsg(sock.fileno(), ctypes.c_void_p(hdrs.ctypes.data), count, 0)
    sock.send(b"")
    return cpu() - begin


def options(kind: str) -> dict[str, int]:
    return {
        "compiled": "plain" not in kind,
        "sealed": "sealed" in kind,
        "gso": "gso" in kind,
        "icrc": "bare" not in kind,
        **({"pace_percent": 125} if "paced" in kind else {}),
    }


def server(kind: str) -> None:
    with Context(addresses=["::1"], **options(kind)) as context:
        queue = context.completion_queue()
        with context.listen("::1", TOKEN) as listener:
            print(listener.port, flush=True)
            private = remote_of(context.register(bytearray(MESSAGE)))
            listener.accept(queue, queue, private=private, limit_s=120)
        begin = cpu()
        sys.stdin.readline()
        print(cpu() - begin, flush=True)


def write(kind: str, port: int, seconds: float) -> tuple[int, float, float]:
    """Packets, packets a second, CPU seconds."""
    with Context(addresses=["::1"], **options(kind)) as context:
        queue, data = context.completion_queue(), bytes(MESSAGE)
        qp = context.connect("::1", port, TOKEN, queue, queue)
        num = waiting = 0
        used, begin = cpu(), time.monotonic()
        while time.monotonic() < begin + seconds:
            while waiting < DEPTH:
                qp.post_write(data, qp.remote, wr_id=num)
                waiting += 1
            done = queue.wait(10)
            assert done, qp.error
            assert all(c.status.name == "SUCCESS" for c in done), qp.error
            num, waiting = num + len(done), waiting - len(done)
        packets = num * MESSAGE // PAYLOAD
        return packets, packets / (time.monotonic() - begin), cpu() - used


def once(kind: str, seconds: float) -> tuple[float, float]:
    """Gb/s of payload, and CPU in us by packet at both ends."""
    with subprocess.Popen(
        [sys.executable, __file__, "--end", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        port = int(peer.stdout.readline())
        if "blaster" in kind:
            used = blast(port, seconds, "gso" in kind)
            num, rate, theirs = (float(word) for word in peer.stdout.readline().split())
        else:
            num, rate, used = write(kind, port, seconds)
            peer.stdin.write("end\n")
            peer.stdin.flush()
            theirs = float(peer.stdout.readline())
    return rate * PAYLOAD * 8 / 1e9, (used + theirs) / num * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--kinds", default=KINDS, help=KINDS)
    parser.add_argument("--end", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.end:
        return sink("gso" in asked.end) if "blaster" in asked.end else server(asked.end)
    Context(addresses=["::1"]).close()  # compiles, the first time
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in asked.kinds.split(",")}
    for _ in range(asked.rounds):
        for kind, seen in found.items():
            seen.append(once(kind, asked.seconds))
            rate, used = seen[-1]
            print(f"{kind:11} {rate:6.2f} Gb/s {used:7.1f} us   load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}\n")
    print("| | median Gb/s | lowest | highest | of the blaster | CPU us by packet |\n|---|---:|---:|---:|---:|---:|")
    for kind, seen in found.items():
        rates = [rate for rate, _ in seen]
        peer = "gso blaster" if "gso" in kind else "blaster"
        ratio = statistics.median(a / b for a, (b, _) in zip(rates, found.get(peer, seen), strict=True))
        used = statistics.median(us for _, us in seen)
        mid = statistics.median(rates)
        print(f"| {kind} | {mid:.2f} | {min(rates):.2f} | {max(rates):.2f} | {ratio:.2f} | {used:.1f} |")
    return None


if __name__ == "__main__":
    main()
