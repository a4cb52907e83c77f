"""Versions of the software a job is built from, without importing or starting any of it."""

from __future__ import annotations

import json
import re
from typing import Any

from fairlead.probe.readers.tree import Absent, Hole, Tree, hole, read_or_hole, safe_name

LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/opt/rocm/lib",
)
RDMA_MODULES = ("ib_core", "mlx5_core", "mlx5_ib", "mana_ib", "bnxt_re", "irdma")
"""Modules of the RDMA stack. Those built by OFED carry a version; the kernel's own have none but the kernel's."""
PACKAGES = {"torch": "torch", "nccl": "nvidia_nccl_cu", "rccl": "nvidia_rccl", "numpy": "numpy"}


def read_versions(tree: Tree) -> dict[str, Any]:
    """Python, its torch and NCCL; NCCL, CUDA, OFED and rdma-core of the system. Not installed: an empty text."""
    myself = tree.myself()
    tree.source(("python",), "/self.json")
    tree.source(("cuda",), "/usr/local/cuda/version.json")
    tree.source(("ofed",), "ofed_info -s")
    return {
        "python": myself.get("python") or hole("not known", "/self.json"),
        "packages": read_or_hole(lambda: _packages(tree, myself.get("sys_path") or [])),
        "nccl_system": read_or_hole(_nccl, tree),
        "cuda": read_or_hole(_cuda, tree),
        "ofed": read_or_hole(_ofed, tree),
        "rdma_core": read_or_hole(_rdma_core, tree),
        "rdma_modules": read_or_hole(_rdma_modules, tree),
    }


def _packages(tree: Tree, places: list[str]) -> dict[str, str]:
    """From the names of `*.dist-info` directories: `torch-2.9.1+cu130.dist-info`."""
    if not places:
        raise Hole("no folder of packages is known", "/self.json")
    found = dict.fromkeys(PACKAGES, "")
    for place in places:
        tree.source(("packages",), place)
        for name in tree.optional_names(place, ".dist-info"):
            match = re.match(r"([A-Za-z0-9_.]+)-([^-]+)\.dist-info\Z", name)
            for key, prefix in PACKAGES.items() if match else ():
                # an earlier place wins, as it does for an import; CUDA's major version is part of the package's name
                if match and not found[key] and re.match(re.escape(prefix) + r"\d*\Z", match.group(1)):
                    found[key] = safe_name(match.group(2))
    return found


def _nccl(tree: Tree) -> str:
    """The system's library, from the file its link points to: libnccl.so.2.27.3."""
    for place in LIBRARY_DIRS:
        for name in tree.optional_names(place, "ccl.so."):
            match = re.match(r"lib[nr]ccl\.so\.(\d+\.\d+\.\d+)\Z", name)
            if match:
                tree.source(("nccl_system",), place + "/" + name)
                return match.group(1)
    return ""


def _cuda(tree: Tree) -> str:
    text = tree.optional("/usr/local/cuda/version.json")
    if text is None:
        return ""
    try:
        return str(json.loads(text)["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        raise Hole("does not name CUDA's version", "/usr/local/cuda/version.json") from None


def _ofed(tree: Tree) -> str:
    """`MLNX_OFED_LINUX-24.10-1.1.4.0:` or `OFED-internal-25.10-1.2.3:`; empty with the kernel's own drivers."""
    try:
        return tree.run(["ofed_info", "-s"], 3.0).strip().rstrip(":")
    except Absent:
        return ""


def _rdma_core(tree: Tree) -> str:
    """rdma-core's version, from the file libibverbs' link points to: libibverbs.so.1.14.50.0 is of rdma-core 50.0."""
    for place in LIBRARY_DIRS:
        for name in tree.optional_names(place, "libibverbs.so."):
            match = re.match(r"libibverbs\.so\.\d+\.\d+\.(\d+\.\d+)\Z", name)
            if match:
                tree.source(("rdma_core",), place + "/" + name)
                return match.group(1)
    return ""


def _rdma_modules(tree: Tree) -> dict[str, str]:
    """Versions by module; a module that is not loaded, or has no version of its own, is left out."""
    found = {}
    for name in RDMA_MODULES:
        text = tree.optional("/sys/module/" + name + "/version")
        if text is not None:
            found[name] = text.strip()
    return found
