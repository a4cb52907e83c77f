"""Nodes that are not as the published check list wants them, from the tree to the verdict.

Each fault is written from what the list says passes and from the format's own documentation (man 5 proc, proc_swaps,
slurm.conf, gres.conf, topology.conf; linux sysfs-class-infiniband; nvidia-smi's manual; learn.microsoft.com,
instance-metadata-service), before the rules were opened; those of CPUs, memory, character devices and gres were known.
Labels follow the list, but for S10: it wants a health program
everywhere, and a slurm.conf that names none is skipped, since sites run theirs by a timer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fairlead.checks import judge, judge_node
from fairlead.checks.audits import EVERY
from fairlead.checks.node import Node
from fairlead.records.facts import Facts
from fairlead.records.verdict import Verdict
from support import guests, trees
from support.judging import SMALL, facts_of, spec_of
from support.trees import Machine

FAIL, WARN = Verdict.FAIL, Verdict.WARN
Said = set[tuple[str, Verdict]]


@dataclass(frozen=True)
class Fault:
    id: str
    spoil: Callable[[Machine], object]
    said: Said


def rewritten(path: str, pattern: str, new: str) -> Callable[[Machine], None]:
    def change(m: Machine) -> None:
        text, num = re.subn(pattern, new, m.text(path), flags=re.MULTILINE)
        assert num, (path, pattern)
        m.put(path, text)

    return change


def put(path: str, text: str) -> Callable[[Machine], None]:
    return lambda m: m.put(path, text)


def missing(path: str) -> Callable[[Machine], None]:
    def change(m: Machine) -> None:
        m.remove(path)
        m.absent.add(path)

    return change


def small_shm(m: Machine) -> None:
    """What a container has by default: 64 MB."""
    for path in [p for p in m.files if p.startswith("/cmd/stat_-f") and ":/dev/shm" in m.text(p)]:
        rewritten(path, r"^.*:/dev/shm$", "4096:16384:16384:24000000:23999990:/dev/shm")(m)


def platform(**fields: str) -> Callable[[Machine], None]:
    return lambda m: m.put(trees.IMDS, json.dumps({**json.loads(m.text(trees.IMDS)), **fields}))


def without_peermem(m: Machine) -> None:
    """The closed kernel module, and no nvidia_peermem beside it: neither way to the GPU's memory."""
    rewritten("/proc/modules", r"^nvidia_peermem .*\n", "")(m)
    m.remove("/sys/module/nvidia_peermem")
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
    m.put("/proc/driver/nvidia/version", closed)


SWAPS = f"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n{'/dev/sda2':<40}partition\t2097148\t\t0\t\t-2\n"
FAULTS = [
    Fault("H1", rewritten("/proc/self/limits", r"^Max locked memory.*$",
                          "Max locked memory         65536                65536                bytes     "),
          {("host/memlock", FAIL)}),
    Fault("H2", small_shm, {("host/shm", FAIL)}),
    Fault("H3", put("/sys/devices/system/cpu/online", "0-47\n"), {("host/cpus", FAIL)}),
    Fault("H3", rewritten("/proc/meminfo", r"^MemTotal: .*$", "MemTotal:       990000000 kB"), {("host/memory", FAIL)}),
    Fault("H3", put("/proc/swaps", SWAPS), {("host/swap", WARN)}),
    Fault("H3", put("/proc/sys/kernel/numa_balancing", "1\n"), {("host/numa-settings", WARN)}),
    Fault("H7", put(trees.SMI + ".took", "7.500\n"), {("gpu/tool-latency", WARN)}),
    Fault("U9", lambda m: m.edit(trees.SMI, "<current_link_width>16x", "<current_link_width>8x", count=1),
          {("gpu/pcie-width", FAIL)}),
    Fault("U13", without_peermem, {("gpu/gpudirect", WARN)}),
    Fault("I10", put("/sys/bus/pci/devices/0102:00:00.0/numa_node", "0\n"),
          {("ib/numa", WARN), ("ib/gpu-pairing", WARN)}),
    Fault("I11", lambda m: m.remove("/dev/infiniband/uverbs1"), {("ib/char-devices", FAIL)}),
    Fault("I12", put("/sys/class/net/ib0/operstate", "down\n"), {("ib/ipoib", WARN)}),
    Fault("F2", platform(vmSize="Standard_ND96is_H100_v5"), {("host/vm-size", FAIL)}),
    Fault("F4", put("/var/lib/hyperv/.kvp_pool_3", ""), {("host/identity", WARN)}),
    Fault("S10", missing("/usr/sbin/nhc"), {("slurm/health-program", WARN)}),
    Fault("S12", rewritten("/etc/slurm/gres.conf", r"nvidia\[0-1\]", "nvidia[0-7]"), {("slurm/gres", FAIL)}),
    Fault("S13", put("/etc/slurm/topology.conf", "SwitchName=leaf0 Nodes=other[0-15]\n"), {("slurm/topology", WARN)}),
]  # fmt: skip


def said(m: Machine) -> Said:
    findings = judge_node(Node(Facts(facts_of(m)), SMALL), EVERY)
    return {(f.code, f.verdict) for f in findings if f.verdict not in (Verdict.PASS, Verdict.SKIP)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.id} {min(f.said)[0]}")
def test_a_node_that_is_not_as_the_list_wants_it(fault: Fault) -> None:
    m = guests.h100()
    fault.spoil(m)
    assert said(m) == fault.said


def test_what_the_list_wants_is_well() -> None:
    """Also where umad and issm are not there, and 32 GiB may be locked: both are enough."""
    m = guests.h100()
    for name in [p for p in m.files if re.match(r"/dev/infiniband/(umad|issm)", p)]:
        m.remove(name)
    size = str(32 << 30)
    line = f"Max locked memory         {size:<20} {size:<20} bytes     "
    rewritten("/proc/self/limits", r"^Max locked memory.*$", line)(m)
    assert said(m) == set()


@pytest.mark.parametrize(
    ("id_", "spoil", "code"),
    [
        ("U4", rewritten("/proc/driver/nvidia/version", r"\d+\.\d+\.\d+", "535.54.03"), "skew/gpu-driver"),
        ("I8", put("/sys/class/infiniband/mlx5_ib0/fw_ver", "28.36.1010\n"), "skew/hca-firmware"),
        ("F1", platform(placementGroupId="00000000-0000-4000-8000-000000000002"), "skew/placement"),
        ("S14", rewritten("/etc/os-release", r"^VERSION_ID=.*$", 'VERSION_ID="20.04"'), "skew/os"),
    ],
)
def test_the_node_that_differs_is_named(id_: str, spoil: Callable[[Machine], None], code: str) -> None:
    records = []
    for name in ("n0", "n1", "n2", "n3"):
        m = guests.h100(name)
        if name == "n2":
            spoil(m)
        records.append(facts_of(m, name))
    findings = judge(records, spec_of("Standard_ND96isr_H100_v5", nodes="n[0-3]"), checks=EVERY)
    found = [f for f in findings if f.code == code and f.verdict in (FAIL, WARN)]
    assert found, id_
    assert all("n2" in f.subject.nodes for f in found)
