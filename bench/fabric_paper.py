"""Each published MRC experiment beside the simulator's run of its example, and the closed-form bound.

A row is the published words, one figure that puts them to the test, and the range in which the words are true of it.

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


def play(name: str, *, marks: bool = True, **changes) -> sim.Results:
    """Run an example; `changes` go to its first traffic, or to each with the same key where the value is a tuple.

    Without `marks` no switch marks a packet (ECN).
    """
    scenario = sim.load(EXAMPLES / f"{name}.toml")
    scenario = replace(scenario, queues=replace(scenario.queues, ecn=marks))
    parts = list(scenario.traffic)
    for key, value in changes.items():
        values = value if isinstance(value, tuple) else (value,)
        for i, one in enumerate(values):
            parts[i] = replace(parts[i], **{key: one})
    return sim.simulate(replace(scenario, traffic=tuple(parts)), EXAMPLES)


@dataclass(frozen=True)
class Row:
    """One line of the table: `value` is the figure, and the published words are true of it from `low` to `high`."""

    experiment: str
    published: str
    figure: str
    low: float
    high: float
    value: float
    bound: str = ""
    beside: str = ""
    """What else the run showed."""

    @property
    def holds(self) -> bool:
        """Whether the published words are true of ours. A figure that is no number fails."""
        return self.low <= self.value <= self.high

    @property
    def cells(self) -> list[str]:
        """The line, as text."""
        within = f"{self.low:g} to {self.high:g}" if self.high < ANY else f"at least {self.low:g}"
        ours = f"{self.value:.3g}" + (f"; {self.beside}" if self.beside else "")
        return [self.experiment, self.published, self.figure, within, self.bound, ours, "yes" if self.holds else "NO"]


ANY = float("inf")
LINE_400 = 400 * 4096 / 4192


def share(r: sim.Results, begin_us: float, end_us: float) -> float:
    """Goodput between two times, as a share of the line rate of all senders."""
    bins = r.goodput_bits_per_s[:, round(begin_us / r.bin_us) : round(end_us / r.bin_us)]
    senders = len(np.unique(r.setup.workload.src))
    return float(bins.sum(axis=0).mean() / (r.setup.nic_bits_per_s * senders * r.setup.payload_share))


def worst_share(r: sim.Results, begin_us: float, end_us: float, window_us: float = 100.0) -> float:
    """The least share in any window of this length, one after the other."""
    return min(share(r, at, at + window_us) for at in np.arange(begin_us, end_us - window_us, window_us))


def settles(r: sim.Results, at_us: float, level: float) -> float:
    """How long after a fault the goodput first stays within 3 % of a level for 100 us."""
    senders = len(np.unique(r.setup.workload.src))
    rate = r.goodput_bits_per_s.sum(axis=0) / (r.setup.nic_bits_per_s * senders * r.setup.payload_share)
    first, window = round(at_us / r.bin_us), max(1, round(100 / r.bin_us))
    for start in range(first, len(rate) - window):
        if abs(rate[start : start + window].mean() - level) < 0.03 * level:
            return (start - first + 1) * r.bin_us
    return float("nan")


def arriving_gbps(r: sim.Results, part: int, begin_us: float, end_us: float) -> float:
    """Payload of the messages of a part that were complete between two times, as a rate."""
    times, sizes = r.parts[part].arrivals_us, r.parts[part].arrivals_bytes
    return float(sizes[(times >= begin_us) & (times < end_us)].sum()) * 8e-3 / (end_us - begin_us)


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


def lowest_gbps(r: sim.Results, part: int, until_us: float, window_us: float = 1000.0) -> float:
    """The least that arrived of a part in any window of this length, after the first, as a rate."""
    times, sizes = r.parts[part].arrivals_us, r.parts[part].arrivals_bytes
    edges = np.arange(window_us, until_us, window_us)
    in_each = np.histogram(times, bins=edges, weights=sizes)[0]
    return float(in_each.min()) * 8e-3 / window_us if len(in_each) else float("nan")


def switches() -> Iterable[Row]:
    r = play("t0-down")
    before, after = share(r, 500, 1500), share(r, 2000, 4000)
    yield Row(
        "T0 switch down", "steady -100 of 800 Gb/s", "rate after, of the rate before", 0.865, 0.885, after / before,
        "7/8 = 0.875", f"steady within {settles(r, 1500, after):.0f} us",
    )  # fmt: skip
    r = play("t1-down")
    before, down, back = share(r, 500, 1500), share(r, 1700, 3000), share(r, 3100, 4000)
    yield Row(
        "T1 switch down and back", "no loss in the steady state", "least rate since, of the rate before", 0.99, ANY,
        min(down, back) / before, "1", f"{r.counters.dropped} packets dropped",
    )  # fmt: skip


def links() -> Iterable[Row]:
    r = play("nic-links-flap")
    before, down, back = share(r, 500, 1000), share(r, 1100, 2000), share(r, 2200, 4000)
    yield Row(
        "4 of 8 NIC links flap", "about half at once", "rate meanwhile, of the rate before", 0.45, 0.55, down / before,
        "4/8 = 0.5", f"within {settles(r, 1000, down):.0f} us",
    )  # fmt: skip
    yield Row(
        "4 of 8 NIC links come back", "quick full recovery", "rate after, of the rate before", 0.99, ANY, back / before,
        "1", f"within {settles(r, 2000, before):.0f} us",
    )  # fmt: skip
    r = play("t0-t1-links")
    before, during, after = share(r, 500, 1000), share(r, 1000, 3000), share(r, 3100, 4000)
    yield Row(
        "20 T0-T1 links down one by one", "minimal effect (< 1-2 %)", "least rate since, of the rate before", 0.98, ANY,
        min(during, after) / before, "1: 12 of 32 uplinks are left",
        f"{during / before:.3f} while they go, {after / before:.3f} after; worst 100 us "
        f"{worst_share(r, 1000, 4000) / before:.3f}; {r.counters.dropped} packets dropped",
    )  # fmt: skip
    r = play("links-3-of-4")
    full, single = (arriving_gbps(r, part, 5000, 7000) for part in (0, 1))
    yield Row(
        "3 of 4 T0-T1 links down, all NICs of the rack send", "follows the capacity left", "Gb/s both ways", 700, 800,
        full, f"2 x {LINE_400:.0f}", f"before {arriving_gbps(r, 0, 300, 1000):.0f}",
    )  # fmt: skip
    yield Row(
        "3 of 4 T0-T1 links down, one NIC of the rack sends", "no dip where it suffices", "Gb/s", 0.97 * LINE_400, 400,
        single, f"{LINE_400:.0f}", f"before {arriving_gbps(r, 1, 300, 1000):.0f}",
    )  # fmt: skip


def start() -> Iterable[Row]:
    r = play("start-without-denylist")
    flows = len(np.unique(r.setup.workload.flow))
    yield Row(
        "start without a denylist, 1 % of links dead", "< 5 losses a queue pair", "sent again a queue pair", 0, 5,
        r.counters.retransmitted / flows, "", f"with SACKs {r.counters.dropped / flows:.0f} dropped a queue pair",
    )  # fmt: skip


def permutation() -> Iterable[Row]:
    r = play("permutation-16")
    rate = arriving_gbps(r, 0, 300, 1800) / r.setup.shape.num_nics
    yield Row("permutation of 16 NICs, MRC", "about 390 of 400 Gb/s", "Gb/s a NIC", 380, 400, rate, f"{LINE_400:.0f}")


def loss() -> Iterable[Row]:
    r = play("ev-loss")
    before, after = share(r, 500, 1000), share(r, 1100, 4000)
    yield Row(
        "one EV of 16 loses 20 %", "EV replaced at once, line rate held", "rate after, of the rate before", 0.99, ANY,
        after / before, "1", f"{r.counters.lost} packets lost in all",
    )  # fmt: skip
    for megabytes in (64, 256):
        clean = busbw_gbps(play("all-reduce-64", size_bytes=megabytes * 10**6))
        for name, published, low, high in (
            ("loss-0.1-percent", "little effect at large messages", 0.95, ANY),
            ("loss-1-percent", "about 1/3 of the rate", 0.25, 0.42),
        ):
            r = play(name, size_bytes=megabytes * 10**6)
            lost = r.setup.scenario.fault[0].loss
            yield Row(
                f"{lost:.1%} loss on all planes, ring all-reduce of {megabytes} MB", published,
                "rate, of the rate without loss", low, high, busbw_gbps(r) / clean, f"{1 - lost:g}",
                f"without loss {clean:.0f} Gb/s; {r.counters.retransmitted:,} sent again",
            )  # fmt: skip


def one_ev(*, marks: bool = True) -> Iterable[Row]:
    r = play("two-flows-one-ev", marks=marks)
    worst = worst_share(r, 100, min(part.took_us for part in r.parts))
    yield Row(
        "two flows forced on one EV", "ECN moves one to the idle EV, both stay near peak",
        "slower of the two, of the line rate", 0.95, ANY, min(rate_gbps(r, part) for part in (0, 1)) / LINE_400, "1",
        f"worst 100 us of both {worst:.2f}; {r.counters.marked / r.counters.new:.1%} of packets marked",
    )  # fmt: skip


def incast() -> Iterable[Row]:
    r = play("incast-victim")
    rates = 20e6 * 8e-3 / r.parts[0].fct_us
    yield Row(
        "7:1 incast, MRC", "even shares", "Jain's index of the seven", 0.99, 1.0, jain(rates),
        f"{LINE_400 / 7:.0f} Gb/s each", f"{rates.min():.0f} to {rates.max():.0f} Gb/s each",
    )  # fmt: skip
    yield Row(
        "its victim, MRC", "untouched", "Gb/s", 0.97 * LINE_400, ANY, rate_gbps(r, 1), f"{LINE_400:.0f}",
    )  # fmt: skip
    # the victim is watched for as long as the incast lasts; DCQCN needs some ten milliseconds to find its rates
    one, _ = _victim("incast-victim-dcqcn", 1)
    yield Row("its victim, RoCE, DCQCN, 1 QP", "-25 %", "of the line rate", 0.65, 0.85, one / LINE_400, "1")
    many, lowest = _victim("incast-victim-dcqcn", 10)
    yield Row("its victim, RoCE, DCQCN, 10 QPs", "less on average", "lost, of what 1 QP loses", 0, 1,
              (LINE_400 - many) / (LINE_400 - one), "0")  # fmt: skip
    yield Row("its victim, RoCE, DCQCN, 10 QPs", "dips of 75 %", "least of any ms, of the line rate", 0, 0.35,
              lowest / LINE_400, "1")  # fmt: skip
    pfc, _ = _victim("incast-victim-pfc", 1)
    yield Row("its victim, RoCE, PFC alone, 1 QP", "30 to 100 of 400 Gb/s", "Gb/s", 30, 100, pfc, f"{LINE_400:.0f}")


def _victim(name: str, qps: int) -> tuple[float, float]:
    """The victim's rate while the incast lasts, and in the worst of its milliseconds, Gb/s."""
    r = play(name, qps=(qps, qps), size_bytes=(200_000_000, 2_500_000), messages=(1, 1200))
    until = r.parts[0].took_us
    arrived = r.parts[1].arrivals_us < until
    mine = float(r.parts[1].arrivals_bytes[arrived].sum()) * 8e-3 / min(until, r.parts[1].arrivals_us[-1])
    return mine, lowest_gbps(r, 1, until)


def collectives() -> Iterable[Row]:
    for name, what, bound in (
        ("all-reduce-64", "64-way ring all-reduce, 64 MB", "391 Gb/s, less a trip each step"),
        ("all-to-all-64", "64-way all-to-all, 1 MB a pair", "391 Gb/s"),
    ):
        mrc = busbw_gbps(play(name))
        one = busbw_gbps(play(f"{name}-roce"))
        many = busbw_gbps(play(f"{name}-roce", qps=16))
        yield Row(f"{what}: MRC, 1 QP", "best", "rate, of the better RoCE", 1.0, ANY, mrc / max(one, many), bound,
                  f"{mrc:.0f} Gb/s")  # fmt: skip
        if name == "all-reduce-64":
            yield Row(f"{what}: RoCE, 1 QP", "about half of MRC", "of MRC", 0.4, 0.6, one / mrc, "", f"{one:.0f} Gb/s")
            yield Row(f"{what}: RoCE, 16 QPs", "between", "from 1 QP (0) to MRC (1)", 0, 1,
                      (many - one) / (mrc - one), "", f"{many:.0f} Gb/s")  # fmt: skip
        else:
            yield Row(f"{what}: RoCE, 1 QP", "behind MRC", "of MRC", 0, 0.99, one / mrc, "", f"{one:.0f} Gb/s")
            yield Row(f"{what}: RoCE, 16 QPs", "slightly behind 1 QP", "of 1 QP", 0.8, 1.0, many / one, "",
                      f"{many:.0f} Gb/s")  # fmt: skip


def send_recv(t0: int) -> Iterable[Row]:
    scenario = sim.load(EXAMPLES / "send-recv-42k.toml")
    r = sim.simulate(replace(scenario, topology=replace(scenario.topology, t0=t0)), EXAMPLES)
    part = r.parts[0]
    # messages after the first, until the first NIC has none left: the steady part
    steady = share(r, part.bound_us * 0.25, part.bound_us * 0.75)
    whole = part.bound_us / part.took_us * r.setup.payload_share
    yield Row(
        f"send/recv between {r.setup.shape.num_nics:,} NICs", "92 of 100 GB/s at 1-2 GB", "of the line rate",
        0.9, 0.94, steady * r.setup.payload_share, f"{r.setup.payload_share:.3f}",
        f"{whole:.3f} over all of the run ({r.end.hops:,} hops in {r.end.wall_s:.0f} s)",
    )  # fmt: skip


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--full", action="store_true")
    ask.add_argument("--only", default="")
    given = ask.parse_args()
    groups: dict[str, Callable[[], Iterable[Row]]] = {
        "switches": switches, "links": links, "start": start, "loss": loss, "one-ev": one_ev,
        "permutation": permutation, "incast": incast, "collectives": collectives,
        "send-recv": lambda: send_recv(164 if given.full else 16),
    }  # fmt: skip
    print("| experiment | published | figure | true within | bound | ours | holds |")
    print("|---|---|---|---|---|---|---|")
    failed = 0
    for name, rows in groups.items():
        for row in rows() if given.only in name else ():
            failed += not row.holds
            print(f"| {' | '.join(row.cells)} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
