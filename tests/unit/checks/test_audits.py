# ruff: noqa: E501 - one line a fault, so that the table can be read as one
"""Every check of an audit, made to fail and to pass: faults as the kernel, a tool or a manager of networks would show them.

The healthy machine is the documentation's pair of NIC and virtual function (support/guests.py names the sources).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from fairlead.checks import judge_node
from fairlead.checks.audits import AUDITS, EVERY
from fairlead.checks.expect import Expect
from fairlead.checks.node import Node
from fairlead.records.facts import Facts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import guests, trees
from support.guests import NIC, SYS_VF, VF, VF_PCI
from support.judging import SMALL, expect, facts_of, of, troubles, verdict
from support.trees import Machine

FAIL, WARN = Verdict.FAIL, Verdict.WARN
CODES = {check.code for check in AUDITS}


def audited(m: Machine, expected: Expect = SMALL) -> list[Finding]:
    return judge_node(Node(Facts(facts_of(m)), expected), EVERY)


class Fault(NamedTuple):
    code: str
    put: Callable[[Machine], object]
    says: str
    verdict: Verdict = FAIL
    about: str = ""
    expected: Expect = SMALL


def both(*steps: Callable[[Machine], object]) -> Callable[[Machine], object]:
    return lambda m: [step(m) for step in steps]


def put(path: str, text: str) -> Callable[[Machine], object]:
    return lambda m: m.put(path, text)


def edit(path: str, old: str, new: str) -> Callable[[Machine], object]:
    return lambda m: m.edit(path, old, new, count=1)


def log(*parts: guests.Said, uptime_s: float = 90_000) -> Callable[[Machine], object]:
    lines = tuple(line for part in parts for line in part)
    return both(put("/dev/kmsg", guests.kmsg(lines)), put("/proc/uptime", f"{uptime_s} 1.0\n"))


def gone(*paths: str) -> Callable[[Machine], object]:
    def apply(m: Machine) -> None:
        for path in paths:
            m.remove(path)
            m.absent.add(path)

    return apply


def no_vf(m: Machine) -> None:
    """The function never came: neither on PCI nor as an interface."""
    gone(f"/sys/class/net/{VF}", f"/sys/bus/pci/devices/{VF_PCI}")(m)
    m.put("/dev/kmsg", guests.kmsg(guests.BOOT[:1]))


def address(name: str, text: str) -> Callable[[Machine], object]:
    path = trees.cmd_path(["ip", "-j", "addr", "show"])

    def apply(m: Machine) -> None:
        links = json.loads(m.text(path))
        local, _, length = text.partition("/")
        info = [{"family": "inet", "local": local, "prefixlen": int(length)}] if text else []
        m.put(path, json.dumps([link | {"addr_info": info} if link["ifname"] == name else link for link in links]))

    return apply


def second_nic(net: str) -> Callable[[Machine], object]:
    return lambda m: trees.netdev(
        m,
        "eth1",
        mac="00:0d:3a:f5:76:be",
        mtu=1500,
        driver="hv_netvsc",
        device="bus/vmbus/devices/000d3af5-0002",
        address=net,
    )


def by_nm(m: Machine) -> None:
    for path in (f"/run/systemd/netif/links/{guests.VF_INDEX}", guests.NETPLAN):
        del m.files[path]
    m.absent.add("/run/systemd/network")
    for path in ("/run/NetworkManager", f"/run/NetworkManager/devices/{guests.VF_INDEX}"):
        m.absent.discard(path)
    guests.managed_by(m, "NetworkManager")


def bond(*, up: int) -> Callable[[Machine], object]:
    return lambda m: guests.bond(m, up=up)


def flaps(num: int, every_s: float = 60) -> Callable[[Machine], object]:
    lines = [(1_794_990_000 + i * every_s, "systemd-networkd", "ib1: Lost carrier") for i in range(num)]
    return lambda m: guests.journal(m, *lines)


TOLD = expect(
    "Standard_ND96isr_H100_v5",
    gpus=2,
    hca_ports=2,
    gpus_per_numa=(1, 1),
    hcas_per_numa=(1, 1),
    accelerated_networking=True,
)
ONLY_MLX = 'SUBSYSTEM=="net", ENV{ID_NET_DRIVER}=="mlx4_en|mlx5_core", ENV{NM_UNMANAGED}="1"\n'
MAC_ONLY = f"[Match]\nMACAddress={guests.MAC}\n\n[Network]\nDHCP=ipv4\n"
DOC_NETWORK = "[Match]\nDriver=mlx4_en mlx5_en mlx4_core mlx5_core\n\n[Link]\nUnmanaged=yes\n"

FAULTS = [
    Fault("net/synthetic", address(NIC, ""), "eth0 has no address", WARN),
    Fault(
        "net/vf",
        no_vf,
        "it has no VF, though accelerated networking is said to be on",
        about=NIC,
        expected=TOLD.__class__(
            **{
                **{k: getattr(TOLD, k) for k in TOLD.__slots__},
                "origins": {"accelerated_networking": "the cluster file: portal"},
            }
        ),
    ),
    Fault(
        "net/vf",
        no_vf,
        "this VM size has accelerated networking",
        WARN,
        NIC,
        TOLD.__class__(
            **{
                **{k: getattr(TOLD, k) for k in TOLD.__slots__},
                "origins": {"accelerated_networking": "Azure documentation"},
            }
        ),
    ),
    Fault(
        "net/vf-pairing",
        both(gone(f"{SYS_VF}/master"), lambda m: m.absent.add(f"{SYS_VF}/master")),
        "no synthetic NIC holds it",
        about=VF,
    ),
    Fault(
        "net/vf-pairing", put(f"{SYS_VF}/address", "00:0d:3a:00:00:99\n"), "its address is 00:0d:3a:00:00:99", about=VF
    ),
    Fault("net/vf-pairing", put(f"{SYS_VF}/flags", "0x1043\n"), "it is no slave", about=VF),
    Fault(
        "net/no-driver",
        lambda m: trees.pci(m, "7870:00:00.0", vendor="0x1414", device="0x00ba", kind="0x020000", numa=0, driver=""),
        "no driver (mana) holds this MANA function",
        about="7870:00:00.0",
    ),
    Fault("net/vf-managed", address(VF, "10.1.19.5/24"), "it has an address of its own, 10.1.19.5/24", about=VF),
    Fault(
        "net/vf-managed",
        put(f"/run/systemd/netif/links/{guests.VF_INDEX}", "ADMIN_STATE=configured\n"),
        "systemd-networkd manages it",
        about=VF,
    ),
    Fault(
        "net/vf-managed",
        both(by_nm, put(f"/run/NetworkManager/devices/{guests.VF_INDEX}", "[device]\nmanaged=true\n")),
        "NetworkManager manages it",
        about=VF,
    ),
    Fault(
        "net/vf-rules",
        both(by_nm, put(guests.UDEV_RULE, ONLY_MLX)),
        "nothing keeps NetworkManager off a VF of mana",
        WARN,
    ),
    Fault("net/vf-rules", both(by_nm, put(guests.UDEV_RULE, "# empty\n")), "off a VF of mlx4, mlx5, mana", WARN),
    Fault(
        "net/vf-rules",
        put(guests.NETPLAN, MAC_ONLY),
        "nothing keeps systemd-networkd off a VF of mlx4, mlx5, mana",
        WARN,
    ),
    Fault(
        "net/vf-rules",
        both(put(guests.NETPLAN, MAC_ONLY), put("/run/systemd/network/01-azure.network", DOC_NETWORK)),
        "off a VF of mana",
        WARN,
    ),
    Fault(
        "net/managers",
        both(
            lambda m: m.absent.discard("/run/NetworkManager"),
            put(f"/run/NetworkManager/devices/{guests.VF_INDEX}", "managed=false\n"),
        ),
        "systemd-networkd takes eth0 and NetworkManager takes eth0",
        WARN,
    ),
    Fault(
        "net/vf-drivers",
        edit(guests.MODULES, "kernel/drivers/net/ethernet/microsoft/mana/mana.ko.zst: kernel/a.ko\n", ""),
        "has no mana",
        WARN,
    ),
    Fault(
        "net/data-path",
        log(guests.BOOT, ((9000.0, guests.TAKEN[0][1]),)),
        "on the synthetic NIC since 9000 s, though the VF is there",
        WARN,
        NIC,
    ),
    Fault(
        "net/vf-lost",
        both(no_vf, log(guests.BOOT, guests.TAKEN, uptime_s=11_760)),
        "the VF went 3599 s ago and has not come back",
        WARN,
        NIC,
    ),
    Fault(
        "net/revocations",
        log(guests.BOOT, *(guests.later(guests.TAKEN + guests.RETURNED, 10_000.0 * i) for i in range(3))),
        "3 revocations in 24 h",
        WARN,
        NIC,
    ),
    Fault(
        "net/revocations",
        log(guests.BOOT, guests.TAKEN, guests.later(guests.RETURNED, 900)),
        "the VF was away for more than 300 s",
        WARN,
        NIC,
    ),
    Fault(
        "net/vf-share",
        edit(guests.STATS, f"vf_tx_bytes: {99 * guests.GIB}", f"vf_tx_bytes: {20 * guests.GIB}"),
        "73.0 % of 300 GiB",
        WARN,
        NIC,
    ),
    Fault(
        "net/vf-drops",
        edit(guests.STATS, "vf_tx_dropped: 0", "vf_tx_dropped: 30000"),
        "30000 of 9137646 packets",
        WARN,
        NIC,
    ),
    Fault("net/queues", put(guests.CHANNELS, guests.channels(64, 1)), "1 channels, 8 could be used", WARN, NIC),
    Fault(
        "net/vf-bound",
        put(guests.SOCKETS, f"tcp ESTAB 0 0 10.1.19.4%{VF}:5001 10.1.19.9:40000\n"),
        "1 sockets are bound to it (tcp 10.1.19.4:5001)",
        WARN,
        VF,
    ),
    Fault(
        "net/vf-bound",
        put("/proc/net/packet", "sk RefCnt Type Proto Iface R Rmem User Inode\nffff 3 3 0003 3 1 0 0 4242\n"),
        "1 packet sockets listen on it",
        WARN,
        VF,
    ),
    Fault(
        "net/vf-bound",
        lambda m: m.put(
            "/proc/net/route",
            m.text("/proc/net/route") + f"{VF}\t0013010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
        ),
        "a route leads through it",
        WARN,
        VF,
    ),
    Fault(
        "net/same-subnet",
        second_nic("10.1.19.5/24"),
        "eth0 and eth1 are both in 10.1.19.0/24, without policy rules",
        WARN,
    ),
    Fault(
        "net/rename-race",
        lambda m: guests.journal(
            m,
            (
                1_794_990_000,
                "systemd-udevd",
                "eth1: Failed to rename network interface 3 from 'eth1' to 'enP45159s1': Device or resource busy",
            ),
        ),
        "1 interfaces could not be renamed",
        WARN,
    ),
    Fault("net/bond", bond(up=1), "ens0f0 alone carries it", WARN, "bond0"),
    Fault("ib/flaps", flaps(5), "lost its carrier 5 x within 24 h", about="ib1"),
    Fault(
        "ib/flaps",
        log(guests.BOOT, tuple((1000.0 + i, "mlx5_core 0101:00:00.0 ib0: Link down") for i in range(6))),
        "lost its carrier 6 x",
        about="ib0",
    ),
    Fault(
        "ib/gpu-pairing",
        put("/sys/bus/pci/devices/0002:00:00.0/numa_node", "0\n"),
        "some pairs cross the sockets",
        WARN,
    ),
    Fault(
        "ib/guest-rdma",
        both(guests.mana, put("/sys/class/infiniband/mana_0/ports/1/state", "1: DOWN\n")),
        "port mana_0/1 is DOWN",
        WARN,
        "mana_0",
    ),
    Fault(
        "ib/guest-rdma",
        both(guests.mana, put("/sys/class/infiniband/mana_0/ports/1/gid_attrs/types/1", "IB/RoCE v1\n")),
        "has no RoCE v2 GID",
        WARN,
        "mana_0",
    ),
    Fault(
        "slurm/gres",
        edit("/etc/slurm/slurm.conf", "gpu:h100:2", "gpu:h100:8"),
        "slurm.conf says 8 GPUs, gres.conf names 2 files",
    ),
    Fault("slurm/gres", edit("/etc/slurm/gres.conf", "nvidia[0-1]", "nvidia[0-7]"), "/dev/nvidia2, /dev/nvidia3"),
    Fault(
        "slurm/gres", put("/etc/slurm/gres.conf", "Name=gpu Count=2\n"), "neither names files nor looks for them", WARN
    ),
    Fault(
        "slurm/health-program",
        both(gone("/usr/sbin/nhc"), lambda m: m.absent.add("/usr/sbin/nhc")),
        "HealthCheckProgram=/usr/sbin/nhc is not there",
        WARN,
    ),
    Fault(
        "slurm/health-program",
        edit("/etc/slurm/slurm.conf", "HealthCheckInterval=300", "HealthCheckInterval=0"),
        "it is never called",
        WARN,
    ),
    Fault(
        "slurm/topology",
        put("/etc/slurm/topology.conf", "SwitchName=leaf0 Nodes=m[0-15]\n"),
        "topology.conf does not name n0",
        WARN,
    ),
    Fault("host/identity", put("/var/lib/hyperv/.kvp_pool_3", ""), "the host does not give its name", WARN),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.code}-{i}" for i, f in enumerate(FAULTS)])
def test_a_fault_is_named(fault: Fault) -> None:
    m = guests.h100()
    fault.put(m)
    found = [f for f in of(audited(m, fault.expected), fault.code) if f.verdict not in (Verdict.PASS, Verdict.SKIP)]
    assert [f.verdict for f in found] == [fault.verdict], [str(f) for f in of(audited(m, fault.expected), fault.code)]
    assert fault.says in found[0].message
    assert found[0].subject.name == fault.about
    assert found[0].remedy
    assert "{" not in found[0].remedy
    assert found[0].evidence


def test_every_check_can_fail() -> None:
    assert CODES - {f.code for f in FAULTS} == set()


# ---- what is well ----------------------------------------------------------------------------------------------------


def rhel(m: Machine) -> None:
    by_nm(m)
    m.put("/etc/os-release", 'ID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.10"\n')


def flatcar(m: Machine) -> None:
    """Its images bring networkd's own file for VFs, with MANA among the drivers (man 5 systemd.network)."""
    m.put("/etc/os-release", "ID=flatcar\nVERSION_ID=4230.2.0\n")
    m.put("/run/systemd/network/05-vf.network", "[Match]\nDriver=mlx4_en mlx5_core mana\n\n[Link]\nUnmanaged=yes\n")
    m.put(guests.NETPLAN, MAC_ONLY)


def on_mana(m: Machine) -> None:
    """The same image on a host with a MANA NIC: the VF has another name and driver."""
    gone(f"/sys/class/net/{VF}", f"/sys/bus/pci/devices/{VF_PCI}")(m)
    guests.function(m, name="ens1", address="7870:00:00.0", driver="mana")
    m.put(
        "/dev/kmsg", guests.kmsg(guests.BOOT).replace(VF, "ens1").replace("mlx5_core cf63:00:02.0", "mana 7870:00:00.0")
    )


def own_channel_count(m: Machine) -> None:
    m.put("/sys/devices/system/cpu/online", "0-95\n")
    m.put(guests.CHANNELS, guests.channels(4, 4))


HEALTHY: dict[str, tuple[Callable[[Machine], object], Expect]] = {
    "ubuntu": (lambda _: None, SMALL),
    "rhel": (rhel, SMALL),
    "flatcar": (flatcar, SMALL),
    "mana": (on_mana, SMALL),
    "serviced once": (log(guests.BOOT, guests.TAKEN, guests.RETURNED), SMALL),
    "link down while it starts": (
        log(guests.BOOT[:7], ((12.0, "mlx5_core 0101:00:00.0 ib0: Link down"),) * 7, guests.BOOT[7:]),
        SMALL,
    ),
    "four flaps": (flaps(4), SMALL),
    "five flaps in six days": (flaps(5, every_s=100_000), SMALL),
    "two NICs with policy rules": (
        both(
            second_nic("10.1.19.5/24"),
            lambda m: m.put(guests.RULES, m.text(guests.RULES) + "100:\tfrom 10.1.19.5 lookup 100\n"),
            put(trees.cmd_path(["ethtool", "-S", "eth1"]), "NIC statistics:\n     vf_tx_bytes: 0\n"),
            put(trees.cmd_path(["ethtool", "-l", "eth1"]), guests.channels(8, 8)),
        ),
        expect(
            "Standard_ND96isr_H100_v5",
            gpus=2,
            hca_ports=2,
            gpus_per_numa=(1, 1),
            hcas_per_numa=(1, 1),
            accelerated_networking=None,
        ),
    ),
    "a small NIC": (own_channel_count, SMALL),
    "bond of two": (bond(up=2), SMALL),
    "Guest RDMA": (guests.mana, SMALL),
    "Slurm finds the GPUs": (put("/etc/slurm/gres.conf", "AutoDetect=nvml\n"), SMALL),
    "no Slurm": (
        lambda m: [
            m.remove("/etc/slurm"),
            m.put("/etc/slurm/plugstack.conf", ""),
            m.absent.update(
                {f"{p}/slurm.conf" for p in ("/etc/slurm", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")}
            ),
        ],
        SMALL,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_well_raises_no_alarm(name: str) -> None:
    change, expected = HEALTHY[name]
    m = guests.h100()
    change(m)
    assert troubles(f for f in audited(m, expected) if f.code in CODES) == []


FAMILIES: dict[str, tuple[Callable[[], Machine], Expect]] = {
    "ND A100 v4": (lambda: guests.accelerated(trees.nd_a100_v4()), expect("Standard_ND96asr_v4")),
    "ND MI300X v5": (lambda: guests.accelerated(trees.nd_mi300x_v5()), expect("Standard_ND96isr_MI300X_v5")),
    "HB v4": (lambda: guests.accelerated(trees.hb176rs_v4()), expect("Standard_HB176rs_v4")),
    "ND GB300 v6": (lambda: guests.accelerated(trees.nd_gb300_v6()), expect("Standard_ND128isr_GB300_v6")),
    "NC v6": (lambda: guests.accelerated(trees.ncv6()), expect("Standard_NC72ds_xl_RTXPRO6000BSE_v6", hca_ports=0)),
    "D v6": (lambda: guests.accelerated(trees.plain()), expect("other", gpus=0, hca_ports=0)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_node_of_each_family_raises_no_alarm(family: str) -> None:
    build, expected = FAMILIES[family]
    assert troubles(f for f in audited(build(), expected) if f.code in CODES) == []


def test_a_machine_without_synthetic_nics_is_not_asked_about_them() -> None:
    """Bare metal, another cloud, a lab: nothing to judge, and no hole."""
    m = trees.plain()
    guests.drop_nic(m, "eth0")
    trees.netdev(
        m,
        "eth0",
        mac="02:00:00:00:00:01",
        mtu=1500,
        driver="virtio_net",
        device="bus/pci/devices/0000:00:03.0",
        address="10.0.0.4/24",
    )
    m.put("/dev/kmsg", "6,1,0,-;Linux version 6.8.0\n")
    found = [
        f
        for f in audited(m, expect("other", gpus=0, hca_ports=0))
        if f.code.startswith("net/vf") or f.code in ("net/data-path", "net/queues")
    ]
    assert {f.verdict for f in found} == {Verdict.SKIP}


def test_a_container_is_not_told_of_its_machines_log() -> None:
    m = guests.h100()
    m.links["/proc/self/ns/pid"] = "pid:[4026532201]"
    log(guests.BOOT, guests.TAKEN)(m)
    assert verdict(audited(m), "net/vf-lost") is Verdict.SKIP


def test_a_log_that_lost_its_beginning_leaves_the_path_open() -> None:
    m = guests.h100()
    m.put("/dev/kmsg", "6,900,80000000000,-;hv_balloon: Max. dynamic memory size: 8192 MB\n")
    assert verdict(audited(m), "net/data-path") is Verdict.UNKNOWN
