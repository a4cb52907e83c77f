"""What a rule can be asked about, and when it applies: both by name, so that the catalogue stays a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlead.checks.hcas import Ports, choose
from fairlead.checks.node import Node
from fairlead.checks.rules import accel, gpu, guest, host, ib, net, slurm
from fairlead.records.facts import Unread
from fairlead.records.finding import SubjectKind


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule is asked about: `parts` lists them; a part nobody could make out comes with its Unread."""

    kind: SubjectKind
    parts: Callable[[Node], Mapping[str, Unread | None]]


def _whole(n: Node) -> Mapping[str, Unread | None]:
    return {"": None}


def _listed(parts: Callable[[Node], list[str]]) -> Callable[[Node], Mapping[str, Unread | None]]:
    return lambda n: dict.fromkeys(parts(n))


def _ports(n: Node) -> Mapping[str, Unread | None]:
    found: Ports = choose(n)
    return {**dict.fromkeys(found.chosen), **found.unclear}


SCOPES: Mapping[str, Scope] = {
    "node": Scope("node", _whole),
    "count of GPUs": Scope("node", _listed(gpu.counters)),
    "GPU": Scope("device", _listed(gpu.smi_gpus)),
    "GPU of the driver": Scope("device", _listed(gpu.driver_gpus)),
    "RDMA port": Scope("port", _ports),
    "InfiniBand function": Scope("device", _listed(ib.functions)),
    "mount": Scope("device", _listed(host.mounts)),
    "remote mount": Scope("device", _listed(host.remote_mounts)),
    "bond": Scope("device", _listed(net.bonds)),
    "synthetic NIC": Scope("device", accel.synthetic),
    "VF": Scope("device", accel.functions),
    "NIC of the log": Scope("device", accel.log_nics),
    "Ethernet function": Scope("device", _listed(accel.ethernet_functions)),
    "link that flaps": Scope("device", guest.flapping),
    "RDMA device of the guest's NIC": Scope("device", guest.guest_devices),
}


def _always(n: Node) -> str:
    return ""


def _gpus(n: Node) -> str:
    if n.expect.get("gpus") == 0:
        return "no GPU is expected"
    if n.expect.get("gpus") is None and not gpu.shown(n):
        return "no GPU is declared, and none is shown"
    return ""


def _nvidia(n: Node) -> str:
    return _gpus(n) or ("" if gpu.vendor(n) == "nvidia" else "the GPUs are not NVIDIA's")


def _rdma(n: Node) -> str:
    if n.expect.rdma == "none":
        return "the cluster file declares no RDMA"
    return "no RDMA port is expected" if n.expect.get("hca_ports") == 0 else ""


def _infiniband(n: Node) -> str:
    return _rdma(n) or ("" if n.expect.link == "infiniband" else "the link layer is Ethernet")


def _ethernet(n: Node) -> str:
    return _rdma(n) or ("" if n.expect.link == "ethernet" else "the link layer is InfiniBand")


def _ipoib(n: Node) -> str:
    return _infiniband(n) or ("" if n.expect.get("ipoib") == "up" else "this VM size does not use IP over InfiniBand")


def _imds(n: Node) -> str:
    found = n.facts.record.facts.get("imds")
    if isinstance(found, dict) and "not_asked" in found:
        return f"the metadata service was not asked: {found['not_asked']}"
    return "the metadata service was not asked" if found is None else ""


def _dcgm(n: Node) -> str:
    found = n.facts.record.facts.get("dcgm", {"not_asked": "nobody asked DCGM"})
    return str(found["not_asked"]) if isinstance(found, dict) and "not_asked" in found else _nvidia(n)


def _netvsc(n: Node) -> str:
    return "" if n.once("is accelerated", accel.is_accelerated) else "the machine has no synthetic NIC (hv_netvsc)"


def _nic_messages(n: Node) -> str:
    """A log alone tells of its NICs; where the interfaces were read, they say whether there are any."""
    return _netvsc(n) if not accel.log_paths(n) and accel.has_links(n) else ""


def _rdma_or_log(n: Node) -> str:
    """Where nobody looked at devices, as with a log alone, what it tells of links is told."""
    return _rdma(n) if "ib" in n.facts.record.facts else ""


def _slurm(n: Node) -> str:
    return "" if slurm.is_there(n) else "the node has no slurm.conf"


CONDITIONS: Mapping[str, Callable[[Node], str]] = {
    "": _always,
    "GPUs": _gpus,
    "NVIDIA GPUs": _nvidia,
    "GPUs and RDMA": lambda n: _nvidia(n) or _rdma(n),
    "RDMA": _rdma,
    "InfiniBand": _infiniband,
    "RDMA over Ethernet": _ethernet,
    "IP over InfiniBand": _ipoib,
    "metadata asked for": _imds,
    "DCGM asked for": _dcgm,
    "synthetic NICs": _netvsc,
    "messages of NICs": _nic_messages,
    "RDMA or its log": _rdma_or_log,
    "Slurm": _slurm,
    "InfiniBand and metadata": lambda n: _infiniband(n) or _imds(n),
}
"""When a check applies: a function that gives the reason why not, or nothing."""
