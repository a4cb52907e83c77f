"""A node without an address is said to have none, and is not blamed for the packets that could not reach it."""

from __future__ import annotations

from itertools import permutations

import pytest

from fairlead.preflight.pairs.facts import Burst, PairFacts
from fairlead.preflight.pairs.judge import dead_part, judge_pairs
from fairlead.records.verdict import Verdict

N = 5


def facts(addresses: dict[int, tuple[str, ...]], *, paths=("default route", "ib0"), blocked=(), **more) -> PairFacts:
    """Five nodes; `blocked` are (node, path) from and to which nothing arrives, twice."""
    bursts = [Burst(a, b, path, 0, 0, 0, 0) for a, b in permutations(range(N), 2) for n, path in blocked if n in (a, b)]
    fields = {
        "nodes": tuple(f"n{i}" for i in range(N)),
        "paths": paths,
        "addresses": tuple(addresses.get(i, (f"10.0.0.{i}", f"172.16.0.{i}")[: len(paths)]) for i in range(N)),
        "small": 200,
        "full": 8,
        "num_flows": 8,
        "again_small": 400,
        "members": tuple(range(N)),
        "bursts": bursts,
        "again": bursts,
    } | more
    return PairFacts(**fields)


def fails(found):
    return [(f.code, str(f.subject), f.message) for f in found if f.verdict is Verdict.FAIL]


def test_a_node_without_any_address_is_said_to_have_none_and_nothing_else():
    seen = facts({2: ("",)}, paths=("default route",), blocked=[(2, 0)])
    seen.tcp = [(0, 2, "refused"), (2, 1, "refused")]
    assert fails(judge_pairs(seen)) == [
        ("preflight/no-address", "n2", "it has no address at which other nodes could reach it")
    ]


def test_a_rail_that_most_have_is_missed():
    seen = facts({3: ("10.0.0.3", "")}, blocked=[(3, 1)])
    assert fails(judge_pairs(seen)) == [
        ("preflight/no-address", "n3 ib0", "it has no address there, as 4 other nodes do")
    ]


def test_a_rail_that_few_have_is_not():
    seen = facts({i: (f"10.0.0.{i}", "") for i in (0, 1, 2)}, blocked=[(i, 1) for i in (0, 1, 2)])
    assert fails(judge_pairs(seen)) == []


def test_a_pool_with_fewer_rails_lacks_none():
    """Three nodes with two rails, and two of another pool with one."""
    paths = ("default route", "ib0", "ib1")
    own = {i: (f"10.0.0.{i}", f"172.16.0.{i}", f"172.17.0.{i}" if i < 3 else "") for i in range(N)}
    pools = {i: "h100" if i < 3 else "hb" for i in range(N)}
    assert fails(judge_pairs(facts(own, paths=paths, pools=pools))) == []
    own[2] = ("10.0.0.2", "172.16.0.2", "")
    assert [f[:2] for f in fails(judge_pairs(facts(own, paths=paths, pools=pools)))] == [
        ("preflight/no-address", "n2 ib1")
    ]


def test_rails_that_go_by_another_name_are_not_missing():
    """Two batches of machines: the port sits in another slot, so its interface has another name."""
    paths = ("default route", "ibp24s0", "ibp65s0")
    own = {i: (f"10.0.0.{i}", *((f"172.16.0.{i}", "") if i < 3 else ("", f"172.16.0.{i}"))) for i in range(N)}
    assert fails(judge_pairs(facts(own, paths=paths))) == []


def test_an_address_the_node_does_not_have_after_all_is_one_finding():
    seen = facts({}, blocked=[(2, 1)], unbound=[(2, 1, "EADDRNOTAVAIL")])
    assert [f[:2] for f in fails(judge_pairs(seen))] == [("preflight/no-address", "n2 ib0")]


@pytest.mark.parametrize("other", [(0, 0), (0, 1)])
def test_what_else_is_dead_is_still_found(other):
    seen = facts({2: ("", "172.16.0.2")}, blocked=[(2, 0), other])
    found = fails(judge_pairs(seen))
    assert found[0][:2] == ("preflight/no-address", "n2")
    assert [f[0] for f in found[1:]] == ["preflight/unreachable"]
    assert found[1][1].startswith("n0")


def test_a_fabric_on_which_nobody_has_an_address_is_not_called_dead():
    seen = facts(dict.fromkeys(range(N), ("", "")), blocked=[(i, 0) for i in range(N)])
    assert {f[0] for f in fails(judge_pairs(seen))} == {"preflight/no-address"}
    assert dead_part(seen) == ""
