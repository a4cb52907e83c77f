"""The two ends of `fairlead fabric perf` as they speak: what they are told, what they say, and what it comes to."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fairlead.base.table import table
from fairlead.base.units import rate, size
from fairlead.cli.output import Answer, session
from fairlead.errors import FabricError, MissingTool
from fairlead.records.border import shown
from fairlead.records.verdict import Verdict
from fairlead.report.prom import Series, metric

if TYPE_CHECKING:
    from fairlead.cluster.live import Live
    from fairlead.records.addressbook import AddressBook, Place

LOOK_S = 1.0
QUIET_S = 75.0
"""Longer than anything an end waits for without a word."""
MAX_LINES = 1000
"""Of an end, beside twice as many as it has intervals, and its tape."""
Number = Annotated[float, Meta(ge=0, le=1e18)]
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]
_Word = Annotated[str, Meta(max_length=2000)]
_Many = Meta(max_length=512)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an end; which fields count depends on `say`."""

    say: Literal["port", "met", "interval", "sum", "done", "seen", "failed", "missing", "metrics", "tape", "taped"]
    port: Annotated[int, Meta(ge=0, le=0xFFFF)] = 0
    planes: _Count = 0
    mtu: _Count = 0
    at_s: Number = 0
    seconds: Number = 0
    num_bytes: _Count = 0
    messages: _Count = 0
    size: _Count = 0
    peak_bps: Number = 0
    histogram: Annotated[tuple[tuple[Number, _Count], ...], Meta(max_length=200)] = ()
    min_us: Number = 0
    mean_us: Number = 0
    stdev_us: Number = 0
    p50_us: Number = 0
    p99_us: Number = 0
    p999_us: Number = 0
    max_us: Number = 0
    resent: _Count = 0
    ways: Annotated[dict[_Word, _Count], Meta(max_length=64)] = {}
    counters: Annotated[dict[_Word, _Count], Meta(max_length=64)] = {}
    qp: _Count = 0
    by_way: Annotated[tuple[tuple[Annotated[int, Meta(ge=0, le=255)], _Word, _Count, _Count], ...], _Many] = ()
    """Port, address, socket, packets."""
    datagrams: Annotated[dict[_Word, _Count], Meta(max_length=64)] = {}
    taped: Annotated[tuple[msgspec.Raw, ...], _Many] = ()
    left_out: _Count = 0
    complete: bool = False
    intact: bool = False
    why: _Word = ""
    error: _Word = ""

    @property
    def bits_per_s(self) -> float:
        """Goodput: payload of messages that were complete."""
        return 8 * self.num_bytes / self.seconds if self.seconds else 0.0


class Ends:
    """The two ends, as they speak."""

    def __init__(self, source: str, target: str, book: AddressBook, wish: Mapping[str, Any]) -> None:
        self.source, self.target, self.book, self.wish = source, target, book, wish
        self.lines: list[dict[str, Any]] = []
        self.sums: dict[tuple[str, int], Said] = {}
        """Node, size -> what it carried."""
        self.seen: dict[str, Said] = {}
        self.met: Said | None = None
        self.done: dict[str, bool] = {}
        self.metrics: dict[str, Said] = {}
        self.left_out: dict[str, int] = {}
        self.num_lines: Counter[str] = Counter()

    def place(self, node: str) -> Place:
        """Where a node is. FabricError for one that could not be read."""
        found = self.book.place(node)
        if found is None or not (found.address or found.ports):
            why = self.book.unread.get(node, "it has no address")
            raise FabricError("fabric/no-place", f"{node}: {why}", hint=f"fairlead probe -w {node}")
        return found

    def run(self, group: Live) -> None:
        """Tell the ends what to do, pass on what they say to each other, show the rest."""
        there = self.place(self.target)
        address = there.management or there.address
        for node, role in ((self.target, "serve"), (self.source, "drive")):
            own = msgspec.to_builtins(self.place(node))
            group.send(json.dumps({**self.wish, "role": role, "address": address, "place": own}), to=node)
        heard = time.monotonic()
        while len(self.seen) < 2:
            line = group.read(LOOK_S)
            if line is None and not group.ended and time.monotonic() - heard < QUIET_S:
                continue
            heard = time.monotonic()
            if line is None:
                raise FabricError("fabric/end-silent", _ended(group), hint="look at the nodes: fairlead probe")
            if line.stream == "stdout":
                self._hear(group, line.node, line.text)
        for node in (self.source, self.target):
            group.send("part", to=node)

    def _hear(self, group: Live, node: str, text: str) -> None:
        self.num_lines[node] += 1
        intervals = self.wish["duration_s"] / self.wish["interval_s"] + len(self.wish["sizes"])
        if self.num_lines[node] > 2 * intervals + self.wish["tape"] + MAX_LINES:
            raise FabricError("fabric/perf-failed", f"{node} talks without end", hint=f"fairlead probe -w {node}")
        try:
            said = msgspec.json.decode(text, type=Said)
        except (msgspec.DecodeError, RecursionError):
            return
        match said.say:
            case "port":
                group.send(json.dumps({"port": said.port}), to=self.source)
            case "met":
                self.met = said
            case "interval":
                self._show(node, said)
            case "sum":
                if said.size in self.wish["sizes"]:
                    self.sums[node, said.size] = said
            case "done":
                self.done[node] = said.complete
                if len(self.done) == 2:
                    for end in (self.source, self.target):
                        group.send("compare", to=end)
            case "seen":
                self.seen[node] = said
            case "metrics":
                self.metrics[node] = said
            case "tape":
                self.taped(node, said)
            case "taped":
                self.left_out[node] = said.left_out
            case "missing":
                raise MissingTool(
                    "fabric/no-transport",
                    f"the Python of {node} has no transport: {shown(said.why)}",
                    hint="install fairlead[fabric] there, or name another Python: `python` of the pool",
                )
            case _:
                ping = f"fairlead fabric ping -w {self.source},{self.target}"
                raise FabricError(
                    "fabric/perf-failed",
                    f"{node}: {shown(said.error or said.why)}",
                    hint=f"what the message says; for every path between them: {ping}",
                )

    def taped(self, node: str, said: Said) -> None:
        """Datagrams that an end wrote down: not asked for here."""

    def metrics_text(self) -> str:
        """Counters of both ends by queue pair, plane and path, for Prometheus."""
        return perf_metrics(
            {node: ([p.rail for p in self.place(node).ports if p.address], said) for node, said in self.metrics.items()}
        )

    def _show(self, node: str, said: Said) -> None:
        self.lines.append({"node": node, **msgspec.to_builtins(said)})
        latency = f"p50 {said.p50_us:,.0f} us, p99 {said.p99_us:,.0f} us"
        many = f"{size(said.size)}  " if len(self.wish["sizes"]) > 1 else ""
        session().note(
            f"{said.at_s:8.2f} s  {node}  {many}{rate(said.bits_per_s)}  {latency}  {said.resent} sent again"
        )

    def answer(self, *, with_histogram: bool = False) -> Answer:
        """What it was."""
        intact = all(said.intact for said in self.seen.values())
        assert self.met is not None
        planes = f"{self.met.planes} planes, packets of {size(self.met.mtu)}"
        text = [*_tables(self.sums), f"{planes}\n{'all bytes as sent' if intact else 'BYTES DIFFER'}"]
        if with_histogram:
            text[2:2] = [_histogram(node, num, said) for (node, num), said in self.sums.items()]
        rows = [
            {"node": node, **msgspec.to_builtins(said), "bits_per_s": said.bits_per_s}
            for (node, _), said in self.sums.items()
        ]
        return Answer(
            schema="fairlead.fabric-perf/1",
            verdict=Verdict.PASS if intact and all(self.done.values()) else Verdict.FAIL,
            text="\n\n".join(text),
            body={
                "source": self.source,
                "target": self.target,
                "planes": self.met.planes,
                "mtu": self.met.mtu,
                "sums": {row["node"]: row for row in rows},
                "sizes": rows,
                "intervals": self.lines,
                "intact": intact,
            },
        )


BANDWIDTH = ("#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]", "MsgRate[Mpps]")
LATENCY = (
    *("#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]"),
    *("99% percentile[usec]", "99.9% percentile[usec]"),
)
"""As perftest heads its columns, of ib_write_bw --report_gbits and ib_write_lat."""
BAR = 40


def _tables(sums: Mapping[tuple[str, int], Said]) -> list[str]:
    """Bandwidth and latency, a row for each node and size."""
    bandwidth, latency = [], []
    for (node, num_bytes), s in sums.items():
        own = [node, str(num_bytes), str(s.messages)]
        rate_ = s.messages / s.seconds / 1e6 if s.seconds else 0.0
        again = f"{s.counters.get('resent', 0):,}"
        bandwidth.append([*own, f"{s.peak_bps / 1e9:.3f}", f"{s.bits_per_s / 1e9:.3f}", f"{rate_:.6f}", again])
        times = (s.min_us, s.max_us, s.p50_us, s.mean_us, s.stdev_us, s.p99_us, s.p999_us)
        latency.append([*own, *(f"{us:.2f}" for us in times)])
    return [table(["FROM", *BANDWIDTH, "SENT AGAIN"], bandwidth), table(["FROM", *LATENCY], latency)]


def _histogram(node: str, num_bytes: int, said: Said) -> str:
    """How many messages took up to how long."""
    most = max((num for _, num in said.histogram), default=1)
    rows = [[f"{us:,.0f}", f"{num:,}", "#" * math.ceil(BAR * num / most)] for us, num in said.histogram]
    return f"{node}, messages of {size(num_bytes)}\n" + table(["UP TO us", "MESSAGES", ""], rows)


def perf_metrics(said: Mapping[str, tuple[Sequence[str], Said]]) -> str:
    """Node -> (names of its ports, its counters) as Prometheus text."""
    by_way: list[Series] = []
    by_qp: list[Series] = []
    datagrams: list[Series] = []
    for node, (rails, one) in said.items():
        own = {"node": node, "qp": f"{one.qp:#x}"}
        for rail, to, source, num in one.by_way:
            name = rails[rail] if rail < len(rails) else str(rail)
            by_way.append(({**own, "plane": name, "path": to, "source": str(source)}, num))
        by_qp += [({**own, "kind": kind}, num) for kind, num in one.counters.items()]
        datagrams += [({"node": node, "what": what}, num) for what, num in one.datagrams.items()]
    return "".join(
        metric(name, help_, {}, series, "counter")
        for name, help_, series in (
            ("fairlead_mrc_path_packets_total", "Packets sent, by queue pair, plane, path and source port", by_way),
            ("fairlead_mrc_qp_packets_total", "Packets of a queue pair: new, resent, and what was heard", by_qp),
            ("fairlead_mrc_datagrams_total", "Datagrams of an end, by what became of them", datagrams),
        )
    )


def _ended(group: Live) -> str:
    ends = []
    for (node, _), result in group.ended.items():
        words = result.stderr.text.strip().splitlines()[-1:] or [result.error or str(result.state)]
        ends.append(f"{node}: {shown(words[0])}")
    return "; ".join(ends) or f"no end has said anything for {QUIET_S:.0f} s"
