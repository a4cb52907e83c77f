"""What somebody put into the folder of a run: metrics that are none of ours, a link in a store's place."""

from __future__ import annotations

import json
import math
import os

import pytest

torch = pytest.importorskip("torch", reason="missing: pip install 'fairlead[train]'")
pytest.importorskip("transformers", reason="missing: pip install 'fairlead[train]'")

from fairlead.errors import TrainError  # noqa: E402 - behind what it needs
from fairlead.train import blobs, metrics  # noqa: E402


@pytest.mark.parametrize("line", ["{}", "[1]", "x}", "[" * 100_000, '{"step": "3"}', '{"step": -1}', '{"step": true}'])
def test_lines_that_are_none_are_of_no_step(line):
    assert metrics.step(line) == math.inf
    assert metrics.step(json.dumps({"step": 3})) == 3


@pytest.mark.timeout(10)
def test_a_pipe_in_place_of_metrics_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert metrics.told(tmp_path / "metrics.jsonl") == []


def test_a_store_is_made_in_nobodys_file(tmp_path, monkeypatch):
    """Also where the file system refuses O_DIRECT."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    (tmp_path / "store").symlink_to(victim)
    monkeypatch.setattr(blobs, "_past_the_cache", lambda _: False)
    with pytest.raises(TrainError):
        blobs.BlobFile(tmp_path / "store", 4096, create=True)
    assert victim.read_bytes() == b"x"
