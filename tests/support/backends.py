"""Every backend that can be had on one machine, under one shape, so that one test can ask the same of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fairlead.cluster import Cluster
from fairlead.cluster.backend import Backend
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend


@dataclass
class World:
    """A way to reach nodes `nodes`, and how another process reaches them too."""

    name: str
    nodes: str
    make: Callable[[], Backend]
    source: str
    """Python that makes the same backend, as the name `backend`."""
    env: dict[str, str] = field(default_factory=dict)

    def cluster(self, **settings) -> Cluster:
        """A cluster over a fresh backend."""
        return Cluster(Engine(self.make(), **settings))


LOCAL = World(
    "local", "n[1-4]", LocalBackend, "from fairlead.cluster.local import LocalBackend\nbackend = LocalBackend()"
)


class Prefixed(LocalBackend):
    """This machine through a prefix: another user, another namespace. All that a new backend needs is a `wrap`."""

    name = "prefixed"

    def __init__(self, *prefix: str) -> None:
        self.prefix = prefix

    def wrap(self, node: str, argv: Sequence[str]) -> list[str]:
        """The prefix, then the command."""
        return [*self.prefix, *argv]


def stand_in(name: str, **labels: str) -> dict:
    """A pod that has this machine's programs, files in /tmp, and nothing else of it."""
    from support.kube.node import IMAGE

    places = {"/tmp": "/tmp", "/etc/passwd": "/etc/passwd"}
    places |= {f"/{name}": f"/usr/{name}" for name in ("bin", "lib", "lib64", "sbin")} | {"/usr": "/usr"}
    container = {
        "name": "c",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "100000"],
        "env": [{"name": "PATH", "value": "/usr/bin:/bin:/usr/sbin"}],
        "volumeMounts": [{"name": f"v{i}", "mountPath": path} for i, path in enumerate(places)],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": f"v{i}", "hostPath": {"path": path}} for i, path in enumerate(places.values())],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
