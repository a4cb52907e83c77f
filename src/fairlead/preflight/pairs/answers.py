"""What an agent may answer to a step: types and bounds, and what of it was asked for at all. Pure.

A report is relayed to every other node (ports), and judged beside theirs. So numbers of nodes and paths lie within what
the step asked of this node, nothing is told twice, and counters are those that were asked for. Which node a report is
about is never in it: that is the connection it came by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.records.border import MAX_BYTES, Border, Breach, Count, Index, PortOrNone, Word

Many = Meta(max_length=1 << 20)
Packets = Annotated[int, Meta(ge=0, le=1 << 20)]
Name = Annotated[str, Meta(max_length=256)]
Pair = tuple[int, int]
if TYPE_CHECKING:
    Error = tuple[Any, ...]
else:
    Error = Annotated[tuple[Index | Name, ...], Meta(min_length=2, max_length=3)]
"""Numbers and a word: (path, word), (dst, word) or (dst, path, word), by what was asked."""


class AgentReport(msgspec.Struct):
    """An agent's answer to one step; only the fields of that step are filled."""

    step: Count
    sent: bool = False
    ports: Annotated[list[PortOrNone], Meta(max_length=256)] = []
    tcp: PortOrNone = 0
    bad: Annotated[list[tuple[Index, Index, Packets, Packets, Packets, Packets, Packets]], Many] = []
    errors: Annotated[list[Error], Many] = []
    full: Annotated[list[tuple[Index, PortOrNone]], Meta(max_length=1 << 16)] = []
    ok: Index = 0
    rates: Annotated[list[tuple[Index, Index, Count, Count]], Many] = []
    sent_to: Annotated[list[tuple[Index, Index, Count, Count]], Many] = []
    clock_ns: Count = 0
    wall_ns: Count = 0
    cpu_ns: Count = 0
    others_ns: Count = 0
    secret: Word = ""
    knocks: Annotated[list[tuple[Index, Index, Word]], Many] = []
    counters: Annotated[
        dict[Name, Annotated[dict[Word, Annotated[int, Meta(ge=0)]], Meta(max_length=256)]], Meta(max_length=256)
    ] = {}


REPORT = Border(AgentReport, "an answer", max_bytes=2 * MAX_BYTES)


class Asked:
    """What one step asks of each node: a report is held against it."""

    def __init__(self, line: Mapping[str, Any], setup: Mapping[str, Any]) -> None:
        """`line` is the step's order, `setup` that of the phase's first step."""
        self.line, self.do = line, line["do"]
        self.setup = {**setup, **line}
        self.members = {member: at for at, member in enumerate(line.get("members", ()))}
        self.paths = set(line.get("paths", ())).union(*(paths for _, _, paths in line.get("pairs", ())))
        self.names = {name for name, _ in self.setup.get("counters", ())}

    def hold(self, report: AgentReport, node: int) -> None:
        """Raises Breach where a node tells what it was not asked for, or twice."""
        if report.counters:
            rails = {rail for rail, *_ in (self.setup.get("ports") or {node: ()})[node]}
            is_asked = report.counters.keys() <= rails and all(v.keys() <= self.names for v in report.counters.values())
            _unless(is_asked, "counters", report.counters)
        if self.do == "setup":
            num_paths = len(self.setup["addresses"][node])
            _unless(len(report.ports) == num_paths, "ports", report.ports)
            _unless(all(_shape(e, 1) and e[0] < num_paths for e in report.errors), "errors", report.errors)
        elif self.do == "knocked":
            found = [knock[:2] for knock in report.knocks]
            _unless(len(set(found)) == len(found) and _is_hex(report.secret), "knocks", report.knocks)
        elif self.do == "work":
            _unless(report.sent or report.wall_ns > 0, "times", report.wall_ns)
        elif self.do in ("burst", "speed", "tcp"):
            self._round(report, node)

    def _round(self, report: AgentReport, node: int) -> None:
        _unless({path for path, _ in report.full} <= self.paths, "sizes", report.full)
        if not (report.bad or report.errors or report.rates or report.sent_to):
            return
        come, go = self._tests(node)
        num_numbers = 1 if self.do == "tcp" else 2
        _unless(all(_shape(e, num_numbers) for e in report.errors), "errors", report.errors)
        targets = go if num_numbers == 2 else {(dst,) for dst, _ in go}
        for what, found, asked in (
            ("bursts", [b[:2] for b in report.bad], come),
            ("rates", [r[:2] for r in report.rates], come),
            ("round trips", [s[:2] for s in report.sent_to], go),
            ("errors", [e[:num_numbers] for e in report.errors], targets),
        ):
            _unless(len(set(found)) == len(found) and asked.issuperset(found), what, found)

    def _tests(self, node: int) -> tuple[set[Pair], set[Pair]]:
        """(src, path) of what comes to a node, (dst, path) of what it sends: as the agent reads the order."""
        come: set[Pair] = set()
        go: set[Pair] = set()
        line, members, num = self.line, list(self.members), len(self.members)
        if "shifts" in line and node in self.members:
            at = self.members[node]
            for shift in line["shifts"]:
                come |= {(members[(at - shift) % num], path) for path in line["paths"]}
                go |= {(members[(at + shift) % num], path) for path in line["paths"]}
        for src, dst, paths in line.get("pairs", ()):
            if dst == node:
                come |= {(src, path) for path in paths}
            if src == node:
                go |= {(dst, path) for path in paths}
        return come, go


def _is_hex(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) >= 16
    except ValueError:
        return False


def _shape(error: Sequence[Any], num_numbers: int) -> bool:
    """Whether an error is so many numbers and a word."""
    *numbers, word = error
    return len(numbers) == num_numbers and all(isinstance(n, int) for n in numbers) and isinstance(word, str)


def _unless(is_asked: bool, what: str, said: object) -> None:  # noqa: FBT001
    if not is_asked:
        raise Breach(f"{what} that nobody asked for, or twice", str(said))
