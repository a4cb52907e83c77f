"""What an audit reads beside a probe, as captured trees: counters of synthetic NICs, rules about virtual functions
(VFs), the managers' own words, and logs. Formats by their documentation:

- `ethtool -S` of hv_netvsc, the kernel's messages and /etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules:
  learn.microsoft.com, azure/virtual-network/accelerated-networking-how-it-works (whose numbers these are)
- `ethtool -l`: man 8 ethtool; `ss`: man 8 ss; /proc/net/packet: man 7 packet; `ip rule show`: man 8 ip-rule
- /run/udev/data: `udevadm info --export-db` (man 8 udevadm); /run/systemd/netif/links: systemd's sd-network.h
  (ADMIN_STATE); /run/NetworkManager/devices: NetworkManager's state files (key `managed`)
- .network files: man 5 systemd.network, as netplan writes them (`10-netplan-eth0.network`)
- slurm.conf, gres.conf, topology.conf: their manuals of Slurm 23.11
"""

from __future__ import annotations

import json

from fairlead.probe.readers.accelnet import SS
from fairlead.probe.readers.dcgm import DIAG
from fairlead.probe.readers.netlog import NETLOG_JOURNAL
from support import trees
from support.treeparts import Machine, cmd_path, netdev, pci

VF, NIC, GUID = "enP53091s1np0", "eth0", "000d3af5-76bd-000d-3af5-76bd000d3af5"
VF_PCI = "cf63:00:02.0"
MAC = "00:0d:3a:f5:76:bd"
VF_INDEX = "3"
UDEV_RULE = "/etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules"
NETPLAN = "/run/systemd/network/10-netplan-eth0.network"
SYS_NIC, SYS_VF = f"/sys/class/net/{NIC}", f"/sys/class/net/{VF}"
STATS, CHANNELS = cmd_path(["ethtool", "-S", NIC]), cmd_path(["ethtool", "-l", NIC])
SOCKETS, RULES, JOURNAL = cmd_path(SS), cmd_path(["ip", "rule", "show"]), cmd_path(NETLOG_JOURNAL)
KERNEL = "6.8.0-1031-azure"
MODULES = f"/lib/modules/{KERNEL}/modules.dep"
GIB = 1 << 30

BOOT = (
    (2.327663, "hv_vmbus: registering driver hv_netvsc"),
    (3.918902, f"hv_netvsc {GUID} {NIC}: VF slot 1 added"),
    (7.128515, f"mlx5_core {VF_PCI}: firmware version: 14.25.8362"),
    (7.465085, f"hv_netvsc {GUID} {NIC}: VF registering: eth1"),
    (7.465119, f"mlx5_core {VF_PCI} eth1: joined to {NIC}"),
    (7.480651, f"mlx5_core {VF_PCI} {VF}: renamed from eth1"),
    (8.090127, f"hv_netvsc {GUID} {NIC}: Data path switched to VF: {VF}"),
    (9.654979, f"hv_netvsc {GUID} {NIC}: Data path switched from VF: {VF}"),
    (9.910595, f"hv_netvsc {GUID} {NIC}: Data path switched to VF: {VF}"),
    (11.411194, f"hv_netvsc {GUID} {NIC}: Data path switched from VF: {VF}"),
    (11.733216, f"hv_netvsc {GUID} {NIC}: Data path switched to VF: {VF}"),
)
TAKEN = (
    (8160.911509, f"hv_netvsc {GUID} {NIC}: Data path switched from VF: {VF}"),
    (8160.912120, f"hv_netvsc {GUID} {NIC}: VF unregistering: {VF}"),
    (8162.020138, f"hv_netvsc {GUID} {NIC}: VF slot 1 removed"),
)
RETURNED = (
    (8225.557263, f"hv_netvsc {GUID} {NIC}: VF slot 1 added"),
    (8226.021016, f"hv_netvsc {GUID} {NIC}: VF registering: eth1"),
    (8226.267380, f"hv_netvsc {GUID} {NIC}: Data path switched to VF: {VF}"),
)
"""The boot and the servicing that the documentation shows."""

Said = tuple[tuple[float, str], ...]


def kmsg(lines: Said) -> str:
    return "".join(f"6,{i},{round(s * 1e6)},-;{text}\n" for i, (s, text) in enumerate(lines))


def later(lines: Said, by_s: float) -> Said:
    return tuple((seconds + by_s, text) for seconds, text in lines)


def accelerated(m: Machine, *, manager: str = "systemd-networkd", kernel: str = KERNEL) -> Machine:
    """One accelerated NIC on a machine that has none of the base's: the documentation's pair, well in every way."""
    drop_nic(m, "eth0", "enP1s1")
    netdev(m, NIC, mac=MAC, mtu=1500, driver="hv_netvsc", device=f"bus/vmbus/devices/{GUID}", address="10.1.19.4/24")
    function(m)
    m.put(f"{SYS_NIC}/statistics/tx_bytes", f"{100 * GIB}\n")
    m.put(f"{SYS_NIC}/statistics/rx_bytes", f"{200 * GIB}\n")
    stats = {"tx_scattered": 0, "tx_no_memory": 0, "rx_no_memory": 0, "stop_queue": 0, "wake_queue": 0,
             "vf_rx_packets": 111180000, "vf_rx_bytes": 199 * GIB, "vf_tx_packets": 9107646, "vf_tx_bytes": 99 * GIB,
             "vf_tx_dropped": 0, "cpu0_vf_rx_packets": 17}  # fmt: skip
    m.put(STATS, "NIC statistics:\n" + "".join(f"     {k}: {v}\n" for k, v in stats.items()))
    m.put(CHANNELS, channels(64, 16))
    m.put("/dev/kmsg", kmsg(BOOT))
    m.put("/proc/sys/kernel/osrelease", f"{kernel}\n")
    drivers = (
        "mellanox/mlx4/mlx4_core",
        "mellanox/mlx4/mlx4_en",
        "mellanox/mlx5/core/mlx5_core",
        "microsoft/mana/mana",
    )
    m.put(MODULES, "".join(f"kernel/drivers/net/ethernet/{name}.ko.zst: kernel/a.ko\n" for name in drivers))
    m.put(
        f"/lib/modules/{kernel}/modules.builtin",
        "kernel/drivers/hv/hv_vmbus.ko\nkernel/drivers/net/hyperv/hv_netvsc.ko\n",
    )
    quiet(m)
    managed_by(m, manager)
    return m


def drop_nic(m: Machine, *names: str) -> None:
    """Without interfaces that the base has."""
    path = cmd_path(["ip", "-j", "addr", "show"])
    m.put(path, json.dumps([link for link in json.loads(m.text(path)) if link["ifname"] not in names]))
    for name in names:
        for path in [p for p in m.files if p.startswith(f"/sys/class/net/{name}/")]:
            del m.files[path]
        for path in [p for p in m.links if p.startswith(f"/sys/class/net/{name}/")]:
            del m.links[path]


def function(
    m: Machine, *, name: str = VF, address: str = VF_PCI, driver: str = "mlx5_core", index: str = VF_INDEX
) -> None:
    """A VF, joined to the NIC."""
    vendor, device = ("0x1414", "0x00ba") if driver == "mana" else ("0x15b3", "0x1016")
    pci(m, address, vendor=vendor, device=device, kind="0x020000", numa=0, driver=driver)
    netdev(m, name, mac=MAC, mtu=1500, driver=driver, device=f"bus/pci/devices/{address}", master=NIC)
    m.put(f"/sys/class/net/{name}/flags", "0x1843\n")
    m.put(f"/sys/class/net/{name}/ifindex", f"{index}\n")
    m.put(f"/run/udev/data/n{index}", f"E:ID_NET_DRIVER={driver}\nE:NM_UNMANAGED=1\n")


def channels(most: int, now: int) -> str:
    def block(value: int) -> str:
        return f"RX:\t\tn/a\nTX:\t\tn/a\nOther:\t\tn/a\nCombined:\t{value}\n"

    head = f"Channel parameters for {NIC}:\nPre-set maximums:\n"
    return f"{head}{block(most)}Current hardware settings:\n{block(now)}"


def quiet(m: Machine) -> None:
    """Nobody uses the VF past its NIC, and the managers had no trouble."""
    m.put(SOCKETS, "udp UNCONN 0 0 10.1.19.4%eth0:68 0.0.0.0:*\n")
    m.put("/proc/net/packet", "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n")
    m.put(RULES, "0:\tfrom all lookup local\n32766:\tfrom all lookup main\n32767:\tfrom all lookup default\n")
    journal(m, (1_794_990_000.5, "systemd-networkd", "eth0: Gained carrier"))


def journal(m: Machine, *lines: tuple[float, str, str]) -> None:
    m.put(JOURNAL, "".join(
        json.dumps({"__REALTIME_TIMESTAMP": str(round(s * 1e6)), "SYSLOG_IDENTIFIER": who, "MESSAGE": text}) + "\n"
        for s, who, text in lines))  # fmt: skip


def managed_by(m: Machine, manager: str) -> None:
    """The files and the state that one manager has where the VF is left alone."""
    folders = ("/run/udev/rules.d", "/usr/lib/udev/rules.d", "/etc/systemd/network", "/usr/lib/systemd/network",
               "/run/systemd/network", "/run/NetworkManager/conf.d", "/usr/lib/NetworkManager/conf.d",
               "/etc/NetworkManager/conf.d", "/etc/NetworkManager/NetworkManager.conf", "/etc/network/interfaces",
               "/etc/network/interfaces.d", "/etc/sysconfig/network-scripts", "/etc/sysconfig/network")  # fmt: skip
    m.absent |= {*folders, "/run/wicked"}
    m.put(UDEV_RULE, 'SUBSYSTEM=="net", DRIVERS=="hv_pci", ACTION!="remove", ENV{NM_UNMANAGED}="1"\n')
    if manager == "NetworkManager":
        m.absent |= {"/run/systemd/netif", f"/run/systemd/netif/links/{VF_INDEX}"}
        m.put(f"/run/NetworkManager/devices/{VF_INDEX}", "[device]\nmanaged=false\nperm-hw-addr-fake=\n")
    else:
        m.absent |= {"/run/NetworkManager", f"/run/NetworkManager/devices/{VF_INDEX}"}
        m.absent.discard("/run/systemd/network")
        m.put(f"/run/systemd/netif/links/{VF_INDEX}", "ADMIN_STATE=unmanaged\nOPER_STATE=carrier\n")
        m.put(NETPLAN, f"[Match]\nMACAddress={MAC}\nDriver=hv_netvsc\n\n[Network]\nDHCP=ipv4\n")


def slurm(m: Machine, *, gpus: int = 8, host: str = "n0") -> None:
    """A node of Slurm with its topology."""
    gres = f"Gres=gpu:h100:{gpus} " if gpus else ""
    m.put("/etc/slurm/slurm.conf", f"""ClusterName=hpc
# a comment
HealthCheckProgram=/usr/sbin/nhc
HealthCheckInterval=300
TopologyPlugin=topology/tree
AccountingStoragePass=not-for-anybody
NodeName={host[0]}[0-15] {gres}CPUs=96 \\
  RealMemory=1900000
""")  # fmt: skip
    m.put(
        "/etc/slurm/gres.conf",
        f"AutoDetect=off\nNodeName={host[0]}[0-15] Name=gpu Type=h100 File=/dev/nvidia[0-{gpus - 1}]\n",
    )
    m.put("/etc/slurm/topology.conf", f"SwitchName=leaf0 Nodes={host[0]}[0-15]\n")
    m.put("/usr/sbin/nhc", "#!/bin/bash\n")


def h100(hostname: str = "n0") -> Machine:
    """A node of 16 of ND H100 v5 under Slurm, with two GPUs and two HCAs for speed, on Ubuntu."""
    m = accelerated(trees.nd_h100_v5(hostname, gpus=2, hcas=2))
    slurm(m, gpus=2, host=hostname)
    diagnosed(m, 2)
    return m


def diagnosed(m: Machine, gpus: int) -> None:
    """`dcgmi diag -r 1 -j` of DCGM 4, where all is well."""
    results = [{"entity_group": "GPU", "entity_group_id": 1, "entity_id": i, "status": "Pass"} for i in range(gpus)]
    tests = [{"name": "software", "results": results, "test_summary": {"status": "Pass"}}]
    answer = {"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}}
    m.cmd(DIAG, json.dumps(answer, indent=1) + "\n")
    m.put(cmd_path(DIAG) + ".took", "2.100\n")


def mana(m: Machine) -> None:
    """Guest RDMA: a device of mana_ib on a function of vendor 1414, with the GIDs of RDMA over Ethernet."""
    trees.hca(
        m, "mana_0", address="7870:00:00.0", numa=0, rate="200 Gb/sec (4X HDR)", link="Ethernet", device_id="0x00ba"
    )
    m.put("/sys/bus/pci/devices/7870:00:00.0/vendor", "0x1414\n")
    m.links["/sys/bus/pci/devices/7870:00:00.0/driver"] = "../../../../../bus/pci/drivers/mana"


def bond(m: Machine, *, up: int) -> None:
    """A bond of two interfaces of another maker, of which some are up (linux Documentation/networking/bonding)."""
    netdev(m, "bond0", mac="02:00:00:00:00:0f", mtu=9000)
    m.put("/sys/class/net/bond0/flags", "0x1403\n")
    for index in range(2):
        address, is_up = f"0000:9{index}:00.0", index < up
        pci(m, address, vendor="0x8086", device="0x1592", kind="0x020000", numa=0, driver="ice")
        netdev(
            m,
            f"ens{index}f0",
            mac="02:00:00:00:00:0f",
            mtu=9000,
            master="bond0" if is_up else "",
            operstate="up" if is_up else "down",
            driver="ice",
            device=f"bus/pci/devices/{address}",
        )
