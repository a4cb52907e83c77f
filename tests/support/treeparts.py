"""Parts of machines as captured trees, written from the documented formats of the kernel and of vendors' tools.

Sources of the formats, not of the values:
- /sys/class/infiniband: linux Documentation/ABI/stable/sysfs-class-infiniband
- /proc files: man 5 proc; /dev/kmsg: linux Documentation/ABI/testing/dev-kmsg
- /proc/driver/nvidia: NVIDIA driver README, "The /proc file system interface"; both spellings of the version line are
  as printed by the closed x86_64 driver and by the open driver (also on aarch64)
- nvidia-smi -q -x: nvsmi_device_v12.dtd; element names and texts as in published outputs of A100, L4 and H100
- nvidia-smi nvlink -s: the nvidia-smi manual, and published outputs of H100
- Hyper-V KVP pool: linux tools/hv/hv_kvp_daemon.c (512-byte key, 2,048-byte value)
- names and rates of devices: Azure/azhpc-images (persistent names mlx5_ibN, mlx5_anN), the log in Azure's validator
  post (mlx5_an0: 40 Gb/sec (4X QDR)), kubernetes-sigs/dranet's GB300 example (InfiniBand functions without interface)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.probe.readers.storage import FORMAT
from fairlead.probe.readers.system import UNITS
from fairlead.probe.readers.tree import slug

GIB = 1 << 30
TAKEN_AT_NS = 1_795_000_000_000_000_000  # 2026-11-18


@dataclass
class Machine:
    """A tree in the making: files and links by path, commands by their words, what is known to be absent."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    """Folders that are there whatever is in them."""
    gpus: list[str] = field(default_factory=list)
    hcas: list[str] = field(default_factory=list)

    def put(self, path: str, text: str | bytes) -> None:
        self.absent.discard(path)
        self.files[path] = text.encode() if isinstance(text, str) else text

    def cmd(self, words: str | list[str], output: str, rc: int = 0) -> None:
        argv = words.split() if isinstance(words, str) else words
        self.put(cmd_path(argv), output)
        if rc:
            self.put(cmd_path(argv) + ".rc", str(rc))

    def text(self, path: str) -> str:
        return self.files[path].decode()

    def edit(self, path: str, old: str, new: str, *, count: int = -1) -> None:
        text = self.text(path)
        assert old in text, (path, old)
        self.put(path, text.replace(old, new, count))

    def remove(self, path: str) -> None:
        """A file, a link, or everything below a directory: not in the tree, and not known to be absent."""
        before = len(self.files) + len(self.links)
        self.folders.add(path.rpartition("/")[0])
        for table in (self.files, self.links):
            for name in [n for n in table if n == path or n.startswith(path.rstrip("/") + "/")]:
                del table[name]  # type: ignore[attr-defined]
        assert len(self.files) + len(self.links) < before, f"nothing at {path}"

    def write(self, root: Path) -> Path:
        for folder in sorted({path.rpartition("/")[0] for path in (*self.files, *self.links)} | self.folders):
            Path(f"{root}{folder}").mkdir(parents=True, exist_ok=True)
        for path, target in self.links.items():
            Path(f"{root}{path}").symlink_to(target)
        for path, data in self.files.items():
            Path(f"{root}{path}").write_bytes(data)
        (root / "absent").write_text("\n".join(sorted(self.absent)) + "\n")
        return root


def cmd_path(argv: list[str]) -> str:
    return "/cmd/" + slug(argv)


SMI = cmd_path(["nvidia-smi", "-q", "-x"])
NVLINK = cmd_path(["nvidia-smi", "nvlink", "-s"])
SYSTEMCTL_SHOW = ["systemctl", "show", "--property=Id,LoadState,ActiveState,SubState,Result", *UNITS]
SYSTEMCTL_FAILED = ["systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--no-pager"]
CHRONYC = ["chronyc", "-n", "-c", "tracking"]
SHM = "/dev/shm"
# learn.microsoft.com, azure/virtual-machines/instance-metadata-service and linux/scheduled-events
IMDS, EVENTS = "/http/169.254.169.254_metadata", "/http/169.254.169.254_scheduledevents"
PLACE = {
    "placementGroupId": "f67c14ab-e92c-408c-ae2d-da15866ec79a",
    "platformFaultDomain": "0",
    "vmScaleSetName": "hpc",
}
# net/ipv6/route.c, rt6_info_route: a host without IPv6 routes of its own
LOCAL6 = (
    f"{'0' * 31}1 80 {'0' * 32} 00 {'0' * 32} 00000000 00000002 00000000 80200001       lo\n"
    f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 00000001 00000000 00200200       lo\n"
)


def read(machine: Machine, root: Path, node: str = "n0") -> Any:
    """The facts of a machine, read by the real readers in this process."""
    return read_root(machine.write(root), node)


def read_root(root: Path, node: str = "n0") -> Any:
    from fairlead.probe.readers import crew, main
    from fairlead.probe.readers.tree import Tree
    from fairlead.records.codec import from_json
    from fairlead.records.facts import NodeFacts

    def inline(tree: Tree, jobs: list[crew.Job], limit_s: float) -> Any:
        for job in jobs:
            yield job, crew.work(tree, job), 0.0

    document = main.read_machine(Tree(str(root)), [*main.READERS], 60.0, run=inline)
    return from_json(json.dumps({**document, "node": node}), NodeFacts)


def run_program(root: Path, *words: str, timeout: float = 60) -> dict[str, Any]:
    """The document of a tree, read by the joined program in a Python of its own, as on a node."""
    from fairlead.probe import program

    argv = [sys.executable, "-I", "-", "--root", str(root), *words]
    done = subprocess.run(
        argv, input=program().source.decode(), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def base(
    *,
    hostname: str = "n0",
    cpus: int = 96,
    memory_kb: int,
    numa: int = 2,
    arch: str = "x86_64",
    kernel: str = "5.15.0-1110-azure",
    size: str = "Standard_H16r",
) -> Machine:
    """A plain Linux VM."""
    m = Machine()
    m.put(
        "/self.json",
        json.dumps(
            {
                "taken_at_ns": TAKEN_AT_NS,
                "python": "3.10.12",
                "executable": "/usr/bin/python3",
                "sys_path": ["/usr/lib/python3/dist-packages"],
            }
        ),
    )
    m.put("/usr/lib/python3/dist-packages/torch-2.9.1+cu130.dist-info/METADATA", "Name: torch\n")
    m.put("/usr/lib/python3/dist-packages/nvidia_nccl_cu13-2.27.7.dist-info/METADATA", "Name: nvidia-nccl-cu13\n")
    m.put("/proc/sys/kernel/hostname", f"{hostname}\n")
    m.put("/proc/sys/kernel/random/boot_id", "5a2dd1f0-5a0f-4c76-9bd2-7a2f2c0e4a11\n")
    m.put("/etc/machine-id", "0f5b0d4c1f5e4bd6a4f1c0de0000beef\n")
    dmi = {
        "product_uuid": "461b2364-3901-4349-b3c2-fa4821cbeefe",
        "sys_vendor": "Microsoft Corporation",
        "product_name": "Virtual Machine",
        "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
    }
    for name, text in dmi.items():
        m.put(f"/sys/class/dmi/id/{name}", f"{text}\n")
    m.put(
        IMDS,
        json.dumps({"vmId": dmi["product_uuid"], "vmSize": size, "name": hostname, "location": "westeurope", **PLACE}),
    )
    m.put(EVENTS, json.dumps({"DocumentIncarnation": 1, "Events": []}))
    m.put(
        "/var/lib/hyperv/.kvp_pool_3",
        kvp(
            {
                "HostName": "LAB000000000001",
                "PhysicalHostName": "LAB000000000001",
                "PhysicalHostNameFullyQualified": "LAB000000000001",
                "VirtualMachineName": hostname,
            }
        ),
    )
    m.put("/etc/os-release", 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n')
    m.put("/proc/sys/kernel/osrelease", f"{kernel}\n")
    m.put("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-5.15.0-1110-azure root=PARTUUID=0 ro console=ttyS0\n")
    m.put("/proc/uptime", "90000.12 8000000.00\n")
    m.cmd("uname -m", f"{arch}\n")
    if arch == "x86_64":
        m.put(
            "/proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7V12 64-Core Processor\n\n",
        )
    else:
        m.put("/proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n")
    m.put("/sys/devices/system/cpu/online", f"0-{cpus - 1}\n")
    m.put("/proc/self/status", f"Name:\tpython3\nState:\tR (running)\nCpus_allowed_list:\t0-{cpus - 1}\n")
    for node in range(numa):
        share = cpus // numa
        m.put(f"/sys/devices/system/node/node{node}/cpulist", f"{node * share}-{(node + 1) * share - 1}\n")
        m.put(f"/sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       {memory_kb // numa} kB\n")
    m.put(
        "/proc/meminfo",
        f"MemTotal:       {memory_kb} kB\nMemFree:        {memory_kb // 2} kB\nMemAvailable:   {memory_kb // 2} kB\n"
        "SwapTotal:             0 kB\nHugePages_Total:       0\n"
        "HugePages_Free:        0\nHugepagesize:       2048 kB\n",
    )
    m.put("/proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    m.put("/proc/sys/kernel/numa_balancing", "0\n")
    m.put("/proc/sys/vm/zone_reclaim_mode", "0\n")
    m.put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    m.put("/proc/self/limits", LIMITS)
    m.links["/proc/self/ns/pid"] = "pid:[4026531836]"
    m.put("/proc/self/environ", b"PATH=/usr/bin\0NCCL_DEBUG=WARN\0NCCL_SOCKET_IFNAME=eth0\0AWS_SECRET=no\0")
    m.put("/etc/nccl.conf", "NCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_IGNORE_CPU_AFFINITY=1\n")
    modules(m, "hv_netvsc", "pci_hyperv", "mlx5_core", "nvme")
    m.put("/run/systemd/system/placeholder", "")
    services(m)
    m.cmd(SYSTEMCTL_FAILED, "")
    # man 1 chronyc, `-c tracking`: 14 fields, the last is the leap status
    m.cmd(
        CHRONYC,
        "50484330,PHC0,2,1795000000.1,0.000004120,0.0000031,0.000012,-8.1,0.001,0.02,0.0001,0.00001,32.0,Normal\n",
    )
    m.absent.add("timedatectl")
    m.put(
        "/dev/kmsg",
        "6,1,0,-;Linux version 5.15.0-1110-azure\n"
        "6,900,12000000,-;hv_netvsc 000d3a eth0: Data path switched to VF: enP1s1\n"
        "6,901,12100000,-;IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready\n",
    )
    m.put("/proc/1/stat", "1 (systemd) S 0 1 1 0 -1 4194560 1 2 3 4\n")
    m.put("/proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0\n")
    # a kernel thread sleeps uninterruptibly by design: hv_balloon does so on every Azure VM
    m.put("/proc/77/stat", "77 (hv_balloon) D 2 0 0 0 -1 2138176 0 0 0 0\n")
    m.put("/proc/412/stat", "412 (tmux: server (1)) S 1 412 412 0 -1 4194560 1 2 3 4\n")
    m.put("/etc/slurm/slurm.conf", "ClusterName=hpc\n")
    m.put("/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7", "")
    m.put("/usr/local/cuda/version.json", '{"cuda": {"name": "CUDA SDK", "version": "13.0.1"}}\n')
    m.cmd("ofed_info -s", "MLNX_OFED_LINUX-24.10-1.1.4.0:\n")
    m.put("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0", "")
    for module in ("ib_core", "mlx5_core", "mlx5_ib"):
        m.put(f"/sys/module/{module}/version", "24.10-1.1.4\n")
    m.absent |= {f"/sys/module/{module}/version" for module in ("mana_ib", "bnxt_re", "irdma")}
    mounts(m)
    netdev(m, "lo", mac="00:00:00:00:00:00", mtu=65536, operstate="unknown", kind="772", address="127.0.0.1/8")
    netdev(
        m,
        "eth0",
        mac="00:0d:3a:00:00:01",
        mtu=1500,
        driver="hv_netvsc",
        device="000d3a00-0001-000d-3a00-0001000d3a00",
        address="10.0.0.4/24",
        speed=50000,
    )
    m.put(
        "/proc/net/route",
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
    )
    m.put("/proc/net/ipv6_route", LOCAL6)
    m.absent |= {
        "/etc/fairlead/place.json",
        "/sys/module/amdgpu",
        "/sys/class/infiniband",
        "/sys/class/infiniband_verbs",
        "/dev/infiniband",
        "/sys/class/nvme",
        "/sys/bus/pci/devices",
        "/proc/driver/nvidia/version",
        "/proc/driver/nvidia/gpus",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/opt/rocm/lib",
        "nvidia-smi",
    }
    m.put("/dev/null", "")
    return m


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            8388608              unlimited            bytes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""


def kvp(pairs: dict[str, str]) -> bytes:
    return b"".join(k.encode().ljust(512, b"\0") + v.encode().ljust(2048, b"\0") for k, v in pairs.items())


def modules(m: Machine, *names: str) -> None:
    """`name size refcount users state address`; also /sys/module/<name>, as for any loaded module."""
    old = m.text("/proc/modules") if "/proc/modules" in m.files else ""
    m.put("/proc/modules", old + "".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in names))
    for name in names:
        m.put(f"/sys/module/{name}/refcnt", "0\n")
        m.absent.add(f"/sys/module/{name}/version")


def services(m: Machine, **active: str) -> None:
    """`systemctl show`: a block a unit; a unit that is not installed is shown as not-found."""
    blocks = []
    for unit in UNITS:
        state = active.get(unit.rsplit(".", 1)[0].replace("-", "_"), "")
        load, act, sub = (
            ("loaded", state, "running" if state == "active" else "dead")
            if state
            else ("not-found", "inactive", "dead")
        )
        blocks.append(f"Id={unit}\nLoadState={load}\nActiveState={act}\nSubState={sub}\nResult=success\n")
    m.cmd(SYSTEMCTL_SHOW, "\n".join(blocks))


def mounts(m: Machine, extra: tuple[tuple[str, str, str, str, int, float], ...] = ()) -> None:
    """/proc/self/mounts and what stat -f says: (device, place, type, options, GiB, share used)."""
    table = (
        ("/dev/sda1", "/", "ext4", "rw,relatime,discard", 124, 0.3),
        ("tmpfs", SHM, "tmpfs", "rw,nosuid,nodev", 443, 0.0),
        ("/dev/loop0", "/snap/core22/1", "squashfs", "ro,nodev,relatime", 1, 1.0),
        *extra,
    )
    lines = [f"{device} {place} {kind} {options} 0 0" for device, place, kind, options, *_ in table]
    m.put("/proc/self/mounts", "\n".join(["proc /proc proc rw,nosuid 0 0", *lines]) + "\n")
    rows = {}
    for _, place, kind, _, gib, used in table:
        blocks = gib * GIB // 4096
        rows[place] = f"4096:{blocks}:{int(blocks * (1 - used))}:8000000:{int(8000000 * (1 - used / 2))}:{place}", kind
    local = sorted(p for p, (_, kind) in rows.items() if not kind.startswith(("nfs", "lustre", "fuse")))
    m.cmd(["stat", "-f", "-c", FORMAT, *local], "".join(rows[p][0] + "\n" for p in local))
    for place in set(rows) - set(local):
        m.cmd(["stat", "-f", "-c", FORMAT, place], rows[place][0] + "\n")


def stat_words(m: Machine) -> list[str]:
    """The stat command the machine has an answer for: the longest, that of all local mounts."""
    table = [line.split() for line in m.text("/proc/self/mounts").split("\n") if line]
    local = [place for device, place, kind, *_ in table if kind not in ("proc", "nfs4")]
    return ["stat", "-f", "-c", FORMAT, *sorted(local)]


def join(folder: str, target: str) -> str:
    """Where a link in a folder leads."""
    return os.path.normpath(target if target.startswith("/") else f"{folder}/{target}")


def drop_gpu(text: str, number: int) -> str:
    """nvidia-smi's output without one GPU."""
    parts = text.split("\t<gpu id=")
    del parts[number + 1]
    last = parts[-1] if "</nvidia_smi_log>" in parts[-1] else parts[-1] + "</nvidia_smi_log>\n"
    return "\t<gpu id=".join([*parts[:-1], last])


def netdev(
    m: Machine,
    name: str,
    *,
    mac: str,
    mtu: int,
    operstate: str = "up",
    kind: str = "1",
    driver: str = "",
    device: str = "",
    address: str = "",
    speed: int = -1,
    master: str = "",
    devtype: str = "",
) -> None:
    base_ = f"/sys/class/net/{name}"
    m.put(f"{base_}/uevent", (f"DEVTYPE={devtype}\n" if devtype else "") + f"INTERFACE={name}\nIFINDEX=2\n")
    for key, text in (
        ("address", mac),
        ("mtu", mtu),
        ("operstate", operstate),
        ("carrier_changes", 2),
        ("flags", "0x1803" if master else "0x1003"),
        ("type", kind),
        ("speed", speed),
    ):
        m.put(f"{base_}/{key}", f"{text}\n")
    if device:
        m.links[f"{base_}/device"] = f"../../../{device}"
        m.links[f"/sys/{device}/driver"] = f"../../../../bus/pci/drivers/{driver}"
    else:
        m.absent.add(f"{base_}/device")
    if master:
        m.links[f"{base_}/master"] = f"../{master}"
    else:
        m.absent.add(f"{base_}/master")
    path = cmd_path(["ip", "-j", "addr", "show"])
    known = json.loads(m.text(path)) if path in m.files else []
    local, _, length = address.partition("/")
    known.append(
        {"ifname": name, "addr_info": [{"family": "inet", "local": local, "prefixlen": int(length)}] if address else []}
    )
    m.put(path, json.dumps(known))


def pci(
    m: Machine,
    address: str,
    *,
    vendor: str,
    device: str,
    kind: str,
    numa: int,
    driver: str,
    speed: str = "32.0 GT/s PCIe",
    width: str = "16",
) -> None:
    m.absent.discard("/sys/bus/pci/devices")
    base_ = f"/sys/bus/pci/devices/{address}"
    for key, text in (
        ("vendor", vendor),
        ("device", device),
        ("class", kind),
        ("numa_node", numa),
        ("current_link_speed", speed),
        ("current_link_width", width),
        ("max_link_speed", speed),
        ("max_link_width", width),
    ):
        m.put(f"{base_}/{key}", f"{text}\n")
    if driver:
        m.links[f"{base_}/driver"] = f"../../../../../bus/pci/drivers/{driver}"
    else:
        m.absent.add(f"{base_}/driver")


def hca(
    m: Machine,
    name: str,
    *,
    address: str,
    numa: int,
    rate: str,
    link: str = "InfiniBand",
    lid: int = 0x11,
    netdevs: tuple[str, ...] = (),
    pkey: str = "0x8001",
    device_id: str = "0x101e",
    firmware: str = "28.42.1000",
    mac: str = "",
) -> None:
    """An RDMA device with one port, as mlx5_core shows it."""
    m.absent -= {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband"}
    is_ib = link == "InfiniBand"
    number = len(m.hcas)
    m.hcas.append(name)
    base_, port = f"/sys/class/infiniband/{name}", f"/sys/class/infiniband/{name}/ports/1"
    pci(
        m,
        address,
        vendor="0x15b3",
        device=device_id,
        kind="0x020700" if is_ib else "0x020000",
        numa=numa,
        driver="mlx5_core",
    )
    m.links[f"{base_}/device"] = f"../../../bus/pci/devices/{address}"
    guid = f"0015:5dff:fe00:{number:04x}"
    board = "MT_0000000838" if is_ib else "MT_0000000531"
    for key, text in (
        ("node_type", "1: CA"),
        ("node_guid", guid),
        ("sys_image_guid", guid),
        ("fw_ver", firmware),
        ("board_id", board),
        ("hca_type", "MT4126"),
    ):
        m.put(f"{base_}/{key}", f"{text}\n")
    target = f"/sys/bus/pci/devices/{address}"
    for interface in netdevs:
        m.put(f"{target}/net/{interface}/placeholder", "")
    if not netdevs:
        m.absent.add(f"{base_}/device/net")
    m.put(f"{target}/infiniband_verbs/uverbs{number}/placeholder", "")
    m.put(f"/sys/class/infiniband_verbs/uverbs{number}/ibdev", f"{name}\n")
    m.put(f"/dev/infiniband/uverbs{number}", "")
    for key, text in (
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", rate),
        ("link_layer", link),
        ("lid", f"0x{lid:x}" if is_ib else "0x0"),
        ("sm_lid", "0x1" if is_ib else "0x0"),
        ("cap_mask", "0x2651e84a" if is_ib else "0x00010000"),
    ):
        m.put(f"{port}/{key}", f"{text}\n")
    for index, key in enumerate([pkey if is_ib else "0xffff", "0x7fff" if is_ib else "0x0000", "0x0000"]):
        m.put(f"{port}/pkeys/{index}", f"{key}\n")
    gids = (
        [f"fe80:0000:0000:0000:0015:5dff:fe33:ff{number:02x}"]
        if is_ib
        else ["fe80:0000:0000:0000:020d:3aff:fe00:0001"] * 2
    )
    for index, gid in enumerate([*gids, "0000:0000:0000:0000:0000:0000:0000:0000"]):
        m.put(f"{port}/gids/{index}", f"{gid}\n")
    for index in range(len(gids)):
        m.put(f"{port}/gid_attrs/types/{index}", "IB/RoCE v1\n" if is_ib or index == 0 else "RoCE v2\n")
    for name_, value in (
        ("link_downed", 0),
        ("link_error_recovery", 0),
        ("symbol_error", 0),
        ("port_rcv_errors", 0),
        ("port_xmit_discards", 0),
        ("port_xmit_wait", 1234),
        ("port_rcv_data", 9_000_000_000),
        ("port_xmit_data", 8_000_000_000),
        ("local_link_integrity_errors", 0),
        ("excessive_buffer_overrun_errors", 0),
    ):
        m.put(f"{port}/counters/{name_}", f"{value}\n")
    for name_ in ("packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err"):
        m.put(f"{port}/hw_counters/{name_}", "0\n")


def nvidia(
    m: Machine,
    *,
    product: str,
    num: int,
    memory_mib: int,
    addresses: list[str],
    numas: list[int],
    nvlinks: int,
    driver: str = "580.95.05",
    is_open: bool = True,
    arch: str = "x86_64",
    fabric: str = "Completed",
) -> None:
    m.absent -= {"/proc/driver/nvidia/version", "/proc/driver/nvidia/gpus", "nvidia-smi"}
    modules(m, "nvidia", "nvidia_uvm", "nvidia_peermem")
    m.put("/sys/module/nvidia/version", f"{driver}\n")
    kind = (
        f"NVIDIA UNIX Open Kernel Module for {arch}  {driver}  Release Build  (dvs-builder@U22-I3-AM02-24-3)"
        if is_open
        else (f"NVIDIA UNIX {arch} Kernel Module  {driver}")
    )
    m.put(
        "/proc/driver/nvidia/version",
        f"NVRM version: {kind}  Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc version 12.3.0\n",
    )
    texts = []
    for index, address in enumerate(addresses[:num]):
        uuid = f"GPU-{index:08x}-7d19-9063-b049-{sum(map(ord, m.text('/proc/sys/kernel/hostname'))):012x}"
        m.gpus.append(address)
        pci(m, address, vendor="0x10de", device="0x2330", kind="0x030200", numa=numas[index], driver="nvidia")
        m.put(
            f"/proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t {product}\nIRQ:   \t\t {40 + index}\nGPU UUID: \t {uuid}\n"
            f"Video BIOS: \t 96.00.99.00.01\nBus Type: \t PCIe\n"
            f"DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {index}\n"
            f"GPU Firmware: \t {driver}\nGPU Excluded:\t No\n",
        )
        m.put(f"/dev/nvidia{index}", "")
        texts.append(
            smi_gpu(index=index, address=address, product=product, uuid=uuid, memory_mib=memory_mib, fabric=fabric)
        )
    m.put("/dev/nvidiactl", "")
    m.cmd(
        "nvidia-smi -q -x",
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"\t<timestamp>Wed Nov 18 06:26:40 2026</timestamp>\n"
        f"\t<driver_version>{driver}</driver_version>\n\t<cuda_version>13.0</cuda_version>\n"
        f"\t<attached_gpus>{num}</attached_gpus>\n" + "".join(texts) + "</nvidia_smi_log>\n",
    )
    m.put(SMI + ".took", "1.250\n")
    lines = []
    for index, address in enumerate(addresses[:num]):
        uuid = m.text(f"/proc/driver/nvidia/gpus/{address}/information").split("GPU UUID: \t ")[1].split("\n")[0]
        lines.append(
            f"GPU {index}: {product} (UUID: {uuid})\n"
            + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(nvlinks))
        )
    m.cmd("nvidia-smi nvlink -s", "".join(lines))


def smi_gpu(*, index: int, address: str, product: str, uuid: str, memory_mib: int, fabric: str) -> str:
    """One <gpu> element, in the order of nvsmi_device_v12.dtd; supported_clocks is as long as in real output."""
    clocks = "".join(
        f"\t\t\t\t<supported_graphics_clock>{mhz} MHz</supported_graphics_clock>\n" for mhz in range(1980, 345, -15)
    )
    reasons = [
        "gpu_idle",
        "applications_clocks_setting",
        "sw_power_cap",
        "hw_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "display_clocks_setting",
    ]
    slow = "".join(
        f"\t\t\t<clocks_event_reason_{r}>{'Active' if r == 'gpu_idle' else 'Not Active'}</clocks_event_reason_{r}>\n"
        for r in reasons
    )
    status = "Success" if fabric == "Completed" else fabric
    return f"""\t<gpu id="0000{address.upper()}">
\t\t<product_name>{product}</product_name>
\t\t<product_brand>NVIDIA</product_brand>
\t\t<product_architecture>Hopper</product_architecture>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<addressing_mode>None</addressing_mode>
\t\t<mig_mode>
\t\t\t<current_mig>Disabled</current_mig>
\t\t\t<pending_mig>Disabled</pending_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<serial>165322300{index:04d}</serial>
\t\t<uuid>{uuid}</uuid>
\t\t<minor_number>{index}</minor_number>
\t\t<vbios_version>96.00.99.00.01</vbios_version>
\t\t<gpu_reset_status>
\t\t\t<reset_required>No</reset_required>
\t\t\t<drain_and_reset_recommended>No</drain_and_reset_recommended>
\t\t</gpu_reset_status>
\t\t<gpu_recovery_action>None</gpu_recovery_action>
\t\t<pci>
\t\t\t<pci_bus>00</pci_bus>
\t\t\t<pci_device>00</pci_device>
\t\t\t<pci_domain>{address[:4].upper()}</pci_domain>
\t\t\t<pci_bus_id>0000{address.upper()}</pci_bus_id>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen>
\t\t\t\t\t<max_link_gen>5</max_link_gen>
\t\t\t\t\t<current_link_gen>1</current_link_gen>
\t\t\t\t</pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>16x</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t\t<replay_counter>0</replay_counter>
\t\t</pci>
\t\t<performance_state>P0</performance_state>
\t\t<clocks_event_reasons>
{slow}\t\t</clocks_event_reasons>
\t\t<fb_memory_usage>
\t\t\t<total>{memory_mib} MiB</total>
\t\t\t<reserved>552 MiB</reserved>
\t\t\t<used>4 MiB</used>
\t\t\t<free>{memory_mib - 556} MiB</free>
\t\t</fb_memory_usage>
\t\t<ecc_mode>
\t\t\t<current_ecc>Enabled</current_ecc>
\t\t\t<pending_ecc>Enabled</pending_ecc>
\t\t</ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<sram_correctable>2</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t\t<sram_threshold_exceeded>No</sram_threshold_exceeded>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>0</remapped_row_unc>
\t\t\t<remapped_row_pending>No</remapped_row_pending>
\t\t\t<remapped_row_failure>No</remapped_row_failure>
\t\t</remapped_rows>
\t\t<temperature>
\t\t\t<gpu_temp>33 C</gpu_temp>
\t\t\t<gpu_temp_tlimit>54 C</gpu_temp_tlimit>
\t\t\t<memory_temp>41 C</memory_temp>
\t\t</temperature>
\t\t<fabric>
\t\t\t<state>{fabric}</state>
\t\t\t<status>{status}</status>
\t\t\t<cliqueId>0</cliqueId>
\t\t\t<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>
\t\t</fabric>
\t\t<supported_clocks>
\t\t\t<supported_mem_clock>
\t\t\t\t<value>2619 MHz</value>
{clocks}\t\t\t</supported_mem_clock>
\t\t</supported_clocks>
\t\t<processes>
\t\t</processes>
\t</gpu>
"""
