"""Pings over every path of a scripted fabric: what is broken is named, and nothing else is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.pinged import FLOWS, Plan, Seen, judge
from support.fabric_draws import BLOCKED, DARK, LATE, Effect, Fabric
from support.pings import EACH, WINDOWS, by_ports, drawn, fabric_of, steered

LOSSY = Effect(loss=0.1)


def named(plan: Plan, fabric: Fabric) -> list[tuple[str, str, bool]]:
    return [
        (f.code.partition("/")[2], str(f.subject), f.verdict == "fail")
        for f in judge(plan, drawn(plan, fabric), {}, DEFAULT)
    ]


SHAPES = [(2, 2, 2, 2), (2, 1, 2, 4), (4, 4, 4, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_healthy_fabric_accuses_nobody(shape) -> None:
    plan = steered(*shape)
    for seed in range(3):
        assert named(plan, fabric_of(plan, shape[3], seed)) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("effect", "code", "fails"),
    [(BLOCKED, "unreachable", True), (LOSSY, "packet-loss", True), (LATE, "late-link", False)],
)
def test_one_link_between_switches_is_named(shape, effect, code, fails) -> None:
    plan = steered(*shape)
    for seed in range(2):
        fabric = fabric_of(plan, shape[3], seed)
        rng = random.Random(seed)
        path, t0, t1 = rng.randint(1, shape[3]), rng.randrange(shape[0]), rng.randrange(shape[2])
        fabric.links[path, t0, t1] = effect
        assert named(plan, fabric) == [(code, f"p{path - 1}/t0-{t0}/t1-{t1}", fails)]


@pytest.mark.parametrize(("effect", "code"), [(BLOCKED, "unreachable"), (LOSSY, "packet-loss")])
def test_a_port_of_a_node_is_named(effect, code) -> None:
    plan = steered(2, 3, 2, 2)
    for node in range(6):
        fabric = fabric_of(plan, 2, node)
        fabric.hit(fabric.port(node, 2), effect)
        fabric.hit(iter([(node, node, 2)]), effect)  # what it sends itself goes over its port, too
        assert named(plan, fabric) == [(code, f"n{node} plane 1", True)]


def test_a_lossy_a_late_and_a_dead_link_are_named_at_once() -> None:
    plan = steered(2, 2, 2, 4)
    fabric = fabric_of(plan, 4, 1)
    fabric.links |= {(1, 0, 1): BLOCKED, (2, 1, 0): LOSSY, (4, 0, 0): LATE}
    assert sorted(named(plan, fabric)) == [
        ("late-link", "p3/t0-0/t1-0", False),
        ("packet-loss", "p1/t0-1/t1-0", True),
        ("unreachable", "p0/t0-0/t1-1", True),
    ]


def test_without_a_choice_of_ways_ports_rails_and_dead_flows_are_named() -> None:
    plan = by_ports(4, 2)
    assert {p.flow for p in plan.pings} == set(range(FLOWS))
    for effect, code in ((BLOCKED, "unreachable"), (LOSSY, "packet-loss"), (DARK, "dead-path")):
        fabric = fabric_of(plan, 2, 3)
        fabric.hit(fabric.port(1, 2), effect)
        assert named(plan, fabric) == [(code, "n1 rail 1", True)]
    assert named(plan, fabric_of(plan, 2, 4)) == []
    fabric = fabric_of(plan, 2, 5)
    fabric.hit(fabric.plane(1), BLOCKED)
    assert named(plan, fabric) == [("unreachable", "rail 0", True)]


def test_each_node_that_kept_something_to_itself_is_named_and_no_partner_of_it() -> None:
    plan = steered(2, 3, 2, 2)
    seen = drawn(plan, fabric_of(plan, 2, 1))
    silent = [i for i, p in enumerate(plan.pings) if 1 in (p.src, p.dst) or (4 in (p.src, p.dst) and p.path == 2)]
    known = {i: one for i, one in seen.items() if i not in silent}
    assert [(f.code, f.subject.nodes, f.verdict) for f in judge(plan, known, {}, DEFAULT, owed={1: 24, 4: 6})] == [
        ("fabric/end-silent", ("n1",), "unknown"),
        ("fabric/end-silent", ("n4",), "unknown"),
    ]


def full(plan: Plan, seen: dict[int, Seen], node: int, num: int) -> dict[int, Seen]:
    """As if the sockets of one node had had no room for so many packets."""
    of = {number: plan.pings[number] for number in seen}
    return {
        number: replace(one, full_there=num * (of[number].dst == node), full_here=num * (of[number].src == node))
        for number, one in seen.items()
    }


def test_what_a_nodes_own_socket_had_no_room_for_is_no_loss_of_the_fabric() -> None:
    plan = steered(2, 3, 2, 2)
    fabric = fabric_of(plan, 2, 1)
    fabric.hit(((src, 4, path) for src in range(6) for path in (1, 2)), Effect(loss=0.3))
    seen = drawn(plan, fabric)
    assert {f.verdict for f in judge(plan, seen, {}, DEFAULT)} == {"fail"}
    most = WINDOWS * EACH
    (found,) = judge(plan, full(plan, seen, 4, most), {}, DEFAULT)
    assert (found.code, str(found.subject), found.verdict) == ("fabric/own-loss", "n4", "unknown")
    assert f"no room for {most} packets" in found.message
    few = [f for f in judge(plan, full(plan, seen, 4, 2), {}, DEFAULT) if f.verdict == "fail"]
    assert {f.subject.nodes for f in few} == {("n4",)}, "what its socket cannot have lost is a loss"
    others = judge(plan, full(plan, seen, 0, most), {}, DEFAULT)
    assert {f.subject.nodes for f in others if f.verdict == "fail"} == {("n4",)}, "another's socket excuses nothing"


def test_a_dead_port_stays_dead_beside_a_full_socket() -> None:
    plan = steered(2, 3, 2, 2)
    fabric = fabric_of(plan, 2, 1)
    fabric.hit(fabric.port(4, 2), BLOCKED)
    fabric.hit(iter([(4, 4, 2)]), BLOCKED)
    found = judge(plan, full(plan, drawn(plan, fabric), 4, 20), {}, DEFAULT)
    assert [(f.code, str(f.subject)) for f in found if f.verdict == "fail"] == [("preflight/unreachable", "n4 plane 1")]


def test_what_the_senders_kernel_said_is_evidence() -> None:
    plan = steered(2, 3, 2, 2)
    fabric = fabric_of(plan, 2, 1)
    fabric.hit(fabric.port(4, 2), BLOCKED)
    fabric.hit(iter([(4, 4, 2)]), BLOCKED)
    errors = {(4, 2): "EPERM, 900 times", (3, 1): "ENOBUFS, 1 time"}
    (found,) = judge(plan, drawn(plan, fabric), {}, DEFAULT, errors=errors)
    assert next((e.source, e.value) for e in found.evidence) == ("sendto on n4, plane 1", "EPERM, 900 times")


def test_many_nodes_have_a_bounded_number_of_partners() -> None:
    plan = steered(8, 8, 2, 1)
    assert max(sum(p.src == n and not p.is_loop for p in plan.pings) for n in range(64)) <= 16 * 2
    fabric = fabric_of(plan, 1, 2)
    fabric.links[1, 5, 1] = BLOCKED
    assert named(plan, fabric) == [("unreachable", "p0/t0-5/t1-1", True)]


def test_a_node_without_an_answer_is_unknown_and_accuses_nobody() -> None:
    plan = steered(2, 2, 2, 2)
    seen = {
        i: one
        for i, one in drawn(plan, fabric_of(plan, 2, 0)).items()
        if 3 not in (plan.pings[i].src, plan.pings[i].dst)
    }
    (finding,) = judge(plan, seen, {3: "it fell silent"}, DEFAULT)
    assert (finding.code, finding.verdict, finding.subject.nodes) == ("fabric/end-silent", "unknown", ("n3",))
