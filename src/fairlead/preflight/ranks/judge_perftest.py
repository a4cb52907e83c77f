"""What perftest measured of each rail by RDMA, judged: bandwidth against the port, latency against the others. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from fairlead.base.units import counted
from fairlead.preflight.pairs.blame import explain
from fairlead.preflight.pairs.parts import Kind, Tested, Triple
from fairlead.preflight.ranks.perftest import parse
from fairlead.preflight.ranks.said import Heard, Perf
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict
from fairlead.spec.limits import limit_for

BANDWIDTH, LATENCY = "ib_write_bw", "ib_write_lat"


def judge_perftest(heard: Heard, wanted: Wanted) -> list[Finding]:
    """Slow rails, late rails, then what was measured; nothing where it was not asked for."""
    if heard.perf_skipped:
        return [_summary(f"rails not measured by RDMA: {heard.perf_skipped}", Verdict.SKIP)]
    if not heard.perf:
        why = "no RDMA device that counts is on all nodes" if len(heard.facts.nodes) > 1 else "one node"
        return [_summary(f"rails not measured by RDMA: {why}", Verdict.SKIP)] if wanted.perftest else []
    number = {name: i for i, name in enumerate(heard.facts.nodes)}
    rates, times, failed = dict[Triple, float](), dict[Triple, float](), dict[Triple, Perf]()
    for said in heard.perf:
        src, dst = said.node, heard.node_of(said.dst)
        if src not in number or dst not in number:
            continue
        triple, result = Triple(number[src], number[dst], said.rail + 1), parse(said.out)
        if said.program == BANDWIDTH and "gbps" in result:
            rates[triple] = result["gbps"]
        elif said.program == LATENCY and "latency_us" in result:
            times[triple] = result["latency_us"]
        else:
            failed[triple] = said
    found = [*_slow(heard, wanted, rates), *_late(heard, wanted, times), *_unmeasured(failed)]
    middle = f"{statistics.median(rates.values()):.4g} Gb/s" if rates else "no rate"
    late = f", {statistics.median(times.values()):.3g} us" if times else ""
    text = f"{counted(len(rates), 'directed rail')} measured by RDMA: median {middle}{late}"
    return [*found, _summary(text, Verdict.SKIP if found else Verdict.PASS)]


def _slow(heard: Heard, wanted: Wanted, rates: dict[Triple, float]) -> Iterator[Finding]:
    """Below what the VM size reaches between two nodes; else below a share of the port's rate, or of the median."""
    known = limit_for(wanted.size, "hca_pair_gbps", nodes=2) if wanted.size else None
    share = wanted.numbers["perftest_share"]
    if known and known.fail_below:
        least, why = known.fail_below, known.source
    elif wanted.port_gbps:
        least, why = share * wanted.port_gbps, f"{share:.0%} of the port's {wanted.port_gbps:g} Gb/s"
    else:
        middle = statistics.median(rates.values()) if rates else 0.0
        least, why = share * middle, f"{share:.0%} of the median, {middle:.4g} Gb/s"
    slow = {t for t, gbps in rates.items() if gbps < least}
    for subject, mine in _blamed(heard, slow, set(rates)):
        gbps = statistics.median(rates[t] for t in mine)
        yield Finding(
            code="preflight/slow-rail",
            verdict=Verdict.FAIL,
            subject=subject,
            message=f"{gbps:.4g} Gb/s by RDMA ({BANDWIDTH}), and at least {least:.4g} is expected",
            evidence=(
                Evidence("expected by", why),
                *(Evidence(_pair(heard, t), f"{rates[t]:.4g} Gb/s") for t in mine[:3]),
            ),
            remedy="ibstat and mlxlink at both ends: rate, width, errors; lspci -vv of the port: LnkSta",
            data={"value": gbps, "limit": least, "unit": "Gb/s"},
        )


def _late(heard: Heard, wanted: Wanted, times: dict[Triple, float]) -> Iterator[Finding]:
    """Far above the median of all rails, or above what the VM size is known for."""
    middle = statistics.median(times.values()) if times else 0.0
    most = wanted.numbers["perftest_latency_ratio"] * middle
    late = {t for t, us in times.items() if us > most}
    for subject, mine in _blamed(heard, late, set(times)):
        us = statistics.median(times[t] for t in mine)
        yield Finding(
            code="preflight/late-rail",
            verdict=Verdict.WARN,
            subject=subject,
            message=f"typical latency {us:.3g} us by RDMA ({LATENCY}), where the median is {middle:.3g}",
            evidence=tuple(Evidence(_pair(heard, t), f"{times[t]:.3g} us") for t in mine[:3]),
            remedy="routes and queue counters of the switches; cpupower frequency-info on the nodes",
            data={"value": us, "limit": most, "unit": "us"},
        )


def _blamed(heard: Heard, bad: set[Triple], tested: set[Triple]) -> Iterator[tuple[Subject, list[Triple]]]:
    """The fewest parts that explain the bad ones, by name, each with its pairs."""
    if not bad:
        return
    nodes, device = heard.facts.nodes, {(s.node, s.rail): s.device for s in heard.perf}
    paths = sorted({t.path for t in tested})
    for culprit in explain(bad, Tested(range(len(nodes)), paths, frozenset(tested))):
        kind, key = culprit.part.kind, culprit.part.key
        if kind is Kind.PORT:
            name = nodes[key[0]]
            rail = f"rail {key[1] - 1} ({device.get((name, key[1] - 1), '?')})"
            yield Subject(kind="port", nodes=(name,), name=rail), list(culprit.pairs)
        elif kind is Kind.NODE:
            yield node(nodes[key[0]]), list(culprit.pairs)
        elif kind is Kind.PLANE:
            yield Subject(kind="plane", name=f"rail {key[0] - 1}"), list(culprit.pairs)
        elif kind is Kind.FABRIC:
            yield Subject(kind="cluster", nodes=nodes, name="the rails"), list(culprit.pairs)
        else:
            rail = f"rail {key[2] - 1}" if len(key) > 2 else ""
            yield Subject(kind="pair", nodes=(nodes[key[0]], nodes[key[1]]), name=rail), list(culprit.pairs)


def _unmeasured(failed: dict[Triple, Perf]) -> Iterator[Finding]:
    """Programs that gave no result: the rail may be well, so this is unknown."""
    if failed:
        first = next(iter(failed.values()))
        yield _summary(
            f"{counted(len(failed), 'directed rail')} could not be measured by RDMA",
            Verdict.UNKNOWN,
            (
                Evidence(
                    f"{first.program} on {first.node}, {first.device}", first.error or first.out[-200:] or "no result"
                ),
            ),
        )


def _pair(heard: Heard, triple: Triple) -> str:
    return f"{heard.facts.nodes[triple.src]} -> {heard.facts.nodes[triple.dst]}, rail {triple.path - 1}"


def _summary(text: str, verdict: Verdict, evidence: tuple[Evidence, ...] = ()) -> Finding:
    remedy = "run the program by hand on these two nodes" if verdict is Verdict.UNKNOWN else ""
    job = Subject(kind="job")
    return Finding(code="preflight/rails", verdict=verdict, subject=job, message=text, evidence=evidence, remedy=remedy)
