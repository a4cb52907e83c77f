"""What a pace is worth where queues are shallow: goodput, drops and packets sent again with and without, in turns.

sudo python bench/fabric_pace.py [--rounds 3] [--seconds 3] [--rate 250] [--buffers 16,32,64,256] [--paces 0,125]

A lab of four hosts and four planes for each depth of queue (KiB, of every port, hosts' own ones too). One host writes
to another, then three hosts to that one. Drops are those of all queues of the lab (`tc -s qdisc`).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
from fabric_transport import a_lab, on

from fairlead.cluster.enter import running
from fairlead.fabric.transport.context import Context, remote_of
from fairlead.lab.status import read
from fairlead.records.addressbook import Place

TOKEN, PORT, MESSAGE, DEPTH = b"a token of this benchmark", 7777, 1 << 16, 8
SENDERS, RECEIVER = ("n0", "n1", "n2"), "n3"
PLANES = 4


def place() -> Place:
    return msgspec.json.decode(Path("/etc/fairlead/place.json").read_bytes(), type=Place)


def target(address: str, num: int) -> None:
    with Context(place()) as context:
        queue = context.completion_queue()
        with context.listen(address, TOKEN, PORT) as listener:
            print("listens", flush=True)
            kept = [context.register(bytearray(MESSAGE)) for _ in range(num)]
            qps = [listener.accept(queue, queue, private=remote_of(region), limit_s=60) for region in kept]
        sys.stdin.readline()
        del qps


def source(address: str, pace: int, seconds: float) -> None:
    with Context(place(), pace_percent=pace) as context:
        queue, data = context.completion_queue(), bytes(MESSAGE)
        qp = context.connect(address, PORT, TOKEN, queue, queue)
        print("met", flush=True)
        sys.stdin.readline()
        num = waiting = 0
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            while waiting < DEPTH:
                qp.post_write(data, qp.remote, wr_id=num)
                waiting += 1
            done = queue.wait(10)
            assert done, qp.error
            assert all(c.status.name == "SUCCESS" for c in done), qp.error
            num, waiting = num + len(done), waiting - len(done)
        rate = num * MESSAGE * 8 / (time.monotonic() - begin) / 1e6
        counts = qp.counters()
        print(rate, counts["new"], counts["resent"], counts["timeouts"], flush=True)


def drops(lab: str) -> int:
    return sum(link.lower.drops + link.upper.drops for link in read(running(lab)).links)


def once(lab: str, num: int, pace: int, seconds: float) -> tuple[float, ...]:
    """Mb/s of all senders, share of packets sent again, timeouts, share of packets dropped by queues."""
    address = running(lab).host(RECEIVER).fabric
    words = (sys.executable, __file__, "--seconds", str(seconds), "--paces", str(pace), "--to", address, "--end")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        there = stack.enter_context(subprocess.Popen(on(lab, RECEIVER, *words, f"target {num}"), **pipes))
        stack.callback(there.kill)
        assert there.stdout.readline() == "listens\n"
        sources = []
        for host in SENDERS[:num]:
            sources.append(stack.enter_context(subprocess.Popen(on(lab, host, *words, "source"), **pipes)))
            stack.callback(sources[-1].kill)
            assert sources[-1].stdout.readline() == "met\n"
        before = drops(lab)
        for one in sources:
            one.stdin.write("go\n")
            one.stdin.flush()
        said = [[float(word) for word in one.stdout.readline().split()] for one in sources]
        lost = drops(lab) - before
    rates, new, again, late = zip(*said, strict=True)
    return sum(rates), sum(again) / sum(new), sum(late), lost / sum(new)


def _told(run: tuple[float, ...]) -> tuple[str, ...]:
    rate, again, late, lost = run
    return f"{rate:.0f}", f"{lost:.2%}", f"{again:.2%}", f"{late:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 3), ("seconds", 3), ("rate", 250)):
        parser.add_argument(f"--{name}", type=float if name == "seconds" else int, default=default)
    for name, default in (("buffers", "16,32,64,256"), ("paces", "0,125"), ("senders", "1,3")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--end", default="", help=argparse.SUPPRESS)
    parser.add_argument("--to", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.end.startswith("target"):
        return target(asked.to, int(asked.end.split()[1]))
    if asked.end:
        return source(asked.to, int(asked.paces), asked.seconds)
    Context(addresses=["::1"]).close()  # compiles, the first time
    paces, counts = ([int(word) for word in text.split(",")] for text in (asked.paces, asked.senders))
    rows = []
    for kib in map(int, asked.buffers.split(",")):
        name = f"fp{os.getpid()}k{kib}"
        with a_lab(name, PLANES, asked.rate, more=f"buffer_kib = {kib}\n"):
            seen: dict[tuple[int, int], list[tuple[float, ...]]] = {(n, p): [] for n in counts for p in paces}
            for _ in range(asked.rounds):
                for (num, pace), runs in seen.items():
                    runs.append(once(name, num, pace, asked.seconds))
                    print(
                        f"{kib:4} KiB, {num}:1, pace {pace}:",
                        *_told(runs[-1]),
                        f"load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
        for (num, pace), runs in seen.items():
            middle = tuple(statistics.median(column) for column in zip(*runs, strict=True))
            cells = (kib, f"{num}:1", pace or "none", f"{middle[0] / (PLANES * asked.rate):.0%}", *_told(middle))
            rows.append("| " + " | ".join(map(str, cells)) + " |")
    shaped = f"{PLANES} x {asked.rate} Mb/s"
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}, {shaped}\n")
    print("| KiB a queue | | pace | of shaped | Mb/s | dropped | sent again | timeouts |\n|---:|---|---|" + "---:|" * 5)
    print("\n".join(rows))
    return None


if __name__ == "__main__":
    main()
