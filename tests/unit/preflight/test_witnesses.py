"""Blame moves from pairs to a port only with the evidence of several partners; until then it is a warning."""

from __future__ import annotations

from itertools import permutations

import pytest

from fairlead.preflight.pairs.facts import Burst, PairFacts, Speed
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.steps import Plan
from fairlead.records.verdict import Verdict
from support.fabric_draws import Fabric

N = 5
BLOCKED = (0, 0, 0, 0)
FAST, SLOW = 250_000_000, 12_000_000
OF_N3 = [(a, b) for a, b in permutations(range(N), 2) if 3 in (a, b)]


def said(**more):
    fields = {
        "nodes": tuple(f"n{i}" for i in range(N)),
        "paths": ("fabric", "plane 0", "plane 1"),
        "addresses": tuple(("fd::1", "fd::2", "fd::3") for _ in range(N)),
        "small": 200,
        "full": 8,
        "num_flows": 8,
        "again_small": 400,
        "members": tuple(range(N)),
    } | more
    found = [f for f in judge_pairs(PairFacts(**fields)) if f.verdict in (Verdict.FAIL, Verdict.WARN)]
    assert {str(f.subject) for f in found} == {"n3 plane 0"}
    return found[0]


@pytest.mark.parametrize("again", [[], [(3, 0)], [(3, 0), (3, 0)], [(3, 0), (0, 3)]])
def test_one_partner_is_not_enough(again):
    bursts = [Burst(a, b, 1, *BLOCKED) for a, b in OF_N3]
    found = said(bursts=bursts, again=[Burst(a, b, 1, *BLOCKED) for a, b in again])
    assert (found.verdict, found.data["confirmed"]) == (Verdict.WARN, False)
    assert "not settled" in found.message


def test_two_partners_are():
    bursts = [Burst(a, b, 1, *BLOCKED) for a, b in OF_N3]
    found = said(bursts=bursts, again=[Burst(a, b, 1, *BLOCKED) for a, b in ((3, 0), (1, 3))])
    assert (found.verdict, found.data["confirmed"]) == (Verdict.FAIL, True)


@pytest.mark.parametrize(
    ("again", "verdict"),
    [
        ([(3, 0), (1, 3)], Verdict.WARN),
        ([(3, 0), (0, 3), (3, 0), (0, 3)], Verdict.WARN),
        ([(3, 0), (1, 3), (3, 2)], Verdict.FAIL),
    ],
)
def test_a_rate_takes_three(again, verdict):
    speeds = [
        Speed(a, b, p, SLOW if p == 1 and 3 in (a, b) else FAST, 400_000, 3)
        for a, b in permutations(range(N), 2)
        for p in (1, 2)
    ]
    found = said(speeds=speeds, speeds_again=[Speed(a, b, 1, SLOW, 400_000, 3) for a, b in again])
    assert (found.code, found.verdict) == ("preflight/slow-link", verdict)


class Filters(Fabric):
    """A fabric on which some connections fail, for so many tries."""

    def __init__(self, failing: set[tuple[int, int]], tries: int) -> None:
        super().__init__(num_nodes=4, num_planes=0)
        self.failing, self.tries, self.asked = failing, tries, []

    def _tcp(self, line, said):
        wanted = {(src, dst) for src, dst, _ in line.get("pairs", ())}
        if not wanted:
            wanted = {(a, (a + shift) % 4) for a in said for shift in line["shifts"]}
        bad = wanted & self.failing if self.tries > ("pairs" in line) else set()
        self.asked.append(sorted(wanted & self.failing))
        for node, fields in said.items():
            own = [[dst, "ETIMEDOUT"] for src, dst in sorted(bad) if src == node]
            fields.update(errors=own, ok=sum(src == node for src, _ in wanted) - len(own))


def connected(fabric):
    made = Plan(
        nodes=tuple(f"n{i}" for i in range(4)), paths=("fabric",), addresses=tuple((f"fd::{i}",) for i in range(4))
    )
    return fabric.run(pair_phase(made))


@pytest.mark.parametrize(("tries", "left"), [(1, []), (2, [(0, 2, "ETIMEDOUT"), (3, 1, "ETIMEDOUT")])])
def test_a_connection_is_judged_after_two_tries(tries, left):
    facts = connected(Filters({(0, 2), (3, 1)}, tries))
    assert sorted(facts.tcp) == left
    assert facts.tcp_tested == 12


def test_a_filter_everywhere_is_not_waited_for_twice():
    fabric = Filters({(a, b) for a, b in permutations(range(4), 2)}, 9)
    assert len(connected(fabric).tcp) == 12
    assert sum(map(len, fabric.asked)) == 12
