"""Which network drivers the running kernel could load: what the next start on another host will need."""

from __future__ import annotations

import re
from typing import Any

from fairlead.probe.readers.tree import Hole, Tree, hole, safe_name

WANTED = ("mlx4_core", "mlx4_en", "mlx5_core", "mlx5_ib", "mana", "mana_ib", "hv_netvsc", "pci-hyperv", "ib_uverbs")
MAX_DEP = 8 << 20


def read_kernel_modules(tree: Tree) -> dict[str, Any]:
    """`there`: driver -> whether it is a module of this kernel, or part of it; from modules.dep and modules.builtin."""
    release = tree.attr("/proc/sys/kernel/osrelease")
    tree.source((), "/proc/sys/kernel/osrelease")
    if isinstance(release, dict) or not re.match(r"[\w.+~-]+\Z", release):
        return release if isinstance(release, dict) else hole("is no release of a kernel", "/proc/sys/kernel/osrelease")
    base = "/lib/modules/" + safe_name(release) + "/"
    tree.source(("loadable",), base + "modules.dep")
    tree.source(("builtin",), base + "modules.builtin")
    return {
        "release": release,
        "loadable": _named(tree, base + "modules.dep"),
        "builtin": _named(tree, base + "modules.builtin"),
    }


def _named(tree: Tree, path: str) -> Any:
    """The drivers a list names, by their files: `kernel/drivers/net/.../mlx5_core.ko.zst: ...`."""
    try:
        text = tree.read_bytes(path, MAX_DEP, used=_used_modules).decode("utf-8", "replace")
    except Hole as missing:
        return hole(missing.why, missing.source)
    if path.endswith(".dep") and (not text.endswith("\n") or ".ko" not in text):
        return hole("is not whole", path)
    found = {match.replace("-", "_") for match in re.findall(r"([\w-]+)\.ko", text)}
    return [name for name in WANTED if name.replace("-", "_") in found]


def _used_modules(data: bytes) -> bytes:
    lines = [line.split(b":")[0] + b":" * (b":" in line) for line in data.split(b"\n")]
    names = tuple(name.encode() for name in WANTED)
    end = lines.pop() if lines else b""
    kept = [line for line in lines if any(name in line for name in names)] or lines[:1]
    return b"".join(line + b"\n" for line in kept) + end
