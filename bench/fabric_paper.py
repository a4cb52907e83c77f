"""Each published MRC experiment beside the simulator's run of its example, and the closed-form bound.

    python bench/fabric_paper.py            every example; the largest with 4,096 NICs: about two minutes
    python bench/fabric_paper.py --full     send and receive between 41,984 NICs instead, ten times the work
    python bench/fabric_paper.py --only incast

Published: arXiv 2605.04333, section 5. The scenarios are in examples/fabric; what is changed of them stands here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from fairlead.fabric import sim

EXAMPLES = Path(__file__).parents[1] / "examples" / "fabric"


def play(name: str, **changes) -> sim.Results:
    """Run an example; `changes` go to its first traffic, or to each with the same key where the value is a tuple."""
    scenario = sim.load(EXAMPLES / f"{name}.toml")
    parts = list(scenario.traffic)
    for key, value in changes.items():
        values = value if isinstance(value, tuple) else (value,)
        for i, one in enumerate(values):
            parts[i] = replace(parts[i], **{key: one})
    return sim.simulate(replace(scenario, traffic=tuple(parts)), EXAMPLES)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    experiment: str
    published: str
    bound: str
    ours: str
    holds: bool


def share(r: sim.Results, begin_us: float, end_us: float) -> float:
    """Goodput between two times, as a share of the line rate of all senders."""
    bins = r.goodput_bits_per_s[:, round(begin_us / r.bin_us) : round(end_us / r.bin_us)]
    senders = len(np.unique(r.setup.workload.src))
    return float(bins.sum(axis=0).mean() / (r.setup.nic_bits_per_s * senders * r.setup.payload_share))


def settles(r: sim.Results, at_us: float, level: float) -> float:
    """How long after a fault the goodput first stays within 3 % of a level for 100 us."""
    senders = len(np.unique(r.setup.workload.src))
    rate = r.goodput_bits_per_s.sum(axis=0) / (r.setup.nic_bits_per_s * senders * r.setup.payload_share)
    first, window = round(at_us / r.bin_us), max(1, round(100 / r.bin_us))
    for start in range(first, len(rate) - window):
        if abs(rate[start : start + window].mean() - level) < 0.03 * level:
            return (start - first + 1) * r.bin_us
    return float("nan")


def rate_gbps(r: sim.Results, part: int = 0) -> float:
    """Payload of a part over the time it took."""
    return r.parts[part].payload_bytes * 8e-3 / r.parts[part].took_us


def busbw_gbps(r: sim.Results) -> float:
    """What each NIC sent, over the time of the collective: NCCL's bus bandwidth."""
    part = r.parts[0]
    return part.payload_bytes * 8e-3 / len(np.unique(r.setup.workload.src)) / part.took_us


def jain(rates: np.ndarray) -> float:
    """Jain's index of fairness: 1 is even, 1/n is one taking all."""
    return float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))


def switches() -> Iterable[Row]:
    r = play("t0-down")
    before, after = share(r, 500, 1500), share(r, 2000, 4000)
    yield Row(
        "T0 switch down", "steady -100 of 800 Gb/s", "7/8 = 0.875",
        f"{before:.3f} of the line rate, then {after:.3f}; steady within {settles(r, 1500, after):.0f} us",
        abs(after / before - 7 / 8) < 0.01,
    )  # fmt: skip
    r = play("t1-down")
    before, down, back = share(r, 500, 1500), share(r, 1700, 3000), share(r, 3100, 4000)
    yield Row(
        "T1 switch down and back", "no loss in the steady state", "1",
        f"{before:.3f}; down {down:.3f}; back {back:.3f}; {r.counters.dropped} packets dropped",
        min(down, back) > 0.99 * before,
    )  # fmt: skip


def links() -> Iterable[Row]:
    r = play("nic-links-flap")
    before, down, back = share(r, 500, 1000), share(r, 1100, 2000), share(r, 2200, 4000)
    yield Row(
        "4 of 8 NIC links flap", "about half at once, all of it soon after", "4/8 = 0.5",
        f"{before:.3f}; down {down:.3f}; back {back:.3f} within {settles(r, 2000, before):.0f} us",
        abs(down / before - 0.5) < 0.01 and back > 0.99 * before,
    )  # fmt: skip
    r = play("t0-t1-links")
    before, during, after = share(r, 500, 1000), share(r, 1000, 3000), share(r, 3100, 4000)
    yield Row(
        "20 T0-T1 links down one by one", "minimal effect (< 1-2 %)", "1: 12 of 32 uplinks are left",
        f"{before:.3f}; while they go down {during:.3f}; after {after:.3f}; {r.counters.dropped} packets dropped",
        min(during, after) > 0.98 * before,
    )  # fmt: skip


def loss() -> Iterable[Row]:
    r = play("ev-loss")
    before, after = share(r, 500, 1000), share(r, 1100, 4000)
    yield Row(
        "one EV of 16 loses 20 %", "EV replaced at once, line rate held", "1",
        f"{before:.3f}; then {after:.3f}; {r.counters.lost} packets lost in all", after > 0.99 * before,
    )  # fmt: skip
    for megabytes in (64, 256):
        clean = busbw_gbps(play("all-reduce-64", size_bytes=megabytes * 10**6))
        for name, published, low, high in (
            ("loss-0.1-percent", "little effect at large messages", 0.75, 1.0),
            ("loss-1-percent", "about 1/3 of the rate", 0.2, 0.6),
        ):
            r = play(name, size_bytes=megabytes * 10**6)
            kept, lost = busbw_gbps(r) / clean, r.setup.scenario.fault[0].loss
            yield Row(
                f"{lost:.1%} loss on all planes, ring all-reduce of {megabytes} MB", published, f"{1 - lost:g}",
                f"{kept:.2f} of the rate without loss ({clean:.0f} Gb/s); {r.counters.retransmitted:,} sent again",
                low < kept <= high,
            )  # fmt: skip


def incast() -> Iterable[Row]:
    line = 400 * 4096 / 4192
    r = play("incast-victim")
    rates = 20e6 * 8e-3 / r.parts[0].fct_us
    victim = rate_gbps(r, 1)
    yield Row(
        "7:1 incast with a victim, MRC", "even shares, victim untouched",
        f"{line / 7:.0f} Gb/s each, victim {line:.0f} Gb/s",
        f"{rates.min():.0f} to {rates.max():.0f} Gb/s each (Jain {jain(rates):.2f}), victim {victim:.0f}",
        victim > 0.97 * line,
    )  # fmt: skip
    # the victim is watched for as long as the incast lasts; DCQCN needs some ten milliseconds to find its rates
    for name, qps, published, low, high in (
        ("incast-victim-dcqcn", 1, "victim -25 %", 0.55, 0.9),
        ("incast-victim-dcqcn", 10, "less on average, dips of 75 %", 0.75, 1.0),
        ("incast-victim-pfc", 1, "victim 30 to 100 of 400 Gb/s", 0.05, 0.35),
    ):
        r = play(name, qps=(qps, qps), size_bytes=(200_000_000, 2_500_000), messages=(1, 1200))
        until = r.parts[0].took_us
        arrived = r.parts[1].arrivals_us < until
        mine = float(r.parts[1].arrivals_bytes[arrived].sum()) * 8e-3 / min(until, r.parts[1].arrivals_us[-1])
        yield Row(
            f"the same, RoCE, {'PFC alone' if 'pfc' in name else 'DCQCN'}, {qps} QP", published,
            f"victim {line:.0f} Gb/s", f"victim {mine:.0f} Gb/s, {mine / line - 1:+.0%}", low < mine / line < high,
        )  # fmt: skip


def collectives() -> Iterable[Row]:
    for name, what, bound in (
        ("all-reduce-64", "64-way ring all-reduce, 64 MB", "400 x 4096/4192 = 391 Gb/s, less a trip each step"),
        ("all-to-all-64", "64-way all-to-all, 1 MB a pair", "400 x 4096/4192 = 391 Gb/s"),
    ):
        published = {
            "all-reduce-64": ("best", "about half of MRC", "between"),
            "all-to-all-64": ("best", "behind MRC", "slightly behind 1 QP"),
        }[name]
        mrc = busbw_gbps(play(name))
        one = busbw_gbps(play(f"{name}-roce"))
        many = busbw_gbps(play(f"{name}-roce", qps=16))
        yield Row(f"{what}: MRC, 1 QP", published[0], bound, f"{mrc:.0f} Gb/s", mrc > max(one, many))
        yield Row(f"{what}: RoCE, 1 QP", published[1], "", f"{one:.0f} Gb/s, {one / mrc:.2f} of MRC", one < mrc)
        as_published = one < many < mrc if "reduce" in name else many < one
        yield Row(f"{what}: RoCE, 16 QPs", published[2], "", f"{many:.0f} Gb/s, {many / mrc:.2f} of MRC", as_published)


def send_recv(t0: int) -> Iterable[Row]:
    scenario = sim.load(EXAMPLES / "send-recv-42k.toml")
    r = sim.simulate(replace(scenario, topology=replace(scenario.topology, t0=t0)), EXAMPLES)
    part = r.parts[0]
    # messages after the first, until the first NIC has none left: the steady part
    begin, end = part.bound_us * 0.25, part.bound_us * 0.75
    steady = share(r, begin, end)
    whole = part.bound_us / part.took_us * r.setup.payload_share
    yield Row(
        f"send/recv between {r.setup.shape.num_nics:,} NICs", "92 of 100 GB/s at 1-2 GB",
        f"{r.setup.payload_share:.3f}",
        f"{steady * r.setup.payload_share:.3f} of the line rate between a quarter and three quarters of the run, "
        f"{whole:.3f} over all of it ({r.end.hops:,} hops in {r.end.wall_s:.0f} s)",
        steady * r.setup.payload_share > 0.85,
    )  # fmt: skip


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--full", action="store_true")
    ask.add_argument("--only", default="")
    given = ask.parse_args()
    groups: dict[str, Callable[[], Iterable[Row]]] = {
        "switches": switches, "links": links, "loss": loss, "incast": incast, "collectives": collectives,
        "send-recv": lambda: send_recv(164 if given.full else 16),
    }  # fmt: skip
    print("| experiment | published | bound | ours | holds |")
    print("|---|---|---|---|---|")
    failed = 0
    for name, rows in groups.items():
        for row in rows() if given.only in name else ():
            failed += not row.holds
            holds = "yes" if row.holds else "NO"
            print(f"| {row.experiment} | {row.published} | {row.bound} | {row.ours} | {holds} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
