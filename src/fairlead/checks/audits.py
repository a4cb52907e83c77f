"""The checks of an audit: what a guest can know of the network it really has.

`fairlead audit` judges by these and by the catalogue; the gate before a job by the catalogue alone, because a node
with a finding here still computes.
"""

from __future__ import annotations

from fairlead.checks.catalog import CATALOG, Check
from fairlead.checks.rules import accel, guest, managers, net, slurm
from fairlead.records.verdict import Verdict

WARN = Verdict.WARN
_LOG = ("kernel_log", "host.pid_namespace", "host.os.uptime_s", "net.links")
_MAY_READ_LOG = "usermod -aG systemd-journal USER on the nodes (Debian: adm), or run as root"
_MAY_READ_STATE = "run the probe as root: NetworkManager and cloud images keep their files from others"
_NIC = "synthetic NIC"
_PORTS = ("ib.devices", "host.environment", "host.nccl_conf")
_NETCONF = ("netconf", "net.links", "host.os.arch")

AUDITS: tuple[Check, ...] = (
    # ---- accelerated networking: the pair
    Check(
        "net/synthetic",
        accel.holds_address,
        ("net.links",),
        "on {node}: ip -br addr; the address belongs on the synthetic NIC (eth0), never on its VF",
        severity=WARN,
        when="synthetic NICs",
    ),
    Check(
        "net/vf",
        accel.has_vf,
        ("net.links", "kernel_log", "pci.devices"),
        "az network nic show -g GROUP -n NIC --query enableAcceleratedNetworking; on {node}: lspci -nn",
        scope=_NIC,
        when="synthetic NICs",
    ),
    Check(
        "net/vf-pairing",
        accel.pairing,
        ("net.links",),
        "on {node}: ip -d link show {part}; dmesg | grep -e netvsc -e {part}; reboot, then redeploy the VM",
        scope="VF",
        when="synthetic NICs",
    ),
    Check(
        "net/no-driver",
        accel.has_driver,
        ("pci.devices",),
        "on {node}: lspci -nnk -s {part}; modprobe mana (or mlx5_core, mlx4_en); update the kernel where it has none",
        scope="Ethernet function",
    ),
    # ---- who manages the VF
    Check(
        "net/vf-managed",
        managers.unmanaged,
        ("net.links", "netconf", "accelnet.vfs"),
        "fairlead audit -w {node} --write; on {node}: ip addr flush dev {part}",
        scope="VF",
        when="synthetic NICs",
        optional=_MAY_READ_STATE,
    ),
    Check(
        "net/vf-rules",
        managers.rules,
        _NETCONF,
        "fairlead audit -w {node} shows the file as a diff, and --write writes it",
        severity=WARN,
        when="synthetic NICs",
        optional=_MAY_READ_STATE,
    ),
    Check(
        "net/managers",
        managers.competing,
        ("netconf", "net.links"),
        "on {node}: systemctl disable --now NetworkManager, or systemd-networkd: keep the one that has eth0",
        severity=WARN,
        when="synthetic NICs",
        optional=_MAY_READ_STATE,
    ),
    Check(
        "net/vf-drivers",
        managers.drivers,
        ("kernel_modules", "host.os.arch"),
        "on {node}: modinfo mlx4_en mlx5_core mana; install the kernel's package of further modules, or a newer kernel",
        severity=WARN,
        when="synthetic NICs",
    ),
    # ---- the path
    Check(
        "net/data-path",
        accel.data_path,
        _LOG,
        "on {node}: dmesg | grep 'Data path'; ip link set VF up; redeploy the VM if it stays",
        scope="NIC of the log",
        severity=WARN,
        when="messages of NICs",
        optional=_MAY_READ_LOG,
    ),
    Check(
        "net/vf-lost",
        accel.lost,
        (*_LOG, "imds"),
        "on {node}: dmesg | grep -e VF -e netvsc; redeploy the VM: a VF that stays away does not come back by itself",
        scope="NIC of the log",
        severity=WARN,
        when="messages of NICs",
        optional=_MAY_READ_LOG,
    ),
    Check(
        "net/revocations",
        accel.revocations,
        (*_LOG, "imds"),
        "on {node}: dmesg | grep 'Data path'; compare with the platform's scheduled events; redeploy if it goes on",
        scope="NIC of the log",
        severity=WARN,
        when="messages of NICs",
        optional=_MAY_READ_LOG,
    ),
    Check(
        "net/vf-share",
        accel.share,
        ("accelnet.nics", "net.links"),
        "on {node}: ethtool -S {part} | grep vf_; dmesg | grep 'Data path'",
        scope=_NIC,
        severity=WARN,
        when="synthetic NICs",
    ),
    Check(
        "net/vf-drops",
        accel.drops,
        ("accelnet.nics", "net.links"),
        "on {node}: ethtool -S {part} | grep drop; ethtool -G on the VF for larger rings",
        scope=_NIC,
        severity=WARN,
        when="synthetic NICs",
    ),
    Check(
        "net/queues",
        accel.queues,
        ("accelnet.nics", "host.cpu.online", "net.links"),
        "on {node}: ethtool -l {part}; ethtool -L {part} combined NUMBER",
        scope=_NIC,
        severity=WARN,
        when="synthetic NICs",
    ),
    Check(
        "net/vf-bound",
        accel.bound,
        ("bound", "accelnet.vfs", "net.links"),
        "on {node}: ss -ap | grep %{part}; bind the program to the synthetic NIC instead",
        scope="VF",
        severity=WARN,
        when="synthetic NICs",
    ),
    Check(
        "net/same-subnet",
        accel.same_subnet,
        ("net.links", "bound.rules"),
        "on {node}: ip rule; put the NICs into subnets of their own, or give each a routing table",
        severity=WARN,
        when="synthetic NICs",
    ),
    Check(
        "net/rename-race",
        accel.renames,
        ("netlog",),
        "on {node}: journalctl -b -t systemd-udevd | grep rename; update systemd",
        severity=WARN,
    ),
    Check(
        "net/bond",
        net.bond,
        ("net.links",),
        "on {node}: cat /proc/net/bonding/{part}; ip -br link; look at cable and switch port",
        scope="bond",
        severity=WARN,
    ),
    # ---- InfiniBand and Guest RDMA
    Check(
        "ib/flaps",
        guest.flaps,
        ("netlog", "kernel_log", "ib.devices"),
        "drain {node}; on it: journalctl -b | grep {part}; have cable and HCA looked at",
        scope="link that flaps",
        when="RDMA or its log",
    ),
    Check(
        "ib/gpu-pairing",
        guest.pairs,
        (*_PORTS, "pci.devices"),
        "on {node}: nvidia-smi topo -m; redeploy the VM",
        severity=WARN,
        when="GPUs and RDMA",
    ),
    Check(
        "ib/guest-rdma",
        guest.guest_rdma,
        ("ib.devices", "pci.devices"),
        "on {node}: rdma link; show_gids; give the interface of {part} an address",
        scope="RDMA device of the guest's NIC",
        severity=WARN,
    ),
    # ---- the scheduler's files, and the machine itself
    Check(
        "slurm/gres",
        slurm.gres,
        ("slurm", "host.identity.hostname", "nvidia.driver.dev"),
        "on {node}: slurmd -G; scontrol show node {node}; correct gres.conf, then scontrol reconfigure",
        when="Slurm",
    ),
    Check(
        "slurm/health-program",
        slurm.health,
        ("slurm",),
        "on {node}: scontrol show config | grep HealthCheck; install the program, or correct slurm.conf",
        severity=WARN,
        when="Slurm",
    ),
    Check(
        "slurm/topology",
        slurm.topology,
        ("slurm", "host.identity.hostname"),
        "add {node} to topology.conf, then scontrol reconfigure",
        severity=WARN,
        when="Slurm",
    ),
    Check(
        "host/identity",
        guest.identity,
        ("host.identity",),
        "on {node}: systemctl status hv-kvp-daemon; without its files, note the VM's id before draining",
        severity=WARN,
        optional="run the probe as root: the VM's own number is for root alone",
    ),
)
"""Beside the catalogue."""

EVERY: tuple[Check, ...] = (*CATALOG, *AUDITS)
AUDIT_BY_CODE = {check.code: check for check in EVERY}
OF_A_LOG = frozenset({"net/data-path", "net/vf-lost", "net/revocations", "net/rename-race", "ib/flaps"})
"""Checks of an audit that a log alone can answer."""
