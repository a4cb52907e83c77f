"""A run from outside: interrupts, limits, progress, the record of goodput."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.errors import FabricError
from fairlead.fabric.sim import runner
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import memory
from fairlead.fabric.sim.setup import prepare
from fairlead.fabric.sim.simulate import simulate
from fairlead.fabric.sim.summary import body, text
from support.sim_runs import MRC_64, play, scenario

LONG = MRC_64 + '[[traffic]]\nkind = "permutation"\nsize_bytes = 3_000_000\n'


def test_an_interrupt_keeps_what_was_played(monkeypatch):
    monkeypatch.setattr(runner, "CALL_SECONDS", 0.0)

    def stop(progress: runner.Progress) -> None:
        if progress.time_ps > 20_000_000:
            raise KeyboardInterrupt

    results = simulate(scenario(LONG), progress=stop)
    assert results.end.ended == "interrupted"
    assert 20e6 < results.end.time_ps < 60e6
    assert results.goodput_bits_per_s.sum() > 0
    assert "interrupted" in text(results)
    assert body(results)["ended"] == "interrupted"


def test_the_time_limit_ends_a_run():
    results = simulate(scenario(LONG + "[run]\nuntil_us = 30\n"))
    assert results.end.ended == "time"
    assert results.end.time_ps == 30_000_000
    assert results.parts[0].done < results.parts[0].messages


def test_too_little_room_for_packets_ends_the_run_with_an_error():
    with pytest.raises(FabricError) as refused:
        simulate(scenario(LONG + "[run]\npacket_room = 0.01\n"))
    assert refused.value.code == "sim/memory-overflow"


def test_progress_comes_to_the_number_of_messages(monkeypatch):
    monkeypatch.setattr(runner, "CALL_SECONDS", 0.0)
    seen: list[runner.Progress] = []
    simulate(scenario(LONG), progress=seen.append)
    assert seen[-1].messages_done == seen[-1].messages == 64
    assert [p.time_ps for p in seen] == sorted(p.time_ps for p in seen)
    assert max(p.goodput_bits_per_s for p in seen) > 1e12


def test_a_long_run_widens_the_bins_of_its_record_and_loses_nothing():
    flow = '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 1_000_000_000\n'
    played = play(MRC_64 + flow + "[run]\nuntil_us = 9000\n")
    assert played.world.w[at.W_BIN] == 4_000_000
    assert played.world.tables["goodput"].sum() == played.world.tables["receivers"][:, at.RC_BYTES].sum()
    steady = played.results.goodput_bits_per_s[:, 10:-10].sum(axis=0)
    # 12 packets a plane and bin, more or less one; the planes are in step
    assert steady.std() < 0.03 * steady.mean()


def test_the_answer_names_what_matters():
    shown = text(simulate(scenario('title = "a title"\n' + LONG)))
    for word in ("a title", "64 NICs x 4 planes", "every message is complete", "SLOWDOWN", "trimmed", "in rotation"):
        assert word in shown


def test_a_profile_with_a_pace_is_none_for_the_engine():
    s = prepare(scenario(MRC_64 + '[[traffic]]\nkind = "permutation"\n'))
    paced = replace(s.profile, pace_percent=125)
    with pytest.raises(AssertionError, match="no pace"):
        memory.build(s.shape, s.workload, paced, s.queues, s.options)
