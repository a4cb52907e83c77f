"""Port counters before and after: a link that flaps, errors beyond what bits allow, and what says nothing."""

from __future__ import annotations

import math

import pytest

from fairlead.preflight.pairs import counters
from fairlead.preflight.pairs.counters import Change, allowed, changes
from fairlead.preflight.pairs.facts import Burst, PairFacts
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.onnode.counting import read_counters
from fairlead.records.addressbook import Place, Port
from fairlead.records.facts import NodeFacts
from fairlead.records.verdict import Verdict

PLACE = Place(node="n0", ports=(Port(rail="ib0", interface="ib0", device="mlx5_ib0"),))


def facts(*counted: tuple[int, Change], **more) -> PairFacts:
    fields = {
        "nodes": ("n0", "n1", "n2"),
        "paths": ("fabric", "ib0", "ib1"),
        "members": (0, 1, 2),
        "small": 200,
        "full": 8,
        "num_flows": 8,
        "again_small": 400,
        "port_bps": 400e9,
        "counted": list(counted),
        "watched_s": {0: 2.0, 1: 2.0},
    } | more
    return PairFacts(**fields)


def fails(found):
    return [(f.code, str(f.subject)) for f in found if f.verdict in (Verdict.FAIL, Verdict.WARN)]


@pytest.mark.parametrize("name", [n for n, row in counters.table().items() if row.judged == "change"])
def test_a_link_that_went_away_is_the_ports_fault_whatever_phase_the_packets_met(name):
    said = judge_pairs(facts((1, Change(rail="ib1", counter=name, before=6, after=7))))
    assert fails(said) == [("preflight/port-flap", "n1 ib1")]


@pytest.mark.parametrize(("rate_bps", "seconds"), [(100e9, 1.0), (400e9, 2.0), (800e9, 10.0), (250e6, 1.0)])
def test_a_healthy_port_at_the_very_limit_of_its_bits_is_accused_once_in_a_million(rate_bps, seconds):
    mean = 1e-12 * rate_bps * seconds
    most = allowed(Change(rail="ib0", counter="symbol_error", before=0, after=1), rate_bps, seconds)

    def beyond(number):
        return 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(number + 1))

    assert beyond(most) <= counters.CHANCE < beyond(most - 1) if most else beyond(0) <= counters.CHANCE


def test_bit_errors_that_traffic_hides_are_found_and_what_bits_allow_is_not():
    def judged(after):
        return fails(judge_pairs(facts((0, Change(rail="ib0", counter="symbol_error", before=100, after=after)))))

    assert judged(101) == []
    assert judged(400) == [("preflight/port-errors", "n0 ib0")]


@pytest.mark.parametrize("counter", ["rx_dropped", "rx_missed_errors", "rx_fifo_errors", "unheard_of"])
def test_what_the_host_had_no_room_for_is_not_the_fabrics(counter):
    assert fails(judge_pairs(facts((0, Change(rail="ib0", counter=counter, before=0, after=9999))))) == []


def test_where_nobody_says_what_a_port_carries_errors_are_not_judged():
    seen = facts((0, Change(rail="ib0", counter="symbol_error", before=0, after=9999)), port_bps=0)
    assert fails(judge_pairs(seen)) == []


def test_packets_that_a_flapping_link_lost_need_no_cause_of_their_own():
    flap = (1, Change(rail="ib0", counter="carrier_changes", before=2, after=3))
    lost = [Burst(0, 1, 1, 0, 0, 0, 8), Burst(1, 2, 0, 190, 8, 0, 0), Burst(2, 1, 1, 100, 4, 4, 4)]
    assert fails(judge_pairs(facts(flap, bursts=lost))) == [("preflight/port-flap", "n1 ib0")]
    elsewhere = [Burst(a, b, 2, 0, 0, 0, 8) for a, b in ((1, 0), (0, 1), (1, 2), (2, 1))]
    found = fails(judge_pairs(facts(flap, bursts=elsewhere)))
    assert ("preflight/unreachable", "n1 ib1") in found


def test_a_counter_that_went_backwards_or_stands_at_its_end_says_nothing():
    before = {"ib0": {"link_downed": 255, "symbol_error": 70, "port_rcv_errors": 3}}
    after = {"ib0": {"link_downed": 255, "symbol_error": 0, "port_rcv_errors": 5, "carrier_changes": 9}}
    assert list(changes(before, after)) == [Change(rail="ib0", counter="port_rcv_errors", before=3, after=5)]


def test_the_probes_reading_begins_the_time_and_the_agents_fills_it_up():
    record = NodeFacts(
        node="n0",
        facts={
            "net": {"links": {"ib0": {"carrier_changes": 2}}},
            "ib": {"devices": {"mlx5_ib0": {"ports": {"1": {"counters": {"link_downed": 1, "symbol_error": "x"}}}}}},
        },
    )
    first = counters.probed(record, PLACE)
    assert first == {"ib0": {"carrier_changes": 2, "link_downed": 1}}
    both = counters.merged(first, {"ib0": {"link_downed": 3, "rx_dropped": 4}, "ib1": {"rx_dropped": 1}})
    assert both == {"ib0": {"carrier_changes": 2, "link_downed": 1, "rx_dropped": 4}, "ib1": {"rx_dropped": 1}}


def test_the_agent_reads_what_is_there_of_real_files():
    found = read_counters([["plane 0", "lo", "", 1], ["gone", "", "mlx5_none", 1]], counters.asked())
    assert found["gone"] == {}
    assert {"carrier_changes", "rx_dropped", "rx_crc_errors"} <= found["plane 0"].keys()


def test_rails_without_addresses_are_said_to_be_untested():
    why = "no node has an IP address there"
    found = [f for f in judge_pairs(facts(untested={"mlx5_ib0": why, "mlx5_ib1": why})) if "not-tested" in f.code]
    assert [(f.verdict, f.subject.name) for f in found] == [(Verdict.SKIP, "mlx5_ib0, mlx5_ib1")]
    assert why in found[0].message


def test_counters_nobody_could_read_are_said_so():
    found = [f for f in judge_pairs(facts(uncounted=[(2, "ib0"), (2, "ib1")])) if f.code == "preflight/no-counters"]
    assert [(f.verdict, f.subject.nodes) for f in found] == [(Verdict.SKIP, ("n2",))]
