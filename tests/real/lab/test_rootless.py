"""A lab of an ordinary user: one user namespace holds all of it, and nothing of the machine is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import fairlead

pytestmark = [pytest.mark.real, pytest.mark.requires("userns", "srv6", "tbf", "nft")]

NOBODY = 65534
STORY = """
import json, os, subprocess, sys
from fairlead.cluster.enter import into_host, into_netns, running
from fairlead.errors import FairleadError
from fairlead.lab import status
from fairlead.lab.faults.apply import heal, inject
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down, up

shape = LabShape(name="mine")
out = {"uid": os.getuid()}
state = up(shape)
out["rootless"] = state.is_rootless

def on(host, script):
    state = running("mine")
    words = into_host(state, state.host(host), ["sh", "-c", script])
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    return (done.stdout + done.stderr).strip()

CALL = '''python3 -c "
import socket, threading
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(1)
s.connect((%r, 9)); s.send(b'x')
try: s.recv(1)
except ConnectionRefusedError: print('reached')
except TimeoutError: print('silence')
"'''
try:
    n3 = state.host("n3")
    out["whoami"] = on("n1", "id -u; hostname; nvidia-smi -L | wc -l; ls /sys/class/infiniband | wc -l").split()
    out["reached"] = on("n0", CALL % n3.fabric)
    out["private"] = on("n1", "echo x >/etc/made-here; cat /etc/made-here; df --output=size -m /tmp | tail -1").split()
    inject("mine", "silent-drop", "p*/n3", {})
    out["dropped"] = on("n0", CALL % n3.fabric)
    heal("mine", "all")
    inject("mine", "link-down", "p0/n0", {})
    out["carrier"] = on("n0", "cat /sys/class/net/eth1/carrier")
    inject("mine", "node-hung", "n2", {})
    out["hung"] = {h.name: h.state for h in status.read(running("mine")).hosts}
    heal("mine", "node-hung")
    out["awake"] = {h.name: h.state for h in status.read(running("mine")).hosts}
    inject("mine", "node-dead", "n2", {})
    out["dead"] = {h.name: h.state for h in status.read(running("mine")).hosts}
    heal("mine", "all")
    out["booted"] = on("n2", "hostname")
    inject("mine", "disk-full", "n1", {})
    out["full"] = on("n1", "df --output=pcent /tmp | tail -1")
    inject("mine", "missing-hca", "n1", {"hca": "mlx5_1"})
    out["hcas"] = on("n1", "ls /sys/class/infiniband").split()
    try:
        inject("mine", "slow-node", "n1", {})
        out["slow"] = "slowed"
    except FairleadError as error:
        out["slow"] = error.code
    heal("mine", "all")
    words = into_netns(running("mine"), "p0-t0-0", ["ip", "-6", "route"])
    out["switch"] = subprocess.run(words, capture_output=True, text=True).stdout
finally:
    out["down"] = down("mine")
for service in ({"sshd": True}, {"slurm": True}):
    try:
        up(LabShape(name="mine", **service))
    except FairleadError as error:
        out["service"] = [error.code, str(error)]
out["left"] = [e for e in os.listdir("/proc") if e.isdigit() and os.access(f"/proc/{e}/cmdline", os.R_OK)
               and open(f"/proc/{e}/cmdline").read().rstrip("\\0").endswith("mine")]
print(json.dumps(out))
"""


def python_for_all() -> str:
    """A Python that an ordinary user may start; the one of the tests may live in root's home."""
    # it starts itself once more: the first start still has root's right to look into root's home
    again = (
        "import subprocess, sys; sys.exit(sys.version_info < (3, 11) or subprocess.call([sys.executable, '-c', '']))"
    )
    for found in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if found and subprocess.run(as_user([found, "-c", again]), capture_output=True).returncode == 0:
            return found
    pytest.skip("needs a Python that an ordinary user may start")


def as_user(words: list[str]) -> list[str]:
    """Words to be said as nobody, without any right; as ourselves if we are ordinary already."""
    if os.geteuid():
        return words
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return ["setpriv", *ids, "--", *words]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict:
    """What an ordinary user saw of a lab of its own."""
    home = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    if not os.geteuid():
        os.chown(home, NOBODY, NOBODY)
    packages = [str(Path(fairlead.__file__).parents[1]), sysconfig.get_path("purelib")]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(home), "PYTHONPATH": ":".join(packages)}
    try:
        done = subprocess.run(
            as_user([python_for_all(), "-c", STORY]), env=env, capture_output=True, text=True, timeout=240, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        found["home"] = [str(p) for p in home.rglob("*") if p.is_file()]
        return found
    finally:
        shutil.rmtree(home)


def test_it_is_built_without_any_right(told):
    assert told["uid"] != 0
    assert told["rootless"]


def test_hosts_are_whole(told):
    assert told["whoami"] == ["0", "n1", "2", "4"]
    assert told["private"] == ["x", "256"]
    assert not Path("/etc/made-here").exists()
    assert told["reached"] == "reached"


def test_the_fabric_is_the_kernels(told):
    assert "seg6local action End flavors next-csid" in told["switch"]


def test_faults_work(told):
    assert told["dropped"] == "silence"
    assert told["carrier"] == "0"
    assert told["hung"] == {"n0": "up", "n1": "up", "n2": "hung", "n3": "up"}
    assert told["awake"]["n2"] == "up"
    assert told["dead"]["n2"] == "dead"
    assert told["booted"] == "n2"
    assert told["full"] == "100%"
    assert told["hcas"] == ["mlx5_0", "mlx5_2", "mlx5_3"]


def test_what_an_ordinary_user_cannot_have_is_said_plainly(told):
    assert told["slow"] in ("lab/no-cpu-cgroup", "slowed")
    assert told["service"][0] == "lab/service-needs-root"


def test_nothing_is_left(told):
    assert told["down"] is True
    assert told["left"] == []
    assert told["home"] == []
