"""The backends a test can ask the same things of: this machine, OpenSSH on the loopback, a private Slurm."""

from __future__ import annotations

import secrets

import pytest

from fairlead.cluster.slurm import Ask, SlurmBackend
from support.backends import LOCAL, World
from support.slurm import PrivateSlurm
from support.sshd import PrivateSshd


@pytest.fixture
def mark() -> str:
    """A number of seconds to sleep that no other process sleeps."""
    return f"86{secrets.randbelow(10**9):09}.5"


@pytest.fixture(scope="session")
def sshd():
    server = PrivateSshd()
    server.start()
    yield server
    server.stop()
    assert server.processes() == []


@pytest.fixture(scope="session")
def slurm():
    slurm = PrivateSlurm(4)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
    assert slurm.processes() == []


@pytest.fixture(scope="session")
def ssh_world(sshd) -> World:
    return World("ssh", "n[1-4]", sshd.backend, sshd.source())


@pytest.fixture(scope="session")
def slurm_world(slurm, tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("run")
    ask = Ask(pending_s=30)
    source = (
        "from fairlead.cluster.slurm import Ask, SlurmBackend; from pathlib import Path\n"
        f"backend = SlurmBackend(Ask(pending_s=30), folder=Path({str(folder)!r}))"
    )
    return World(
        "slurm",
        "n[1-4]",
        lambda: SlurmBackend(ask, folder=folder, environ=slurm.env),
        source,
        {"SLURM_CONF": slurm.env["SLURM_CONF"]},
    )


@pytest.fixture(
    params=[
        "local",
        pytest.param("ssh", marks=pytest.mark.requires("ssh", "sshd", "root")),
        pytest.param("slurm", marks=pytest.mark.requires("slurm", "munge", "root")),
    ]
)
def world(request) -> World:
    """Each backend in turn."""
    return LOCAL if request.param == "local" else request.getfixturevalue(f"{request.param}_world")
