"""A spread whose nodes are reached by OpenSSH: the user's ssh, and a real sshd on every host of a lab.

The way to each sshd is a ProxyCommand that starts it there (`sshd -i`), as the hosts' management network is the lab's
own. Chunks go between hosts over the lab's planes.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import into_host, running
from support.injector import FAIRLEAD, World
from support.origins import Origin
from support.spreads import NAME, digest_of, digest_on, serving_hosts
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "ssh", "sshd"),
]
SIZE = (24 << 20) + 11
CONF = """
HostKey {own}/host_key
AuthorizedKeysFile {own}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    with world(hosts=4, gpus=1, planes=2, rate_mbps=200) as made:
        yield made


@pytest.fixture(scope="module")
def own(lab) -> Iterator[Path]:
    """Keys, settings of sshd and the way to it, where hosts see them: their /tmp is their own."""
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".ssh-") as place:
        made = Path(place)
        for name in ("host_key", "user_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made / name)]
            subprocess.run(words, check=True, timeout=30)
        (made / "known_hosts").write_text(f"lab-host {(made / 'host_key.pub').read_text()}")
        (made / "sshd_config").write_text(CONF.format(own=made))
        sshd = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        state = running(lab.name)
        start = f"mkdir -p /run/sshd; exec {sshd} -i -e -f {made}/sshd_config 2>>{made}/log"
        rows = [
            f"{host}) exec {shlex.join(into_host(state, state.host(host), ['sh', '-c', start]))};;"
            for host in lab.nodes
        ]
        (made / "way").write_text('#!/bin/sh\ncase "$1" in\n' + "\n".join(rows) + "\nesac\nexit 1\n")
        (made / "way").chmod(0o755)
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / NAME).write_bytes(random.Random(23).randbytes(SIZE))
    return made


@pytest.fixture
def origin(lab, model) -> Iterator[Origin]:
    with serving_hosts(lab, model) as made:
        yield made


def file_of(lab: World, own: Path, tmp_path: Path, **changes: str) -> Path:
    """The same nodes, by ssh."""
    settings = {
        "ProxyCommand": f"{own}/way %n",
        "IdentityFile": f"{own}/user_key",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": f"{own}/known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": "lab-host",
        "StrictHostKeyChecking": "yes",
        **changes,
    }
    options = json.dumps([f"{name}={value}" for name, value in settings.items()])
    made = tmp_path / "site.toml"
    made.write_text(
        f'schema = 1\n[access]\nvia = "ssh"\nuser = "root"\nssh_options = {options}\n'
        f'[[pool]]\nname = "p"\nsize = "other"\nnodes = "n[0-{len(lab.nodes) - 1}]"\npython = "{sys.executable}"\n'
        '[fabric]\nlink = "ethernet"\nrdma = "none"\n'
    )
    return made


def spread(file: Path, source: str, dest: str) -> tuple[int, dict]:
    words = ["weights", "spread", source, dest, "-f", str(file), "--json", "--runs", str(file.parent / "r")]
    done = subprocess.run([*FAIRLEAD, *words], capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_every_node_has_it_by_ssh_and_each_byte_left_the_origin_once(lab, own, origin, model, tmp_path):
    file = file_of(lab, own, tmp_path)
    status, result = spread(file, f"{origin.url}/{NAME}", "/tmp/ssh-one")
    assert status == 0, (result.get("error") or result["findings"], (own / "log").read_text()[-2000:])
    assert result["complete"] == "n[0-3]"
    assert {digest_on(lab, host, "/tmp/ssh-one") for host in lab.nodes} == {digest_of(model)}
    assert origin.given == result["origin_bytes"] == SIZE
    assert result["peer_bytes"] == 3 * SIZE
    assert "Accepted publickey for root" in (own / "log").read_text(), "it was a real login"
    status, again = spread(file, f"{origin.url}/{NAME}", "/tmp/ssh-one")
    assert (status, again["origin_bytes"], again["peer_bytes"]) == (0, 0, 0)


def test_a_node_that_lets_nobody_in_is_named_and_the_others_have_it(lab, own, origin, model, tmp_path):
    way = own / "way"
    text = way.read_text()
    closed = tmp_path / "way"
    closed.write_text(text.replace("n1) exec", "n1) exit 1; exec"))
    closed.chmod(0o755)
    status, result = spread(
        file_of(lab, own, tmp_path, ProxyCommand=f"{closed} %n"), f"{origin.url}/{NAME}", "/tmp/ssh-two"
    )
    assert (status, result["complete"]) == (3, "n[0,2-3]"), result.get("error") or result["findings"]
    (bad,) = [f for f in result["findings"] if f["verdict"] in ("fail", "unknown")]
    assert bad["subject"]["nodes"] == ["n1"]
    assert {digest_on(lab, host, "/tmp/ssh-two") for host in ("n0", "n2", "n3")} == {digest_of(model)}
    assert origin.given == SIZE
