"""A run of `fairlead fabric ping`: the nodes as they speak, each word held to what it can be.

A node is believed of its own part alone: what it sent where it sends, what came where packets end at it; and no more
came than was sent.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fairlead.base.units import counted
from fairlead.errors import UsageError
from fairlead.preflight.pairs import pinged
from fairlead.preflight.pairs.limits import Limits
from fairlead.preflight.pairs.pinged import Odd, Plan, Seen
from fairlead.records.border import shown
from fairlead.records.finding import Finding

if TYPE_CHECKING:
    from fairlead.cluster.live import Live

WINDOWS = 4
"""As the program on the nodes counts them."""
START_S = 60.0
SLACK_S = 60.0
LOOK_S = 0.5
TESTS_A_LINE = 200
MAX_LINES = 1000
"""Of a node, beside one for ten paths."""
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]
_Word = Annotated[str, Meta(max_length=2000)]
_Windows = Annotated[tuple[tuple[_Count, _Count, _Count], ...], Meta(min_length=WINDOWS, max_length=WINDOWS)]
_Heard = Annotated[tuple[_Count, ...], Meta(min_length=WINDOWS, max_length=WINDOWS)]
_Big = Annotated[int, Meta(ge=0, le=1 << 16)]
_Full = Annotated[tuple[_Count, ...], Meta(max_length=64)]
_How = Literal["nic", "route", "filter", "source"]
_Ports = Annotated[tuple[Annotated[int, Meta(ge=0, le=0xFFFF)], ...], Meta(max_length=64)]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a node; which fields count depends on `say`."""

    say: Literal["up", "sent", "seen", "end"]
    ports: Annotated[tuple[_Ports, ...], Meta(max_length=256)] = ()
    unbound: Annotated[tuple[tuple[_Count, _Word], ...], Meta(max_length=256)] = ()
    payload: Annotated[tuple[_Big, ...], Meta(max_length=256)] = ()
    """Bytes that fit a packet of each path; 0: not known."""
    rows: Annotated[tuple[tuple[_Count, _Windows, _Count, _Count], ...], Meta(max_length=1000)] = ()
    heard: Annotated[tuple[tuple[_Count, _Heard], ...], Meta(max_length=1000)] = ()
    errors: Annotated[tuple[tuple[_Count, _Word, _Count], ...], Meta(max_length=256)] = ()
    """Path, the kernel's word, how often."""
    full: Annotated[tuple[_Full, ...], Meta(max_length=256)] = ()
    """Packets that each socket of each path had no room for."""
    bigs: Annotated[tuple[tuple[_Count, _Count, _Count], ...], Meta(max_length=1000)] = ()
    """Full-size packets of each path: sent and answered by where they begin, heard by where they end."""
    aside: Annotated[tuple[tuple[_Count, _Heard], ...], Meta(max_length=1000)] = ()
    """Packets of each path that came by another NIC or from another address."""
    refused: Annotated[tuple[tuple[_Count, _Heard], ...], Meta(max_length=1000)] = ()
    """Answers of each path that its own kernel did not let out."""
    refusals: Annotated[tuple[_Count, ...], Meta(max_length=256)] = ()
    """Packets of each path in all that it did not let out."""
    odd: Annotated[tuple[tuple[_Count, _How, _Count, _Word, _Count], ...], Meta(max_length=256)] = ()
    """Path, how its packets went astray, one of its tests, where they were instead, how often."""


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
        self.bigs: dict[int, tuple[int, int]] = {}
        self.bigs_heard: dict[int, int] = {}
        self.aside_here: dict[int, _Heard] = {}
        self.aside_there: dict[int, _Heard] = {}
        self.unanswered: dict[int, _Heard] = {}
        self.payload: dict[int, tuple[int, ...]] = {}
        self.refused: dict[tuple[int, int], int] = {}
        """(node, path) -> packets that its own kernel did not let out."""
        self.odd: list[Odd] = []
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
        self._fits()
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

    def _fits(self) -> None:
        """Raise where packets of the size that was asked for do not leave a port whole."""
        for n, sizes in sorted(self.payload.items()):
            for path in self.plan.used:
                if path < len(sizes) and 0 < sizes[path] < self.wish["size"]:
                    port = f"{self.plan.nodes[n]} {self.plan.paths.labels[path]}"
                    raise UsageError(
                        "cli/usage",
                        f"--size {self.wish['size']} is more than a packet of {port} holds: {sizes[path]} bytes",
                        hint=f"--size {sizes[path]}, or less; one packet in each window is of full size anyway",
                    )

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
                    self.ports[n], self.payload[n] = said.ports, said.payload
                    self._note_unbound(n, dict(said.unbound))
            case "sent":
                self.sent.add(n)
            case "seen":
                self.timed |= {i: (w, a, b) for i, w, a, b in said.rows if i < len(pings) and pings[i].src == n}
                self.heard |= {i: w for i, w in said.heard if i < len(pings) and pings[i].dst == n}
                self.bigs |= {i: (a, b) for i, a, b in said.bigs if i < len(pings) and pings[i].src == n}
                self.bigs_heard |= {
                    i: a for i, a, _ in said.bigs if i < len(pings) and n == pings[i].dst != pings[i].src
                }
                self.aside_here |= {i: w for i, w in said.aside if i < len(pings) and pings[i].src == n}
                self.aside_there |= {i: w for i, w in said.aside if i < len(pings) and n == pings[i].dst}
                self.unanswered |= {i: w for i, w in said.refused if i < len(pings) and pings[i].dst == n}
            case "end" if n not in self.ended:
                self.ended.add(n)
                self.full |= {
                    (n, path, flow): num for path, own in enumerate(said.full) for flow, num in enumerate(own) if num
                }
                self.refused |= {
                    (n, path): num for path, num in enumerate(said.refusals) if num and path in self.plan.used
                }
                self.odd += [astray for row in said.odd if (astray := self._odd(n, *row))]
                for path, word, times in said.errors:
                    one = f"{shown(word)}, {counted(times, 'time')}"
                    self.errors[n, path] = "; ".join(filter(None, (self.errors.get((n, path)), one)))

    def _odd(self, n: int, path: int, kind: str, number: int, what: str, times: int) -> Odd | None:  # noqa: PLR0917 - a row
        """What a node says of packets astray, where it is an end of that test on that path."""
        ping = self.plan.pings[number] if number < len(self.plan.pings) else None
        if ping is None or path != ping.path or n not in (ping.src, ping.dst):
            return None
        return Odd(n, path, kind, ping.src if n == ping.dst else ping.dst, shown(what), times)

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
                big, big_back = self.bigs.get(i, (0, 0))
                big_there = big_back if ping.is_loop else max(self.bigs_heard.get(i, 0), big_back)
                out[i] = Seen(
                    sent, heard, back, tuple(ns for _, _, ns in windows), p50, p99,
                    full_there=self.full.get((ping.dst, ping.path, 0), 0),
                    full_here=self.full.get((ping.src, ping.path, 0 if ping.back else ping.flow), 0),
                    aside_there=() if ping.is_loop else _less(self.aside_there.get(i), sent, heard),
                    aside_here=_less(self.aside_here.get(i), heard, back),
                    refused=_less(self.unanswered.get(i), heard, back),
                    big=(big, min(big, big_there), min(big, big_there, big_back)),
                    big_bytes=self._payload(ping.src, ping.path),
                )  # fmt: skip
        return out

    def _payload(self, n: int, path: int) -> int:
        """Bytes of a full-size packet."""
        own = self.payload.get(n, ())
        return own[path] if path < len(own) else 0

    def owed(self) -> Counter[int]:
        """Node -> paths it did not tell its part of: what it sent where they begin at it, what came where they end."""
        out: Counter[int] = Counter()
        for i, ping in enumerate(self.plan.pings):
            ends = {(ping.src, ping.path), (ping.dst, ping.path)}
            if not ends & self.unbound.keys() and not {ping.src, ping.dst} & self.lost.keys():
                out[ping.src] += i not in self.timed
                out[ping.dst] += i not in self.heard and not ping.is_loop
        return +out

    def judged(self, limits: Limits, pools: Mapping[str, str] = MappingProxyType({})) -> list[Finding]:
        """What is to be said of all that was seen."""
        return pinged.judge(
            self.plan, self.seen(), self.lost, limits, unbound=self.unbound, errors=self.errors, refused=self.refused,
            owed=self.owed(), odd=self.odd, pools=pools, size=self.wish["size"],
        )  # fmt: skip

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
                "full_bytes": one.big_bytes,
                "full_sent": one.big[0],
                "full_lost": one.big[0] - one.big[2],
                "astray": sum(one.aside_there) + sum(one.aside_here),
            }


def _less(said: _Heard | None, of: Sequence[int], without: Sequence[int]) -> tuple[int, ...]:
    """What a node says of each window, held to what is missing there."""
    return tuple(min(num, o - w) for num, o, w in zip(said or (), of, without, strict=False)) if said else ()


def _windows(count: int) -> tuple[int, ...]:
    """How many of so many packets belong to each window: as the nodes reckon it."""
    out = [0] * WINDOWS
    for seq in range(count):
        out[seq * WINDOWS // count] += 1
    return tuple(out)
