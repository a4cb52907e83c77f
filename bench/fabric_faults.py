"""A plane is cut under load, again and again: how long until bytes flow as before, by MRC and by MPTCP?

sudo python bench/fabric_faults.py [--cuts 100] [--planes 4] [--rate 100] [--hold 0.5]

Two hosts of a lab, all planes under load. The sender's port in one plane is cut, by every packet vanishing in silence
(no carrier changes) or by link-down, and is healed after `--hold` seconds, round by round, transports in turns.

What is timed, from the last packet that came over the plane which is cut:

    stall    the longest time in which the receiver's bytes, in order, did not go on
    placed   until new bytes, in any order, come at 0.9 of (planes - 1) / planes of the rate before, over 20 ms
    again    the same of bytes in order
    back     from the end of healing until data comes over the plane again

MRC by the kernel's timestamps of what arrives (tcpdump, nanoseconds) and its packet sequence numbers: bytes are placed
in any order, and none counts twice. MPTCP and TCP by the clock when recv() returned, where bytes are in order.
`late` is what the machine itself did meanwhile: how late a program that sleeps a millisecond woke up.
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
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabric_transport import FAIRLEAD, HERE, THERE, a_lab, on, open_mptcp
from fabric_wire import sniffed, writes

from fairlead.cluster.enter import running
from fairlead.lab.faults.apply import heal, inject

TICK_S, AFTER_S = 0.001, 0.02
WARM_S = 1.5
GOAL = 0.9
KEYS = ("stall", "placed", "again")
PAYLOAD = 4096

RECEIVER = """
import socket, sys, time
server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 262 if sys.argv[1] == "mptcp" else 0)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("::", 4999))
server.listen()
print("ready", flush=True)
sock, _ = server.accept()
sock.settimeout(float(sys.argv[2]))
buffer, total, told, out = bytearray(1 << 17), 0, 0, []
try:
    while n := sock.recv_into(buffer):
        total, now = total + n, time.time_ns()
        if now - told > 100_000:
            told = now
            out.append(f"{now} {total}")
except OSError:
    pass
print(*out, sep="\\n")
"""
SENDER = """
import socket, sys, time
kind, seconds, to = sys.argv[1], float(sys.argv[2]), sys.argv[3]
end = time.monotonic() + seconds
sock, body = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 262 if kind == "mptcp" else 0), bytes(1 << 16)
sock.connect((to, 4999))
sock.settimeout(1.0)
while time.monotonic() < end:
    try:
        sock.send(body)
    except TimeoutError:
        pass
"""
JITTER = """
import sys, time
late, end = [], time.monotonic() + float(sys.argv[1])
while (now := time.monotonic()) < end:
    time.sleep(0.001)
    late.append(time.monotonic() - now - 0.001)
late.sort()
print(len(late) and late[len(late) // 2], late[int(0.99 * len(late))], late[-1])
"""


# ---- what came, in order (pure) --------------------------------------------------------------------------------------


@dataclass
class Came:
    """Bytes by time, and, where it is known, when a plane brought data."""

    times_ns: list[int] = field(default_factory=list)
    in_order: list[int] = field(default_factory=list)
    placed: list[int] = field(default_factory=list)
    by_device: dict[int, list[int]] = field(default_factory=dict)
    _first: int = -1
    _next: int = 0
    _ahead: set[int] = field(default_factory=set)

    def packet(self, time_ns: int, psn: int, device: int) -> None:
        """A packet of MRC, of which those that came before do not count again."""
        self.by_device.setdefault(device, []).append(time_ns)
        if self._first < 0:
            self._first = psn
        turn = psn - self._first & 0xFFFFFF
        turn += (self._next - turn + (1 << 23)) >> 24 << 24  # numbers wrap
        if turn < self._next or turn in self._ahead:
            return
        self._ahead.add(turn)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        self.add(time_ns, self._next * PAYLOAD, (self._next + len(self._ahead)) * PAYLOAD)

    def add(self, time_ns: int, in_order: int, placed: int) -> None:
        self.times_ns.append(time_ns)
        self.in_order.append(in_order)
        self.placed.append(placed)

    def at(self, series: list[int], time_ns: int) -> int:
        """Bytes until then."""
        i = bisect_left(self.times_ns, time_ns)
        return series[i - 1] if i else 0

    def rate(self, series: list[int], begin_ns: int, end_ns: int) -> float:
        """Bytes a nanosecond."""
        return (self.at(series, end_ns) - self.at(series, begin_ns)) / (end_ns - begin_ns)

    def stall_ns(self, begin_ns: int, end_ns: int) -> int:
        """The longest time between two steps forward."""
        longest, last, have = 0, begin_ns, self.at(self.in_order, begin_ns)
        for i in range(bisect_left(self.times_ns, begin_ns), bisect_left(self.times_ns, end_ns)):
            if self.in_order[i] > have:
                longest, last, have = max(longest, self.times_ns[i] - last), self.times_ns[i], self.in_order[i]
        return max(longest, end_ns - last)

    def again_ns(self, series: list[int], begin_ns: int, end_ns: int, wanted: float) -> int | None:
        """From `begin_ns` until the rate over the next 20 ms is what is wanted; None if never."""
        step, window = int(1e9 * TICK_S) // 4, int(1e9 * AFTER_S)
        times = range(begin_ns, end_ns - window, step)
        return next((t - begin_ns for t in times if self.rate(series, t, t + window) >= wanted), None)


def of_capture(data: bytes) -> Came:
    """What tcpdump wrote: MRC's Writes, their PSNs put in order."""
    came = Came()
    for one in writes(data):
        came.packet(one.time_ns, one.psn, one.device)
    return came


def of_lines(text: str) -> Came:
    came = Came()
    for line in text.splitlines():
        time_ns, num_bytes = line.split()
        came.add(int(time_ns), int(num_bytes), int(num_bytes))
    return came


# ---- the lab, its traffic, and cuts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """One cut: its plane, and the clock before and after injecting and healing."""

    plane: int
    asked_ns: int
    done_ns: int
    heal_ns: int
    healed_ns: int


@contextmanager
def mrc(lab: str, file: Path, seconds: float, place: Path) -> Iterator[Callable[[], Came]]:
    """Traffic by `fabric perf`, packets by tcpdump at the receiver."""
    capture = place / "mrc.pcap"
    words = ["fabric", "perf", HERE, THERE, "-f", str(file), "--duration", str(seconds), "-q", "--json"]
    with (
        sniffed(lab, THERE, capture) as captured,
        subprocess.Popen([*FAIRLEAD, *words], stdout=subprocess.PIPE, text=True) as perf,
    ):
        until = time.monotonic() + 120
        while capture.stat().st_size < 1 << 20:  # it runs
            assert perf.poll() is None, perf.stdout.read()
            assert time.monotonic() < until, "no traffic"
            time.sleep(0.05)

        def result() -> Came:
            answer = json.loads(perf.communicate(timeout=seconds + 120)[0])
            assert answer["verdict"] == "pass", answer
            return of_capture(captured())

        try:
            yield result
        finally:
            perf.kill()


@contextmanager
def stream(kind: str, lab: str, seconds: float) -> Iterator[Callable[[], Came]]:
    """Traffic by one connection of TCP or MPTCP."""
    to = str(running(lab).host(THERE).fabric)
    there = on(lab, THERE, sys.executable, "-c", RECEIVER, kind, str(seconds))
    with subprocess.Popen(there, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        here = on(lab, HERE, sys.executable, "-c", SENDER, kind, str(seconds), to)
        with subprocess.Popen(here) as sender:

            def result() -> Came:
                sender.wait(seconds + 60)
                return of_lines(receiver.communicate(timeout=seconds + 60)[0])

            try:
                yield result
            finally:
                for one in (sender, receiver):
                    one.kill()


def cut_often(lab: str, fault: str, planes: list[int], hold_s: float) -> list[Cut]:
    cuts = []
    for plane in planes:
        asked = time.time_ns()
        one = inject(lab, fault, f"p{plane}/{HERE}", {})
        done = time.time_ns()
        time.sleep(hold_s)
        begin = time.time_ns()
        heal(lab, str(one.id))
        cuts.append(Cut(plane, asked, done, begin, time.time_ns()))
        time.sleep(hold_s)
    return cuts


def judged(came: Came, cuts: list[Cut], planes: int, devices: dict[int, int], hold_s: float) -> list[dict[str, Any]]:
    """One row a cut, milliseconds; None where it never came about."""
    rows = []
    for cut in cuts:
        own = came.by_device.get(devices.get(cut.plane, -1), [])
        until = bisect_left(own, cut.done_ns + 2_000_000)  # what was under way
        last = own[until - 1] if until and own[until - 1] > cut.asked_ns else cut.done_ns
        before = came.rate(came.placed, cut.asked_ns - int(0.2e9), cut.asked_ns)
        if not before:
            rows.append({"plane": cut.plane, "before": 0.0, "stall": None, "placed": None, "again": None, "back": None})
            continue
        row = {"plane": cut.plane, "before": 8e3 * before, "stall": came.stall_ns(last, cut.heal_ns) / 1e6}
        for key, series in (("placed", came.placed), ("again", came.in_order)):
            took = came.again_ns(series, last, cut.heal_ns, GOAL * before * (planes - 1) / planes)
            row[key] = None if took is None else took / 1e6
        if own:
            back = bisect_left(own, cut.heal_ns)
            comes = back < len(own) and own[back] < cut.healed_ns + int(1e9 * hold_s)
            row["back"] = max(0.0, (own[back] - cut.healed_ns) / 1e6) if comes else None
        rows.append(row)
    return rows


def devices_of(lab: str) -> dict[int, int]:
    """Plane -> number of the receiver's device."""
    done = subprocess.run(on(lab, THERE, "ip", "-json", "link"), capture_output=True, text=True, check=True)
    by_name = {one["ifname"]: one["ifindex"] for one in json.loads(done.stdout)}
    return {
        int(name[3:]) - 1: index for name, index in by_name.items() if name.startswith("eth") and name[3:].isdigit()
    }


def plane_of_tcp(lab: str, here: str, there: str) -> int:
    """The plane that TCP between the fabric addresses of two hosts takes, as the kernel's routes say."""
    words = ("ip", "-json", "route", "get", str(running(lab).host(there).fabric))
    done = subprocess.run(on(lab, here, *words), capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)[0]["dev"].removeprefix("eth")) - 1


def share(values: list[float | None], part: float) -> str:
    """A quantile; what never came about is longer than all."""
    ranked = sorted(float("inf") if v is None else v for v in values)
    value = ranked[min(len(ranked) - 1, int(part * len(ranked)))]
    return "never" if value == float("inf") else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("cuts", 100), ("planes", 4), ("rate", 100), ("batch", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hold", type=float, default=0.5, help="seconds that a plane is cut, and then whole")
    parser.add_argument("--kinds", default="mrc,mptcp", help="tcp too: one plane, which the kernel draws")
    parser.add_argument("--faults", default="silent-drop,link-down")
    parser.add_argument("--rows", type=Path, help="write each cut there, a line of JSON")
    asked = parser.parse_args()
    name = f"ff{os.getpid()}"
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    lates: list[list[float]] = []
    with a_lab(name, asked.planes, asked.rate) as file:
        place = file.parent
        open_mptcp(name, asked.planes)
        devices, tcp = devices_of(name), plane_of_tcp(name, HERE, THERE)
        for begin in range(0, asked.cuts, asked.batch):
            for fault in asked.faults.split(","):
                for kind in asked.kinds.split(","):
                    num = min(asked.batch, asked.cuts - begin)
                    hit = [tcp] * num if kind == "tcp" else [(begin + i) % asked.planes for i in range(num)]
                    seconds = 2 * WARM_S + 2 * num * (asked.hold + 0.15)
                    traffic = mrc(name, file, seconds, place) if kind == "mrc" else stream(kind, name, seconds)
                    with traffic as result:
                        time.sleep(WARM_S)
                        words = [sys.executable, "-c", JITTER, str(2 * num * asked.hold)]
                        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as jitter:
                            cuts = cut_often(name, fault, hit, asked.hold)
                            lates.append([float(v) for v in jitter.stdout.read().split()])
                        came = result()
                    rows = judged(came, cuts, asked.planes, devices if kind == "mrc" else {}, asked.hold)
                    found.setdefault((fault, kind), []).extend(rows)
                    if asked.rows:
                        with asked.rows.open("a") as out:
                            out.writelines(json.dumps({"fault": fault, "kind": kind, **row}) + "\n" for row in rows)
                    mid = [share([row[key] for row in rows], 0.5) for key in KEYS]
                    told = ", ".join(map("{} {} ms".format, KEYS, mid))
                    print(f"{fault:12} {kind:6} {told}   load {os.getloadavg()[0]:.1f}", flush=True)
    shaped = f"{asked.planes} planes of {asked.rate} Mb/s"
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}, {shaped}")
    late = [f"{1e3 * statistics.median(one[i] for one in lates):.2f}" for i in range(3)]
    print(f"late: median {late[0]} ms, p99 {late[1]}, worst {late[2]} (medians of the runs)\n")
    print("| median, p99 in ms | | cuts | Mb/s before | stall | placed | again | back |")
    print(f"|---|---|{'---:|' * 6}")
    for (fault, kind), rows in found.items():
        cells = [f"{share([r[k] for r in rows], 0.5)}, {share([r[k] for r in rows], 0.99)}" for k in KEYS]
        backs = [r["back"] for r in rows if "back" in r]
        cells.append(f"{share(backs, 0.5)}, {share(backs, 0.99)}" if backs else "")
        before = statistics.median(row["before"] for row in rows)
        print(f"| {fault} | {kind} | {len(rows)} | {before:.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
