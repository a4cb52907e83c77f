"""RoCE RC against closed forms: a lone flow, go-back-N, timeouts, and what a pause does to bystanders."""

from __future__ import annotations

import pytest

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import roce
from support.sim_runs import MRC_64, Played, play

PER_BYTE_US = 8e-5  # at 100 Gb/s
PACKET_US = (4096 + 64) * PER_BYTE_US
ACK_US = 64 * PER_BYTE_US
LINKS = 4  # T0 to T0, 1 us each

ONE_PLANE = MRC_64.replace("planes = 4", "planes = 1")
ROCE = ONE_PLANE + '[transport]\nkind = "roce"\n'
PLAIN = ROCE + "dcqcn = false\n"


def flow(size: int) -> str:
    return f'[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = {size}\n'


def lossy(share: float, until_us: int = 0) -> str:
    """Loss on the way from the sending NIC to its T0, nowhere else."""
    return f'[[fault]]\nkind = "loss"\nnic = 0\nplane = 0\ndirection = "up"\nloss = {share}\nuntil_us = {until_us}\n'


def sender(played: Played, column: int) -> int:
    return int(played.world.tables["roce_tx"][0, column])


def test_a_lone_flow_takes_its_packets_and_its_way():
    # all packets leave one after the other; the last one's predecessor is stored once more at each switch
    fct = play(PLAIN + flow(100 * 4096)).results.parts[0].fct_us[0]
    there = 100 * PACKET_US + (LINKS - 1) * PACKET_US + LINKS
    assert fct == pytest.approx(there + LINKS * (1 + ACK_US), abs=0.002)


def test_each_loss_costs_go_back_n_one_round_trip_of_packets():
    played = play(PLAIN + flow(80_000_000) + lossy(0.002))
    naks = sender(played, roce.RT_NUM_NAKS)
    assert naks > 20
    # from a lost packet's start until the NAK for its successor is back, the sender goes on
    gone_on = PACKET_US + LINKS * (1 + PACKET_US) + LINKS * (1 + ACK_US)
    each = played.results.counters.retransmitted / naks
    assert each == pytest.approx(gone_on / PACKET_US + 1, abs=1.0)
    # and the flow takes as long as all it sent
    sent = played.results.counters.new + played.results.counters.retransmitted
    assert played.results.parts[0].fct_us[0] == pytest.approx(sent * PACKET_US, rel=0.01)


def test_mrc_resends_only_what_was_lost():
    played = play(ONE_PLANE + flow(80_000_000) + lossy(0.002))
    c = played.results.counters
    lost = int(played.world.tables["counts"][played.setup.shape.nic_port(0, 0), at.CN_LOST])
    assert lost > 20
    assert c.retransmitted == pytest.approx(lost, rel=0.15)  # some of the lost were probes
    assert play(PLAIN + flow(80_000_000) + lossy(0.002)).results.counters.retransmitted > 10 * c.retransmitted


def test_the_last_packet_lost_waits_for_the_timeout():
    fct = play(PLAIN + flow(1000) + lossy(1.0, until_us=100)).results.parts[0].fct_us[0]
    alone = play(PLAIN + flow(1000)).results.parts[0].fct_us[0]
    assert fct == pytest.approx(500 + alone, abs=0.01)


def test_the_first_notification_halves_the_rate():
    # two senders of 100 Gb/s into one port; DCQCN begins with alpha = 1
    incast = '[[traffic]]\nkind = "incast"\nnics = "0,8"\nto = 40\nsize_bytes = 40_000_000\n'
    played = play(ROCE + incast + "[queues]\necn_last_hop = true\n[run]\nuntil_us = 50\n")
    rows = played.world.tables["roce_tx"]
    assert (rows[:, roce.RT_NUM_CNPS] == 1).all()
    assert rows[:, roce.RT_RATE].tolist() == [50_000_000] * 2


UPLINK = """
[topology]
t0 = 2
t1 = 1
hosts_per_t0 = 8
[links]
fabric_gbps = 400
"""
"""Eight NICs behind one fast uplink: only the port of the receiver is short of bandwidth."""
INCAST_AND_VICTIM = (
    '[[traffic]]\nkind = "incast"\nnics = "1-7"\nto = 8\nsize_bytes = 4_000_000\n'
    '[[traffic]]\nkind = "flow"\nname = "victim"\nnics = "0"\nto = 9\nsize_bytes = 2_000_000\n'
)


def test_a_pause_gives_a_victim_the_share_of_one_of_those_who_congest():
    """Head-of-line blocking: seven senders share 100 Gb/s; the eighth, bound elsewhere, waits in the same queue."""
    pfc = '[transport]\nkind = "roce"\ndcqcn = false\n[queues]\npfc = true\n'
    played = play(UPLINK + pfc + INCAST_AND_VICTIM)
    alone = 2_000_000 / 4096 * PACKET_US
    assert played.results.parts[1].fct_us[0] == pytest.approx(7 * alone, rel=0.15)
    assert played.results.counters.dropped == played.results.counters.retransmitted == 0
    free = play(UPLINK + INCAST_AND_VICTIM)
    assert free.results.parts[1].fct_us[0] < 1.15 * alone + 15


def test_paused_queues_stay_below_their_limit():
    """A switch holds of one ingress XOFF and what arrives before the pause works: two link times, some packets."""
    pfc = '[transport]\nkind = "roce"\ndcqcn = false\n[queues]\npfc = true\n'
    played = play(UPLINK + pfc + INCAST_AND_VICTIM)
    late = 2 * 1.0 / PER_BYTE_US * 4 + 3 * 4160  # the uplink's rate is four times that of a NIC
    assert played.results.max_queue["T0 to NIC"] < played.setup.queues.xoff + late
