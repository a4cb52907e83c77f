"""Loss below the limit accuses nobody, however many parts are compared; loss that is said to be found is found."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.loss import at_least, compared, fewest, least_found
from fairlead.preflight.pairs.pinged import findable, groups, judge
from support.fabric_draws import Effect, Fabric
from support.pings import EACH, WINDOWS, by_ports, drawn, fabric_of, steered

COUNT = EACH * WINDOWS


def accused(num_nodes, loss, seed, *, num_rails=1, limits=DEFAULT, hit=None, each=EACH):
    """Findings where all lose a share, and what `hit` gives, directed pairs and what happens to them, besides."""
    plan = by_ports(num_nodes, num_rails)
    fabric = fabric_of(plan, num_rails, seed)
    for rail in range(1, num_rails + 1):
        fabric.hit(fabric.plane(rail), Effect(loss=loss))
    if hit:
        fabric.hit(*hit(fabric))
    return [(f.verdict, str(f.subject)) for f in judge(plan, drawn(plan, fabric, each), {}, limits)]


def one_pair(share):
    return lambda _: (iter([(0, 1, 1)]), Effect(loss=share))


@pytest.mark.parametrize(("num_nodes", "loss"), [(16, 2.5e-4), (16, 1e-4), (8, 2.5e-4), (16, 3.9e-4), (2, 3.9e-4)])
def test_a_fabric_that_loses_less_than_the_limit_accuses_nobody(num_nodes, loss):
    assert loss < DEFAULT.loss
    assert [accused(num_nodes, loss, seed) for seed in range(4)] == [[]] * 4


@pytest.mark.parametrize("seed", [0, 1])
def test_nor_does_one_at_the_limit_whose_ways_are_chosen(seed):
    """With seed 0 one of its many pairs lost what a pair alone would lose less than once in a thousand runs."""
    plan = steered(4, 4, 4, 2)
    fabric = fabric_of(plan, 2, seed)
    for path in (1, 2):
        fabric.hit(fabric.plane(path), Effect(loss=DEFAULT.loss))
        fabric.hit(((n, n, path) for n in range(16)), Effect(loss=DEFAULT.loss))
    assert judge(plan, drawn(plan, fabric), {}, DEFAULT) == []


def test_a_lossy_port_is_named_on_a_fabric_that_loses_a_little_everywhere():
    for seed in range(5):
        found = accused(8, 2.5e-4, seed, num_rails=2, hit=lambda f: (f.port(3, 1), Effect(loss=0.02)))
        assert found == [("fail", "n3 rail 0")]


@pytest.mark.parametrize(("num_nodes", "each"), [(4, 75), (8, 75), (4, 750)])
def test_the_loss_that_is_said_to_be_found_is_found(num_nodes, each):
    plan = by_ports(num_nodes, 2)
    share = findable(plan, each * WINDOWS, DEFAULT)
    found = 0
    for seed in range(20):
        said = accused(num_nodes, 0.0, seed, num_rails=2, each=each, hit=one_pair(share))
        found += said == [("fail", "n0 <-> n1 rail 0")]
    assert found >= 19


def test_what_the_help_says_of_a_count_is_so():
    from fairlead.cli.fabric_ping import ping

    plan, text = by_ports(16, 8), ping.__doc__ or ""
    assert findable(plan, 300, DEFAULT) == pytest.approx(0.006, rel=0.1)
    assert findable(plan, 3000, DEFAULT) == pytest.approx(0.0015, rel=0.1)
    assert "0.6 % between two nodes is found with 300, of 0.15 % with 3000" in text


def test_another_limit_is_held_instead():
    lossless = replace(DEFAULT, loss=0.0)
    assert accused(4, 0.0, 1, limits=lossless, hit=one_pair(0.003)) == [("fail", "n0 <-> n1 rail 0")]
    lax = replace(DEFAULT, loss=0.02)
    assert accused(4, 0.015, 1, limits=lax) == []


@pytest.mark.parametrize(("sent", "share", "lost"), [(3600, 0.0004, 5), (225, 0.01, 8), (60, 0.3, 25), (4800, 1e-5, 1)])
def test_the_tail_is_that_of_the_binomial_distribution(sent, share, lost):
    exact = sum(  # those left out are 1e-30 of it
        math.comb(sent, k) * Fraction(share) ** k * Fraction(1 - share) ** (sent - k) for k in range(lost, lost + 40)
    )
    assert at_least(lost, sent, share) == pytest.approx(float(exact), rel=1e-9)


def test_more_parts_compared_take_more_losses():
    few, many = (fewest(3600, DEFAULT.loss, DEFAULT.loss_chance / compared(n * (n - 1), n, 2)) for n in (2, 64))
    assert few < many
    windows = (1200, 2400)
    assert least_found(windows, DEFAULT, compared(2, 2, 2)) < least_found(windows, DEFAULT, compared(4032, 64, 2))


# ---- nodes that stand apart ------------------------------------------------------------------------------------------


def timed(plan, far, late=(), rtt_ns=20_000, apart_ns=300_000):
    """Round trips where some nodes are far from the others, and some are late for a fault of their own."""
    rng, out = random.Random(1), {}
    for number, one in drawn(plan, Fabric(len(plan.nodes), 2)).items():
        ping = plan.pings[number]
        more = apart_ns * ((ping.src in far) != (ping.dst in far)) + apart_ns * bool({ping.src, ping.dst} & set(late))
        out[number] = replace(one, rtt_ns=tuple(rtt_ns + more + rng.randrange(2000) for _ in range(WINDOWS)))
    return out


def test_two_nodes_in_another_hall_are_not_late():
    plan = by_ports(12, 1)
    seen = timed(plan, far=(10, 11))
    assert judge(plan, seen, {}, DEFAULT) == []
    assert groups(plan, seen, DEFAULT) == [("rail 0", [[f"n{i}" for i in range(10)], ["n10", "n11"]])]


def test_a_node_that_is_late_with_everybody_is():
    plan = by_ports(12, 1)
    for far in ((), (10, 11)):
        found = judge(plan, timed(plan, far, late=(4,)), {}, DEFAULT)
        assert [(f.code, str(f.subject)) for f in found] == [("preflight/late-link", "n4")]
    found = judge(plan, timed(plan, (9, 10, 11), late=(11,)), {}, DEFAULT)
    assert [(f.code, str(f.subject)) for f in found] == [("preflight/late-link", "n11")]
