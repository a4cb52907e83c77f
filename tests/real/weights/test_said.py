"""What a person at a terminal reads when a source or a destination is wrong: one sentence, what to do next, the exit
code. Servers, mounts and name resolution are real; nothing is read from the JSON."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.certificates import certificate
from support.injector import FAIRLEAD
from support.origins import refused, serving
from support.stores import azure_env, azurite, s3, s3_env

pytestmark = pytest.mark.real
MIB = 1 << 20
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "fairlead0test", "AZURE_STORAGE_ACCOUNT_KEY": "AAAA"}
S3 = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
NOTHING_SET = ("AZURE_", "AWS_", "GOOGLE_", "HF_", "FAIRLEAD_WEIGHTS_")


@pytest.fixture
def said(tmp_path):
    """Calls a verb of `weights` in text mode; (exit status, all that is on the terminal)."""

    def call(*words: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None) -> tuple[int, str]:
        more = ["--runs", str(tmp_path / "runs")] if words[0] in ("pull", "spread", "verify") else []
        clean = {k: v for k, v in os.environ.items() if not k.startswith(NOTHING_SET)}
        argv = [*before, *FAIRLEAD, "weights", *words, *more]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**clean, **(env or {})})
        assert "Traceback" not in done.stderr
        assert "\nnext     " in done.stderr or done.stderr.startswith("next"), "what to do is said"
        return done.returncode, done.stdout + done.stderr

    return call


@pytest.fixture
def model(tmp_path) -> Path:
    made = tmp_path / "served"
    made.mkdir()
    (made / "a.bin").write_bytes(os.urandom(3 * MIB))
    return made


@contextlib.contextmanager
def plain_http(folder: Path, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """What `python -m http.server` runs: no byte ranges."""

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_server_without_ranges_is_refused_before_anything_is_fetched_and_the_folder_way_works(said, model, tmp_path):
    with plain_http(model) as port:
        status, text = said("pull", f"http://127.0.0.1:{port}/a.bin", str(tmp_path / "d"))
        assert (status, (tmp_path / "d").exists()) == (4, False)
        assert "this server gives no byte ranges, and the file takes more than one request" in text
        hint = re.search(r"next     (curl .*); then FOLDER as the source", text)[1]
        subprocess.run(hint.replace("FOLDER", str(tmp_path / "got")).split(), check=True, capture_output=True)
    argv = [*FAIRLEAD, "weights", "pull", str(tmp_path / "got"), str(tmp_path / "d"), "--runs", str(tmp_path / "r")]
    assert subprocess.run(argv, capture_output=True).returncode == 0
    assert (tmp_path / "d/a.bin").read_bytes() == (model / "a.bin").read_bytes()


def test_addresses_that_lead_nowhere(said, model):
    with plain_http(model) as port:
        here = f"127.0.0.1:{port}"
        for source, status, text in (
            (f"http://{here}/none.bin", 4, f"{here} has nothing at http://{here}/none.bin: 404"),
            (f"https://{here}/a.bin", 4, f"{here} does not speak TLS"),
            ("http://127.0.0.1:1/a.bin", 5, "nothing listens at 127.0.0.1:1"),
            ("http://fairlead.invalid/a.bin", 5, "the name fairlead.invalid is not known here"),
            ("ftp://h/a", 2, "no source is called `ftp://`"),
            ("/nowhere/at/all", 2, "/nowhere/at/all is no folder here"),
        ):
            found, said_ = said("ls", source)
            assert (found, text in said_) == (status, True), (source, said_)


@pytest.mark.requires("obstore")
def test_stores_that_lead_nowhere(said):
    for source, env, status, text in (
        ("az://c/x", AZURE, 5, "the name fairlead0test.blob.core.windows.net is not known here"),
        ("az://c/x", {}, 2, "no storage account is named"),
        ("az://c/x", {**AZURE, "AZURE_STORAGE_ACCOUNT_KEY": "no!"}, 2, "AZURE_STORAGE_ACCOUNT_KEY is no account key"),
        ("s3://b/x", {**S3, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, 5, "nothing listens at 127.0.0.1:1"),
        ("gs://b/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere"}, 2, "these credentials cannot be used"),
        ("s3://", {}, 2, "it names no container and no bucket"),
    ):
        found, said_ = said("ls", source, env=env)
        if text.startswith("the name") and "is not known" not in said_:
            continue  # where names of the public network resolve, somebody else answers
        assert (found, text in said_) == (status, True), (source, said_)


@pytest.mark.requires("obstore")
def test_a_certificate_that_nobody_signed(said, model, tmp_path):
    made = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    with plain_http(model, context) as port:
        for source, env in (
            (f"https://127.0.0.1:{port}/a.bin", {}),
            ("s3://b/x", {**S3, "AWS_ENDPOINT_URL": f"https://127.0.0.1:{port}"}),
        ):
            status, text = said("ls", source, env=env)
            assert (status, f"the certificate of 127.0.0.1:{port} is not believed" in text) == (4, True), text
            assert "SSL_CERT_FILE=" in text
        done = [*FAIRLEAD, "weights", "ls", f"https://127.0.0.1:{port}/a.bin"]
        env = {**os.environ, "SSL_CERT_FILE": str(made.authority)}
        assert subprocess.run(done, capture_output=True, env=env).returncode == 0, "what is said to do works"


@pytest.mark.requires("obstore")
def test_a_real_store_that_refuses_and_a_container_that_there_is_not(said):
    with azurite() as port:
        env = azure_env(f"http://127.0.0.1:{port}")
        status, text = said("ls", "az://nowhere/x", env=env)
        assert (status, f"there is no container `nowhere` at 127.0.0.1:{port}" in text) == (4, True), text
        status, text = said("ls", "az://nowhere/x", env={**env, "AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="})
        assert (status, "Azure Blob Storage refuses these credentials: 403 Forbidden" in text) == (4, True), text
        assert "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN" in text
    with s3() as port:
        status, text = said("pull", "s3://nowhere/x", "/tmp/none", env=s3_env(f"http://127.0.0.1:{port}"))
        assert (status, f"there is no bucket `nowhere` at 127.0.0.1:{port}" in text) == (4, True), text


@pytest.mark.requires("root", "netns", "obstore")
@pytest.mark.parametrize(
    ("source", "env"),
    [("az://c/x", {"AZURE_STORAGE_ACCOUNT_NAME": "a"}), ("s3://c/x", {}), ("gs://c/x", {})],
    ids=["az", "s3", "gs"],
)
def test_no_credentials_at_all_are_said_in_seconds_also_where_nothing_answers(said, source, env):
    """In a network in which packets to the cloud's metadata service leave, and nothing comes back."""
    hole = (
        "ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 up && "
        "ip addr add 169.254.1.1/16 dev d0 && "
        'ip neigh add 169.254.169.254 lladdr 02:00:00:00:00:01 dev d0 nud permanent && exec "$@"'
    )
    began = time.monotonic()
    status, text = said("ls", source, before=("unshare", "-n", "sh", "-c", hole, "sh"), env=env)
    took_s = time.monotonic() - began
    assert (status, "are set, and this machine has no identity that gets a token" in text) == (4, True), text
    assert 2.0 < took_s < 5.0 + 4.0, "5 s are the aim, and a busy machine starts Python slowly"


def test_an_object_that_goes_changes_or_is_refused_in_the_run(said, model, tmp_path):
    path = model / "a.bin"
    for status, code, why in (
        (404, "weights/missing", "the origin answers 404 Not Found"),
        (412, "weights/changed", "the object has changed since it was listed"),
        (403, "weights/denied", "the origin refuses: 403 Forbidden"),
    ):
        with serving(model) as origin:
            origin.fault = lambda request, status=status: request.command == "GET" and refused(status)(request)
            found, text = said("pull", f"{origin.url}/{path.name}", str(tmp_path / f"d{status}"))
        assert (found, code in text) == (3, True)
        assert f"1 file could not be had: a.bin; why: {why}" in text, text


@pytest.mark.requires("root")
def test_destinations_that_cannot_be(said, model, tmp_path):
    for options, code, text in (
        ("size=1m", "weights/disk-full", "3 MiB are needed below"),
        ("ro", "weights/read-only", "is on a read-only file system"),
    ):
        place = tmp_path / options
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
        try:
            status, found = said("pull", str(model), str(place / "d"))
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
        assert (status, code in found, text in found) == (3, True, True), found
        assert f"next     {'df -h' if options != 'ro' else 'findmnt -T'} {place}" in found
    (tmp_path / "file").write_text("mine")
    status, found = said("pull", str(model), str(tmp_path / "file"))
    assert (status, f"next     ls -ld {tmp_path}/file" in found) == (3, True), found


def test_a_verify_of_what_was_never_published(said, tmp_path):
    spec = tmp_path / "here.toml"
    spec.write_text(
        'schema = 1\n[[pool]]\nname = "here"\nnodes = "localhost"\nsize = "other"\n'
        f'python = "{sys.executable}"\n[fabric]\nlink = "ethernet"\nrdma = "none"\n[access]\nvia = "local"\n'
    )
    status, text = said("verify", str(tmp_path / "d"), "-f", str(spec))
    assert (status, "weights/no-record" in text) == (3, True)
    assert f"next     fairlead weights spread SOURCE {tmp_path}/d -w localhost" in text


def test_without_extras_folders_and_http_work_and_a_store_says_which_extra_is_missing(said, model, tmp_path):
    """As after a bare `pip install fairlead`: what the extras bring cannot be imported."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in ("obstore", "blake3", "boto3", "awscrt", "yaml", "numpy", "mpi4py"):
        (hidden / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')\n")
    env = {**os.environ, "PYTHONPATH": str(hidden)}
    with serving(model) as origin:
        for words in (
            ("--help",),
            ("ls", str(model)),
            ("ls", f"{origin.url}/a.bin"),
            ("pull", f"{origin.url}/a.bin", str(tmp_path / "d"), "--runs", str(tmp_path / "r")),
            ("pull", str(model), str(tmp_path / "e"), "--runs", str(tmp_path / "r")),
        ):
            done = subprocess.run([*FAIRLEAD, "weights", *words], capture_output=True, text=True, env=env)
            assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "d/a.bin").read_bytes() == (model / "a.bin").read_bytes()
    for source in ("az://c/x", "s3://c/x", "gs://c/x"):
        status, text = said("ls", source, env={"PYTHONPATH": str(hidden)})
        assert (status, "next     pip install 'fairlead[weights]'" in text) == (4, True), text
