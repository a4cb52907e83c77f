"""The shape of a simulated fabric: how many switches, ports and links there are, and what each port leads to.

Knows: counts, the numbering of nodes and ports, link rates and latencies by tier.
Must not know: scenarios, queues, protocols.

Two tiers: planes of T0 and T1 switches, each T0 joined to each T1 by `bundle1` links (fairlead.spec.topology). Three
tiers: pods of T0 and aggregation (T1) switches; aggregation switch `a` of every pod is joined to the cores a, a +
pod_t1, a + 2 pod_t1, ..., by `bundle2` links each. Nodes are numbered plane by plane: T0s, T1s, cores; after the last
plane come the NIC groups, one for each T0 index. Ports are numbered in the order of nodes; NIC n's port in plane p is
`first + n * planes + p`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import UsageError
from fairlead.fabric.sim.engine import layout as at
from fairlead.spec.topology import Topology, fabric_link_name, t0_name, t1_name

Ints = NDArray[np.int64]

MAX_RADIX = 1 << 16
MAX_T0 = 1 << 16


@dataclass(frozen=True, slots=True)
class Tier:
    """The links below one tier of switches: rate, length in time, and the latency of the switches above them."""

    rate_gbps: float
    latency_ns: float
    switch_latency_ns: float = 0.0

    @property
    def fs_per_byte(self) -> int:
        """Femtoseconds that a byte takes: 80,000 at 100 Gb/s."""
        return round(8e6 / self.rate_gbps)


@dataclass(frozen=True)
class Shape:
    """A two-tier multi-plane Clos (pods = 1, no cores) or a three-tier fat tree.

    Raises UsageError where it does not divide.
    """

    planes: int
    pods: int
    pod_t0: int
    pod_t1: int
    cores: int
    hosts: int
    """NICs below one T0."""
    bundle1: int
    bundle2: int
    tiers: tuple[Tier, ...]

    def __post_init__(self) -> None:
        if self.cores and self.cores % self.pod_t1:
            raise UsageError(
                "sim/topology-divide",
                f"{self.cores} core switches cannot be shared evenly by {self.pod_t1} aggregation switches",
                hint=f"use a multiple of {self.pod_t1} cores",
            )
        if max(self.t0_radix, self.t1_radix, self.core_radix) > MAX_RADIX or self.t0 > MAX_T0:
            raise UsageError(
                "sim/topology-range", f"more than {MAX_RADIX} ports or T0 switches", hint="make the fabric smaller"
            )

    @classmethod
    def two_tier(cls, topology: Topology, *, host: Tier, fabric: Tier, bundle: int = 1) -> Shape:
        """A multi-plane Clos. `host` are the links below T0, `fabric` those below T1."""
        return cls(
            planes=topology.planes, pods=1, pod_t0=topology.t0, pod_t1=topology.t1, cores=0,
            hosts=topology.hosts_per_t0, bundle1=bundle, bundle2=1, tiers=(host, fabric),
        )  # fmt: skip

    # ---- counts ------------------------------------------------------------------------------------------------------

    @property
    def num_tiers(self) -> int:
        """2 or 3."""
        return 3 if self.cores else 2

    @property
    def t0(self) -> int:
        """T0 switches of a plane."""
        return self.pods * self.pod_t0

    @property
    def t1(self) -> int:
        """T1 (aggregation) switches of a plane."""
        return self.pods * self.pod_t1

    @property
    def up0(self) -> int:
        """Uplinks of a T0."""
        return self.pod_t1 * self.bundle1

    @property
    def up1(self) -> int:
        """Uplinks of an aggregation switch."""
        return self.cores // self.pod_t1 * self.bundle2 if self.cores else 0

    @property
    def t0_radix(self) -> int:
        """Ports of a T0."""
        return self.hosts + self.up0

    @property
    def t1_radix(self) -> int:
        """Ports of a T1."""
        return self.pod_t0 * self.bundle1 + self.up1

    @property
    def core_radix(self) -> int:
        """Ports of a core."""
        return self.pods * self.bundle2 if self.cores else 0

    @property
    def num_nics(self) -> int:
        """NICs, each with a port in every plane."""
        return self.t0 * self.hosts

    @property
    def plane_nodes(self) -> int:
        """Switches of a plane."""
        return self.t0 + self.t1 + self.cores

    @property
    def num_switches(self) -> int:
        """Switches of all planes."""
        return self.planes * self.plane_nodes

    @property
    def num_nodes(self) -> int:
        """Switches and NIC groups."""
        return self.num_switches + self.t0

    @property
    def plane_ports(self) -> int:
        """Switch ports of a plane."""
        return self.t0 * self.t0_radix + self.t1 * self.t1_radix + self.cores * self.core_radix

    @property
    def nic_port0(self) -> int:
        """The first NIC port; switch ports come before."""
        return self.planes * self.plane_ports

    @property
    def num_ports(self) -> int:
        """Egress ports of switches and NICs: the number of queues."""
        return self.nic_port0 + self.num_nics * self.planes

    # ---- numbering ---------------------------------------------------------------------------------------------------

    def t0_node(self, plane: int, index: int) -> int:
        """Node number of a T0."""
        return plane * self.plane_nodes + index

    def t1_node(self, plane: int, index: int) -> int:
        """Node number of a T1."""
        return plane * self.plane_nodes + self.t0 + index

    def nic_port(self, plane: int, nic: int) -> int:
        """The port by which a NIC sends into a plane."""
        return self.nic_port0 + nic * self.planes + plane

    def host_port(self, plane: int, nic: int) -> int:
        """The port by which a T0 sends to a NIC."""
        return plane * self.plane_ports + nic // self.hosts * self.t0_radix + nic % self.hosts

    def uplink_port(self, plane: int, t0: int, uplink: int) -> int:
        """The port by which a T0 sends up."""
        return plane * self.plane_ports + t0 * self.t0_radix + self.hosts + uplink

    def downlink_port(self, plane: int, t1: int, t0: int, link: int = 0) -> int:
        """The port by which a T1 sends to a T0 (of its pod)."""
        first = plane * self.plane_ports + self.t0 * self.t0_radix + t1 * self.t1_radix
        return first + t0 % self.pod_t0 * self.bundle1 + link

    def core_port(self, plane: int, core: int, t1: int, link: int = 0) -> int:
        """The port by which a core sends to an aggregation switch."""
        first = plane * self.plane_ports + self.t0 * self.t0_radix + self.t1 * self.t1_radix + core * self.core_radix
        return first + t1 // self.pod_t1 * self.bundle2 + link

    @cached_property
    def nodes(self) -> Ints:
        """The engine's table of nodes: kind, plane, index in its tier, pod, first port, number of ports."""
        table = np.zeros((self.num_nodes, at.NODE_COLUMNS), dtype=np.int64)
        first, port = 0, 0
        for plane in range(self.planes):
            for kind, num, in_pod, radix in (
                (at.NODE_T0, self.t0, self.pod_t0, self.t0_radix),
                (at.NODE_T1, self.t1, self.pod_t1, self.t1_radix),
                (at.NODE_CORE, self.cores, 1, self.core_radix),
            ):
                index = np.arange(num)
                rows = table[first : first + num]
                rows[:, at.ND_KIND], rows[:, at.ND_PLANE], rows[:, at.ND_INDEX] = kind, plane, index
                rows[:, at.ND_POD] = index // in_pod
                rows[:, at.ND_PORT0], rows[:, at.ND_PORTS] = port + index * radix, radix
                first, port = first + num, port + num * radix
        index = np.arange(self.t0)
        rows = table[first:]
        rows[:, at.ND_KIND], rows[:, at.ND_PLANE], rows[:, at.ND_INDEX] = at.NODE_GROUP, -1, index
        rows[:, at.ND_POD] = index // self.pod_t0
        rows[:, at.ND_PORT0] = self.nic_port0 + index * self.hosts * self.planes
        rows[:, at.ND_PORTS] = self.hosts * self.planes
        table[:, at.ND_WAKE] = at.NEVER
        return table

    # ---- links -------------------------------------------------------------------------------------------------------

    def wire(self, ports: NDArray[np.int32]) -> None:
        """Fill in where each port of the engine's table leads, how fast, and how far."""
        for plane in range(self.planes):
            base, first = plane * self.plane_ports, plane * self.plane_nodes
            self._wire_t0(ports[base : base + self.t0 * self.t0_radix], plane, first)
            base += self.t0 * self.t0_radix
            self._wire_t1(ports[base : base + self.t1 * self.t1_radix], first)
            base += self.t1 * self.t1_radix
            self._wire_cores(ports[base : base + self.cores * self.core_radix], first)
        nic, plane_of = np.divmod(np.arange(self.num_nics * self.planes), self.planes)
        far = plane_of * self.plane_nodes + nic // self.hosts
        _fill(ports[self.nic_port0 :], far, nic % self.hosts, self.tiers[0], self.tiers[0].switch_latency_ns)

    def _wire_t0(self, ports: NDArray[np.int32], plane: int, first: int) -> None:
        rows = ports.reshape(self.t0, self.t0_radix, -1)
        t0, host = np.meshgrid(np.arange(self.t0), np.arange(self.hosts), indexing="ij")
        _fill(rows[:, : self.hosts], self.num_switches + t0, host << at.HOST_SHIFT | plane, self.tiers[0], 0.0)
        t0, up = np.meshgrid(np.arange(self.t0), np.arange(self.up0), indexing="ij")
        t1 = t0 // self.pod_t0 * self.pod_t1 + up // self.bundle1
        arrives = t0 % self.pod_t0 * self.bundle1 + up % self.bundle1
        _fill(rows[:, self.hosts :], first + self.t0 + t1, arrives, self.tiers[1], self.tiers[1].switch_latency_ns)

    def _wire_t1(self, ports: NDArray[np.int32], first: int) -> None:
        rows = ports.reshape(self.t1, self.t1_radix, -1)
        down = self.pod_t0 * self.bundle1
        t1, port = np.meshgrid(np.arange(self.t1), np.arange(down), indexing="ij")
        t0 = t1 // self.pod_t1 * self.pod_t0 + port // self.bundle1
        arrives = self.hosts + t1 % self.pod_t1 * self.bundle1 + port % self.bundle1
        _fill(rows[:, :down], first + t0, arrives, self.tiers[1], self.tiers[0].switch_latency_ns)
        if self.cores:
            t1, up = np.meshgrid(np.arange(self.t1), np.arange(self.up1), indexing="ij")
            core = up // self.bundle2 * self.pod_t1 + t1 % self.pod_t1
            arrives = t1 // self.pod_t1 * self.bundle2 + up % self.bundle2
            far = first + self.t0 + self.t1 + core
            _fill(rows[:, down:], far, arrives, self.tiers[2], self.tiers[2].switch_latency_ns)

    def _wire_cores(self, ports: NDArray[np.int32], first: int) -> None:
        if not self.cores:
            return
        rows = ports.reshape(self.cores, self.core_radix, -1)
        core, port = np.meshgrid(np.arange(self.cores), np.arange(self.core_radix), indexing="ij")
        t1 = port // self.bundle2 * self.pod_t1 + core % self.pod_t1
        arrives = self.pod_t0 * self.bundle1 + core // self.pod_t1 * self.bundle2 + port % self.bundle2
        _fill(rows, first + self.t0 + t1, arrives, self.tiers[2], self.tiers[1].switch_latency_ns)

    # ---- time --------------------------------------------------------------------------------------------------------

    @property
    def shortest_link_ps(self) -> int:
        """No packet is on a link for less: the engine's window may be as long."""
        return min(round(t.latency_ns * 1000) for t in self.tiers)

    @property
    def longest_link_ps(self) -> int:
        """No packet is on a link for longer, switch latency at its end included."""
        switch = max(t.switch_latency_ns for t in self.tiers)
        return max(round((t.latency_ns + switch) * 1000) for t in self.tiers)

    @property
    def diameter(self) -> int:
        """Links on the longest path."""
        return 2 * self.num_tiers

    def tiers_between(self, src: Ints, dst: Ints) -> Ints:
        """How many tiers a packet climbs from one NIC to another: 1 below the same T0, 2 in the same pod, 3."""
        t0, other = src // self.hosts, dst // self.hosts
        return np.asarray(1 + (t0 != other) + (t0 // self.pod_t0 != other // self.pod_t0), dtype=np.int64)

    def one_way_ns(self, num_tiers: int = 0) -> float:
        """Latency of links and switches on a path over so many tiers (0: all), without what packets take to leave."""
        tiers = self.tiers[: num_tiers or None]
        inner = sum(t.switch_latency_ns for t in tiers[:-1])
        return 2 * sum(t.latency_ns for t in tiers) + 2 * inner + tiers[-1].switch_latency_ns

    def round_trip_ns(self, packet_bytes: int, ack_bytes: int) -> int:
        """An empty fabric's longest round trip of one packet and its acknowledgement, all at the NIC's rate."""
        per_byte = self.tiers[0].fs_per_byte / 1e6
        return round(2 * self.one_way_ns() + (packet_bytes + ack_bytes) * per_byte * self.diameter)

    # ---- names -------------------------------------------------------------------------------------------------------

    def node_name(self, number: int) -> str:
        """`p2/t0-1` of a node number."""
        row = self.nodes[number]
        plane, index = int(row[at.ND_PLANE]), int(row[at.ND_INDEX])
        if row[at.ND_KIND] == at.NODE_GROUP:
            return f"nics below t0-{index}"
        if row[at.ND_KIND] == at.NODE_CORE:
            return f"p{plane}/core-{index}"
        return t0_name(plane, index) if row[at.ND_KIND] == at.NODE_T0 else t1_name(plane, index)

    def uplink_name(self, plane: int, t0: int, uplink: int) -> str:
        """`p2/t0-1/t1-0`, the link behind an uplink port."""
        return fabric_link_name(plane, t0, t0 // self.pod_t0 * self.pod_t1 + uplink // self.bundle1)


def _fill(ports: NDArray[np.int32], far: Ints, arrives: Ints, tier: Tier, switch_latency_ns: float) -> None:
    ports[..., at.PT_FAR_NODE] = far.reshape(ports.shape[:-1])
    ports[..., at.PT_FAR_PORT] = arrives.reshape(ports.shape[:-1])
    ports[..., at.PT_FS_PER_BYTE] = tier.fs_per_byte
    ports[..., at.PT_LATENCY] = round((tier.latency_ns + switch_latency_ns) * 1000)
