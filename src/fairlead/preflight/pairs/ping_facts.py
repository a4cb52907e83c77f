"""What became of pings, as the pair phase would have seen it: the same rules judge both. Pure.

A run is cut into windows. The first one is the suspicion, the later ones are the repetitions that the pair phase would
make in quiet; what they show goes through the same rules (symptoms.py, blame.py) with the same limits.

What tested no path counts neither as sent nor as lost: what the sender's own kernel did not let out, and what came by
another NIC of the node or from another address than its sender has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from fairlead.preflight.pairs.facts import Burst, PairFacts, Speed
from fairlead.preflight.pairs.parts import Triple
from fairlead.preflight.pairs.ping_plan import FLOWS, Plan, Seen

BIG_CHANCE = 1e-9
"""That all full-size packets of a flow are lost by chance, at most, where they are said to vanish: of a million flows
in a thousand runs one."""
MIN_BIG = 3
"""Full-size packets that must vanish beside small ones of which none does, however few these are."""


class _Flow(NamedTuple):
    """One way of a Ping, window by window."""

    sent: tuple[int, ...]
    came: tuple[int, ...]
    rtt_ns: tuple[int, ...]
    full: int
    """Packets that the receiving socket had no room for in the whole run."""
    big: tuple[int, int]
    """Full-size packets sent, and come."""

    @property
    def is_swallowing(self) -> bool:
        """Whether full-size packets vanish where small ones arrive: more than its loss of small ones explains."""
        (num, big_came), sent, came = self.big, sum(self.sent), sum(self.came)
        if not num or big_came or 2 * came < sent:
            return False
        share = (sent - came + 1) / (sent + 1)
        return share**num <= BIG_CHANCE or (num >= MIN_BIG and sent == came)


def facts_of(
    plan: Plan, seen: Mapping[int, Seen], lost: Mapping[int, str], shut: Collection[tuple[int, int]] = ()
) -> PairFacts:
    """What the pair phase would have seen; `seen` is by number in `plan.pings`, `lost` are nodes without an answer,
    `shut` the (node, path) whose packets do not take the path that they should test.
    """
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
        full=1,  # of each burst one packet stands for the full-size ones
        num_flows=FLOWS,
        again_small=0,
        members=tuple(range(len(plan.nodes))),
        stopped=dict.fromkeys(range(len(paths.labels)), plan.partners) if plan.partners < len(plan.nodes) - 1 else {},
        lost=dict(lost),
    )
    by_test: defaultdict[Triple, list[_Flow]] = defaultdict(list)
    for number, one in seen.items():
        ping = plan.pings[number]
        if {(ping.src, ping.path), (ping.dst, ping.path)} & set(shut):
            continue
        for test, flow in _flows(plan, number, one):
            if any(flow.sent):
                by_test[test].append(flow)
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
    facts.skipped.extend(t for t in _wanted(plan) if t not in by_test)
    return facts


def _flows(plan: Plan, number: int, one: Seen) -> Iterator[tuple[Triple, _Flow]]:
    """What one Ping tested: one way, or there and back."""
    ping, (big, big_there, big_back) = plan.pings[number], one.big
    if ping.is_loop:
        assert ping.t1 is not None
        way = Triple(ping.src, ping.dst, plan.steering.number(ping.path, ping.t1))
        yield way, _Flow(_less(one.sent, one.aside_here), one.back, one.rtt_ns, one.full_here, (big, big_back))
        return
    there, back = Triple(ping.src, ping.dst, ping.path), Triple(ping.dst, ping.src, ping.path)
    yield there, _Flow(_less(one.sent, one.aside_there), one.heard, one.rtt_ns, one.full_there, (big, big_there))
    answered = _less(_less(one.heard, one.refused), one.aside_here)
    yield back, _Flow(answered, one.back, one.rtt_ns, one.full_here, (big_there, big_back))


def _less(counts: Sequence[int], off: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(0, num - less) for num, less in zip_longest(counts, off, fillvalue=0))


def _wanted(plan: Plan) -> Iterator[Triple]:
    """Every directed pair of nodes that are partners, on every path that is used."""
    num = len(plan.nodes)
    for src in range(num):
        for shift in range(1, plan.partners + 1):
            for path in plan.used:
                yield Triple(src, (src + shift) % num, path)
                yield Triple((src + shift) % num, src, path)


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
    is_swallowing = any(flow.is_swallowing for flow in (*flows, _together(flows)))
    if sent < 2 or (0 in pieces and sent == came and not is_swallowing):
        return None
    dark, full = _dark(counts), 0 if is_swallowing else min(came, 1)
    small = min(came, sent - 1) if is_swallowing else max(came - 1, 0)
    return Burst(*test, small, full, FLOWS - dark if dark else 0, dark, 0, sent - 1)


def _together(flows: Sequence[_Flow]) -> _Flow:
    """All flows of a pair as one: what each of them alone has too few packets for."""
    sent, came = (
        tuple(map(sum, zip(*rows, strict=True))) for rows in ([f.sent for f in flows], [f.came for f in flows])
    )
    return _Flow(sent, came, (), 0, (sum(f.big[0] for f in flows), sum(f.big[1] for f in flows)))


def _dark(counts: Sequence[tuple[int, int]]) -> int:
    """How many of FLOWS flows do not arrive, where each arrives whole or not at all; 0 where that is not so.

    Requests and answers of a pair both count, and there may be more than FLOWS of them: their share decides.
    """
    whole, dark = sum(s == c for s, c in counts), sum(c == 0 for _, c in counts)
    if not (whole and dark) or whole + dark != len(counts) or len(counts) < FLOWS:
        return 0
    return min(max(round(FLOWS * dark / len(counts)), 1), FLOWS - 1)
