"""From pings to who is to blame, and to what was not tested: findings. Pure.

A packet that its sender's own kernel refused, or that came by another NIC or under another address than its sender's,
blames no link: it has a finding of its own. What no packet tested is told as well; nothing is sound for want of a look.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fairlead.base.units import counted, duration
from fairlead.preflight.pairs import judge_nodes
from fairlead.preflight.pairs.apart import groups_apart
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.limits import Limits
from fairlead.preflight.pairs.loss import compared, least_found
from fairlead.preflight.pairs.naming import path_name, subject_of, where
from fairlead.preflight.pairs.parts import Kind, Triple
from fairlead.preflight.pairs.ping_facts import facts_of
from fairlead.preflight.pairs.ping_plan import FLOWS, Plan, Seen, plan_of, tested
from fairlead.preflight.pairs.symptoms import Blame, Symptom, blames, late_pairs
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

__all__ = ["FLOWS", "Odd", "Plan", "Seen", "facts_of", "findable", "groups", "judge", "plan_of", "tested"]

MAX_EVIDENCE = 4
SMALL = 1200
"""Bytes of payload that any path carries."""
MIN_REPORTERS = 2
"""Nodes that must see packets of a node under another address before that node is named alone."""


@dataclass(frozen=True, slots=True)
class Odd:
    """Packets that took another way than the one they should test, or would; by whom told is `node`, on `path`.

    nic     they came in by another NIC, `what`, than the one that has the address
    route   they would leave by `what`, and nothing leads to the other end by the NIC that has the address
    filter  what comes in is dropped by the node's own reverse-path filter, as the way back leaves by `what`
    source  those of node `other` came from the address `what`
    """

    node: int
    path: int
    kind: str
    other: int
    what: str
    times: int


_WORDS = {
    Symptom.BLOCKED: ("preflight/unreachable", Verdict.FAIL, "no packet{of_size} arrives"),
    Symptom.MTU: ("preflight/mtu", Verdict.FAIL, "full-size packets vanish while small ones arrive"),
    Symptom.DARK: ("preflight/dead-path", Verdict.FAIL, "some flows arrive whole and others not at all"),
    Symptom.LOSSY: ("preflight/packet-loss", Verdict.FAIL, "{loss:.2%} of the packets are lost"),
    Symptom.LATE: ("preflight/late-link", Verdict.WARN, "the shortest round trip takes {rtt}, the median is {median}"),
}
_COUNTERS = "error counters and link state at both ends of it"
_FILTERS = "packet filters first (nft list ruleset; iptables -S; rules of the network and its switches)"
_REMEDIES = {
    Symptom.BLOCKED: f"look at {_COUNTERS}, then at packet filters and routes",
    Symptom.MTU: "set one MTU on every interface and switch port of it: ip link show; tracepath -n PEER",
    Symptom.DARK: f"look at {_COUNTERS}, then at packet filters",
    Symptom.LOSSY: f"look at {_COUNTERS}",
    Symptom.LATE: "look for a detour or a standing queue there: routes, and queue counters of the switches",
}
_AT_ONCE = (Kind.NODE, Kind.FABRIC)
"""Parts with many cables: all of them are not broken at once."""


def judge(
    plan: Plan,
    seen: Mapping[int, Seen],
    lost: Mapping[int, str],
    limits: Limits,
    *,
    unbound: Mapping[tuple[int, int], str] = MappingProxyType({}),
    errors: Mapping[tuple[int, int], str] = MappingProxyType({}),
    refused: Mapping[tuple[int, int], int] = MappingProxyType({}),
    owed: Mapping[int, int] = MappingProxyType({}),
    odd: Sequence[Odd] = (),
    pools: Mapping[str, str] = MappingProxyType({}),
    size: int = 0,
) -> list[Finding]:
    """Findings: guilty parts, nodes that gave no answer or not of all paths, ports without their address, sockets that
    were full, and what was not tested.

    `errors` are what the kernel of a node said on a path, `refused` the packets it did not let out there; `owed`: paths
    that a node did not tell its part of; `pools`: the pool of each node; `size`: bytes of a packet.
    """
    shut = {(one.node, one.path) for one in odd if one.kind in ("route", "filter")}
    facts = facts_of(plan, seen, lost, shut)
    facts.unbound.extend((n, path, why) for (n, path), why in sorted(unbound.items()) if n not in lost)
    facts.pools.update({n: pools[name] for n, name in enumerate(plan.nodes) if name in pools})
    found = [blame for blame in blames(facts, limits) if blame.symptom in _WORDS]
    homeless = list(_homeless(plan, facts))
    return [
        *_twins(plan),
        *(_blamed(blame, plan, seen, facts, errors, size) for blame in found),
        *_refused(plan, refused),
        *_translated(plan, odd),
        *_silent(plan, owed, lost),
        *homeless,
        *_elsewhere(plan, odd),
        *_full(plan, seen),
        *_untested(plan, homeless),
    ]


def findable(plan: Plan, count: int, limits: Limits) -> float:
    """The share of loss that is found, but for one time in a hundred, in `count` packets over each path."""
    tests = Counter(t for p in plan.pings if not p.is_loop for t in ((p.src, p.dst, p.path), (p.dst, p.src, p.path)))
    if not tests:
        return 1.0
    each = min(tests.values()) * count
    num = compared(len(tests), len(plan.nodes), len(plan.paths.labels))
    return least_found((each // 4, each // 2), limits, num)


def groups(plan: Plan, seen: Mapping[int, Seen], limits: Limits) -> list[tuple[str, list[list[str]]]]:
    """Rails on which nodes stand apart, with the groups of nodes that are near each other."""
    facts = facts_of(plan, seen, {})
    apart = groups_apart(late_pairs(facts, limits), facts)
    return [(facts.paths[path], [[plan.nodes[n] for n in own] for own in groups]) for path, groups in apart.items()]


# ---- guilty parts ----------------------------------------------------------------------------------------------------


def _blamed(  # noqa: PLR0917 - all that is known
    blame: Blame,
    plan: Plan,
    seen: Mapping[int, Seen],
    facts: PairFacts,
    errors: Mapping[tuple[int, int], str],
    size: int,
) -> Finding:
    code, verdict, words = _WORDS[blame.symptom]
    pairs, kind = set(blame.culprit.pairs), blame.culprit.part.kind
    bursts = [b for b in (*facts.bursts, *facts.again) if (b.src, b.dst, b.path) in pairs]
    sent = sum(b.sent + 1 for b in bursts)
    came = sum(b.small + b.full for b in bursts)
    speeds = [s for s in (*facts.speeds, *facts.speeds_again) if (s.src, s.dst, s.path) in pairs and s.rtt_ns]
    times = [s.rtt_ns for s in facts.speeds if s.rtt_ns]
    median_ns = statistics.median(times) if times else 0
    rtt_ns = min((s.rtt_ns for s in speeds), default=0)
    loss = 1 - came / sent if sent else 0.0
    is_large = blame.symptom is Symptom.BLOCKED and size > SMALL
    of_size = f" of {size} bytes" if is_large else ""
    said = words.format(of_size=of_size, loss=loss, rtt=duration(rtt_ns / 1e9), median=duration(median_ns / 1e9))
    unsure = "" if blame.is_confirmed else "; not seen again in the rest of the run"
    is_filter = blame.symptom in (Symptom.BLOCKED, Symptom.DARK) and kind in _AT_ONCE
    why = "; a packet filter does that, and cables rarely break all at once" if is_filter else ""
    remedy = (
        f"look at {_FILTERS}, then at {_COUNTERS}"
        if is_filter
        else _REMEDIES[Symptom.MTU if is_large else blame.symptom]
    )
    return Finding(
        code=code,
        verdict=verdict if blame.is_confirmed else Verdict.WARN,
        subject=subject_of(blame.culprit.part, facts),
        message=f"{said}, {where(blame.culprit, facts)}{why}{unsure}",
        evidence=(
            *_own_errors(facts, pairs, errors),
            *_evidence(plan, seen, facts, sorted(pairs)[:MAX_EVIDENCE], blame.symptom),
        ),
        remedy=f"{remedy}, then run fairlead preflight",
        data={"part": str(kind), "symptom": str(blame.symptom), "loss": loss, "rtt_ns": rtt_ns},
    )


def _own_errors(facts: PairFacts, pairs: set[Triple], errors: Mapping[tuple[int, int], str]) -> Iterator[Evidence]:
    """What the kernels of the senders said where packets are missing, the first two."""
    found = sorted({(n, path) for n, path in errors if any(t.src == n and t.path == path for t in pairs)})
    for n, path in found[:2]:
        yield Evidence(f"sendto on {facts.nodes[n]}, {path_name(facts, path)}", errors[n, path])


def _evidence(
    plan: Plan, seen: Mapping[int, Seen], facts: PairFacts, pairs: Sequence[Triple], symptom: Symptom
) -> Iterator[Evidence]:
    for t in pairs:
        mine = [b for b in (*facts.bursts, *facts.again) if (b.src, b.dst, b.path) == t]
        came, sent = sum(b.small + b.full for b in mine), sum(b.sent + 1 for b in mine)
        rtts = [s.rtt_ns for s in (*facts.speeds, *facts.speeds_again) if (s.src, s.dst, s.path) == t and s.rtt_ns]
        text = f"{came} of {sent} arrived"
        if symptom is Symptom.LATE and rtts:
            text = f"shortest round trip {duration(min(rtts) / 1e9)}"
        if symptom is Symptom.MTU:
            text = _sizes(plan, seen, t)
        yield Evidence(f"{facts.nodes[t.src]} -> {facts.nodes[t.dst]}, {path_name(facts, t.path)}", text)


def _sizes(plan: Plan, seen: Mapping[int, Seen], t: Triple) -> str:
    """How many small and full-size packets arrived of a directed pair."""
    small, big, most = [0, 0], [0, 0], 0
    for number, one in seen.items():
        ping = plan.pings[number]
        path = plan.steering.number(ping.path, ping.t1) if ping.is_loop and ping.t1 is not None else ping.path
        ends, (out, there, back) = (ping.src, ping.dst, path), one.big
        rows = [(ends, one.sent, one.back if ping.is_loop else one.heard, out, back if ping.is_loop else there)]
        rows += [((ping.dst, ping.src, path), one.heard, one.back, there, back)] if not ping.is_loop else []
        for way, sent, came, big_sent, big_came in rows:
            if way == t:
                small = [small[0] + sum(came), small[1] + sum(sent)]
                big, most = [big[0] + big_came, big[1] + big_sent], max(most, one.big_bytes)
    size = f" (of {most} bytes)" if most else ""
    return f"{small[0]} of {small[1]} small and {big[0]} of {big[1]} full-size packets{size} arrived"


# ---- what is no fault of a link --------------------------------------------------------------------------------------


def _twins(plan: Plan) -> Iterator[Finding]:
    """Addresses that the book gives to several nodes."""
    for address, ends in sorted(plan.twins.items()):
        names = [f"{plan.nodes[n]} {plan.paths.labels[path]}" for n, path in ends]
        yield Finding(
            code="preflight/duplicate-address",
            verdict=Verdict.FAIL,
            subject=Subject(kind="pair", nodes=tuple(plan.nodes[n] for n, _ in ends), name=address),
            message=f"{' and '.join(names)} have the same address: no packet was sent to it or from it",
            evidence=tuple(Evidence(f"address of {name}", address) for name in names[:MAX_EVIDENCE]),
            remedy="ip -br address on each of them; give one of them the address it should have",
        )


def _refused(plan: Plan, refused: Mapping[tuple[int, int], int]) -> Iterator[Finding]:
    """Nodes whose own kernel does not let packets out: no cable saw them."""
    own: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for (n, path), num in sorted(refused.items()):
        own[n][path] = num
    for n, paths in own.items():
        yield Finding(
            code="preflight/local-filter",
            verdict=Verdict.FAIL,
            subject=node(plan.nodes[n]),
            message=f"its own kernel refused to send {counted(sum(paths.values()), 'packet')} (EPERM): "
            "a packet filter on the node itself",
            evidence=tuple(
                Evidence(f"sendto on {plan.nodes[n]}, {plan.paths.labels[path]}", f"EPERM, {counted(num, 'time')}")
                for path, num in list(paths.items())[:MAX_EVIDENCE]
            ),
            remedy="on the node: nft list ruleset; iptables -S OUTPUT; let UDP out to the other nodes, from any port",
            data={"packets": sum(paths.values())},
        )


def _translated(plan: Plan, odd: Sequence[Odd]) -> Iterator[Finding]:
    """Nodes whose packets arrive from another address than theirs."""
    seen_as: defaultdict[tuple[int, int, str], Counter[int]] = defaultdict(Counter)
    for one in odd:
        if one.kind == "source":
            seen_as[one.other, one.path, one.what][one.node] += one.times
    for (n, path, address), by in sorted(seen_as.items()):
        label, own = plan.paths.labels[path], plan.paths.addresses[plan.nodes[n]][path]
        is_sure = len(by) >= min(MIN_REPORTERS, len(plan.nodes) - 1)
        nodes = (plan.nodes[n],) if is_sure else (plan.nodes[n], plan.nodes[next(iter(by))])
        yield Finding(
            code="preflight/source-address",
            verdict=Verdict.FAIL,
            subject=Subject(kind="port" if is_sure else "pair", nodes=nodes, name=label),
            message=f"packets that it sends from {own} arrive from {address}: source NAT, or a wrong source address",
            evidence=tuple(
                Evidence(f"recvmsg on {plan.nodes[r]}, {label}", f"{counted(num, 'packet')} from {address}")
                for r, num in sorted(by.items())[:MAX_EVIDENCE]
            ),
            remedy=f"nft list ruleset; iptables -t nat -S: take {own} and the others' addresses out of any translation",
            data={"address": own, "seen_as": address},
        )


_OWN_ROUTE = (
    "a route of its own for each address: ip rule add from ADDRESS table N; ip route add SUBNET dev NIC table N; "
    "or a subnet for each rail"
)
_ELSEWHERE = {
    "nic": (
        "not tested by all packets: some came in by {what}, as NICs of the node in one subnet answer for each other",
        f"on every node: sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2, and {_OWN_ROUTE}",
    ),
    "route": (
        "not tested: packets from its address there leave by {what}, and no route leads on by the NIC that has it",
        _OWN_ROUTE,
    ),
    "filter": (
        "not tested: the node itself drops what comes in there (rp_filter=1), as its way back leaves by {what}",
        _OWN_ROUTE,
    ),
}


def _elsewhere(plan: Plan, odd: Sequence[Odd]) -> Iterator[Finding]:
    """Ports that packets did not go through although they have their address, for how the node is set up."""
    by_port: defaultdict[tuple[int, int, str], Counter[str]] = defaultdict(Counter)
    for one in odd:
        if one.kind in _ELSEWHERE:
            by_port[one.node, one.path, one.kind][one.what] += one.times
    for (n, path, kind), nics in sorted(by_port.items()):
        says, remedy = _ELSEWHERE[kind]
        seen = "{num} packets by {nic}" if kind == "nic" else "ip route get: by {nic}, to {num} addresses"
        yield Finding(
            code="preflight/shared-subnet",
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="port", nodes=(plan.nodes[n],), name=plan.paths.labels[path]),
            message=says.format(what=" and ".join(sorted(nics))),
            evidence=tuple(
                Evidence(
                    f"{plan.paths.addresses[plan.nodes[n]][path]} on {plan.nodes[n]}", seen.format(nic=nic, num=num)
                )
                for nic, num in sorted(nics.items())[:MAX_EVIDENCE]
            ),
            remedy=remedy,
        )


# ---- what was not tested ---------------------------------------------------------------------------------------------


def _silent(plan: Plan, owed: Mapping[int, int], lost: Mapping[int, str]) -> Iterator[Finding]:
    """Nodes that did not answer, or not of all."""
    kept = {n: f"it did not tell its part of {counted(num, 'path')}" for n, num in owed.items()}
    for n, why in {**kept, **lost}.items():
        yield Finding(
            code="fabric/end-silent",
            verdict=Verdict.UNKNOWN,
            subject=node(plan.nodes[n]),
            message=f"gave no answer: {why}",
            remedy=f"fairlead probe -w {plan.nodes[n]}",
        )


def _homeless(plan: Plan, facts: PairFacts) -> Iterator[Finding]:
    """Nodes that lack an address that others have, or do not have the one that they should."""
    gaps = {(gap.node, gap.rail) for gap in plan.paths.gaps if gap.address}
    labels = [plan.paths.labels[path] for path in plan.used]
    for finding in judge_nodes.no_address(facts):
        is_used = finding.subject.name in labels if finding.subject.name else plan.used == (0,)
        if is_used and not any((n, finding.subject.name) in gaps for n in finding.subject.nodes):
            yield finding


def _untested(plan: Plan, told: Sequence[Finding]) -> Iterator[Finding]:
    """Ports and nodes that no packet was sent to for what their addresses are."""
    known = {(n, f.subject.name) for f in told for n in f.subject.nodes}
    for gap in plan.paths.gaps:
        if (gap.node, gap.rail) not in known:
            yield Finding(
                code="preflight/not-tested",
                verdict=Verdict.UNKNOWN,
                subject=Subject(kind="port", nodes=(gap.node,), name=gap.rail) if gap.rail else node(gap.node),
                message=f"not tested: {gap.why}",
                remedy="pings are IP packets: give it an address that the others reach (on InfiniBand: IPoIB)",
            )


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
                subject=node(plan.nodes[n]),
                message=f"its own socket had no room for {counted(num, 'packet')}: "
                "as many losses of each path to it do not count",
                evidence=(Evidence(f"SO_MEMINFO on {plan.nodes[n]}", f"{num} dropped"),),
                remedy="a longer --interval, fewer nodes with -w, or a node with less other work",
            )
