"""From a cluster file to a cluster: which backend, with what settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairlead.cluster.backend import Backend
from fairlead.cluster.engine import Engine
from fairlead.cluster.face import Cluster
from fairlead.cluster.fanout import Watcher
from fairlead.cluster.protocol import Recorder
from fairlead.cluster.table import Kubernetes, Slurm
from fairlead.records.runs import default_place
from fairlead.spec.model import Spec


def connect(
    spec: Spec,
    *,
    folder: Path | None = None,
    recorder: Recorder | None = None,
    watch: Watcher | None = None,
    note: Callable[[str], object] = lambda _: None,
) -> Cluster:
    """The cluster a file describes, for callers without an event loop; its `aio` is for those with one.

    `folder` takes what a backend leaves behind, such as a batch script; `recorder` hears of every call, `watch` how far
    a call is, `note` what is waited for. Nothing is contacted before the first call.
    """
    pools = {node: pool for pool in spec.pools for node in pool.nodes}
    engine = Engine(
        _backend(spec, folder or default_place(), note),
        fanout=spec.access.fanout,
        python_of=lambda node: pools[node].python,
        known=spec.nodes,
        recorder=recorder,
        watch=watch,
    )
    return Cluster(engine)


def _backend(spec: Spec, folder: Path, note: Callable[[str], object]) -> Backend:
    """Imports only the one that is used."""
    access, slurm = spec.access, spec.table(Slurm)
    match access.via:
        case "local":
            from fairlead.cluster.local import LocalBackend

            return LocalBackend()
        case "ssh":
            from fairlead.cluster.ssh import SshBackend

            return SshBackend(
                user=access.user,
                connect_timeout_s=access.connect_timeout_s,
                login_timeout_s=access.login_timeout_s,
                options=access.ssh_options,
            )
        case "slurm":
            from fairlead.cluster.slurm import Ask, SlurmBackend

            ask = Ask(
                partition=slurm.partition,
                account=slurm.account,
                reservation=slurm.reservation,
                minutes=slurm.time_limit_min,
                pending_s=slurm.pending_s,
                options=slurm.options,
                step_options=slurm.step_options,
                container=slurm.container,
                containers={node: pool.container for pool in spec.pools if pool.container for node in pool.nodes},
                mounts=slurm.container_mounts,
                runtime=slurm.container_runtime,
            )
            return SlurmBackend(ask, folder=folder, note=note)
        case "lab":
            from fairlead.cluster.lab import LabBackend

            return LabBackend(spec.table("lab").name or spec.cluster.name)
        case "kubernetes":
            from fairlead.cluster.kubernetes import KubernetesBackend

            return KubernetesBackend(spec.table(Kubernetes), reach_s=access.connect_timeout_s + access.login_timeout_s)
