"""Rails: who sends to whom, one direction at a time; a slow or dead port is named by the blame of the pair phase."""

from __future__ import annotations

import pytest

from fairlead.preflight.pairs.schedule import log_degree
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.onnode.rails import repeats, suspects, turns
from fairlead.preflight.ranks.wanted import Wanted, common_network, rail_interfaces
from fairlead.records.addressbook import AddressBook, Place, Port
from fairlead.records.verdict import Verdict
from support.rank_facts import ranks, say, stop_at

BYTES = 128 << 20
RATE = 45e9
"""Bytes a second of a healthy rail: one port of 400 Gb/s, less what headers take."""


# ---- who sends to whom -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [2, 3, 4, 5, 6, 7, 8, 12, 16, 33, 1024])
def test_each_pair_of_a_shift_once_and_nobody_sends_and_receives_at_once(num):
    for shift in log_degree(num):
        made = turns(num, shift)
        assert len(made) <= 3
        assert sorted(p for turn in made for p in turn) == sorted((i, (i + shift) % num) for i in range(num))
        for turn in made:
            ends = [n for pair in turn for n in pair]
            assert len(ends) == len(set(ends))


def test_what_is_slow_is_repeated_each_node_in_one_test_at_a_time():
    rates = [(i, (i + s) % 8, RATE * (0.05 if 3 in (i, (i + s) % 8) else 1.0)) for s in (1, 2, 4) for i in range(8)]
    found = suspects(rates, RATE)
    assert {(t.src, t.dst) for t in found} == {(3, 4), (3, 5), (3, 7), (2, 3), (1, 3), (7, 3)}
    rounds = repeats(found, 64)
    assert all(len({n for t in r for n in t[:2]}) == 2 * len(r) for r in rounds)
    assert len({frozenset(t[:2]) for r in rounds for t in r}) >= 3
    assert {len(r) for r in repeats(found, 8)} == {1}


def book(*rails):
    """Each rail: (name, [(interface, address) of each node])."""
    places = [
        Place(node=f"n{i}", ports=tuple(Port(rail=r, interface=own[i][0], address=own[i][1]) for r, own in rails))
        for i in range(len(rails[0][1]))
    ]
    return AddressBook(places=tuple(places))


def test_how_a_node_finds_its_interface_of_a_rail():
    found = rail_interfaces(
        book(
            ("plane 0", [("eth1", "fd00:1::1"), ("eth1", "fd00:1::2")]),
            ("ib0", [("ib0", "10.1.0.1"), ("ibp1", "10.1.0.2")]),
            ("ib1", [("ib1", ""), ("ib1", "10.2.0.2")]),
        ),
        ["n0", "n1"],
    )
    assert found == [
        {"rail": "plane 0", "name": "eth1", "net": "fd00:1::/126"},
        {"rail": "ib0", "name": "", "net": "10.1.0.0/30"},
    ]
    assert common_network(["10.0.0.1", "fd00::1"]) == ""


def test_rails_in_one_network_are_told_by_name_alone():
    found = rail_interfaces(
        book(
            ("ib0", [("ib0", "172.16.0.1"), ("ib0", "172.16.0.3")]),
            ("ib1", [("ib1", "172.16.0.2"), ("ib1", "172.16.0.4")]),
        ),
        ["n0", "n1"],
    )
    assert [(r["name"], r["net"]) for r in found] == [("ib0", ""), ("ib1", "")]


# ---- who is to blame -------------------------------------------------------------------------------------------------


def run_of(factor, num=4, per=8, on="gpus", again=True):
    """A run in which `factor(src, dst, rail)` slows a rail; None: nothing arrives."""
    facts = ranks(num, per, on=on)
    slow = []
    for shift in log_degree(num):
        for src in range(num):
            for rail in range(per):
                dst = (src + shift) % num
                share = factor(src, dst, rail)
                one(facts, src, dst, rail, share)
                if share is None or share < 0.7:
                    slow.append((src, dst, rail, share))
    for src, dst, rail, share in slow if again else []:
        if share is not None:
            one(facts, src, dst, rail, share, again=True)
    return facts


def one(facts, src, dst, rail, share, *, again=False):
    own = {"rank": dst * facts.per_node + rail, "node": f"n{dst}"}
    took = None if share is None else BYTES / (RATE * share)
    say(facts, own, "rail", 5.4, src=src * facts.per_node + rail, rail=rail, bytes=BYTES, s=took, again=again,
        error="" if took else "not done after 4 s")  # fmt: skip


def judged(facts, **more):
    found = judge_ranks(facts, {}, Wanted(rdma="ib", link="infiniband", **more))
    return [f for f in found if f.code.startswith("preflight/") and "rail" in f.code]


def test_equal_rails_pass_and_say_what_was_measured():
    (found,) = judged(run_of(lambda *_: 1.0), port_gbps=400)
    assert (found.code, found.verdict) == ("preflight/rails", Verdict.PASS)
    assert "8 rails, messages of 128 MiB between 8 pairs of nodes: median 360 Gb/s" in found.message


@pytest.mark.parametrize("num", [3, 4, 16])
def test_a_rail_at_a_twentieth_of_its_rate_is_one_port_by_node_rail_and_hca(num):
    found = judged(run_of(lambda s, d, r: 0.05 if r == 3 and 2 in (s, d) else 1.0, num), port_gbps=400)
    assert [(f.code, f.verdict, str(f.subject)) for f in found if f.verdict is Verdict.FAIL] == [
        ("preflight/slow-rail", Verdict.FAIL, "n2 rail 3 (mlx5_ib3)")
    ]
    assert "18 Gb/s, where the median is 360 Gb/s, in and out" in found[0].message


@pytest.mark.parametrize(("end", "way"), [(0, "outward"), (1, "inward")])
def test_one_direction_of_a_port(end, way):
    found = judged(run_of(lambda *t: 0.3 if t[2] == 5 and t[end] == 1 else 1.0))
    assert str(found[0].subject) == "n1 rail 5 (mlx5_ib5)"
    assert way in found[0].message


def test_two_slow_ports_are_both_named():
    bad = {(1, 0), (3, 7)}
    found = judged(run_of(lambda s, d, r: 0.1 if {(s, r), (d, r)} & bad else 1.0, 8))
    assert {str(f.subject) for f in found if f.verdict is Verdict.FAIL} == {
        "n1 rail 0 (mlx5_ib0)", "n3 rail 7 (mlx5_ib7)"}  # fmt: skip


def test_a_rail_that_is_slow_on_every_node_is_the_rail():
    found = judged(run_of(lambda *t: 0.2 if t[2] == 6 else 1.0, 8))
    assert [(f.code, str(f.subject)) for f in found if f.verdict is Verdict.FAIL] == [("preflight/slow-rail", "rail 6")]


def test_all_rails_slow_alike_are_found_by_the_ports_rate():
    found = judged(run_of(lambda *_: 0.1), port_gbps=400)
    assert [(f.code, f.subject.kind) for f in found if f.verdict is Verdict.FAIL] == [
        ("preflight/slow-rail", "cluster")
    ]
    assert "the port carries 400 Gb/s" in found[0].message


def test_one_slow_message_that_was_well_when_repeated_is_nobodys_fault():
    facts = run_of(lambda s, d, r: 0.1 if (s, d, r) == (0, 1, 2) else 1.0, again=False)
    one(facts, 0, 1, 2, 0.98, again=True)
    assert [f.code for f in judged(facts)] == ["preflight/rails"]


def test_ranks_on_cpus_are_not_held_against_a_ports_rate():
    found = judged(run_of(lambda *_: 0.01, on="cpus"), port_gbps=400)
    assert [f.code for f in found] == ["preflight/rails"]


def test_what_was_never_repeated_is_a_warning():
    found = judged(run_of(lambda s, d, r: 0.05 if r == 3 and 2 in (s, d) else 1.0, again=False))
    assert (found[0].code, found[0].verdict) == ("preflight/slow-rail", Verdict.WARN)


def test_a_dead_port_that_several_partners_met():
    """Ranks on CPUs go on after a message that did not come."""
    found = judged(run_of(lambda s, d, r: None if r == 1 and 2 in (s, d) else 1.0, on="cpus", per=2))
    assert [(f.code, str(f.subject)) for f in found if f.verdict is Verdict.FAIL] == [
        ("preflight/dead-rail", "n2 rail 1")
    ]


def test_a_connection_that_the_other_end_cut_is_no_dead_rail():
    """Its packets arrived: what is known is that nothing is known."""
    facts = run_of(lambda s, d, r: None if (s, d, r) == (1, 2, 1) else 1.0, on="cpus", per=2)
    for line in facts.lines:
        if line["say"] == "rail" and line["s"] is None:
            line["error"] = "[fabric] read error from peer [10.0.0.3]:33418: Connection reset by peer"
    found = [f for f in judged(facts) if f.code == "preflight/dead-rail"]
    assert [(f.verdict, f.subject.nodes) for f in found] == [(Verdict.UNKNOWN, ("n1", "n2"))]


def test_a_dead_rail_that_ends_the_job_names_the_pair_and_its_ports_and_nobody_else():
    """On a GPU the message that does not come occupies its stream: the job is stopped there."""
    facts = ranks(4, 8, broken="a rank ended")
    for rank in range(32):
        stop_at(facts, rank, "rails", state="stopped", rc=75)
    one(facts, 1, 2, 4, 1.0)
    one(facts, 0, 1, 3, None)
    say(facts, {"rank": 11, "node": "n1"}, "error", 6.0, phase="rails", kind="TimeoutError",
        text="nothing came from rank 3 within 4 s, on rail 3", at="one:1")  # fmt: skip
    (found,) = judge_ranks(facts, {}, Wanted(rdma="ib"))
    assert (found.code, found.verdict) == ("preflight/dead-rail", Verdict.FAIL)
    assert str(found.subject) == "n0 <-> n1 rail 3 (mlx5_ib3)"


def test_why_rails_were_not_tested_is_said():
    facts = ranks(1, 8)
    say(facts, {"rank": 0, "node": "n0"}, "rails", 5.4, skipped="one node")
    (found,) = judged(facts)
    assert (found.verdict, found.message) == (Verdict.SKIP, "rails not tested: one node")


def test_a_message_that_came_late_is_no_cause_and_hides_none():
    """The group broke for another reason, which is still looked for."""
    facts = ranks(4, 2, on="cpus", broken="a rank ended")
    for rank in range(8):
        stop_at(facts, rank, "reduce", state="stopped", rc=75)
    one(facts, 0, 1, 0, None)
    one(facts, 0, 1, 0, 1.0)
    say(facts, {"rank": 5, "node": "n2"}, "error", 7.0, phase="reduce", kind="OSError", text="Too many open files",
        at="x:1")  # fmt: skip
    found = judge_ranks(facts, {}, Wanted())
    assert [(f.code, str(f.subject)) for f in found] == [("preflight/rank-error", "n2 rank 5")]
