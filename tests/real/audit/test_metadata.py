"""`fairlead audit` as a user runs it, on a machine that shows itself as Azure's, beside a metadata service gone wrong.

Each service listens on the well-known address in a network of its own; the machine's asset tag is the one that Azure's
boards carry (learn.microsoft.com, azure/virtual-machines/instance-metadata-service), in a mount of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.probe.readers.imds import AZURE_TAG

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns")]

SERVICE = """
import os, socket, sys, threading, time
HEAD = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n"
def whole(body): return HEAD + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body
ANSWERS = {
    "well": lambda asked: whole(b'{"Events": []}' if b"events" in asked else b'{"vmId": "v"}'),
    "junk": lambda asked: os.urandom(400),
    "shape": lambda asked: whole(b'{"Events": {"EventId": 7}}' if b"events" in asked else b"[]"),
    "refuses": lambda asked: ANSWERS["well"](asked).replace(b"200 OK", b"500 Internal Server Error", 1),
    "endless": lambda asked: HEAD + b"\\r\\n" + b"[" * (8 << 20),
}
def serve(peer):
    asked = peer.recv(4096)
    try:
        if sys.argv[1] == "silent":
            time.sleep(60)
        elif sys.argv[1] == "slow":
            for byte in whole(b"{}"):
                peer.send(bytes([byte])); time.sleep(0.5)
        else:
            peer.sendall(ANSWERS[sys.argv[1]](asked))
    except OSError:
        pass
    peer.close()
with socket.create_server(("169.254.169.254", 80)) as listener:
    open(sys.argv[2], "w").close()
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
CLUSTER = """
schema = 1
[access]
via = "local"
[[pool]]
name = "here"
size = "other"
nodes = "localhost"
"""
CODE = "host/scheduled-event"
EXPECTED = {
    "well": ("pass", "nothing is scheduled"),
    "junk": ("skip", "no answer"),
    # on a machine that is busy the whole probe may be out of time before the request is
    "silent": ("skip|unknown", "no answer: timed out|no answer within"),
    "slow": ("unknown", "no answer within"),
    "shape": ("unknown", "is not the JSON it should be"),
    "refuses": ("unknown", "answers with status 500"),
    "endless": ("unknown", "is not the JSON it should be"),
}
"""Service -> what becomes of it: nobody may be let pass. No answer at all may be a firewall's, so it is shown and
skipped, as for who lacks a right.
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """An audit beside each service, all at once: they wait more than they work."""
    folder = tmp_path_factory.mktemp("metadata")
    (folder / "service.py").write_text(SERVICE)
    (folder / "cluster.toml").write_text(CLUSTER)
    fairlead = shutil.which("fairlead", path=str(Path(sys.executable).parent))
    running = {}
    for name in EXPECTED:
        script = f"""
        mount -t tmpfs none /sys/class && mkdir -p /sys/class/dmi/id
        echo {AZURE_TAG} > /sys/class/dmi/id/chassis_asset_tag
        ip link set lo up; ip addr add 169.254.169.254/32 dev lo
        {sys.executable} {folder}/service.py {name} {folder}/{name}.ready & service=$!
        trap 'kill $service' EXIT
        for _ in $(seq 600); do test -e {folder}/{name}.ready && break; sleep 0.05; done
        timeout 100 {fairlead} audit --json --spec {folder}/cluster.toml --runs {folder}/{name} -w localhost
        """
        argv = ["unshare", "-n", "-m", "bash", "-c", script]
        running[name] = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    done = {}
    for name, child in running.items():
        out, errors = child.communicate(timeout=150)
        done[name] = subprocess.CompletedProcess(child.args, child.returncode, out, errors)
    return done


@pytest.mark.parametrize("name", EXPECTED)
def test_a_metadata_service_gone_wrong_is_never_a_pass(
    name: str, answers: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    done = answers[name]
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 3, 4), done.stderr
    (found,) = [f for f in json.loads(done.stdout)["findings"] if f["code"] == CODE]
    likely = zip(*(words.split("|") for words in EXPECTED[name]), strict=True)
    assert any(found["verdict"] == verdict and words in found["message"] for verdict, words in likely), found["message"]
