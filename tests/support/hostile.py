"""A node that lies: what an honest one would say, altered by a grammar of lies, at any place and any step.

`Liar(seed)` alters values, messages and bytes; what comes of one seed is always the same. `wires` stands in for the
local processes by which nodes are reached, so that conversations cost no process: the engine, its frames and its clocks
are the real ones. `Agents` are the agents of the pair phase in memory.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.cluster.local import LocalBackend
from fairlead.cluster.onnode.frames import END, FRAME, MAGIC
from fairlead.cluster.protocol import Line
from fairlead.preflight.pairs.onnode.coming import knock_of

NUMBERS = (0, 1, -1, 2, 65535, 65536, 70_000, 1 << 20, 1 << 31, 1 << 63, (1 << 64) - 1, 10**300, -(10**30), 0.5, 1e308)
WORDS = (
    "",
    "³",
    "9" * 5000,
    "n0",
    "n1",
    "n2 /shared/x.sbatch",
    "-oProxyCommand=x",
    "../n0",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "x" * 5000,
)
RAW = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b"[" * 3000 + b"]" * 3000,
    b"\xff",
    b"{",
    b'"\\ud800"',
    b"",
)
"""What JSON cannot say, or hardly."""
_HOLE = "\0hole\0"


class Liar:
    """Alters things. Each call draws anew."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def value(self) -> Any:
        """Anything that JSON can say."""
        draw = self.draw
        kind = draw.randrange(7)
        if kind < 3:
            return draw.choice(NUMBERS)
        if kind == 3:
            return draw.choice(WORDS)
        if kind == 4:
            return [self.value() for _ in range(draw.randrange(4))]
        if kind == 5:
            return {draw.choice(WORDS): self.value() for _ in range(draw.randrange(3))}
        return draw.choice((None, True, False))

    def altered(self, honest: Any, times: int = 1) -> Any:
        """The same with something else, too much or nothing at some places."""
        found = copy.deepcopy(honest)
        for _ in range(times):
            found = self._alter(found)
        return found

    def _alter(self, value: Any) -> Any:
        draw = self.draw
        if isinstance(value, dict) and value and draw.random() < 0.85:
            key = draw.choice(list(value))
            what = draw.randrange(8)
            if what == 0:
                del value[key]
            elif what == 1:
                value[draw.choice(WORDS)] = self.value()
            else:
                value[key] = self._alter(value[key])
            return value
        if isinstance(value, list) and value and draw.random() < 0.85:
            at, what = draw.randrange(len(value)), draw.randrange(6)
            if what == 0:
                del value[at]
            elif what == 1:
                value.insert(at, copy.deepcopy(value[at]))
            else:
                value[at] = self._alter(value[at])
            return value
        return _HOLE if draw.random() < 0.15 else self.value()

    def json(self, honest: Any) -> bytes:
        """Something like JSON of it."""
        draw = self.draw
        text = json.dumps(self.altered(honest, draw.randrange(1, 4)))
        raw = text.encode()
        while (hole := json.dumps(_HOLE).encode()) in raw:
            raw = raw.replace(hole, draw.choice(RAW), 1)
        return self.torn(raw) if draw.random() < 0.1 else raw

    def torn(self, data: bytes) -> bytes:
        """Bytes with some missing, doubled or others."""
        draw = self.draw
        at = draw.randrange(len(data) + 1)
        return draw.choice((data[:at], data[:at] + data, data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]))

    def frames(self, honest: list[tuple[bytes, int, bytes]]) -> bytes:
        """A conversation of frames (kind, rank, payload), some of them not as they should be."""
        draw, out = self.draw, [MAGIC]
        said = [f for f in honest if draw.random() > 0.1]
        for _ in range(draw.randrange(3)):
            said.insert(draw.randrange(len(said) + 1), draw.choice(honest))
        for kind, rank, payload in said:
            now, whose, what = kind, rank, payload
            lie = draw.randrange(6)
            if lie == 0:
                now = draw.choice((b"q", b"d", b"b", b"a", b"x", b"z", b"H", b"O", b"E", b"o", b"\r"))
            elif lie == 1:
                whose = draw.choice((1, 7, 65535))
            elif lie == 2:
                what = self.json(json.loads(payload)) if payload.startswith(b"{") else self.torn(payload)
            length = len(what) if draw.random() > 0.05 else draw.choice((0, 1, len(what) + 1, 1 << 31))
            out.append(FRAME.pack(now, whose, length) + what + END)
        data = b"".join(out)
        return self.torn(data) if draw.random() < 0.1 else data


# ---- nodes behind the real engine ------------------------------------------------------------------------------------


class Scripted(LocalBackend):
    """Nodes that are not there: `said[node]` is what each writes. Used with `Wire` in the place of a local process."""

    name = "scripted"

    def __init__(self, said: Mapping[str, bytes]) -> None:
        self.said = said

    def wrap(self, node, argv):
        return ["scripted", node]


def wires(said: Mapping[str, bytes]) -> Callable[..., Wire]:
    """What makes a `Wire` where a `Child` would be started."""
    return lambda argv, env=None: Wire(said[argv[1]])  # noqa: ARG005


class Wire:
    """A process's pipes in memory: it writes what it was told to, in pieces, and ends."""

    stdin, stdout, stderr = 0, 1, 2

    def __init__(self, said: bytes) -> None:
        self.pieces = [said[at : at + 700] for at in range(0, len(said), 700)]
        self.is_open = True

    async def read(self, fd: int) -> bytes:
        await asyncio.sleep(0)
        return self.pieces.pop(0) if fd == self.stdout and self.pieces else b""

    async def write(self, data: bytes) -> None:
        if not self.is_open:
            raise BrokenPipeError

    def end_input(self) -> None:
        self.is_open = False

    async def wait(self, limit_s: float) -> int | None:
        return 0

    def close(self) -> None:
        self.is_open = False


def secret(node: int) -> bytes:
    """What an agent's knocks are made from."""
    return node.to_bytes(32, "big")


def frame_number(number: int) -> bytes:
    """The payload of a frame `a`."""
    return struct.pack(">Q", number)


# ---- agents of the pair phase ----------------------------------------------------------------------------------------


class Agents:
    """Agents in memory on a fabric where all is well; those of `liars` say something else. Agents for Driver."""

    num_starting = 0

    def __init__(self, nodes: tuple[str, ...], num_paths: int, liars: Mapping[str, Liar], *, hear: bool = True) -> None:
        """`hear`: they tell the knocks at their addresses; else something made up."""
        self.nodes, self.num_paths, self.liars, self.hear = nodes, num_paths, liars, hear
        self.lines: list[Line] = []
        self.ended: dict[str, Any] = {}
        self.orders: list[dict[str, Any]] = []
        """What honest agents were told."""
        self.honest_for = {node: liar.draw.choice((0, 1, 2, 6, 10, 12, 14, 20)) for node, liar in liars.items()}
        """Answers until a liar begins to lie: who is found out at once is asked no more."""

    @property
    def has_unread(self) -> bool:
        return bool(self.lines)

    def send(self, text: str) -> None:
        order = json.loads(text)
        self.orders.append(order)
        if order["do"] in ("peers", "knock", "collect", "bye"):
            return
        for number, node in enumerate(self.nodes):
            if number in order.get("only", range(len(self.nodes))):
                self._say(node, self._honest(number, order))

    def _say(self, node: str, honest: dict[str, Any]) -> None:
        liar = self.liars.get(node)
        left = self.honest_for[node] = self.honest_for.get(node, 0) - 1
        if liar is None or left >= 0:
            self.lines.append(Line(node, None, "stdout", json.dumps(honest)))
            return
        for _ in range(liar.draw.choice((1, 1, 1, 1, 2, 5))):
            said = liar.json(honest) if liar.draw.random() < 0.8 else json.dumps(honest).encode()
            stream = liar.draw.choice(("stdout", "stdout", "stdout", "stderr"))
            self.lines += [Line(node, None, stream, t) for t in said.decode("utf-8", "backslashreplace").split("\n")]

    def _honest(self, me: int, order: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {"step": order["step"]}
        members, come, go = order.get("members", []), [], []
        for shift in order.get("shifts", ()) if me in members else ():
            at, num = members.index(me), len(members)
            come += [[members[(at - shift) % num], path] for path in order["paths"]]
            go += [[members[(at + shift) % num], path] for path in order["paths"]]
        for src, dst, paths in order.get("pairs", ()):
            come += [[src, path] for path in paths if dst == me]
            go += [[dst, path] for path in paths if src == me]
        match order["do"]:
            case "setup":
                said |= {
                    "ports": [4000 + me] * self.num_paths,
                    "tcp": 5000,
                    "errors": [],
                    "counters": counted(order, me),
                }
            case "clock":
                said["clock_ns"] = time.time_ns()
            case "work":
                said |= {
                    "wall_ns": 50_000_000 * order["blocks"] // 100 + 1,
                    "cpu_ns": 50_000_000 * order["blocks"] // 100,
                }
            case "burst":
                said |= {"ok": len(come), "full": [[path, 8952] for path in sorted({p for _, p in go})], "bad": []}
            case "speed":
                said["rates"] = [[src, path, 4_000_000_000, order["bytes"]] for src, path in come]
                said["sent_to"] = [[dst, path, 100_000, 3] for dst, path in go]
            case "tcp":
                said |= {"ok": len({dst for dst, _ in go}), "errors": []}
            case "knocked":
                others = [n for n in range(len(self.nodes)) if n != me]
                knocks = [[n, p, knock_of(secret(n), me, p).hex()] for n in others for p in range(self.num_paths)]
                said |= {"secret": secret(me).hex(), "knocks": knocks if self.hear else [[0, 0, "11" * 16]]}
            case "counters":
                said |= {"counters": counted(self.orders[0], me), "clock_ns": 60_000_000_000}
        return said

    def read(self, timeout_s: float) -> Line | None:
        return self.lines.pop(0) if self.lines else None


def counted(setup: Mapping[str, Any], me: int) -> dict[str, Any]:
    """Every counter that was asked for, at rest."""
    rails = [rail for rail, *_ in setup["ports"][me]] if "ports" in setup else []
    return {rail: {name: 7 for name, _ in setup["counters"]} for rail in rails}
