"""Links between switches: named where ways can be chosen, else laid between two switches; never a port beside them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.preflight.pairs.judge import dead_part, judge_pairs
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.parts import Kind
from fairlead.preflight.pairs.phase import PairFacts, pair_phase
from fairlead.preflight.pairs.steered import Steering
from fairlead.preflight.pairs.steps import Plan
from fairlead.preflight.pairs.symptoms import Symptom, blames
from fairlead.records.verdict import Verdict
from support.depth import cases
from support.fabric_draws import BLOCKED, LOSSY, MTU, SLOW, Effect, Fabric

EFFECTS = {Symptom.BLOCKED: BLOCKED, Symptom.MTU: MTU, Symptom.LOSSY: LOSSY, Symptom.SLOW: SLOW}


def built(t0: int, per_t0: int, t1: int, planes: int, seed: int, *, can_steer: bool = True) -> tuple[Fabric, Plan]:
    """A fabric whose nodes know their seats, and the plan of its pair phase."""
    n = t0 * per_t0
    seats = {i: divmod(i, per_t0) for i in range(n)}
    paths = ("fabric", *(f"plane {p}" for p in range(planes)))
    steering = Steering(t1, seats, {p: p - 1 for p in range(1, planes + 1)}, len(paths)) if can_steer else Steering()
    fabric = Fabric(n, planes, seed, steering=steering, t0_of=tuple(i // per_t0 for i in range(n)), num_t1=t1)
    switches = tuple(("", *(f"p{p}/t0-{i // per_t0}" for p in range(planes))) for i in range(n))
    plan = Plan(
        nodes=tuple(f"n{i}" for i in range(n)),
        paths=paths,
        addresses=(("a",) * len(paths),) * n,
        groups={i: i // per_t0 for i in range(n)},
        switches=switches,
        steering=steering,
    )
    return fabric, plan


def ask(fabric: Fabric, plan: Plan) -> PairFacts:
    return fabric.run(pair_phase(plan))


def accused(facts: PairFacts) -> list[tuple[str, str]]:
    return [(f.verdict.value, str(f.subject)) for f in judge_pairs(facts) if f.verdict in (Verdict.FAIL, Verdict.WARN)]


shapes = {
    "t0": st.integers(2, 4),
    "per_t0": st.integers(1, 4),
    "t1": st.integers(1, 4),
    "planes": st.integers(2, 3),
    "seed": st.integers(0, 2**32),
}


@pytest.mark.parametrize("symptom", EFFECTS)
@given(**shapes)
@settings(max_examples=30, deadline=None)
def test_one_bad_link_is_named_and_nothing_else(symptom, t0, per_t0, t1, planes, seed):  # noqa: PLR0917
    fabric, plan = built(t0, per_t0, max(t1, 2), planes, seed)
    rng = random.Random(seed)
    plane, low, up = rng.randint(1, planes), rng.randrange(t0), rng.randrange(max(t1, 2))
    fabric.links[plane, low, up] = EFFECTS[symptom]
    facts = ask(fabric, plan)
    assert accused(facts) == [("fail", f"p{plane - 1}/t0-{low}/t1-{up}")]
    (found,) = blames(facts, DEFAULT)
    assert (found.symptom, found.culprit.part.kind) == (symptom, Kind.TRUNK)
    is_dead = symptom in (Symptom.BLOCKED, Symptom.MTU)
    assert dead_part(facts) == (f"p{plane - 1}/t0-{low}/t1-{up} is dead" if is_dead else "")


@given(**shapes)
@settings(max_examples=40, deadline=None)
def test_two_bad_links_of_one_plane_are_both_named(t0, per_t0, t1, planes, seed):
    num_t1 = max(t1, 2)
    fabric, plan = built(t0, per_t0, num_t1, planes, seed)
    rng = random.Random(seed)
    plane = rng.randint(1, planes)
    links = rng.sample([(low, up) for low in range(t0) for up in range(num_t1)], 2)
    for low, up in links:
        fabric.links[plane, low, up] = EFFECTS[rng.choice(list(EFFECTS))]
    said = {name for _, name in accused(ask(fabric, plan))}
    if t0 == 2 and links[0][1] == links[1][1] and f"p{plane - 1}/t1-{links[0][1]}" in said:
        assert said == {f"p{plane - 1}/t1-{links[0][1]}"}, "every link of one T1: the switch"
    else:
        assert said == {f"p{plane - 1}/t0-{low}/t1-{up}" for low, up in links}


@given(**shapes)
@settings(max_examples=30, deadline=None)
def test_a_bad_t1_is_one_switch_and_not_all_of_its_links(t0, per_t0, t1, planes, seed):
    fabric, plan = built(t0, per_t0, max(t1, 2), planes, seed)
    rng = random.Random(seed)
    plane, up, effect = rng.randint(1, planes), rng.randrange(max(t1, 2)), rng.choice(list(EFFECTS.values()))
    fabric.links |= {(plane, low, up): effect for low in range(t0)}
    assert accused(ask(fabric, plan)) == [("fail", f"p{plane - 1}/t1-{up}")]


@pytest.mark.parametrize("symptom", EFFECTS)
@given(**shapes)
@settings(max_examples=30, deadline=None)
def test_a_bad_port_is_still_the_port(symptom, t0, per_t0, t1, planes, seed):  # noqa: PLR0917
    fabric, plan = built(max(t0, 3), per_t0, t1, planes, seed)
    rng = random.Random(seed)
    node, plane = rng.randrange(fabric.num_nodes), rng.randint(1, planes)
    fabric.hit(fabric.port(node, plane), EFFECTS[symptom])
    fabric.hit(iter([(node, node, plane)]), EFFECTS[symptom])
    assert accused(ask(fabric, plan)) == [("fail", f"n{node} plane {plane - 1}")]


@pytest.mark.parametrize("symptom", [Symptom.BLOCKED, Symptom.LOSSY])
@given(**(shapes | {"t0": st.integers(2, 4), "per_t0": st.integers(2, 4), "t1": st.integers(2, 4)}))
@settings(max_examples=30, deadline=None)
def test_where_nobody_can_choose_it_lies_between_switches_and_never_with_a_port(symptom, t0, per_t0, t1, planes, seed):  # noqa: PLR0917
    fabric, plan = built(t0, per_t0, t1, planes, seed, can_steer=False)
    rng = random.Random(seed)
    plane, low = rng.randint(1, planes), rng.randrange(t0)
    fabric.links[plane, low, rng.randrange(t1)] = EFFECTS[symptom]
    said = accused(ask(fabric, plan))
    names = {f"p{plane - 1}/t0-0 - p{plane - 1}/t0-1"} if t0 == 2 else {f"p{plane - 1}/t0-{low} uplinks"}
    assert {name for _, name in said} <= names, said
    assert said


@pytest.mark.parametrize("way", ["both", "out", "in"])
@pytest.mark.parametrize("shape", [(2, 2, 2, 2), (3, 1, 2, 2), (3, 4, 2, 2)])
def test_a_port_that_loses_little_is_the_port_and_not_a_link_that_its_steered_test_went_over(shape, way):
    wrong, num = [], cases(20)
    for seed in range(num):
        fabric, plan = built(*shape, seed)
        rng = random.Random(seed)
        node, plane = rng.randrange(fabric.num_nodes), rng.randint(1, fabric.num_planes)
        fabric.hit(fabric.port(node, plane, way), Effect(loss=0.003))
        fabric.hit(iter([(node, node, plane)]), Effect(loss=0.003))
        if (said := accused(ask(fabric, plan))) != [("fail", f"n{node} plane {plane - 1}")]:
            wrong.append((seed, node, said))
    assert len(wrong) <= num / 50, wrong


@pytest.mark.parametrize("shape", [(2, 2, 2, 2), (3, 1, 2, 2), (3, 4, 4, 2)])
def test_a_link_that_loses_little_is_the_link_and_never_a_port(shape):
    right, wrong, num = 0, [], cases(20)
    for seed in range(num):
        fabric, plan = built(*shape, seed)
        rng = random.Random(seed)
        low, up, plane = rng.randrange(shape[0]), rng.randrange(shape[2]), rng.randint(1, fabric.num_planes)
        fabric.links[plane, low, up] = Effect(loss=0.003)
        said = accused(ask(fabric, plan))
        right += said == [("fail", f"p{plane - 1}/t0-{low}/t1-{up}")]
        wrong += [name for _, name in said if "/t1-" not in name and "<->" not in name]
    assert len(wrong) <= num / 50, wrong
    assert right >= 0.9 * num, right
