"""Healthy machines, and the traps that have made other tools replace healthy machines: nothing may be reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fairlead.checks import Expect, judge
from fairlead.records.verdict import Verdict
from support import judging, trees
from support.judging import SMALL, expect, facts_of, judged, of, small, spec_of, troubles, verdict

HEALTHY: list[tuple[Callable[[], trees.Machine], str, str, str]] = [
    (trees.nd_h100_v5, "Standard_ND96isr_H100_v5", "infiniband", "ib"),
    (trees.nd_a100_v4, "Standard_ND96asr_v4", "infiniband", "ib"),
    (trees.nd_gb300_v6, "Standard_ND128isr_GB300_v6", "infiniband", "ib"),
    (trees.nd_mi300x_v5, "Standard_ND96isr_MI300X_v5", "infiniband", "ib"),
    (trees.hb176rs_v4, "Standard_HB176rs_v4", "infiniband", "ib"),
    (trees.ncv6, "Standard_NC72ds_xl_RTXPRO6000BSE_v6", "ethernet", "none"),
    (trees.plain, "other", "ethernet", "none"),
]


@pytest.mark.parametrize(("machine", "size", "link", "rdma"), HEALTHY, ids=lambda v: getattr(v, "__name__", None))
def test_healthy_machine(machine: Callable[[], trees.Machine], size: str, link: str, rdma: str) -> None:
    findings = judge([facts_of(machine())], spec_of(size, link=link, rdma=rdma))
    assert troubles(findings) == []
    assert verdict(findings, "host/memory") == (Verdict.SKIP if size == "other" else Verdict.PASS)


def test_what_is_passed_is_what_is_there() -> None:
    """A clean bill is worth something: the numbers stand in it."""
    findings = judge([facts_of(trees.nd_h100_v5())], spec_of("Standard_ND96isr_H100_v5"))
    said = {f.code: f.message for f in findings if f.verdict is Verdict.PASS}
    assert said["ib/port-rate"] == "8 x 400 Gb/s"
    assert said["gpu/count"] == "4 x 8 GPUs"
    assert said["gpu/nvlink"] == "8 x 18 NVLinks up"
    assert said["ib/count"] == "8 RDMA ports"
    assert said["ib/pkey"] == "8 x full member of 0x8001"


# ---- the traps: each made some tool fail a healthy node --------------------------------------------------------------

H100 = expect("Standard_ND96isr_H100_v5")
GB300 = expect("Standard_ND128isr_GB300_v6")


def test_issm_absent() -> None:
    """GB300 has no issm files (NVSentinel #1663, #1716)."""
    m = trees.nd_gb300_v6()
    assert not [f for f in m.files if "issm" in f]
    assert verdict(judged(m, GB300), "ib/char-devices") is Verdict.PASS


def test_functions_without_an_interface_count() -> None:
    """InfiniBand functions of GB300 have no network interface; a tool that looks there sees 0 of 4."""
    findings = judged(trees.nd_gb300_v6(), GB300)
    assert of(findings, "ib/count")[0].message == "4 RDMA ports"
    assert verdict(findings, "ib/ipoib") is Verdict.SKIP


def test_disabled_auxiliary_port() -> None:
    """A ninth port that nobody provisioned is switched off (NVSentinel #1361)."""
    m = small()
    trees.hca(m, "mlx5_ib9", address="0199:00:00.0", numa=0, rate="10 Gb/sec (4X SDR)")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/state", "1: DOWN\n")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/phys_state", "3: Disabled\n")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/lid", "0xffff\n")
    assert troubles(judged(m)) == []


def test_a_spare_port_without_a_cable_fails_no_node() -> None:
    """More ports than the size has, as many active as there should be, and one more that nothing is plugged into."""
    m = small()
    trees.hca(m, "mlx5_ib9", address="0199:00:00.0", numa=0, rate="10 Gb/sec (4X SDR)")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/state", "1: DOWN\n")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/phys_state", "2: Polling\n")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/lid", "0xffff\n")
    findings = judged(m)
    (found,) = [f for f in of(findings, "ib/port-state") if f.verdict is not Verdict.PASS]
    assert (found.verdict, found.subject.name) == (Verdict.WARN, "mlx5_ib9/1")
    assert "expected ACTIVE, LinkUp, if anybody uses it" in found.message
    assert not [f for f in findings if f.verdict is Verdict.FAIL]


@pytest.mark.parametrize("chosen", [{"hcas": ("mlx5_ib0", "mlx5_ib1", "mlx5_ib9")}, {}])
def test_a_port_that_is_asked_for_by_name_is_no_spare_one(chosen) -> None:
    """By the cluster file, or by the setting that NCCL reads."""
    m = small()
    trees.hca(m, "mlx5_ib9", address="0199:00:00.0", numa=0, rate="10 Gb/sec (4X SDR)")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/state", "1: DOWN\n")
    m.put("/sys/class/infiniband/mlx5_ib9/ports/1/phys_state", "2: Polling\n")
    if not chosen:
        m.put("/etc/nccl.conf", "NCCL_IB_HCA=mlx5_ib\n")
    found = of(judged(m, replace(SMALL, values={**SMALL.values, **chosen})), "ib/port-state")
    assert (Verdict.FAIL, "mlx5_ib9/1") in [(f.verdict, f.subject.name) for f in found]


def test_disabled_port_that_is_needed_is_named() -> None:
    """The same switch on a port that is needed is a fault, and the port is named."""
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib1/ports/1/state", "1: DOWN\n")
    m.put("/sys/class/infiniband/mlx5_ib1/ports/1/phys_state", "3: Disabled\n")
    found = of(judged(m), "ib/port-state")
    assert [(f.verdict, f.subject.name) for f in found if f.verdict is not Verdict.PASS] == [
        (Verdict.FAIL, "mlx5_ib1/1")
    ]


def test_idle_imex() -> None:
    """IMEX is idle until a job spans nodes (NVIDIA/DCGM#308, NVIDIA/aicr#2641)."""
    m = trees.nd_gb300_v6()
    assert "Id=nvidia-imex.service\nLoadState=loaded\nActiveState=inactive" in m.text(
        trees.cmd_path(trees.SYSTEMCTL_SHOW)
    )
    assert troubles(judged(m, GB300)) == []


def test_legacy_network_direct_says_5_gbit() -> None:
    """H16r and NC24r: a VMbus device whose driver always says 5 Gb/sec."""
    m = trees.base(cpus=16, memory_kb=112 * 1024 * 1024, numa=2)
    trees.modules(m, "ib_uverbs", "mlx5_ib", "hv_network_direct")
    trees.hca(m, "mlx4_0", address="0101:00:00.0", numa=0, rate="5 Gb/sec (4X SDR)")
    m.remove("/sys/bus/pci/devices/0101:00:00.0")
    m.absent.add("/sys/bus/pci/devices")
    guid = "3a2c8c70-0f1b-4d5c-9a1e-5d2f3a1b0001"
    m.links["/sys/class/infiniband/mlx4_0/device"] = f"../../../bus/vmbus/devices/{guid}"
    m.put(f"/sys/bus/vmbus/devices/{guid}/numa_node", "0\n")
    m.put(f"/sys/bus/vmbus/devices/{guid}/infiniband_verbs/uverbs0/placeholder", "")
    legacy = expect("other", hca_rates_gbps=(56.0,), hca_ports=1, gpus=0)
    findings = judged(m, legacy)
    assert verdict(findings, "ib/port-rate") is Verdict.SKIP
    assert troubles(findings) == []


def test_degraded_port_at_5_gbit_is_no_legacy() -> None:
    """The same words from a real PCI function are a fault."""
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/rate", "5 Gb/sec (1X DDR)\n")
    assert verdict(judged(m), "ib/port-rate") is Verdict.FAIL


def test_saturated_counter() -> None:
    """link_downed stands at the end of its register on healthy H100 ports; one reading of a counter proves nothing."""
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/counters/link_downed", "255\n")
    findings = judged(m)
    assert troubles(findings) == []
    record = facts_of(m)
    assert record.facts["ib"]["devices"]["mlx5_ib0"]["ports"]["1"]["saturated"] == ["link_downed"]


def test_accelerated_port_at_40_gbit() -> None:
    """mlx5_an0 is an RDMA device too, at 40 Gb/sec (azhpc-images#154: minimum rate 40, expected 200)."""
    m = small()
    assert m.text("/sys/class/infiniband/mlx5_an0/ports/1/rate") == "40 Gb/sec (4X QDR)\n"
    findings = judged(m)
    assert troubles(findings) == []
    assert of(findings, "ib/count")[0].message == "2 RDMA ports"


def test_ipoib_down_on_pure_infiniband() -> None:
    """Interfaces of a pure InfiniBand fabric are down, and that is right (imbue-ai/cluster-health#4)."""
    m = small()
    for interface in ("ib0", "ib1"):
        m.put(f"/sys/class/net/{interface}/operstate", "down\n")
    pure = judging.expect("Standard_ND96isr_H100_v5", **{**SMALL.values, "ipoib": "down"})
    assert troubles(judged(m, pure)) == []
    used = judging.expect("Standard_ND96isr_H100_v5", **{**SMALL.values, "ipoib": "up"})
    assert verdict(judged(m, used), "ib/ipoib") is Verdict.WARN


def test_boot_time_data_path_flips() -> None:
    """The accelerated NIC's data path flips two or three times at boot."""
    m = small()
    for second, way in enumerate(
        ("to VF: enP1s1", "from VF: enP1s1", "to VF: enP1s1", "from VF: enP1s1", "to VF: enP1s1")
    ):
        m.put(
            "/dev/kmsg",
            m.text("/dev/kmsg") + f"4,{950 + second},{20 + second}000000,-;hv_netvsc eth0: Data path switched {way}\n",
        )
    assert troubles(judged(m)) == []


def test_idle_gpu_lowers_its_pcie_generation() -> None:
    m = small()
    assert "<current_link_gen>1</current_link_gen>" in m.text(trees.SMI)
    assert verdict(judged(m), "gpu/pcie-width") is Verdict.PASS


def test_full_read_only_snap_is_no_full_disk() -> None:
    """squashfs images are always full and always read-only."""
    m = small()
    assert "/snap/core22/1 squashfs ro" in m.text("/proc/self/mounts")
    assert troubles(judged(m)) == []


def test_kernel_threads_sleep_uninterruptibly() -> None:
    """hv_balloon is in state D on every Azure VM."""
    m = small()
    assert m.text("/proc/77/stat").startswith("77 (hv_balloon) D")
    assert verdict(judged(m), "host/stuck-processes") is Verdict.PASS


def test_application_xids_are_no_fault() -> None:
    m = small()
    line = "3,960,40000000,-;NVRM: Xid (PCI:0001:00:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault\n"
    m.put("/dev/kmsg", m.text("/dev/kmsg") + line * 50)
    assert verdict(judged(m), "gpu/xid") is Verdict.PASS


def test_mig_gpu_reports_no_rows() -> None:
    """`<remapped_rows>N/A</remapped_rows>` on GPUs cut into slices: no verdict on rows, and no crash."""
    m = small()
    text = m.text(trees.SMI)
    first, last = text.index("<remapped_rows>"), text.index("</remapped_rows>") + len("</remapped_rows>")
    m.put(trees.SMI, text[:first] + "<remapped_rows>N/A</remapped_rows>" + text[last:])
    assert verdict(judged(m), "gpu/row-remap") is Verdict.PASS


@pytest.mark.parametrize("rate", ["400 Gb/sec (4X NDR)", "800 Gb/sec (4X XDR)"])
def test_gb300_may_have_either_rate(rate: str) -> None:
    assert verdict(judged(trees.nd_gb300_v6(rate=rate), GB300), "ib/port-rate") is Verdict.PASS


def test_remote_disks_on_nvme_do_not_count() -> None:
    m = small()
    trees.nvme_disks(m, 8, remote=2)
    assert of(judged(m), "host/nvme")[0].message == "8 local NVMe disks"


def test_no_rdma_declared_asks_nothing_of_hcas() -> None:
    m = small()
    m.remove("/sys/class/infiniband/mlx5_ib0")
    without = Expect(size="other", rdma="none")
    assert {f.verdict for f in judged(m, without) if f.code.startswith("ib/")} == {Verdict.SKIP}
