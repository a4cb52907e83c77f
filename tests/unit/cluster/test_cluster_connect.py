"""From the cluster file to a backend: what the file says must arrive."""

from __future__ import annotations

import fairlead
from fairlead.cluster.connection import connect
from fairlead.cluster.kubernetes import KubernetesBackend
from fairlead.cluster.lab import LabBackend
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.slurm import Ask, SlurmBackend
from fairlead.cluster.ssh import SshBackend
from fairlead.cluster.table import Kubernetes

FILE = """
schema = 1
[access]
via = "{via}"
fanout = 7
{more}
[[pool]]
name = "a"
size = "{size}"
nodes = "n[1-2]"
python = "/opt/a/python"
[[pool]]
name = "b"
size = "{size}"
nodes = "m[1-2]"
"""


def connected(tmp_path, via: str, more: str = "", size: str = "other"):
    file = tmp_path / "cluster.toml"
    file.write_text(FILE.format(via=via, more=more, size=size))
    with connect(fairlead.load(file), folder=tmp_path) as cluster:
        return cluster.aio


def test_what_all_backends_are_told(tmp_path):
    engine = connected(tmp_path, "local")
    assert isinstance(engine._backend, LocalBackend)
    assert engine._fanout == 7
    assert str(engine._known) == "m[1-2],n[1-2]"
    assert (engine._python_of("n2"), engine._python_of("m1")) == ("/opt/a/python", "python3")


def test_ssh(tmp_path):
    more = 'user = "azureuser"\nconnect_timeout_s = 4.0\nlogin_timeout_s = 90.0\nssh_options = ["Port=2222"]'
    backend = connected(tmp_path, "ssh", more)._backend
    assert isinstance(backend, SshBackend)
    argv = backend.wrap("n1", ["true"])
    assert argv.index("Port=2222") < argv.index("ConnectTimeout=4")
    assert argv[argv.index("-l") + 1] == "azureuser"
    assert backend.reach_s == 94, "a slow login has its own limit, whatever ssh's own for the connection"


def test_slurm(tmp_path):
    more = """
[slurm]
partition = "gpu"
account = "ops"
reservation = "maint"
options = ["--exclusive", "--gres=gpu:8"]
time_limit_min = 30
pending_s = 5.0
container = "/i.sif"
container_runtime = "apptainer"
"""
    backend = connected(tmp_path, "slurm", more)._backend
    assert isinstance(backend, SlurmBackend)
    assert backend._folder == tmp_path
    assert backend._ask == Ask(
        partition="gpu", account="ops", reservation="maint", minutes=30, pending_s=5.0,
        options=("--exclusive", "--gres=gpu:8"), container="/i.sif", runtime="apptainer",
    )  # fmt: skip


def test_lab(tmp_path):
    assert isinstance(connected(tmp_path, "lab", size="lab")._backend, LabBackend)


def test_kubernetes(tmp_path):
    limits = "connect_timeout_s = 4.0\nlogin_timeout_s = 90.0\n"
    more = limits + '[kubernetes]\nnamespace = "jobs"\nselector = "app=fairlead"\ncontainer = "main"\ncontext = "aks"\n'
    backend = connected(tmp_path, "kubernetes", more)._backend
    assert isinstance(backend, KubernetesBackend)
    assert backend._settings == Kubernetes(namespace="jobs", selector="app=fairlead", container="main", context="aks")
    assert backend.reach_s == 94
