"""The catalogue: every check, as data. What a code means to a person stands in codes.toml beside this file.

A check names its rule, what the rule is asked about (`scope`), how bad a failure is, when it applies, which numbers it
needs, which facts it reads, and what to type when it fails. To add one: a rule in rules/, a line here, an entry in
codes.toml, and a case in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead.checks.node import Node, Outcome
from fairlead.checks.rules import gpu, host, ib, interconnect, net
from fairlead.checks.skews import MAY_ASK
from fairlead.records.verdict import Verdict

FAIL, WARN = Verdict.FAIL, Verdict.WARN


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the catalogue."""

    code: str
    rule: Callable[[Node, str], Outcome]
    reads: tuple[str, ...]
    """Facts the rule reads, as path beginnings; a test holds it to them."""
    remedy: str
    """What to type. {node} and {part} stand for what the finding is about."""
    scope: str = "node"
    severity: Verdict = FAIL
    when: str = ""
    needs: tuple[str, ...] = ()
    """Numbers of the VM size without which there is nothing to compare; the fleet is compared instead."""
    optional: str = ""
    """What to do so that an ordinary user may read it. Where only that right is missing, the check is skipped and says
    so: who may not read the kernel's messages can still get a verdict on the node."""


_SMI = ("nvidia.smi",)
_PCI = ("pci.devices", "host.cpu.numa")
_LOG = ("kernel_log", "host.pid_namespace", "host.os.uptime_s")
_MAY_READ_LOG = "usermod -aG systemd-journal USER on the nodes (Debian: adm), or run as root"
_PORTS = ("ib.devices", "host.environment", "host.nccl_conf")

CATALOG: tuple[Check, ...] = (
    # ---- the machine is the one that was asked for
    Check(
        "host/arch", host.arch, ("host.os.arch",), "correct `size` of the pool in the cluster file", needs=("cpu_arch",)
    ),
    Check(
        "host/vm-size",
        host.vm_size,
        ("imds",),
        "correct `size` of the pool in the cluster file",
        when="metadata asked for",
        optional=MAY_ASK,
    ),
    Check(
        "host/scheduled-event",
        host.scheduled_event,
        ("imds",),
        "drain {node}, and give the job another; the platform begins at that time whether or not anybody agrees",
        when="metadata asked for",
        optional=MAY_ASK,
    ),
    Check(
        "host/cpus",
        host.cpus,
        ("host.cpu.online",),
        "on {node}: lscpu -e; redeploy the VM if processors stay away",
        needs=("vcpus",),
    ),
    Check(
        "host/memory",
        host.memory,
        ("host.memory.MemTotal",),
        "on {node}: dmesg | grep -i memory; redeploy the VM",
        needs=("memory_gib",),
    ),
    Check(
        "host/nvme",
        host.nvme,
        ("nvme",),
        "on {node}: lsblk -d; redeploy the VM if a disk is gone",
        needs=("nvme_disks",),
    ),
    # ---- host health
    Check(
        "host/swap",
        host.swap,
        ("host.memory",),
        "on {node}: swapoff -a, and remove swap from /etc/fstab and waagent.conf",
        severity=WARN,
    ),
    Check(
        "host/numa-settings",
        host.numa_settings,
        ("host.memory",),
        "on {node}: sysctl -w kernel.numa_balancing=0 vm.zone_reclaim_mode=0",
        severity=WARN,
    ),
    Check(
        "host/memlock",
        host.memlock,
        ("host.limits",),
        "limits.conf: `* - memlock unlimited`; slurm.conf: PropagateResourceLimitsExcept=MEMLOCK; in a pod: IPC_LOCK",
        when="RDMA",
    ),
    Check(
        "host/shm",
        host.shm,
        ("mounts.local",),
        "on {node}: mount -o remount,size=50% /dev/shm; in a pod: a memory-backed emptyDir",
        when="GPUs",
    ),
    Check(
        "host/disk-space",
        host.disk_space,
        ("mounts.local",),
        "on {node}: du -xh --max-depth=2 {part} | sort -h | tail",
        scope="mount",
    ),
    Check(
        "host/read-only",
        host.read_only,
        ("mounts.local",),
        "on {node}: dmesg | grep -i remount; then fsck or redeploy",
        scope="mount",
    ),
    Check(
        "host/remote-mount",
        host.remote_answers,
        ("mounts.remote",),
        "on {node}: timeout 5 stat -f {part}",
        scope="remote mount",
        severity=Verdict.UNKNOWN,
    ),
    Check(
        "host/failed-services",
        host.failed_services,
        ("services",),
        "on {node}: systemctl --failed; journalctl -u UNIT -b",
        severity=WARN,
    ),
    Check(
        "host/stuck-processes",
        host.stuck_processes,
        ("processes",),
        "on {node}: ps -eo pid,ppid,stat,wchan:32,comm | grep ' [DZ]'",
        severity=WARN,
    ),
    Check(
        "host/kernel-faults",
        host.kernel_faults,
        _LOG,
        "on {node}: dmesg -T --level=emerg,alert,crit,err",
        optional=_MAY_READ_LOG,
    ),
    Check(
        "host/clock",
        host.clock,
        ("clock", "services.manager"),
        "on {node}: chronyc tracking; systemctl restart chrony",
        severity=WARN,
    ),
    Check("net/default-route", net.default_route, ("net",), "on {node}: ip -br link; ip route", severity=WARN),
    Check(
        "net/socket-interface",
        net.socket_interface,
        ("net", "host.environment", "host.nccl_conf"),
        "on {node}: ip -br addr; then correct the variable",
    ),
    Check(
        "net/place", net.place, ("net.place",), "fairlead schema place; then correct the file on {node}", severity=WARN
    ),
    # ---- GPUs
    Check(
        "gpu/count",
        gpu.count,
        ("pci.devices", "nvidia", "amd"),
        "on {node}: lspci -d 10de: ; dmesg | grep -i -e xid -e NVRM; reboot, then redeploy the VM",
        scope="count of GPUs",
        when="GPUs",
    ),
    Check(
        "gpu/driver",
        gpu.driver,
        ("modules.loaded", "nvidia.driver", "amd"),
        "on {node}: modprobe nvidia; dmesg | grep -i NVRM",
        when="GPUs",
    ),
    Check(
        "gpu/nouveau",
        gpu.nouveau,
        ("modules.loaded",),
        "blacklist nouveau, rebuild the initramfs and reboot {node}",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/excluded",
        gpu.excluded,
        ("nvidia.driver",),
        "on {node}: dmesg | grep -i exclu; reboot {node}, then have the GPU replaced",
        scope="GPU of the driver",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/model",
        gpu.model,
        _SMI,
        "correct `size` of the pool in the cluster file",
        scope="GPU",
        when="NVIDIA GPUs",
        needs=("gpu_model",),
    ),
    Check(
        "gpu/mig",
        gpu.mig,
        _SMI,
        "on {node}: nvidia-smi -i {part} -mig 0",
        scope="GPU",
        severity=WARN,
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/ecc",
        gpu.ecc,
        _SMI,
        "on {node}: nvidia-smi -q -d ECC -i {part}; reset the GPU, and have it replaced if it comes back",
        scope="GPU",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/row-remap",
        gpu.row_remap,
        _SMI,
        "on {node}: nvidia-smi -q -d ROW_REMAPPER -i {part}; drain the node and reset the GPU",
        scope="GPU",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/needs-reset",
        gpu.needs_reset,
        _SMI,
        "drain {node}; nvidia-smi --gpu-reset -i {part}, or reboot",
        scope="GPU",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/xid",
        gpu.xid,
        _LOG[:2],
        "on {node}: dmesg -T | grep Xid; drain it and reboot",
        when="NVIDIA GPUs",
        optional=_MAY_READ_LOG,
    ),
    Check(
        "gpu/throttle",
        gpu.throttle,
        _SMI,
        "on {node}: nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i {part}",
        scope="GPU",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/temperature",
        gpu.temperature,
        _SMI,
        "on {node}: nvidia-smi -q -d TEMPERATURE -i {part}; drain it until it has cooled",
        scope="GPU",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/inforom",
        gpu.inforom,
        _SMI,
        "on {node}: nvidia-smi prints it at its end; report the GPU to whoever replaces it",
        scope="GPU",
        severity=WARN,
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/diagnostic",
        gpu.diagnostic,
        ("dcgm",),
        "on {node}: dcgmi diag -r 1; what DCGM calls ISOLATE or RESET: drain it, reset the GPU, then dcgmi diag -r 3",
        when="DCGM asked for",
    ),
    Check(
        "gpu/persistence",
        gpu.persistence,
        _SMI,
        "on {node}: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
        scope="GPU",
        severity=WARN,
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/pcie-width",
        gpu.pcie_width,
        _SMI,
        "on {node}: lspci -vv -s {part} | grep LnkSta; redeploy the VM",
        scope="GPU",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/busy",
        gpu.busy,
        _SMI,
        "on {node}: nvidia-smi pmon -c 1; end what is left of earlier jobs",
        scope="GPU",
        severity=WARN,
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/nvlink",
        interconnect.nvlink,
        ("nvidia.nvlink", "nvidia.smi"),
        "on {node}: nvidia-smi nvlink -s -i {part}; reboot, then have the GPU replaced",
        scope="GPU",
        when="NVIDIA GPUs",
    ),
    Check(
        "gpu/fabric",
        interconnect.fabric,
        _SMI,
        "on {node}: systemctl restart nvidia-fabricmanager; nvidia-smi -q -i {part} | grep -A10 Fabric",
        scope="GPU",
        when="NVIDIA GPUs",
        needs=("fabric_manager",),
    ),
    Check(
        "gpu/fabric-manager",
        interconnect.fabric_manager,
        ("services",),
        "on {node}: systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager -b",
        when="NVIDIA GPUs",
        needs=("fabric_manager",),
    ),
    Check(
        "gpu/gpudirect",
        interconnect.gpudirect,
        ("modules.loaded", "nvidia.driver.open", "host.os.kernel"),
        "on {node}: modprobe nvidia-peermem",
        severity=WARN,
        when="GPUs and RDMA",
    ),
    Check(
        "gpu/numa",
        interconnect.numa,
        _PCI,
        "on {node}: nvidia-smi topo -m; redeploy the VM",
        severity=WARN,
        when="GPUs",
        needs=("gpus_per_numa",),
    ),
    Check(
        "gpu/tool-latency",
        host.tool_latency,
        ("nvidia.smi.took_s",),
        "on {node}: time nvidia-smi; systemctl enable --now nvidia-persistenced",
        severity=WARN,
        when="NVIDIA GPUs",
    ),
    # ---- RDMA
    Check(
        "ib/driver",
        ib.driver,
        ("ib.devices", "modules.loaded"),
        "on {node}: modprobe -a mlx5_ib ib_uverbs; systemctl restart openibd",
        when="RDMA",
    ),
    Check(
        "ib/count", ib.count, _PORTS, "on {node}: ibstat; lspci -d 15b3: ; reboot, then redeploy the VM", when="RDMA"
    ),
    Check(
        "ib/registered",
        ib.registered,
        ("pci.devices", "ib.devices"),
        "on {node}: dmesg | grep {part}; echo {part} > /sys/bus/pci/drivers/mlx5_core/bind",
        scope="InfiniBand function",
        when="InfiniBand",
    ),
    Check(
        "ib/link-layer",
        ib.link_layer,
        _PORTS,
        "on {node}: cat /sys/class/infiniband/*/ports/*/link_layer; correct `link` in the cluster file",
        scope="RDMA port",
        when="RDMA",
    ),
    Check(
        "ib/port-state",
        ib.state,
        _PORTS,
        "on {node}: ibstat; on the fabric side: is the port enabled, does a subnet manager run",
        scope="RDMA port",
        when="RDMA",
    ),
    Check(
        "ib/port-rate",
        ib.rate,
        _PORTS,
        "on {node}: ibstat; reset the port with ibportstate, then have cable and HCA looked at",
        scope="RDMA port",
        when="RDMA",
        needs=("hca_rates_gbps",),
    ),
    Check(
        "ib/pkey",
        ib.pkey,
        _PORTS,
        "on {node}: grep . /sys/class/infiniband/*/ports/*/pkeys/0; the node is in no partition: redeploy the VM",
        scope="RDMA port",
        when="InfiniBand",
    ),
    Check(
        "ib/lid",
        ib.lid,
        _PORTS,
        "on {node}: ibstat; on the fabric side: does a subnet manager run",
        scope="RDMA port",
        when="InfiniBand",
    ),
    Check(
        "ib/gid",
        ib.gid,
        _PORTS,
        "on {node}: show_gids; give the port's interface an address",
        scope="RDMA port",
        when="RDMA over Ethernet",
    ),
    Check(
        "ib/naming",
        ib.naming,
        ("ib.devices",),
        "on {node}: systemctl restart azure_persistent_rdma_naming",
        severity=WARN,
        when="RDMA",
    ),
    Check(
        "ib/char-devices",
        ib.char_devices,
        ("ib", *_PORTS),
        "on {node}: modprobe ib_uverbs; ls -l /dev/infiniband; in a pod: is the device plugin's resource asked for",
        when="RDMA",
    ),
    Check(
        "ib/numa",
        ib.numa,
        _PORTS + _PCI,
        "on {node}: lstopo; redeploy the VM",
        severity=WARN,
        when="RDMA",
        needs=("hcas_per_numa",),
    ),
    Check(
        "ib/ipoib",
        ib.ipoib,
        (*_PORTS, "net.links"),
        "on {node}: ip link set {part} up; systemctl restart openibd",
        scope="RDMA port",
        severity=WARN,
        when="IP over InfiniBand",
    ),
    Check(
        "ib/kernel-messages",
        ib.kernel_messages,
        _LOG,
        "on {node}: dmesg -T | grep mlx5_core",
        when="RDMA",
        optional=_MAY_READ_LOG,
    ),
)

BY_CODE = {check.code: check for check in CATALOG}
