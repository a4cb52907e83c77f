"""The backends a test can ask the same things of: this machine, OpenSSH on the loopback, a private Slurm, and pods of a
real kubelet."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes import KubernetesBackend
from fairlead.cluster.slurm import Ask, SlurmBackend
from fairlead.cluster.table import Kubernetes
from support.backends import LOCAL, World, stand_in
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


@pytest.fixture(scope="session")
def kubernetes_world() -> Iterator[World]:
    """Four pods, n1 to n4, that have this machine's Python."""
    from support.kube.node import Cluster
    from support.processes import left_after

    if not shutil.which("kubectl"):
        pytest.skip("kubectl is missing: see kubernetes.io/docs/tasks/tools")
    with Cluster() as whole, pytest.MonkeyPatch.context() as patch:
        pods = [stand_in(f"n{number}") for number in range(1, 5)]
        for pod in pods:
            whole.api.apply(pod)
        for pod in pods:
            whole.api.until(pod, lambda found: found["status"].get("phase") == "Running", 120)
        config = str(whole.config("admin"))
        patch.setenv("KUBECONFIG", config)
        source = (
            "from fairlead.cluster.kubernetes import KubernetesBackend\n"
            "from fairlead.cluster.table import Kubernetes\n"
            "backend = KubernetesBackend(Kubernetes())"
        )
        yield World("kubernetes", "n[1-4]", lambda: KubernetesBackend(Kubernetes()), source, {"KUBECONFIG": config})
    assert not left_after(str(whole.root), 20)


@pytest.fixture(
    params=[
        "local",
        pytest.param("ssh", marks=pytest.mark.requires("ssh", "sshd", "root")),
        pytest.param("slurm", marks=pytest.mark.requires("slurm", "munge", "root")),
        pytest.param("kubernetes", marks=[pytest.mark.requires("kube", "kubelet", "root"), pytest.mark.slow]),
    ]
)
def world(request) -> World:
    """Each backend in turn."""
    return LOCAL if request.param == "local" else request.getfixturevalue(f"{request.param}_world")
