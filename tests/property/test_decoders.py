"""Every decoder of outside bytes, with what nobody would send: it takes it or refuses it by its own error, and soon.

Hundreds of inputs each in a quick run, by the formats' grammar; the slow part searches 10^6 each by coverage (atheris).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.decoders import DECODERS, fault_of, mangled
from support.depth import DEPTH, cases

MOST_PLACES = 6
LONGEST_S = 5.0
"""For one input of 20,000 characters, on a machine that does other things, too; most take less than a millisecond."""


@pytest.mark.parametrize("name", DECODERS)
def test_documented_inputs_are_taken(name):
    decoder, refused = DECODERS[name], []
    for seed in decoder.seeds:
        try:
            decoder.take(seed)
        except decoder.refusals as why:
            refused.append((seed, why))
    assert len(refused) < len(decoder.seeds), refused


@pytest.mark.parametrize("name", DECODERS)
def test_whatever_comes_is_taken_or_refused_by_its_own_error(name):
    decoder, draw = DECODERS[name], random.Random(f"{name} {max(1, DEPTH)}")
    for _ in range(cases(decoder.num_quick)):
        data = mangled(draw, decoder.seeds)
        started = time.process_time()
        fault = fault_of(decoder, data)
        assert fault is None, (data, fault)
        assert time.process_time() - started < LONGEST_S, data


@pytest.mark.parametrize("name", DECODERS)
def test_no_number_is_one_that_python_cannot_read(name):
    """`str.isdigit` holds a superscript for a digit, and `int` reads no more than 4,300 of them."""
    decoder = DECODERS[name]
    for seed in decoder.seeds:
        places = list(re.finditer(rb"[0-9]+", seed))
        for found in places[:: max(1, len(places) // MOST_PLACES)]:
            for odd in ("\N{SUPERSCRIPT THREE}".encode(), b"9" * 5000):
                data = seed[: found.start()] + odd + seed[found.end() :]
                assert fault_of(decoder, data) is None, (data[:300], fault_of(decoder, data))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", DECODERS)
def test_a_search_by_coverage_finds_nothing(name, tmp_path):
    """10^6 inputs of each, or as many as fit into a quarter of an hour. Needs atheris, which Linux on x86-64 has."""
    pytest.importorskip("atheris", reason="atheris is not installed: pip install atheris")
    words = [sys.executable, "-m", "support.fuzz", name, "--runs", "1000000", "--seconds", "900"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
