"""MI300X as its driver and ROCm's tools show it, from the tree to the verdict.

Written from linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c (a processor's node has gpu_id 0) and ROCm's rocm_smi.py;
the kernel's own driver and partitions as ROCm/k8s-device-plugin issue 157 shows them, the warning as ROCm issue 5891.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fairlead.records.verdict import Verdict
from support import trees
from support.judging import expect, facts_of, judged
from support.trees import Machine

MI300X = expect("Standard_ND96isr_MI300X_v5")
KFD = "/sys/class/kfd/kfd/topology/nodes"
TOOL = "rocm-smi --showproductname --showuniqueid --showvbios --json"
SLEEPS = "\nWARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
CARD = {
    "Card Series": "AMD Instinct MI300X VF",
    "Card Model": "0x74b5",
    "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "Card SKU": "M3000100",
    "GFX Version": "gfx942",
}
Edit = Callable[[Machine], None]
Found = set[tuple[str, str, Verdict]]


def told(m: Machine) -> Found:
    fine = (Verdict.PASS, Verdict.SKIP)
    return {(f.code, f.subject.name, f.verdict) for f in judged(m, MI300X) if f.verdict not in fine}


def of_the_kernel(m: Machine) -> None:
    """The driver that comes with the kernel has a srcversion, and no version."""
    m.remove("/sys/module/amdgpu/version")
    m.absent.add("/sys/module/amdgpu/version")
    m.put("/sys/module/amdgpu/srcversion", "6CCB5408246071AC9F63359\n")


def in_partitions(m: Machine) -> None:
    """CPX: eight compute nodes a GPU."""
    for index in range(9, 65):
        m.put(f"{KFD}/{index}/gpu_id", f"{5000 + index}\n")


def lost(index: int) -> Edit:
    def apply(m: Machine) -> None:
        m.remove(f"{KFD}/{index}")

    return apply


def says(text: str) -> Edit:
    return lambda m: m.cmd(TOOL, text)


CASES: dict[str, tuple[Edit, Found]] = {
    "as packaged apart": (lambda _: None, set()),
    "the driver of the kernel": (of_the_kernel, set()),
    "asleep while idle": (says(SLEEPS + json.dumps({"card0": CARD})), set()),
    "a tool with nothing to say": (says("WARNING: No JSON data to report\n"), set()),
    "one GPU less for the driver": (lost(3), {("gpu/count", "kernel driver", Verdict.FAIL)}),
    "cut in partitions": (in_partitions, {("gpu/count", "kernel driver", Verdict.WARN)}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_mi300x_shows(name: str) -> None:
    edit, label = CASES[name]
    m = trees.nd_mi300x_v5()
    edit(m)
    assert told(m) == label


def test_a_warning_before_the_document_is_no_part_of_it() -> None:
    m = trees.nd_mi300x_v5()
    m.cmd(TOOL, SLEEPS + json.dumps({"card0": CARD}))
    assert facts_of(m).facts["amd"]["tool"]["answer"] == {"card0": CARD}


def test_the_kernels_own_driver_goes_by_the_kernel() -> None:
    m = trees.nd_mi300x_v5()
    of_the_kernel(m)
    assert facts_of(m).facts["amd"]["version"] == f"of kernel {m.text('/proc/sys/kernel/osrelease').strip()}"
