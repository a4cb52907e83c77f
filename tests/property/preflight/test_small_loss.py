"""A port that loses one packet in 500, over a fabric that draws lots: found, named, and nobody named without it."""

from __future__ import annotations

import random

import pytest

from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.steps import Plan
from fairlead.records.verdict import Verdict
from support.depth import cases
from support.fabric_draws import Effect, Fabric

WAYS = ("both", "out", "in")


def accused(fabric: Fabric, per_switch: int) -> list[tuple[str, str]]:
    """What a whole pair phase says: subject, and which way."""
    n, planes = fabric.num_nodes, fabric.num_planes
    paths = ("fabric", *(f"plane {p}" for p in range(planes)))
    groups = {i: i // per_switch for i in range(n)} if per_switch else {}
    plan = Plan(
        nodes=tuple(f"n{i}" for i in range(n)), paths=paths, addresses=(("a",) * len(paths),) * n, groups=groups
    )
    found = judge_pairs(fabric.run(pair_phase(plan)))
    return [(str(f.subject), f.data["way"]) for f in found if f.verdict in (Verdict.FAIL, Verdict.WARN)]


def share_named(runs: int, n: int, planes: int, loss: float, per_switch: int) -> tuple[float, float]:
    """Of runs with one lossy port: those in which its node is named, and those in which the port and way alone are."""
    found = named = 0
    for seed in range(runs):
        rng, fabric = random.Random(seed), Fabric(n, planes, seed)
        node, plane, way = rng.randrange(n), rng.randint(1, planes), rng.choice(WAYS)
        fabric.hit(fabric.port(node, plane, way), Effect(loss=loss))
        said = accused(fabric, per_switch)
        found += any(f"n{node}" in subject.split() for subject, _ in said)
        named += said == [(f"n{node} plane {plane - 1}", way)]
    return found / runs, named / runs


@pytest.mark.parametrize(
    ("runs", "n", "planes", "loss", "per_switch"),
    [
        (cases(200), 4, 4, 0.002, 2),
        (cases(100), 3, 2, 0.002, 0),
        (cases(100), 8, 2, 0.002, 4),
        (cases(50), 16, 2, 0.002, 4),
        (cases(4), 128, 2, 0.002, 16),
        (cases(100), 4, 4, 0.003, 2),
        (cases(100), 4, 4, 0.01, 2),
    ],
)
def test_a_port_that_loses_little_is_named(runs, n, planes, loss, per_switch):
    found, named = share_named(runs, n, planes, loss, per_switch)
    assert found >= 0.99
    assert named >= 0.98


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_ten_thousand_runs_in_99_of_100_it_is_named():
    found, named = share_named(10_000, 4, 4, 0.002, 2)
    assert found >= 0.995
    assert named >= 0.99


@pytest.mark.parametrize("runs", [500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_fabric_that_loses_one_packet_in_a_hundred_thousand_everywhere_accuses_nobody(runs):
    wrong = 0
    for seed in range(runs):
        fabric = Fabric(4, 4, seed)
        for plane in range(1, 5):
            fabric.hit(fabric.plane(plane), Effect(loss=1e-5))
        wrong += bool(accused(fabric, 2))
    assert wrong <= runs / 1000
