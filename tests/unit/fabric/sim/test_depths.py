"""Queue depths over time: what the record says beside what the queues themselves hold."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.fabric.sim import runner
from fairlead.fabric.sim.engine import layout as at
from support.sim_runs import MRC_64, UEC_16, play, play_out

INCAST = '[[traffic]]\nkind = "incast"\nto = 5\nsize_bytes = 200_000\nstart_us = 20\n'
ONE_PLANE = MRC_64.replace("planes = 4", "planes = 1")
PFC = ONE_PLANE + '[transport]\nkind = "roce"\ndcqcn = false\ntimeout_us = 2000\n[queues]\npfc = true\n'


@pytest.mark.parametrize("fabric", [MRC_64, UEC_16, PFC], ids=["mrc", "three tiers", "pfc"])
def test_the_record_is_as_deep_as_the_deepest_queue_and_empty_before_and_after(fabric):
    r = play_out(fabric + INCAST + "[run]\nuntil_us = 3000\nbin_us = 5\n").results
    assert set(r.queue_bytes) == set(r.max_queue)
    for name, depths in r.queue_bytes.items():
        assert depths.shape == r.goodput_bits_per_s[0].shape
        assert depths.max() <= r.max_queue[name]
        assert not depths[: round(20 / r.bin_us)].any()
        assert depths[-1] == 0
    busiest = r.queue_bytes["T0 to NIC"]
    assert busiest.max() > 0.9 * r.max_queue["T0 to NIC"]  # windows end, queues peak in between


def test_two_senders_fill_a_queue_at_the_rate_they_have_too_much():
    """Two of 100 Gb/s into one port: until the first marks are back it grows by 100 Gb/s, 12,500 bytes a us."""
    two = '[[traffic]]\nkind = "incast"\nnics = "0,8"\nto = 40\nsize_bytes = 4_000_000\n'
    r = play(PFC + two + "[run]\nuntil_us = 12\n").results
    grown = np.diff(r.queue_bytes["T0 to NIC"][6:10])
    assert grown == pytest.approx([12_500] * 3, abs=2 * 4160)


def test_a_queue_that_waits_behind_a_pause_stays_in_the_record():
    """The link to the receiver is so slow that everything behind it stands still for many windows."""
    slow = '[[fault]]\nkind = "slow"\nnic = 5\nrate = 0.01\n'
    r = play(PFC + INCAST + slow + "[run]\nuntil_us = 1000\n").results
    assert (r.queue_bytes["T0 to NIC"][100:900] > 0).all()
    assert (r.queue_bytes["T0 up"][100:900] > 0).all()


def test_what_a_dead_port_held_leaves_the_record():
    dead = '[[fault]]\nkind = "t0"\nt0 = 0\nat_us = 40\n'
    r = play(ONE_PLANE + INCAST + dead + "[run]\nuntil_us = 60\n").results
    assert r.queue_bytes["T0 to NIC"][39] > 0
    assert not r.queue_bytes["T0 to NIC"][41:].any()


def test_threads_and_wider_bins_tell_the_same(monkeypatch):
    monkeypatch.setattr(runner, "PARALLEL_SECONDS", 0.0)  # wake the second thread for every window
    text = MRC_64 + INCAST + "[run]\nuntil_us = 300\n"
    alone, both = play(text), play(text, threads=2)
    for name, depths in alone.results.queue_bytes.items():
        assert (both.results.queue_bytes[name] == depths).all()
    wide = play(text + "bin_us = 4\n").results
    for name, depths in alone.results.queue_bytes.items():
        whole = len(depths) // 4
        assert (depths[: whole * 4].reshape(whole, 4).max(axis=1) == wide.queue_bytes[name][:whole]).all()


def test_a_full_record_keeps_its_depths_when_bins_widen():
    late = '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 4096\nstart_us = 8500\n'
    text = MRC_64 + INCAST + late + "[run]\nuntil_us = 9000\n"
    played = play(text)
    assert played.world.w[at.W_BIN] == 4_000_000
    short = play(MRC_64 + INCAST + "[run]\nuntil_us = 1000\n")
    assert played.results.queue_bytes["T0 to NIC"].max() == short.results.queue_bytes["T0 to NIC"].max() > 0
