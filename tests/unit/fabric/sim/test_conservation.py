"""Nothing appears and nothing vanishes: every packet is delivered, dropped, lost, refused or under way."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.fabric.sim.engine import layout as at
from support.sim_runs import MRC_64, UEC_16, play, under_way

PERMUTATION = '[[traffic]]\nkind = "permutation"\nsize_bytes = 1_000_000\n'
INCAST = '[[traffic]]\nkind = "incast"\nto = 5\nsize_bytes = 200_000\n'
ROCE = MRC_64.replace("planes = 4", "planes = 1") + '[transport]\nkind = "roce"\n'

RUNS = {
    "permutation": MRC_64 + PERMUTATION,
    "incast, trimmed": MRC_64 + INCAST,
    "incast, dropped": MRC_64 + INCAST + "[queues]\ntrim = false\n",
    "three tiers": UEC_16 + INCAST,
    "a switch dies": MRC_64 + PERMUTATION + '[[fault]]\nkind = "t1"\nplane = 1\nt1 = 2\nat_us = 8\n',
    "a T0 dies and comes back": MRC_64
    + PERMUTATION
    + '[[fault]]\nkind = "t0"\nplane = 1\nt0 = 2\nat_us = 8\nuntil_us = 20\n',
    "losses": MRC_64 + PERMUTATION + '[[fault]]\nkind = "loss"\nloss = 0.02\n',
    "corrupted paths": MRC_64 + PERMUTATION + '[[fault]]\nkind = "paths"\nnics = "0-7"\nt1s = "0-1"\nloss = 0.5\n',
    "cut short": MRC_64 + PERMUTATION + "[run]\nuntil_us = 14\n",
    "go-back-N": ROCE + INCAST,
    "PFC": ROCE + INCAST + "[queues]\npfc = true\n",
}


@pytest.mark.parametrize("text", RUNS.values(), ids=RUNS)
def test_every_packet_is_somewhere(text):
    played = play(text)
    c = played.results.counters
    assert c.sent_by_nics == c.delivered + c.dropped + c.lost + c.refused + under_way(played)
    assert c.sent_by_nics > 500


@pytest.mark.parametrize("text", [RUNS[k] for k in RUNS if k != "cut short"], ids=[k for k in RUNS if k != "cut short"])
def test_every_byte_is_placed_once(text):
    played = play(text)
    assert played.results.end.ended == "done"
    placed = played.world.tables["receivers"][:, at.RC_BYTES]
    sizes = np.zeros(played.setup.workload.num_flows, dtype=np.int64)
    np.add.at(sizes, played.setup.workload.flow, played.setup.workload.size)
    rows = played.world.tables["flows"][played.world.rows.flow_row, at.FL_RECEIVER]
    assert (placed[rows] == sizes).all()
    # what was counted over time adds up to the same
    assert played.world.tables["goodput"].sum() == sizes.sum()


def test_an_incast_really_trims_and_really_drops():
    assert play(RUNS["incast, trimmed"]).results.counters.trimmed > 100
    dropped = play(RUNS["incast, dropped"]).results.counters
    assert dropped.dropped > 100
    assert dropped.trimmed == 0


def test_queues_never_hold_more_than_their_limit():
    played = play(RUNS["incast, trimmed"])
    assert 0 < max(played.results.max_queue.values()) <= played.setup.queues.data_limit


def test_pfc_loses_nothing_and_repeats_nothing():
    c = play(RUNS["PFC"]).results.counters
    assert (c.dropped, c.retransmitted, c.trimmed) == (0, 0, 0)
    lossy = play(RUNS["go-back-N"]).results.counters
    assert lossy.dropped + lossy.trimmed > 0
    assert lossy.retransmitted > 0


def test_the_pool_is_empty_when_all_is_done():
    played = play(RUNS["permutation"] + "[run]\nuntil_us = 1e4\n")
    t = played.world.tables["threads"][0]
    taken = t[at.TH_PLACES + at.ST_FRESH] - t[at.TH_PLACES + at.ST_FREE]
    assert taken == under_way(played) - t[at.TH_IN_FLIGHT]
