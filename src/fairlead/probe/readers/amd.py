"""AMD GPUs: what the kernel driver and ROCm's tools say. Nothing is asked where the driver is not loaded."""

from __future__ import annotations

import json
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
        "version": tree.attr("/sys/module/amdgpu/version"),
        "kfd": read_or_hole(_kfd, tree),
        "tool": read_or_hole(_tool, tree),
    }


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
        try:
            return {"argv": argv, "answer": json.loads(text)}
        except ValueError:
            raise Hole("is not JSON", " ".join(argv)) from None
    return hole("neither amd-smi nor rocm-smi is there")
