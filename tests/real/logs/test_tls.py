"""Collector, owner and questions over TLS, as programs of their own, with an authority made for the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

pytestmark = [pytest.mark.real, pytest.mark.requires("chdb")]
FAIRLEAD = [sys.executable, "-m", "fairlead", "logs"]
LIMIT_S = 30.0


class Secure:
    """An owner with a certificate for `localhost`, and what others believe."""

    def __init__(self, place: Path) -> None:
        self.place, self.store = place, place / "store"
        self.env = os.environ | {"FAIRLEAD_RUNS": str(place / "runs")}
        ours, other = trustme.CA(), trustme.CA()
        ours.cert_pem.write_to_path(place / "ours.pem")
        other.cert_pem.write_to_path(place / "other.pem")
        proof = ours.issue_cert("localhost")
        for blob in proof.cert_chain_pems:
            blob.write_to_path(place / "chain.pem", append=True)
        proof.private_key_pem.write_to_path(place / "key.pem")
        (place / "key.pem").chmod(0o600)
        words = ["--store", self.store, "--certificate", place / "chain.pem", "--key", place / "key.pem"]
        self.owner = self.begin("serve", "--listen", "127.0.0.1:0", *words)
        line = self.owner.stderr.readline().decode()
        assert line.startswith("https://127.0.0.1:"), line
        self.port = int(line.split()[0].rpartition(":")[2])
        self.by = ["--server", f"https://localhost:{self.port}", "--token-file", self.store / "serve.token"]

    def begin(self, *words: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*FAIRLEAD, *map(str, words)], env=self.env, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)  # fmt: skip

    def ask(self, *words: object) -> dict:
        return self.call("query", "Logs | where RawData has 'line' | count", *words)

    def call(self, *words: object) -> dict:
        found = subprocess.run([*FAIRLEAD, *map(str, words), "--json"], env=self.env, capture_output=True,
                               timeout=LIMIT_S)  # fmt: skip
        return json.loads(found.stdout)

    def collect(self, *words: object) -> subprocess.Popen[bytes]:
        folder = self.place / "spool"
        return self.begin("collect", "--folder", folder, "--node", "gpu05", *words, self.place / "a.log")


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Secure]:
    made = Secure(tmp_path)
    yield made
    made.owner.send_signal(signal.SIGTERM)
    made.owner.wait(LIMIT_S)
    made.owner.stderr.close()


@pytest.mark.slow
def test_lines_go_over_tls_to_an_owner_that_is_known_and_to_no_other(secure: Secure):
    (secure.place / "a.log").write_text("2026-11-20T10:00:00Z line 1\n")

    def until(done: object, agent: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert agent.poll() is None, agent.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        agent.terminate()
        agent.wait(LIMIT_S)
        agent.stderr.close()

    def refused() -> bool:
        now = secure.place / "spool" / "now.json"
        return now.exists() and "CERTIFICATE_VERIFY_FAILED" in json.loads(now.read_bytes())["owner"]

    by_address = ["--server", f"https://127.0.0.1:{secure.port}", *secure.by[2:]]
    for words in ([*secure.by, "--authority", secure.place / "other.pem"], secure.by,
                  [*by_address, "--authority", secure.place / "ours.pem"]):  # fmt: skip
        (secure.place / "spool" / "now.json").unlink(missing_ok=True)
        until(refused, secure.collect(*words))
        assert "CERTIFICATE_VERIFY_FAILED" in json.dumps(secure.ask(*words))
    assert secure.ask("--store", secure.store)["rows"] == [[0]], "nothing went to whom nobody could know"
    ours = [*secure.by, "--authority", secure.place / "ours.pem"]
    until(lambda: secure.ask("--store", secure.store)["rows"] == [[1]], secure.collect(*ours))
    assert secure.ask(*ours)["rows"] == [[1]]
    said = secure.begin("collect", *secure.by, "--authority", secure.place / "none.pem", "/x.log")
    _, text = said.communicate(timeout=LIMIT_S)
    assert b"none.pem holds no certificates" in text


def test_a_job_is_diagnosed_by_an_owner_that_is_known_and_by_no_other(secure: Secure):
    words = ["diagnose", 99, *secure.by, "--authority"]
    assert "CERTIFICATE_VERIFY_FAILED" in json.dumps(secure.call(*words, secure.place / "other.pem"))
    assert secure.call(*words, secure.place / "ours.pem")["error"]["code"] == "logs/no-job"
    assert "none.pem holds no certificates" in json.dumps(secure.call(*words, secure.place / "none.pem"))


def test_a_key_that_others_read_or_that_is_not_the_certificates_is_refused(tmp_path: Path):
    authority = trustme.CA()
    one, two = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    one.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    for name, proof, mode, said in (
        ("open", one, 0o644, "can be read by others"),
        ("two", two, 0o600, "no certificate"),
    ):
        key = tmp_path / f"{name}.pem"
        proof.private_key_pem.write_to_path(key)
        key.chmod(mode)
        words = ["--store", tmp_path / "store", "--certificate", tmp_path / "chain.pem", "--key", key]
        found = subprocess.run([*FAIRLEAD, "serve", *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S)
        assert (found.returncode, said in found.stderr) == (2, True), found.stderr
