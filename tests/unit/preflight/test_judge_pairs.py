"""What pairs showed, in words: the code, the part, the numbers, and what was not tested."""

from __future__ import annotations

from itertools import permutations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import rate
from fairlead.preflight.pairs.facts import Burst, Clock, Fault, PairFacts, Speed, Work
from fairlead.preflight.pairs.judge import dead_part, judge_pairs
from fairlead.records.finding import Finding
from fairlead.records.report import bad_nodes
from fairlead.records.verdict import Verdict

N = 5
SMALL, FULL, AGAIN, FLOWS = 200, 8, 400, 8
WHOLE = (AGAIN, FULL, FLOWS, 0)


def facts(**more) -> PairFacts:
    """Five nodes, two planes, nothing wrong."""
    fields = {
        "nodes": tuple(f"n{i}" for i in range(N)),
        "paths": ("fabric", "plane 0", "plane 1"),
        "addresses": tuple(("fd::1", "fd::2", "fd::3") for _ in range(N)),
        "small": SMALL,
        "full": FULL,
        "full_bytes": {0: 8952, 1: 8952, 2: 8952},
        "num_flows": FLOWS,
        "again_small": AGAIN,
        "members": tuple(range(N)),
        "speeds": [
            Speed(a, b, p, 250_000_000, 400_000, 3) for a, b in permutations(range(N), 2) for p in (1, 2) if b != a + 2
        ],
        "rounds": {"burst": N - 1, "speed": 3},
        "tcp_tested": N * (N - 1),
        "clocks": {i: Clock(0, 200_000) for i in range(N)},
        "work": {i: [Work(50_000_000, 50_000_000)] for i in range(N)},
    } | more
    return PairFacts(**fields)


def port_bursts(first: tuple[int, ...], again: tuple[int, ...]) -> dict[str, list[Burst]]:
    """A first burst from and to n3 on plane 0, all alike, and repetitions with two partners."""
    bad = [(a, b) for a, b in permutations(range(N), 2) if 3 in (a, b)]
    return {
        "bursts": [Burst(a, b, 1, *first) for a, b in bad],
        "again": [Burst(a, b, 1, *again) for a, b in ((3, 0), (1, 3))],
    }


def alarms(found):
    return [f for f in found if f.verdict is not Verdict.PASS]


def test_all_well_is_one_line_that_says_what_was_not_tested():
    (found,) = judge_pairs(facts())
    assert (found.code, found.verdict) == ("preflight/pairs", Verdict.PASS)
    assert "20 directed pairs of 5 nodes on 3 paths in 4 rounds" in found.message
    assert "3 not tested for bandwidth" in found.message
    assert found.data["bandwidth_not_tested"] == ["n0>n2", "n1>n3", "n2>n4"]


@pytest.mark.parametrize(
    ("first", "again", "code", "says"),
    [
        ((0, 0, 0, 8), (0, 0, 0, 8), "preflight/unreachable", "no packet arrives"),
        ((200, 0, 0, 0), (400, 0, 0, 0), "preflight/mtu", "full-size packets (8952 bytes) vanish"),
        ((100, 4, 4, 4), (200, 4, 4, 4), "preflight/dead-path", "some flows arrive whole"),
        ((190, 8, 0, 0), (380, 8, 0, 0), "preflight/packet-loss", "4.9% of the packets are lost"),
    ],
)
def test_each_kind_of_damage_names_the_port(first, again, code, says):
    found = judge_pairs(facts(**port_bursts(first, again)))
    (alarm,) = alarms(found)[:1]
    assert (alarm.code, alarm.verdict, str(alarm.subject)) == (code, Verdict.FAIL, "n3 plane 0")
    assert says in alarm.message
    assert "in and out, with each of 4 partners" in alarm.message
    assert alarm.data["confirmed"]
    assert {e.source for e in alarm.evidence} >= {"n3 -> n0, plane 0", "n1 -> n3, plane 0"}
    assert found[-1].verdict is Verdict.SKIP


def test_what_was_not_repeated_is_only_a_warning():
    bursts = port_bursts((0, 0, 0, 8), (0, 0, 0, 8))
    (alarm,) = alarms(judge_pairs(facts(bursts=bursts["bursts"])))[:1]
    assert alarm.verdict is Verdict.WARN
    assert "not settled" in alarm.message


def test_a_whole_repetition_clears_the_pair():
    bursts = [Burst(3, 0, 1, 190, 8, 0, 0)]
    assert alarms(judge_pairs(facts(bursts=bursts, again=[Burst(3, 0, 1, *WHOLE)]))) == []


def test_a_full_receiver_is_not_a_lossy_fabric():
    """What crossed the fabric and found the socket full was not lost on the way."""
    assert alarms(judge_pairs(facts(bursts=[Burst(3, 0, 1, 150, 8, 0, 0, 50)]))) == []


def test_one_way_is_said_to_be_one_way():
    bad = [(3, b) for b in range(N) if b != 3]
    bursts = [Burst(a, b, 1, 0, 0, 0, 8) for a, b in bad]
    (alarm, *_) = judge_pairs(facts(bursts=bursts, again=[Burst(3, 0, 1, 0, 0, 0, 8), Burst(3, 1, 1, 0, 0, 0, 8)]))
    assert "outward" in alarm.message
    assert alarm.data["way"] == "out"


def slow_port(rate_bps: int, rtt_ns: int, repeats: int = 6) -> dict[str, list[Speed]]:
    first = facts().speeds
    mine = [s for s in first if 3 in (s.src, s.dst) and s.path == 1]
    changed = [Speed(s.src, s.dst, 1, rate_bps, rtt_ns, 3) for s in mine]
    return {"speeds": [s for s in first if s not in mine] + changed, "speeds_again": changed[:repeats]}


def test_a_slow_port_is_compared_with_the_fleet():
    (alarm, *_) = judge_pairs(facts(**slow_port(12_000_000, 400_000)))
    assert (alarm.code, str(alarm.subject), alarm.verdict) == ("preflight/slow-link", "n3 plane 0", Verdict.FAIL)
    assert "12 Mb/s, where the fleet's median is 250 Mb/s" in alarm.message


def test_a_late_port_is_a_warning():
    (alarm, *_) = judge_pairs(facts(**slow_port(250_000_000, 40_000_000)))
    assert (alarm.code, alarm.verdict) == ("preflight/late-link", Verdict.WARN)


@pytest.mark.parametrize(("port_bps", "floor"), [(0, 0), (250e6, 50e6), (1e9, 200e6), (400e9, 200e6)])
def test_a_fleet_that_is_slow_everywhere_is_held_to_what_its_ports_should_carry(port_bps, floor):
    def judged(rate_bps):
        speeds = [Speed(s.src, s.dst, s.path, int(rate_bps), 400_000, 3) for s in facts().speeds]
        return alarms(judge_pairs(facts(speeds=speeds, speeds_again=speeds, port_bps=port_bps)))

    assert judged(floor or 1e6) == []
    if floor:
        alarm, _ = judged(floor - 1e6)
        assert (alarm.code, alarm.verdict, str(alarm.subject.name)) == (
            "preflight/slow-link",
            Verdict.FAIL,
            "the fabric",
        )
        assert f"where a port carries {rate(port_bps)}" in alarm.message


def test_the_senders_own_error_is_evidence():
    given = port_bursts((0, 0, 0, 8), (0, 0, 0, 8))
    (alarm, *_) = judge_pairs(facts(**given, faults=[Fault(3, 0, 1, "ENETUNREACH")]))
    assert ("sendto on n3, plane 0", "ENETUNREACH") in [(e.source, e.value) for e in alarm.evidence]


def test_a_node_that_went_silent_is_blamed_and_not_its_partners():
    bursts = [Burst(3, b, p, 0, 0, 0, 8) for b in (0, 1, 2, 4) for p in (0, 1, 2)]
    found = alarms(judge_pairs(facts(bursts=bursts, lost={3: "no answer to `burst` within 3.1 s"})))
    assert [(f.code, f.subject.nodes, f.verdict) for f in found if f.verdict is Verdict.FAIL] == [
        ("preflight/node-lost", ("n3",), Verdict.FAIL)
    ]


def test_an_address_a_node_does_not_have():
    (alarm,) = alarms(judge_pairs(facts(unbound=[(2, 1, "EADDRNOTAVAIL")])))[:1]
    assert (alarm.code, str(alarm.subject)) == ("preflight/no-address", "n2 plane 0")


def test_connections_that_fail_though_packets_pass():
    (alarm,) = alarms(judge_pairs(facts(tcp=[(0, 4, "ETIMEDOUT")])))[:1]
    assert (alarm.code, alarm.subject.nodes) == ("preflight/tcp", ("n0", "n4"))


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        ([(3, 0), (3, 1), (3, 2), (3, 4)], [("n3",)]),
        ([(0, 3), (3, 1), (2, 3)], [("n3",)]),
        ([(3, 0), (3, 1)], [("n3", "n0"), ("n3", "n1")]),  # half of the others: which end it is, nobody knows
        ([(3, 0), (3, 1), (3, 2), (3, 4), (0, 1)], [("n3",), ("n0", "n1")]),
        (list(permutations(range(5), 2)), [()]),  # a filter of the network
    ],
)
def test_a_node_is_named_where_most_of_its_connections_fail_and_no_node_where_all_do(failed, told):
    found = [f for f in judge_pairs(facts(tcp=[(a, b, "ETIMEDOUT") for a, b in failed])) if f.code == "preflight/tcp"]
    assert [f.subject.nodes for f in found] == told


@pytest.mark.parametrize(("num", "told"), [(2, [("n0", "n1"), ("n1", "n0")]), (3, [()]), (4, [()])])
def test_of_few_nodes_that_cannot_connect_at_all_none_is_the_odd_one(num, told):
    few = {"nodes": tuple(f"n{i}" for i in range(num)), "members": tuple(range(num)), "speeds": []}
    few |= {
        "addresses": tuple((f"fd::{i}",) for i in range(num)),
        "paths": ("fabric",),
        "full_bytes": {},
        "work": {},
        "clocks": {},
    }
    tcp = [(a, b, "ETIMEDOUT") for a, b in permutations(range(num), 2)]
    found = [f for f in judge_pairs(facts(**few, tcp=tcp)) if f.code == "preflight/tcp"]
    assert [f.subject.nodes for f in found] == told


def work(**by_node: tuple[int, int]) -> dict[int, list[Work]]:
    """Milliseconds (all at once, alone) of each node."""
    return {
        int(name[1:]): [Work(first * 1_000_000, first * 900_000), Work(alone * 1_000_000, alone * 900_000, alone=True)]
        for name, (first, alone) in by_node.items()
    }


ALIKE = work(**{f"n{i}": (20, 10) for i in range(N)})


def test_a_node_that_is_slow_also_alone():
    (alarm,) = alarms(judge_pairs(facts(work=work(n0=(20, 10), n1=(60, 35)))))[:1]
    assert (alarm.code, alarm.subject.nodes) == ("preflight/slow-node", ("n1",))
    assert "its processor itself is slower" in alarm.message


def test_a_node_of_another_pool_may_have_a_slower_processor():
    pools = {0: "new", 1: "old", 2: "new", 3: "new", 4: "new"}
    (alarm,) = alarms(judge_pairs(facts(work=work(n0=(20, 10), n1=(60, 35)), pools=pools)))[:1]
    assert (alarm.code, alarm.verdict) == ("preflight/slow-node", Verdict.WARN)
    assert "of another pool" in alarm.message


def test_a_node_that_was_slow_only_while_all_worked_is_not_slow():
    assert alarms(judge_pairs(facts(work=ALIKE | work(n1=(60, 11))))) == []


def test_of_two_clocks_that_differ_nobody_knows_which_is_wrong():
    two = {"nodes": ("n0", "n1"), "members": (0, 1), "addresses": (("fd::1",), ("fd::2",)), "paths": ("fabric",)}
    two |= {"full_bytes": {}, "work": {}}
    clocks = {0: Clock(0, 1_000_000), 1: Clock(5_000_000_000, 1_000_000)}
    found = judge_pairs(facts(**two, clocks=clocks, speeds=[]))
    (alarm,) = [f for f in found if f.code == "preflight/clock-skew"]
    assert (alarm.verdict, alarm.subject.kind, alarm.subject.nodes) == (Verdict.FAIL, "cluster", ("n0", "n1"))
    assert "up to 5 s apart" in alarm.message
    assert not bad_nodes(found, NodeSet("n[0-1]"))


def test_a_node_whose_processors_others_use_is_busy_and_not_slow():
    busy = [Work(60_000_000, 9_000_000, 50_000_000), Work(35_000_000, 9_000_000, 25_000_000, alone=True)]
    assert alarms(judge_pairs(facts(work=ALIKE | {1: busy}))) == []


def test_a_clock_is_judged_beyond_its_uncertainty():
    clocks = {i: Clock(0, 1_000_000) for i in range(N)} | {2: Clock(130_000_000, 2_000_000)}
    (alarm,) = alarms(judge_pairs(facts(clocks=clocks)))[:1]
    assert (alarm.code, alarm.subject.nodes) == ("preflight/clock-skew", ("n2",))
    assert "ahead of" in alarm.message
    vague = clocks | {2: Clock(130_000_000, 80_000_000)}
    assert alarms(judge_pairs(facts(clocks=vague))) == []


def test_a_clock_is_not_wrong_because_the_others_were_asked_while_the_control_side_stood_still():
    held_up = {i: Clock(-150_000_000, 320_000_000) for i in range(N)}
    assert alarms(judge_pairs(facts(clocks=held_up | {2: Clock(0, 1_000_000)}))) == []


@pytest.mark.parametrize(("counts", "is_dead"), [((0, 0, 0, 8), True), ((190, 8, 0, 0), False)])
def test_a_plane_that_no_collective_can_pass(counts, is_dead):
    bad = list(permutations(range(N), 2))
    twice = [c * 2 if i == 0 else c for i, c in enumerate(counts)]
    again = [Burst(a, b, 2, *twice) for a, b in ((0, 1), (2, 3))]
    found = facts(bursts=[Burst(a, b, 2, *counts) for a, b in bad], again=again)
    assert dead_part(found) == ("plane 1 is dead" if is_dead else "")


def test_evidence_is_one_line_a_pair_the_repetition_where_there_is_one():
    shown = port_bursts((0, 0, 0, FLOWS), (0, 0, 0, FLOWS))
    shown["again"] += shown["again"]
    (found,) = [f for f in judge_pairs(facts(**shown)) if f.verdict is Verdict.FAIL]
    sources = [e.source for e in found.evidence]
    assert len(sources) == len(set(sources)) > 1
    assert found.evidence[0].value == f"0 of {AGAIN} small and 0 of {FULL} full-size packets arrived"


def test_where_nothing_arrived_no_number_is_made_up():
    speeds = [s for s in facts().speeds if 3 not in (s.src, s.dst) or s.path == 2]
    dead = [Speed(a, b, 1, 0, 0, 0) for a, b in permutations(range(N), 2) if 3 in (a, b)]
    found = judge_pairs(facts(speeds=speeds + dead, speeds_again=dead * 3))
    said = next(f for f in found if f.verdict is Verdict.FAIL)
    assert {e.value for e in said.evidence} == {"too little arrived for a rate, no answer to a ping"}


def with_a_dead_plane(planes: int) -> list[Finding]:
    """Plane 0 is dead, and one pair's flows on the address that uses all planes are all lost as well."""
    bursts = [Burst(a, b, 1, 0, 0, 0, FLOWS) for a, b in permutations(range(N), 2)]
    blocked = [Burst(2, 3, 0, 0, 0, 0, FLOWS)]
    again = [Burst(a, b, p, 0, 0, 0, FLOWS) for a, b, p in ((0, 1, 1), (2, 4, 1), (2, 3, 0), (2, 3, 0))]
    paths = ("fabric", *(f"plane {p}" for p in range(planes)))
    addresses = tuple(tuple(f"fd::{p}" for p in range(len(paths))) for _ in range(N))
    return alarms(judge_pairs(facts(paths=paths, addresses=addresses, bursts=bursts + blocked, again=again, speeds=[])))


def test_a_pair_whose_flows_all_met_the_dead_plane_is_not_accused():
    """Eight flows on two planes: among 20 directed pairs, one run in 13 has such a pair."""
    assert [str(a.subject) for a in with_a_dead_plane(2) if a.verdict is Verdict.FAIL] == ["plane 0"]


def test_a_pair_that_a_dead_plane_cannot_explain_is_accused_as_well():
    """Of eight planes one is dead: that all eight flows of a pair went there is one chance in a million."""
    assert [str(a.subject) for a in with_a_dead_plane(8) if a.verdict is Verdict.FAIL] == [
        "plane 0",
        "n2 <-> n3 fabric",
    ]
