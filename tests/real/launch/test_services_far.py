"""Services on nodes reached by a real OpenSSH and by steps of a real Slurm."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from fairlead.cluster import Cluster
from fairlead.cluster.engine import Engine
from fairlead.cluster.slurm import Ask, SlurmBackend
from fairlead.launch.service import Service, deploy, status, stop
from support.services import TALKER, is_alive
from support.slurm import PrivateSlurm
from support.sshd import PrivateSshd

pytestmark = pytest.mark.real

NAME = "far-talk"


def talker() -> Service:
    return Service(name=NAME, source=TALKER % "8640005.25")


@pytest.mark.requires("ssh", "sshd", "root")
def test_over_ssh_it_outlives_the_connection():
    server = PrivateSshd()
    server.start()
    try:
        with Cluster(Engine(server.backend())) as cluster:
            found = deploy(cluster, "n[1-2]", talker(), python=sys.executable)
            assert [(s.node, s.state, s.manager) for s in found] == [
                ("n1", "running", "supervisor"), ("n2", "running", "supervisor"),
            ], found  # fmt: skip
        time.sleep(1.0)
        assert all(is_alive(s.pid) for s in found)
        with Cluster(Engine(server.backend())) as cluster:
            assert {s.pid for s in status(cluster, "n[1-2]", NAME)} == {s.pid for s in found}
    finally:
        with Cluster(Engine(server.backend())) as cluster:
            ended = stop(cluster, "n[1-2]", NAME)
        server.stop()
    assert all(s.ok for s in ended)
    assert not any(is_alive(s.pid) for s in found)


@pytest.mark.requires("slurm", "munge", "root")
def test_a_step_of_slurm_cannot_keep_it_and_says_what_can(tmp_path):
    slurm = PrivateSlurm(1)
    try:
        slurm.start()
        backend = SlurmBackend(Ask(pending_s=30), folder=tmp_path, environ=slurm.env)
        with Cluster(Engine(backend)) as cluster:
            (found,) = deploy(cluster, "n1", talker(), python=sys.executable)
            assert (found.state, found.ok) == ("unknown", False)
            assert "step of Slurm job" in found.error
            assert 'via = "ssh"' in found.hint
            (seen,) = status(cluster, "n1", NAME)
            assert seen.state == "absent"
            assert not list(Path("/var/lib/fairlead/services/n1").glob(f"{NAME}*")), "a refused service left something"
    finally:
        slurm.stop()
