"""Topology (`.topo`) and connection-matrix (`.cm`, `.tm`) files of the htsim family, read as they are.

Both are lines of words. Every problem of a file is told at once, each with its line (SpecError).

The unit trap: `start` of a connection. htsim's UEC program stores the number and then schedules it as microseconds; an
older loader of the same format takes picoseconds. The scenario says which (`start_unit`), microseconds by default.

Knows: the two formats. Must not know: engine, scenarios.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.suggest import did_you_mean
from fairlead.base.table import printable
from fairlead.base.trust import read_file
from fairlead.errors import Problem, SpecError
from fairlead.fabric.sim.shape import MAX_RADIX, Shape, Tier

_TIER_KEYS = (
    "downlink_speed_gbps",
    "radix_up",
    "radix_down",
    "queue_up",
    "queue_down",
    "oversubscribed",
    "bundle",
    "switch_latency_ns",
    "downlink_latency_ns",
)
_HEAD_KEYS = ("nodes", "tiers", "podsize")

MAX_BYTES = 128 << 20
"""Of one file: some three million connections."""
MAX_PROBLEMS = 100
"""Told of one file; who has more has another kind of file."""
_MOST = 1 << 24
"""Nodes, triggers, connections."""
_COUNTS = {
    "nodes": _MOST, "connections": _MOST, "tiers": 100, "tier": 2, "podsize": _MOST, "radix_up": MAX_RADIX,
    "radix_down": MAX_RADIX, "bundle": MAX_RADIX, "id": _MOST, "trigger": _MOST, "count": _MOST,
    "send_done_trigger": _MOST, "recv_done_trigger": _MOST, "size": 1 << 53, "queue_up": 1 << 53, "queue_down": 1 << 53,
}  # fmt: skip
"""Whole numbers, and the largest that makes sense."""
_LARGEST = {"downlink_speed_gbps": 1e6, "switch_latency_ns": 1e12, "downlink_latency_ns": 1e12}
_SMALLEST = {"downlink_speed_gbps": 1e-3}
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,3})?")
_PAIR = re.compile(r"([0-9]{1,9})->([0-9]{1,9})")


class _Reader:
    """Lines of a file, and the problems found in them."""

    def __init__(self, path: Path) -> None:
        self.file = str(path)
        self.problems: list[Problem] = []
        try:
            text = read_file(path, MAX_BYTES).decode("utf-8", "replace")
        except OSError as exc:
            raise SpecError([Problem("sim/file", f"cannot be read: {exc.strerror}", self.file)]) from exc
        self.written = text.splitlines()

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Number and words of each line that says something."""
        for i, line in enumerate(self.written, start=1):
            words = line.split()
            if words and not words[0].startswith("#"):
                yield i, words

    def refuse(self, line: int, message: str, hint: str = "") -> None:
        """Note a problem. Raises SpecError where there are many."""
        source = printable(self.written[line - 1][:200]) if line else ""
        self.problems.append(
            Problem(
                "sim/htsim-file",
                message,
                self.file,
                line=line,
                column=1 if line else 0,
                length=len(source),
                source=source,
                hint=hint,
            )
        )
        if len(self.problems) >= MAX_PROBLEMS:
            self.finish()

    def number(self, line: int, key: str, word: str) -> float:
        """A number that `key` can have, or 0 and a problem."""
        value = float(word) if _NUMBER.fullmatch(word) else math.nan
        if math.isnan(value):
            self.refuse(line, f"`{word[:40]}` is no number")
            return 0.0
        least, most = _SMALLEST.get(key, 0), _COUNTS.get(key) or _LARGEST.get(key, 1e18)
        if not least <= value <= most or (key in _COUNTS and not value.is_integer()):
            what = "a whole number" if key in _COUNTS else "a number"
            self.refuse(line, f"`{key}` is {word[:40]}; it must be {what} from {least:g} to {most:g}")
            return 0.0
        return value

    def count(self, line: int, key: str, word: str) -> int:
        """A whole number that `key` can have, or 0 and a problem."""
        return int(self.number(line, key, word))

    def finish(self) -> None:
        """Raise what was found."""
        if self.problems:
            raise SpecError(self.problems)


def read_topology(path: Path) -> Shape:
    """The fabric of a `.topo` file, as one plane."""
    reader = _Reader(path)
    head: dict[str, float] = {}
    tiers: dict[int, dict[str, float]] = {}
    current: dict[str, float] | None = None
    for line, words in reader.lines():
        key = words[0].lower()
        if len(words) < 2:
            reader.refuse(line, f"`{words[0]}` has no value")
            continue
        value = reader.number(line, key, words[1])
        if key == "tier":
            current = tiers.setdefault(int(value), {})
        elif key in _HEAD_KEYS and current is None:
            head[key] = value
        elif key in _TIER_KEYS and current is not None:
            if key in current:
                reader.refuse(line, f"`{words[0]}` is said twice for this tier")
            current[key] = value
        else:
            reader.refuse(
                line, f"unknown word `{words[0][:40]}`", did_you_mean(key[:40], [*_HEAD_KEYS, *_TIER_KEYS, "tier"])
            )
    for key in _HEAD_KEYS:
        if head.get(key, 0) <= 0:
            reader.refuse(0, f"`{key.capitalize()}` is missing")
    num_tiers = int(head.get("tiers", 2))
    if num_tiers not in (2, 3):
        reader.refuse(0, f"Tiers is {num_tiers}; 2 and 3 are understood")
        reader.finish()
    for tier in range(num_tiers):
        needed = ["downlink_speed_gbps", "radix_down", "downlink_latency_ns"] + (
            ["radix_up"] if tier < num_tiers - 1 else []
        )
        for key in needed:
            if tiers.get(tier, {}).get(key, 0) <= 0:
                reader.refuse(0, f"tier {tier} lacks `{key}`")
    reader.finish()
    return _shape(reader, int(head["nodes"]), int(head["podsize"]), [tiers[t] for t in range(num_tiers)])


def _shape(reader: _Reader, nodes: int, pod_size: int, tiers: list[dict[str, float]]) -> Shape:
    hosts, up0 = int(tiers[0]["radix_down"]), int(tiers[0]["radix_up"])
    bundle1, bundle2 = int(tiers[1].get("bundle", 1)), int(tiers[-1].get("bundle", 1)) if len(tiers) == 3 else 1
    links = tuple(
        Tier(t["downlink_speed_gbps"], t["downlink_latency_ns"], t.get("switch_latency_ns", 0.0)) for t in tiers
    )
    pods = nodes // pod_size if len(tiers) == 3 else 1
    for what, whole, part in (
        ("Nodes by the pod size", nodes, pod_size),
        ("the pod size by Radix_Down of tier 0", pod_size, hosts),
        ("Radix_Up of tier 0 by the bundle of tier 1", up0, bundle1),
    ):
        if part <= 0 or whole % part:
            reader.refuse(0, f"{what} does not divide: {whole} / {part}")
    reader.finish()
    pod_t0, pod_t1 = (nodes // pods) // hosts, up0 // bundle1
    cores = int(tiers[1].get("radix_up", 0)) // bundle2 * pod_t1 if len(tiers) == 3 else 0
    return Shape(
        planes=1, pods=pods, pod_t0=pod_t0, pod_t1=pod_t1, cores=cores, hosts=hosts, bundle1=bundle1, bundle2=bundle2,
        tiers=links,
    )  # fmt: skip


@dataclass(frozen=True)
class Connection:
    """One line of a connection matrix."""

    src: int
    dst: int
    size: int
    start: float | None
    """None: it waits for a trigger."""
    trigger: int
    sent_trigger: int
    """Fired when the sender knows that all arrived; 0: none."""
    received_trigger: int
    shares_flow: bool
    """`msg`: one of several messages of the connection between these two."""
    line: int


@dataclass(frozen=True)
class Matrix:
    """A connection matrix."""

    nodes: int
    connections: list[Connection]


def read_matrix(path: Path) -> Matrix:
    """The connections of a `.cm` file."""
    reader = _Reader(path)
    nodes, connections, barriers, declared = 0, [], {}, 0
    for line, words in reader.lines():
        if words[0] == "Nodes":
            nodes = reader.count(line, "nodes", words[1]) if len(words) > 1 else 0
        elif words[0] == "Connections":
            declared = reader.count(line, "connections", words[1]) if len(words) > 1 else 0
        elif words[0] in ("Triggers", "Failures"):
            continue
        elif words[0] == "trigger":
            rest = [word for word in words[1:] if word not in ("oneshot", "multishot", "barrier")]
            pairs = dict(zip(rest[::2], rest[1::2], strict=False))
            if "barrier" in words:
                barriers[reader.count(line, "id", pairs.get("id", "0"))] = reader.count(
                    line, "count", pairs.get("count", "1")
                )
        elif "->" in words[0]:
            connection = _connection(reader, line, words, nodes)
            if connection:
                connections.append(connection)
        else:
            known = ["Nodes", "Connections", "Triggers", "Failures", "trigger"]
            reader.refuse(line, f"unknown word `{words[0][:40]}`", did_you_mean(words[0][:40], known))
    if nodes <= 0:
        reader.refuse(0, "`Nodes` is missing")
    if declared != len(connections) and not reader.problems:
        reader.refuse(0, f"`Connections` says {declared}, the file holds {len(connections)}")
    _check_triggers(reader, connections, barriers)
    reader.finish()
    return Matrix(nodes, connections)


def _check_triggers(reader: _Reader, connections: list[Connection], barriers: dict[int, int]) -> None:
    """Each wait ends, and the waiting node can know when."""
    num_firing: Counter[int] = Counter()
    known_at: dict[int, dict[int, int]] = {}
    """Trigger -> node that knows of its firing -> a line that fires it."""
    for connection in connections:
        for trigger in {connection.sent_trigger, connection.received_trigger} - {0}:
            num_firing[trigger] += 1
            node = connection.src if connection.sent_trigger == trigger else connection.dst
            known_at.setdefault(trigger, {}).setdefault(node, connection.line)
    for waits in (c for c in connections if c.trigger):
        num = num_firing[waits.trigger]
        if not num:
            reader.refuse(waits.line, f"nothing fires trigger {waits.trigger}")
        elif num != barriers.get(waits.trigger, 1):
            reader.refuse(
                waits.line, f"trigger {waits.trigger} is fired by {num} lines; only a barrier waits for several",
                hint=f"trigger id {waits.trigger} barrier count {num}",
            )  # fmt: skip
        elsewhere = (line for node, line in known_at.get(waits.trigger, {}).items() if node != waits.src)
        if line := next(elsewhere, 0):
            reader.refuse(waits.line, f"node {waits.src} cannot know when line {line} is done")


def _connection(reader: _Reader, line: int, words: list[str], nodes: int) -> Connection | None:
    known = ("start", "size", "id", "trigger", "send_done_trigger", "recv_done_trigger", "prio")
    ends = _PAIR.fullmatch(words[0])
    if not ends:
        reader.refuse(line, f"`{words[0][:40]}` is not written source->destination")
        return None
    values: dict[str, float] = {}
    shares_flow = "msg" in words
    if shares_flow:  # with a number of its own, or without
        at = words.index("msg")
        words = words[:at] + words[at + 2 if words[at + 1 : at + 2] and words[at + 1].isdigit() else at + 1 :]
    for key, word in zip(words[1::2], words[2::2], strict=False):
        if key not in known:
            reader.refuse(line, f"unknown word `{key[:40]}`", did_you_mean(key[:40], known))
        values[key] = reader.number(line, key, word)
    if len(words) % 2 == 0:
        reader.refuse(line, f"`{words[-1]}` has no value")
    src, dst = int(ends[1]), int(ends[2])
    if max(src, dst) >= nodes or src == dst:
        reader.refuse(line, f"{src}->{dst} is no pair of {nodes} nodes")
    if values.get("size", 0) <= 0:
        reader.refuse(line, "`size` is missing")
    if ("start" in values) == ("trigger" in values):
        reader.refuse(line, "either `start` or `trigger` must be said")
    return Connection(
        src, dst, int(values.get("size", 0)), values.get("start"), int(values.get("trigger", 0)),
        int(values.get("send_done_trigger", 0)), int(values.get("recv_done_trigger", 0)), shares_flow, line,
    )  # fmt: skip
