"""The labelled incidents themselves: what a label says stands in the logs, and the same seed tells the same story."""

from __future__ import annotations

import json

import pytest

from support.incidents import INCIDENTS, Incident, healthy


def _texts(folder):
    return {path: path.read_text() for path in sorted((folder / "logs").rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", INCIDENTS)
def test_the_label_fits_the_logs(name, tmp_path):
    told = Incident(0)
    INCIDENTS[name](told)
    told.write(tmp_path / "a")
    label, job = (json.loads((tmp_path / "a" / f"{part}.json").read_text()) for part in ("label", "job"))
    texts = _texts(tmp_path / "a")
    assert all(any(root in text for text in texts.values()) for root in label["root"]), label["root"]
    assert set(label["node"]) <= set(told.nodes)
    assert not set(label["node"]) & set(label["victims"])
    assert job["State"] != "COMPLETED"
    assert len(texts) > len(told.nodes)


def test_the_same_seed_tells_the_same(tmp_path):
    for folder in ("a", "b"):
        healthy(3).write(tmp_path / folder)
    first, second = _texts(tmp_path / "a"), _texts(tmp_path / "b")
    assert list(first.values()) == list(second.values())
