"""Small losses: how many packets it takes, what a port looks like that loses few, and what is nothing."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest

from fairlead.preflight.pairs.facts import Burst, PairFacts
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.limits import DEFAULT, Limits, assumed, limits, limits_of
from fairlead.preflight.pairs.spread import CHANCE, least
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Access, Fabric, Spec

AGAIN = DEFAULT.again_sample + DEFAULT.full
FLOOR = math.ceil(DEFAULT.loss * AGAIN)
"""Packets that a repeated sample must lose."""
BIT_ERRORS = 8e-9
"""Share of packets of 166 bytes that a bit error ratio of 1e-12 takes on six links."""


def at_least(number: int, mean: float) -> float:
    """Probability that a Poisson distribution reaches a number."""
    below = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(number))
    return 1 - below if below < 0.999 else sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(number, 99))


def spec(**fabric) -> Spec:
    return Spec(schema=1, access=Access(via="ssh"), fabric=Fabric(**fabric))


# ---- the size of the samples -----------------------------------------------------------------------------------------


def test_a_port_that_loses_one_in_500_is_met_and_its_witnesses_agree():
    unseen = (1 - 0.002) ** DEFAULT.sample
    unconfirmed = 4 * (1 - at_least(FLOOR, 0.002 * AGAIN))
    assert unseen + unconfirmed + 3 * CHANCE <= 0.01


@pytest.mark.parametrize(("share", "floor"), [(BIT_ERRORS, 1), (BIT_ERRORS, FLOOR), (1e-6, FLOOR)])
def test_a_healthy_cluster_of_128_nodes_and_8_planes_is_accused_in_less_than_one_run_of_1000(share, floor):
    """`floor` 1: a lossless fabric, on which any loss counts that is seen in the first pass and twice again."""
    first = 128 * 127 * 8 * (1 - (1 - share) ** (DEFAULT.small + DEFAULT.full))
    assert first * at_least(floor, share * AGAIN) ** 2 < 1e-3


def test_no_burst_of_the_first_pass_is_longer_than_the_window_lets_a_queue_see():
    """Small packets under way at once, with 102 bytes of headers at most, on a port that several send to by chance."""
    assert 16 * DEFAULT.window * (64 + 102) < 256 << 10


# ---- what losing evenly looks like -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("num", "of", "balls"), [(3, 3, 6), (6, 6, 9), (14, 14, 12), (3, 15, 30), (254, 254, 106)])
def test_balls_meet_fewer_boxes_than_the_least_about_never(num, of, balls):
    rng, floor, runs = random.Random(3), least(num, of, balls), 20_000
    short = sum(len({b for b in (rng.randrange(of) for _ in range(balls)) if b < num}) < floor for _ in range(runs))
    assert short <= CHANCE * runs + 3 * math.sqrt(CHANCE * runs)


def test_losses_in_few_pairs_are_not_spread():
    assert least(254, 254, 50) > 2
    assert least(1, 3, 20) == 1, "twenty losses, and none of them with the neighbour below the same switch"


# ---- findings --------------------------------------------------------------------------------------------------------


def first(src, dst, lost, small=1000):
    return Burst(src, dst, 1, small - lost, 8, 8 - min(lost, 8), 0, 0, small)


def again(src, dst, lost, small=DEFAULT.again_sample):
    return Burst(src, dst, 1, small - lost, 8, 8 - min(lost, 8), 0, 0, small)


def facts_of(bursts, repeated, n=4):
    return PairFacts(
        nodes=tuple(f"n{i}" for i in range(n)),
        paths=("fabric", "plane 0", "plane 1"),
        addresses=(("a", "b", "c"),) * n,
        members=tuple(range(n)),
        small=200,
        full=8,
        num_flows=8,
        again_small=400,
        bursts=bursts,
        again=repeated,
    )


def judged(bursts, repeated, ours: Limits = DEFAULT, n=4):
    found = [f for f in judge_pairs(facts_of(bursts, repeated, n), ours) if f.verdict in (Verdict.FAIL, Verdict.WARN)]
    return [(f.verdict, str(f.subject), f.data.get("way")) for f in found]


def test_a_port_is_named_although_one_of_its_pairs_lost_nothing_at_first():
    bursts = [first(a, b, 2) for a, b in permutations(range(4), 2) if 3 in (a, b) and (a, b) != (3, 1)]
    assert judged(bursts, [again(3, 0, 15), again(2, 3, 14)]) == [(Verdict.FAIL, "n3 plane 0", "both")]


def test_a_pair_whose_ports_pass_everything_else_stays_a_pair():
    repeated = [again(0, 1, 15), again(0, 1, 14), again(0, 2, 0), again(0, 3, 0), again(2, 1, 0), again(3, 1, 0)]
    assert judged([first(0, 1, 3)], repeated) == [(Verdict.FAIL, "n0 <-> n1 plane 0", "out")]


def test_a_suspect_that_passes_the_second_time_is_nobody():
    assert judged([first(0, 1, 3), first(0, 2, 1)], [again(0, 1, 0), again(0, 2, FLOOR - 1)]) == []


@pytest.mark.parametrize("fabric", [{"link": "infiniband", "rdma": "ib"}, {"rdma": "roce", "lossless": True}])
def test_where_the_fabric_is_declared_lossless_any_loss_that_repeats_counts(fabric):
    bursts, repeated = [first(0, b, 1) for b in (1, 2)], [again(0, 1, 1), again(0, 2, 1)]
    assert judged(bursts, repeated) == []
    ours = limits_of(spec(**fabric))
    assert judged(bursts, repeated, ours) == [(Verdict.FAIL, "n0 plane 0", "out")]


def test_roce_without_a_word_about_pause_frames_may_drop_and_the_report_says_what_is_assumed():
    assert limits_of(spec(rdma="roce")).loss == DEFAULT.loss
    said = judge_pairs(facts_of([], []), DEFAULT, assumed(spec(rdma="roce")))[-1]
    assert said.code == "preflight/pairs"
    assert "; assuming that switches may drop packets, as `lossless` is not set in [fabric]" in said.message
    assert "a loss below 0.04% is not judged" in said.data["assumes"][0]
    for fabric in ({"rdma": "roce", "lossless": False}, {"rdma": "roce", "lossless": True}, {"rdma": "mrc"}, {}):
        assert assumed(spec(**fabric)) == ""


def test_the_kind_of_fabric_sets_the_limit_and_the_cluster_file_has_the_last_word(tmp_path):
    from fairlead.spec.loader import read

    file = tmp_path / "cluster.toml"
    head = 'schema = 1\n[access]\nvia = "ssh"\n[[pool]]\nname = "p"\nsize = "other"\nnodes = "n[0-3]"\n'
    file.write_text(head + '[fabric]\nlink = "infiniband"\nrdma = "ib"\n[preflight.limits]\nloss = 0.02\n')
    assert limits_of(read(file, environ={}).spec).loss == 0.02
    listed = {x.name: x for x in limits(spec(link="infiniband", rdma="ib"))}
    assert listed["loss"].value == 0
    assert limits_of(spec(rdma="mrc")).loss == DEFAULT.loss
