"""Scenario files: strict, every problem at once, each with its line."""

from __future__ import annotations

import pytest

from fairlead.errors import FabricError, SpecError
from fairlead.fabric.sim.setup import prepare
from fairlead.fabric.sim.simulate import check_memory
from support.sim_runs import MRC_64, scenario

FAT_16 = '[topology]\nkind = "fat-tree"\npods = 4\nt0 = 2\nt1 = 2\ncores = 4\n'
FLOW = '[[traffic]]\nkind = "permutation"\n'

TOPO = """\
Nodes 8
Tiers 2
Podsize 8
Tier 0
Downlink_speed_Gbps 100
Radix_Up 2
Radix_Down 4
Downlink_Latency_ns 1000
Tier 1
Downlink_speed_Gbps 100
Radix_Down 2
Downlink_Latency_ns 1000
"""

TEN_MISTAKES = """\
titel = "x"
[topology]
planes = 40
t0 = 3
nics = 10
t1 = 2
[links]
host_gbps = -1
[transport]
kind = "rdma"
[queues]
pfc = true
trim = "yes"
[[traffic]]
kind = "incast"
[[traffic]]
kind = "permutation"
nics = "5-2"
[[fault]]
kind = "link"
t0 = 0
[[fault]]
kind = "port"
nic = 3
at_us = 10
until_us = 5
"""


def problems(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(SpecError) as refused:
        scenario(text)
    return [(p.line, p.code, p.message) for p in refused.value.problems]


def test_ten_mistakes_are_all_told_with_their_lines():
    found = problems(TEN_MISTAKES)
    assert [line for line, _, _ in found] == [1, 3, 5, 8, 10, 13, 15, 18, 20, 26]
    assert found[0][1] == "spec/unknown-key"


def test_an_unknown_key_names_the_nearest_known_one():
    with pytest.raises(SpecError) as refused:
        scenario("[topology]\nplanse = 4\n" + FLOW)
    assert "did you mean `planes`?" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (MRC_64 + '[[traffic]]\nkind = "incast"\nto = 64\n', "sim/no-such-nic"),
        (MRC_64 + '[[traffic]]\nkind = "flow"\nto = 1\n', "sim/choice"),
        (MRC_64 + '[[traffic]]\nkind = "permutation"\nnics = "0-64"\n', "sim/no-such-nic"),
        (MRC_64 + '[[traffic]]\nkind = "permutation"\nnics = "7"\n', "sim/choice"),
        (MRC_64 + '[[traffic]]\nkind = "file"\n', "sim/missing"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "link"\nplane = 0\nt0 = 8\nt1 = 0\n', "sim/no-such-part"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "link"\nplane = 4\nt0 = 0\nt1 = 0\n', "sim/no-such-part"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "port"\nnic = 64\n', "sim/no-such-part"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "t1"\n', "sim/missing"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "loss"\nplane = 0\n', "sim/missing"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "t0"\nt0 = 1\nat_us = 500\n[run]\nuntil_us = 400\n', "sim/fault-time"),
        (MRC_64 + FLOW + "[queues]\npfc = true\n", "sim/choice"),
        (MRC_64 + FLOW + '[transport]\nkind = "roce"\npaths = "mrc"\n', "sim/choice"),
        ('[topology]\nkind = "fat-tree"\nt1 = 2\ncores = 3\n' + FLOW, "sim/topology-divide"),
        ("[topology]\nt0 = 3\nnics = 10\n" + FLOW, "sim/topology-divide"),
        ("[topology]\npods = 3\n" + FLOW, "sim/choice"),
        ('[topology]\nkind = "file"\n' + FLOW, "sim/missing"),
        (MRC_64 + '[[traffic]]\nkind = "permutation"\nto = 3\n', "sim/choice"),
        (MRC_64 + '[[traffic]]\nkind = "incast"\nnics = "5"\nto = 5\n', "sim/choice"),
        (MRC_64 + FLOW + "[transport]\ndcqcn = false\n", "sim/choice"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "t1"\nt1 = 1\nt0 = 1\n', "sim/choice"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "port"\nnic = 1\nnics = "2-3"\n', "sim/choice"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "link"\nt0 = 1\nt1s = "6-8"\n', "sim/no-such-part"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "port"\nnic = 1\napart_us = 5\n', "sim/choice"),
        (MRC_64 + FLOW + '[[fault]]\nkind = "port"\nnic = 1\nflap_us = 0.001\n', "sim/fault-time"),
        (FAT_16 + FLOW + '[[fault]]\nkind = "link"\nt0 = 0\nt1 = 2\n', "sim/no-such-part"),
        (FAT_16 + FLOW + '[[fault]]\nkind = "slow"\nt1 = 0\ncore = 1\nrate = 0.5\n', "sim/no-such-part"),
        (FAT_16 + FLOW + '[[fault]]\nkind = "slow"\ncore = 1\nrate = 0.5\n', "sim/missing"),
        (MRC_64 + FLOW + "[links]\nhost_gbps = nan\n", "spec/out-of-range"),
        (MRC_64 + FLOW + "[run]\nuntil_us = inf\n", "spec/out-of-range"),
    ],
)
def test_what_does_not_fit_together_is_refused(text, code):
    assert code in {found for _, found, _ in problems(text)}


def test_faults_and_traffic_are_checked_against_a_topology_file(tmp_path):
    (tmp_path / "small.topo").write_text(TOPO)
    (tmp_path / "large.cm").write_text("Nodes 16\nConnections 1\n0->15 start 0 size 1000\n")
    text = (
        '[topology]\nkind = "file"\nfile = "small.topo"\n[[traffic]]\nkind = "file"\nfile = "large.cm"\n'
        '[[traffic]]\nkind = "incast"\nto = 8\n[[fault]]\nkind = "link"\nt0 = 0\nt1 = 5\n'
    )
    with pytest.raises(SpecError) as refused:
        scenario(text, tmp_path)
    assert [(p.line, p.code) for p in refused.value.problems] == [
        (6, "sim/no-such-nic"),
        (9, "sim/no-such-nic"),
        (13, "sim/no-such-part"),
    ]


def test_a_load_of_too_many_messages_is_refused_before_it_is_worked_out():
    text = "[topology]\nt0 = 512\nt1 = 256\nhosts_per_t0 = 256\n" + '[[traffic]]\nkind = "all-to-all"\n'
    with pytest.raises(FabricError) as refused:
        prepare(scenario(text))
    assert refused.value.code == "sim/memory"
    assert "17,179,738,112 messages" in str(refused.value)


def test_a_run_that_would_not_fit_is_refused_before_memory_is_taken():
    read = scenario(MRC_64 + FLOW + "[run]\nmemory_gib = 0.001\n")
    setup = prepare(read)
    with pytest.raises(FabricError) as refused:
        check_memory(setup)
    assert refused.value.code == "sim/memory"
    assert "may be used" in str(refused.value)


def test_the_largest_fabric_is_estimated_below_sixteen_gib_without_building_it():
    text = "[topology]\nplanes = 8\nt0 = 512\nt1 = 256\nhosts_per_t0 = 256\n" + FLOW
    assert sum(prepare(scenario(text)).estimate.values()) < 16 * 2**30


def test_defaults_follow_the_bandwidth_delay_product():
    setup = prepare(scenario(MRC_64 + FLOW))
    packet = 4096 + 96
    packets = -(-setup.network_rtt_ns * 100 // 8 // packet)
    assert setup.queues.data_limit == packets * packet
    assert setup.queues.ecn_low == -(-packets * 2 // 10) * packet
    assert setup.profile.rate_mbps == 400_000


@pytest.mark.parametrize(
    ("transport", "fault", "key"),
    [
        ("", 'kind = "t1"\nt1 = 0\nreroute_us = 10', "reroute_us"),
        ('[transport]\nrouting = "hash"\n', 'kind = "paths"\nnics = "0"\nt1s = "0"\nloss = 0.5', "paths"),
        ('[transport]\nkind = "roce"\n', 'kind = "paths"\nnics = "0"\nt1s = "0"\nloss = 0.5', "paths"),
    ],
)
def test_a_fault_that_routing_would_not_notice_is_refused(transport, fault, key):
    with pytest.raises(SpecError) as refused:
        scenario(MRC_64 + transport + FLOW + f"[[fault]]\n{fault}\n")
    (problem,) = refused.value.problems
    assert problem.code == "sim/choice"
    assert key in str(problem)


def test_more_corrupted_sets_than_there_are_bits_are_refused():
    one = '[[fault]]\nkind = "paths"\nnics = "0"\nt1s = "0"\nloss = 0.5\n'
    assert len(scenario(MRC_64 + FLOW + 62 * one).fault) == 62
    with pytest.raises(SpecError) as refused:
        scenario(MRC_64 + FLOW + 63 * one)
    assert [p.code for p in refused.value.problems] == ["sim/choice"]
