"""Rules for the virtual function, limits of locked memory, NCCL's settings. Pure."""

from __future__ import annotations

from fairlead.checks.vfrules import NETWORKD_FILE, UDEV_FILE
from fairlead.plan.kubernetes.topology import topology_xml
from fairlead.plan.wanted import Planned, PoolWanted, Wanted

_NETWORKD = ("ubuntu", "debian", "flatcar", "azurelinux", "azure-linux", "mariner")


def node_files(wanted: Wanted) -> list[Planned]:
    """For one manager of networks alone: with rules for two, a virtual function may get an address of its own."""
    found = [unmanaged(wanted.said.image)]
    if wanted.has_rdma:
        found += [
            Planned(path="node/90-memlock.conf", text=_LIMITS, about="/etc/security/limits.d/90-memlock.conf"),
            Planned(
                path="node/slurmd-memlock.conf", text=_SLURMD, about="/etc/systemd/system/slurmd.service.d/memlock.conf"
            ),
        ]
    for pool in wanted.pools:
        if pool.gpus:
            found.append(
                Planned(path=f"node/nccl-{pool.name}.conf", text=nccl_conf(pool), about=f"/etc/nccl.conf, {pool.name}")
            )
            if pool.layout is not None:
                text = topology_xml(pool.layout)
                about = f"{_TOPOLOGY}, {pool.name}"
                found.append(Planned(path=f"node/topology-{pool.name}.xml", text=text, about=about))
    return found


def manager_of(image: str) -> str:
    """Who manages networks on an image: networkd on Ubuntu, Debian, Flatcar and Azure Linux, else NetworkManager.

    SUSE's wicked takes only interfaces it is told of; SUSE's newer images have NetworkManager.
    """
    return "networkd" if any(name in image.casefold() for name in _NETWORKD) else "NetworkManager"


def unmanaged(image: str) -> Planned:
    """The rule by which a virtual function is left alone, the same that `fairlead audit` writes where it is missing."""
    file = NETWORKD_FILE if manager_of(image) == "networkd" else UDEV_FILE
    return Planned(path=f"node/{file.path.rpartition('/')[2]}", text=file.text, about=file.path)


def nccl_conf(pool: PoolWanted) -> str:
    """NCCL's settings for all jobs of a node, as the AzureHPC images have them for each family."""
    if not pool.size.rdma:
        about = (
            "# no RDMA between nodes: sockets, by the synthetic interface, which stays when the virtual function goes"
        )
        return f"{about}\nNCCL_SOCKET_IFNAME=eth0\nNCCL_IB_DISABLE=1\n"
    lines = ["NCCL_SOCKET_IFNAME=eth0", "NCCL_IB_PCI_RELAXED_ORDERING=1"]
    if pool.layout is not None:
        lines += [f"NCCL_TOPO_FILE={_TOPOLOGY}", "NCCL_IGNORE_CPU_AFFINITY=1"]
    return "\n".join(lines) + "\n"


_TOPOLOGY = "/etc/fairlead/topology.xml"
_LIMITS = """# RDMA registers memory, which is locked: the usual limit is too little for one queue pair's buffers.
*    soft    memlock    unlimited
*    hard    memlock    unlimited
root soft    memlock    unlimited
root hard    memlock    unlimited
"""
_SLURMD = """# Jobs inherit slurmd's limit, as slurm.conf says PropagateResourceLimitsExcept=MEMLOCK.
[Service]
LimitMEMLOCK=infinity
"""
