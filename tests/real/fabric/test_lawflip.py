"""One law: a flipped constant shows in the queue pair that runs over real sockets, and in the compiled transport."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import lawflip

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]
FAST_TEST = "property/fabric/transport/test_fast_props.py"
TEST = "real/fabric/test_loopback.py::test_each_conversation_goes_as_it_did_when_it_was_last_judged"


def test_the_unchanged_copy_passes(tmp_path: Path) -> None:
    result = lawflip.run(lawflip.flipped(None, tmp_path), TEST)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("flip", lawflip.FLIPS, ids=str)
def test_a_flipped_constant_fails_the_loopback_test(tmp_path: Path, flip: lawflip.Flip) -> None:
    result = lawflip.run(lawflip.flipped(flip, tmp_path), TEST)
    assert result.returncode == 1, result.stdout[-3000:]
    assert "AssertionError" in result.stdout, result.stdout[-3000:]


@pytest.mark.parametrize("flip", lawflip.FAST_FLIPS, ids=str)
def test_a_flipped_constant_of_the_compiled_transport_fails_the_byte_test(tmp_path: Path, flip: lawflip.Flip) -> None:
    """`test_the_unchanged_copy_passes` has its like in the byte test itself, which the suite runs as it is."""
    result = lawflip.run(lawflip.flipped(flip, tmp_path), FAST_TEST, timeout_s=500)
    assert result.returncode == 1, result.stdout[-3000:]
    assert "FAILED" in result.stdout, result.stdout[-3000:]
