"""NCCL's topology file of a VM size, from the places of its devices (spec/layouts.toml). Pure.

The format is NCCL's own XML (src/graph/xml.cc: system, cpu, pci). A guest sees no PCI switches, so without this file
NCCL takes every GPU and port for equally far from each other.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from fairlead.plan.kubernetes.parts import Manifest, meta, topology_name
from fairlead.plan.wanted import PoolWanted
from fairlead.spec.layout import Layout

_GPU, _PORT, _BRIDGE = "0x030200", "0x020700", "0x060400"
_WIDTH = "16"


def topology_xml(layout: Layout) -> str:
    """The file as text. Bridges of groups have addresses that no device has: ffff:ff:01.0, ffff:ff:02.0, ..."""
    system, num = Element("system", version="1"), 0
    for number, node in enumerate(layout.numa):
        cpu = SubElement(
            system,
            "cpu",
            numaid=str(number),
            affinity=affinity(*node.cpus, width=layout.numa[-1].cpus[1] + 1),
            arch="x86_64",
            vendor=layout.vendor,
            familyid=str(layout.cpu_family),
            modelid=str(layout.cpu_model),
        )
        for group in node.groups:
            num += 1
            above = _pci(cpu, f"ffff:ff:{num:02x}.0", _BRIDGE, layout) if layout.switches else cpu
            for gpu in group.gpus:
                _pci(above, gpu, _GPU, layout)
            for port in group.ports:
                _pci(above, port, _PORT, layout)
    indent(system)
    return tostring(system, encoding="unicode") + "\n"


def affinity(first: int, last: int, *, width: int) -> str:
    """CPUs as the kernel writes a mask: words of 32, the highest first.

    >>> affinity(20, 39, width=40)
    '000000ff,fff00000'
    """
    mask, words = (1 << (last + 1)) - (1 << first), -(-width // 32)
    return ",".join(f"{mask >> (32 * i) & 0xFFFFFFFF:08x}" for i in reversed(range(words)))


def topology_map(pool: PoolWanted) -> Manifest | None:
    """The file as a ConfigMap; None for a size whose places no source names."""
    if pool.layout is None or not pool.gpus:
        return None
    data = {"topo.xml": topology_xml(pool.layout)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(topology_name(pool)), "data": data}


def _pci(above: Element, address: str, kind: str, layout: Layout) -> Element:
    return SubElement(
        above, "pci", {"busid": address, "class": kind, "link_speed": layout.link_speed, "link_width": _WIDTH}
    )
