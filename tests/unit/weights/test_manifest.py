"""Manifests: pieces that follow tensors in files the package safetensors wrote; what others may send in their place."""

from __future__ import annotations

import doctest
import json
import random
import time
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.tensors import ends_of_tensors
from fairlead.errors import FairleadError
from fairlead.weights import manifest
from fairlead.weights.manifest import along, encoded, fixed, manifest_of, read_manifest
from fairlead.weights.onnode.layout import MIN_CHUNK

_MISSING = "missing: pip install 'fairlead[train]'"
np = pytest.importorskip("numpy", reason=_MISSING)
save = pytest.importorskip("safetensors.numpy", reason=_MISSING).save_file


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.sampled_from([1, 8, 64, 1024]))
def test_pieces_are_the_file_and_what_is_large_begins_one(sizes, piece_bytes):
    ends = list(accumulate(sizes))
    lengths = along(ends, piece_bytes)
    assert sum(lengths) == ends[-1]
    assert all(0 < length <= piece_bytes for length in lengths)
    starts = set(accumulate(lengths, initial=0))
    assert {end - size for size, end in zip(sizes, ends, strict=True) if size >= piece_bytes} <= starts


def model(path, changed=(), **said):
    rng = np.random.default_rng(3)
    tensors = {f"layer.{i:03d}": rng.integers(0, 255, 300_001, dtype="uint8") for i in range(20)}
    for i in changed:
        tensors[f"layer.{i:03d}"] = tensors[f"layer.{i:03d}"] ^ 1
    save(tensors, path, metadata=said or None)
    return path


def pieces_of(folder) -> set[str]:
    digests = manifest_of(folder).files["m.safetensors"].digests
    return {digests[i : i + 64] for i in range(0, len(digests), 64)}


def test_a_tensor_that_changed_changes_its_own_pieces_even_behind_a_longer_header(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    size = model(tmp_path / "a/m.safetensors").stat().st_size
    assert len(ends_of_tensors(size, lambda at, num: (tmp_path / "a/m.safetensors").read_bytes()[at : at + num])) == 21
    before = pieces_of(tmp_path / "a")
    model(tmp_path / "b/m.safetensors", changed=(4,), step="1000", note="a header that is longer than the one before")
    assert len(pieces_of(tmp_path / "b") - before) == 1 + 2, "the header, and the two pieces of one tensor"


def test_it_reads_what_it_wrote_and_says_the_same_twice(tmp_path):
    model(tmp_path / "m.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "x.bin").write_bytes(random.Random(1).randbytes(MIN_CHUNK * 3 + 5))
    made = manifest_of(tmp_path)
    (tmp_path / "fairlead.manifest.json").write_bytes(encoded(made))
    assert read_manifest(encoded(made), "s") == made == manifest_of(tmp_path)
    assert set(made.files) == {"m.safetensors", "config.json", "empty", "x.bin"}


GOOD = {
    "schema": "fairlead.weights-manifest/1",
    "algorithm": "sha256",
    "piece_bytes": MIN_CHUNK,
    "files": {"a": {"size": 3, "digests": "ab" * 32}},
}


@pytest.mark.parametrize(
    "change",
    [
        {"piece_bytes": MIN_CHUNK + 1},
        {"piece_bytes": 1},
        {"algorithm": "crc32"},
        {"schema": "fairlead.weights-manifest/2"},
        {"files": {"a": {"size": 3, "digests": "ab" * 31}}},
        {"files": {"a": {"size": 3, "digests": "zz" * 32}}},
        {"files": {"a": {"size": 3, "digests": "ab" * 64, "lengths": [1, 2]}}},
        {"files": {"a": {"size": MIN_CHUNK * 3, "digests": "ab" * 64, "lengths": [MIN_CHUNK * 2, MIN_CHUNK]}}},
        {"files": {"a": {"size": -1, "digests": ""}}},
        {"files": {"a": {"size": 1 << 60, "digests": "ab" * 32}}},
    ],
)
def test_what_does_not_hold_together_is_refused(change):
    assert read_manifest(json.dumps(GOOD).encode(), "s").files["a"].size == 3
    with pytest.raises(FairleadError) as caught:
        read_manifest(json.dumps(GOOD | change).encode(), "s")
    assert caught.value.code == "weights/manifest"


def test_lengths_of_pieces_that_are_alike():
    assert doctest.testmod(manifest).failed == 0
    assert fixed(0, 4) == ()
    assert fixed(8, 4) == (4, 4)


def test_a_size_that_no_disk_holds_costs_nothing():
    """Found by the search of coverage: as many pieces were made as it says."""
    file = {"size": 1 << 53, "digests": "ab" * 32}
    said = {
        "schema": "fairlead.weights-manifest/1",
        "algorithm": "blake3",
        "piece_bytes": MIN_CHUNK,
        "files": {"a": file},
    }
    began = time.process_time()
    with pytest.raises(FairleadError, match="are not the file"):
        read_manifest(json.dumps(said).encode(), "s")
    assert time.process_time() - began < 1
