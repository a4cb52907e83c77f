"""A fabric that answers the steps of the pair phase by drawing lots: only what agents would say, as the bytes they say.

Independent of the blame it is used to test: a fault lists the directed pairs it hits by plain loops. Path 0 is the
address that uses every plane; its flows are dealt to the planes at random, as hashing does. Where there are T1s, the
flows of a pair below different T0s are dealt to them in the same way, each time alike; a steered path takes one.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import msgspec

from fairlead.preflight.pairs.answers import AgentReport
from fairlead.preflight.pairs.onnode.coming import knock_of
from fairlead.preflight.pairs.phase import PairFacts
from fairlead.preflight.pairs.steered import Steering
from fairlead.preflight.pairs.steps import Answers, Step

NUM_FLOWS = 8
RATE = 100e9
RTT_NS = 80_000


@dataclass(frozen=True)
class Effect:
    """What happens to packets of a directed pair on a plane."""

    loss: float = 0.0
    full_lost: bool = False
    rate: float = 1.0
    delay: float = 1.0
    dark: float = 0.0
    """Share of flows that do not arrive at all."""


BLOCKED = Effect(loss=1.0, full_lost=True)
MTU = Effect(full_lost=True)
LOSSY = Effect(loss=0.05)
SLOW = Effect(rate=0.05)
LATE = Effect(delay=20.0)
DARK = Effect(dark=0.5)


def _lost(rng: random.Random, num: int, share: float) -> int:
    """How many of some packets are lost: from one lost packet to the next, where they are few."""
    if not share:
        return 0
    lost, at = 0, 0
    while (at := at + 1 + int(math.log(1 - rng.random()) / math.log(1 - share))) <= num:
        lost += 1
    return lost


@dataclass
class Fabric:
    """`num_planes` 0 means that nodes have one address and no planes."""

    num_nodes: int
    num_planes: int
    seed: int = 0
    noise: float = 0.1
    """Spread of healthy rates and round trips."""
    hiccups: float = 0.0
    """Chance, for each node and batch of rounds, that a healthy burst to it loses packets to a busy machine."""
    effects: dict[tuple[int, int, int], Effect] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    """Nodes that answer nothing."""
    steering: Steering = field(default_factory=Steering)
    t0_of: tuple[int, ...] = ()
    """The T0 of each node, where there are several."""
    num_t1: int = 0
    links: dict[tuple[int, int, int], Effect] = field(default_factory=dict)
    """(path, T0, T1) -> what happens on that link, in both directions."""
    sim_s: float = 0.0
    num_steps: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.by_shift: dict[int, list[tuple[int, int, int]]] | None = None
        self.paths = range(1, self.num_planes + 1) if self.num_planes else range(1)

    # ---- faults ------------------------------------------------------------------------------------------------------

    def hit(self, pairs: Iterator[tuple[int, int, int]], effect: Effect) -> None:
        """Put an effect on directed pairs; the graver stays where two meet."""
        for key in pairs:
            old = self.effects.get(key)
            if old is None or (effect.loss, effect.full_lost, -effect.rate) > (old.loss, old.full_lost, -old.rate):
                self.effects[key] = effect

    def plane(self, p: int) -> Iterator[tuple[int, int, int]]:
        n = self.num_nodes
        return ((a, b, p) for a in range(n) for b in range(n) if a != b)

    def port(self, node: int, p: int, way: str = "both") -> Iterator[tuple[int, int, int]]:
        for other in range(self.num_nodes):
            if other != node:
                if way != "in":
                    yield node, other, p
                if way != "out":
                    yield other, node, p

    def node(self, node: int) -> Iterator[tuple[int, int, int]]:
        for p in self.paths:
            yield from self.port(node, p)

    def pair(self, a: int, b: int, *, one_way: bool = False) -> Iterator[tuple[int, int, int]]:
        for p in self.paths:
            yield a, b, p
            if not one_way:
                yield b, a, p

    def met(self, src: int, dst: int, path: int, flow: int) -> Effect:
        """What a flow meets on its way: the gravest of the pair's own effect and those of the links it takes."""
        ways = self.steering.ways()
        plane, t1 = ways.get(path, (path, None))
        if not plane and self.num_planes:
            plane = self.rng.choice(self.paths)
        found = [self.effects.get((src, dst, plane), Effect())]
        if self.t0_of and (t1 is not None or self.t0_of[src] != self.t0_of[dst]):
            if t1 is None:
                t1 = random.Random(f"{self.seed} {src} {dst} {plane} {flow}").randrange(self.num_t1)
            found += [self.links.get((plane, self.t0_of[n], t1), Effect()) for n in (src, dst)]
        return max(found, key=lambda e: (e.loss, e.full_lost, e.dark, -e.rate, e.delay))

    # ---- the phase ---------------------------------------------------------------------------------------------------

    def run(self, phase: Generator[Step, Answers, PairFacts]) -> PairFacts:
        """Answer every step; the time spent drawing lots is kept in `sim_s`."""
        try:
            step = next(phase)
            while True:
                json.dumps(step.line)  # what is sent costs time, too
                raw = self.answer(step)
                self.num_steps += 1
                decode = msgspec.json.Decoder(AgentReport).decode
                reports = {node: decode(text) for node, text in raw.items()}
                lost = {n: "no answer" for n in step.expect if n in self.dead}
                step = phase.send(Answers(reports, 0, dict.fromkeys(reports, 1000), lost))
        except StopIteration as end:
            return end.value

    def answer(self, step: Step) -> dict[int, bytes]:
        started = time.process_time()
        line = step.line
        alive = [n for n in step.expect if n not in self.dead]
        said: dict[int, dict] = {n: {"step": line.get("step", 0)} for n in alive}
        getattr(self, "_" + line["do"])(line, said)
        out = {n: json.dumps(fields).encode() for n, fields in said.items()}
        self.sim_s += time.process_time() - started
        return out

    def _setup(self, line, said):
        for fields in said.values():
            fields.update(ports=[1] * (self.num_planes + 1), tcp=1, errors=[])

    def _peers(self, line, said):
        pass

    def _knock(self, line, said):
        pass

    def _knocked(self, line, said):
        """Each hears one of the others on every path."""
        for node, fields in said.items():
            src = (node + 1) % self.num_nodes
            heard = [[src, p, knock_of(bytes([src % 256]) * 32, node, p).hex()] for p in range(self.num_planes + 1)]
            fields.update(secret=bytes([node % 256]).hex() * 32, knocks=heard)

    def _clock(self, line, said):
        for fields in said.values():
            fields["clock_ns"] = 500

    def _work(self, line, said):
        for fields in said.values():
            fields.update(wall_ns=20_000_000, cpu_ns=20_000_000)

    def _counters(self, line, said):
        for fields in said.values():
            fields["counters"] = {}

    def _tcp(self, line, said):
        for fields in said.values():
            fields.update(ok=len(line["shifts"]), errors=[])

    def _burst(self, line, said):
        smalls, full = defaultdict(lambda: line["small"], line.get("smalls", ())), line["full"]
        bad = defaultdict(list)
        for src, dst, path in self._hit_pairs(line):
            if dst in said and ("pairs" in line or path in line["paths"]):
                got = self._one_burst(src, dst, path, smalls[path], full)
                if got:
                    bad[dst].append([src, path, *got, 0])
        for node, fields in said.items():
            fields.update(bad=bad[node], errors=[])
            if "shifts" in line:
                fields["full"] = [[path, 8952] for path in line["paths"]]
            if (
                self.hiccups
                and "shifts" in line
                and self.paths[0] in line["paths"]
                and self.rng.random() < self.hiccups
            ):
                members = line["members"]
                src = members[(members.index(node) - self.rng.choice(line["shifts"])) % len(members)]
                if not any(b[0] == src for b in bad[node]):
                    fields["bad"].append([src, self.paths[0], smalls[self.paths[0]] - 3, full, 5, 0, 0])

    def _one_burst(self, src, dst, path, small, full):
        rng = self.rng
        flows = [self.met(src, dst, path, flow) for flow in range(NUM_FLOWS)]
        if src in self.dead:
            return [0, 0, 0, NUM_FLOWS]
        counts = []
        fulls = 0
        for i, effect in enumerate(flows):
            dark = effect.dark and i < effect.dark * NUM_FLOWS
            num = len(range(i, small, NUM_FLOWS))
            counts.append(0 if dark or effect.loss == 1.0 else num - _lost(rng, num, effect.loss))
            fulls += not (dark or effect.full_lost or rng.random() < effect.loss)
        whole = sum(c == len(range(i, small, NUM_FLOWS)) for i, c in enumerate(counts))
        dark = sum(c == 0 for c in counts)
        return None if whole == NUM_FLOWS and fulls == full else [sum(counts), fulls, whole, dark]

    def _hit_pairs(self, line):
        """Pairs of an order that some effect may touch."""
        if "pairs" in line:
            return [(s, d, p) for s, d, paths in line["pairs"] for p in paths]
        if self.by_shift is None:
            self.by_shift = defaultdict(list)
            n = self.num_nodes
            ends = set()
            for s, d, p in self.effects:
                self.by_shift[(d - s) % n].append((s, d, p))
                ends.add((s, d))
            if self.num_planes:
                for s, d in ends:
                    self.by_shift[(d - s) % n].append((s, d, 0))
            for plane, t0, _ in self.links:
                for s in range(n):
                    for d in range(n):
                        if self.t0_of[s] != self.t0_of[d] and t0 in (self.t0_of[s], self.t0_of[d]):
                            self.by_shift[(d - s) % n] += [(s, d, plane), (s, d, 0)]
            for node in self.dead:
                for other in range(n):
                    if other != node:
                        self.by_shift[(other - node) % n] += [(node, other, p) for p in range(self.num_planes + 1)]
        members = line["members"]
        if len(members) == self.num_nodes:
            return dict.fromkeys(t for shift in line["shifts"] for t in self.by_shift.get(shift, ()))
        at = {m: i for i, m in enumerate(members)}
        shifts = set(line["shifts"])
        every = (t for rows in self.by_shift.values() for t in rows)
        return [t for t in every if t[0] in at and t[1] in at and (at[t[1]] - at[t[0]]) % len(members) in shifts]

    def _speed(self, line, said):
        if "pairs" in line:
            tests = [(s, d, p) for s, d, paths in line["pairs"] for p in paths]
        else:
            members = line["members"]
            n = len(members)
            tests = [
                (members[i], members[(i + shift) % n], p)
                for shift in line["shifts"]
                for i in range(n)
                for p in line["paths"]
            ]
        for fields in said.values():
            fields.update(rates=[], sent_to=[], errors=[])
        for s, d, p in tests:
            flows = [self.met(s, d, p, flow) for flow in range(NUM_FLOWS if self.links else 1)]
            effect = max(flows, key=lambda e: (e.loss, e.full_lost, e.delay))
            share = sum(e.rate for e in flows) / len(flows)
            rate = RATE * share * (1 - self.noise * self.rng.random())
            rtt = RTT_NS * effect.delay * (1 + self.noise * self.rng.random())
            if all(e.full_lost for e in flows) or s in self.dead or d in self.dead:
                rate = 0
            if effect.loss == 1.0:
                rtt = 0
            if d in said:
                said[d]["rates"].append([s, p, int(rate), 0])
            if s in said:
                said[s]["sent_to"].append([d, p, int(rtt), 3])
