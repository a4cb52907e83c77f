"""Facts of the pair phase to findings: what ails which node, port, plane or pair, and what was not tested. Pure.

The words for every symptom stand in one table. Which part is guilty was settled by blame.py; here it gets names,
numbers and a way to mend it; what ails a node by itself is judge_nodes.py's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fairlead.base.nodeset import fold
from fairlead.base.units import counted, duration, rate
from fairlead.preflight.pairs import judge_nodes
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.limits import DEFAULT, Limits
from fairlead.preflight.pairs.naming import path_name, subject_of, where
from fairlead.preflight.pairs.parts import Kind, Triple
from fairlead.preflight.pairs.symptoms import Blame, Symptom, blames, floor, late_from, median_rate, without_address
from fairlead.preflight.pairs.untold import untold
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict

MAX_EVIDENCE = 4
MAX_UNTESTED_SHOWN = 16


@dataclass(frozen=True, slots=True)
class _Words:
    """How a symptom is called and said; `{...}` are numbers filled in from the pairs."""

    code: str
    says: str
    remedy: str
    verdict: Verdict = Verdict.FAIL


_WORDS = {
    Symptom.BLOCKED: _Words(
        "preflight/unreachable",
        "no packet arrives",
        "look at the cable, the switch port and its counters, then at filters: nft list ruleset; iptables -S",
    ),
    Symptom.MTU: _Words(
        "preflight/mtu",
        "full-size packets ({full_bytes} bytes) vanish while small ones arrive",
        "set the same MTU on every interface and switch port of the path: ip link show; tracepath -n PEER",
    ),
    Symptom.DARK: _Words(
        "preflight/dead-path",
        "some flows arrive whole and others not at all: one of several paths is dead",
        "look at the links between the switches of this plane; one of them drops silently",
    ),
    Symptom.LOSSY: _Words(
        "preflight/packet-loss",
        "{loss} of the packets are lost",
        "look at error counters at both ends (ethtool -S, perfquery), then change cable or transceiver",
    ),
    Symptom.SLOW: _Words(
        "preflight/slow-link",
        "{rate}, where {usual}",
        "look at the negotiated speed and width at both ends: ethtool, ibstat; then at shapers: tc qdisc",
    ),
    Symptom.LATE: _Words(
        "preflight/late-link",
        "the shortest round trip takes {rtt}, where the fleet's median is {median_rtt}",
        "look for a detour or a standing queue: routes, and queue counters of the switches",
        Verdict.WARN,
    ),
}


def judge_pairs(facts: PairFacts, limits: Limits = DEFAULT, assumed: str = "") -> list[Finding]:
    """Every finding of the pair phase, culprits first in the order of how much they explain, the summary last.

    The summary says what was `assumed`.
    """
    found, fleet = blames(facts, limits), _fleet(facts, limits)
    never_repeated = [b for b in found if _is_left_over(b, facts)]
    judged = [
        *judge_nodes.lost(facts),
        *judge_nodes.no_address(facts),
        *(_finding(b, facts, fleet) for b in found if b not in never_repeated),
        *_left_over(never_repeated, facts),
        *_tcp(facts, found),
        *judge_nodes.ports(facts),
        *judge_nodes.slow_nodes(facts, limits),
        *judge_nodes.clocks(facts, limits),
        *judge_nodes.untested(facts),
    ]
    return [*judged, _summary(facts, judged, assumed)]


def dead_part(facts: PairFacts, limits: Limits = DEFAULT) -> str:
    """What is broken between nodes and not at one of them, so that flows of any may meet it; empty where nothing is.

    A collective would wait for those flows and say no more than this does.
    """
    for blame in blames(facts, limits):
        is_shared = blame.culprit.part.kind not in (Kind.NODE, Kind.PORT, Kind.PAIR, Kind.LINK)
        if is_shared and blame.is_confirmed and blame.symptom in (Symptom.BLOCKED, Symptom.MTU, Symptom.DARK):
            return f"{subject_of(blame.culprit.part, facts).name} is dead"
    return ""


# ---- guilty parts ----------------------------------------------------------------------------------------------------


def _finding(blame: Blame, facts: PairFacts, fleet: dict[str, float]) -> Finding:
    words, culprit = _WORDS[blame.symptom], blame.culprit
    values = _values(blame, facts, fleet)
    message = f"{words.says.format(**values)}, {where(culprit, facts)}"
    verdict = words.verdict
    if not blame.is_confirmed:
        message += "; not settled within the rounds allowed"
        verdict = Verdict.WARN
    return Finding(
        code=words.code,
        verdict=verdict,
        subject=subject_of(culprit.part, facts),
        message=message,
        evidence=tuple(_evidence(blame, facts)),
        remedy=words.remedy,
        data={
            "symptom": str(blame.symptom),
            "part": str(culprit.part.kind),
            "way": str(culprit.part.way),
            "paths": sorted({path_name(facts, t.path) for t in culprit.pairs}),
            "pairs_failed": culprit.num_bad,
            "pairs_tested": culprit.num_tested,
            "partners": [facts.nodes[n] for n in culprit.partners[:MAX_UNTESTED_SHOWN]],
            "confirmed": blame.is_confirmed,
            **{k: v for k, v in values.items() if k.endswith(("_bps", "_ns", "_ratio"))},
        },
    )


def _is_left_over(blame: Blame, facts: PairFacts) -> bool:
    """Whether a pair lost a few packets once, and the rounds allowed were used up by others before it was repeated."""
    if (
        blame.is_confirmed
        or blame.symptom is not Symptom.LOSSY
        or blame.culprit.part.kind not in (Kind.PAIR, Kind.LINK)
    ):
        return False
    again = {(t.src, t.dst, t.path) for t in facts.again}
    return again.isdisjoint(blame.culprit.pairs)


def _left_over(unsettled: list[Blame], facts: PairFacts) -> Iterator[Finding]:
    """One warning for all of them: a busy machine loses a packet now and then, and that is nobody's fault."""
    if unsettled:
        yield Finding(
            code="preflight/packet-loss",
            verdict=Verdict.WARN,
            subject=Subject(kind="cluster"),
            message=f"{counted(len(unsettled), 'pair')} lost packets once and could not be tested again within the "
            "rounds allowed: the machines or the fabric are busy",
            evidence=tuple(e for b in unsettled[:MAX_EVIDENCE] for e in _evidence(b, facts)),
            remedy="preflight again when nothing else runs",
            data={"pairs": len(unsettled)},
        )


def _fleet(facts: PairFacts, limits: Limits) -> dict[str, float]:
    """What all pairs together showed."""
    times = [s.rtt_ns for s in facts.speeds if s.rtt_ns]
    return {
        "median_bps": median_rate(facts),
        "port_bps": facts.port_bps,
        "floor_bps": floor(facts, limits),
        "median_rtt_ns": statistics.median(times) if times else 0,
        "late_from_ns": late_from(facts, limits) if times else 0,
    }


def _values(blame: Blame, facts: PairFacts, fleet: dict[str, float]) -> dict[str, Any]:
    """The numbers behind a symptom, and as words."""
    pairs = set(blame.culprit.pairs)
    if blame.symptom.is_burst:
        loss = _loss(pairs, facts)
        full_bytes = max((facts.full_bytes.get(t.path, 0) for t in pairs), default=0)
        return {"full_bytes": full_bytes, "loss": f"{loss:.1%}", "loss_ratio": loss}
    speeds = [s for s in chain(facts.speeds, facts.speeds_again) if Triple(s.src, s.dst, s.path) in pairs]
    rate_bps = _middle(s.rate_bps for s in speeds)
    if any(t.path in facts.ways for t in pairs):
        fleet = fleet | {"median_bps": median_rate(facts, over=1)}
    rtt_ns = min((s.rtt_ns for s in speeds if s.rtt_ns), default=0)
    is_all_slow = fleet["median_bps"] < fleet["floor_bps"]
    usual = (
        f"a port carries {rate(fleet['port_bps'])}"
        if is_all_slow
        else f"the fleet's median is {rate(fleet['median_bps'])}"
    )
    return fleet | {
        "rate": rate(rate_bps),
        "usual": usual,
        "rate_bps": rate_bps,
        "rtt": duration(rtt_ns / 1e9),
        "rtt_ns": rtt_ns,
        "median_rtt": duration(fleet["median_rtt_ns"] / 1e9),
    }


def _middle(values: Iterable[float]) -> float:
    known = [v for v in values if v]
    return statistics.median(known) if known else 0.0


def _loss(pairs: set[Triple], facts: PairFacts) -> float:
    """Share of packets lost on the repeated bursts of these pairs, or on the first ones where none was repeated."""
    for bursts, again in ((facts.again, True), (facts.bursts, False)):
        mine = [t for t in bursts if Triple(t.src, t.dst, t.path) in pairs]
        if (sent := sum(facts.num_sent(t, again=again) + facts.full for t in mine)) > 0:
            return sum(facts.num_lost(t, again=again) for t in mine) / sent
    return 0.0


def _evidence(blame: Blame, facts: PairFacts) -> Iterator[Evidence]:
    """What a few of the pairs showed, repeated ones first, one line a pair; then what the sender's own kernel said."""
    pairs = set(blame.culprit.pairs)
    said: dict[Triple, str] = {}
    if blame.symptom.is_burst:
        for burst, small in chain(
            ((t, facts.num_sent(t, again=True)) for t in facts.again), ((t, facts.num_sent(t)) for t in facts.bursts)
        ):
            triple = Triple(burst.src, burst.dst, burst.path)
            if triple in pairs and triple not in said:
                text = f"{burst.small} of {small} small and {burst.full} of {facts.full} full-size packets arrived"
                busy = f", {burst.lost_here} more found the receiver busy" if burst.lost_here else ""
                said[triple] = text + busy
    else:
        for speed in chain(facts.speeds_again, facts.speeds):
            triple = Triple(speed.src, speed.dst, speed.path)
            if triple in pairs and triple not in said:
                text = rate(speed.rate_bps) if speed.rate_bps else "too little arrived for a rate"
                back = f"round trip {duration(speed.rtt_ns / 1e9)}" if speed.rtt_ns else "no answer to a ping"
                said[triple] = f"{text}, {back}"
    for triple, text in list(said.items())[:MAX_EVIDENCE]:
        yield Evidence(_pair_text(triple, facts), text)
    errors = sorted({(f.src, f.path, f.error) for f in facts.faults if Triple(f.src, f.dst, f.path) in pairs})
    for src, path, error in errors[:1]:
        yield Evidence(f"sendto on {facts.nodes[src]}, {path_name(facts, path)}", error)


def _pair_text(triple: Triple, facts: PairFacts) -> str:
    return f"{facts.nodes[triple.src]} -> {facts.nodes[triple.dst]}, {path_name(facts, triple.path)}"


# ---- connections and the summary -------------------------------------------------------------------------------------


def _tcp(facts: PairFacts, found: list[Blame]) -> Iterator[Finding]:
    """Nodes with whose connections most others fail, then pairs that no such node explains."""
    homeless = without_address(facts)
    failed = {
        (src, dst): error
        for src, dst, error in facts.tcp
        if not (src in facts.lost or dst in facts.lost or {(src, 0), (dst, 0)} & homeless)
    }
    told = _unconnected(failed, len(facts.members))
    if told is None:
        yield Finding(
            code="preflight/tcp",
            verdict=Verdict.FAIL,
            subject=Subject(kind="job"),
            message=f"packets pass, but {len(failed)} of {len(facts.members) * (len(facts.members) - 1)} connections "
            f"between nodes carry no message: {next(iter(failed.values()))}",
            remedy="the network's own filters, security groups first: jobs use ports 49152 to 65535",
        )
        return
    for name in told:
        mine = {pair: error for pair, error in failed.items() if name in pair}
        ways = [way for way, at in (("from", 0), ("to", 1)) if any(pair[at] == name for pair in mine)]
        partners = {node for pair in mine for node in pair} - {name}
        yield Finding(
            code="preflight/tcp",
            verdict=Verdict.FAIL,
            subject=Subject(kind="node", nodes=(facts.nodes[name],)),
            message=f"packets pass, but TCP connections {' and '.join(ways)} it carry no message, with {len(partners)} "
            f"of {len(facts.members) - 1} others: {next(iter(mine.values()))}",
            remedy="on the node: nft list ruleset; iptables -S: jobs use ports 49152 to 65535",
            data={"with": [facts.nodes[n] for n in sorted(partners)]},
        )
    for (src, dst), error in failed.items():
        if src in told or dst in told:
            continue
        yield Finding(
            code="preflight/tcp",
            verdict=Verdict.FAIL,
            subject=Subject(kind="pair", nodes=(facts.nodes[src], facts.nodes[dst])),
            message=f"packets pass, but a TCP connection from the first node to the second carries no message: {error}",
            remedy="nft list ruleset; iptables -S on both: jobs use ports 49152 to 65535",
        )


def _unconnected(failed: Iterable[tuple[int, int]], num_nodes: int) -> list[int] | None:
    """Nodes that cannot connect with most of the others, worst first; None where that is true of half of all nodes,
    as then no node is the odd one.
    """
    partners: dict[int, set[int]] = {}
    for src, dst in failed:
        partners.setdefault(src, set()).add(dst)
        partners.setdefault(dst, set()).add(src)
    told: list[int] = []
    while partners:
        worst = max(partners, key=lambda n: (len(partners[n]), -n))
        if len(partners[worst]) < 2 or 2 * len(partners[worst]) <= num_nodes - 1 - len(told):
            left = num_nodes - len(told)
            is_rest_well = sum(map(len, partners.values())) * 2 <= left * (left - 1)  # each pair counts twice
            return told if is_rest_well or not told else None
        told.append(worst)
        if 2 * len(told) >= num_nodes:
            return None
        for other in partners.pop(worst):
            partners[other].discard(worst)
    return told


def _summary(facts: PairFacts, judged: list[Finding], assumed: str) -> Finding:
    """What was tested, and what was not: the last line of the pair phase."""
    num = len(facts.members)
    pairs = num * (num - 1)
    of_pairs = [s for s in facts.speeds if s.path not in facts.ways]
    measured = {(s.src, s.dst) for s in of_pairs}
    members = set(facts.members)
    missing = (
        [(a, b) for a in facts.members for b in facts.members if a != b and (a, b) not in measured]
        if pairs <= 4096
        else []
    )
    num_missing = pairs - len({m for m in measured if m[0] in members and m[1] in members})
    rates, times = [s.rate_bps for s in of_pairs if s.rate_bps], [s.rtt_ns for s in of_pairs if s.rtt_ns]
    links = {(facts.groups[src], *facts.ways[path]) for src, _, path in facts.steered if facts.ways[path][1] >= 0}
    rounds = {kind: counted(facts.rounds.get(kind, 0), "round") for kind in ("burst", "speed")}
    said = [f"{pairs} directed pairs of {num} nodes on {counted(len(facts.paths), 'path')} in {rounds['burst']}"]
    if rates:
        said.append(
            f"rates of {pairs - num_missing} in {rounds['speed']}: median {rate(statistics.median(rates))}, "
            f"round trip {duration(statistics.median(times) / 1e9) if times else 'unknown'}"
        )
    if num_missing:
        said.append(f"{num_missing} not tested for bandwidth")
    if links:
        said.append(f"{counted(len(links), 'link')} between switches by themselves")
    if facts.rounds.get("adaptive"):
        said.append(f"{counted(facts.rounds['adaptive'], 'adaptive round')}")
    if facts.tcp_skipped:
        said.append("connections not tested, as packets already fail")
    is_well = num > 1 and not any(f.verdict is Verdict.FAIL for f in judged)
    missing_facts = list(untold(facts)) if is_well else []
    said += [f"not known: {what}" for what in missing_facts]
    untested = [f"{facts.nodes[a]}>{facts.nodes[b]}" for a, b in missing]
    return Finding(
        code="preflight/pairs",
        verdict=Verdict.UNKNOWN if missing_facts else Verdict.PASS if is_well else Verdict.SKIP,
        subject=Subject(kind="cluster"),
        message="; assuming that ".join(filter(None, ("; ".join(said), assumed))),
        evidence=tuple(Evidence("pairs.json lacks", what) for what in missing_facts),
        remedy="preflight again; if it stays, look at these nodes' words in log.jsonl" if missing_facts else "",
        data={
            **({"assumes": [assumed]} if assumed else {}),
            "nodes": fold([facts.nodes[n] for n in facts.members]),
            "directed_pairs": pairs,
            "paths": list(facts.paths),
            "rounds": facts.rounds,
            "links_tested": len(links),
            "bandwidth_not_tested": untested[:MAX_UNTESTED_SHOWN] if len(untested) > MAX_UNTESTED_SHOWN else untested,
            "num_bandwidth_not_tested": num_missing,
            "median_rate_bps": statistics.median(rates) if rates else None,
            "median_rtt_ns": statistics.median(times) if times else None,
        },
    )
