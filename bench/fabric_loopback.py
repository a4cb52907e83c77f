"""What one program sends another over the loopback in packets of 4 KB: MRC compiled, sealed, plain, and a bare blaster.

python bench/fabric_loopback.py [--rounds 5] [--seconds 4]

Each round runs all of them one after the other. The blaster is sendmmsg and recvmmsg, 64 datagrams a call of three
parts each, nothing else: what the kernel takes for itself. CPU is that of both ends, user and system, a packet
of payload: it tells the cost also on a machine that does other work.
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
TOKEN = b"a token of this benchmark"
SO_RCVBUFFORCE, MSG_WAITFORONE = 33, 0x10000


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def sheet(*parts: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """struct mmsghdr for a burst, each of parts of so many bytes."""
    hdrs, iovs = np.zeros((BURST, 8), np.int64), np.zeros((BURST, len(parts), 2), np.int64)
    data = [np.zeros((BURST, size), np.uint8) for size in parts]
    for i in range(BURST):
        for j, size in enumerate(parts):
            iovs[i, j] = data[j][i].ctypes.data, size
        hdrs[i, 2], hdrs[i, 3] = iovs[i].ctypes.data, len(parts)
    return hdrs, [iovs, *data]


def sink() -> None:
    libc = ctypes.CDLL(None)
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    sock.bind(("::1", 0))
    print(sock.getsockname()[1], flush=True)
    hdrs, _kept = sheet(8192)
    num, first, last, begin = 0, 0.0, 0.0, cpu()
    while True:
        got = libc.recvmmsg(sock.fileno(), ctypes.c_void_p(hdrs.ctypes.data), BURST, MSG_WAITFORONE, None)
        if got > 0 and (hdrs[:got, 7] == 0).any():
            break
        num += max(got, 0)
        last = time.monotonic()
        first = first or last
    print(num, num / max(last - first, 1e-9), cpu() - begin, flush=True)


def blast(port: int, seconds: float) -> float:
    libc = ctypes.CDLL(None)
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.connect(("::1", port))
    hdrs, _kept = sheet(40, PAYLOAD, 4)
    begin, end = cpu(), time.monotonic() + seconds
    while time.monotonic() < end:
        libc.sendmmsg(sock.fileno(), ctypes.c_void_p(hdrs.ctypes.data), BURST, 0)
    sock.send(b"")
    return cpu() - begin


def server(compiled: bool, sealed: bool) -> None:
    with Context(addresses=["::1"], compiled=compiled, sealed=sealed) as context:
        queue = context.completion_queue()
        with context.listen("::1", TOKEN) as listener:
            print(listener.port, flush=True)
            private = remote_of(context.register(bytearray(MESSAGE)))
            listener.accept(queue, queue, private=private, limit_s=120)
        begin = cpu()
        sys.stdin.readline()
        print(cpu() - begin, flush=True)


def write(compiled: bool, sealed: bool, port: int, seconds: float) -> tuple[int, float, float]:
    """Packets, packets a second, CPU seconds."""
    with Context(addresses=["::1"], compiled=compiled, sealed=sealed) as context:
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
        if kind == "blaster":
            used = blast(port, seconds)
            num, rate, theirs = (float(word) for word in peer.stdout.readline().split())
        else:
            num, rate, used = write(kind != "plain", kind == "sealed", port, seconds)
            peer.stdin.write("end\n")
            peer.stdin.flush()
            theirs = float(peer.stdout.readline())
    return rate * PAYLOAD * 8 / 1e9, (used + theirs) / num * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--end", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.end:
        return sink() if asked.end == "blaster" else server(asked.end != "plain", asked.end == "sealed")
    Context(addresses=["::1"]).close()  # compiles, the first time
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in ("blaster", "compiled", "sealed", "plain")}
    for _ in range(asked.rounds):
        for kind, seen in found.items():
            seen.append(once(kind, asked.seconds))
            print(f"{kind:9} {seen[-1][0]:6.2f} Gb/s {seen[-1][1]:7.1f} us   load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}\n")
    print("| | median Gb/s | lowest | highest | of the blaster | CPU us by packet |\n|---|---:|---:|---:|---:|---:|")
    for kind, seen in found.items():
        rates = [rate for rate, _ in seen]
        ratio = statistics.median(a / b for a, (b, _) in zip(rates, found["blaster"], strict=True))
        used = statistics.median(us for _, us in seen)
        mid = statistics.median(rates)
        print(f"| {kind} | {mid:.2f} | {min(rates):.2f} | {max(rates):.2f} | {ratio:.2f} | {used:.1f} |")
    return None


if __name__ == "__main__":
    main()
