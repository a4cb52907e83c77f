"""What a run shows: completion times, goodput, queues, losses, paths, training steps.

Knows: where the engine leaves its counts. Must not know: output formats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairlead.fabric.mrc import layout as mrc
from fairlead.fabric.mrc.rows import AREA_OFFSETS, Requestor, place
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import roce
from fairlead.fabric.sim.engine.depths import KINDS
from fairlead.fabric.sim.engine.memory import World
from fairlead.fabric.sim.runner import Ended, RunEnd
from fairlead.fabric.sim.setup import Setup

MAX_SPANS = 20_000
"""Messages whose times are kept one by one."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Counters:
    """Packets and what became of them. NIC packets = delivered + dropped + lost + refused + under way."""

    new: int
    retransmitted: int
    sacks: int
    nacks: int
    timeouts: int
    sent_by_nics: int
    delivered: int
    trimmed: int
    marked: int
    dropped: int
    lost: int
    refused: int
    failed_flows: int


@dataclass(frozen=True)
class Part:
    """The messages of one [[traffic]] table."""

    name: str
    messages: int
    done: int
    fct_us: Floats
    """Of complete messages, sorted: from when it might go to when the sender knew."""
    placed_us: Floats
    """The same, to when the last byte was placed."""
    ideal_us: Floats
    """The least that each could take: alone, between its two NICs."""
    payload_bytes: int
    took_us: float
    """From when the first might go to when the last was known to be complete; NaN where some are not."""
    bound_us: float
    """No fabric of these links could be faster: what the busiest NIC must send or take at its line rate."""
    arrivals_us: Floats
    """When each complete message was placed, in order; on the clock of the run."""
    arrivals_bytes: Ints

    @property
    def slowdown(self) -> float:
        """Time taken over the bound."""
        return self.took_us / self.bound_us


@dataclass(frozen=True)
class Step:
    """A training step."""

    number: int
    begin_us: float
    """When the first NIC began to compute."""
    end_us: float
    """When the last NIC had its result; NaN if none has."""


@dataclass(frozen=True)
class Results:
    """Everything that is told about a run."""

    setup: Setup
    end: RunEnd
    parts: tuple[Part, ...]
    counters: Counters
    goodput_bits_per_s: Floats
    """[plane, bin]"""
    bin_us: float
    max_queue: dict[str, int]
    """Deepest data queue of each tier, bytes."""
    queue_bytes: dict[str, Ints]
    """The same for each bin, as it stood at the ends of windows."""
    ev_states: dict[str, int]
    """Entropy values by state, over all queue pairs at the end."""
    steps: tuple[Step, ...]
    spans: Ints
    """[message, (sender, receiver, bytes, begun ps, complete ps or -1)], of the first MAX_SPANS that have begun."""

    @property
    def mean_goodput(self) -> float:
        """Payload bits per second, all NICs together, from start to end."""
        total = sum(p.payload_bytes for p in self.parts)
        return total * 8e12 / max(1, self.end.time_ps)


def collect(setup: Setup, world: World, played: RunEnd) -> Results:
    """Read a world after its run (or in the middle of it)."""
    if played.ended is Ended.DONE:  # the engine notices some windows later
        played = replace(played, time_ps=int(world.tables["messages"][:, at.MS_ACKED].max()))
    goodput, bin_us = _goodput(setup, world, played)
    return Results(
        setup=setup,
        end=played,
        parts=_parts(setup, world),
        counters=_counters(setup, world),
        goodput_bits_per_s=goodput,
        bin_us=bin_us,
        max_queue=_max_queue(setup, world),
        queue_bytes=_queue_bytes(setup, world, goodput.shape[1]),
        ev_states=_ev_states(setup, world),
        steps=_steps(setup, world),
        spans=_spans(setup, world, played),
    )


def _spans(setup: Setup, world: World, played: RunEnd) -> Ints:
    """From whom to whom messages went, their bytes, and when they began and were known to be complete, ps."""
    work = setup.workload
    messages = world.tables["messages"][world.rows.message_row]
    begun = np.flatnonzero(messages[:, at.MS_DUE] <= played.time_ps)
    first = begun[np.argsort(messages[begun, at.MS_DUE], kind="stable")[:MAX_SPANS]]
    flow, mine = work.flow[first], messages[first]
    columns = (work.src[flow], work.dst[flow], mine[:, at.MS_BYTES], mine[:, at.MS_DUE], mine[:, at.MS_ACKED])
    return np.stack(columns, axis=1)


def _parts(setup: Setup, world: World) -> tuple[Part, ...]:
    work, rows = setup.workload, world.rows
    messages = world.tables["messages"][rows.message_row]
    group = work.group[work.flow]
    placed_bytes = world.tables["receivers"][:, at.RC_BYTES]
    by_flow = np.empty(work.num_flows, dtype=np.int64)
    by_flow[:] = placed_bytes[world.tables["flows"][rows.flow_row, at.FL_RECEIVER]]
    found = []
    for number, part in enumerate(setup.scenario.traffic):
        mine = messages[group == number]
        flow = work.flow[group == number][mine[:, at.MS_ACKED] >= 0]
        done = mine[mine[:, at.MS_ACKED] >= 0]
        size = done[:, at.MS_BYTES]
        begun = done[:, at.MS_DUE]
        order = np.argsort(done[:, at.MS_ACKED] - begun, kind="stable")
        by_time = np.argsort(done[:, at.MS_PLACED], kind="stable")
        took = (done[:, at.MS_ACKED].max() - begun.min()) / 1e6 if len(done) == len(mine) else float("nan")
        found.append(
            Part(
                name=part.name or part.kind,
                messages=len(mine),
                done=len(done),
                fct_us=((done[:, at.MS_ACKED] - begun) / 1e6)[order],
                placed_us=((done[:, at.MS_PLACED] - begun) / 1e6)[order],
                ideal_us=ideal_us(setup, work.src[flow], work.dst[flow], size)[order],
                payload_bytes=int(by_flow[work.group == number].sum()),
                took_us=float(took),
                bound_us=_bound_us(setup, group == number),
                arrivals_us=(done[:, at.MS_PLACED] / 1e6)[by_time],
                arrivals_bytes=size[by_time],
            )
        )
    return tuple(found)


def _bound_us(setup: Setup, mine: NDArray[np.bool_]) -> float:
    work, shape = setup.workload, setup.shape
    size, flow = work.size[mine], work.flow[mine]
    wire = size + -(-size // setup.profile.mtu) * setup.options.wire_overhead
    busiest = max(np.bincount(ends[flow], wire).max() for ends in (work.src, work.dst))
    there_and_back = 4 * shape.tiers[0].latency_ns / 1000
    return float(busiest) * shape.tiers[0].fs_per_byte / 1e9 / shape.planes + there_and_back


def ideal_us(setup: Setup, src: Ints, dst: Ints, size: Ints) -> Floats:
    """The least that messages of these sizes take from one NIC to another: nothing else is under way.

    All packets leave by the ports of the NIC, none waits for another on the links behind them, and the answer comes
    back. Of several packets the last is the shortest: it crosses the other links after all have left, the one before
    it begins to do so as much earlier as the last takes to leave.
    """
    profile, shape = setup.profile, setup.shape
    packets = -(-size // profile.mtu)
    wire = size + packets * setup.options.wire_overhead
    full = profile.mtu + setup.options.wire_overhead
    last = wire - (packets - 1) * full
    answer = min(setup.options.kinds.sizes[kind] for kind in (at.KIND_SACK, at.KIND_ACK))
    per_byte = [tier.fs_per_byte / 1e9 for tier in shape.tiers]
    leaves = wire * per_byte[0] / np.minimum(shape.planes, packets)
    climbs = shape.tiers_between(src, dst)
    found = np.empty(len(size), dtype=np.float64)
    for num_tiers in range(1, shape.num_tiers + 1):
        mine = climbs == num_tiers
        back = 2 * sum(per_byte[:num_tiers])  # us for a byte over all links
        onward = back - per_byte[0]
        behind = last[mine] * onward
        before = np.where(packets[mine] > 1, full * onward - last[mine] * per_byte[0], 0)
        travel = 2 * shape.one_way_ns(num_tiers) / 1000 + answer * back
        found[mine] = leaves[mine] + np.maximum(behind, before) + travel
    return found


def _counters(setup: Setup, world: World) -> Counters:
    counts = world.tables["counts"].sum(axis=0, dtype=np.int64)
    threads = world.tables["threads"].sum(axis=0)
    ports = world.tables["ports"]
    common = {
        "sent_by_nics": int(ports[setup.shape.nic_port0 :, at.PT_SENT].sum(dtype=np.int64)),
        "delivered": int(threads[at.TH_DELIVERED] - threads[at.TH_REFUSED]),
        "refused": int(threads[at.TH_REFUSED]),
        "trimmed": int(counts[at.CN_TRIMS]) if setup.queues.trim else 0,
        "marked": int(counts[at.CN_MARKS]),
        "dropped": int(counts[at.CN_DROPS]),
        "lost": int(counts[at.CN_LOST]),
    }
    if setup.options.roce:
        tx = world.tables["roce_tx"].sum(axis=0)
        return Counters(
            new=int(tx[roce.RT_NUM_NEW]), retransmitted=int(tx[roce.RT_NUM_RTX]), sacks=int(tx[roce.RT_NUM_ACKS]),
            nacks=int(tx[roce.RT_NUM_NAKS]), timeouts=int(tx[roce.RT_NUM_TIMEOUTS]), failed_flows=0, **common,
        )  # fmt: skip
    tx = requestors(world)
    total = {
        name: int(tx[:, place(Requestor, field)].sum())
        for name, field in (
            ("new", "num_new"),
            ("retransmitted", "num_rtx"),
            ("sacks", "num_sacks"),
            ("nacks", "num_nacks"),
            ("timeouts", "num_timeouts"),
        )
    }
    return Counters(failed_flows=int((tx[:, place(Requestor, "error")] != 0).sum()), **total, **common)


def requestors(world: World) -> Ints:
    """The requestor rows as a table; a view."""
    s = world.state
    return s.m[s.tx_base : s.tx_base + s.num_tx * s.tx_stride].reshape(s.num_tx, s.tx_stride)


def _goodput(setup: Setup, world: World, played: RunEnd) -> tuple[Floats, float]:
    bins = world.tables["goodput"].reshape(setup.options.threads, setup.shape.planes, -1).sum(axis=0)
    bin_ps = int(world.w[at.W_BIN])
    used = max(1, min(bins.shape[1], -(-played.time_ps // bin_ps)))
    return bins[:, :used] * (8e12 / bin_ps), bin_ps / 1e6


def _max_queue(setup: Setup, world: World) -> dict[str, int]:
    shape, deepest = setup.shape, world.tables["ports"][: setup.shape.nic_port0, at.PT_MAX_DATA]
    found: dict[str, int] = {}
    for plane in range(shape.planes):
        first = plane * shape.plane_ports
        t0 = deepest[first : first + shape.t0 * shape.t0_radix].reshape(shape.t0, shape.t0_radix)
        first += shape.t0 * shape.t0_radix
        t1 = deepest[first : first + shape.t1 * shape.t1_radix]
        cores = deepest[first + shape.t1 * shape.t1_radix : (plane + 1) * shape.plane_ports]
        for name, values in (
            ("T0 to NIC", t0[:, : shape.hosts]),
            ("T0 up", t0[:, shape.hosts :]),
            ("T1", t1),
            ("core", cores),
        ):
            if values.size:
                found[name] = max(found.get(name, 0), int(values.max()))
    return found


def _queue_bytes(setup: Setup, world: World, num_bins: int) -> dict[str, Ints]:
    record = world.tables["depths"].reshape(setup.options.threads, at.DEPTH_KINDS, -1).max(axis=0)[:, :num_bins]
    kinds = record if setup.shape.cores else record[:-1]
    # what stood still was not played, and a bin in which nothing was played is like the one before
    last = np.maximum.accumulate(np.where(kinds > 0, np.arange(num_bins), 0), axis=1)
    depths = np.maximum(np.take_along_axis(kinds, last, axis=1) - 1, 0)
    return dict(zip(KINDS, depths, strict=False))


def _ev_states(setup: Setup, world: World) -> dict[str, int]:
    if setup.options.roce or setup.profile.path_rule != mrc.PATH_MRC:
        return {}
    rows = requestors(world)
    first = int(world.state.m[world.state.profiles[0] + AREA_OFFSETS["ev_words"]])
    num_words = -(-setup.profile.num_evs // 32)
    sets = rows[:, first : first + num_words * mrc.NUM_EV_WORDS].reshape(len(rows), num_words, mrc.NUM_EV_WORDS)
    ones = np.bitwise_count(sets.astype(np.uint64)).sum(axis=(0, 1))
    counted = {"in rotation": int(ones[mrc.EV_ACTIVE]), "skip": int(ones[mrc.EV_SKIP])}
    counted |= {"assumed bad": int(ones[mrc.EV_BAD]), "denied": int(ones[mrc.EV_DENIED])}
    counted["standby"] = (
        len(rows) * setup.profile.num_evs - counted["in rotation"] - counted["assumed bad"] - counted["denied"]
    )
    return counted


def _steps(setup: Setup, world: World) -> tuple[Step, ...]:
    work = setup.workload
    if not len(work.step):
        return ()
    messages = world.tables["messages"][world.rows.message_row]
    found = []
    begin = 0.0
    for number in range(int(work.step.max()) + 1):
        mine = messages[work.step == number]
        placed = mine[:, at.MS_PLACED]
        end = float(placed.max()) / 1e6 if (placed >= 0).all() else float("nan")
        found.append(Step(number, begin, end))
        begin = end
    return tuple(found)
