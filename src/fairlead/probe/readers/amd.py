"""AMD GPUs: what the kernel driver and ROCm's tools say. Nothing is asked where the driver is not loaded."""

from __future__ import annotations

import json
import re
from typing import Any

from fairlead.probe.readers.tree import Absent, Hole, Tree, hole, read_or_hole

KFD = "/sys/class/kfd/kfd/topology/nodes"
TOOLS = (["amd-smi", "static", "--json"], ["rocm-smi", "--showproductname", "--showuniqueid", "--showvbios", "--json"])


def read_amd(tree: Tree) -> dict[str, Any]:
    """`loaded`, and where it is true the driver's version, its compute nodes, and what the first tool found says."""
    tree.source(("loaded",), "/sys/module/amdgpu")
    tree.source(("version",), "/sys/module/amdgpu/version")
    tree.source(("kfd",), KFD + "/")
    if not tree.optional_names("/sys/module/amdgpu"):
        return {"loaded": False}
    return {
        "loaded": True,
        "version": read_or_hole(_amd_version, tree),
        "kfd": read_or_hole(_kfd, tree),
        "tool": read_or_hole(_tool, tree),
    }


def _amd_version(tree: Tree) -> str:
    """Of a driver that was packaged apart; the one of the kernel has no such file, and no version but the kernel's."""
    own = tree.optional("/sys/module/amdgpu/version")
    return own.strip() if own is not None else "of kernel " + tree.read("/proc/sys/kernel/osrelease").strip()


def _kfd(tree: Tree) -> dict[str, Any]:
    """Compute nodes with a GPU; a processor's node has gpu_id 0."""
    found = {name: tree.number(KFD + "/" + name + "/gpu_id") for name in tree.names(KFD)}
    return {name: value for name, value in found.items() if value != 0}


def _tool(tree: Tree) -> dict[str, Any]:
    for argv in TOOLS:
        try:
            text = tree.run(argv, 10.0)
        except Absent:
            continue
        begins = re.search(r"^[\[{]", text, re.MULTILINE)  # a warning may stand before, of GPUs that sleep while idle
        try:
            return {"argv": argv, "answer": json.loads(text[begins.start() :] if begins else text)}
        except ValueError:
            raise Hole("is not JSON", " ".join(argv)) from None
    return hole("neither amd-smi nor rocm-smi is there")
