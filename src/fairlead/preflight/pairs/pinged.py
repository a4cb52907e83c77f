"""Packets over named paths between nodes: which are sent, and which part of the fabric their losses accuse. Pure.

Where ways can be chosen (micro-segments), a pair of nodes is tested over every T1 of every plane, and each node besides
by packets to itself: over its T0 and one T1 and back, which need a single link between switches, and by its T0 alone.
Elsewhere a pair is tested by several source ports on every rail, and nobody knows which way each takes.

A run is cut into windows. The first one is the suspicion, the later ones are the repetitions that the pair phase would
make in quiet; what they show goes through the same rules (symptoms.py, blame.py) with the same limits.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from fairlead.base.units import counted, duration
from fairlead.preflight.pairs.facts import Burst, PairFacts, Speed
from fairlead.preflight.pairs.limits import Limits
from fairlead.preflight.pairs.naming import path_name, subject_of, where
from fairlead.preflight.pairs.parts import Triple
from fairlead.preflight.pairs.paths import Paths
from fairlead.preflight.pairs.steered import T0_ALONE, Steering
from fairlead.preflight.pairs.symptoms import Symptom, blames
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.spec import usid

FLOWS = 8
"""Source ports of a pair on a rail, where the source port is what a switch spreads by."""
MAX_PARTNERS = 16
"""Nodes that each node sends to, the next ones in the list: a port has witnesses enough, and time does not grow."""
MAX_EVIDENCE = 4


@dataclass(frozen=True, slots=True)
class Ping:
    """One path that packets are sent over, and the way answers take."""

    src: int
    dst: int
    path: int
    """Number of the plane or rail, as in Paths."""
    t1: int | None = None
    """The T1 that the packets take, or T0_ALONE; None: there is none to choose."""
    flow: int = 0
    to: str = ""
    back: str = ""
    """Address for answers; empty: where the packet came from."""

    @property
    def is_loop(self) -> bool:
        """Whether it goes back to its sender."""
        return self.src == self.dst


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the packets of one Ping, window by window."""

    sent: tuple[int, ...]
    heard: tuple[int, ...]
    """At the other end."""
    back: tuple[int, ...]
    """Answers that came back."""
    rtt_ns: tuple[int, ...]
    """The shortest round trip of each window; 0: none."""
    p50_ns: int = 0
    p99_ns: int = 0
    full_there: int = 0
    """Packets that the other end's socket had no room for, of this path and of others."""
    full_here: int = 0
    """As many that the sender's own socket for answers had no room for."""


@dataclass(frozen=True)
class Plan:
    """Who is tested, and how."""

    nodes: tuple[str, ...]
    paths: Paths
    steering: Steering
    pings: tuple[Ping, ...]
    partners: int

    @property
    def used(self) -> tuple[int, ...]:
        """The paths that packets are sent over."""
        return tuple(range(1, len(self.paths.labels))) or (0,)

    def name(self, ping: Ping) -> str:
        """A path as people call it."""
        label = self.paths.labels[ping.path]
        if ping.t1 is None:
            return f"{label} flow {ping.flow}"
        return f"{label} over {'its T0 alone' if ping.t1 == T0_ALONE else f't1-{ping.t1}'}"


def plan_of(nodes: Sequence[str], paths: Paths) -> Plan:
    """Every path between each node and its partners; `nodes` all have a place."""
    seats = {i: paths.seats[n] for i, n in enumerate(nodes) if n in paths.seats}
    steering = Steering(paths.t1, seats, paths.planes, len(paths.labels))
    partners = min(len(nodes) - 1, MAX_PARTNERS)
    pings: list[Ping] = []
    for src, name in enumerate(nodes):
        for shift in range(1, partners + 1):
            dst = (src + shift) % len(nodes)
            other = nodes[dst]
            for path in range(1, len(paths.labels)) or (0,):
                here, there = paths.addresses[name][path], paths.addresses[other][path]
                if here and there:
                    pings += _between(steering, src, dst, path, there)
        if steering.is_there and src in seats:
            for path in steering.planes:
                if paths.addresses[name][path]:
                    ways = range(T0_ALONE, steering.t1)
                    pings += [Ping(src, src, path, t1, to=steering.address(src, path, t1)) for t1 in ways]
    return Plan(tuple(nodes), paths, steering, tuple(pings), partners)


def _between(steering: Steering, src: int, dst: int, path: int, there: str) -> Iterator[Ping]:
    """The paths of a pair on one plane or rail."""
    if path not in steering.planes or not {src, dst} <= steering.seats.keys():
        yield from (Ping(src, dst, path, flow=flow, to=there) for flow in range(FLOWS))
        return
    (t0, port), (other, far), plane = steering.seats[src], steering.seats[dst], steering.planes[path]
    for t1 in [None] if t0 == other else range(steering.t1):
        to, back = (
            usid.path_address(plane, t0, t1, other, far),
            usid.path_address(plane, other, t1, t0, port),
        )
        yield Ping(src, dst, path, T0_ALONE if t1 is None else t1, to=str(to), back=str(back))


# ---- from what was seen to who is to blame ---------------------------------------------------------------------------


def facts_of(plan: Plan, seen: Mapping[int, Seen], lost: Mapping[int, str]) -> PairFacts:
    """What the pair phase would have seen; `seen` is by number in `plan.pings`, `lost` are nodes without an answer."""
    steering, paths = plan.steering, plan.paths
    ways = steering.ways()
    facts = PairFacts(
        nodes=plan.nodes,
        paths=paths.labels,
        addresses=tuple(paths.addresses[n] for n in plan.nodes),
        groups={i: paths.groups[n] for i, n in enumerate(plan.nodes) if n in paths.groups},
        switches=tuple(paths.switches[n] for n in plan.nodes) if paths.switches else (),
        ways=ways,
        small=0,
        full=1,  # of each burst one packet is counted so: all have one size
        num_flows=FLOWS,
        again_small=0,
        members=tuple(range(len(plan.nodes))),
        stopped=dict.fromkeys(range(len(paths.labels)), plan.partners) if plan.partners < len(plan.nodes) - 1 else {},
        lost=dict(lost),
    )
    by_test: defaultdict[Triple, list[_Flow]] = defaultdict(list)
    for number, one in seen.items():
        ping = plan.pings[number]
        if ping.is_loop:
            assert ping.t1 is not None
            way = Triple(ping.src, ping.dst, steering.number(ping.path, ping.t1))
            by_test[way].append(_Flow(one.sent, one.back, one.rtt_ns, one.full_here))
        else:
            by_test[Triple(ping.src, ping.dst, ping.path)].append(
                _Flow(one.sent, one.heard, one.rtt_ns, one.full_there)
            )
            by_test[Triple(ping.dst, ping.src, ping.path)].append(_Flow(one.heard, one.back, one.rtt_ns, one.full_here))
    for test, flows in by_test.items():
        if test.path in ways:
            facts.steered.append(test)
        num = len(flows[0].sent)
        for pieces in ([0], [1], range(2, num)):
            burst = _burst(test, flows, pieces)
            if burst is not None:
                (facts.bursts if 0 in pieces else facts.again).append(burst)
        for window in range(num):
            rtt_ns = min((flow.rtt_ns[window] for flow in flows if flow.rtt_ns[window]), default=0)
            (facts.speeds_again if window else facts.speeds).append(Speed(*test, 0, rtt_ns, 0))
    return facts


class _Flow(NamedTuple):
    """One way of a Ping, window by window."""

    sent: tuple[int, ...]
    came: tuple[int, ...]
    rtt_ns: tuple[int, ...]
    full: int
    """Packets that the receiving socket had no room for in the whole run."""


def _burst(test: Triple, flows: Sequence[_Flow], pieces: Sequence[int]) -> Burst | None:
    """Packets of a directed pair in some windows; None of the first if all arrived, or if nothing was sent.

    Packets that a socket had no room for crossed the fabric. Which they were nobody knows, so as many as it counted are
    taken off the losses of every window and path that it served; a path of which nothing arrived stays dead.
    """
    counts = [
        (sent, came + flow.full if came or flow.full >= sent else 0)
        for flow in flows
        for sent, came in [(sum(flow.sent[w] for w in pieces), sum(flow.came[w] for w in pieces))]
    ]
    counts = [(sent, min(came, sent)) for sent, came in counts if sent]
    sent, came = sum(s for s, _ in counts), sum(c for _, c in counts)
    if sent < 2 or (0 in pieces and sent == came):
        return None
    dark = _dark(counts)
    return Burst(*test, max(came - 1, 0), min(came, 1), FLOWS - dark if dark else 0, dark, 0, sent - 1)


def _dark(counts: Sequence[tuple[int, int]]) -> int:
    """How many of FLOWS flows do not arrive, where each arrives whole or not at all; 0 where that is not so.

    Requests and answers of a pair both count, and there may be more than FLOWS of them: their share decides.
    """
    whole, dark = sum(s == c for s, c in counts), sum(c == 0 for _, c in counts)
    if not (whole and dark) or whole + dark != len(counts) or len(counts) < FLOWS:
        return 0
    return min(max(round(FLOWS * dark / len(counts)), 1), FLOWS - 1)


_WORDS = {
    Symptom.BLOCKED: ("preflight/unreachable", Verdict.FAIL, "no packet arrives"),
    Symptom.DARK: ("preflight/dead-path", Verdict.FAIL, "some flows arrive whole and others not at all"),
    Symptom.LOSSY: ("preflight/packet-loss", Verdict.FAIL, "{loss:.1%} of the packets are lost"),
    Symptom.LATE: ("preflight/late-link", Verdict.WARN, "the shortest round trip takes {rtt}, the median is {median}"),
}
_REMEDY = "look at error counters and link state at both ends of it, then run fairlead preflight"


def judge(
    plan: Plan,
    seen: Mapping[int, Seen],
    lost: Mapping[int, str],
    limits: Limits,
    *,
    unbound: Mapping[tuple[int, int], str] = MappingProxyType({}),
    errors: Mapping[tuple[int, int], str] = MappingProxyType({}),
    owed: Mapping[int, int] = MappingProxyType({}),
) -> list[Finding]:
    """Findings: guilty parts, nodes that gave no answer or not of all paths, ports without their address, sockets that
    were full. `errors` are what the kernel of a node said on a path; `owed`: paths it did not tell its part of.
    """
    facts = facts_of(plan, seen, lost)
    times = [s.rtt_ns for s in facts.speeds if s.rtt_ns]
    median_ns = statistics.median(times) if times else 0
    findings = []
    for blame in blames(facts, limits):
        if blame.symptom not in _WORDS:
            continue
        code, verdict, words = _WORDS[blame.symptom]
        pairs = set(blame.culprit.pairs)
        bursts = [b for b in (*facts.bursts, *facts.again) if (b.src, b.dst, b.path) in pairs]
        sent = sum(b.sent + 1 for b in bursts)
        came = sum(b.small + b.full for b in bursts)
        speeds = [s for s in (*facts.speeds, *facts.speeds_again) if (s.src, s.dst, s.path) in pairs and s.rtt_ns]
        rtt_ns = min((s.rtt_ns for s in speeds), default=0)
        loss = 1 - came / sent if sent else 0.0
        said = words.format(loss=loss, rtt=duration(rtt_ns / 1e9), median=duration(median_ns / 1e9))
        unsure = "" if blame.is_confirmed else "; not seen again in the rest of the run"
        findings.append(
            Finding(
                code=code,
                verdict=verdict if blame.is_confirmed else Verdict.WARN,
                subject=subject_of(blame.culprit.part, facts),
                message=f"{said}, {where(blame.culprit, facts)}{unsure}",
                evidence=(
                    *_own_errors(facts, pairs, errors),
                    *_evidence(facts, sorted(pairs)[:MAX_EVIDENCE], is_late=blame.symptom is Symptom.LATE),
                ),
                remedy=_REMEDY,
                data={
                    "part": str(blame.culprit.part.kind),
                    "symptom": str(blame.symptom),
                    "loss": loss,
                    "rtt_ns": rtt_ns,
                },
            )
        )
    findings += [
        Finding(
            code="fabric/end-silent",
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="node", nodes=(plan.nodes[n],)),
            message=f"gave no answer: {why}",
            remedy=f"fairlead probe -w {plan.nodes[n]}",
        )
        for n, why in {
            **{n: f"it did not tell its part of {counted(num, 'path')}" for n, num in owed.items()},
            **lost,
        }.items()
    ]
    findings += [
        Finding(
            code="preflight/no-address",
            verdict=Verdict.FAIL,
            subject=Subject(kind="port", nodes=(plan.nodes[n],), name=plan.paths.labels[path]),
            message=f"the node does not have the address it should have there: {why}",
            evidence=(Evidence(f"bind on {plan.nodes[n]}", plan.paths.addresses[plan.nodes[n]][path]),),
            remedy="ip -br address; correct the interface's configuration",
        )
        for (n, path), why in sorted(unbound.items())
        if n not in lost
    ]
    return [*findings, *_full(plan, seen)]


def _full(plan: Plan, seen: Mapping[int, Seen]) -> Iterator[Finding]:
    """Sockets without room: what was lost there is no loss of the fabric, and hides what the fabric lost."""
    most = Counter[int]()
    for number, one in seen.items():
        ping = plan.pings[number]
        for n, num in ((ping.src, one.full_here), (ping.dst, one.full_there)):
            most[n] = max(most[n], num)
    for n, num in sorted(most.items()):
        if num:
            yield Finding(
                code="fabric/own-loss",
                verdict=Verdict.UNKNOWN,
                subject=Subject(kind="node", nodes=(plan.nodes[n],)),
                message=f"its own socket had no room for {counted(num, 'packet')}: "
                "as many losses of each path to it do not count",
                evidence=(Evidence(f"SO_MEMINFO on {plan.nodes[n]}", f"{num} dropped"),),
                remedy="a longer --interval, fewer nodes with -w, or a node with less other work",
            )


def _own_errors(facts: PairFacts, pairs: set[Triple], errors: Mapping[tuple[int, int], str]) -> Iterator[Evidence]:
    """What the kernels of the senders said where packets are missing, the first two."""
    found = sorted({(n, path) for n, path in errors if any(t.src == n and t.path == path for t in pairs)})
    for n, path in found[:2]:
        yield Evidence(f"sendto on {facts.nodes[n]}, {path_name(facts, path)}", errors[n, path])


def _evidence(facts: PairFacts, pairs: Sequence[Triple], *, is_late: bool) -> Iterator[Evidence]:
    for t in pairs:
        mine = [b for b in (*facts.bursts, *facts.again) if (b.src, b.dst, b.path) == t]
        came, sent = sum(b.small + b.full for b in mine), sum(b.sent + 1 for b in mine)
        rtts = [s.rtt_ns for s in (*facts.speeds, *facts.speeds_again) if (s.src, s.dst, s.path) == t and s.rtt_ns]
        text = f"shortest round trip {duration(min(rtts) / 1e9)}" if is_late and rtts else f"{came} of {sent} arrived"
        yield Evidence(f"{facts.nodes[t.src]} -> {facts.nodes[t.dst]}, {path_name(facts, t.path)}", text)


def tested(plan: Plan) -> str:
    """What was sent over, in words."""
    links = len({(plan.steering.seats[p.src][0], p.t1, p.path) for p in plan.pings if p.is_loop and p.t1 != T0_ALONE})
    beside = f", {counted(links, 'link')} between switches by themselves" if links else ""
    return f"{len(plan.nodes)} nodes, {counted(len(plan.pings), 'path')}{beside}"
