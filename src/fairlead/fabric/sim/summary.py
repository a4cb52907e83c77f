"""Results for a terminal and for JSON.

Knows: wording and units. Must not know: how results came about.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.base.table import table
from fairlead.base.units import duration, rate, size
from fairlead.fabric.sim.results import Part, Results
from fairlead.fabric.sim.runner import Ended, RunEnd
from fairlead.fabric.sim.shape import Shape

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
ENDED = {
    Ended.DONE: "every message is complete",
    Ended.TIME: "the time was up",
    Ended.STALLED: "nothing could happen any more",
    Ended.INTERRUPTED: "interrupted; what follows covers the part that was played",
}


def quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    """Minimum, median, p90, p99 and maximum."""
    if not len(values):
        return {}
    names = ("min", "p50", "p90", "p99", "max")
    return {n: round(float(v), 3) for n, v in zip(names, np.quantile(values, QUANTILES), strict=True)}


def slowdown(part: Part) -> NDArray[np.float64]:
    """Completion times over the least that each message could take between its two NICs."""
    return part.fct_us / part.ideal_us


def text(r: Results) -> str:
    """What a person reads."""
    shape, c = r.setup.shape, r.counters
    title = r.setup.scenario.title
    lines = [title, ""] if title else []
    lines += [
        f"fabric     {_size_of(shape)}",
        f"transport  {_transport(r)}",
        f"played     {duration(r.end.time_ps / 1e12)} of the fabric in {_pace(r.end)}",
        f"ended      {ENDED[r.end.ended]}",
        "",
        _flow_table(r),
        "",
        f"goodput    {rate(r.mean_goodput)} in all, {rate(r.mean_goodput / max(1, _senders(r)))} a sender",
        f"packets    {c.new:,} new, {c.retransmitted:,} again",
        f"answers    {c.sacks:,} SACKs, {c.nacks:,} NACKs, {c.timeouts:,} timeouts",
        f"switches   {c.marked:,} marked, {c.trimmed:,} trimmed, {c.dropped:,} dropped, {c.lost:,} lost on links",
        "queues     " + ", ".join(f"{name} {size(num)}" for name, num in r.max_queue.items()) + " at most",
    ]
    if r.ev_states:
        lines.append("paths      " + ", ".join(f"{num:,} {name}" for name, num in r.ev_states.items() if num))
    if c.failed_flows:
        lines.append(f"failed     {c.failed_flows:,} queue pairs went to the error state")
    if r.steps:
        lines += ["", _step_table(r)]
    return "\n".join(lines)


def _size_of(shape: Shape) -> str:
    ports = f"{shape.num_switches:,} switches, {shape.num_ports:,} queues"
    return f"{shape.num_nics:,} NICs x {shape.planes} planes, {ports}"


def _pace(played: RunEnd) -> str:
    rate = played.hops / max(played.wall_s, 1e-9) / 1e6
    return f"{duration(played.wall_s)}, {played.hops:,} hops, {rate:.2f} M/s"


def _transport(r: Results) -> str:
    t = r.setup.scenario.transport
    words = [t.kind, t.paths, t.congestion if t.kind != "roce" else "", "PFC" if r.setup.queues.xoff else ""]
    routing = "hashed uplinks" if r.setup.options.hashed else "source-routed"
    return ", ".join([*filter(None, words), routing])


def _senders(r: Results) -> int:
    return len(np.unique(r.setup.workload.src))


def _flow_table(r: Results) -> str:
    header = ["TRAFFIC", "DONE", "FCT MIN (us)", "P50", "P99", "MAX", "ALL (us)", "BOUND", "SLOWDOWN"]
    return table(header, [flow_row(part) for part in r.parts])


def flow_row(part: Part) -> list[str]:
    """A part of the traffic: its messages, and how long all of it took beside what no fabric could beat."""
    q = quantiles(part.fct_us)
    done = f"{part.done:,}" if part.done == part.messages else f"{part.done:,} of {part.messages:,}"
    times = [f"{q[n]:.1f}" if q else "-" for n in ("min", "p50", "p99", "max")]
    is_whole = part.done == part.messages
    whole = [f"{part.took_us:.1f}", f"{part.bound_us:.1f}", f"{part.slowdown:.3f}"]
    return [part.name, done, *times, *(whole if is_whole else ["-", whole[1], "-"])]


def _step_table(r: Results) -> str:
    rows = [[s.number, f"{s.begin_us:.1f}", f"{s.end_us:.1f}", f"{s.end_us - s.begin_us:.1f}"] for s in r.steps]
    return table(["STEP", "BEGIN (us)", "END", "TIME"], rows)


def body(r: Results) -> dict[str, Any]:
    """The JSON document's own keys."""
    c, shape = r.counters, r.setup.shape
    return {
        "title": r.setup.scenario.title,
        "ended": str(r.end.ended),
        "nics": shape.num_nics,
        "planes": shape.planes,
        "switches": shape.num_switches,
        "queues": shape.num_ports,
        "time_us": r.end.time_ps / 1e6,
        "wall_s": round(r.end.wall_s, 3),
        "hops": r.end.hops,
        "hops_per_s": round(r.end.hops / max(r.end.wall_s, 1e-9)),
        "memory_estimate_bytes": sum(r.setup.estimate.values()),
        "goodput_bits_per_s": round(r.mean_goodput),
        "goodput": {
            "bin_us": r.bin_us,
            "planes_bits_per_s": [[round(v) for v in plane] for plane in r.goodput_bits_per_s.tolist()],
        },
        "queues_over_time": {
            "bin_us": r.bin_us,
            "deepest_bytes": {name: values.tolist() for name, values in r.queue_bytes.items()},
        },
        "traffic": [
            {
                "name": p.name,
                "messages": p.messages,
                "done": p.done,
                "payload_bytes": p.payload_bytes,
                "fct_us": quantiles(p.fct_us),
                "placed_us": quantiles(p.placed_us),
                "message_slowdown": quantiles(slowdown(p)),
                "took_us": p.took_us if p.done == p.messages else None,
                "bound_us": p.bound_us,
                "slowdown": p.slowdown if p.done == p.messages else None,
            }
            for p in r.parts
        ],
        "packets": asdict(c),
        "max_queue_bytes": r.max_queue,
        "ev_states": r.ev_states,
        "steps": [
            {"number": s.number, "begin_us": s.begin_us, "end_us": s.end_us if s.end_us == s.end_us else None}
            for s in r.steps
        ],
    }
