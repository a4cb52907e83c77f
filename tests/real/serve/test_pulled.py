"""A model that lies elsewhere becomes a bundle by one command; the hub's answers have the shape of its API's page."""

from __future__ import annotations

import json
import shutil

import pytest

from fairlead.cli.app import run
from support.origins import Origin
from support.served import model

pytestmark = pytest.mark.real
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """(the folder that the hub has as o/Tiny, the hub)."""
    place = tmp_path / "hub"
    folder = model(place / "o" / "Tiny" / "resolve" / SHA, shards=2)
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    tree = [
        {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": f"{i:040}"[:39]}
        for i, p in enumerate(files)
    ]
    api = place / "api" / "models" / "o" / "Tiny"
    for path, body in ((api / "revision" / "v1", {"sha": SHA}), (api / "tree" / SHA, tree)):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(body))
    monkeypatch.chdir(tmp_path)
    with Origin(place) as origin:
        monkeypatch.setenv("HF_ENDPOINT", origin.url)
        yield folder, origin


def bundle(*words):
    return run(["serve", "bundle", *map(str, words), "--unsigned"])


def test_a_model_of_a_hub_is_pulled_bundled_and_the_copy_goes(hub, tmp_path):
    folder, _ = hub
    assert bundle("hf://o/Tiny@v1", tmp_path / "out" / "b") == 0
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["b"]
    own = tmp_path / "Tiny"
    shutil.copytree(folder, own)
    assert bundle(own, tmp_path / "same") == 0
    layouts = [(tmp_path / place / "index.json").read_bytes() for place in ("out/b", "same")]
    assert layouts[0] == layouts[1]


def test_a_shard_that_is_gone_is_named_and_there_is_no_bundle_until_it_is_back(hub, tmp_path, capsys):
    _, origin = hub
    dest = tmp_path / "out" / "b"
    origin.fault = lambda request: "model-00002" in request.path and (request.answer(404) or True)
    assert bundle("hf://o/Tiny@v1", dest) != 0
    assert "1 file could not be had: model-00002-of-00002.safetensors; 6 small files" in capsys.readouterr().err
    assert not dest.exists()
    origin.fault = None
    assert bundle("hf://o/Tiny@v1", dest) == 0


def test_nothing_is_asked_where_the_bundle_is_there_already(hub, tmp_path, capsys):
    _, origin = hub
    (tmp_path / "b" / "x").mkdir(parents=True)
    assert bundle("hf://o/Tiny@v1", tmp_path / "b") == 2
    assert "is there already" in capsys.readouterr().err
    assert bundle("hf://o/Tiny@v1", tmp_path / "c", "--dry-run") == 2
    assert "fairlead weights ls hf://o/Tiny@v1" in capsys.readouterr().err
    assert origin.requests == []
