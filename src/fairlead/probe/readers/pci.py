"""PCI functions that matter to a job: GPUs, network and InfiniBand controllers, NVMe, NVSwitch bridges."""

from __future__ import annotations

from typing import Any

from fairlead.probe.readers.tree import Tree, read_or_hole

SYS_PCI = "/sys/bus/pci/devices"
CLASSES = ("0x02", "0x03", "0x12", "0x0108", "0x0680")
"""Network and InfiniBand, display, processing accelerator, NVMe, other bridge (NVSwitch)."""


def read_pci(tree: Tree) -> dict[str, Any]:
    """`devices`: address -> what the kernel says of the function, under the kernel's own file names."""
    tree.source(("devices",), SYS_PCI + "/")
    found: dict[str, Any] = {}
    for name in tree.optional_names(SYS_PCI):
        base = SYS_PCI + "/" + name
        kind = tree.attr(base + "/class", "0x[0-9a-f]{6}")
        if isinstance(kind, str) and not kind.startswith(CLASSES):
            continue
        device = {key: tree.attr(base + "/" + key, "0x[0-9a-f]{4}") for key in ("vendor", "device")}
        device["class"] = kind
        device["numa_node"] = tree.number(base + "/numa_node")
        device["driver"] = read_or_hole(tree.optional_link, base + "/driver")
        for key in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"):
            device[key] = tree.attr(base + "/" + key)
        found[name] = device
    return {"devices": found}
