"""`fairlead fabric perf`: what MRC over sockets carries between two nodes, watched while it runs."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from msgspec import Meta

from fairlead.base.nodeset import is_name
from fairlead.base.program import Program
from fairlead.base.table import table
from fairlead.base.units import rate, size
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import FabricError, MissingTool, UsageError
from fairlead.records.border import shown
from fairlead.records.verdict import Verdict
from fairlead.report.prom import Series, metric

if TYPE_CHECKING:
    from fairlead.cluster.live import Live
    from fairlead.records.addressbook import AddressBook, Place

SLACK_S = 120.0
LOOK_S = 1.0
QUIET_S = 75.0
"""Longer than anything an end waits for without a word."""
PARTS = ("fairlead.cluster.channel", "fairlead.cli.fabric_times", "fairlead.cli.fabric_onnode")
_MAX_BYTES = 1 << 28
MAX_SIZES = 64
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


def perf(
    source: str,
    target: str,
    /,
    *,
    duration: float = 10.0,
    interval: float = 1.0,
    message: int = 1 << 20,
    sizes: str = "",
    depth: int = 8,
    both: Annotated[bool, Parameter(negative=())] = False,
    sealed: Annotated[bool, Parameter(negative=())] = False,
    gso: Annotated[bool, Parameter(negative=())] = False,
    trim: Annotated[bool, Parameter(negative=())] = False,
    histogram: Annotated[bool, Parameter(negative=())] = False,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Write messages from one node into the memory of another over all planes, and show what arrives as it does.

    Each interval is a line: goodput, latency from post to completion, packets sent again. The tables have the columns
    of perftest; a latency is that of a whole Write, answer included, where ib_write_lat tells half a round trip of
    two. At the end what the target holds is compared. The nodes' Python must have fairlead[fabric] installed (`python`
    of the pool).

    Parameters
    ----------
    source
        The node that writes.
    target
        The node that is written to.
    duration
        Seconds; of several sizes all together.
    interval
        Seconds between lines.
    message
        Bytes of a message; 8, with --depth 1, for latency.
    sizes
        Several sizes instead, one after the other: `64,4096,65536`, or `all` for the powers of two from 2 to 8388608.
    depth
        Messages under way at once.
    both
        Both nodes write.
    sealed
        Authenticate every packet.
    gso
        Segmentation offload: spray by batches of packets, which the kernel takes as one. Not over steered paths.
    trim
        Let switches trim: a packet that finds too long a queue loses its payload, which is asked for again at once.
        For fabrics whose switches do (`trim_kib` of a lab): a silent loss then counts as a fault of the path.
    histogram
        Show how many messages took how long.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    from fairlead.cli.probe import from_nodes
    from fairlead.cluster import connect
    from fairlead.probe.addresses import book_of

    asked = sizes_of(sizes) or [message]
    check(source, target, duration, interval, asked, depth, sealed=sealed, trim=trim)
    facts, silent, cluster_file, folder = from_nodes(f"{source},{target}", "", None, spec, common, imds=False)
    if silent:
        raise FabricError("fabric/no-place", silent[0].message, hint=f"fairlead probe -w {source},{target}")
    wish = wish_of(
        duration=duration, interval=interval, sizes=asked, depth=depth, both=both, sealed=sealed, gso=gso, trim=trim
    )
    ends = Ends(source, target, book_of(facts), wish)
    program = Program.of("fairlead-perf", *PARTS, call="main()", needs_packages=True)
    limit_s = duration + SLACK_S
    with connect(cluster_file) as cluster, cluster.start(program, f"{source},{target}", limit_s=limit_s) as group:
        try:
            ends.run(group)
        except MissingTool as exc:  # the node cannot be judged: no fault of this program's
            body = {"missing": {"code": exc.code, "message": exc.message}}
            schema = "fairlead.fabric-perf/1"
            return Answer(schema=schema, verdict=Verdict.UNKNOWN, text=exc.message, body=body, hints=[exc.hint])
    assert folder is not None
    folder.write("intervals.jsonl", "".join(json.dumps(line) + "\n" for line in ends.lines))
    folder.write("metrics.prom", ends.metrics_text())
    return ends.answer(with_histogram=histogram)


def wish_of(
    *,
    duration: float,
    interval: float,
    sizes: Sequence[int],
    depth: int,
    both: bool = False,
    sealed: bool = False,
    gso: bool = False,
    trim: bool = False,
    tape: int = 0,
) -> dict[str, Any]:
    """What both ends are told; `tape` is how many datagrams each keeps."""
    work = {"duration_s": duration, "interval_s": interval, "sizes": list(sizes), "depth": depth, "both": both}
    return {**work, "sealed": sealed, "gso": gso, "trim": trim, "tape": tape, "token": secrets.token_hex(32)}


def sizes_of(text: str) -> list[int]:
    """The sizes in a list, smallest first.

    >>> sizes_of("4096,64")
    [64, 4096]
    >>> sizes_of("all")[-1]
    8388608
    """
    if text == "all":
        return [1 << i for i in range(1, 24)]
    try:
        return sorted({int(word) for word in text.split(",")} if text else ())
    except ValueError as exc:
        raise UsageError(
            "cli/usage", "--sizes must be numbers of bytes with commas between them, or `all`", hint="--sizes 64,4096"
        ) from exc


def check(  # noqa: PLR0917
    source: str,
    target: str,
    duration: float,
    interval: float,
    sizes: Sequence[int],
    depth: int,
    *,
    sealed: bool = False,
    trim: bool = False,
) -> None:
    """UsageError for what no measurement can be."""
    for ok, what in (
        (is_name(source) and is_name(target), "source and target are one node each"),
        (source != target, "source and target must be two nodes"),
        (0 < duration <= 86_400, "--duration must be above 0 and at most a day"),
        (0.05 <= interval <= 3600, "--interval must be 0.05 to 3600"),
        (sizes[0] >= 1, "a message has one byte or more: --message, --sizes"),
        (sizes[-1] * depth <= _MAX_BYTES, f"--message times --depth must be at most {_MAX_BYTES} bytes"),
        (len(sizes) <= MAX_SIZES, f"--sizes has at most {MAX_SIZES}"),
        (1 <= depth <= 64, "--depth must be 1 to 64"),
        (not (sealed and trim), "--sealed and --trim exclude each other: a trimmed packet has lost its authentication"),
    ):
        if not ok:
            raise UsageError("cli/usage", what, hint="fairlead fabric perf --help")


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
