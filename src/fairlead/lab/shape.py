"""What a lab is to be: a handful of numbers and names, checked before anything is built.

Knows: defaults, limits, and what a lab of a given size needs in memory. Must not know: how it is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.base.units import size
from fairlead.cluster.table import Slurm
from fairlead.errors import LabError, UsageError
from fairlead.lab.table import MAX_NODES, MAX_PLANES, NAME, RESERVED, Lab
from fairlead.spec.topology import Topology

if TYPE_CHECKING:
    from fairlead.spec.model import Spec

HOST_KIB = 5_000
SWITCH_KIB = 500
PORT_KIB = 60
"""Memory per host (its first process and namespaces), switch, and link end: what bench/lab_updown.py measured, and
half as much again."""

SCRATCH_SHARE = 4
"""File space is memory only once it is written to; a quarter of it is counted."""


class LabShape(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `up`. Raises UsageError where it cannot be a lab."""

    name: str = "lab"
    planes: int = 4
    t0: int = 2
    t1: int = 2
    nodes: tuple[str, ...] = ("n0", "n1", "n2", "n3")
    """Host names; host i sits below T0 number i // (hosts per T0)."""
    rate_mbps: int = 250
    """Rate of every host port, both directions."""
    uplink_rate_mbps: int = 250
    """Rate of every T0-T1 link, both directions."""
    burst_kib: int = 32
    buffer_kib: int = 256
    trim_kib: int = 0
    """Queue of a switch port beyond which data packets of MRC are trimmed; 0: none is."""
    mtu: int = 9000
    segmentation_offload: bool = False
    """True lets super-packets of up to 64 KiB cross every hop whole: faster, but one drop then takes many packets."""
    checksum_offload: bool = True
    """True leaves checksums uncomputed, as veth does; False computes them, and a path-choosing sender must use the
    final destination in its pseudo-header."""
    scratch_mib: int = 256
    """Size of each host's private file space: /tmp, /run, /mnt, /var/tmp, /var/log and changes under /etc, /var/lib."""
    gpus: int = 2
    """GPUs each host shows."""
    facts: str = ""
    """A directory with one captured tree per node to show instead of the generated one."""
    sshd: bool = False
    slurm: bool = False
    partition: str = "gpu"

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise UsageError(
                "lab/bad-name", f"`{self.name}` cannot name a lab", hint="use lower-case letters, digits and dashes"
            )
        if not 1 <= self.planes <= MAX_PLANES or len(self.nodes) > MAX_NODES:
            raise UsageError(
                "lab/too-large",
                f"{self.planes} planes, {len(self.nodes)} hosts; a lab has up to {MAX_PLANES} and {MAX_NODES}",
                hint="simulate larger fabrics: fairlead fabric sim",
            )
        for i, node in enumerate(self.nodes):
            if not NAME.match(node) or node in RESERVED or node in self.nodes[:i]:
                raise UsageError(
                    "lab/bad-name",
                    f"`{node}` cannot name a lab host, or names two",
                    hint="use distinct names of lower-case letters, digits and dashes, such as n[0-3]",
                )
        self.topology  # noqa: B018 - a shape that does not divide is refused here

    @property
    def topology(self) -> Topology:
        """The fabric's arithmetic."""
        return Topology.divide(planes=self.planes, t0=self.t0, t1=self.t1, hosts=len(self.nodes))

    @property
    def memory_kib(self) -> int:
        """What the lab needs once up, without what runs in it; and a share of its file space (SCRATCH_SHARE)."""
        topo = self.topology
        ends = topo.num_queues + 2 * topo.num_switches
        fixed = topo.num_hosts * HOST_KIB + topo.num_switches * SWITCH_KIB + ends * PORT_KIB
        return fixed + topo.num_hosts * self.scratch_mib * 1024 // SCRATCH_SHARE

    @classmethod
    def from_spec(cls, spec: Spec) -> LabShape:
        """The lab a cluster file describes."""
        lab, slurm, fabric = spec.table(Lab), spec.table(Slurm), spec.fabric
        nodes = tuple(str(n) for n in spec.nodes)
        return cls(
            name=lab.name or spec.cluster.name,
            planes=fabric.planes,
            t0=fabric.t0 or 1,
            t1=fabric.t1 or 1,
            nodes=nodes,
            rate_mbps=lab.rate_mbps,
            uplink_rate_mbps=lab.uplink_rate_mbps or lab.rate_mbps,
            burst_kib=lab.burst_kib,
            buffer_kib=lab.buffer_kib,
            trim_kib=lab.trim_kib,
            mtu=lab.mtu,
            segmentation_offload=lab.segmentation_offload,
            checksum_offload=lab.checksum_offload,
            scratch_mib=lab.scratch_mib,
            gpus=max((p.gpus or 0) for p in spec.pools),
            facts=str(Path(lab.facts).resolve()) if lab.facts else "",
            sshd=lab.sshd,
            slurm=slurm.lab,
            partition=slurm.partition or "gpu",
        )


def check_memory(shape: LabShape, available_kib: int) -> None:
    """Refuse (LabError `lab/memory`) a lab that would not fit, with the estimate and what would fit."""
    need = shape.memory_kib
    if need > available_kib:
        per_host = need / len(shape.nodes)
        fits = int(available_kib / per_host) // shape.t0 * shape.t0
        raise LabError(
            "lab/memory",
            f"{len(shape.nodes)} hosts need about {size(need * 1024)} of memory; {size(available_kib * 1024)} is free",
            hint=(f"use up to {fits} hosts, or " if fits else "use ")
            + f"a smaller `scratch_mib` (now {shape.scratch_mib})",
        )
