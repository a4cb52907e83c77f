"""The transports beside each other: what MRC is compared with, and its own variants."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.fabric.sim.engine import layout as at
from support.sim_runs import MRC_64, play

ONE_PLANE = MRC_64.replace("planes = 4", "planes = 1")
PERMUTATION = '[[traffic]]\nkind = "permutation"\nsize_bytes = 2_000_000\n'


def tail(text: str) -> float:
    part = play(text).results.parts[0]
    assert part.done == part.messages
    return float(part.fct_us.max())


@pytest.mark.parametrize("paths", ["mrc", "oblivious", "bitmap", "reps", "mixed"])
@pytest.mark.parametrize("kind", ["mrc", "uec"])
def test_every_path_rule_completes(kind, paths):
    assert tail(ONE_PLANE + f'[transport]\nkind = "{kind}"\npaths = "{paths}"\n' + PERMUTATION) > 160


@pytest.mark.parametrize("extra", ["[queues]\ntrim = false\n", '[transport]\ncongestion = "constant"\n'])
def test_variants_complete(extra):
    assert tail(ONE_PLANE + extra + PERMUTATION) > 160


def test_one_path_collides_and_many_do_not():
    roce = tail(ONE_PLANE + '[transport]\nkind = "roce"\n[queues]\npfc = true\n' + PERMUTATION)
    mrc = tail(ONE_PLANE + PERMUTATION)
    assert mrc < 1.4 * 2_000_000 / 4096 * 4192 * 8e-5
    assert roce > 1.5 * mrc


def test_dcqcn_slows_down_for_marks():
    incast = '[[traffic]]\nkind = "incast"\nnics = "0-56/8"\nto = 63\nsize_bytes = 4_000_000\n'
    roce = ONE_PLANE + incast + "[queues]\npfc = true\necn_last_hop = true\n"
    with_it = play(roce + '[transport]\nkind = "roce"\n').results
    without = play(roce + '[transport]\nkind = "roce"\ndcqcn = false\n').results
    assert with_it.max_queue["T0 to NIC"] < without.max_queue["T0 to NIC"]
    assert with_it.counters.marked > 0


def test_pause_spreads_to_flows_that_go_elsewhere():
    """Head-of-line blocking: with PFC alone a victim of someone else's incast is slowed, with MRC it is not."""
    traffic = (
        '[[traffic]]\nkind = "incast"\nnics = "1-7"\nto = 8\nsize_bytes = 4_000_000\n'
        '[[traffic]]\nkind = "flow"\nname = "victim"\nnics = "0"\nto = 9\nsize_bytes = 4_000_000\n'
    )
    few = ONE_PLANE.replace("t1 = 8", "t1 = 4")
    pfc = play(few + '[transport]\nkind = "roce"\ndcqcn = false\n[queues]\npfc = true\n' + traffic).results
    mrc = play(few + traffic).results
    alone = 4_000_000 / 4096 * 4192 * 8e-5
    assert mrc.parts[1].fct_us[0] < 1.2 * alone
    assert pfc.parts[1].fct_us[0] > 1.5 * alone


def test_an_incast_is_shared_fairly():
    played = play(MRC_64 + '[[traffic]]\nkind = "incast"\nnics = "0-48/8"\nto = 63\nsize_bytes = 10_000_000\n')
    times = played.results.parts[0].fct_us
    rates = 1 / times
    assert rates.sum() ** 2 / (len(rates) * (rates**2).sum()) > 0.95  # Jain's index


def test_source_routing_spreads_each_flow_over_distinct_uplinks():
    played = play(MRC_64 + '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 8_000_000\n')
    shape, sent = played.setup.shape, played.world.tables["ports"][:, at.PT_SENT]
    for plane in range(4):
        uplinks = np.array([sent[shape.uplink_port(plane, 0, u)] for u in range(8)])
        assert uplinks.min() > 0.8 * uplinks.mean()


def test_parallel_links_lead_to_one_switch():
    """With three links between each T0 and T1 the packets of a flow use all of them, and none goes astray."""
    flow = '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 8_000_000\n'
    played = play(MRC_64.replace("t1 = 8", "t1 = 4\nlinks_per_pair = 3") + flow)
    shape, sent = played.setup.shape, played.world.tables["ports"][:, at.PT_SENT]
    for plane in range(4):
        down = {
            t0: [sent[shape.downlink_port(plane, t1, t0, b)] for t1 in range(4) for b in range(3)] for t0 in range(8)
        }
        assert min(down[5]) > 0.6 * np.mean(down[5])  # 32 entropy values on 12 uplinks
        assert not any(any(down[t0]) for t0 in (1, 2, 3, 4, 6, 7))


@pytest.mark.parametrize("latency_us", [20, 60])
def test_long_links_are_simulated_with_timers_that_follow_them(latency_us):
    """Four links there and four back: nothing is lost, so nothing may be sent again."""
    links = f"[links]\nhost_latency_ns = {latency_us * 1000}\nfabric_latency_ns = {latency_us * 1000}\n"
    played = play(MRC_64 + links + "[run]\nuntil_us = 20_000\n" + PERMUTATION)
    profile = played.setup.profile
    assert played.setup.network_rtt_ns > 8 * latency_us * 1000
    assert profile.rto_ns >= 16 * played.setup.network_rtt_ns
    assert profile.ev_probe_ns > played.setup.network_rtt_ns
    part = played.results.parts[0]
    assert part.done == part.messages
    assert played.results.counters.retransmitted == played.results.counters.trimmed
    assert played.results.counters.timeouts == 0
