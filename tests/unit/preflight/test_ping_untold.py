"""What no packet tested, or what tested something else than the path: told as such, and no link is blamed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.paths import paths_of
from fairlead.preflight.pairs.pinged import Odd, judge, plan_of
from fairlead.records.addressbook import AddressBook, Place, Port
from support.fabric_draws import BLOCKED, DARK, MTU, Effect
from support.pings import EACH, WINDOWS, by_ports, drawn, fabric_of, steered

NUM = 4


def book(*, lacks=(), foreign=(), naked=(), rails=2, unread=None, **more):
    """Four nodes; (node, rail) that have no such port, an IPv6 address there, or none."""
    places = []
    for n in range(NUM):
        ports = [
            Port(
                rail=f"rail {r}",
                address="" if (n, r) in naked else f"fd0{r}::{n + 1}" if (n, r) in foreign else f"10.{r}.0.{n + 1}",
            )
            for r in range(1, rails + 1)
            if (n, r) not in lacks
        ]
        places.append(Place(node=f"n{n}", address=f"10.9.0.{n + 1}", ports=tuple(ports)))
    return AddressBook(places=tuple(more.get(p.node, p) for p in places), unread=unread or {})


def told(a_book, **known):
    names = [p.node for p in a_book.places if p.address or any(port.address for port in p.ports)]
    plan = plan_of(names, paths_of(a_book))
    seen = drawn(plan, fabric_of(plan, 2, 1))
    return [(str(f.verdict), f.code.partition("/")[2], str(f.subject)) for f in judge(plan, seen, {}, DEFAULT, **known)]


def test_a_book_without_holes_has_nothing_untold():
    assert told(book()) == []


def test_ports_without_an_address_are_not_tested():
    everywhere = [(n, r) for n in range(NUM) for r in (1, 2)]
    assert told(book(naked=everywhere)) == [
        ("unknown", "not-tested", f"n{n} rail {r}") for n in range(NUM) for r in (1, 2)
    ]
    assert paths_of(book(naked=everywhere)).labels == ("address",)


def test_a_rail_that_one_node_lacks_is_missed():
    assert told(book(lacks=[(3, 2)])) == [("fail", "no-address", "n3 rail 2")]
    assert told(book(naked=[(3, 2)])) == [("fail", "no-address", "n3 rail 2")]


def test_a_pool_that_has_no_such_rail_lacks_none():
    pools = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
    assert told(book(lacks=[(2, 2), (3, 2)]), pools=pools) == []


def test_an_address_of_the_other_family_is_told():
    assert told(book(foreign=[(3, 1)])) == [("unknown", "not-tested", "n3 rail 1")]
    plan = plan_of(["n0", "n1", "n2", "n3"], paths_of(book(foreign=[(3, 1)])))
    (found,) = judge(plan, drawn(plan, fabric_of(plan, 2, 1)), {}, DEFAULT)
    assert "its address there is IPv6, and those of most others are IPv4" in found.message


def test_a_rail_of_one_node_alone_is_told():
    alone = Place(node="n1", ports=(Port(rail="rail 1", address="10.1.0.2"), Port(rail="ib9", address="10.5.0.2")))
    assert ("unknown", "not-tested", "n1 ib9") in told(book(n1=alone))


def test_nodes_that_are_left_out_are_told():
    assert told(book(n2=Place(node="n2"))) == [("unknown", "not-tested", "n2")]
    assert told(book(n2=Place(node="n2"), unread={"n2": "net.links: EACCES"})) == [("unknown", "not-tested", "n2")]


def test_a_port_stays_guilty_where_one_of_its_pairs_could_not_be_tested():
    a_book = book(lacks=[(3, 2)])
    plan = plan_of([p.node for p in a_book.places], paths_of(a_book))
    fabric = fabric_of(plan, 2, 1)
    fabric.hit(fabric.port(1, 2), BLOCKED)
    found = [str(f.subject) for f in judge(plan, drawn(plan, fabric), {}, DEFAULT) if f.code == "preflight/unreachable"]
    assert found == ["n1 rail 2"]


# ---- one address on two nodes ----------------------------------------------------------------------------------------


def test_an_address_that_two_nodes_have_is_told_before_a_packet_is_sent():
    twin = Place(node="n3", ports=(Port(rail="rail 1", address="10.1.0.4"), Port(rail="rail 2", address="10.2.0.3")))
    plan = plan_of(["n0", "n1", "n2", "n3"], paths_of(book(n3=twin)))
    assert all("10.2.0.3" not in (p.to, plan.paths.addresses[plan.nodes[p.src]][p.path]) for p in plan.pings)
    assert any(p.path == 2 for p in plan.pings)
    (found,) = judge(plan, drawn(plan, fabric_of(plan, 2, 1)), {}, DEFAULT)
    assert (found.code, found.verdict) == ("preflight/duplicate-address", "fail")
    assert found.subject.nodes == ("n2", "n3")


def test_a_node_may_have_an_address_twice():
    own = Place(node="n1", ports=(Port(rail="rail 1", address="10.1.0.2"), Port(rail="rail 2", address="10.1.0.2")))
    assert not plan_of(["n0", "n1"], paths_of(book(n1=own))).twins


# ---- filters, translation, other NICs --------------------------------------------------------------------------------


def test_what_the_senders_own_kernel_refused_blames_no_cable():
    plan = by_ports(NUM, 2)
    seen = {}
    for number, drew in drawn(plan, fabric_of(plan, 2, 1)).items():
        ping = plan.pings[number]
        none, answers = (0,) * WINDOWS, (EACH,) * WINDOWS
        if ping.src == 1 and ping.flow > 4:
            seen[number] = replace(drew, sent=none, heard=none, back=none)
        elif ping.dst == 1:
            seen[number] = replace(drew, back=none, refused=answers)
        else:
            seen[number] = drew
    (found,) = judge(plan, seen, {}, DEFAULT, refused={(1, 1): 1419, (1, 2): 1200})
    assert (found.code, str(found.subject), found.verdict) == ("preflight/local-filter", "n1", "fail")
    assert "2619 packets" in found.message
    assert "nft list ruleset" in found.remedy


@pytest.mark.parametrize("effect", [BLOCKED, DARK])
def test_a_whole_node_or_fabric_that_is_dead_names_the_filter_first(effect):
    plan = by_ports(NUM, 2)
    for where in ("node", "fabric", "port"):
        fabric = fabric_of(plan, 2, 3)
        for path in (1, 2):
            if where == "node":
                fabric.hit(fabric.port(2, path, "in"), effect)
            elif where == "fabric":
                fabric.hit(fabric.plane(path), effect)
        if where == "port":
            fabric.hit(fabric.port(2, 1), effect)
        (found,) = judge(plan, drawn(plan, fabric), {}, DEFAULT)
        filters, counters = (found.remedy.index(word) for word in ("packet filters", "error counters"))
        assert (filters < counters) == (where != "port")
        assert ("packet filter" in found.message) == (where != "port")


def test_packets_from_another_address_are_told_and_blame_nobody():
    plan = by_ports(NUM, 2)
    seen = {}
    for number, drew in drawn(plan, fabric_of(plan, 2, 1)).items():
        ping = plan.pings[number]
        if ping.path == 2 and ping.src == 3:
            seen[number] = replace(drew, heard=(0,) * WINDOWS, back=(0,) * WINDOWS, aside_there=(EACH,) * WINDOWS)
        elif ping.path == 2 and ping.dst == 3:
            seen[number] = replace(drew, back=(0,) * WINDOWS, aside_here=(EACH,) * WINDOWS)
        else:
            seen[number] = drew
    odd = [Odd(n, 2, "source", 3, "10.1.0.44", 9) for n in (0, 1)]
    (found,) = judge(plan, seen, {}, DEFAULT, odd=odd)
    assert (found.code, str(found.subject), found.verdict) == ("preflight/source-address", "n3 rail 1", "fail")
    assert "10.1.0.44" in found.message
    (one_says,) = judge(plan, seen, {}, DEFAULT, odd=odd[:1])
    assert one_says.subject.nodes == ("n3", "n0"), "one node's word does not name another alone"


@pytest.mark.parametrize("kind", ["nic", "route", "filter"])
def test_a_port_that_is_not_tested_for_how_its_node_is_set_up_is_unknown(kind):
    plan = by_ports(NUM, 2)
    fabric = fabric_of(plan, 2, 1)
    seen = drawn(plan, fabric)
    for number, one in seen.items():
        ping = plan.pings[number]
        if ping.path == 2 and 3 in (ping.src, ping.dst):
            all_, none = (EACH,) * WINDOWS, (0,) * WINDOWS
            stray = all_ if kind == "nic" else none
            seen[number] = replace(one, heard=none, back=none, aside_there=stray)
    (found,) = judge(plan, seen, {}, DEFAULT, odd=[Odd(3, 2, kind, 0, "eth1", 7)])
    assert (found.code, str(found.subject), found.verdict) == ("preflight/shared-subnet", "n3 rail 1", "unknown")
    assert "ip rule add from" in found.remedy


# ---- the MTU of a hop ------------------------------------------------------------------------------------------------


def test_a_port_that_swallows_full_size_packets_is_named():
    plan = by_ports(NUM, 2)
    fabric = fabric_of(plan, 2, 1)
    fabric.hit(fabric.port(1, 2), MTU)
    (found,) = judge(plan, drawn(plan, fabric), {}, DEFAULT)
    assert (found.code, str(found.subject), found.verdict) == ("preflight/mtu", "n1 rail 1", "fail")
    assert "4800 of 4800 small and 0 of" in found.evidence[0].value
    assert "8972 bytes" in found.evidence[0].value


def test_one_way_with_a_smaller_mtu_among_several_is_found():
    """Of eight flows one takes a hop that lets no full-size packet through."""
    plan = by_ports(2, 1)
    seen = {
        number: replace(one, big=(4, 0, 0)) if plan.pings[number].flow == 3 and plan.pings[number].src == 0 else one
        for number, one in drawn(plan, fabric_of(plan, 1, 1)).items()
    }
    assert [f.code for f in judge(plan, seen, {}, DEFAULT)] == ["preflight/mtu"]


def test_a_link_between_switches_with_a_smaller_mtu_is_named():
    plan = steered(2, 2, 2, 2)
    fabric = fabric_of(plan, 2, 1)
    fabric.links[1, 1, 0] = MTU
    (found,) = judge(plan, drawn(plan, fabric), {}, DEFAULT)
    assert (found.code, str(found.subject)) == ("preflight/mtu", "p0/t0-1/t1-0")


def test_full_size_packets_that_are_lost_as_small_ones_are_no_black_hole():
    plan = by_ports(NUM, 2)
    fabric = fabric_of(plan, 2, 1)
    fabric.hit(fabric.port(1, 2), Effect(loss=0.4))
    assert {f.code for f in judge(plan, drawn(plan, fabric), {}, DEFAULT)} == {"preflight/packet-loss"}


def test_packets_of_a_large_size_that_do_not_arrive_are_said_to_be_large():
    plan = by_ports(NUM, 2)
    fabric = fabric_of(plan, 2, 1)
    fabric.hit(fabric.port(1, 2), BLOCKED)
    (found,) = judge(plan, drawn(plan, fabric), {}, DEFAULT, size=8972)
    assert "no packet of 8972 bytes arrives" in found.message
    assert "MTU" in found.remedy
