"""From what pairs showed to what ails which part of the fabric. Pure; it aims the phase while that runs, and judges it.

A symptom belongs to one directed pair on one path. Symptoms are looked at in the order below, and a pair that already
has one is no witness for the next: nobody can see whether a blocked pair would also be slow. Planes come before the
one address that uses them all: what happens there is explained by a sick plane wherever traffic may meet it.
"""

from __future__ import annotations

import enum
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from fairlead.preflight.pairs.apart import without_distance
from fairlead.preflight.pairs.blame import MIN_PARTNERS, explain
from fairlead.preflight.pairs.counters import is_flap
from fairlead.preflight.pairs.facts import Burst, PairFacts, Speed
from fairlead.preflight.pairs.limits import Limits
from fairlead.preflight.pairs.loss import Losses
from fairlead.preflight.pairs.parts import Culprit, Kind, Tested, Triple, Way, contains, touches
from fairlead.preflight.pairs.schedule import Test
from fairlead.preflight.pairs.spread import Pair, Spread
from fairlead.preflight.pairs.steered import T0_ALONE, without_link


class Means(enum.StrEnum):
    """How a suspicion is settled."""

    BURST = "burst"
    SAMPLE = "sample"
    """A burst of so many packets that a small loss shows."""
    STREAM = "stream"


class Symptom(enum.StrEnum):
    """What can be wrong with a directed pair, the plainest first."""

    BLOCKED = "blocked"
    MTU = "mtu"
    DARK = "dark"
    """Some flows arrive whole and others not at all: one of several paths is dead."""
    LOSSY = "lossy"
    SLOW = "slow"
    LATE = "late"

    @property
    def is_burst(self) -> bool:
        """Whether a burst shows it; the others take a stream."""
        return self not in (Symptom.SLOW, Symptom.LATE)

    @property
    def means(self) -> Means:
        """How it is tested again."""
        return Means.SAMPLE if self is Symptom.LOSSY else Means.BURST if self.is_burst else Means.STREAM

    @property
    def is_by_chance(self) -> bool:
        """Whether a fault that only some flows of a pair meet shows like that."""
        return self in (Symptom.DARK, Symptom.LOSSY, Symptom.SLOW)


@dataclass(frozen=True, slots=True)
class Blame:
    """A symptom and the part that explains it."""

    symptom: Symptom
    culprit: Culprit
    is_confirmed: bool


def blames(facts: PairFacts, limits: Limits) -> list[Blame]:
    """Who is to blame for what, as far as is known by now."""
    nodes = [i for i in facts.members if i not in facts.lost]
    steered = frozenset(t for t in map(Triple._make, facts.steered) if not {t.src, t.dst} & facts.lost.keys())
    planes = list(range(1, len(facts.paths)))
    shown = {**burst_symptoms(facts, limits), **speed_symptoms(facts, limits)}
    repeats = {is_burst: _repeats(facts, is_burst=is_burst) for is_burst in (True, False)}
    homeless = without_address(facts)
    seen = {t for found in shown.values() for t in found if {(t.src, t.path), (t.dst, t.path)} & homeless}
    seen |= {t for found in shown.values() for t in found if _meets_flap(t, facts)}
    seen.update(map(Triple._make, facts.skipped))
    out: list[Blame] = []
    for paths in (planes, [0]) if planes else ([0],):
        for symptom in Symptom:
            only = None if symptom.is_burst else _measured(facts)
            stopped = facts.stopped if symptom.is_burst else {}
            # a burst that lost packets all over cannot show that flows are dark
            mute = seen | shown.get(Symptom.LOSSY, set()) if symptom is Symptom.DARK else seen
            of_planes = steered if paths != [0] else frozenset[Triple]()
            by_chance = (
                symptom.is_by_chance and not facts.ways and len({facts.groups[n] for n in nodes if facts.groups}) > 1
            )
            tested = Tested(
                nodes,
                paths,
                only,
                mute,
                facts.groups,
                stopped,
                facts.members,
                of_planes,
                facts.ways,
                spread=_spread(facts, repeats[True]) if symptom is Symptom.LOSSY else None,
                by_chance=by_chance,
            )
            on = {*paths, *(facts.ways if of_planes else ())}
            bad = {t for t in shown.get(symptom, ()) if t.path in on and t not in seen}
            if paths == [0] and planes:
                bad = {t for t in bad if not _is_explained(t, symptom, out, facts, limits)}
            else:
                known = [b.culprit.part for b in out if b.symptom is not symptom]
                bad = {t for t in bad if not any(contains(part, t, tested) for part in known)}
            if not bad:
                continue
            found = explain(bad, tested)
            done = repeats[symptom.is_burst]
            settled = [_is_confirmed(symptom, c, done, limits) and not _beside(symptom, c, facts, done) for c in found]
            own = [Blame(symptom, c, is_settled) for c, is_settled in zip(found, settled, strict=True)]
            if symptom is Symptom.LOSSY:
                own = _beyond_chance(own, facts, limits)
                # what is nobody's fault excuses nothing
                bad = {t for t in bad if any(contains(b.culprit.part, t, tested) for b in own)}
            out += own
            if by_chance:
                out = [b for b in out if not _is_bad_luck(b, found, tested)]
            seen |= bad
    return out


def _beyond_chance(found: Iterable[Blame], facts: PairFacts, limits: Limits) -> list[Blame]:
    """Without those that lost no more than a fabric may: what is not settled yet stays a suspicion."""
    losses = Losses(facts, limits)
    return [b for b in found if not b.is_confirmed or losses.is_beyond(b.culprit)]


def _spread(facts: PairFacts, again: Mapping[Triple, int]) -> Spread:
    """How much each pair lost in the first pass; a steered test sends more than a pair does."""
    pairs: dict[Pair, int] = {
        (t.src, t.dst, t.path): facts.num_lost(t) for t in facts.bursts if t.path not in facts.ways
    }
    return Spread(pairs, again.keys())


def _meets_flap(triple: Triple, facts: PairFacts) -> bool:
    """Whether a pair's packets may have met a port whose link was away for a while: that is judged by its counters."""
    ends, path = (triple.src, triple.dst), facts.ways[triple.path][0] if triple.path in facts.ways else triple.path
    name = facts.paths[path]
    return any(n in ends and is_flap(c) and (path == 0 or c.rail == name) for n, c in facts.counted)


def _is_bad_luck(blame: Blame, found: Iterable[Culprit], tested: Tested) -> bool:
    """Whether all flows of a pair took a bad way between switches by chance: one pair in 256 with two ways."""
    if blame.culprit.part.kind is not Kind.LINK:
        return False
    wide = [c.part for c in found if c.part.kind in (Kind.UPLINKS, Kind.BETWEEN)]
    return any(all(contains(part, t, tested) for t in blame.culprit.pairs) for part in wide)


def without_address(facts: PairFacts) -> frozenset[tuple[int, int]]:
    """(node, path) where no packet can arrive for want of an address: none is known, or the node does not have it."""
    unknown = {(n, p) for n, own in enumerate(facts.addresses) for p, address in enumerate(own) if not address}
    return frozenset(unknown | {(node, path) for node, path, _ in facts.unbound})


def burst_symptoms(facts: PairFacts, limits: Limits) -> dict[Symptom, set[Triple]]:
    """Symptom -> directed pairs whose bursts show it. Repetitions outweigh the first burst, and all must agree."""
    again: defaultdict[Triple, list[Burst]] = defaultdict(list)
    for burst in facts.again:
        again[Triple(burst.src, burst.dst, burst.path)].append(burst)
    out: defaultdict[Symptom, set[Triple]] = defaultdict(set)
    for burst in facts.bursts:
        triple = Triple(burst.src, burst.dst, burst.path)
        if triple not in again and (found := of_burst(burst, facts.num_sent(burst), facts, 0.0)):
            out[found].add(triple)
    for triple, bursts in again.items():
        each = [of_burst(t, facts.num_sent(t, again=True), facts, limits.loss) for t in bursts]
        if all(each):
            # where they differ in kind, all of them at least lost packets
            out[each[0] if len(set(each)) == 1 and each[0] else Symptom.LOSSY].add(triple)
    return _without(out, facts.lost)


def of_burst(burst: Burst, small: int, facts: PairFacts, loss: float) -> Symptom | None:
    """What one burst of `small` small packets and the full-size ones shows; `loss` is the share that may be missing."""
    if burst.small + burst.full == 0:
        return Symptom.BLOCKED
    if burst.full == 0 and burst.small * 2 >= small:
        return Symptom.MTU
    if burst.dark_flows and burst.whole_flows and burst.dark_flows + burst.whole_flows == facts.num_flows:
        return Symptom.DARK
    num_sent = small + facts.full
    num_lost = num_sent - burst.small - burst.full - burst.lost_here
    return Symptom.LOSSY if num_lost > 0 and num_lost >= loss * num_sent else None


def speed_symptoms(facts: PairFacts, limits: Limits) -> dict[Symptom, set[Triple]]:
    """Slow and late directed pairs: the best of all measurements of a pair against the median of the first ones, and
    a rate against the size's floor.
    """
    slowest = {over: max(limits.slow_ratio * median_rate(facts, over=over), floor(facts, limits)) for over in (0, 1)}

    def is_slow(speed: Speed) -> bool:
        return speed.rate_bps < slowest[speed.path in facts.ways]

    slow = {Triple(s.src, s.dst, s.path) for s in facts.speeds if is_slow(s)}
    slow.difference_update(Triple(s.src, s.dst, s.path) for s in facts.speeds_again if not is_slow(s))
    return _without({Symptom.SLOW: slow, Symptom.LATE: without_distance(late_pairs(facts, limits), facts)}, facts.lost)


def late_pairs(facts: PairFacts, limits: Limits) -> set[Triple]:
    """Directed pairs that are late in every measurement."""
    latest = late_from(facts, limits)
    late = {Triple(s.src, s.dst, s.path) for s in facts.speeds if s.rtt_ns > latest}
    return late - {Triple(s.src, s.dst, s.path) for s in facts.speeds_again if 0 < s.rtt_ns <= latest}


def _measured(facts: PairFacts) -> frozenset[Triple]:
    return frozenset(Triple(s.src, s.dst, s.path) for s in chain(facts.speeds, facts.speeds_again))


def median_rate(facts: PairFacts, *, over: int = 0) -> float:
    """The fleet's median rate in the first pass, b/s, of pairs or of `over` steered tests; 0: nothing was measured."""
    rates = [s.rate_bps for s in facts.speeds if s.rate_bps and (s.path in facts.ways) == bool(over)]
    return statistics.median(rates) if rates else 0.0


def floor(facts: PairFacts, limits: Limits) -> float:
    """The rate, b/s, that every port reaches by what its VM size says, whatever the others do; 0 where nobody says."""
    return min(limits.floor_ratio * facts.port_bps, limits.floor_bps)


def late_from(facts: PairFacts, limits: Limits) -> float:
    """The round-trip time, ns, beyond which a pair is late."""
    times = [s.rtt_ns for s in facts.speeds if s.rtt_ns]
    if not times:
        return float("inf")
    middle = statistics.median(times)
    mad = statistics.median(abs(t - middle) for t in times)
    return max(limits.late_ratio * middle, middle + limits.late_mads * mad)


def wanted(found: Iterable[Blame], facts: PairFacts) -> dict[Means, list[Test]]:
    """The repetitions that unsettled blames still need, by means, the most urgent first."""
    out: dict[Means, list[Test]] = {means: [] for means in Means}
    repeats = {is_burst: _repeats(facts, is_burst=is_burst) for is_burst in (True, False)}
    for blame in found:
        if not blame.is_confirmed:
            done = repeats[blame.symptom.is_burst]
            beside = [Test(t.src, t.dst, (t.path,)) for t in _beside(blame.symptom, blame.culprit, facts, done)]
            out[blame.symptom.means] += [*beside, *_witness_tests(blame, done)]
    return out


def _beside(symptom: Symptom, culprit: Culprit, facts: PairFacts, done: Mapping[Triple, int]) -> list[Triple]:
    """Pairs beside lossy ones that must be tested, too: those that share a port with them.

    A port whose loss is small is met by some pairs in the first pass and not by others. So where one pair does lose
    packets, two more partners of each of its ports are asked, and each link between switches that it may have met.
    Where a port seems to, a partner below the same switch is: if that one hears all, the loss lies above the switch.
    And where a link seems to, the ports at the ends of its test are asked without it.
    """
    part, ways = culprit.part, facts.ways
    if symptom is not Symptom.LOSSY:
        return []
    if part.kind in (Kind.TRUNK, Kind.SPINE):
        over = [t for t in culprit.pairs if t.path in ways]
        return [alone for t in over if (alone := Triple(*without_link(t, ways))) not in done]
    if part.kind is Kind.LINK and part.key[-1] not in ways:
        if not any(done.get(t) for t in culprit.pairs):
            return []
        ports = [[Triple(t.src, n, t.path) for n in _partners(t.src, t.dst, facts)] for t in culprit.pairs]
        ports += [[Triple(n, t.dst, t.path) for n in _partners(t.dst, t.src, facts)] for t in culprit.pairs]
        links = [
            t for t in map(Triple._make, facts.steered) if any(_may_share_link(t, c, facts) for c in culprit.pairs)
        ]
        return [*chain.from_iterable(_fresh(p, MIN_PARTNERS, done) for p in ports), *_fresh(links, len(links), done)]
    if part.kind in (Kind.PORT, Kind.NODE) and facts.groups:
        node, path = part.key[0], culprit.pairs[0].path
        plane = ways[path][0] if path in ways else path
        near = [n for n in _partners(node, node, facts) if facts.groups[n] == facts.groups[node]]
        ports = [[Triple(node, n, plane) for n in near]] if part.way is not Way.IN else []
        ports += [[Triple(n, node, plane) for n in near]] if part.way is not Way.OUT else []
        ports += [
            [t for t in map(Triple._make, facts.steered) if t[:2] == (node, node) and ways[t.path] == (plane, T0_ALONE)]
        ]
        return list(chain.from_iterable(_fresh(p, 1, done) for p in ports))
    return []


def _fresh(tests: Sequence[Triple], num: int, done: Mapping[Triple, int]) -> list[Triple]:
    """So many of some tests that `num` of them are done in all."""
    fresh = [t for t in tests if t not in done]
    return fresh[: max(0, num - (len(tests) - len(fresh)))]


def _may_share_link(steered: Triple, pair: Triple, facts: PairFacts) -> bool:
    """Whether a steered test goes over a link between switches that a pair's packets may have met."""
    plane, t1 = facts.ways[steered.path]
    ends = {facts.groups[pair.src], facts.groups[pair.dst]}
    return plane == pair.path and t1 != T0_ALONE and len(ends) == 2 and facts.groups[steered.src] in ends


def _partners(node: int, other: int, facts: PairFacts) -> list[int]:
    """Third nodes, those below the same switch first."""
    group = facts.groups.get(node)
    left = [n for n in facts.members if n not in (node, other) and n not in facts.lost]
    return sorted(left, key=lambda n: facts.groups.get(n) != group)


def _witness_tests(blame: Blame, done: Mapping[Triple, int]) -> list[Test]:
    """Pairs to repeat: those not repeated yet first, with partners and directions as different as possible."""
    paths: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for triple in blame.culprit.pairs:
        paths[triple.src, triple.dst].append(triple.path)
    fresh = sorted(paths, key=lambda pair: min(done.get(Triple(pair[0], pair[1], p), 0) for p in paths[pair]))
    chosen: list[tuple[int, int]] = []
    for pair in fresh:
        known = {frozenset(c) for c in chosen}
        if frozenset(pair) not in known or len(paths) < 3:
            chosen.append(pair)
    if len(chosen) > 1 and (reverse := (chosen[1][1], chosen[1][0])) in paths and reverse not in chosen[:1]:
        chosen[1] = reverse  # the second witness looks the other way
    return [Test(src, dst, tuple(paths[src, dst])) for src, dst in chosen[:4]]


def _repeats(facts: PairFacts, *, is_burst: bool) -> Mapping[Triple, int]:
    """How often each directed pair was repeated with a burst, or with a stream."""
    count: defaultdict[Triple, int] = defaultdict(int)
    for record in facts.again if is_burst else facts.speeds_again:
        count[Triple(record.src, record.dst, record.path)] += 1
    return count


def _is_confirmed(symptom: Symptom, culprit: Culprit, done: Mapping[Triple, int], limits: Limits) -> bool:
    """Whether enough repetitions agree: a pair in `culprit.pairs` still shows the symptom, so its repetitions did."""
    repeated = [t for t in culprit.pairs if done.get(t)]
    needed = limits.min_witnesses if symptom.is_burst else limits.min_slow_witnesses
    if len({frozenset(t[:2]) for t in repeated}) < min(needed, len({frozenset(t[:2]) for t in culprit.pairs})):
        return False
    ways = {(t.src, t.dst) for t in culprit.pairs}
    if len(ways) == 2 and not ways <= {(t.src, t.dst) for t in repeated}:
        return False
    per_pair: defaultdict[tuple[int, int], int] = defaultdict(int)
    for t in repeated:
        per_pair[t.src, t.dst] = max(per_pair[t.src, t.dst], done[t])
    return sum(per_pair.values()) >= needed


def _is_explained(triple: Triple, symptom: Symptom, found: Sequence[Blame], facts: PairFacts, limits: Limits) -> bool:
    """Whether sick planes, ports or pairs explain what a pair shows on the address that uses all planes.

    One sick plane makes some of its flows fail. All planes together block it, and so do some of them where it is no
    wonder that, of so many pairs, one has all its flows there: the same flows are sent when it is tested again.
    """
    met = [b.culprit.part for b in found if touches(b.culprit.part, triple, facts.groups)]
    if symptom is not Symptom.BLOCKED:
        return bool(met)
    covered: set[int] = set()
    for part in met:
        if part.kind in (Kind.NODE, Kind.PAIR, Kind.FABRIC):
            return True
        if part.kind in (Kind.PLANE, Kind.SWITCH, Kind.PORT, Kind.LINK):
            covered.add(part.key[-1])
    num_pairs = len(facts.members) * (len(facts.members) - 1)
    return num_pairs * (len(covered) / (len(facts.paths) - 1)) ** facts.num_flows > limits.by_chance


def _without(found: Mapping[Symptom, set[Triple]], lost: Mapping[int, str]) -> dict[Symptom, set[Triple]]:
    """Drop pairs with a node that stopped answering: its silence is judged, not its partners' complaints."""
    if not lost:
        return dict(found)
    return {s: {t for t in triples if t.src not in lost and t.dst not in lost} for s, triples in found.items()}
