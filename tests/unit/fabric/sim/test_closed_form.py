"""Runs whose answer can be worked out by hand, and the reference simulator's small cases.

The kernels are compiled once a machine (some 40 s) and kept; then each run takes milliseconds.
"""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.fabric.sim.engine import layout as at
from support.sim_runs import MRC_64, UEC_16, play

PER_BYTE_US = 8e-5  # 100 Gb/s


def fct(text: str) -> np.ndarray:
    return play(text).results.parts[0].fct_us


def flow(src: int, dst: int, size: int) -> str:
    return f'[[traffic]]\nkind = "flow"\nnics = "{src}"\nto = {dst}\nsize_bytes = {size}\n'


def test_one_packet_takes_each_link_once_and_its_answer_too():
    # six links of 1 us; 1,064 bytes leave six times, then 64 bytes six times on the way back
    assert fct(UEC_16 + flow(0, 13, 1000)) == pytest.approx([12 + (1064 + 64) * 6 * PER_BYTE_US], abs=0.001)


def test_below_one_t0_only_two_links_are_crossed():
    assert fct(UEC_16 + flow(0, 1, 1000)) == pytest.approx([4 + (1064 + 64) * 2 * PER_BYTE_US], abs=0.001)


def test_one_flow_as_in_the_reference():
    played = play(UEC_16 + flow(0, 13, 2_000_000))
    assert played.results.parts[0].fct_us == pytest.approx([176.2], abs=0.05)
    c = played.results.counters
    assert (c.new, c.sacks, c.retransmitted) == (490, 124, 0)


def test_two_directions_as_in_the_reference():
    played = play(UEC_16 + flow(0, 13, 2_000_000) + flow(13, 0, 2_000_000))
    times = [p.fct_us[0] for p in played.results.parts]
    assert times == pytest.approx([176.804, 176.804], abs=0.05)
    assert (played.results.counters.new, played.results.counters.sacks) == (980, 248)


def test_an_incast_of_fifteen_as_in_the_reference():
    # medians of ten seeds of the reference: 2,467.9 us, 799.5 retransmissions, 7,090 ACKs;
    # all data through one port takes 2,440
    runs = [
        play(UEC_16 + f'[[traffic]]\nkind = "incast"\nto = 15\nsize_bytes = 2_000_000\n[run]\nseed = {seed}\n').results
        for seed in range(1, 8)
    ]
    tail = float(np.median([r.parts[0].fct_us.max() for r in runs]))
    assert tail > 15 * 490 * 4150 * PER_BYTE_US
    assert tail == pytest.approx(2467.9, rel=0.02)
    assert np.median([r.counters.retransmitted for r in runs]) == pytest.approx(799.5, rel=0.10)
    assert np.median([r.counters.sacks for r in runs]) == pytest.approx(7090, rel=0.05)


def test_a_nic_sends_at_line_rate_over_all_planes():
    # 4 planes x 100 Gb/s: 40 MB of payload in packets of 4,096 + 96 bytes, then the last packet's way
    played = play(MRC_64 + flow(0, 40, 40_000_000))
    alone = 40_000_000 / 4096 * 4192 * PER_BYTE_US / 4
    assert alone < played.results.parts[0].fct_us[0] < alone * 1.02 + 15
    goodput = played.results.goodput_bits_per_s[:, 20:-20]
    assert goodput.mean(axis=1) == pytest.approx([100e9 * 4096 / 4192] * 4, rel=0.01)


def test_two_senders_share_a_receiver_evenly():
    text = MRC_64 + '[[traffic]]\nkind = "incast"\nnics = "0,8"\nto = 40\nsize_bytes = 20_000_000\n'
    runs = [fct(text + f"[run]\nseed = {seed}\n") for seed in range(1, 6)]
    # all bytes over four ports; who is ahead when the first is done is a matter of chance, but not by much
    for times in runs:
        assert times.max() == pytest.approx(40_000_000 / 4096 * 4192 * PER_BYTE_US / 4, rel=0.05)
    assert np.median([times.min() / times.max() for times in runs]) > 0.85


def test_a_ring_all_reduce_takes_as_long_as_its_steps():
    # each of 14 steps: one chunk of 1 MB at 400 Gb/s and the way to a neighbour
    text = MRC_64 + '[[traffic]]\nkind = "ring-all-reduce"\nnics = "0-56/8"\nsize_bytes = 8_000_000\n'
    r = play(text).results
    step = 1_000_000 / 4096 * 4192 * PER_BYTE_US / 4
    assert 14 * (step + 4) < r.parts[0].placed_us.max() * 0 + r.end.time_ps / 1e6 < 14 * (step + 6) * 1.1
    assert r.counters.retransmitted == 0


def test_training_steps_are_computation_and_collective():
    text = MRC_64 + (
        '[[traffic]]\nkind = "training"\nnics = "0-56/8"\nsize_bytes = 800_000\nsteps = 3\ncompute_us = 50\n'
    )
    r = play(text).results
    assert [s.number for s in r.steps] == [0, 1, 2]
    times = [s.end_us - s.begin_us for s in r.steps]
    collective = times[0] - 50
    assert times == pytest.approx([50 + collective] * 3, rel=0.05)
    assert 14 * 4 < collective < 14 * 9


def test_messages_of_a_flow_follow_each_other():
    played = play(MRC_64 + flow(0, 40, 100_000) + "messages = 5\ndepth = 1\n")
    rows = played.world.tables["messages"][played.world.rows.message_row]
    due, acked = rows[:, at.MS_DUE], rows[:, at.MS_ACKED]
    assert (due[1:] == acked[:-1]).all()
    assert (np.diff(rows[:, at.MS_PLACED]) > 0).all()


def test_a_slow_link_slows_what_has_no_other_way():
    slow = '[[fault]]\nkind = "slow"\nnic = 1\nplane = 0\nrate = 0.25\n'
    assert fct(UEC_16 + flow(0, 1, 2_000_000) + slow)[0] == pytest.approx(
        4 * fct(UEC_16 + flow(0, 1, 2_000_000))[0], rel=0.05
    )


def test_no_part_is_faster_than_its_bound_and_a_lone_flow_nearly_reaches_it():
    for text in (
        flow(0, 40, 40_000_000),
        '[[traffic]]\nkind = "incast"\nnics = "0-15"\nto = 40\nsize_bytes = 1_000_000\n',
    ):
        part = play(MRC_64 + text).results.parts[0]
        assert 1 < part.slowdown < 1.2
        assert part.arrivals_bytes.sum() == part.payload_bytes


def test_a_cut_short_part_has_no_time_of_its_own():
    part = play(MRC_64 + flow(0, 40, 40_000_000) + "[run]\nuntil_us = 100\n").results.parts[0]
    assert np.isnan(part.took_us)
    assert part.bound_us > 800
