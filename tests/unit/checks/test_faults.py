# ruff: noqa: E501 - one line a fault, so that the table can be read as one
"""Every check of the catalogue, made to fail: one line a fault, put into the machine as the kernel or the tool would show it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from fairlead.checks import CATALOG, Expect
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import SMALL, expect, judged, of, small
from support.trees import Machine

IB0 = "/sys/class/infiniband/mlx5_ib0"
PORT = f"{IB0}/ports/1"
GPU0, GPU1 = "0001:00:00.0", "0002:00:00.0"
INFO = f"/proc/driver/nvidia/gpus/{GPU0}/information"
FAIL, WARN = Verdict.FAIL, Verdict.WARN


class Fault(NamedTuple):
    code: str
    put: Callable[[Machine], object]
    says: str
    """Part of the message."""
    verdict: Verdict = FAIL
    about: str = ""
    """The part of the node it must name."""
    expected: Expect = SMALL


def edit(path: str, old: str, new: str, count: int = 1) -> Callable[[Machine], object]:
    return lambda m: m.edit(path, old, new, count=count)


def put(path: str, text: str) -> Callable[[Machine], object]:
    return lambda m: m.put(path, text)


def smi(old: str, new: str) -> Callable[[Machine], object]:
    """In the first GPU's element."""
    return edit(trees.SMI, old, new)


def log(line: str, *, level: int = 3, num: int = 1, seconds: int = 89_000) -> Callable[[Machine], object]:
    records = "".join(f"{level},{2000 + i},{seconds + i}000000,-;{line}\n" for i in range(num))
    return lambda m: m.put("/dev/kmsg", m.text("/dev/kmsg") + records)


def gone(*paths: str) -> Callable[[Machine], object]:
    """Removed, and known to be absent: a directory entry that is no longer there."""

    def apply(m: Machine) -> None:
        for path in paths:
            m.remove(path)

    return apply


def both(*steps: Callable[[Machine], object]) -> Callable[[Machine], object]:
    return lambda m: [step(m) for step in steps]


def mounted(*rows: tuple[str, str, str, str, int, float]) -> Callable[[Machine], object]:
    return lambda m: trees.mounts(m, rows)


def units(**active: str) -> Callable[[Machine], object]:
    return lambda m: trees.services(m, **active)


def imds(**fields: str) -> Callable[[Machine], object]:
    return put("/http/169.254.169.254_metadata", json.dumps({"vmId": "1", **fields}))


def event(kind: str, not_before: str, *, vm: str = "n0") -> Callable[[Machine], object]:
    """An event as the service's documentation shows one."""
    said = {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [vm],
        "EventStatus": "Scheduled",
        "NotBefore": not_before,
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return put(trees.EVENTS, json.dumps({"DocumentIncarnation": 2, "Events": [said]}))


def without_module(name: str) -> Callable[[Machine], object]:
    line = f"{name} 16384 0 - Live 0x0000000000000000\n"
    return both(edit("/proc/modules", line, ""), gone(f"/sys/module/{name}"))


def no_rdma_device(m: Machine) -> None:
    gone("/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband")(m)
    m.absent |= {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband"}


ROCE = dataclasses.replace(
    SMALL, link="ethernet", rdma="roce", values={**SMALL.values, "hca_ports": 1, "hca_rates_gbps": (100.0,)}
)


def roce_port(m: Machine) -> None:
    trees.hca(m, "mlx5_2", address="0003:00:00.0", numa=0, rate="100 Gb/sec (4X EDR)", link="Ethernet")


NAN = "nvidia-smi is no evidence"

FAULTS = [
    # the machine
    Fault("host/arch", put(trees.cmd_path(["uname", "-m"]), "aarch64\n"), "aarch64, expected x86_64"),
    Fault("host/vm-size", imds(vmSize="Standard_ND96isr_H200_v5"), "the platform calls it Standard_ND96isr_H200_v5"),
    Fault("host/scheduled-event", event("Redeploy", "Wed, 18 Nov 2026 11:30:00 GMT"), "Redeploy in "),
    Fault("host/cpus", put("/sys/devices/system/cpu/online", "0-46,48-95\n"), "95 processors, expected 96"),
    Fault("host/cpus", put("/sys/devices/system/cpu/online", "0-103\n"), "104 processors", WARN),
    Fault("host/memory", edit("/proc/meminfo", "1915071000", "1715071000"), "1636 GiB of memory, expected 1900"),
    Fault("host/memory", edit("/proc/meminfo", "1915071000", "2515071000"), "more than the 1900 expected", WARN),
    Fault("host/nvme", gone("/sys/class/nvme/nvme3"), "7 local NVMe disks, expected 8"),
    # host health
    Fault("host/swap", both(edit("/proc/meminfo", "SwapTotal:             0 kB", "SwapTotal:       8388604 kB"),
                            put("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/mnt/swapfile file 8388604 0 -2\n")),
          "8 GiB of swap on /mnt/swapfile", WARN),
    Fault("host/numa-settings", put("/proc/sys/kernel/numa_balancing", "1\n"), "kernel.numa_balancing is 1", WARN),
    Fault("host/numa-settings", put("/proc/sys/vm/zone_reclaim_mode", "1\n"), "vm.zone_reclaim_mode is 1", WARN),
    Fault("host/memlock", edit("/proc/self/limits", "Max locked memory         unlimited            unlimited ",
                               "Max locked memory         65536                65536     "), "only 64 KiB may be locked"),
    Fault("host/shm", lambda m: (m.edit(trees.cmd_path(trees.stat_words(m)), f":{443 * 2**30 // 4096}:", ":16384:", count=1)),
          "/dev/shm holds only 64 MiB"),
    Fault("host/shm", edit("/proc/self/mounts", "tmpfs /dev/shm tmpfs", "/dev/sdb /dev/shm ext4"), "/dev/shm is on ext4, not in memory"),
    Fault("host/disk-space", mounted(("/dev/sdb1", "/mnt", "ext4", "rw", 1000, 0.97)), "/mnt: 97 % of its space used", about="/mnt"),
    Fault("host/disk-space", mounted(("/dev/sdb1", "/mnt", "ext4", "rw", 1000, 0.92)), "/mnt: 92 % of its space used", WARN, "/mnt"),
    Fault("host/read-only", edit("/proc/self/mounts", "/dev/sda1 / ext4 rw", "/dev/sda1 / ext4 ro"), "/ is mounted read-only", about="/"),
    Fault("host/remote-mount", gone(trees.cmd_path(["stat", "-f", "-c", trees.FORMAT, "/shared/home"])), "could not read mounts.remote",
          Verdict.UNKNOWN, "/shared/home"),
    Fault("host/failed-services", put(trees.cmd_path(trees.SYSTEMCTL_FAILED), "openibd.service loaded failed failed openibd\n"),
          "failed: openibd.service", WARN),
    Fault("host/stuck-processes", put("/proc/500/stat", "500 (nvidia-smi) D 412 500 500 0 -1 4194560 1 2 3 4\n"),
          "blocked in the kernel: nvidia-smi (500)", WARN),
    Fault("host/stuck-processes", lambda m: [m.put(f"/proc/{p}/stat", f"{p} (sh) Z 1 1 1 0 -1 0\n") for p in range(600, 625)],
          "25 zombie processes", WARN),
    Fault("host/kernel-faults", log("watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python3:4242]", level=0), "a processor was stuck"),
    Fault("host/kernel-faults", log("EXT4-fs error (device sda1): ext4_find_entry:1658: inode #2: comm ls: reading directory lblock 0"),
          "a file system is damaged"),
    Fault("host/kernel-faults", log("{1}[Hardware Error]: event severity: fatal", level=4),
          "an error that nothing corrected"),
    Fault("host/kernel-faults", log("{1}[Hardware Error]: event severity: corrected", level=4, num=10),
          "corrected hardware errors (10 x)", WARN),
    Fault("host/kernel-faults", log("Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB"), "ran out of memory", WARN),
    Fault("host/clock", put(trees.cmd_path(trees.CHRONYC), "00000000,,0,0,0.0,0.0,0.0,0,0,0,1,1,0.0,Not synchronised\n"), "not synchronised", WARN),
    Fault("host/clock", edit(trees.cmd_path(trees.CHRONYC), "0.000004120", "-2.500000000"), "2.500 s off", WARN),
    Fault("net/default-route", put("/sys/class/net/eth0/operstate", "down\n"), "eth0 is down", WARN),
    Fault("net/place", put("/etc/fairlead/place.json", "{"), "/etc/fairlead/place.json is no JSON", WARN),
    Fault("net/place", put("/etc/fairlead/place.json", '{"ports": "all"}'), "Expected `array`, got `str` - at `$.ports`", WARN),
    Fault("net/place", put("/etc/fairlead/place.json", '{"address": "10.1.0.7"}'), "", Verdict.PASS),
    Fault("net/socket-interface", put("/etc/nccl.conf", "NCCL_SOCKET_IFNAME=bond0\n"), "", Verdict.PASS),
    Fault("net/socket-interface", put("/proc/self/environ", "NCCL_SOCKET_IFNAME=bond0\0"), "NCCL_SOCKET_IFNAME=bond0: no such interface"),
    Fault("net/socket-interface", put("/sys/class/net/eth0/operstate", "down\n"), "eth0 is down or has no address"),
    # GPUs
    Fault("gpu/count", both(gone(f"/sys/bus/pci/devices/{GPU0}"), gone("/dev/nvidia0")), "PCI shows 1 of 2 GPUs", about="PCI"),
    Fault("gpu/count", gone("/dev/nvidia1"), "device files shows 1 of 2 GPUs", about="device files"),
    Fault("gpu/count", lambda m: m.put(trees.SMI, trees.drop_gpu(m.text(trees.SMI), 1)), "nvidia-smi shows 1 of 2 GPUs", about="nvidia-smi"),
    Fault("gpu/count", gone(f"/proc/driver/nvidia/gpus/{GPU1}"), "kernel driver shows 1 of 2 GPUs", about="kernel driver"),
    Fault("gpu/driver", both(without_module("nvidia")), "the module nvidia is not loaded"),
    Fault("gpu/nouveau", lambda m: trees.modules(m, "nouveau"), "the module nouveau is loaded"),
    Fault("gpu/excluded", edit(INFO, "GPU Excluded:\t No", "GPU Excluded:\t Yes"), "the driver excludes this GPU", about=GPU0),
    Fault("gpu/model", smi("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), "A100-SXM4-80GB, expected H100", about=GPU0),
    Fault("gpu/mig", smi("<current_mig>Disabled", "<current_mig>Enabled"), "MIG is enabled", WARN, GPU0),
    Fault("gpu/ecc", smi("<dram_uncorrectable>0", "<dram_uncorrectable>3"), "dram uncorrectable 3", about=GPU0),
    Fault("gpu/ecc", smi("<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes"), "more SRAM errors", about=GPU0),
    Fault("gpu/row-remap", smi("<remapped_row_pending>No", "<remapped_row_pending>Yes"), "waits to be remapped", about=GPU0),
    Fault("gpu/row-remap", smi("<remapped_row_failure>No", "<remapped_row_failure>Yes"), "remapping a memory row failed", about=GPU0),
    Fault("gpu/row-remap", smi("<remapped_row_unc>0", "<remapped_row_unc>600"), "600 rows were remapped", about=GPU0),
    Fault("gpu/needs-reset", smi("<gpu_recovery_action>None", "<gpu_recovery_action>Reset"), "the driver asks for: Reset", about=GPU0),
    Fault("gpu/needs-reset", smi("<reset_required>No", "<reset_required>Yes"), "asks for a reset", about=GPU0),
    Fault("gpu/xid", log(f"NVRM: Xid (PCI:{GPU0[:10]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
          "Xid 79 (the GPU fell off the bus) on 0001:00:00"),
    Fault("gpu/xid", log(f"NVRM: Xid (PCI:{GPU0[:10]}): 200, something new"), "Xid 200 (not in the table)", WARN),
    Fault("gpu/throttle", smi("hw_power_brake_slowdown>Not Active", "hw_power_brake_slowdown>Active"), "power brake", about=GPU0),
    Fault("gpu/throttle", smi("_sw_thermal_slowdown>Not Active", "_sw_thermal_slowdown>Active"), "software thermal slowdown", WARN, GPU0),
    Fault("gpu/throttle", lambda m: m.put(trees.SMI, m.text(trees.SMI).replace("clocks_event_reason", "clocks_throttle_reason").replace(
        "hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active", 1)), "hardware thermal slowdown", about=GPU0),
    Fault("gpu/temperature", smi("<gpu_temp>33 C", "<gpu_temp>96 C"), "96 C, more than 93", about=GPU0),
    Fault("gpu/inforom", lambda m: m.put(trees.SMI, m.text(trees.SMI) + f"WARNING: infoROM is corrupted at gpu {GPU0}\n"), "its infoROM is corrupted", WARN, GPU0),
    Fault("gpu/persistence", smi("<persistence_mode>Enabled", "<persistence_mode>Disabled"), "persistence mode is disabled", WARN, GPU0),
    Fault("gpu/pcie-width", smi("<current_link_width>16x", "<current_link_width>8x"), "PCIe link at 8x, expected 16x", about=GPU0),
    Fault("gpu/busy", smi("<processes>\n\t\t</processes>", "<processes><process_info><pid>4242</pid><type>C</type><process_name>python3"
                          "</process_name><used_memory>70000 MiB</used_memory></process_info></processes>"), "in use by python3 (4242)", WARN, GPU0),
    Fault("gpu/nvlink", edit(trees.NVLINK, "Link 7: 26.562 GB/s", "Link 7: <inactive>"), "17 of 18 NVLinks up; inactive: 7", about=GPU0),
    Fault("gpu/fabric", smi("<state>Completed</state>\n\t\t\t<status>Success", "<state>In Progress</state>\n\t\t\t<status>N/A"),
          "not in the NVLink fabric: In Progress", about=GPU0),
    Fault("gpu/fabric-manager", units(nvidia_fabricmanager="failed"), "nvidia-fabricmanager is failed"),
    Fault("gpu/fabric-manager", units(), "nvidia-fabricmanager is inactive (not installed)"),
    Fault("gpu/gpudirect", both(without_module("nvidia_peermem"), edit("/proc/driver/nvidia/version", "Open Kernel Module for x86_64",
                                                                       "x86_64 Kernel Module")), "neither nvidia-peermem nor dma-buf", WARN),
    Fault("gpu/numa", put(f"/sys/bus/pci/devices/{GPU1}/numa_node", "0\n"), "GPUs per NUMA node: 2, 0; expected 1, 1", WARN),
    # RDMA
    Fault("ib/driver", both(no_rdma_device, without_module("mlx5_ib")), "no RDMA device, and the module mlx5_ib is not loaded"),
    Fault("ib/driver", no_rdma_device, "no device registered"),
    Fault("ib/count", gone(IB0), "1 of 2 RDMA ports"),
    Fault("ib/count", no_rdma_device, "no RDMA port counts"),
    Fault("ib/count", lambda m: trees.hca(m, "mlx5_ib2", address="0103:00:00.0", numa=1, rate="400 Gb/sec (4X NDR)"), "3 RDMA ports, expected 2", WARN),
    Fault("ib/registered", both(gone(IB0), gone("/sys/bus/pci/devices/0101:00:00.0/driver"),
                                lambda m: m.absent.add("/sys/bus/pci/devices/0101:00:00.0/driver")), "no driver holds it", about="0101:00:00.0"),
    Fault("ib/link-layer", put(f"{PORT}/link_layer", "Ethernet\n"), "link layer Ethernet, expected InfiniBand", about="mlx5_ib0/1",
          expected=expect("Standard_ND96isr_H100_v5", hcas=("mlx5_ib0", "mlx5_ib1"))),
    Fault("ib/port-state", both(put(f"{PORT}/state", "1: DOWN\n"), put(f"{PORT}/phys_state", "2: Polling\n")), "DOWN, Polling", about="mlx5_ib0/1"),
    Fault("ib/port-state", put(f"{PORT}/state", "2: INIT\n"), "INIT, LinkUp", about="mlx5_ib0/1"),
    Fault("ib/port-state", put(f"{PORT}/phys_state", "6: LinkErrorRecovery\n"), "ACTIVE, LinkErrorRecovery", about="mlx5_ib0/1"),
    Fault("ib/port-rate", put(f"{PORT}/rate", "200 Gb/sec (2X NDR)\n"), "200 Gb/sec (2X NDR), expected 400", about="mlx5_ib0/1"),
    Fault("ib/pkey", both(put(f"{PORT}/pkeys/0", "0x7fff\n"), put(f"{PORT}/pkeys/1", "0x0000\n")), "limited member only: 0x7fff", about="mlx5_ib0/1"),
    Fault("ib/pkey", both(put(f"{PORT}/pkeys/0", "0x0000\n"), put(f"{PORT}/pkeys/1", "0x0000\n")), "P_Key table is empty", about="mlx5_ib0/1"),
    Fault("ib/lid", put(f"{PORT}/lid", "0xffff\n"), "lid not assigned", about="mlx5_ib0/1"),
    Fault("ib/lid", put(f"{PORT}/sm_lid", "0x0\n"), "sm_lid not assigned", about="mlx5_ib0/1"),
    Fault("ib/gid", both(roce_port, lambda m: m.put("/sys/class/infiniband/mlx5_2/ports/1/gid_attrs/types/1", "IB/RoCE v1\n")),
          "no RoCE v2 GID", about="mlx5_2/1", expected=ROCE),
    Fault("ib/naming", put(f"{PORT}/link_layer", "Ethernet\n"), "mlx5_ib0 is Ethernet", WARN),
    Fault("ib/char-devices", gone("/dev/infiniband/uverbs1"), "no uverbs file for mlx5_ib0"),
    Fault("ib/numa", put("/sys/bus/pci/devices/0101:00:00.0/numa_node", "1\n"), "HCAs per NUMA node: 0, 2; expected 1, 1", WARN),
    Fault("ib/ipoib", put("/sys/class/net/ib1/operstate", "down\n"), "ib1 is down", WARN, "mlx5_ib1/1"),
    Fault("ib/kernel-messages", log("mlx5_core 0101:00:00.0: poll_health:942:(pid 0): device's health compromised - reached miss count", level=2),
          "the firmware of an HCA reports that it is unwell"),
    Fault("ib/kernel-messages", log("mlx5_core 0101:00:00.0: mlx5_pcie_event:326:(pid 3202): Detected insufficient power on the PCIe slot (27W)."),
          "gives little power", WARN),
    Fault("ib/kernel-messages", log("mlx5_core 0101:00:00.0: mlx5_cmd_out_err:839:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter",
                                    num=110), "polls it too eagerly (110 x)", WARN),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.code}: {f.says[:40]}")
def test_fault(fault: Fault) -> None:
    m = small()
    fault.put(m)
    found = of(judged(m, fault.expected), fault.code)
    hits = [f for f in found if f.verdict is fault.verdict and fault.says in f.message]
    assert hits, [str(f) for f in found]
    assert hits[0].subject.nodes == ("n0",)
    if fault.about:
        assert hits[0].subject.name == fault.about
    if fault.verdict is not Verdict.PASS:
        assert hits[0].remedy
        assert "{" not in hits[0].remedy
        assert hits[0].evidence


def test_every_check_can_fail() -> None:
    """Each line of the catalogue has a fault above that it reports."""
    shown = {f.code for f in FAULTS if f.verdict is not Verdict.PASS}
    have_their_own_tests = {"gpu/tool-latency", "gpu/diagnostic"}
    assert {c.code for c in CATALOG} - shown - have_their_own_tests == set()


def test_slow_tool() -> None:
    from fairlead.checks import judge_node
    from fairlead.checks.node import Node
    from fairlead.records.facts import Facts
    from support.judging import facts_of

    record = facts_of(small())
    record.facts["nvidia"]["smi"]["took_s"] = 7.2
    found = of(judge_node(Node(Facts(record), SMALL)), "gpu/tool-latency")
    assert [(f.verdict, f.message) for f in found] == [(WARN, "nvidia-smi took 7.2 s")]


def test_one_fault_does_not_hide_in_the_others() -> None:
    """The ports that are well are folded into one line; the one that is not stands alone."""
    m = small()
    m.put(f"{PORT}/rate", "200 Gb/sec (2X NDR)\n")
    found = of(judged(m), "ib/port-rate")
    assert [(f.verdict, f.subject.name, f.message) for f in found] == [
        (FAIL, "mlx5_ib0/1", "200 Gb/sec (2X NDR), expected 400 Gb/s"),
        (Verdict.PASS, "", "400 Gb/s"),
    ]
    assert found[0].data["limit_source"].startswith("Azure documentation, ND-H100-v5")
    assert ("/sys/class/infiniband/mlx5_ib0/ports/1/rate", "200 Gb/sec (2X NDR)") in [
        (e.source, e.value) for e in found[0].evidence
    ]


@pytest.mark.parametrize(("hours", "expected"), [(2, WARN), (23, WARN), (25, Verdict.PASS)])
def test_some_messages_are_forgiven_after_a_day(hours: int, expected: Verdict) -> None:
    m = small()
    m.put("/proc/uptime", f"{40 * 3600}.0 1.0\n")
    log("Out of memory: Killed process 4242 (python3)", seconds=(40 - hours) * 3600)(m)
    assert of(judged(m), "host/kernel-faults")[0].verdict is expected


def test_messages_that_did_not_fit_are_no_good_news() -> None:
    """With messages left out, `none found` is not evidence of none."""
    m = small()
    words = ["".join(letters) for letters in itertools.product("abcdefghijklm", repeat=3)][:1500]
    lines = "".join(f"4,{i},{1000 + i}000000,-;driver {w}: some warning of its own\n" for i, w in enumerate(words))
    m.put("/dev/kmsg", lines)
    assert of(judged(m), "host/kernel-faults")[0].verdict is Verdict.UNKNOWN
