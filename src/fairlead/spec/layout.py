"""Where GPUs and RDMA ports of a VM size sit: NUMA nodes, PCI switches, PCI addresses. Data in layouts.toml.

A size that no source describes has no layout, and nothing may be concluded from that.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from fairlead.spec.vmsize import Source

_DATA = Path(__file__).with_name("layouts.toml")


class PcieGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices that reach each other without their CPU."""

    gpus: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


class NumaNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NUMA node: its first and last CPU, its groups of devices."""

    cpus: tuple[int, int]
    groups: tuple[PcieGroup, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """All its GPUs."""
        return tuple(gpu for group in self.groups for gpu in group.gpus)


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The devices of a VM size."""

    name: str
    sizes: tuple[str, ...]
    source: Source
    link_speed: str
    """Of the PCI links, as NCCL reads it."""
    vendor: str
    cpu_family: int
    cpu_model: int
    numa: tuple[NumaNode, ...]
    switches: bool = True
    """Whether groups sit below a PCI switch; without, below the NUMA node itself."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs in the order of their PCI addresses, in which the driver numbers them."""
        return tuple(sorted(gpu for node in self.numa for gpu in node.gpus))

    @property
    def first_port(self) -> str:
        """The RDMA port with the lowest PCI address."""
        return min(port for node in self.numa for group in node.groups for port in group.ports)


@functools.cache
def layouts() -> tuple[Layout, ...]:
    """Every layout."""
    data = tomllib.loads(_DATA.read_text("utf-8"))
    return tuple(msgspec.convert({**row, "source": data["source"][row["source"]]}, Layout) for row in data["layout"])


def layout_of(size: str) -> Layout | None:
    """The layout of a VM size by its own name."""
    return next((found for found in layouts() if size in found.sizes), None)
