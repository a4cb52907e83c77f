"""Faults of every kind, several at once and all repaired, on any transport: everything ends well, or says why not."""

from __future__ import annotations

import pytest

from fairlead.fabric.sim import runner
from support.sim_soak import play_and_check

QUICK = 48
LONG = {2, 37}
"""Seeds that take ten seconds of a processor each."""


@pytest.fixture(autouse=True)
def _second_thread(monkeypatch):
    monkeypatch.setattr(runner, "PARALLEL_SECONDS", 0.0)  # wake it for every window


@pytest.mark.parametrize("block", range(4))
def test_a_few_seeds(block):
    for seed in range(block * QUICK // 4, (block + 1) * QUICK // 4):
        if seed not in LONG:
            play_and_check(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(6))
def test_many_seeds(block):
    for seed in (*(LONG if block == 0 else ()), *range(QUICK + block * 100, QUICK + (block + 1) * 100)):
        play_and_check(seed)
