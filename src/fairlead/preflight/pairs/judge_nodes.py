"""What the pair phase says of nodes by themselves: lost, no address, ports, pace, clocks; what was not tested. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from fairlead.base.units import counted, duration
from fairlead.preflight.pairs import counters
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.limits import Limits
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

MAX_EVIDENCE = 4


def lost(facts: PairFacts) -> Iterator[Finding]:
    """Nodes whose agent was lost on the way, and those whose answers were none."""
    for number, why in sorted(facts.lost.items()):
        if number in facts.refused:
            yield Finding(
                code="cluster/bad-answer",
                verdict=Verdict.FAIL,
                subject=node(facts.nodes[number]),
                message=f"{why}: what else it said of its pairs counts for nothing",
                evidence=(Evidence("what it sent", facts.refused[number]),),
                remedy="keep it out, and look at what runs there: fairlead explain cluster/bad-answer",
            )
            continue
        yield Finding(
            code="preflight/node-lost",
            verdict=Verdict.FAIL,
            subject=node(facts.nodes[number]),
            message=f"stopped answering while pairs were tested: {why}",
            remedy="look at its console, its memory and its load, and preflight again; drain it if it stays silent",
        )


def no_address(facts: PairFacts) -> Iterator[Finding]:
    """Nodes that nobody can reach for want of an address. A rail that most nodes of a pool lack is no fault of theirs,
    nor is one that goes by another name: who has as many rails as the others lacks none.
    """
    pools: dict[str, list[tuple[str, ...]]] = {}
    for number, own in enumerate(facts.addresses):
        pools.setdefault(facts.pools.get(number, ""), []).append(own)
    has = {pool: [sum(map(bool, there)) for there in zip(*rows, strict=True)] for pool, rows in pools.items()}
    usual = {pool: statistics.median(sum(map(bool, own[1:])) for own in rows) for pool, rows in pools.items()}
    for number, own in enumerate(facts.addresses):
        pool = facts.pools.get(number, "")
        lacks = sum(map(bool, own[1:])) < usual[pool]
        for path in [0] if not own[0] else [p for p, address in enumerate(own) if not address and lacks]:
            num_others = has[pool][path] if path else 0
            if path and num_others * 2 <= len(pools[pool]):
                continue
            name = facts.paths[path]
            yield Finding(
                code="preflight/no-address",
                verdict=Verdict.FAIL,
                subject=Subject(kind="port", nodes=(facts.nodes[number],), name=name)
                if path
                else node(facts.nodes[number]),
                message=f"it has no address there, as {counted(num_others, 'other node')} do"
                if path
                else "it has no address at which other nodes could reach it",
                evidence=(Evidence(f"addresses of {facts.nodes[number]}", ", ".join(filter(None, own)) or "none"),),
                remedy="ip -br address; ip route; correct the interface's configuration",
            )
    for number, path, error in facts.unbound:
        yield Finding(
            code="preflight/no-address",
            verdict=Verdict.FAIL,
            subject=Subject(kind="port", nodes=(facts.nodes[number],), name=facts.paths[path]),
            message=f"the node does not have the address it should have there: {error}",
            evidence=(Evidence(f"bind on {facts.nodes[number]}", facts.addresses[number][path]),),
            remedy="ip -br address; correct the interface's configuration",
        )


def ports(facts: PairFacts) -> Iterator[Finding]:
    """What ports counted while they were watched."""
    for number, change in facts.counted:
        seconds = facts.watched_s.get(number, 0.0)
        row, most = counters.table().get(change.counter), counters.allowed(change, facts.port_bps, seconds)
        delta = change.after - change.before
        if row is None or most is None or delta <= most:
            continue
        is_change = row.judged == "change"
        often = f"by {delta}" if is_change else f"by {delta}, where a healthy link has at most {most}"
        at_least = "at least " if change.after == row.full else ""
        yield Finding(
            code="preflight/port-flap" if is_change else "preflight/port-errors",
            verdict=Verdict.FAIL,
            subject=Subject(kind="port", nodes=(facts.nodes[number],), name=change.rail),
            message=f"{row.says}: {change.counter} went up {at_least}{often} within {duration(seconds)}",
            evidence=(
                Evidence(
                    f"{change.counter} of {facts.nodes[number]}, {change.rail}", f"{change.before}, then {change.after}"
                ),
            ),
            remedy="dmesg on the node and the switch's log of this port; then change cable or transceiver",
            data={"counter": change.counter, "delta": delta, "limit": most, "seconds": seconds, "source": row.source},
        )


def untested(facts: PairFacts) -> Iterator[Finding]:
    """What no packet and no reading was about."""
    for why in dict.fromkeys(facts.untested.values()):
        rails = [rail for rail, reason in facts.untested.items() if reason == why]
        yield Finding(
            code="preflight/not-tested",
            verdict=Verdict.SKIP,
            subject=Subject(kind="cluster", name=", ".join(rails)),
            message=f"not tested pair by pair: {why}, and pairs send IP packets",
            remedy="set up IPoIB, or addresses, on these ports to have them tested here",
            data={"rails": rails},
        )
    for number in sorted({n for n, _ in facts.uncounted}):
        rails = [rail for n, rail in facts.uncounted if n == number]
        yield Finding(
            code="preflight/no-counters",
            verdict=Verdict.SKIP,
            subject=node(facts.nodes[number]),
            message=f"no counter could be read of {', '.join(rails)}: a link that flaps while nobody sends is not seen",
            remedy="ls /sys/class/net/*/carrier_changes /sys/class/infiniband/*/ports/*/counters",
        )


def slow_nodes(facts: PairFacts, limits: Limits) -> Iterator[Finding]:
    """Nodes that take much longer than the quickest for the same work, each working alone.

    A node of another pool may have another processor: slower than that is a warning.
    """
    alone = {n: [w for w in works if w.alone] for n, works in facts.work.items()}
    first = {n: works[0].own_ns for n, works in facts.work.items() if works}
    if not any(alone.values()):
        return
    quickest = min((n for n in alone if alone[n]), key=lambda n: first[n])
    reference_ns = max(w.own_ns for w in alone[quickest])
    for number, works in sorted(alone.items()):
        best = min(works, key=lambda w: w.own_ns, default=None)
        if best is None or number == quickest or best.own_ns < limits.slow_node_ratio * reference_ns:
            continue
        throttled = best.own_ns > 1.5 * best.cpu_ns
        why = "its processes get only part of a processor" if throttled else "its processor itself is slower"
        is_alike = facts.pools.get(number, "") == facts.pools.get(quickest, "")
        why += "" if is_alike else ", and those others are of another pool"
        yield Finding(
            code="preflight/slow-node",
            verdict=Verdict.FAIL if is_alike or throttled else Verdict.WARN,
            subject=node(facts.nodes[number]),
            message=f"takes {best.own_ns / reference_ns:.1f} times as long as others for the same work: {why}",
            evidence=(
                Evidence(
                    "fixed work, alone",
                    f"{duration(best.own_ns / 1e9)}, of it {duration(best.cpu_ns / 1e9)} on a CPU; "
                    f"{duration(best.others_ns / 1e9)} more behind other programs are not counted",
                ),
                Evidence(f"the same on {facts.nodes[quickest]}", duration(reference_ns / 1e9)),
            ),
            remedy="top; cat /sys/fs/cgroup/cpu.stat; cpupower frequency-info; look for a power or heat limit",
            data={
                "wall_ns": best.wall_ns,
                "cpu_ns": best.cpu_ns,
                "others_ns": best.others_ns,
                "reference_ns": reference_ns,
            },
        )


def clocks(facts: PairFacts, limits: Limits) -> Iterator[Finding]:
    """Clocks that differ from the fleet's median by more than the limit and what both are uncertain by.

    Only where most clocks agree does one of them stand out: of two nobody knows which is right.
    """
    if not facts.clocks:
        return
    middle = statistics.median(c.offset_ns for c in facts.clocks.values())
    off_ns = {n: c.offset_ns - middle for n, c in sorted(facts.clocks.items())}
    # the median is as uncertain as the exchanges it comes from: all may have been held up but the one that stands out
    middle_ns = statistics.median(c.rtt_ns for c in facts.clocks.values()) / 2
    give_ns = {n: facts.clocks[n].rtt_ns / 2 + middle_ns for n in off_ns}
    wrong = [n for n, off in off_ns.items() if abs(off) > limits.clock_ns + give_ns[n]]
    remedy = "chronyc tracking; chronyc makestep"
    if wrong and 2 * len(wrong) >= len(off_ns):
        apart_ns = max(off_ns.values()) - min(off_ns.values())
        yield Finding(
            code="preflight/clock-skew",
            verdict=Verdict.FAIL,
            subject=Subject(kind="cluster", nodes=tuple(facts.nodes[n] for n in wrong)),
            message=f"the clocks of {len(wrong)} of {len(off_ns)} nodes are up to {duration(apart_ns / 1e9)} apart, "
            "and no majority says which are right",
            evidence=tuple(
                Evidence(facts.nodes[n], f"{_from_median(off_ns[n])} the median") for n in wrong[:MAX_EVIDENCE]
            ),
            remedy=remedy,
            data={"apart_ns": apart_ns, "limit_ns": limits.clock_ns},
        )
        return
    for number in wrong:
        off, give = off_ns[number], give_ns[number]
        yield Finding(
            code="preflight/clock-skew",
            verdict=Verdict.FAIL,
            subject=node(facts.nodes[number]),
            message=f"the clock is {_from_median(off)} the fleet's",
            evidence=(Evidence("exchange", f"give or take {duration(give / 1e9)}"),),
            remedy=remedy,
            data={"offset_ns": off, "uncertainty_ns": give, "limit_ns": limits.clock_ns},
        )


def _from_median(off_ns: float) -> str:
    return f"{duration(abs(off_ns) / 1e9)} {'ahead of' if off_ns > 0 else 'behind'}"
