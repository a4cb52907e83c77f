"""What faults and repairs do to traffic, at small scale; the published experiments are in examples/fabric."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.fabric.sim import runner
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import memory
from fairlead.fabric.sim.faults import each, links, timeline
from fairlead.fabric.sim.setup import prepare, shape_of
from support.sim_runs import MRC_64, Played, play, scenario

LONG = '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 1_000_000_000\n[run]\nuntil_us = 400\n'


def planes(played: Played, from_us: float, to_us: float) -> np.ndarray:
    """Goodput of each plane in a span of time, as a share of its line rate."""
    r = played.results
    rate = 100e9 * 4096 / 4192
    return r.goodput_bits_per_s[:, round(from_us / r.bin_us) : round(to_us / r.bin_us)].mean(axis=1) / rate


def fault(text: str) -> str:
    return "[[fault]]\n" + text + "\n"


@pytest.mark.parametrize("where", ["nic = 0", "nic = 40"])
def test_a_port_that_is_down_costs_its_plane_alone_and_comes_back(where):
    played = play(MRC_64 + LONG + fault(f'kind = "port"\nplane = 2\n{where}\nat_us = 100\nuntil_us = 200'))
    assert planes(played, 50, 100) == pytest.approx([1, 1, 1, 1], abs=0.02)
    assert planes(played, 130, 200)[2] == pytest.approx(0, abs=0.01)
    assert planes(played, 150, 200)[[0, 1, 3]] == pytest.approx([1, 1, 1], abs=0.03)
    assert planes(played, 300, 400)[2] > 0.9


def test_a_t0_down_takes_one_plane_from_its_nics():
    played = play(MRC_64 + LONG + fault('kind = "t0"\nplane = 1\nt0 = 0\nat_us = 100'))
    assert planes(played, 150, 400) == pytest.approx([1, 0, 1, 1], abs=0.03)


def test_a_t1_down_costs_nothing_once_its_paths_are_known():
    played = play(MRC_64 + LONG + fault('kind = "t1"\nplane = 1\nt1 = 3\nat_us = 100'))
    assert planes(played, 200, 400) == pytest.approx([1, 1, 1, 1], abs=0.03)
    assert played.results.ev_states["assumed bad"] > 0


def test_paths_over_a_dead_switch_return_when_it_does():
    back = fault('kind = "t1"\nplane = 1\nt1 = 3\nat_us = 50\nuntil_us = 100')
    text = LONG.replace("until_us = 400", "until_us = 20_000")
    played = play(MRC_64 + text + back)
    assert played.results.ev_states["assumed bad"] == 0


def test_lost_packets_are_sent_again():
    played = play(MRC_64 + LONG + fault('kind = "loss"\nplane = 0\nt0 = 0\nt1 = 1\nloss = 0.2'))
    uplink = played.setup.shape.uplink_port(0, 0, 1)
    lost = played.world.tables["counts"][uplink, at.CN_LOST]  # mostly data, now and then a SACK or a probe of a bad EV
    assert 0 < lost <= 1.25 * played.results.counters.retransmitted
    assert played.results.counters.timeouts == 0
    assert planes(played, 200, 400) == pytest.approx([1, 1, 1, 1], abs=0.05)


def test_a_slow_link_is_avoided():
    played = play(MRC_64 + LONG + fault('kind = "slow"\nplane = 0\nt0 = 0\nt1 = 1\nrate = 0.1'))
    assert planes(played, 200, 400).sum() > 3.9


def test_a_flapping_port_is_down_half_of_the_time():
    read = scenario(
        MRC_64 + LONG + fault('kind = "port"\nplane = 0\nnic = 0\nat_us = 100\nuntil_us = 200\nflap_us = 10')
    )
    times = [t // 1_000_000 for t, _ in timeline(read, shape_of(read, None))]
    assert times == [*range(100, 200, 10), 200][: len(times)]


def test_all_ports_down_ends_the_queue_pairs():
    played = play(MRC_64 + LONG + fault('kind = "port"\nnic = 0\nat_us = 100'))
    assert played.results.counters.failed_flows == 1
    assert played.results.end.ended == "stalled"


def test_a_repair_sets_a_silent_fabric_going_again():
    # one sender of RoCE, whose only link is cut: everything waits for the repair and the timeout
    one = MRC_64.replace("planes = 4", "planes = 1") + '[transport]\nkind = "roce"\ntimeout_us = 50\n'
    text = one + '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 2_000_000\n'
    played = play(text + fault('kind = "port"\nnic = 0\nat_us = 20\nuntil_us = 500'))
    assert played.results.end.ended == "done"
    assert played.results.parts[0].fct_us[0] > 500


@pytest.mark.parametrize(
    ("text", "num"),
    [
        ('kind = "link"\nplane = 0\nt0 = 1\nt1 = 2', 1),
        ('kind = "link"\nt0 = 1\nt1 = 2', 4),
        ('kind = "port"\nplane = 0\nnic = 9', 1),
        ('kind = "t0"\nplane = 0\nt0 = 1', 16),
        ('kind = "t1"\nplane = 0\nt1 = 1', 8),
        ('kind = "loss"\nplane = 0\nloss = 0.1', 128),
        ('kind = "loss"\nloss = 0.1', 512),
    ],
)
def test_the_links_a_fault_touches(text, num):
    read = scenario(MRC_64 + LONG + fault(text))
    found = links(shape_of(read, None), read.fault[0])
    assert len({(link.up, link.down) for link in found}) == num


def test_routing_around_a_dead_link_is_a_matter_of_time():
    """RoCE on hashed uplinks: flows over a dead T1 wait until the switches have heard of it."""
    base = MRC_64.replace("planes = 4", "planes = 1") + '[transport]\nkind = "roce"\ntimeout_us = 50\n'
    text = base + '[[traffic]]\nkind = "permutation"\nsize_bytes = 2_000_000\n[run]\nuntil_us = 3000\n'
    dead = 'kind = "t1"\nplane = 0\nt1 = 3\nat_us = 20\n'
    never = play(text + fault(dead)).results.parts[0]
    soon = play(text + fault(dead + "reroute_us = 200")).results.parts[0]
    assert never.done < never.messages
    assert soon.done == soon.messages


def test_several_parts_fail_one_after_the_other():
    read = scenario(
        MRC_64 + LONG + fault('kind = "link"\nplane = 0\nt0 = 1\nt1s = "0-4/2,7"\nat_us = 100\napart_us = 50')
    )
    parts = each(read.fault[0])
    assert [(p.t1, p.at_us) for p in parts] == [(0, 100), (2, 150), (4, 200), (7, 250)]
    shape = shape_of(read, None)
    assert all(len(links(shape, part)) == 1 for part in parts)
    assert [t // 1_000_000 for t, _ in timeline(read, shape)] == [100, 150, 200, 250]


def test_ports_of_several_planes_fail_at_once_and_all_come_back():
    played = play(MRC_64 + LONG + fault('kind = "port"\nplanes = "0-2"\nnic = 40\nat_us = 100\nuntil_us = 200'))
    assert planes(played, 130, 200) == pytest.approx([0, 0, 0, 1], abs=0.03)
    assert planes(played, 300, 400) == pytest.approx([1, 1, 1, 1], abs=0.05)


@pytest.mark.parametrize(("direction", "counted"), [("down", 1), ("up", 1), ("both", 2)])
def test_a_link_may_lose_packets_one_way(direction, counted):
    read = scenario(
        MRC_64 + LONG + fault(f'kind = "loss"\nnics = "3"\nplane = 1\nloss = 0.5\ndirection = "{direction}"')
    )
    shape = shape_of(read, None)
    setup = prepare(read)
    world = memory.build(setup.shape, setup.workload, setup.profile, setup.queues, setup.options)
    for _, change in timeline(read, shape):
        change(world, 0)
    assert (world.tables["ports"][:, at.PT_LOSS] == 500_000).sum() == counted


@pytest.mark.parametrize(
    ("one", "other", "alone_again"),
    [
        ('kind = "loss"\nloss = 0.5', 'kind = "loss"\nloss = 0.5', 500_000),
        ('kind = "loss"\nloss = 0.01', 'kind = "loss"\nloss = 0.5', 10_000),
    ],
)
def test_the_end_of_one_loss_leaves_the_other(one, other, alone_again):
    read = scenario(
        MRC_64 + LONG + fault(one + "\nplane = 0\nat_us = 10\nuntil_us = 90")
        + fault(other + "\nplane = 0\nnic = 3\nat_us = 20\nuntil_us = 30")
    )  # fmt: skip
    setup = prepare(read)
    world = memory.build(setup.shape, setup.workload, setup.profile, setup.queues, setup.options)
    port, seen = setup.shape.nic_port(0, 3), []
    for time, change in timeline(read, setup.shape):
        change(world, time)
        seen.append(int(world.tables["ports"][port, at.PT_LOSS]))
    both = round(1e6 * (1 - (1 - read.fault[0].loss) * (1 - read.fault[1].loss)))
    assert seen == [alone_again, both, alone_again, 0]


def test_a_port_that_two_faults_take_down_is_down_until_both_are_over():
    down = 'kind = "port"\nnic = 0\nplane = 2\n'
    played = play(
        MRC_64 + LONG + fault(down + "at_us = 100\nuntil_us = 200") + fault(down + "at_us = 150\nuntil_us = 300")
    )
    assert planes(played, 130, 300)[2] == pytest.approx(0, abs=0.01)
    assert planes(played, 340, 400)[2] > 0.9


def test_two_corrupted_sets_spoil_each_its_own_paths():
    """NIC 0 loses packets over T1 0 alone, NIC 1 over T1 1 alone, though both losses hold at once."""
    load = LONG.replace('nics = "0"', 'nics = "0-1"').replace('"flow"', '"incast"').replace("400", "60")
    spoilt = "".join(fault(f'kind = "paths"\nnics = "{n}"\nt1s = "{n}"\nloss = 1.0') for n in (0, 1))
    played = play(MRC_64 + load + spoilt)
    lost = played.world.tables["counts"][:, at.CN_LOST]
    shape = played.setup.shape
    on = lambda nic: lost[[shape.nic_port(p, nic) for p in range(shape.planes)]].sum()  # noqa: E731
    assert on(0) > 0
    assert on(1) > 0
    taken = played.world.tables["ports"][:, at.PT_SENT]
    over = [sum(taken[shape.downlink_port(p, t1, 5)] for p in range(shape.planes)) for t1 in (0, 1, 2)]
    assert over[0] > 0  # of NIC 1
    assert over[1] > 0  # of NIC 0
    assert max(over[:2]) < 0.75 * over[2]


def test_flaps_shorter_than_a_window_are_one():
    read = scenario(
        MRC_64 + LONG + fault('kind = "port"\nnic = 0\nplane = 0\nat_us = 10\nuntil_us = 12\nflap_us = 0.1')
    )
    assert [t // 1_000_000 for t, _ in timeline(read, shape_of(read, None))] == [10, 13]


def test_a_fault_shorter_than_a_window_takes_what_waits():
    read = scenario(MRC_64 + LONG + fault('kind = "port"\nnic = 0\nplane = 0\nat_us = 10.2\nuntil_us = 10.3'))
    assert [t // 1_000_000 for t, _ in timeline(read, shape_of(read, None))] == [11, 12]


def test_a_repair_comes_when_it_is_due_though_nothing_else_happens_then():
    """Nothing is under way between the cut and a far timer: the repair must not wait for that timer."""
    text = (
        MRC_64
        + '[transport]\ntimeout_us = 5000\n[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 40_000\n'
    )
    text += fault('kind = "t0"\nt0 = 5\nat_us = 3\nuntil_us = 50')
    read = scenario(text)
    times = []
    setup = prepare(read)
    world = memory.build(setup.shape, setup.workload, setup.profile, setup.queues, setup.options)
    runner.prepare(world, 1)
    events = [
        (t, lambda w, now, then=t, do=do: (times.append((then, now)), do(w, now)))
        for t, do in timeline(read, setup.shape)
    ]
    runner.run(world, until_ps=10**10, events=events)
    assert [now for _, now in times] == [then for then, _ in times]
