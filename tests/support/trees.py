"""Machines that no test has, as captured trees: whole VM sizes made of the parts in treeparts.py."""

from __future__ import annotations

import json

from support.treeparts import (
    CHRONYC,
    EVENTS,
    FORMAT,
    IMDS,
    NVLINK,
    SHM,
    SMI,
    SYSTEMCTL_FAILED,
    SYSTEMCTL_SHOW,
    TAKEN_AT_NS,
    Machine,
    base,
    cmd_path,
    drop_gpu,
    hca,
    join,
    modules,
    mounts,
    netdev,
    nvidia,
    pci,
    read,
    read_root,
    run_program,
    services,
    stat_words,
)

__all__ = [
    "CHRONYC",
    "EVENTS",
    "FORMAT",
    "IMDS",
    "NVLINK",
    "SHM",
    "SMI",
    "SYSTEMCTL_FAILED",
    "SYSTEMCTL_SHOW",
    "TAKEN_AT_NS",
    "Machine",
    "base",
    "cmd_path",
    "drop_gpu",
    "hca",
    "join",
    "modules",
    "mounts",
    "netdev",
    "pci",
    "read",
    "read_root",
    "run_program",
    "services",
    "stat_words",
]


def nvme_disks(m: Machine, num: int, *, remote: int = 0) -> None:
    """Local disks, and the remote ones that newer sizes also attach as NVMe (two models, one name space)."""
    m.absent.discard("/sys/class/nvme")
    for index in range(num + remote):
        model = "MSFT NVMe Accelerator v1.0" if index < remote else "Microsoft NVMe Direct Disk"
        m.put(f"/sys/class/nvme/nvme{index}/model", f"{model:<40}\n")
        m.put(f"/sys/class/nvme/nvme{index}/state", "live\n")
        m.put(f"/sys/block/nvme{index}n1/size", f"{3_750_000_000}\n")


def accelerated_port(m: Machine, number: int = 0) -> None:
    """The virtual function of eth0: an RDMA device too, but no part of the RDMA network."""
    netdev(
        m,
        "enP1s1",
        mac="00:0d:3a:00:00:01",
        mtu=1500,
        driver="mlx5_core",
        device="bus/pci/devices/0001:00:02.0",
        speed=50000,
        master="eth0",
    )
    hca(
        m,
        f"mlx5_an{number}",
        address="0001:00:02.0",
        numa=0,
        rate="40 Gb/sec (4X QDR)",
        link="Ethernet",
        netdevs=("enP1s1",),
        device_id="0x1016",
        firmware="16.35.3006",
    )


def infiniband(m: Machine, num: int, *, rate: str, numas: list[int], first: int = 0x101, ipoib: bool = True) -> None:
    modules(m, "ib_core", "ib_uverbs", "ib_umad", "mlx5_ib", *(["ib_ipoib"] if ipoib else []))
    for index in range(num):
        interface = (f"ib{index}",) if ipoib else ()
        hca(
            m,
            f"mlx5_ib{index}",
            address=f"{first + index:04x}:00:00.0",
            numa=numas[index],
            rate=rate,
            lid=0x100 + index,
            netdevs=interface,
        )
        if ipoib:
            netdev(
                m,
                f"ib{index}",
                mac="00:00:01:47:fe:80:00:00:00:00:00:00:00:15:5d:ff:fe:33:ff:00",
                mtu=2044,
                kind="32",
                driver="mlx5_core",
                device=f"bus/pci/devices/{first + index:04x}:00:00.0",
                address=f"172.16.1.{index + 10}/16",
            )


def nd_h100_v5(hostname: str = "n0", *, gpus: int = 8, hcas: int = 8) -> Machine:
    """Standard_ND96isr_H100_v5: 8 H100, 8 x 400 Gb/s InfiniBand, one accelerated Ethernet port, 8 local NVMe disks."""
    m = base(size="Standard_ND96isr_H100_v5", hostname=hostname, cpus=96, memory_kb=1_915_071 * 1000)
    half = [0] * (gpus // 2) + [1] * (gpus - gpus // 2)
    nvidia(
        m,
        product="NVIDIA H100 80GB HBM3",
        num=gpus,
        memory_mib=81559,
        addresses=[f"000{i + 1:x}:00:00.0" for i in range(gpus)],
        numas=half,
        nvlinks=18,
    )
    accelerated_port(m)
    infiniband(m, hcas, rate="400 Gb/sec (4X NDR)", numas=[0] * (hcas // 2) + [1] * (hcas - hcas // 2))
    nvme_disks(m, 8)
    services(
        m,
        nvidia_fabricmanager="active",
        nvidia_persistenced="active",
        walinuxagent="active",
        chrony="active",
        slurmd="active",
    )
    mounts(
        m,
        (
            ("/dev/md0", "/mnt/resource_nvme", "xfs", "rw,relatime", 26000, 0.1),
            ("10.1.0.4:/home", "/shared/home", "nfs4", "rw,hard", 4096, 0.5),
        ),
    )
    return m


def nd_a100_v4(hostname: str = "n0") -> Machine:
    """Standard_ND96asr_v4: 8 A100 of 40 GB, 8 x 200 Gb/s, four NUMA nodes, the closed driver."""
    m = base(size="Standard_ND96asr_v4", hostname=hostname, cpus=96, memory_kb=928_858_388, numa=4)
    order = [2, 2, 3, 3, 0, 0, 1, 1]
    nvidia(
        m,
        product="NVIDIA A100-SXM4-40GB",
        num=8,
        memory_mib=40960,
        addresses=[f"000{i + 1:x}:00:00.0" for i in range(8)],
        numas=order,
        nvlinks=12,
        driver="535.129.03",
        is_open=False,
        fabric="N/A",
    )
    accelerated_port(m)
    infiniband(m, 8, rate="200 Gb/sec (4X HDR)", numas=order)
    services(m, nvidia_fabricmanager="active", nvidia_persistenced="active", walinuxagent="active", chrony="active")
    return m


def nd_gb300_v6(hostname: str = "n0", *, rate: str = "800 Gb/sec (4X XDR)") -> Machine:
    """A GB300 node: Arm, 4 GPUs, InfiniBand functions alone (no interface, no issm), fabric manager in the rack."""
    m = base(
        size="Standard_ND128isr_GB300_v6",
        hostname=hostname,
        cpus=128,
        memory_kb=904_809_536,
        arch="aarch64",
        kernel="6.8.0-1031-azure-nvidia",
    )
    nvidia(
        m,
        product="NVIDIA GB300",
        num=4,
        memory_mib=284208,
        addresses=["0008:06:00.0", "0009:06:00.0", "0018:06:00.0", "0019:06:00.0"],
        numas=[0, 0, 1, 1],
        nvlinks=18,
        arch="aarch64",
    )
    infiniband(m, 4, rate=rate, numas=[0, 0, 1, 1], ipoib=False)
    nvme_disks(m, 4, remote=1)
    # IMEX is installed and idle: it is only needed once a job spans nodes
    services(m, nvidia_imex="inactive", nvidia_persistenced="active", walinuxagent="active")
    return m


def hb176rs_v4(hostname: str = "n0") -> Machine:
    """Standard_HB176rs_v4: no GPU, one 400 Gb/s port."""
    m = base(size="Standard_HB176rs_v4", hostname=hostname, cpus=176, memory_kb=792_561_408, numa=4)
    accelerated_port(m)
    infiniband(m, 1, rate="400 Gb/sec (4X NDR)", numas=[0])
    nvme_disks(m, 2)
    return m


def ncv6(hostname: str = "n0") -> Machine:
    """An NC size with one RTX PRO 6000: no RDMA, no NVLink, NCCL by sockets on eth0."""
    m = base(
        size="Standard_NC72ds_xl_RTXPRO6000BSE_v6",
        hostname=hostname,
        cpus=72,
        memory_kb=int(264 * 1024 * 1024 * 0.98),
        numa=1,
    )
    nvidia(
        m,
        product="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        num=1,
        memory_mib=97887,
        addresses=["0001:00:00.0"],
        numas=[0],
        nvlinks=0,
        fabric="N/A",
    )
    services(m, nvidia_persistenced="active", chrony="active")
    m.put("/etc/nccl.conf", "NCCL_IB_DISABLE=1\nNCCL_SOCKET_IFNAME=eth0\n")
    return m


def nd_mi300x_v5(hostname: str = "n0", *, gpus: int = 8, hcas: int = 8) -> Machine:
    """Standard_ND96isr_MI300X_v5: 8 MI300X (class 0x1200), 8 x 400 Gb/s."""
    m = base(size="Standard_ND96isr_MI300X_v5", hostname=hostname, cpus=96, memory_kb=int(1850 * 1024 * 1024 * 0.98))
    modules(m, "amdgpu")
    m.absent.discard("/sys/module/amdgpu")
    m.put("/sys/module/amdgpu/version", "6.12.12\n")
    m.put("/sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    for index in range(gpus):
        pci(
            m,
            f"000{index + 1:x}:00:00.0",
            vendor="0x1002",
            device="0x74b5",
            kind="0x120000",
            numa=index * 2 // gpus,
            driver="amdgpu",
        )
        m.put(f"/sys/class/kfd/kfd/topology/nodes/{index + 1}/gpu_id", f"{4000 + index}\n")
    m.absent.add("amd-smi")
    m.cmd(
        "rocm-smi --showproductname --showuniqueid --showvbios --json",
        json.dumps({"card0": {"Card Series": "AMD Instinct MI300X VF"}}),
    )
    m.remove("/usr/lib/x86_64-linux-gnu")
    m.absent.add("/usr/lib/x86_64-linux-gnu")
    m.put("/opt/rocm/lib/librccl.so.1.0.70000", "")
    m.absent.discard("/opt/rocm/lib")
    accelerated_port(m)
    infiniband(m, hcas, rate="400 Gb/sec (4X NDR)", numas=[index * 2 // hcas for index in range(hcas)])
    nvme_disks(m, 8)
    return m


def plain(hostname: str = "n0") -> Machine:
    """A general-purpose VM."""
    return base(size="Standard_D8s_v6", hostname=hostname, cpus=8, memory_kb=32 * 1024 * 1024, numa=1)
