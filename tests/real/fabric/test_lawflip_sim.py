"""One law: a constant flipped in the law shows in the simulator, which has no rule of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import lawflip
from support.sim_talks import GOLDEN, TALKS, hold

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
TEST = "real/fabric/test_lawflip_sim.py::test_each_run_goes_as_it_did_when_it_was_last_judged"
FLIPS = [
    f for f in lawflip.FLIPS if str(f) in ("congestion.GAMMA_DEN=9", "layout.NACK_TRIMMED=0x02", "window.MAX_TRIES=0")
]
# classes and sizes: the core's, which the simulator asks for, and the few that stand in the simulator alone
FLIPS += [
    lawflip.Flip("classes", "CONTROL", "frozenset({Opcode.SACK, Opcode.ACK, Opcode.ENDPOINT_RESPONSE})"),
    lawflip.Flip("icrc", "SIZE_BYTES", "8"),
    lawflip.Flip("kinds", "_WITH_DATA", "(at.KIND_DATA,)", "sim"),
    lawflip.Flip("kinds", "OTHER_BYTES", "72", "sim"),
]


@pytest.mark.parametrize("name", TALKS)
def test_each_run_goes_as_it_did_when_it_was_last_judged(name: str) -> None:
    """The golden file is the judgement of a person: after a change of the law, read its diff, then write it anew."""
    assert hold(TALKS[name]) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


@pytest.mark.slow  # compiles the engine anew
@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_a_flipped_constant_fails_the_simulator(tmp_path: Path, flip: lawflip.Flip) -> None:
    result = lawflip.run(lawflip.flipped(flip, tmp_path), TEST, timeout_s=800)
    assert result.returncode == 1, result.stdout[-3000:]
    assert "AssertionError" in result.stdout, result.stdout[-3000:]
