# ruff: noqa: E501 - one line a row, as it is printed
"""Guests as their documentation prints them, from the tree to the verdict: networks, Slurm's files, placement.

Written from the documents named at each part, before the rules were looked at:

- learn.microsoft.com: azure/virtual-network/accelerated-networking-how-it-works, accelerated-networking-mana-linux,
  azure/virtual-machines/instance-metadata-service;
- linux: Documentation/networking/netvsc.rst, net/packet/af_packet.c (packet_seq_show), fs of /sys/class/net;
- systemd.network(5), systemd src/network/networkd-link.c (link_save), src/udev (files of /run/udev/data);
- NetworkManager.conf(5), NetworkManager src/core/nm-config.c (device state files), ethtool(8), ip-rule(8);
- slurm.conf(5), gres.conf(5), topology.conf(5).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fairlead.checks import expect_of, judge_node
from fairlead.checks.audits import EVERY
from fairlead.checks.node import Node
from fairlead.records.facts import Facts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Expect
from support import trees
from support.judging import facts_of, spec_of, verdict
from support.trees import Machine, netdev

PASS, WARN, FAIL = Verdict.PASS, Verdict.WARN, Verdict.FAIL
Edit = Callable[[Machine], None]
VF, ETH0_INDEX, VF_INDEX = "enP53091s1np0", 2, 3
PCI, MAC, VMBUS = "cf63:00:02.0", "00:0d:3a:00:00:01", "000d3a00-0001-000d-3a00-0001000d3a00"
KERNEL = "6.8.0-1031-azure"
DRIVERS = ("mellanox/mlx4/mlx4_core", "mellanox/mlx4/mlx4_en", "mellanox/mlx5/core/mlx5_core", "microsoft/mana/mana")
PORTAL = Expect(fact="accelerated_networking", value=True, why="az network nic show")
UNMANAGED_RULE = 'SUBSYSTEM=="net", DRIVERS=="hv_pci", ACTION!="remove", ENV{NM_UNMANAGED}="1"\n'
AZURE_NETWORK = """\
[Match]
Driver=mlx4_en mlx5_en mlx4_core mlx5_core mana

[Link]
Unmanaged=yes
"""
NETPLAN = f"""\
[Match]
PermanentMACAddress={MAC}
Driver=hv_netvsc
Name=eth0

[Network]
DHCP=ipv4
"""
ELSEWHERE = {
    "/run/NetworkManager",
    "/run/wicked",
    "/etc/network/interfaces",
    "/etc/network/interfaces.d",
    "/etc/sysconfig/network-scripts",
    "/etc/sysconfig/network",
    "/etc/NetworkManager/NetworkManager.conf",
    "/etc/NetworkManager/conf.d",
    "/run/NetworkManager/conf.d",
    "/usr/lib/NetworkManager/conf.d",
    "/run/udev/rules.d",
    "/usr/lib/udev/rules.d",
    "/usr/lib/systemd/network",
    "/var/log/messages",
    "journalctl",
}
ETHTOOL_S = """\
NIC statistics:
     tx_scattered: 0
     tx_no_memory: 0
     tx_no_space: 0
     tx_too_big: 0
     tx_busy: 0
     tx_send_full: 0
     rx_comp_busy: 0
     rx_no_memory: 0
     stop_queue: 0
     wake_queue: 0
     vf_rx_packets: {rx}
     vf_rx_bytes: {rx_bytes}
     vf_tx_packets: {tx}
     vf_tx_bytes: {tx_bytes}
     vf_tx_dropped: {dropped}
"""
ETHTOOL_L = """\
Channel parameters for eth0:
Pre-set maximums:
RX:\t\tn/a
TX:\t\tn/a
Other:\t\tn/a
Combined:\t{most}
Current hardware settings:
RX:\t\tn/a
TX:\t\tn/a
Other:\t\tn/a
Combined:\t{now}
"""
BOOT = (
    (2.30, "hv_vmbus: registering driver hv_netvsc"),
    (6.90, f"hv_netvsc {VMBUS} eth0: VF slot 1 added"),
    (7.46, f"hv_netvsc {VMBUS} eth0: VF registering: eth1"),
    (7.47, f"mlx5_core {PCI} eth1: joined to eth0"),
    (7.48, f"mlx5_core {PCI} {VF}: renamed from eth1"),
    (8.09, f"hv_netvsc {VMBUS} eth0: Data path switched to VF: {VF}"),
)
AWAY = (
    (8160.911509, f"hv_netvsc {VMBUS} eth0: Data path switched from VF: {VF}"),
    (8160.912120, f"hv_netvsc {VMBUS} eth0: VF unregistering: {VF}"),
    (8162.020138, f"hv_netvsc {VMBUS} eth0: VF slot 1 removed"),
)
BACK = (
    (8225.557263, f"hv_netvsc {VMBUS} eth0: VF slot 1 added"),
    (8226.266801, f"hv_netvsc {VMBUS} eth0: VF registering: eth1"),
    (8226.266911, f"mlx5_core {PCI} eth1: joined to eth0"),
    (8226.267450, f"hv_netvsc {VMBUS} eth0: Data path switched to VF: {VF}"),
)


def log(*lines: tuple[float, str]) -> str:
    """Documentation/ABI/testing/dev-kmsg: priority, number, microseconds, flags; text."""
    rows = ((0.0, f"Linux version {KERNEL}"), *lines)
    return "".join(f"6,{n},{round(at * 1e6)},-;{text}\n" for n, (at, text) in enumerate(rows))


def services(times: int, *, every_s: float) -> list[tuple[float, str]]:
    """The documented servicing of a host, again and again."""
    return [(at + n * every_s, text) for n in range(times) for at, text in (*AWAY, *BACK)]


def counted(m: Machine, *, vf: int, all_bytes: int, dropped: int = 0, packets: int = 9_000_000) -> None:
    """The counters of the NIC, and of what went past it by the VF."""
    for way in ("rx", "tx"):
        m.put(f"/sys/class/net/eth0/statistics/{way}_bytes", f"{all_bytes}\n")
        m.put(f"/sys/class/net/eth0/statistics/{way}_packets", f"{packets}\n")
    m.cmd("ethtool -S eth0", ETHTOOL_S.format(rx=packets, tx=packets, rx_bytes=vf, tx_bytes=vf, dropped=dropped))


def vf(m: Machine, *, mac: str = MAC, master: str = "eth0", address: str = "", driver: str = "mlx5_core") -> None:
    netdev(
        m,
        VF,
        mac=mac,
        mtu=1500,
        driver=driver,
        device=f"bus/pci/devices/{PCI}",
        speed=50000,
        master=master,
        address=address,
    )
    m.put(f"/sys/class/net/{VF}/ifindex", f"{VF_INDEX}\n")
    trees.pci(m, PCI, vendor="0x15b3", device="0x1016", kind="0x020000", numa=0, driver=driver)


def guest(*, joined: bool = True) -> Machine:
    """Standard_D8s_v6 with Ubuntu 24.04, netplan over systemd-networkd, and the VF of its one NIC."""
    m = trees.plain()
    m.put("/proc/sys/kernel/osrelease", f"{KERNEL}\n")
    m.put(
        "/etc/os-release",
        'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
    )
    m.put("/sys/class/net/eth0/ifindex", f"{ETH0_INDEX}\n")
    if joined:
        vf(m)
    counted(m, vf=9_900_000_000, all_bytes=10_000_000_000)
    m.cmd("ethtool -l eth0", ETHTOOL_L.format(most=64, now=8))
    m.put("/dev/kmsg", log(*BOOT))
    m.put("/etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules", UNMANAGED_RULE)
    m.put("/etc/systemd/network/01-azure-unmanaged-sriov.network", AZURE_NETWORK)
    m.put("/run/systemd/network/10-netplan-eth0.network", NETPLAN)
    m.put(
        "/run/systemd/netif/links/2",
        "# This is private data. Do not parse.\nADMIN_STATE=configured\nOPER_STATE=routable\nNETWORK_FILE=/run/systemd/network/10-netplan-eth0.network\n",
    )
    m.put(
        f"/run/systemd/netif/links/{VF_INDEX}",
        "# This is private data. Do not parse.\nADMIN_STATE=unmanaged\nOPER_STATE=enslaved\n",
    )
    m.put(f"/run/udev/data/n{VF_INDEX}", "I:7480000\nE:ID_NET_DRIVER=mlx5_core\nE:NM_UNMANAGED=1\nG:systemd\n")
    modules_of(m, DRIVERS)
    m.put("/proc/net/packet", "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n")
    m.cmd("ip rule show", "0:\tfrom all lookup local\n32766:\tfrom all lookup main\n32767:\tfrom all lookup default\n")
    m.cmd("ss -H -a -n -t -u -w", "udp   UNCONN 0      0      10.0.0.4%eth0:68      0.0.0.0:*\n")
    m.put("/var/log/syslog", "Sep 26 08:00:09 n0 systemd-networkd[512]: eth0: Gained carrier\n")
    m.absent |= ELSEWHERE
    return m


def modules_of(m: Machine, names: tuple[str, ...]) -> None:
    m.put(f"/lib/modules/{KERNEL}/modules.dep", "".join(f"kernel/drivers/net/ethernet/{n}.ko.zst:\n" for n in names))
    m.put(f"/lib/modules/{KERNEL}/modules.builtin", "kernel/drivers/hv/hv_vmbus.ko\n")


def judged(m: Machine) -> list[Finding]:
    spec = spec_of("Standard_D8s_v6", link="ethernet", rdma="none", expects=(PORTAL,))
    return judge_node(Node(Facts(facts_of(m)), expect_of(spec, spec.pools[0])), EVERY)


def told(m: Machine) -> set[tuple[str, Verdict]]:
    findings = judged(m)
    return {(f.code, f.verdict) for f in findings if f.verdict in (WARN, FAIL)}


def no_vf(m: Machine) -> None:
    m.remove(f"/sys/class/net/{VF}")
    m.remove(f"/sys/bus/pci/devices/{PCI}")
    m.put("/dev/kmsg", log(*BOOT[:1]))
    counted(m, vf=0, all_bytes=10_000_000_000)


def rewritten(path: str, text: str) -> Edit:
    return lambda m: m.put(path, text)


def other_mac(m: Machine) -> None:
    m.put(f"/sys/class/net/{VF}/address", "00:0d:3a:ff:ff:ff\n")


def address_on_vf(m: Machine) -> None:
    """A cloud image's DHCP on every device named en*: the VF gets an address of its own."""
    for path in (
        "/etc/systemd/network/01-azure-unmanaged-sriov.network",
        "/etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules",
    ):
        m.remove(path)
    m.put("/etc/systemd/network/20-wired.network", "[Match]\nName=en*\n\n[Network]\nDHCP=yes\n")
    m.put(
        f"/run/systemd/netif/links/{VF_INDEX}",
        "ADMIN_STATE=configured\nOPER_STATE=routable\nNETWORK_FILE=/etc/systemd/network/20-wired.network\n",
    )
    m.put(f"/run/udev/data/n{VF_INDEX}", "I:7480000\nE:ID_NET_DRIVER=mlx5_core\nG:systemd\n")
    path = trees.cmd_path(["ip", "-j", "addr", "show"])
    known = json.loads(m.text(path))
    next(k for k in known if k["ifname"] == VF)["addr_info"] = [
        {"family": "inet", "local": "10.0.0.5", "prefixlen": 24}
    ]
    m.put(path, json.dumps(known))


def no_rules(m: Machine) -> None:
    """The image of a time before MANA: netplan matches by MAC address alone, and nothing keeps it off the VF."""
    for path in (
        "/etc/systemd/network/01-azure-unmanaged-sriov.network",
        "/etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules",
    ):
        m.remove(path)
    m.put(
        "/run/systemd/network/10-netplan-eth0.network", f"[Match]\nPermanentMACAddress={MAC}\n\n[Network]\nDHCP=ipv4\n"
    )


def mlx_alone(m: Machine) -> None:
    """The rules of an older document: both drivers of Mellanox, and nothing of MANA."""
    m.remove("/etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules")
    m.put(
        "/etc/systemd/network/01-azure-unmanaged-sriov.network",
        "[Match]\nDriver=mlx4_en mlx5_core\n\n[Link]\nUnmanaged=yes\n",
    )
    m.put(
        "/run/systemd/network/10-netplan-eth0.network", f"[Match]\nPermanentMACAddress={MAC}\n\n[Network]\nDHCP=ipv4\n"
    )


def two_managers(m: Machine) -> None:
    m.absent.discard("/run/NetworkManager")
    m.put(f"/run/NetworkManager/devices/{ETH0_INDEX}", "[device]\nmanaged=true\nnm-owned=false\n")
    m.put(f"/run/NetworkManager/devices/{VF_INDEX}", "[device]\nmanaged=false\n")


def bound_to_vf(m: Machine) -> None:
    """tcpdump -i on the VF: a packet socket bound to its number."""
    m.put(
        "/proc/net/packet",
        "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n"
        f"00000000a1b2c3d4 3      3    0003   {VF_INDEX}     1 0      0      31337\n",
    )


def rename_failed(m: Machine) -> None:
    """systemd src/udev/udev-event.c, rename_netif; early udevd speaks to the kernel's log (facility 3)."""
    m.put(
        "/var/log/syslog",
        f"Sep 26 08:00:07 n0 systemd-udevd[405]: eth1: Failed to rename network interface 3 from 'eth1' to '{VF}': Device or resource busy\n",
    )


def second_nic(m: Machine) -> None:
    netdev(
        m,
        "eth1",
        mac="00:0d:3a:00:00:02",
        mtu=1500,
        driver="hv_netvsc",
        device="000d3a00-0002-000d-3a00-0002000d3a00",
        address="10.0.0.9/24",
        speed=50000,
    )
    m.put("/sys/class/net/eth1/ifindex", "4\n")
    m.cmd("ethtool -S eth1", ETHTOOL_S.format(rx=0, tx=0, rx_bytes=0, tx_bytes=0, dropped=0))
    m.cmd("ethtool -l eth1", ETHTOOL_L.format(most=64, now=8).replace("eth0", "eth1"))
    netdev(
        m,
        "enP100s2",
        mac="00:0d:3a:00:00:02",
        mtu=1500,
        driver="mlx5_core",
        device="bus/pci/devices/d000:00:02.0",
        speed=50000,
        master="eth1",
    )
    m.put("/sys/class/net/enP100s2/ifindex", "5\n")
    trees.pci(m, "d000:00:02.0", vendor="0x15b3", device="0x1016", kind="0x020000", numa=0, driver="mlx5_core")
    m.put("/run/systemd/netif/links/5", "ADMIN_STATE=unmanaged\n")
    m.put("/run/udev/data/n5", "E:ID_NET_DRIVER=mlx5_core\nE:NM_UNMANAGED=1\n")


def mana_without_driver(m: Machine) -> None:
    """A host of the next generation shows 1414:00ba, and an older kernel has nothing for it."""
    no_vf(m)
    trees.pci(m, "7870:00:00.0", vendor="0x1414", device="0x00ba", kind="0x020000", numa=0, driver="")


def slow_path(m: Machine) -> None:
    counted(m, vf=1_000_000, all_bytes=10_000_000_000)


def by_network_manager(m: Machine) -> None:
    """Red Hat's family: no networkd."""
    m.put("/etc/os-release", 'NAME="AlmaLinux"\nID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n')
    m.remove("/run/systemd/netif")
    m.remove("/run/systemd/network/10-netplan-eth0.network")
    m.absent |= {"/run/systemd/netif"}
    m.absent.discard("/run/NetworkManager")
    m.remove("/etc/systemd/network/01-azure-unmanaged-sriov.network")
    m.put(
        f"/run/NetworkManager/devices/{ETH0_INDEX}",
        "[device]\nmanaged=true\nnm-owned=false\nroute-metric-default-aspired=100\n",
    )
    m.put(f"/run/NetworkManager/devices/{VF_INDEX}", "[device]\nmanaged=false\n")


FAULTS: dict[str, tuple[Edit, set[tuple[str, Verdict]]]] = {
    "no VF behind the NIC": (no_vf, {("net/vf", FAIL)}),
    "a VF of another address": (other_mac, {("net/vf-pairing", FAIL)}),
    "an address on the VF": (address_on_vf, {("net/vf-managed", FAIL), ("net/vf-rules", WARN)}),
    "nothing keeps networkd off": (no_rules, {("net/vf-rules", WARN)}),
    "rules of a time before MANA": (mlx_alone, {("net/vf-rules", WARN)}),
    "two managers": (two_managers, {("net/managers", WARN)}),
    "the slow path": (slow_path, {("net/vf-share", WARN)}),
    "no MANA in this kernel": (lambda m: modules_of(m, DRIVERS[:3]), {("net/vf-drivers", WARN)}),
    "a capture on the VF": (bound_to_vf, {("net/vf-bound", WARN)}),
    "taken and not given back": (rewritten("/dev/kmsg", log(*BOOT, *AWAY)), {("net/vf-lost", WARN)}),
    "taken four times a day": (
        rewritten("/dev/kmsg", log(*BOOT, *services(4, every_s=3600))),
        {("net/revocations", WARN)},
    ),
    "a rename that failed": (rename_failed, {("net/rename-race", WARN)}),
    "one queue of many": (lambda m: m.cmd("ethtool -l eth0", ETHTOOL_L.format(most=64, now=1)), {("net/queues", WARN)}),
    "the VF drops": (
        lambda m: counted(m, vf=9_900_000_000, all_bytes=10_000_000_000, dropped=900_000),
        {("net/vf-drops", WARN)},
    ),
    "a MANA device without driver": (mana_without_driver, {("net/no-driver", FAIL)}),
    "two NICs in one subnet": (second_nic, {("net/same-subnet", WARN)}),
}

HEALTHY: dict[str, Edit] = {
    "as documented": lambda _: None,
    "NetworkManager with the documented rule": by_network_manager,
    "netvsc's own policy routing": lambda m: (
        second_nic(m),
        m.cmd(
            "ip rule show",
            "0:\tfrom all lookup local\n100:\tfrom 10.0.0.9 lookup 101\n101:\tfrom 10.0.0.4 lookup 100\n32766:\tfrom all lookup main\n32767:\tfrom all lookup default\n",
        ),
    )[0],
    "taken once, for 65 s": rewritten("/dev/kmsg", log(*BOOT, *AWAY, *BACK)),
    "switched twice while it starts": rewritten(
        "/dev/kmsg",
        log(
            *BOOT,
            (20.0, f"hv_netvsc {VMBUS} eth0: Data path switched from VF: {VF}"),
            (20.4, f"hv_netvsc {VMBUS} eth0: Data path switched to VF: {VF}"),
        ),
    ),
    "a capture on eth0": rewritten(
        "/proc/net/packet",
        f"sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n00000000a1b2c3d4 3      3    0003   {ETH0_INDEX}     1 0      0      31337\n",
    ),
    "a capture on any": rewritten(
        "/proc/net/packet",
        "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n00000000a1b2c3d4 3      3    0003   0     1 0      0      31337\n",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_documented_fault_is_told_and_nothing_else(name: str) -> None:
    edit, expected = FAULTS[name]
    m = guest()
    edit(m)
    assert {f for f in told(m) if f[0].startswith("net/")} == expected


@pytest.mark.parametrize("name", HEALTHY)
def test_a_documented_guest_raises_no_alarm(name: str) -> None:
    m = guest()
    HEALTHY[name](m)
    assert told(m) == set()


def test_what_passes_rests_on_what_was_read() -> None:
    """The good guest is no silence: every check of its network has what it needs."""
    findings = judged(guest())
    codes = sorted(
        {f.code for f in findings if f.code.startswith("net/")} - {"net/bond", "net/socket-interface", "net/place"}
    )
    assert {code: verdict(findings, code) for code in codes if verdict(findings, code) is not PASS} == {}


FREEZE = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Started",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["n0"],
    "NotBefore": "",
    "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([FREEZE], "Freeze C7061BAC-AFDC-4513-B24B-AA5F13A16123"),
        ([], ""),
        ([{**FREEZE, "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2039 18:29:47 GMT"}], ""),
        ([{**FREEZE, "Resources": ["another_vm"]}], ""),
    ],
)
@pytest.mark.parametrize(
    ("log_lines", "code"), [((*BOOT, *AWAY), "net/vf-lost"), ((*BOOT, *AWAY, *BACK), "net/revocations")]
)
def test_a_window_is_matched_with_the_event_that_the_platform_lists(
    events: list[dict[str, object]], told: str, log_lines: tuple[tuple[float, str], ...], code: str
) -> None:
    m = guest()
    m.put("/proc/uptime", "8400.00 60000.00\n")
    m.put("/dev/kmsg", log(*log_lines))
    m.put(trees.EVENTS, json.dumps({"DocumentIncarnation": 3, "Events": events}))
    (finding,) = [f for f in judged(m) if f.code == code]
    if told:
        assert told in finding.message
    else:
        assert "C7061BAC" not in finding.message
    if code == "net/revocations":
        assert [w["event"] for w in finding.data["windows"]] == [told]


def test_a_window_of_long_before_is_not_of_the_event_that_goes_on_now() -> None:
    m = guest()
    m.put("/dev/kmsg", log(*BOOT, *AWAY, *BACK))
    m.put(trees.EVENTS, json.dumps({"DocumentIncarnation": 3, "Events": [FREEZE]}))
    (finding,) = [f for f in judged(m) if f.code == "net/revocations"]
    assert [w["event"] for w in finding.data["windows"]] == [""]
