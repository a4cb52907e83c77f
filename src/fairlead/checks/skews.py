"""What must be equal on all nodes of a pool, as a table: versions, settings, the subnet manager; and where the VM-size
table has no number, the numbers themselves. How nodes are compared stands in fleet.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlead.checks.hcas import devices_of, is_active, keys_of, ports_of
from fairlead.checks.node import Node, number_of
from fairlead.checks.rules import gpu
from fairlead.records.verdict import Verdict

FAIL, WARN = Verdict.FAIL, Verdict.WARN
Values = Mapping[str, str]
"""Label -> value. One value has the empty label; values that exist several times in a node carry the device's name."""


@dataclass(frozen=True, slots=True)
class Skew:
    """Something that must be equal on all nodes of a pool."""

    code: str
    what: str
    values: Callable[[Node], Values]
    remedy: str
    severity: Verdict = FAIL
    when: str = ""
    without: str = ""
    """Only where the VM-size table has no such number; with one, the node is judged by it instead."""
    fill: bool = False
    """A label that a node does not have is a value too: not set."""
    tie: Verdict = Verdict.WARN
    """What it means where no value has a majority."""
    mild: re.Pattern[str] | None = None
    """Labels of which a difference is a warning."""
    optional: str = ""
    """As in the catalogue: what to do where only a right is missing."""


def _fact(*keys: str) -> Callable[[Node], Values]:
    return lambda n: {"": str(n.get(*keys)) or "not installed"}


def _os(n: Node) -> Values:
    return {"": f"{n.get('host.os.id')} {n.get('host.os.version_id')}"}


def _vbios(n: Node) -> Values:
    return {"": ", ".join(sorted({n.text(gpu.SMI, g, "vbios_version") for g in n.get(gpu.SMI)}))}


def _pcie_widths(n: Node) -> Values:
    found = [
        n.table(gpu.SMI, g, "pci", "pci_gpu_link_info", "link_widths").get("current_link_width") for g in n.get(gpu.SMI)
    ]
    return {"": ", ".join(sorted(str(width) for width in found if width not in (None, "N/A"))) or "not reported"}


def _gpu_driver(n: Node) -> Values:
    return {"": n.get("amd.version") if gpu.vendor(n) == "amd" else n.get("nvidia.driver.version")}


def _firmware(n: Node) -> Values:
    """Per kind of board: mixed boards in a node are no skew, two firmwares on one kind are."""
    found: dict[str, set[str]] = defaultdict(set)
    for device in devices_of(n):
        found[n.get("ib.devices", device, "board_id")].add(n.get("ib.devices", device, "fw_ver"))
    return {board: ", ".join(sorted(versions)) for board, versions in found.items()}


def _rdma_modules(n: Node) -> Values:
    return dict(n.get("versions.rdma_modules"))


def _up(n: Node) -> list[str]:
    """The ports that are active: one that is down has no address, rate or partition to compare, and is told already."""
    return [port for port in ports_of(n) if is_active(n, port)]


def _per_port(fact: str) -> Callable[[Node], Values]:
    return lambda n: {port: n.get("ib.devices", *keys_of(port), fact) for port in _up(n)}


def _prefix(n: Node) -> Values:
    """The subnet prefix: the upper half of GID 0."""
    return {port: ":".join(n.get("ib.devices", *keys_of(port), "gids", "0").split(":")[:4]) for port in _up(n)}


def _pkeys(n: Node) -> Values:
    found = {}
    for port in _up(n):
        table = n.get("ib.devices", *keys_of(port), "pkeys")
        keys = {n.get("ib.devices", *keys_of(port), "pkeys", index) for index in table}
        found[port] = ", ".join(sorted(keys - {"0x7fff", "0xffff"})) or ", ".join(sorted(keys))
    return found


def _rates(n: Node) -> Values:
    rates = {number_of(n.get("ib.devices", *keys_of(p), "rate"), f"ib.devices.{p}.rate") for p in _up(n)}
    if rates and n.expect.get("hca_rates_gbps"):
        rates = {max(rates)}  # a slower port of the node is told by itself
    return {"": " and ".join(f"{r:g}" for r in sorted(rates)) + " Gb/s"} if rates else {}


def _num_ports(n: Node) -> Values:
    return {"": f"{len(ports_of(n))} ports"}


def _num_gpus(n: Node) -> Values:
    return {"": f"{len(gpu.on_pci(n, gpu.vendor(n)))} GPUs"}


def _memory(n: Node) -> Values:
    """To the nearest tenth: machines of one kind differ by what firmware keeps."""
    gib = n.get("host.memory.MemTotal") / (1 << 20)
    step = 10 ** max(0, len(str(int(gib))) - 2)
    return {"": f"about {round(gib / step) * step:g} GiB"}


OWN = (
    "SLURM_NODEID",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "SLURM_JOB_ID",
    "SLURM_GPUS_ON_NODE",
    "NCCL_HOSTID",
)
"""Variables that differ between nodes and ranks by their nature."""
DEVICES = re.compile(r".*_IFNAME|.*_IFACE|.*_HCA|UCX_NET_DEVICES|.*_TOPO_FILE")
"""Settings that name a node's own devices: where those have other names, so must these."""


def _environment(n: Node) -> Values:
    """Without the node's own name: a cache or a log may lie in a folder of each node's."""
    own = re.compile(rf"\b{re.escape(n.facts.node)}\b")
    return {k: own.sub("NODE", v) for k, v in n.get("host.environment").items() if k not in OWN}


def _nccl_conf(n: Node) -> Values:
    return dict(n.get("host.nccl_conf"))


def _mtu(n: Node) -> Values:
    name = n.get("net.default_interface")
    return {"": str(n.get("net.links", name, "mtu"))} if name else {}


def _placement(n: Node) -> Values:
    """A scale set with one placement group names it; where there is none, the scale set itself is the island."""
    compute = n.get("imds.compute")
    scale_set = compute.get("vmScaleSetName")
    return {"": str(compute.get("placementGroupId") or (f"none, in scale set {scale_set}" if scale_set else "none"))}


def _interconnect(n: Node) -> Values:
    return {"": str(n.get("imds.compute").get("interconnectGroupId") or "none")}


def _subgroup(n: Node) -> Values:
    return {"": str(n.get("imds.compute").get("interconnectSubgroupId") or "none")}


def _slurm_conf(n: Node) -> Values:
    """A node without the file takes no part: where slurmctld sends it, it may lie in a place that is not looked at."""
    return {"": n.get("slurm.digest")} if n.get("slurm.conf") else {}


MAY_ASK = "let the probe's user reach 169.254.169.254 from the nodes, without a proxy"


_SAME = "bring the odd nodes to the majority's {what}: re-image {nodes}, or update the package there"

SKEWS: tuple[Skew, ...] = (
    Skew("skew/kernel", "kernel", _fact("host.os.kernel"), _SAME, WARN),
    Skew("skew/os", "operating system", _os, _SAME, WARN),
    Skew("skew/python", "Python", _fact("versions.python"), _SAME, WARN),
    Skew("skew/torch", "torch", _fact("versions.packages.torch"), _SAME),
    Skew("skew/gpu-driver", "GPU driver", _gpu_driver, _SAME, when="GPUs"),
    Skew("skew/cuda", "CUDA", _fact("versions.cuda"), _SAME, WARN, when="NVIDIA GPUs"),
    Skew("skew/nccl", "NCCL of Python", _fact("versions.packages.nccl"), _SAME, when="GPUs"),
    Skew("skew/nccl-system", "NCCL of the system", _fact("versions.nccl_system"), _SAME, when="GPUs"),
    Skew(
        "skew/vbios",
        "video BIOS",
        _vbios,
        "on {nodes}: nvidia-smi --query-gpu=vbios_version --format=csv; have it updated",
        WARN,
        when="NVIDIA GPUs",
    ),
    Skew(
        "skew/pcie-width",
        "PCIe width of the GPUs",
        _pcie_widths,
        "on {nodes}: lspci -vv | grep LnkSta; redeploy the VM",
        WARN,
        when="NVIDIA GPUs",
    ),
    Skew(
        "skew/hca-firmware",
        "HCA firmware",
        _firmware,
        "on {nodes}: ibstat | grep Firmware; have it updated",
        WARN,
        when="RDMA",
    ),
    Skew("skew/ofed", "OFED", _fact("versions.ofed"), _SAME, WARN, when="RDMA"),
    Skew("skew/rdma-driver", "RDMA driver", _rdma_modules, _SAME, WARN, when="RDMA", fill=True),
    Skew("skew/rdma-core", "RDMA library (rdma-core)", _fact("versions.rdma_core"), _SAME, WARN, when="RDMA"),
    Skew(
        "skew/environment",
        "environment variable",
        _environment,
        "on {nodes}: env | grep -e NCCL -e UCX; mend /etc/environment or the job script",
        fill=True,
        mild=DEVICES,
    ),
    Skew(
        "skew/nccl-conf",
        "setting in /etc/nccl.conf",
        _nccl_conf,
        "on {nodes}: cat /etc/nccl.conf",
        fill=True,
        mild=DEVICES,
    ),
    Skew("skew/mtu", "MTU of the default interface", _mtu, "on {nodes}: ip link; set one MTU everywhere"),
    Skew(
        "skew/pkey",
        "P_Key",
        _pkeys,
        "redeploy {nodes} together with the others: no packet passes between partitions",
        when="InfiniBand",
    ),
    Skew(
        "skew/subnet-prefix",
        "subnet prefix",
        _prefix,
        "on {nodes}: cat /sys/class/infiniband/*/ports/*/gids/0; they are on another subnet",
        when="InfiniBand",
    ),
    Skew(
        "skew/subnet-manager",
        "LID of the subnet manager",
        _per_port("sm_lid"),
        "on {nodes}: sminfo; is there one master subnet manager per fabric",
        WARN,
        when="InfiniBand",
    ),
    Skew(
        "skew/port-rate", "port rate", _rates, "on {nodes}: ibstat | grep Rate", without="hca_rates_gbps", when="RDMA"
    ),
    Skew(
        "skew/placement",
        "placement group",
        _placement,
        "redeploy {nodes} into the placement group of the others: InfiniBand does not cross it",
        when="InfiniBand and metadata",
        tie=FAIL,
        optional=MAY_ASK,
    ),
    Skew(
        "skew/interconnect-group",
        "interconnect group",
        _interconnect,
        "redeploy {nodes} into the interconnect group of the others: InfiniBand does not cross it",
        when="InfiniBand and metadata",
        tie=FAIL,
        optional=MAY_ASK,
    ),
    Skew(
        "skew/gpu-count",
        "number of GPUs",
        _num_gpus,
        "on {nodes}: lspci; reboot, then redeploy",
        when="GPUs",
        without="gpus",
    ),
    Skew(
        "skew/port-count",
        "number of RDMA ports",
        _num_ports,
        "on {nodes}: ibstat; reboot, then redeploy",
        when="RDMA",
        without="hca_ports",
    ),
    Skew("skew/cpu-count", "processors", _fact("host.cpu.online"), "on {nodes}: lscpu", WARN, without="vcpus"),
    Skew("skew/memory", "memory", _memory, "on {nodes}: free -g", WARN, without="memory_gib"),
)

AUDIT_SKEWS: tuple[Skew, ...] = (
    Skew(
        "skew/interconnect-subgroup",
        "interconnect subgroup",
        _subgroup,
        "redeploy {nodes} into the interconnect subgroup of the others, or keep jobs within one",
        WARN,
        when="InfiniBand and metadata",
        optional=MAY_ASK,
    ),
    Skew(
        "skew/slurm-conf",
        "slurm.conf",
        _slurm_conf,
        "on {nodes}: compare slurm.conf with the controller's, then scontrol reconfigure",
        WARN,
    ),
)
"""What an audit compares beside them: a job may span subgroups, and is slower for it."""
