"""A new version of a model with a manifest: by the command, from a server that counts its bytes, files as the package
safetensors writes them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.injector import FAIRLEAD
from support.tensors import write_model

_MISSING = "missing: pip install 'fairlead[train]'"
pytest.importorskip("safetensors.numpy", reason=_MISSING)
pytestmark = pytest.mark.real
COUNT, CHANGED = 120, 6


@pytest.fixture
def run(tmp_path):
    def call(*words: str) -> tuple[int, dict]:
        argv = [*FAIRLEAD, "weights", *words, "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return call


def same(a: Path, b: Path) -> bool:
    names = sorted(p.name for p in a.iterdir() if p.is_file())
    there = sorted(p.name for p in b.iterdir() if p.is_file())
    return names == there and all((a / n).read_bytes() == (b / n).read_bytes() for n in names)


def test_of_a_new_version_only_what_changed_is_fetched(run, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    write_model(source, COUNT, step="9")
    assert run("manifest", str(source))[0] == 0
    status, first = run("pull", str(source), str(dest))
    assert (status, first["origin_share"]) == (0, 1.0)
    assert same(source, dest)
    changed = random.Random(2).sample(range(COUNT), CHANGED)
    write_model(source, COUNT, changed, step="10", note="the header is longer now, and all tensors lie elsewhere")
    assert run("manifest", str(source))[0] == 0
    here = tmp_path / "here.toml"
    here.write_text(
        'schema = 1\n[[pool]]\nname = "here"\nnodes = "localhost"\nsize = "other"\n'
        f'python = "{sys.executable}"\n[fabric]\nlink = "ethernet"\nrdma = "none"\n[access]\nvia = "local"\n'
    )
    status, plan = run("plan", str(source), str(dest), "-f", str(here))
    assert status == 0
    assert 0 < plan["present"]["none"] <= 0.06 * plan["chunks"] + 3
    assert plan["origin_bytes"] == 0
    status, second = run("pull", str(source), str(dest))
    assert status == 0, second["findings"]
    assert second["origin_share"] <= 0.06, "a twentieth of the tensors"
    assert second["adopted_bytes"] + second["origin_bytes"] == second["bytes"]
    assert same(source, dest)
    status, third = run("pull", str(source), str(dest))
    assert (status, third["origin_bytes"], third["adopted_bytes"]) == (0, 0, 0)
    assert run("verify", str(dest), "-f", str(here))[0] == 0


@pytest.mark.slow
def test_what_is_published_again_unchanged_or_under_another_name_costs_nothing(run, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    write_model(source, COUNT)
    run("manifest", str(source))
    assert run("pull", str(source), str(dest))[0] == 0
    for path in source.iterdir():
        os.utime(path, ns=(10**18, 10**18))  # uploaded again: every tag is another
    (source / "model-1.safetensors").rename(source / "renamed.safetensors")
    run("manifest", str(source))
    status, again = run("pull", str(source), str(dest))
    assert status == 0
    small = sum(p.stat().st_size for p in source.iterdir() if p.suffix == ".json")
    assert again["origin_bytes"] <= small, "the manifest itself, and what is packed with it"
    assert (dest / "renamed.safetensors").read_bytes() == (source / "renamed.safetensors").read_bytes()


def test_files_that_somebody_else_put_there_are_looked_at_and_a_touched_one_is_not_believed(run, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    write_model(source, COUNT)
    run("manifest", str(source))
    subprocess.run(["cp", "-r", str(source), str(dest)], check=True)  # we have no record of it
    damaged = bytearray((dest / "model-0.safetensors").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (dest / "model-0.safetensors").write_bytes(damaged)
    status, result = run("pull", str(source), str(dest))
    assert status == 0
    assert 0 < result["origin_bytes"] <= 2 * result["chunk_bytes"], "the piece with the bit"
    assert same(source, dest)


def test_bytes_that_are_not_the_manifests_are_not_published(run, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    write_model(source, COUNT)
    run("manifest", str(source))
    data = bytearray((source / "model-0.safetensors").read_bytes())
    data[-1] ^= 1
    (source / "model-0.safetensors").write_bytes(data)
    status, result = run("pull", str(source), str(dest))
    assert (status, {f["code"] for f in result["findings"]}) == (3, {"weights/changed"})
    assert "not what the manifest" in str(result["findings"])
    assert not (dest / "model-0.safetensors").exists()
    (source / "model-0.safetensors").write_bytes(data + b"!")
    status, result = run("pull", str(source), str(dest))
    assert status == 0
    codes = {f["code"] for f in result["findings"]}
    assert {"weights/old-manifest", "weights/odd-tensors"} <= codes
