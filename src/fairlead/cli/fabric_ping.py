"""`fairlead fabric ping`: loss and round-trip time of every path between nodes, and the link that is to blame."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fairlead.base.program import Program
from fairlead.base.table import table
from fairlead.base.units import counted, duration
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import FabricError, UsageError
from fairlead.preflight.pairs import pinged
from fairlead.preflight.pairs.limits import Limits
from fairlead.preflight.pairs.pinged import Plan, Seen
from fairlead.records.border import shown
from fairlead.records.finding import Finding, verdict_of
from fairlead.records.verdict import Verdict
from fairlead.report.text import counts_line, findings_text, paint_for

if TYPE_CHECKING:
    from fairlead.cluster.live import Live

PARTS = ("fairlead.cluster.channel", "fairlead.cli.fabric_pinger")
WINDOWS = 4
"""As the program on the nodes counts them."""
START_S = 60.0
SLACK_S = 60.0
LOOK_S = 0.5
TESTS_A_LINE = 200
MAX_PACKETS_PER_S = 20_000
MAX_PACKETS = 4_000_000
"""Of a node: it keeps 16 bytes of each."""
MAX_LINES = 1000
"""Of a node, beside one for ten paths."""
WORST = 10
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]
_Word = Annotated[str, Meta(max_length=2000)]
_Windows = Annotated[tuple[tuple[_Count, _Count, _Count], ...], Meta(min_length=WINDOWS, max_length=WINDOWS)]
_Heard = Annotated[tuple[_Count, ...], Meta(min_length=WINDOWS, max_length=WINDOWS)]
_Full = Annotated[tuple[_Count, ...], Meta(max_length=64)]
_Ports = Annotated[tuple[Annotated[int, Meta(ge=0, le=0xFFFF)], ...], Meta(max_length=64)]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a node; which fields count depends on `say`."""

    say: Literal["up", "sent", "seen", "end"]
    ports: Annotated[tuple[_Ports, ...], Meta(max_length=256)] = ()
    unbound: Annotated[tuple[tuple[_Count, _Word], ...], Meta(max_length=256)] = ()
    rows: Annotated[tuple[tuple[_Count, _Windows, _Count, _Count], ...], Meta(max_length=1000)] = ()
    heard: Annotated[tuple[tuple[_Count, _Heard], ...], Meta(max_length=1000)] = ()
    errors: Annotated[tuple[tuple[_Count, _Word, _Count], ...], Meta(max_length=256)] = ()
    """Path, the kernel's word, how often."""
    full: Annotated[tuple[_Full, ...], Meta(max_length=256)] = ()
    """Packets that each socket of each path had no room for."""


def ping(
    *,
    nodes: Nodes = None,
    exclude: Exclude = "",
    count: int = 300,
    interval: float = 0.02,
    size: int = 256,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Send packets over every path between nodes, and name the link, switch, port or node that loses or delays them.

    On a fabric steered by micro-segments every path is chosen by address, and every link between switches is tested by
    itself: packets go up over it and back to their sender. Elsewhere several UDP source ports are tried on every rail.
    Nothing is installed on the nodes. Exit codes: 0 no path loses or delays packets; 3 a part fails; 4 a node gave no
    answer.

    Parameters
    ----------
    count
        Packets over each path. Smaller losses than about one in a third of these are not found.
    interval
        Seconds between two packets over one path.
    size
        Bytes of payload.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    from fairlead.cli.probe import from_nodes
    from fairlead.cluster import connect
    from fairlead.preflight.pairs.limits import limits_of
    from fairlead.preflight.pairs.paths import paths_of
    from fairlead.probe.addresses import book_of

    for ok, what in (
        (8 <= count <= 1_000_000, "--count must be 8 to 1000000"),
        (0.001 <= interval <= 60, "--interval must be 0.001 to 60"),
        (64 <= size <= 1400, "--size must be 64 to 1400"),
    ):
        if not ok:
            raise UsageError("cli/usage", what, hint="fairlead fabric ping --help")
    facts, silent, cluster_file, folder = from_nodes(nodes, exclude, None, spec, common, imds=False)
    book = book_of(facts)
    names = [place.node for place in book.places if place.address or any(p.address for p in place.ports)]
    if len(names) < 2:
        raise FabricError(
            "fabric/no-place",
            f"pinging takes two nodes with an address; {counted(len(names), 'node')} of "
            f"{len(facts) + len(silent)} asked has one",
            hint="ask more nodes, or see what they have: fairlead probe",
        )
    plan = pinged.plan_of(names, paths_of(book))
    each = max(sum(p.src == n for p in plan.pings) for n in range(len(names)))
    if count * each > MAX_PACKETS:
        raise UsageError(
            "cli/usage",
            f"a node has up to {counted(each, 'path')}: {count * each:,} packets, and {MAX_PACKETS:,} are the most",
            hint=f"--count {MAX_PACKETS // each}",
        )
    interval = max(interval, each / MAX_PACKETS_PER_S)
    wish = {"count": count, "interval_s": interval, "size": size}
    run = Run(plan, wish, lambda done, total: session().progress("nodes", done, total, ""))
    program = Program.of("fairlead-ping", *PARTS, call="main()")
    limit_s = START_S + count * interval + SLACK_S
    with connect(cluster_file) as cluster, cluster.start(program, ",".join(names), limit_s=limit_s) as group:
        run.run(group, count * interval)
    assert folder is not None
    rows = list(run.rows())
    folder.write("paths.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    limits = limits_of(cluster_file)
    of_paths = run.judged(limits)
    findings = [*silent, *of_paths]
    folder.write("findings.json", findings)
    body = {"nodes": names, "count": count, "interval_s": interval, "paths": rows, "findings": findings}
    return Answer(
        schema="fairlead.fabric-ping/1",
        verdict=verdict_of(findings) if findings else Verdict.PASS,
        text=lambda: _page(plan, rows, findings),
        body=body,
        hints=["fairlead preflight"] if findings else [],
    )


class Run:
    """The nodes, as they speak."""

    def __init__(
        self, plan: Plan, wish: Mapping[str, Any], watch: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        self.plan, self.wish, self.watch = plan, wish, watch
        self.number = {node: n for n, node in enumerate(plan.nodes)}
        self.ports: dict[int, tuple[_Ports, ...]] = {}
        self.unbound: dict[tuple[int, int], str] = {}
        """(node, path) -> why it has no socket there."""
        self.num_lines: Counter[int] = Counter()
        self.sent: set[int] = set()
        self.ended: set[int] = set()
        self.lost: dict[int, str] = {}
        self.timed: dict[int, tuple[_Windows, int, int]] = {}
        self.heard: dict[int, _Heard] = {}
        self.full: dict[tuple[int, int, int], int] = {}
        """(node, path, flow) -> packets that its socket had no room for."""
        self.errors: dict[tuple[int, int], str] = {}
        """(node, path) -> what its own kernel said."""

    def run(self, group: Live, takes_s: float) -> None:
        """Start all, tell them the paths, let them go, hear what they saw."""
        paths, token = self.plan.paths, secrets.token_hex(16)
        is_steered = bool(self.plan.steering.planes)
        for node in self.plan.nodes:
            first = {"token": token, "steered": is_steered, "flows": 1 if is_steered else pinged.FLOWS}
            group.send(json.dumps({**self.wish, **first, "addresses": list(paths.addresses[node])}), to=node)
        self._until(group, self.ports.keys, START_S, "it did not begin")
        for n, node in enumerate(self.plan.nodes):
            if n not in self.lost:
                for line in self._orders(n):
                    group.send(json.dumps(line), to=node)
        for word, done, limit_s in (
            ("go", lambda: self.sent, takes_s * 3 + SLACK_S / 2),
            ("stop", lambda: self.ended, SLACK_S / 2),
        ):
            for n, node in enumerate(self.plan.nodes):
                if n not in self.lost:
                    group.send(json.dumps({"do": word}), to=node)
            self._until(group, done, limit_s, "it fell silent")

    def _orders(self, n: int) -> Iterator[dict[str, Any]]:
        """What one node sends and answers; paths that end at a socket that is not there are not tested."""
        tests, answers = [], []
        for number, ping in enumerate(self.plan.pings):
            if n not in (ping.src, ping.dst) or not (
                self._port(ping.src, ping.path) and self._port(ping.dst, ping.path)
            ):
                continue
            if ping.src == n:
                to, port = ping.to, self._port(ping.dst, ping.path)
                tests.append([number, ping.path, ping.flow, to, port, self._address(ping.dst, ping.path), ping.is_loop])
            else:
                port = self._port(ping.src, ping.path) if ping.back else 0
                answers.append([number, ping.back, port, self._address(ping.src, ping.path)])
        for begin in range(0, max(len(tests), len(answers)), TESTS_A_LINE):
            part = slice(begin, begin + TESTS_A_LINE)
            yield {"do": "tests", "tests": tests[part], "answers": answers[part]}

    def _address(self, n: int, path: int) -> str:
        return self.plan.paths.addresses[self.plan.nodes[n]][path]

    def _port(self, n: int, path: int) -> int:
        own = self.ports.get(n, ())
        return own[path][0] if n not in self.lost and path < len(own) and own[path] else 0

    def _until(self, group: Live, done: Any, limit_s: float, why: str) -> None:
        """Hear until all have said so; who has not by then, or has ended, is lost."""
        end = time.monotonic() + limit_s
        self.watch(len(done()), len(self.plan.nodes))
        while len(set(done()) | self.lost.keys()) < len(self.plan.nodes) and time.monotonic() < end:
            line = group.read(LOOK_S)
            if line is not None and line.stream == "stdout":
                self._hear(self.number[line.node], line.text)
                self._bound(self.number[line.node])
            for (node, _), result in group.ended.items():
                n = self.number[node]
                if line is None and n not in done():
                    words = result.stderr.text.strip().splitlines()[-1:] or [result.error or str(result.state)]
                    self.lost.setdefault(n, shown(words[0]))
        for n in range(len(self.plan.nodes)):
            if n not in done():
                self.lost.setdefault(n, why)

    def _bound(self, n: int) -> None:
        """A node that talks without end is lost, with all that it said."""
        self.num_lines[n] += 1
        if self.num_lines[n] > len(self.plan.pings) // 10 + MAX_LINES:
            self.lost.setdefault(n, f"it sent more than {self.num_lines[n] - 1} lines")

    def _hear(self, n: int, text: str) -> None:
        if n in self.lost:
            return
        try:
            said = msgspec.json.decode(text, type=Said)
        except (msgspec.DecodeError, RecursionError):
            return
        pings = self.plan.pings
        match said.say:
            case "up":
                if n not in self.ports:
                    self.ports[n] = said.ports
                    self._note_unbound(n, dict(said.unbound))
            case "sent":
                self.sent.add(n)
            case "seen":
                self.timed |= {i: (w, a, b) for i, w, a, b in said.rows if i < len(pings) and pings[i].src == n}
                self.heard |= {i: w for i, w in said.heard if i < len(pings) and pings[i].dst == n}
            case "end" if n not in self.ended:
                self.ended.add(n)
                self.full |= {
                    (n, path, flow): num for path, own in enumerate(said.full) for flow, num in enumerate(own) if num
                }
                for path, word, times in said.errors:
                    one = f"{shown(word)}, {counted(times, 'time')}"
                    self.errors[n, path] = "; ".join(filter(None, (self.errors.get((n, path)), one)))

    def _note_unbound(self, n: int, why: Mapping[int, str]) -> None:
        """Where this node has no socket, though its address is known: nothing is tested there."""
        for path in self.plan.used:
            if self._address(n, path) and not self._port(n, path):
                self.unbound[n, path] = shown(why.get(path, "it opened no socket"))

    def seen(self) -> dict[int, Seen]:
        """By number of the path. Paths of which one end said nothing are not judged."""
        out = {}
        wished = _windows(self.wish["count"])
        for i, (windows, p50, p99) in self.timed.items():
            ping = self.plan.pings[i]
            if {ping.src, ping.dst} & self.lost.keys():
                continue
            sent = tuple(min(said, most) for (said, _, _), most in zip(windows, wished, strict=True))
            back = tuple(min(came, most) for (_, came, _), most in zip(windows, sent, strict=True))
            heard = back if ping.is_loop else self.heard.get(i)
            if heard is not None:
                # what came back was there, and no more than was sent
                heard = tuple(min(max(h, b), s) for s, h, b in zip(sent, heard, back, strict=True))
                out[i] = Seen(
                    sent, heard, back, tuple(ns for _, _, ns in windows), p50, p99,
                    full_there=self.full.get((ping.dst, ping.path, 0), 0),
                    full_here=self.full.get((ping.src, ping.path, 0 if ping.back else ping.flow), 0),
                )  # fmt: skip
        return out

    def owed(self) -> Counter[int]:
        """Node -> paths it did not tell its part of: what it sent where they begin at it, what came where they end."""
        out: Counter[int] = Counter()
        for i, ping in enumerate(self.plan.pings):
            ends = {(ping.src, ping.path), (ping.dst, ping.path)}
            if not ends & self.unbound.keys() and not {ping.src, ping.dst} & self.lost.keys():
                out[ping.src] += i not in self.timed
                out[ping.dst] += i not in self.heard and not ping.is_loop
        return +out

    def judged(self, limits: Limits) -> list[Finding]:
        """What is to be said of all that was seen."""
        return pinged.judge(
            self.plan, self.seen(), self.lost, limits, unbound=self.unbound, errors=self.errors, owed=self.owed()
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """One a path, for machines."""
        for i, one in sorted(self.seen().items()):
            ping, sent = self.plan.pings[i], sum(one.sent)
            yield {
                "from": self.plan.nodes[ping.src],
                "to": self.plan.nodes[ping.dst],
                "path": self.plan.name(ping),
                "sent": sent,
                "lost_out": 0 if ping.is_loop else sent - sum(one.heard),
                "lost_back": 0 if ping.is_loop else sum(one.heard) - sum(one.back),
                "lost": sent - sum(one.back),
                "min_us": min((ns for ns in one.rtt_ns if ns), default=0) / 1e3,
                "p50_us": one.p50_ns / 1e3,
                "p99_us": one.p99_ns / 1e3,
            }


def _windows(count: int) -> tuple[int, ...]:
    """How many of so many packets belong to each window: as the nodes reckon it."""
    out = [0] * WINDOWS
    for seq in range(count):
        out[seq * WINDOWS // count] += 1
    return tuple(out)


def _page(plan: Plan, rows: list[dict[str, Any]], findings: list[Finding]) -> str:
    """A line for each way through the fabric, the worst paths, then who is to blame."""
    import sys

    ways: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        ways[row["path"].partition(" flow ")[0]].append(row)
    lines = []
    for way, own in sorted(ways.items()):
        sent, lost = sum(r["sent"] for r in own), sum(r["lost"] for r in own)
        of: tuple[tuple[str, Callable[[list[float]], float]], ...]
        of = (("min_us", min), ("p50_us", _middle), ("p99_us", max))
        times = [([row[key] for row in own if row[key]], how) for key, how in of]
        best = [_us(how(known)) if known else "-" for known, how in times]
        lines.append([way, str(len(own)), f"{sent:,}", f"{lost / sent:.2%}", *best])
    text = [table(["WAY", "PATHS", "SENT", "LOST", "RTT MIN", "MEDIAN", "WORST P99"], lines)]
    worst = sorted((r for r in rows if r["lost"]), key=lambda r: -r["lost"])[:WORST]
    if worst:
        shown_ = [
            [r["from"], r["to"], r["path"], f"{r['lost'] / r['sent']:.1%}", str(r["lost_out"]), str(r["lost_back"])]
            for r in worst
        ]
        text.append(table(["FROM", "TO", "PATH", "LOST", "ON THE WAY", "COMING BACK"], shown_))
    if findings:
        text.append(findings_text(findings, paint_for(sys.stdout)))
    text.append(f"{pinged.tested(plan)}; {counts_line(findings) if findings else 'no path is to blame'}")
    return "\n\n".join(text)


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _us(value: float) -> str:
    return duration(value / 1e6)
