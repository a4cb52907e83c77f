"""Loss on every plane, one path that loses much, and seven senders to one: what MRC over sockets makes of each.

sudo python bench/fabric_loss.py [--parts loss,path,incast,trim] [--rounds 3] [--seconds 6] [--rate 100]

    loss      two hosts, 4 planes: every link to the receiver loses a share of its packets (nftables `numgen random`),
              both ways; goodput beside that of the same round without loss
    path      one T0-T1 link loses a fifth of what goes up. For each entropy value on it: how many packets, and how
              long, from the first that was lost to the last before it was left; and what its plane carries then, over
              the other T1. The label tells the entropy value, and both ends are captured, so that each loss is known
    incast    seven hosts write to one, and a victim crosses the same switches to another host. Jain's index of the
              seven, and the victim's rate, first alone and then beside them
    trim      the seven again, by switches that trim beyond 32 KiB: packets sent again beside those that were trimmed

Judged by captures at the receivers (kernel timestamps) or by what `fabric perf` found complete and intact.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from fabric_faults import devices_of
from fabric_transport import FAIRLEAD, HERE, THERE, a_lab, mrc
from fabric_wire import Write, sniffed, writes

from fairlead.fabric.mrc.profile import Profile
from fairlead.lab.faults.apply import heal, inject
from fairlead.spec import usid

PLANES = 4
LOSSES = {"0": None, "0.1": 0.95, "1": 0.60}
"""Percent -> the least share of the goodput without loss that is aimed at."""
EVICT_PACKETS = 32
TIMEOUT_NS = Profile.software(1_000_000).rto_ns
GAP = 20
"""An entropy value that is silent for so many times its usual distance between packets has been left."""
SENDERS, RECEIVER = ("n0", "n1", "n2", "n3", "n5", "n6", "n7"), "n8"
VICTIM, VICTIMS_PEER = "n4", "n9"
"""Five hosts a T0: the victim shares T0s, T1s and links between them with the seven, and no host port."""
MARGIN_NS = 500_000_000


# ---- loss on every plane ---------------------------------------------------------------------------------------------


def loss(rounds: int, seconds: float, rate: int) -> list[str]:
    name, found = f"fl{os.getpid()}", defaultdict[str, list[float]](list)
    with a_lab(name, PLANES, rate) as file:
        for _ in range(rounds):
            for percent in LOSSES:
                if percent != "0":
                    inject(name, "loss", f"p*/{THERE}", {"percent": percent})
                found[percent].append(mrc(file, seconds) / 1e6)
                heal(name, "all")
                print(f"loss {percent:>3} % {found[percent][-1]:8.0f} Mb/s   load {os.getloadavg()[0]:.1f}", flush=True)
    rows = ["| loss on all planes | median Mb/s | lowest | of none, median | aim |", "|---|---:|---:|---:|---:|"]
    for percent, rates in found.items():
        share = statistics.median(a / b for a, b in zip(rates, found["0"], strict=True))
        aim = LOSSES[percent]
        told = f"{share:.1%} | {'' if aim is None else f'{aim:.0%}'}"
        rows.append(f"| {percent} % | {statistics.median(rates):.0f} | {min(rates):.0f} | {told} |")
    return rows


# ---- one path that loses a fifth -------------------------------------------------------------------------------------


def left_after(own: list[Write], arrived: set[tuple[int, int]], asked_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Packets and ns from the first lost one to the last before an entropy value was left; None if it never was.

    A packet that is sent again has its number again, and another label if it takes another way.
    """
    before = [b.time_ns - a.time_ns for a, b in pairwise(w for w in own if w.time_ns < asked_ns)]
    if not before:
        return None
    gap = GAP * statistics.median(before)
    after = [w for w in own if asked_ns <= w.time_ns < end_ns]
    first = next((i for i, w in enumerate(after) if (w.psn, w.label) not in arrived), None)
    if first is None:
        return None
    times = [w.time_ns for w in after[first:]] + [end_ns]
    last = next((i for i, (a, b) in enumerate(pairwise(times)) if b - a > gap), None)
    return None if last is None else (last + 1, times[last] - times[0])


def path(rounds: int, rate: int) -> list[str]:
    name, hold_s = f"fl{os.getpid()}", 0.7
    lefts: list[tuple[int, int] | None] = []
    shares: list[float] = []
    with a_lab(name, PLANES, rate) as file, ExitStack() as stack:
        devices = devices_of(name)
        seconds = 6 + 2.2 * hold_s * rounds
        out = stack.enter_context(sniffed(name, HERE, file.parent / "out.pcap", "out"))
        into = stack.enter_context(sniffed(name, THERE, file.parent / "in.pcap"))
        words = ["fabric", "perf", HERE, THERE, "-f", str(file), "--duration", str(seconds), "-q", "--json"]
        perf = stack.enter_context(subprocess.Popen([*FAIRLEAD, *words], stdout=subprocess.PIPE, text=True))
        until = time.monotonic() + 120
        while (file.parent / "in.pcap").stat().st_size < 1 << 20:
            assert perf.poll() is None, perf.stdout.read()
            assert time.monotonic() < until, "no traffic"
            time.sleep(0.05)
        faults = []
        for i in range(rounds):
            time.sleep(hold_s)
            plane, t1 = i % PLANES, i // PLANES % 2
            asked = time.time_ns()
            one = inject(name, "loss", f"p{plane}/t0-0/t1-{t1}", {"percent": "20", "side": "up"})
            time.sleep(hold_s)
            faults.append((plane, t1, asked, time.time_ns()))
            heal(name, str(one.id))
        answer = json.loads(perf.communicate(timeout=seconds + 120)[0])
        assert answer["verdict"] == "pass", answer
        sent, came = list(writes(out())), list(writes(into()))
    arrived = {(w.psn, w.label) for w in came}
    for plane, t1, asked, end in faults:
        to = usid.path_address(plane, 0, t1, 1, 1).packed
        by_label = defaultdict[int, list[Write]](list)
        for w in sent:
            if w.to == to and asked - hold_s * 0.9e9 < w.time_ns < end:
                by_label[w.label].append(w)
        lefts += [left_after(own, arrived, asked, end) for own in by_label.values()]
        times = [w.time_ns for w in came if w.device == devices[plane]]
        before = sum(asked - 3e8 < t < asked for t in times)
        shares.append(sum(end - 3e8 < t < end for t in times) / before if before else 0.0)
    known = sorted(one for one in lefts if one)
    good = sum(num <= EVICT_PACKETS or took <= TIMEOUT_NS for num, took in known)
    nums, took_ms = sorted(n for n, _ in known), sorted(t / 1e6 for _, t in known)
    return [
        f"path: {len(faults)} faults, {len(lefts)} entropy values on such a path, {len(known)} left, {good} in time",
        f"packets from the first lost: median {statistics.median(nums):.0f}, worst {nums[-1]}",
        f"ms from the first lost: median {statistics.median(took_ms):.1f}, worst {took_ms[-1]:.1f}",
        f"its plane then, of before: median {statistics.median(shares):.0%}, lowest {min(shares):.0%}",
    ]


# ---- seven to one ----------------------------------------------------------------------------------------------------


def rates(captured: list[Write], topology: dict[bytes, str]) -> dict[str, float]:
    """Mb/s of each source while all of them send; a packet that comes again does not count."""
    first, last = dict[str, int](), dict[str, int]()
    for w in captured:
        first.setdefault(topology[w.source], w.time_ns)
        last[topology[w.source]] = w.time_ns
    begin, end = max(first.values()) + MARGIN_NS, min(last.values()) - MARGIN_NS
    assert end > begin, "the flows never ran together: give more --seconds"
    seen: dict[str, set[int]] = defaultdict(set)
    for w in captured:
        if begin <= w.time_ns < end:
            seen[topology[w.source]].add(w.psn)
    return {source: len(psns) * 4096 * 8e3 / (end - begin) for source, psns in seen.items()}


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))


def flows(name: str, file: Path, pairs: list[tuple[str, str]], seconds: float) -> dict[str, float]:
    """Mb/s of each writer while all write; each has its own pair of programs."""
    topology = {usid.port_address(plane, i // 5, i % 5).packed: f"n{i}" for plane in range(PLANES) for i in range(10)}
    with ExitStack() as stack:
        captures = [
            stack.enter_context(sniffed(name, to, file.parent / f"{to}.pcap")) for to in sorted({b for _, b in pairs})
        ]
        perfs = []
        for source, to in pairs:
            words = ["fabric", "perf", source, to, "-f", str(file), "--duration", str(seconds), "-q", "--json"]
            run = subprocess.Popen([*FAIRLEAD, *words, "--message", "65536"], stdout=subprocess.PIPE, text=True)
            perfs.append(stack.enter_context(run))
        for one in perfs:
            answer = json.loads(one.communicate(timeout=seconds + 240)[0])
            assert answer["verdict"] == "pass", answer
        packets = sorted(w for capture in captures for w in writes(capture()))
    return rates(packets, topology)


def incast(seconds: float, rate: int) -> list[str]:
    name, seven = f"fl{os.getpid()}", [(one, RECEIVER) for one in SENDERS]
    with a_lab(name, PLANES, rate, 10) as file:
        alone = flows(name, file, [(VICTIM, VICTIMS_PEER)], 5)[VICTIM]
        print(f"victim alone {alone:.1f} Mb/s   load {os.getloadavg()[0]:.1f}", flush=True)
        found = flows(name, file, [*seven, (VICTIM, VICTIMS_PEER)], seconds)
    own = [found[one] for one in SENDERS]
    return [
        f"incast 7:1, {PLANES} planes of {rate} Mb/s: {' '.join(f'{v:.1f}' for v in own)} Mb/s",
        f"in all {sum(own):.0f} Mb/s, Jain {jain(own):.4f}",
        f"victim {found[VICTIM]:.1f} Mb/s, alone {alone:.1f}: {found[VICTIM] / alone:.1%}",
    ]


def trim(seconds: float, rate: int) -> list[str]:
    name, nums = f"fl{os.getpid()}", Counter[str]()
    with a_lab(name, PLANES, rate, 10, "trim_kib = 32\n") as file, ExitStack() as stack:
        perfs = []
        for source in SENDERS:
            words = ["fabric", "perf", source, RECEIVER, "-f", str(file), "--duration", str(seconds), "-q", "--json"]
            words += ["--message", "65536", "--trim"]
            perfs.append(stack.enter_context(subprocess.Popen([*FAIRLEAD, *words], stdout=subprocess.PIPE, text=True)))
        for source, one in zip(SENDERS, perfs, strict=True):
            answer = json.loads(one.communicate(timeout=seconds + 240)[0])
            assert answer["verdict"] == "pass", answer
            nums += answer["sums"][source]["counters"]
    told = ", ".join(f"{kind} {num:,}" for kind, num in sorted(nums.items()))
    return [
        f"trim at 32 KiB, 7:1, {PLANES} planes of {rate} Mb/s: {told}",
        f"{nums['resent'] / nums['nacks']:.2f} a NACK",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="loss,path,incast")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", type=int, default=16, help="of part `path`")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rate", type=int, default=100, help="Mb/s of each link; incast and trim take a fifth")
    asked = parser.parse_args()
    runs = {
        "loss": lambda: loss(asked.rounds, asked.seconds, asked.rate),
        "path": lambda: path(asked.faults, asked.rate),
        "incast": lambda: incast(5 * asked.seconds, asked.rate // 5),
        "trim": lambda: trim(asked.seconds, asked.rate // 5),
    }
    told = [line for part in asked.parts.split(",") for line in ["", *runs[part]()]]
    print(
        f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}, {asked.rate} Mb/s a link"
    )
    print("\n".join(told))


if __name__ == "__main__":
    main()
