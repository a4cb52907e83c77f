"""The same scenario and seed give the same run, with any number of threads; another seed gives another."""

from __future__ import annotations

import pytest

from fairlead.fabric.sim import runner
from support.sim_runs import MRC_64, UEC_16, fingerprint, play

PERMUTATION = '[[traffic]]\nkind = "permutation"\nsize_bytes = 1_000_000\n'
FAULTS = (
    '[[fault]]\nkind = "t1"\nplane = 1\nt1 = 2\nat_us = 8\nuntil_us = 30\n'
    '[[fault]]\nkind = "loss"\nplane = 0\nloss = 0.01\n'
    '[[fault]]\nkind = "port"\nplane = 3\nnic = 9\nat_us = 10\n'
)
ROCE = MRC_64.replace("planes = 4", "planes = 1") + '[transport]\nkind = "roce"\n'
# a pause and a packet, or a pause and its end, come by one link at one time
PAUSES = (
    "[topology]\nplanes = 2\nt0 = 8\nt1 = 2\nhosts_per_t0 = 8\n[links]\nhost_gbps = 400\nfabric_gbps = 100\n"
    '[transport]\nkind = "roce"\ntimeout_us = 100\ndcqcn = false\n[queues]\npfc = true\nxoff_bytes = 9000\n'
    '[[traffic]]\nkind = "training"\nsize_bytes = 1\nnics = "0-7"\nsteps = 2\ncompute_us = 20\ncompute_jitter = 0.2\n'
    '[[traffic]]\nkind = "tree-all-reduce"\nsize_bytes = 250000\n'
    '[[fault]]\nat_us = 33.51\nuntil_us = 36.51\nkind = "loss"\nnic = 22\nloss = 0.5\ndirection = "up"\n'
    '[[fault]]\nat_us = 18.10\nuntil_us = 318.10\nplane = 0\nkind = "slow"\nt1 = 1\nrate = 0.1\n'
    '[[fault]]\nat_us = 47.93\nuntil_us = 347.93\nplane = 1\nkind = "port"\nnic = 60\nflap_us = 2.5\nreroute_us = 0.5\n'
    "[run]\nuntil_us = 60000\nseed = 141983091\n"
)
RUNS = {
    "mrc with faults": MRC_64 + PERMUTATION + FAULTS,
    "uec": UEC_16 + '[[traffic]]\nkind = "incast"\nto = 3\n',
    "roce": ROCE + PERMUTATION,
    "roce with pfc": ROCE + PERMUTATION + "[queues]\npfc = true\n",
    "roce with pauses at equal times": PAUSES,
}


@pytest.mark.parametrize("text", RUNS.values(), ids=RUNS)
def test_threads_do_not_change_the_run(text, monkeypatch):
    monkeypatch.setattr(runner, "PARALLEL_SECONDS", 0.0)  # wake the second thread for every window
    alone = fingerprint(play(text, threads=1))
    assert fingerprint(play(text, threads=2)) == alone
    assert fingerprint(play(text, threads=3)) == alone


@pytest.mark.parametrize("text", RUNS.values(), ids=RUNS)
def test_a_run_repeats_itself(text):
    assert fingerprint(play(text)) == fingerprint(play(text))


def test_another_seed_is_another_run():
    text = MRC_64 + PERMUTATION
    assert fingerprint(play(text + "[run]\nseed = 2\n")) != fingerprint(play(text))


def test_looking_in_between_does_not_change_the_run(monkeypatch):
    text = RUNS["mrc with faults"]
    whole = fingerprint(play(text))
    monkeypatch.setattr(runner, "CALL_SECONDS", 0.0)  # return to Python after every few windows
    assert fingerprint(play(text)) == whole
