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

from fairlead.preflight.blame import Culprit, Kind, Tested, Triple, contains, explain, touches
from fairlead.preflight.facts import PairFacts, Train
from fairlead.preflight.limits import Limits
from fairlead.preflight.schedule import Test


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
    def is_train(self) -> bool:
        """Whether a train shows it; the others take a burst."""
        return self not in (Symptom.SLOW, Symptom.LATE)


@dataclass(frozen=True, slots=True)
class Blame:
    """A symptom and the part that explains it."""

    symptom: Symptom
    culprit: Culprit
    is_confirmed: bool


def blames(facts: PairFacts, limits: Limits) -> list[Blame]:
    """Who is to blame for what, as far as is known by now."""
    nodes = [i for i in facts.members if i not in facts.lost]
    planes = list(range(1, len(facts.paths)))
    shown = {**train_symptoms(facts, limits), **speed_symptoms(facts, limits)}
    repeats = {is_train: _repeats(facts, is_train=is_train) for is_train in (True, False)}
    homeless = without_address(facts)
    seen = {t for found in shown.values() for t in found if {(t.src, t.path), (t.dst, t.path)} & homeless}
    out: list[Blame] = []
    for paths in (planes, [0]) if planes else ([0],):
        for symptom in Symptom:
            bad = {t for t in shown.get(symptom, ()) if t.path in paths and t not in seen}
            if paths == [0] and planes:
                bad = {t for t in bad if not _is_explained(t, symptom, out, facts.groups, planes)}
            else:
                known = [b.culprit.part for b in out if b.symptom is not symptom]
                bad = {t for t in bad if not any(contains(part, t, facts.groups) for part in known)}
            if not bad:
                continue
            only = None if symptom.is_train else _measured(facts)
            stopped = facts.stopped if symptom.is_train else {}
            # a train that lost packets all over cannot show that flows are dark
            mute = seen | shown.get(Symptom.LOSSY, set()) if symptom is Symptom.DARK else seen
            tested = Tested(nodes, paths, only, mute, facts.groups, stopped, facts.members)
            found = explain(bad, tested)
            done = repeats[symptom.is_train]
            out += [Blame(symptom, c, _is_confirmed(symptom, c, done, limits)) for c in found]
            seen |= bad
    return out


def without_address(facts: PairFacts) -> frozenset[tuple[int, int]]:
    """(node, path) where no packet can arrive for want of an address: none is known, or the node does not have it."""
    unknown = {(n, p) for n, own in enumerate(facts.addresses) for p, address in enumerate(own) if not address}
    return frozenset(unknown | {(node, path) for node, path, _ in facts.unbound})


def train_symptoms(facts: PairFacts, limits: Limits) -> dict[Symptom, set[Triple]]:
    """Symptom -> directed pairs whose trains show it. Repetitions outweigh the first train, and all must agree."""
    again: defaultdict[Triple, list[Train]] = defaultdict(list)
    for train in facts.again:
        again[Triple(train.src, train.dst, train.path)].append(train)
    out: defaultdict[Symptom, set[Triple]] = defaultdict(set)
    for train in facts.trains:
        triple = Triple(train.src, train.dst, train.path)
        if triple not in again and (found := of_train(train, facts.small, facts, 0.0)):
            out[found].add(triple)
    for triple, trains in again.items():
        each = [of_train(t, facts.again_small, facts, limits.loss) for t in trains]
        if all(each):
            # where they differ in kind, all of them at least lost packets
            out[each[0] if len(set(each)) == 1 and each[0] else Symptom.LOSSY].add(triple)
    return _without(out, facts.lost)


def of_train(train: Train, small: int, facts: PairFacts, loss: float) -> Symptom | None:
    """What one train of `small` small packets and the full-size ones shows; `loss` is the share that may be missing."""
    if train.small + train.full == 0:
        return Symptom.BLOCKED
    if train.full == 0 and train.small * 2 >= small:
        return Symptom.MTU
    if train.dark_flows and train.whole_flows and train.dark_flows + train.whole_flows == facts.num_flows:
        return Symptom.DARK
    num_sent = small + facts.full
    num_lost = num_sent - train.small - train.full - train.lost_here
    return Symptom.LOSSY if num_lost > 0 and num_lost >= loss * num_sent else None


def speed_symptoms(facts: PairFacts, limits: Limits) -> dict[Symptom, set[Triple]]:
    """Slow and late directed pairs: the best of all measurements of a pair against the median of the first ones, and
    a rate against the size's floor.
    """
    slowest = max(limits.slow_ratio * median_rate(facts), floor(facts, limits))
    latest = late_from(facts, limits)
    slow = {Triple(s.src, s.dst, s.path) for s in facts.speeds if s.rate_bps < slowest}
    late = {Triple(s.src, s.dst, s.path) for s in facts.speeds if s.rtt_ns > latest}
    slow.difference_update(Triple(s.src, s.dst, s.path) for s in facts.speeds_again if s.rate_bps >= slowest)
    late.difference_update(Triple(s.src, s.dst, s.path) for s in facts.speeds_again if 0 < s.rtt_ns <= latest)
    return _without({Symptom.SLOW: slow, Symptom.LATE: late}, facts.lost)


def _measured(facts: PairFacts) -> frozenset[Triple]:
    return frozenset(Triple(s.src, s.dst, s.path) for s in chain(facts.speeds, facts.speeds_again))


def median_rate(facts: PairFacts) -> float:
    """The fleet's median rate in the first pass, b/s; 0 where nothing was measured."""
    return statistics.median(rates) if (rates := [s.rate_bps for s in facts.speeds if s.rate_bps]) else 0.0


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


def wanted(found: Iterable[Blame], facts: PairFacts) -> dict[bool, list[Test]]:
    """The repetitions that unsettled blames still need, the most urgent first: {True: trains, False: bursts}."""
    out: dict[bool, list[Test]] = {True: [], False: []}
    repeats = {is_train: _repeats(facts, is_train=is_train) for is_train in out}
    for blame in found:
        if not blame.is_confirmed:
            is_train = blame.symptom.is_train
            out[is_train] += _witness_tests(blame, repeats[is_train])
    return out


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


def _repeats(facts: PairFacts, *, is_train: bool) -> Mapping[Triple, int]:
    """How often each directed pair was repeated with a train, or with a burst."""
    count: defaultdict[Triple, int] = defaultdict(int)
    for record in facts.again if is_train else facts.speeds_again:
        count[Triple(record.src, record.dst, record.path)] += 1
    return count


def _is_confirmed(symptom: Symptom, culprit: Culprit, done: Mapping[Triple, int], limits: Limits) -> bool:
    """Whether enough repetitions agree: a pair in `culprit.pairs` still shows the symptom, so its repetitions did."""
    repeated = [t for t in culprit.pairs if done.get(t)]
    needed = limits.min_witnesses if symptom.is_train else limits.min_slow_witnesses
    if len({frozenset(t[:2]) for t in repeated}) < min(needed, len({frozenset(t[:2]) for t in culprit.pairs})):
        return False
    ways = {(t.src, t.dst) for t in culprit.pairs}
    if len(ways) == 2 and not ways <= {(t.src, t.dst) for t in repeated}:
        return False
    per_pair: defaultdict[tuple[int, int], int] = defaultdict(int)
    for t in repeated:
        per_pair[t.src, t.dst] = max(per_pair[t.src, t.dst], done[t])
    return sum(per_pair.values()) >= needed


def _is_explained(
    triple: Triple, symptom: Symptom, found: Sequence[Blame], groups: Mapping[int, int], planes: Sequence[int]
) -> bool:
    """Whether sick planes, ports or pairs explain what a pair shows on the address that uses all planes.

    One sick plane makes some of its flows fail; it takes all planes to block it.
    """
    met = [b.culprit.part for b in found if touches(b.culprit.part, triple, groups)]
    if symptom is not Symptom.BLOCKED:
        return bool(met)
    covered: set[int] = set()
    for part in met:
        if part.kind in (Kind.NODE, Kind.PAIR, Kind.FABRIC):
            return True
        covered.add(part.key[-1])
    return covered == set(planes)


def _without(found: Mapping[Symptom, set[Triple]], lost: Mapping[int, str]) -> dict[Symptom, set[Triple]]:
    """Drop pairs with a node that stopped answering: its silence is judged, not its partners' complaints."""
    if not lost:
        return dict(found)
    return {s: {t for t in triples if t.src not in lost and t.dst not in lost} for s, triples in found.items()}
