"""Counts, names and paths of a two-tier multi-plane fabric, without building any of it.

Knows: how many switches, links and paths follow from four numbers, where host i sits, and what everything is called.
Must not know: addresses (usid.py), files, or any machine.

Every host has one port in each plane; port k is plane k. A plane is a folded Clos of T0 switches (hosts below) and T1
switches (T0s below), with one link between each T0 and each T1. Planes share nothing but the hosts. The largest fabric
of published practice, 8 planes of 512 T0 x 256 hosts and 256 T1, holds 131,072 NICs in two tiers
(arXiv 2605.04333, section 2).

Names are written like paths, the plane first:

    p2/t0-1            a T0 switch            p2/n3              the link of host n3 in plane 2
    p2/t1-0            a T1 switch            p2/t0-1/t1-0       the link between two switches
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.errors import UsageError

MAX_PLANES = 256
MAX_PER_TIER = 4096
"""Switches per tier and hosts below one T0: what the micro-segment ranges of usid.py can number."""


class Seat(NamedTuple):
    """Where a host is attached, the same in every plane: the T0 and the port below it."""

    t0: int
    port: int


class Path(NamedTuple):
    """One way through the fabric. `t1` is None between two hosts below the same T0."""

    plane: int
    t1: int | None


@dataclass(frozen=True, slots=True)
class Topology:
    """The four numbers of a fabric. Raises UsageError (`spec/topology-range`) where one is out of range."""

    planes: int
    t0: int
    """T0 switches in each plane."""
    t1: int
    """T1 switches in each plane."""
    hosts_per_t0: int

    def __post_init__(self) -> None:
        limits = {"planes": MAX_PLANES, "t0": MAX_PER_TIER, "t1": MAX_PER_TIER, "hosts_per_t0": MAX_PER_TIER}
        for name, limit in limits.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise UsageError(
                    "spec/topology-range", f"{name} is {value}; a fabric has 1 to {limit}", hint=f"change `{name}`"
                )

    @classmethod
    def divide(cls, *, planes: int, t0: int, t1: int, hosts: int) -> Topology:
        """The topology of `hosts` hosts spread evenly; UsageError (`spec/topology-divide`) if they do not divide."""
        if t0 < 1 or hosts < 1 or hosts % t0:
            near = sorted({n for n in (hosts // max(t0, 1) * t0, (hosts // max(t0, 1) + 1) * t0) if n > 0})
            raise UsageError(
                "spec/topology-divide",
                f"{hosts} hosts cannot be spread evenly over {t0} T0 switches per plane",
                hint=f"use {' or '.join(map(str, near))} hosts, or a number of T0 switches that divides {hosts}",
            )
        return cls(planes=planes, t0=t0, t1=t1, hosts_per_t0=hosts // t0)

    @property
    def num_hosts(self) -> int:
        """Hosts, each with one NIC that has a port in every plane."""
        return self.t0 * self.hosts_per_t0

    @property
    def num_switches(self) -> int:
        """T0 and T1 switches of all planes."""
        return self.planes * (self.t0 + self.t1)

    @property
    def num_host_links(self) -> int:
        """Links between a host port and its T0."""
        return self.planes * self.num_hosts

    @property
    def num_fabric_links(self) -> int:
        """Links between a T0 and a T1."""
        return self.planes * self.t0 * self.t1

    @property
    def num_queues(self) -> int:
        """One egress queue at each end of each link."""
        return 2 * (self.num_host_links + self.num_fabric_links)

    @property
    def t0_radix(self) -> int:
        """Ports in use on a T0."""
        return self.hosts_per_t0 + self.t1

    @property
    def t1_radix(self) -> int:
        """Ports in use on a T1."""
        return self.t0

    @property
    def oversubscription(self) -> float:
        """Host ports per uplink of a T0; 1.0 or less is non-blocking at equal rates."""
        return self.hosts_per_t0 / self.t1

    def seat(self, host: int) -> Seat:
        """Where host number `host` is attached: the first T0 is filled first."""
        self._check_host(host)
        return Seat(*divmod(host, self.hosts_per_t0))

    def host(self, seat: Seat) -> int:
        """The number of the host at a seat; the inverse of `seat`."""
        t0, port = seat
        if not (0 <= t0 < self.t0 and 0 <= port < self.hosts_per_t0):
            raise IndexError(f"no host at T0 {t0}, port {port}")
        return t0 * self.hosts_per_t0 + port

    def num_paths(self, a: int, b: int) -> int:
        """Paths between two hosts: one per plane below a common T0, one per plane and T1 otherwise."""
        return self.planes if self.seat(a).t0 == self.seat(b).t0 else self.planes * self.t1

    def paths(self, a: int, b: int) -> Iterator[Path]:
        """Every path between two hosts, plane by plane."""
        local = self.seat(a).t0 == self.seat(b).t0
        for plane in range(self.planes):
            if local:
                yield Path(plane, None)
            else:
                for t1 in range(self.t1):
                    yield Path(plane, t1)

    def hops(self, a: int, b: int, path: Path) -> list[str]:
        """The switches a packet from host a to host b crosses, by name."""
        up, down = self.seat(a).t0, self.seat(b).t0
        if path.t1 is None:
            return [t0_name(path.plane, up)]
        return [t0_name(path.plane, up), t1_name(path.plane, path.t1), t0_name(path.plane, down)]

    def switches(self) -> Iterator[str]:
        """Every switch by name, plane by plane, T0s first."""
        for plane in range(self.planes):
            for i in range(self.t0):
                yield t0_name(plane, i)
            for j in range(self.t1):
                yield t1_name(plane, j)

    def _check_host(self, host: int) -> None:
        if not 0 <= host < self.num_hosts:
            raise IndexError(f"no host {host}; there are {self.num_hosts}")


def t0_name(plane: int, index: int) -> str:
    """`p2/t0-1`"""
    return f"p{plane}/t0-{index}"


def t1_name(plane: int, index: int) -> str:
    """`p2/t1-0`"""
    return f"p{plane}/t1-{index}"


def host_link_name(plane: int, node: str) -> str:
    """`p2/n3`, the link between a node and its T0 in one plane."""
    return f"p{plane}/{node}"


def fabric_link_name(plane: int, t0: int, t1: int) -> str:
    """`p2/t0-1/t1-0`, the link between a T0 and a T1."""
    return f"p{plane}/t0-{t0}/t1-{t1}"
