"""A bundle: read back by other readers, the same each time, whole or not there, gone on with after a kill."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from fairlead.errors import DiskFull, FairleadError, UsageError
from fairlead.serve import bundle as making
from fairlead.serve.bundle import make, planned
from fairlead.serve.image import MAX_LAYERS, OFFLINE
from fairlead.serve.model import Model, ModelFile, look
from fairlead.serve.pour import layer_size
from fairlead.serve.record import MANIFEST, SBOM
from fairlead.serve.sbom import sbom, spdx_of
from support.served import model

LINUX = "linux/amd64"


@pytest.fixture
def folder(tmp_path):
    return model(tmp_path / "Tiny-1B")


def write(folder, dest, form="oci", **how):
    return make(planned(look(folder), folder, dest, form=form, platform=LINUX, **how))


def blob(dest, digest):
    return (dest / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()


def image(dest):
    index = json.loads((dest / "index.json").read_bytes())
    manifest = json.loads(blob(dest, index["manifests"][0]["digest"]))
    return manifest, json.loads(blob(dest, manifest["config"]["digest"]))


def test_every_file_is_in_a_layer_as_tarfile_reads_it(folder, tmp_path):
    write(folder, tmp_path / "b")
    manifest, config = image(tmp_path / "b")
    found = {}
    for layer, diff in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        raw = blob(tmp_path / "b", layer["digest"])
        assert layer["digest"] == diff == f"sha256:{hashlib.sha256(raw).hexdigest()}"
        assert layer["size"] == len(raw)
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            for entry in tar:
                assert (entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, 0, "", "")
                if entry.isfile():
                    found[entry.name] = tar.extractfile(entry).read()
    there = {f"models/tiny-1b/{p.relative_to(folder)}": p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == there
    assert config["architecture"] == "amd64"
    assert set(config["config"]["Env"]) == {f"{k}={v}" for k, v in OFFLINE.items()}
    assert config["config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_each_shard_is_a_layer_and_the_small_files_are_one(folder, tmp_path):
    made = write(folder, tmp_path / "b")
    by_layer = {}
    for file in made.files:
        by_layer.setdefault(file.layer, []).append(file.path)
    assert sorted(map(len, by_layer.values())) == [1, 1, 5]


def test_times_owners_and_places_do_not_count(folder, tmp_path):
    one = write(folder, tmp_path / "one")
    copy = tmp_path / "elsewhere" / "Tiny-1B"
    shutil.copytree(folder, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    two = write(copy, tmp_path / "two")
    assert one == two
    assert (tmp_path / "one" / MANIFEST).read_bytes() == (tmp_path / "two" / MANIFEST).read_bytes()


def test_a_shard_that_did_not_change_keeps_its_layer(folder, tmp_path):
    one = write(folder, tmp_path / "one")
    (folder / "config.json").write_text('{"model_type": "llama", "x": 1}')
    two = write(folder, tmp_path / "two")
    layers = [{f.path: f.layer for f in made.files} for made in (one, two)]
    shards = [name for name in layers[0] if name.endswith(".safetensors")]
    assert all(layers[0][name] == layers[1][name] for name in shards)
    assert layers[0]["config.json"] != layers[1]["config.json"]
    assert one.image != two.image


def test_a_folder_holds_the_files_themselves(folder, tmp_path):
    made = write(folder, tmp_path / "b", form="directory")
    for file in made.files:
        raw = (tmp_path / "b" / "model" / file.path).read_bytes()
        assert raw == (folder / file.path).read_bytes()
        assert file.sha256 == hashlib.sha256(raw).hexdigest()
    assert made.platform == "any"


def test_nothing_but_the_bundle_is_left(folder, tmp_path):
    made = write(folder, tmp_path / "out" / "b")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["b"]
    below = {
        p.relative_to(tmp_path / "out" / "b").as_posix() for p in (tmp_path / "out" / "b").rglob("*") if p.is_file()
    }
    assert below == {s.path for s in made.stored} | {MANIFEST}


def test_what_stands_there_is_never_written_over(folder, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("x")
    with pytest.raises(UsageError) as caught:
        write(folder, tmp_path / "b")
    assert caught.value.code == "serve/exists"
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["mine"]


KILLED = """
import sys, time
from pathlib import Path
from fairlead.serve.bundle import make, planned
from fairlead.serve.model import look
seen = 0
def said(num):
    global seen
    seen += num
    if seen > 250_000:
        print("now", flush=True)
        time.sleep(60)
source, dest = map(Path, sys.argv[1:])
make(planned(look(source), source, dest, form="oci", platform="linux/amd64"), said=said)
"""


def test_a_killed_run_leaves_no_bundle_and_is_gone_on_with(tmp_path, monkeypatch):
    folder = model(tmp_path / "Tiny-1B", shards=4, values=25_000)
    with subprocess.Popen([sys.executable, "-c", KILLED, folder, tmp_path / "b"], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"now\n"
        run.send_signal(signal.SIGKILL)
    assert not (tmp_path / "b").exists()
    poured = []
    pour = making.pour_layer
    monkeypatch.setattr(
        making, "pour_layer", lambda out, root, files, *a: poured.append(files) or pour(out, root, files, *a)
    )
    again = write(folder, tmp_path / "b")
    assert 0 < len(poured) < 5
    assert write(folder, tmp_path / "whole") == again
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_stage_is_not_gone_on_with_where_a_file_changed(folder, tmp_path, monkeypatch):
    plan = planned(look(folder), folder, tmp_path / "b", form="oci", platform=LINUX)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(making, "manifest_of", full)
        with pytest.raises(DiskFull):
            make(plan)
    assert not (tmp_path / "b").exists()
    shard = folder / "model-00001-of-00002.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    time.sleep(0.01)
    shard.write_bytes(raw)
    made = write(folder, tmp_path / "b")
    assert next(f for f in made.files if f.path == shard.name).sha256 == hashlib.sha256(raw).hexdigest()


def test_a_file_that_changes_meanwhile_ends_the_run(folder, tmp_path):
    plan = planned(look(folder), folder, tmp_path / "b", form="oci", platform=LINUX)
    os.utime(folder / "model-00002-of-00002.safetensors", (5, 5))
    with pytest.raises(FairleadError) as caught:
        make(plan)
    assert caught.value.code == "serve/changed"
    assert not (tmp_path / "b").exists()


def test_no_room_is_said_before_the_first_byte(tmp_path):
    large = Model(files=(ModelFile(path="m.safetensors", size=1 << 60, mtime_ns=0),))
    plan = planned(large, tmp_path, tmp_path / "b", form="oci", platform=LINUX)
    with pytest.raises(DiskFull):
        make(plan)


def test_two_runs_at_once_do_not_meet(folder, tmp_path):
    plan = planned(look(folder), folder, tmp_path / "b", form="oci", platform=LINUX)
    met = []

    def said(_num):
        if not met:
            met.append(1)
            with pytest.raises(FairleadError) as caught:
                make(plan)
            assert caught.value.code == "run/state-busy"

    make(plan, said=said)
    assert met


def test_a_model_of_many_shards_stays_below_what_an_image_takes(tmp_path):
    files = tuple(ModelFile(path=f"model-{i:05}.safetensors", size=1, mtime_ns=0) for i in range(163))
    small = ModelFile(path="config.json", size=1, mtime_ns=0)
    plan = planned(Model(files=(*files, small)), tmp_path, tmp_path / "b", form="oci", platform=LINUX)
    assert len(plan.parts) <= MAX_LAYERS
    assert [f for p in plan.parts[1:] for f in p.files] == list(files)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, (8 << 30) - 1, 8 << 30, 9 << 40])
def test_the_size_of_a_layer_is_known_before(size, tmp_path):
    """Over 8 GiB the length of a file no longer fits ustar: pax takes over (POSIX.1-2001)."""
    file = ModelFile(path="w.safetensors", size=size, mtime_ns=0)
    ends = layer_size([file], "models/m") - size - (-size % 512)
    # two folders, the file, a pax header and its block where the length needs one, two empty blocks
    assert ends == 512 * (7 if size >= 8 << 30 else 5)


@pytest.mark.slow
def test_the_bill_of_materials_holds_against_the_schema_of_cyclonedx(folder, tmp_path):
    validation = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib[json-validation]")
    from cyclonedx.schema import SchemaVersion

    check = validation.JsonStrictValidator(SchemaVersion.V1_6)
    made = write(folder, tmp_path / "b")
    text = (tmp_path / "b" / SBOM).read_text()
    assert check.validate_str(text) is None
    said = json.loads(text)
    assert said["metadata"]["component"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert {c["name"]: c["hashes"][0]["content"] for c in said["components"]} == {f.path: f.sha256 for f in made.files}
    other = json.dumps(sbom("m", "llama3.1", [], base="sha256:" + "0" * 64))
    assert check.validate_str(other) is None
    assert check.validate_str(other.replace('"CycloneDX"', '"Other"')) is not None


def test_identifiers_of_licences_are_those_of_spdx():
    """cyclonedx-python-lib carries SPDX's list."""
    spdx = pytest.importorskip("cyclonedx.spdx", reason="needs cyclonedx-python-lib")
    from fairlead.serve.sbom import _SPDX

    assert all(spdx.is_supported_id(identifier) for identifier in _SPDX.values())
    assert spdx_of("llama3.1") == ""
