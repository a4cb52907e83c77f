"""Pauses and faults together: a pause never outlives what it was for."""

from __future__ import annotations

import pytest

from fairlead.fabric.sim import runner
from fairlead.fabric.sim.engine import layout as at
from support.sim_runs import Played, fingerprint, play_out

PFC = """
[transport]
kind = "roce"
timeout_us = 300
[queues]
pfc = true
"""
TWO_TIERS = "[topology]\nt0 = 4\nt1 = 2\nhosts_per_t0 = 4\n"
LONG_LINKS = TWO_TIERS + "[links]\nhost_latency_ns = 500\nfabric_latency_ns = 4000\n"
INCAST = '[[traffic]]\nkind = "incast"\nto = 5\nsize_bytes = 200_000\n'
PERMUTATION = '[[traffic]]\nkind = "permutation"\nsize_bytes = 300_000\n'
END = "[run]\nuntil_us = 20_000\n"

FAULTS = {
    "the receiver's port": 'kind = "port"\nnic = 5\nat_us = 20\nuntil_us = 60\n',
    "a sender's port": 'kind = "port"\nnic = 0\nat_us = 20\nuntil_us = 60\n',
    "an uplink": 'kind = "link"\nt0 = 1\nt1 = 0\nat_us = 20\nuntil_us = 60\n',
    "a T1": 'kind = "t1"\nt1 = 0\nat_us = 20\nuntil_us = 60\n',
    "the receiver's T0": 'kind = "t0"\nt0 = 1\nat_us = 20\nuntil_us = 60\n',
    "a link that flaps": 'kind = "link"\nt0 = 1\nt1 = 0\nat_us = 10\nuntil_us = 100\nflap_us = 3\n',
    "a port that flaps": 'kind = "port"\nnic = 5\nat_us = 10\nuntil_us = 100\nflap_us = 2\n',
    "losses": 'kind = "loss"\nloss = 0.05\nat_us = 5\nuntil_us = 100\n',
    "a slow link": 'kind = "slow"\nnic = 5\nrate = 0.05\nat_us = 5\nuntil_us = 100\n',
}


def check_drained(played: Played) -> None:
    """Every message is complete, and no port holds, pauses or is paused."""
    assert [part.done for part in played.results.parts] == [part.messages for part in played.results.parts]
    ports = played.world.tables["ports"]
    assert (ports[:, at.PT_INGRESS] == 0).all()
    assert (ports[:, at.PT_STATE] & (at.PORT_PAUSED | at.PORT_ASKED_PAUSE | at.PORT_DOWN) == 0).all()
    assert (played.world.tables["nics"][:, at.NC_PAUSED] == 0).all()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("load", [INCAST, PERMUTATION, INCAST + PERMUTATION], ids=["incast", "permutation", "both"])
@pytest.mark.parametrize("fabric", [TWO_TIERS, LONG_LINKS], ids=["short links", "long links"])
def test_everything_flows_after_the_repair(fabric, load, fault, monkeypatch):
    text = fabric + PFC + load + "[[fault]]\n" + fault + END
    alone = play_out(text)
    check_drained(alone)
    monkeypatch.setattr(runner, "PARALLEL_SECONDS", 0.0)  # wake the second thread for every window
    assert fingerprint(play_out(text, threads=2)) == fingerprint(alone)


def test_a_cut_really_meets_paused_senders():
    """The bytes that a dead uplink takes with it had paused NICs; without that the tests above would show nothing."""
    played = play_out(TWO_TIERS + PFC + INCAST + "[[fault]]\n" + FAULTS["the receiver's T0"] + "[run]\nuntil_us = 25\n")
    assert played.results.counters.dropped > 10
    assert (played.world.tables["nics"][:, at.NC_PAUSED] != 0).any()
