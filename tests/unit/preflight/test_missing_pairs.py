"""Pairs that are well, as agents of a whole run say it, and one thing that the clean bill rests on taken away: unknown.

Never a fault, which would send healthy nodes away for an answer that was cut, and never the claim that all is well by
less than before (ids S2, S5, S6, S9, C5, C8 of the check list).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead.preflight.pairs.drive import Driver
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.steps import Counted, Plan
from fairlead.records.codec import from_json, to_json
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support.hostile import Agents

N = 6
NODES = tuple(f"n{i}" for i in range(N))
PORTS = [["rail 1", "ib0", "mlx5_0", 1], ["rail 2", "ib1", "mlx5_1", 1]]


def whole(addresses: tuple[tuple[str, ...], ...] = ()) -> PairFacts:
    """The facts of a run on agents that answer everything, as the run folder has them."""
    addresses = addresses or tuple((f"10.0.0.{i}", f"10.1.0.{i}", f"10.2.0.{i}") for i in range(N))
    counted = tuple(Counted(ports=PORTS, since_ns=1) for _ in NODES)
    plan = Plan(nodes=NODES, paths=("eth", "rail 1", "rail 2"), addresses=addresses, counted=counted, port_bps=4e11)
    facts = Driver(Agents(NODES, 3, {}), NODES, lost_s=10.0).run(pair_phase(plan))
    return from_json(to_json(facts), PairFacts)


FACTS = whole()
KEPT = to_json(FACTS)


def without(**gone: object) -> Callable[[PairFacts], None]:
    """Fields replaced by what they are where nothing was told."""

    def change(facts: PairFacts) -> None:
        for name, value in gone.items():
            setattr(facts, name, value)

    return change


def of_path(facts: PairFacts) -> None:
    facts.speeds = [s for s in facts.speeds if s.path != 2]


def to_node(facts: PairFacts) -> None:
    facts.speeds = [s for s in facts.speeds if (s.dst, s.path) != (3, 1)]


GONE: dict[str, tuple[Callable[[PairFacts], object], str]] = {
    "addresses": (without(addresses=()), "the addresses of nodes"),
    "rounds": (without(rounds={}), "a burst on every pair"),
    "a round of bursts": (lambda f: f.rounds.update(burst=N - 2), "a burst on every pair"),
    "sizes": (without(full_bytes={}), "full-size packets were: eth, rail 1, rail 2"),
    "the size of a path": (lambda f: f.full_bytes.pop(1), "full-size packets were: rail 1"),
    "rates": (without(speeds=[]), "packets came to n[0-5]: rail 1, rail 2"),
    "rates of a path": (of_path, "packets came to n[0-5]: rail 2"),
    "rates to a node": (to_node, "packets came to n3: rail 1"),
    "connections": (without(tcp_tested=0), "30 connections of 30"),
    "a node's connections": (lambda f: setattr(f, "tcp_tested", 25), "5 connections of 30"),
    "clocks": (without(clocks={}), "the clock of n[0-5]"),
    "a clock": (lambda f: f.clocks.pop(4), "the clock of n4"),
    "work": (without(work={}), "n[0-5] took for the fixed work"),
    "a node's work": (lambda f: f.work.pop(4), "n4 took for the fixed work"),
    "the second reading of counters": (without(watched_s={}), "the ports of n[0-5] counted"),
}


def summary(facts: PairFacts) -> Finding:
    found = judge_pairs(facts)
    assert not [str(f) for f in found if f.verdict in (Verdict.FAIL, Verdict.WARN)]
    return found[-1]


def test_the_whole_run_is_well() -> None:
    assert summary(FACTS).verdict is Verdict.PASS


@pytest.mark.parametrize("what", GONE)
def test_without(what: str) -> None:
    change, says = GONE[what]
    facts = from_json(KEPT, PairFacts)
    change(facts)
    found = summary(facts)
    assert found.verdict is Verdict.UNKNOWN
    assert any(says in e.value for e in found.evidence)
    assert says in found.message
    assert found.remedy


def test_a_rail_that_two_nodes_have_and_no_round_pairs_is_not_missed() -> None:
    """Streams go to those 1, 2 and 4 further on: none to a node 3 apart, so nobody can have lost its rate."""
    addresses = tuple((f"10.0.0.{i}", f"10.1.0.{i}", f"10.2.0.{i}" if i in (0, 3) else "") for i in range(N))
    facts = from_json(KEPT, PairFacts)
    facts.addresses = addresses
    facts.speeds = [s for s in facts.speeds if s.path != 2]
    assert summary(facts).verdict is Verdict.PASS
