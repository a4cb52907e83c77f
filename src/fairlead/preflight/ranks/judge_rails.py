"""Rails between nodes, judged: which port on which node is slow or dead, by the blame of the pair phase. Pure.

A rail is what equal local ranks talk over. Its times come from ranks (onnode/rails.py); who is guilty is found as for
pairs: a port takes two partners, a pair is named where that is all that is known.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fairlead.base.units import counted, rate, size
from fairlead.preflight.pairs.blame import MIN_PLANE_NODES, explain
from fairlead.preflight.pairs.facts import PairFacts, Speed
from fairlead.preflight.pairs.limits import DEFAULT, Limits
from fairlead.preflight.pairs.parts import Culprit, Kind, Part, Tested, Triple, Way
from fairlead.preflight.pairs.symptoms import Symptom, blames, floor, median_rate
from fairlead.preflight.ranks.judge_transport import rail_names
from fairlead.preflight.ranks.said import Heard, Rail
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict


def pair_facts(heard: Heard, wanted: Wanted) -> PairFacts:
    """What ranks timed, as the pair phase would have: nodes, one path a rail behind the unused first, rates."""
    nodes = heard.facts.nodes
    number = {name: i for i, name in enumerate(nodes)}
    num_rails = 1 + max((r.rail for r in heard.rails), default=-1)
    found = PairFacts(
        nodes=nodes,
        paths=("job", *(f"rail {k}" for k in range(num_rails))),
        members=tuple(range(len(nodes))),
        small=0, full=0, num_flows=0, again_small=0,
        # what ranks on CPUs send goes through the kernel, and says nothing about a port's own rate
        port_bps=wanted.port_gbps * 1e9 if any(t.num_devices for t in heard.torch.values()) else 0,
    )  # fmt: skip
    for said in heard.rails:
        src = heard.node_of(said.src)
        if said.s and src in number and said.node in number:
            speed = Speed(number[src], number[said.node], said.rail + 1, round(said.bytes * 8 / said.s), 0, 0)
            (found.speeds_again if said.again else found.speeds).append(speed)
    return found


def rail_limits(wanted: Wanted) -> Limits:
    """The pair phase's limits, with the rails' own numbers. The library may fill a port: no cap on the floor.

    A message that did not come has been waited for; a repetition clears a rail as it does there.
    """
    numbers = wanted.numbers
    return replace(
        DEFAULT,
        slow_ratio=numbers["rail_slow_ratio"],
        floor_ratio=numbers["rail_floor_ratio"],
        floor_bps=float("inf"),
        min_slow_witnesses=2,
    )


def judge_rails(heard: Heard, wanted: Wanted) -> list[Finding]:
    """Dead rails, slow rails; then what was tested, or why not."""
    if not heard.rails and not heard.plans:
        return []
    names, facts, limits = rail_names(heard), pair_facts(heard, wanted), rail_limits(wanted)
    dead = list(_dead(heard, facts, names))
    found = [*dead]
    found += [
        _slow(blame.culprit, facts, limits, names, heard, is_sure=blame.is_confirmed)
        for blame in blames(facts, limits)
        if blame.symptom is Symptom.SLOW
    ]
    return [*found, _summary(heard, facts, is_well=not found)]


# ---- dead ------------------------------------------------------------------------------------------------------------

_ANSWERED = re.compile(r"reset by peer|[Cc]onnection refused|closed by peer|Broken pipe")
"""Words for an end that somebody there has put to a connection: packets arrive, whatever else is wrong."""


def _cut_short(
    triple: Triple, said: Rail, facts: PairFacts, names: Mapping[tuple[str, int], str], heard: Heard
) -> Finding:
    culprit = Culprit(Part(Kind.LINK, tuple(triple), Way.OUT), 1, 1, (triple,), ())
    return Finding(
        code="preflight/dead-rail",
        verdict=Verdict.UNKNOWN,
        subject=_subject(culprit, facts, names, heard),
        message="the other end answered and cut the connection, so whether the rail carries is not known",
        evidence=(Evidence(f"rank {said.src} -> rank {said.rank}, {counted(said.bytes, 'byte')}", said.error),),
        remedy="preflight again; if it stays, look for a firewall or a proxy between the two addresses",
    )


def _dead(heard: Heard, facts: PairFacts, names: Mapping[tuple[str, int], str]) -> Iterator[Finding]:
    """Messages that did not come, explained by the fewest parts."""
    number = {name: i for i, name in enumerate(facts.nodes)}
    told: dict[Triple, Rail] = {}
    for said in heard.rails:
        if said.s is None and heard.node_of(said.src) in number and said.node in number:
            told[Triple(number[heard.node_of(said.src)], number[said.node], said.rail + 1)] = said
    answered = {t: said for t, said in told.items() if _ANSWERED.search(said.error)}
    yield from (_cut_short(t, said, facts, names, heard) for t, said in sorted(answered.items()))
    told = {t: said for t, said in told.items() if t not in answered}
    came = {Triple(s.src, s.dst, s.path) for s in [*facts.speeds, *facts.speeds_again]}
    bad = set(told) - came
    if not bad:
        return
    paths = list(range(1, len(facts.paths)))
    # a job that ended at its first dead message has seen one pair of that rail: no evidence for anything larger
    alone = {t for t in bad if len({n for b in bad if b.path == t.path for n in b[:2]}) < MIN_PLANE_NODES}
    both = {t: Triple(t.dst, t.src, t.path) in alone for t in alone}
    pairs = [
        Culprit(Part(Kind.LINK, (*(sorted(t[:2]) if both[t] else t[:2]), t.path), Way.BOTH if both[t] else Way.OUT),
                1, 1, (t,), ())
        for t in sorted(alone)
        if not both[t] or t.src < t.dst
    ]  # fmt: skip
    tested = Tested(list(facts.members), paths, frozenset(came | bad))
    for culprit in [*pairs, *(explain(bad - alone, tested) if bad - alone else ())]:
        lines = [told[t] for t in culprit.pairs[:3]]
        evidence = [
            Evidence(f"rank {s.src} -> rank {s.rank}, {counted(s.bytes, 'byte')}", s.error or "did not come")
            for s in lines
        ]
        yield Finding(
            code="preflight/dead-rail",
            verdict=Verdict.FAIL,
            subject=_subject(culprit, facts, names, heard),
            message=f"nothing arrives, {_where(culprit)}",
            evidence=tuple(evidence),
            remedy="look at the port and the switch port it hangs on: ibstat, perfquery, ethtool -S, mlxlink; then at "
            "partition keys and, with RoCE, at PFC and the GID that NCCL uses",
            data=_data(culprit, facts),
        )


# ---- slow ------------------------------------------------------------------------------------------------------------


def _slow(
    culprit: Culprit,
    facts: PairFacts,
    limits: Limits,
    names: Mapping[tuple[str, int], str],
    heard: Heard,
    *,
    is_sure: bool,
) -> Finding:
    pairs = set(culprit.pairs)
    speeds = [s for s in [*facts.speeds_again, *facts.speeds] if Triple(s.src, s.dst, s.path) in pairs]
    middle, least = median_rate(facts), floor(facts, limits)
    mine = statistics.median(s.rate_bps for s in speeds)
    usual = f"the port carries {rate(facts.port_bps)}" if middle < least else f"the median is {rate(middle)}"
    seen: dict[Triple, Speed] = {}
    for s in speeds:
        seen.setdefault(Triple(s.src, s.dst, s.path), s)
    text = f"{rate(mine)}, where {usual}, {_where(culprit)}"
    return Finding(
        code="preflight/slow-rail",
        verdict=Verdict.FAIL if is_sure else Verdict.WARN,
        subject=_subject(culprit, facts, names, heard),
        message=text if is_sure else f"{text}; not repeated often enough to be sure",
        evidence=tuple(
            Evidence(f"{facts.nodes[t.src]} -> {facts.nodes[t.dst]}, {facts.paths[t.path]}", rate(s.rate_bps))
            for t, s in list(seen.items())[:4]
        ),
        remedy="look at the negotiated speed and width at both ends (ibstat, mlxlink, ethtool), at error counters, "
        "then at the PCIe link of the port (lspci -vv: LnkSta) and at shapers (tc qdisc)",
        data={**_data(culprit, facts), "rate_bps": mine, "median_bps": middle, "floor_bps": least},
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def _data(culprit: Culprit, facts: PairFacts) -> dict[str, object]:
    return {
        "part": str(culprit.part.kind),
        "way": str(culprit.part.way),
        "rails": sorted({facts.paths[t.path] for t in culprit.pairs}),
        "pairs_failed": culprit.num_bad,
        "pairs_tested": culprit.num_tested,
        "partners": [facts.nodes[n] for n in culprit.partners[:16]],
    }


def _port_name(name: str, path: int, facts: PairFacts, names: Mapping[tuple[str, int], str], heard: Heard) -> str:
    """`rail 3 (mlx5_ib3)`: with the port or interface that the library named."""
    rail = path - 1
    bound = {r.device for r in heard.rails if r.node == name and r.rail == rail and r.device}
    device = names.get((name, rail)) or next(iter(bound), "")
    return facts.paths[path] + (f" ({device})" if device else "")


def _subject(culprit: Culprit, facts: PairFacts, names: Mapping[tuple[str, int], str], heard: Heard) -> Subject:
    kind, key = culprit.part.kind, culprit.part.key
    match kind:
        case Kind.FABRIC:
            return Subject(kind="cluster", nodes=facts.nodes, name="the rails")
        case Kind.PLANE:
            return Subject(kind="plane", name=facts.paths[key[0]])
        case Kind.NODE:
            return node(facts.nodes[key[0]])
        case Kind.PORT:
            name = facts.nodes[key[0]]
            return Subject(kind="port", nodes=(name,), name=_port_name(name, key[1], facts, names, heard))
        case _:
            both = (facts.nodes[key[0]], facts.nodes[key[1]])
            path = key[2] if len(key) > 2 else 0
            ports = [_port_name(n, path, facts, names, heard) for n in both] if path else []
            return Subject(kind="pair", nodes=both, name=" and ".join(dict.fromkeys(ports)))


def _where(culprit: Culprit) -> str:
    kind, way = culprit.part.kind, culprit.part.way
    if kind in (Kind.PAIR, Kind.LINK):
        return "in both directions" if way is Way.BOTH else "from the first node to the second"
    if kind in (Kind.NODE, Kind.PORT):
        said = {Way.BOTH: "in and out", Way.OUT: "outward", Way.IN: "inward"}[way]
        return f"{said}, with {counted(len(culprit.partners), 'partner')}"
    return f"between {culprit.num_bad} of {culprit.num_tested} tested pairs of nodes"


def _summary(heard: Heard, facts: PairFacts, *, is_well: bool) -> Finding:
    skipped = Counter(p.skipped for p in heard.plans.values() if p.skipped)
    if not heard.rails:
        why = skipped.most_common(1)[0][0] if skipped else "no message was exchanged"
        return Finding(code="preflight/rails", verdict=Verdict.SKIP, subject=Subject(kind="job"),
                       message=f"rails not tested: {why}")  # fmt: skip
    rates = [s.rate_bps for s in facts.speeds]
    num_bytes = max(r.bytes for r in heard.rails)
    num_rails = len({r.rail for r in heard.rails})
    pairs = len({(s.src, s.dst) for s in facts.speeds})
    said = f"{counted(num_rails, 'rail')}, messages of {size(num_bytes)} between {counted(pairs, 'pair')} of nodes"
    if rates:
        said += f": median {rate(statistics.median(rates))}, least {rate(min(rates))}"
    return Finding(
        code="preflight/rails",
        verdict=Verdict.PASS if is_well else Verdict.SKIP,
        subject=Subject(kind="job"),
        message=said,
        data={"median_bps": statistics.median(rates) if rates else None, "least_bps": min(rates, default=None),
              "bytes": num_bytes, "pairs": pairs, "rails": num_rails},
    )  # fmt: skip
