"""MRC over sockets between two hosts of a lab for some minutes, with a fault every second: is every byte right, once?

sudo python bench/fabric_soak.py [--minutes 10] [--seed 1] [--rate 100]

Both hosts write to each other all the time: messages of random lengths up to 64 KiB, each with its number as
immediate. Whoever is written to compares every byte with what that number stands for, sees that numbers come in order,
none twice and none left out, and says so with a Write of no bytes; only then is its place written again. Every second
the lab is given a fault, drawn from the seed, and an older one is healed: links that drop everything, are down, lose,
double, reorder, mark or slow down packets, and an end that is stopped for a third of a second. Two planes of four at
most are hit at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import select
import signal
import struct
import subprocess
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from fabric_transport import a_lab

from fairlead.cluster.enter import into_host, running
from fairlead.lab.faults.apply import heal, inject

HERE, THERE = "n0", "n3"
PLANES = 4
DEPTH, SIZE = 8, 1 << 16
HEAD = struct.Struct("!Q")
RECEIPT = 1 << 31
"""In an immediate: a message has been compared; without it, the number of a message."""
DRAIN_S, STOPPED_S = 30.0, 0.3
MAX_GROWTH_KB = 8 << 10
"""From a fifth of the run to its end; what the interpreter and numba settle to comes before."""
FAULTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("silent-drop", {}),
    ("link-down", {}),
    ("loss", {"percent": "1"}),
    ("loss", {"percent": "30"}),
    ("duplicate", {"percent": "10"}),
    ("reorder", {"percent": "10"}),
    ("ecn-mark", {"percent": "50"}),
    ("rate", {"mbps": "5"}),
)


# ---- an end, on its host ---------------------------------------------------------------------------------------------


class End:
    """Writes numbered messages and compares those that come."""

    def __init__(self, name: str) -> None:
        from fairlead.fabric.transport.context import Context, remote_of
        from fairlead.records.addressbook import PLACE, Place
        from fairlead.records.codec import from_json

        self.context = Context(from_json(Path(PLACE).read_bytes(), Place))
        self.queue = self.context.completion_queue(1024)
        self.memory = bytearray(DEPTH * SIZE)
        self.private = remote_of(self.context.register(self.memory))
        self.texts = {end: random.Random(end).randbytes(2 * SIZE) for end in (HERE, THERE)}
        self.name, self.other = name, THERE if name == HERE else HERE
        self.qp: Any = None
        self.sent = self.compared = self.receipts = self.completed = 0
        self.bytes = 0
        self.owed: deque[int] = deque()

    def message(self, writer: str, number: int) -> bytes:
        """What a number of a writer stands for."""
        chance = random.Random(f"{writer} {number}")
        begin = chance.randrange(SIZE)
        return HEAD.pack(number) + self.texts[writer][begin : begin + chance.randrange(SIZE - HEAD.size)]

    def run(self, seconds: float) -> None:
        """Write until the time is over and all has been answered."""
        for i in range(4 * DEPTH):
            self.qp.post_recv(wr_id=i)
        end = time.monotonic() + seconds
        told = 0.0
        under_way: deque[int] = deque()
        num_posted = 0
        while not _is_over():
            now = time.monotonic()
            is_done = now >= end and self.receipts == self.sent and not self.owed and not under_way
            if now > end + DRAIN_S and not is_done:
                raise RuntimeError(f"{self.sent - self.receipts} messages are not answered {DRAIN_S} s after the end")
            while now < end and self.sent - self.receipts < DEPTH and len(under_way) < 2 * DEPTH:
                data = self.message(self.name, self.sent)
                where = self.sent % DEPTH * SIZE
                self.qp.post_write(data, self.qp.remote, wr_id=num_posted, offset=where, imm=self.sent % RECEIPT)
                under_way.append(num_posted)
                num_posted, self.sent = num_posted + 1, self.sent + 1
            while self.owed and len(under_way) < 3 * DEPTH:
                self.qp.post_write(b"", self.qp.remote, wr_id=num_posted, imm=RECEIPT | self.owed.popleft())
                under_way.append(num_posted)
                num_posted += 1
            for done in self.queue.wait(0.2, 4 * DEPTH):
                self.take(done, under_way)
            if now - told >= 1.0:
                told = now
                self.say("done" if is_done else "going")

    def take(self, done: Any, under_way: deque[int]) -> None:
        """A completion, of either kind."""
        if done.status.name != "SUCCESS":
            if _is_over():  # the other end was told first
                return
            raise RuntimeError(f"{done.status.value}: {self.qp.error}")
        if done.opcode.name == "RDMA_WRITE":
            assert done.wr_id == under_way.popleft(), "a request completed twice, or out of turn"
            self.completed += 1
            return
        self.qp.post_recv(wr_id=done.wr_id)
        if done.imm & RECEIPT:
            assert done.imm ^ RECEIPT == self.receipts % RECEIPT, f"receipt {done.imm ^ RECEIPT} after {self.receipts}"
            self.receipts += 1
            return
        assert done.imm == self.compared % RECEIPT, f"message {done.imm} where {self.compared} is next"
        wanted = self.message(self.other, self.compared)
        at = self.compared % DEPTH * SIZE
        assert done.num_bytes == len(wanted), "a length is wrong"
        assert self.memory[at : at + len(wanted)] == wanted, f"bytes of message {self.compared} are wrong"
        self.bytes += len(wanted)
        self.owed.append(done.imm)
        self.compared += 1

    def say(self, what: str, **more: object) -> None:
        """A line for whoever started this."""
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        counts = {"sent": self.sent, "compared": self.compared, "bytes": self.bytes, "completed": self.completed}
        rss = pages * os.sysconf("SC_PAGE_SIZE") >> 10
        print(json.dumps({"say": what, **counts, "rss_kb": rss, **self.qp.counters(), **more}), flush=True)


def _is_over() -> bool:
    """Whether both ends are done, as whoever started them says."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def end_main(name: str, address: str, seconds: float) -> None:
    """The program of one host."""
    token = bytes.fromhex(sys.stdin.readline())
    end = End(name)
    try:
        if name == THERE:
            with end.context.listen(address, token) as listener:
                print(json.dumps({"port": listener.port}), flush=True)
                end.qp = listener.accept(end.queue, end.queue, private=end.private, limit_s=60)
        else:
            port = int(sys.stdin.readline())
            end.qp = end.context.connect(address, port, token, end.queue, end.queue, private=end.private, limit_s=60)
        end.run(seconds)
    except (AssertionError, RuntimeError) as error:
        end.say("failed", why=f"{type(error).__name__}: {error}")
        raise
    finally:
        end.context.close()


# ---- the lab, and what happens to it ---------------------------------------------------------------------------------


class Trouble:
    """A fault a second; at most two planes have one."""

    def __init__(self, lab: str, seed: int, pids: list[int]) -> None:
        self.lab, self.chance, self.pids = lab, random.Random(seed), pids
        self.force: deque[tuple[int, int]] = deque()
        self.counts: Counter[str] = Counter()

    def next(self) -> None:
        """Heal the oldest where two are in force, then do something new."""
        if len(self.force) > 1:
            heal(self.lab, str(self.force.popleft()[1]))
        if self.chance.random() < 0.1:
            pid = self.chance.choice(self.pids)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            self.counts["stopped"] += 1
            return
        plane = self.chance.choice([p for p in range(PLANES) if p not in {q for q, _ in self.force}])
        links = [f"p{plane}/{HERE}", f"p{plane}/{THERE}"]
        links += [f"p{plane}/t0-{t0}/t1-{t1}" for t0 in range(2) for t1 in range(2)]
        kind, settings = self.chance.choice(FAULTS)
        self.force.append((plane, inject(self.lab, kind, self.chance.choice(links), settings).id))
        self.counts[kind] += 1


def soak(lab: str, seconds: float, seed: int) -> bool:
    """Run both ends under trouble; True if all was right."""
    state = running(lab)
    address = json.loads(
        subprocess.run(
            into_host(state, state.host(THERE), ["cat", "/etc/fairlead/place.json"]), check=True, capture_output=True
        ).stdout
    )["management"]
    token = secrets.token_hex(32)
    ends = {}
    for name in (THERE, HERE):
        words = [sys.executable, __file__, "--end", name, address, str(seconds)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        ends[name] = subprocess.Popen(into_host(state, state.host(name), words), **pipes)
        ends[name].stdin.write(token + "\n")
        ends[name].stdin.flush()
    try:
        port = json.loads(ends[THERE].stdout.readline())["port"]
        ends[HERE].stdin.write(f"{port}\n")
        ends[HERE].stdin.flush()
        return _watch(lab, ends, seconds, seed)
    finally:
        for one in ends.values():
            with suppress(BrokenPipeError):
                one.stdin.write("\n")
                one.stdin.flush()
        for one in ends.values():
            with suppress(subprocess.TimeoutExpired):
                one.wait(10)
            one.kill()


def _watch(lab: str, ends: dict[str, Any], seconds: float, seed: int) -> bool:
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in ends}
    for name, one in ends.items():
        lines[name].append(json.loads(one.stdout.readline()))  # both run
        os.set_blocking(one.stdout.fileno(), False)
    trouble = Trouble(lab, seed, [_program(one.pid) for one in ends.values()])
    begin = told = time.monotonic()
    rest = dict.fromkeys(ends, b"")
    while any(own[-1]["say"] == "going" for own in lines.values()):
        now = time.monotonic()
        if now > begin + seconds + 2 * DRAIN_S or any(one.poll() is not None for one in ends.values()):
            break
        if now < begin + seconds:
            trouble.next()
        elif trouble.force:
            heal(lab, "all")
            trouble.force.clear()
        for name, one in ends.items():
            with suppress(BlockingIOError):
                rest[name] += os.read(one.stdout.fileno(), 1 << 16)
            *whole, rest[name] = rest[name].split(b"\n")
            lines[name] += map(json.loads, whole)
        if now - told >= 10:
            told = now
            last = lines[HERE][-1]
            print(
                f"{now - begin:6.0f} s  {last['compared']:8,} messages  {last['resent']:7,} sent again  "
                f"rss {' '.join(str(own[-1]['rss_kb'] >> 10) for own in lines.values())} MB  "
                f"{trouble.counts.total()} faults  load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        time.sleep(max(0.0, 1 - (time.monotonic() - now)))
    return _verdict(lines, trouble, time.monotonic() - begin)


def _program(pid: int) -> int:
    """The program behind nsenter, which waits for it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return int(children[0]) if children else pid


def _verdict(lines: dict[str, list[dict[str, Any]]], trouble: Trouble, took_s: float) -> bool:
    good = True
    print(f"\n{took_s:.0f} s, {trouble.counts.total()} faults: {dict(trouble.counts)}")
    for name, own in lines.items():
        last, settled = own[-1], own[len(own) // 5]
        other = lines[HERE if name == THERE else THERE][-1]
        growth = last["rss_kb"] - settled["rss_kb"]
        longest = _longest(own)
        right = last["say"] == "done" and last["compared"] == other["sent"] and growth <= MAX_GROWTH_KB
        good &= right
        print(
            f"{name}: {last['compared']:,} of {other['sent']:,} messages right and once, {last['bytes'] / 1e9:.2f} GB, "
            f"{last['new']:,} packets and {last['resent']:,} again, {last['timeouts']:,} timeouts; "
            f"memory {settled['rss_kb']:,} then {last['rss_kb']:,} KB; nothing arrived for {longest} s at most"
            + (f"; {last['say']} {last.get('why', '')}" if not right else "")
        )
    print("PASS" if good else "FAIL")
    return good


def _longest(own: list[dict[str, Any]]) -> int:
    """Lines in a row, one a second, in which no message was added."""
    longest = still = 0
    for a, b in pairwise(own):
        still = still + 1 if a["compared"] == b["compared"] and b["say"] == "going" else 0
        longest = max(longest, still)
    return longest


def main() -> None:
    if sys.argv[1:2] == ["--end"]:
        end_main(sys.argv[2], sys.argv[3], float(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=100, help="Mb/s of each link")
    asked = parser.parse_args()
    name = f"fs{os.getpid()}"
    with a_lab(name, PLANES, asked.rate):
        good = soak(name, 60 * asked.minutes, asked.seed)
    sys.exit(not good)


if __name__ == "__main__":
    main()
