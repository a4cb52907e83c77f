"""A real Kubernetes for tests: built once a machine (`build.py`), started by a fixture, gone at the end.

| file | knows |
|---|---|
| `build.py` | the programs: from Debian's source and packages into the user's cache; `make kube` |
| `control.py` | etcd, API server, controller manager, scheduler on the loopback; nodes that are only declared |
| `inside.py`, `node.py` | a real node: namespaces, containerd, kubelet, images without a registry |
| `plugin.py` | a device plugin that advertises GPUs or RDMA ports to that kubelet |
| `client.py` | applying, reading, waiting for objects |
| `crds.py` | the operators' own kinds |

`requires("kube")` is for tests of the control plane, `requires("kubelet")` for those that need the node as well.
"""

from __future__ import annotations

from support.kube.build import look


def look_for_node() -> tuple[bool, str]:
    """Whether the real node can run here."""
    from support.kube.inside import look as look_inside

    is_there, detail = look()
    return look_inside() if is_there else (is_there, detail)


__all__ = ["look", "look_for_node"]
