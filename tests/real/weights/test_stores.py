"""Weights from real stores: Azurite for Blob storage, moto's server for S3, fake-gcs-server for Google Cloud Storage. A
server before them counts bytes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.injector import FAIRLEAD
from support.origins import Origin, serving, throttled
from support.stores import (
    azure_env,
    azure_sas,
    azurite,
    filled_azure,
    filled_gcs,
    filled_s3,
    gcs,
    gcs_env,
    s3,
    s3_env,
)

pytestmark = [pytest.mark.real, pytest.mark.requires("obstore")]
MIB = 1 << 20


class Store(NamedTuple):
    source: str
    fill: Callable[[Path, str], object]
    """Put a folder below a prefix."""
    origin: Origin
    env: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made, rng = tmp_path_factory.mktemp("source"), random.Random(8)
    sizes = {"model.safetensors": 21 * MIB + 3, "config.json": 700, "none": 0, "a b/ü#?%25.txt": 9}
    for name, size in {**sizes, **{f"small/{i}": 100 + i for i in range(40)}}.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(rng.randbytes(size))
    return made


STORES = {
    "azure": (azurite, filled_azure, lambda url, _: azure_env(url), "az"),
    "s3": (s3, filled_s3, lambda url, _: s3_env(url), "s3"),
    "gcs": (gcs, filled_gcs, gcs_env, "gs"),
}


@pytest.fixture(scope="module", params=list(STORES))
def store(request, folder, tmp_path_factory) -> Iterator[Store]:
    start, fill, env_of, scheme = STORES[request.param]
    with start() as port, serving(upstream=port) as origin:
        fill(port, folder, "models", "team/one")
        upload = lambda made, prefix: fill(port, made, "models", prefix)  # noqa: E731
        yield Store(
            f"{scheme}://models/team/one", upload, origin, env_of(origin.url, tmp_path_factory.mktemp("keys")), folder
        )


@pytest.fixture(autouse=True)
def _afresh(store) -> None:
    store.origin.fault, store.origin.given = None, 0
    store.origin.changed = lambda _, data: data
    store.origin.requests.clear()


def run(store: Store, tmp_path: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, dict]:
    argv = [*FAIRLEAD, "weights", *words, "--json", "--runs", str(tmp_path / "runs")]
    whole = {k: v for k, v in {**os.environ, **store.env, **(env or {})}.items() if v}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=whole)
    return done.returncode, json.loads(done.stdout)


def plain(store: Store) -> list[str]:
    """Without the names that no address can be signed for."""
    return ["--leave-out", "a b/*"] if store.source.startswith("az") else []


def same(one: Path, other: Path, *more: str) -> bool:
    done = subprocess.run(
        ["diff", "-r", "-x", ".fairlead", *more, str(one), str(other)], capture_output=True, text=True
    )
    assert not done.stdout, done.stdout
    return done.returncode == 0


def test_every_object_arrives_and_each_byte_left_the_store_once(store, tmp_path):
    status, result = run(store, tmp_path, "pull", store.source, str(tmp_path / "dest"), *plain(store))
    assert status == 0, [f["message"] for f in result.get("findings", [])] or result["error"]
    assert same(store.folder, tmp_path / "dest", *(["-x", "a b"] if plain(store) else []))
    assert store.origin.given == result["origin_bytes"] == result["bytes"]
    status, result = run(store, tmp_path, "pull", store.source, str(tmp_path / "dest"), *plain(store))
    assert (status, result["origin_bytes"]) == (0, 0)
    assert store.origin.given == result["bytes"], "not a byte more"


def test_what_a_busy_store_gets(store, tmp_path):
    store.origin.fault = lambda request: "Range" in request.headers and fault(request)
    fault = throttled(3)
    status, result = run(store, tmp_path, "pull", store.source, str(tmp_path / "dest"), *plain(store))
    assert status == 0, [f["message"] for f in result.get("findings", [])] or result["error"]
    assert same(store.folder, tmp_path / "dest", *(["-x", "a b"] if plain(store) else []))
    assert store.origin.given == result["bytes"]
    assert result["retries"] > 0


def test_a_bit_that_flips_between_store_and_node_is_found_by_the_stores_own_digest(store, tmp_path):
    """Length and ETag are right, and no TLS is between: only the digest that the store keeps can tell."""

    def flip(request, data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:] if request.path.partition("?")[0].endswith("small/7") else data

    dest = tmp_path / "dest"
    words = ["pull", store.source, str(dest), *plain(store), "--verify"]
    store.origin.changed = flip
    status, result = run(store, tmp_path, *words)
    assert (status, result["origin_bytes"]) == (3, result["bytes"]), result
    assert {f["code"] for f in result["findings"] if f["verdict"] == "fail"} == {"weights/wrong-bytes"}
    assert list(result["wrong"]) == ["small/7"]
    assert result["compared"] >= 40, "each of the small files; a large one may have none, as it came in parts"
    assert sorted(p.name for p in dest.iterdir()) == [".fairlead"], "nothing was published"
    store.origin.changed = lambda _, data: data
    status, result = run(store, tmp_path, *words)
    assert (status, result["wrong"]) == (0, {}), result
    assert result["origin_bytes"] < MIB, "what was wrong is fetched again, in its pack, and the rest is not"
    assert same(store.folder, dest, *(["-x", "a b"] if plain(store) else []))


@pytest.mark.parametrize("store", ["s3"], indirect=True, scope="module")
def test_an_object_that_came_in_parts_is_compared_by_the_crc_that_s3_keeps_of_it(store, tmp_path):
    """Its ETag is no digest, so nothing else of the store's tells one byte from another."""
    pytest.importorskip("awscrt", reason="missing: pip install awscrt")
    import boto3
    from boto3.s3.transfer import TransferConfig

    made, dest = tmp_path / "made", tmp_path / "dest"
    made.mkdir()
    (made / "model.bin").write_bytes(random.Random(12).randbytes(11 * MIB + 5))
    client = boto3.client(
        "s3", endpoint_url=store.origin.url, region_name="us-east-1",
        aws_access_key_id=store.env["AWS_ACCESS_KEY_ID"], aws_secret_access_key=store.env["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    more = {"ChecksumAlgorithm": "CRC64NVME"}
    client.upload_file(str(made / "model.bin"), "models", "parts/model.bin", ExtraArgs=more, Config=parts)
    words = ["pull", "s3://models/parts", str(dest), "--verify"]

    def flip(request, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if "Range" in request.headers else data

    store.origin.changed = flip
    status, result = run(store, tmp_path, *words)
    assert (status, list(result["wrong"])) == (3, ["model.bin"]), result
    assert "the store says crc64nvme:" in result["wrong"]["model.bin"]
    store.origin.changed = lambda _, data: data
    hidden = tmp_path / "hidden" / "awscrt"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError")
    status, result = run(store, tmp_path, *words, env={"PYTHONPATH": str(hidden.parent)})
    assert (status, result["compared"], result["not_compared"]) == (0, 0, 1), result
    assert "weights/no-crc" in {f["code"] for f in result["findings"]}
    status, result = run(store, tmp_path, *words, "--compare", "none")
    assert (status, result["compared"], result["not_compared"]) == (0, 1, 0), result
    assert same(made, dest)


@pytest.mark.slow
def test_of_a_version_with_a_manifest_the_store_gives_only_what_changed(store, tmp_path):
    made, dest, source = tmp_path / "made", tmp_path / "dest", store.source.replace("one", "two")
    made.mkdir()
    data = bytearray((store.folder / "model.safetensors").read_bytes())
    for version in range(2):
        data[9 * MIB] ^= version  # a byte; every ETag is another, as everything is uploaded again
        (made / "model.bin").write_bytes(data)
        assert run(store, tmp_path, "manifest", str(made))[0] == 0
        store.fill(made, "team/two")
        store.origin.given = 0
        status, result = run(store, tmp_path, "pull", source, str(dest))
        assert status == 0, result["findings"]
        assert same(made, dest)
    manifest = (made / "fairlead.manifest.json").stat().st_size
    assert result["origin_bytes"] == result["chunk_bytes"] + manifest
    assert store.origin.given <= result["origin_bytes"] + manifest, "it is read once more where the command runs"


def test_ls_needs_no_node(store, tmp_path):
    status, result = run(store, tmp_path, "ls", store.source, "--include", "small/*")
    assert status == 0
    assert sorted(o["path"] for o in result["objects"]) == sorted(f"small/{i}" for i in range(40))


@pytest.mark.parametrize("store", ["azure"], indirect=True, scope="module")  # moto checks no credentials
def test_wrong_credentials_and_a_wrong_container_are_said_in_seconds(store, tmp_path):
    wrong = {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}
    began = time.monotonic()
    run(store, tmp_path, "ls", str(store.folder))
    start_s = time.monotonic() - began  # of the command itself, on a machine that may be busy
    for words, env, code in (
        (["ls", store.source], wrong, "weights/denied"),
        (["pull", store.source, str(tmp_path / "d")], wrong, "weights/denied"),
        (["ls", store.source.replace("models", "nowhere")], {}, "weights/no-origin"),
    ):
        began = time.monotonic()
        status, result = run(store, tmp_path, *words, env=env)
        assert (result["error"]["code"], status in (4, 5)) == (code, True), result
        assert time.monotonic() - began < 5 + start_s
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("store", ["azure"], indirect=True, scope="module")  # which has SAS alone
def test_a_sas_token_is_used_as_it_is_and_shown_nowhere(store, tmp_path):
    token = azure_sas("models")
    env = {"AZURE_STORAGE_ACCOUNT_KEY": "", "AZURE_STORAGE_SAS_TOKEN": token}
    status, result = run(store, tmp_path, "pull", store.source, str(tmp_path / "dest"), env=env)
    assert status == 0, [f["message"] for f in result.get("findings", [])] or result["error"]
    assert same(store.folder, tmp_path / "dest"), "names of all sorts, too"
    status, result = run(store, tmp_path, "pull", store.source, str(tmp_path / "other"))
    assert (status, result["error"]["code"]) == (2, "weights/unsignable")
    signature = token.partition("sig=")[2].partition("&")[0]
    kept = "".join(p.read_text(errors="replace") for p in (tmp_path / "runs").rglob("*") if p.is_file())
    assert signature not in kept + json.dumps(result)
