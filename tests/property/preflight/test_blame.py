"""The real scheduler and the real blame over a fabric that draws lots: any shape, any part, any seed."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.parts import Kind, Part, Way
from fairlead.preflight.pairs.phase import PairFacts, pair_phase
from fairlead.preflight.pairs.schedule import log2_up
from fairlead.preflight.pairs.steps import Plan
from fairlead.preflight.pairs.symptoms import Blame, Symptom, blames
from fairlead.records.verdict import Verdict
from support.depth import cases
from support.fabric_draws import BLOCKED, DARK, LATE, LOSSY, MTU, SLOW, Effect, Fabric

EFFECTS = {
    Symptom.BLOCKED: BLOCKED,
    Symptom.MTU: MTU,
    Symptom.LOSSY: LOSSY,
    Symptom.SLOW: SLOW,
    Symptom.LATE: LATE,
}
WAYS = {Way.BOTH: "both", Way.OUT: "out", Way.IN: "in"}


def ask(fabric: Fabric) -> PairFacts:
    """The whole pair phase over a fabric."""
    n, planes = fabric.num_nodes, fabric.num_planes
    paths = ("fabric", *(f"plane {p}" for p in range(planes)))
    names = tuple(f"n{i}" for i in range(n))
    return fabric.run(pair_phase(Plan(nodes=names, paths=paths, addresses=(("a",) * len(paths),) * n)))


class Fault(NamedTuple):
    """What was done to the fabric, and the part that should be named for it."""

    symptom: Symptom
    part: Part
    nodes: frozenset[int]


def put(fabric: Fabric, rng: random.Random, kind: str) -> Fault:
    """Put a fault of a kind somewhere."""
    n, planes = fabric.num_nodes, fabric.num_planes
    node, other = rng.sample(range(n), 2)
    plane = rng.randint(1, planes)
    way = rng.choice(list(Way))
    if kind == "pair":
        one_way = rng.random() < 0.5
        fabric.hit(fabric.pair(node, other, one_way=one_way), BLOCKED)
        ends = (node, other) if one_way else (min(node, other), max(node, other))
        return Fault(Symptom.BLOCKED, Part(Kind.PAIR, ends, Way.OUT if one_way else Way.BOTH), frozenset((node, other)))
    if kind == "link":
        fabric.hit(iter([(node, other, plane), (other, node, plane)]), MTU)
        key = (min(node, other), max(node, other), plane)
        return Fault(Symptom.MTU, Part(Kind.LINK, key), frozenset((node, other)))
    if kind == "node":
        fabric.hit(fabric.node(node), BLOCKED)
        return Fault(Symptom.BLOCKED, Part(Kind.NODE, (node,)), frozenset((node,)))
    if kind == "plane":
        symptom, effect = rng.choice([(Symptom.BLOCKED, BLOCKED), (Symptom.DARK, DARK), (Symptom.MTU, MTU)])
        fabric.hit(fabric.plane(plane), effect)
        return Fault(symptom, Part(Kind.PLANE, (plane,)), frozenset())
    symptom, effect = rng.choice(list(EFFECTS.items()))
    if symptom is Symptom.LATE:
        way = Way.BOTH  # a round trip goes both ways
    fabric.hit(fabric.port(node, plane, WAYS[way]), effect)
    return Fault(symptom, Part(Kind.PORT, (node, plane), way), frozenset((node,)))


def is_about(blame: Blame, fault: Fault) -> bool:
    """Whether a blame names the part, in its place and way; rates tell no more of a way than was measured."""
    part, want = blame.culprit.part, fault.part
    same_way = part.way is want.way or fault.symptom in (Symptom.SLOW, Symptom.LATE)
    return blame.symptom is fault.symptom and part.kind is want.kind and part.key == want.key and same_way


shapes = {"n": st.integers(5, 16), "planes": st.integers(2, 5), "seed": st.integers(0, 2**32)}


@pytest.mark.parametrize("kind", ["pair", "link", "node", "plane", "port"])
@given(**shapes)
@settings(max_examples=cases(30), deadline=None)
def test_one_fault_is_named_first_and_nobody_else_is(kind, n, planes, seed):
    fabric, rng = Fabric(n, planes, seed), random.Random(seed)
    fault = put(fabric, rng, kind)
    facts = ask(fabric)
    found = blames(facts, DEFAULT)
    assert len(found) == 1, found
    assert is_about(found[0], fault), (fault, found)
    assert found[0].is_confirmed
    accused = [f for f in judge_pairs(facts) if f.verdict in (Verdict.FAIL, Verdict.WARN)]
    assert len(accused) == 1
    assert {facts.nodes[i] for i in fault.nodes} == set(accused[0].subject.nodes)


@given(n=st.integers(2, 30), planes=st.sampled_from([0, 1, 4]), seed=st.integers(0, 2**32))
@settings(max_examples=cases(30), deadline=None)
def test_a_well_fabric_on_a_busy_machine_accuses_nobody(n, planes, seed):
    facts = ask(Fabric(n, planes, seed, noise=0.3, hiccups=0.03))
    judged = judge_pairs(facts)
    assert [f.verdict for f in judged] == [Verdict.PASS], judged


@given(n=st.integers(24, 32), planes=st.sampled_from([0, 4]), seed=st.integers(0, 2**32))
@settings(max_examples=cases(3), deadline=None)
def test_more_hiccups_than_can_be_tested_again_are_one_warning_about_nobody(n, planes, seed):
    judged = judge_pairs(ask(Fabric(n, planes, seed, hiccups=0.8)))
    alarms = [f for f in judged if f.verdict is not Verdict.PASS]
    assert [(f.code, f.verdict, f.subject.kind) for f in alarms] == [("preflight/packet-loss", Verdict.WARN, "cluster")]


@given(n=st.integers(2, 24), planes=st.sampled_from([0, 2, 4]), seed=st.integers(0, 2**32))
@settings(max_examples=cases(30), deadline=None)
def test_rounds_stay_within_the_bound_whatever_is_broken(n, planes, seed):
    rng = random.Random(seed)
    fabric = Fabric(n, planes, seed)
    every = [BLOCKED, MTU, LOSSY, SLOW, LATE, DARK, Effect(loss=0.5)]
    for _ in range(rng.randint(0, 3 * n)):
        a, b = rng.sample(range(n), 2)
        fabric.hit(iter([(a, b, rng.choice(fabric.paths))]), rng.choice(every))
    fabric.dead.update(rng.sample(range(n), rng.choice([0, 0, 1])))
    facts = ask(fabric)
    members = len(facts.members)
    assert facts.rounds.get("burst", 0) == max(0, members - 1)
    assert facts.rounds.get("speed", 0) + facts.rounds.get("adaptive", 0) <= 2 * log2_up(n) + 6
    judge_pairs(facts)


def is_apart(a: Fault, b: Fault) -> bool:
    """Whether both can be seen: other nodes, and nothing small within a plane that is sick as a whole."""
    planes = [{f.part.key[-1]} if f.part.kind in (Kind.PLANE, Kind.PORT, Kind.LINK) else set() for f in (a, b)]
    whole = Kind.PLANE in (a.part.kind, b.part.kind)
    return not a.nodes & b.nodes and not (whole and planes[0] & planes[1])


def test_two_faults_at_once_are_both_named_and_nobody_else_is():
    both, kinds, trials = 0, ["pair", "link", "node", "port", "port", "plane"], range(150)
    for seed in trials:
        rng = random.Random(seed)
        fabric = Fabric(rng.randint(6, 12), rng.randint(3, 5), seed)
        faults = [put(fabric, rng, rng.choice(kinds))]
        second = put(Fabric(fabric.num_nodes, fabric.num_planes), rng, rng.choice(kinds))
        while not is_apart(faults[0], second):
            second = put(Fabric(fabric.num_nodes, fabric.num_planes), rng, rng.choice(kinds))
        faults.append(second)
        effect = DARK if second.symptom is Symptom.DARK else EFFECTS[second.symptom]
        fabric.hit(_pairs(fabric, second.part), effect)
        found = [b for b in blames(ask(fabric), DEFAULT) if b.is_confirmed]
        named = [any(is_about(b, f) for b in found) for f in faults]
        both += all(named)
        assert any(is_about(found[0], f) for f in faults), (seed, faults, found)
        assert len(found) <= 2, (seed, faults, found)
    assert both >= 0.95 * len(trials), both


def _pairs(fabric: Fabric, part: Part):
    match part.kind:
        case Kind.PAIR:
            return fabric.pair(*part.key, one_way=part.way is Way.OUT)
        case Kind.LINK:
            a, b, p = part.key
            return iter([(a, b, p), (b, a, p)])
        case Kind.NODE:
            return fabric.node(*part.key)
        case Kind.PLANE:
            return fabric.plane(*part.key)
        case _:
            return fabric.port(*part.key, WAYS[part.way])
