"""What a scheduler's program says is bounded, however long it goes on."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.cluster import child
from fairlead.errors import ClusterError


def test_a_program_that_talks_without_end_is_ended_by_its_own_error(monkeypatch):
    monkeypatch.setattr(child, "MAX_CAPTURED", 1 << 20)
    with pytest.raises(ClusterError, match="said more than") as caught:
        asyncio.run(child.capture(["yes"], limit_s=60))
    assert caught.value.code == "cluster/endless"


def test_as_much_as_is_allowed_is_whole():
    done = asyncio.run(child.capture(["head", "-c", "3000000", "/dev/zero"], limit_s=60))
    assert (done.rc, len(done.out)) == (0, 3_000_000)
