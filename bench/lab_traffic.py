"""What the fabric of a lab carries: TCP against the shaped rate, packets per second, and how fast a silent drop is.

sudo python bench/lab_traffic.py goodput     plain TCP per plane, and over all planes at once
sudo python bench/lab_traffic.py packets     packets per second of the kernel's path, real packets and super-packets
sudo python bench/lab_traffic.py drop        from the command to the last packet a receiver sees
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time

from fairlead.cluster.enter import running
from fairlead.lab import syscalls as sc
from fairlead.lab.shape import LabShape
from fairlead.spec import usid

UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX, UDP_SEGMENT, UDP_GRO = 101, 102, 103, 104
SO_TIMESTAMPNS = 35
NAME = f"bench{os.getpid()}"


@contextlib.contextmanager
def lab(**changes):
    from fairlead.lab.up import down, up

    with tempfile.TemporaryDirectory() as folder:
        os.environ["FAIRLEAD_LABS"] = f"{folder}/labs"
        shape = LabShape(name=NAME, **changes)
        try:
            yield shape, up(shape)
        finally:
            down(NAME)


def in_host(host, *args):
    """A socket of a host, made by a thread that enters it."""
    made = []

    def make():
        sc.enter(f"/proc/{running(NAME).keeper.pid}/root/run/netns/{host}", sc.CLONE_NEWNET)
        made.append(socket.socket(*args))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def child(work, *args):
    """Run a function in a process of its own; returns a function that waits for its answer (a float)."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(here)
        os.write(there, struct.pack("d", work(*args)))
        os._exit(0)
    os.close(there)

    def answer():
        raw = os.read(here, 8)
        os.close(here)
        os.waitpid(pid, 0)
        return struct.unpack("d", raw)[0]

    return answer


def receive_tcp(listener, num_streams, seconds):
    """Bytes per second over all streams, from the first byte on."""
    streams = [listener.accept()[0] for _ in range(num_streams)]
    counts = [0] * num_streams
    began = time.monotonic()

    def take(number):
        buffer = bytearray(1 << 18)
        while (got := streams[number].recv_into(buffer)) and time.monotonic() < began + seconds:
            counts[number] += got

    threads = [threading.Thread(target=take, args=(i,)) for i in range(num_streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def send_tcp(streams, seconds):
    data = bytes(1 << 18)
    end = time.monotonic() + seconds + 0.5

    def push(stream):
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                stream.send(data)

    threads = [threading.Thread(target=push, args=(s,)) for s in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0.0


def tcp_bps(address, sender, receiver, num_streams, seconds):
    listener = in_host(receiver, socket.AF_INET6, socket.SOCK_STREAM)
    listener.bind((address, 7000))
    listener.listen(64)
    answer = child(receive_tcp, listener, num_streams, seconds)
    streams = []
    for _ in range(num_streams):
        stream = in_host(sender, socket.AF_INET6, socket.SOCK_STREAM)
        stream.connect((address, 7000))
        streams.append(stream)
    sent = child(send_tcp, streams, seconds)
    for stream in streams:
        stream.close()
    listener.close()
    found = answer() * 8
    sent()
    return found


def goodput():
    seconds = 5
    print("| what | streams | goodput | of the shaped rate |\n|---|---|---|---|")
    with lab() as (shape, state):
        rate = shape.rate_mbps * 1e6
        far = state.host("n3")
        for port in far.ports:
            for streams in (1, 4):
                bps = tcp_bps(port.address, "n0", "n3", streams, seconds)
                print(f"| plane {port.plane}, n0 to n3 | {streams} | {bps / 1e6:.1f} Mb/s | {100 * bps / rate:.1f} % |")
        bps = tcp_bps(state.host("n1").ports[0].address, "n0", "n1", 1, seconds)
        print(f"| plane 0, below one T0 | 1 | {bps / 1e6:.1f} Mb/s | {100 * bps / rate:.1f} % |")
        for streams in (1, 16, 64):
            bps = tcp_bps(far.fabric, "n0", "n3", streams, seconds)
            whole = rate * shape.planes
            print(f"| fabric address, all planes | {streams} | {bps / 1e6:.1f} Mb/s | {100 * bps / whole:.1f} % |")


def receive_udp(sock, seconds, size):
    """Packets per second, whether they come one by one or as super-packets."""
    sock.settimeout(3)
    buffer = bytearray(1 << 17)
    total = sock.recv_into(buffer)
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        total += sock.recv_into(buffer)
    return total / size / (time.monotonic() - began)


def packets():
    seconds, size = 3, 4096
    print("| packets on the fabric | sending | packets/s | rate | packets per CPU-second of the sender |")
    print("|---|---|---|---|---|")
    for offload in (False, True):
        with lab(planes=1, rate_mbps=100_000, uplink_rate_mbps=100_000, burst_kib=4096, buffer_kib=65536,
                 segmentation_offload=offload):  # fmt: skip
            for batch in (1, 15):
                into = in_host("n3", socket.AF_INET6, socket.SOCK_DGRAM)
                into.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
                into.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
                into.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
                into.bind(("::", 4791))
                out = in_host("n0", socket.AF_INET6, socket.SOCK_DGRAM)
                if batch > 1:
                    out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
                else:
                    out.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
                out.connect((str(usid.path_address(0, 0, 0, 1, 1)), 4791))
                answer = child(receive_udp, into, seconds, size)
                data, sent, began = bytes(size * batch), 0, os.times()
                while os.times().elapsed < began.elapsed + seconds + 1:
                    for _ in range(50):
                        out.send(data)
                    sent += 50 * batch
                # all hops are forwarded in the time of whoever sends
                spent = sum(os.times()[:2]) - sum(began[:2])
                pps = answer()
                into.close()
                out.close()
                kind = "super-packets, offload on" if offload else "real 4 KiB packets"
                how = "one a call" if batch == 1 else f"{batch} a call (UDP_SEGMENT)"
                rate = f"{pps / 1000:.0f} k | {pps * size * 8 / 1e9:.2f} Gb/s"
                print(f"| {kind} | {how} | {rate} | {sent / spent / 1000:.0f} k |")


def stamps(sock, results):
    """When the kernel took each packet in, in ns, until nothing has come for half a second."""
    sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            _, extra, _, _ = sock.recvmsg(65535, 64)
            seconds, rest = struct.unpack("qq", extra[0][2])
            results.append(seconds * 10**9 + rest)


def drop():
    from fairlead.lab.faults.apply import heal, inject

    rounds, size, after, whole, last = 20, 8192, [], [], []
    with lab() as (shape, _):
        packet_ns = (size + 62) * 8 * 1000 // shape.rate_mbps
        for _ in range(rounds):
            into = in_host("n3", socket.AF_INET6, socket.SOCK_DGRAM)
            into.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            into.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
            into.bind(("::", 4791))
            out = in_host("n0", socket.AF_INET6, socket.SOCK_DGRAM)
            out.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
            out.connect((str(usid.path_address(0, 0, 0, 1, 1)), 4791))
            found, stop = [], threading.Event()
            receiver = threading.Thread(target=stamps, args=(into, found))
            receiver.start()

            def send(out=out, stop=stop):
                while not stop.is_set():
                    out.send(bytes(size))
                    time.sleep(packet_ns / 1e9 / 2)  # the queue of the port is never empty

            sender = threading.Thread(target=send)
            sender.start()
            time.sleep(0.3)
            called = time.time_ns()
            inject(NAME, "silent-drop", "p0/n3", {})
            returned = time.time_ns()
            time.sleep(0.2)
            stop.set()
            sender.join()
            receiver.join()
            into.close()
            out.close()
            heal(NAME, "all")
            after.append(sum(stamp > returned for stamp in found))
            whole.append((returned - called) / 1e6)
            last.append((max(found) - returned) / 1e6)
            assert len(found) > 100
    print(
        f"{rounds} drops of a busy link; a packet of {size} B takes {packet_ns / 1e6:.3f} ms at {shape.rate_mbps} Mb/s"
    )
    print(f"the command took {statistics.median(whole):.0f} ms (worst {max(whole):.0f})")
    print(f"packets received after it returned: {sum(after)} in all rounds")
    print(f"last packet before the return: {-max(last):.2f} to {-min(last):.2f} ms before")


if __name__ == "__main__":
    parts = {"goodput": goodput, "packets": packets, "drop": drop}
    for part in sys.argv[1:] or parts:
        print(f"\n{part}\n")
        parts[part]()
