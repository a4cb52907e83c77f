"""Which addresses of a node the pair phase uses: one that programs use, and one for each plane or rail. Pure.

In the lab they follow from the topology's arithmetic. On real nodes they are what the probe read: the address of the
default route's interface, or of the first that has one where there is no such route, and one for each InfiniBand or
other RDMA interface that carries an address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.base.nodeset import NodeSet
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.spec import usid
from fairlead.spec.contract import contract_of
from fairlead.spec.model import Spec
from fairlead.spec.topology import Topology

_INFINIBAND = "32"
"""ARPHRD_INFINIBAND, as /sys/class/net/NAME/type shows it."""
_RDMA_DRIVERS = ("mlx5_core", "mlx4_core", "mlx4_en", "mana", "bnxt_en", "irdma")


@dataclass(frozen=True, slots=True)
class Paths:
    """Labels of the paths, each node's address on each (empty: it has none), and the switch each node hangs below."""

    labels: tuple[str, ...]
    addresses: dict[str, tuple[str, ...]]
    groups: Mapping[str, int] = field(default_factory=dict)

    def first(self, node: str) -> str:
        """The address programs use."""
        return self.addresses[node][0]


def paths_of(facts: Sequence[NodeFacts], spec: Spec) -> Paths:
    """The paths between nodes that answered. A node whose interfaces could not be read has no address at all."""
    return _lab_paths([f.node for f in facts], spec) if spec.is_lab else _read_paths(facts)


def port_bps(spec: Spec, nodes: NodeSet) -> float:
    """What the slowest port between some nodes is meant to carry, b/s; 0 where no VM size says.

    In the lab a port's rate, or its share of the uplinks where these are fewer.
    """
    if spec.is_lab:
        topo, lab = _topology(spec), spec.lab
        share = (lab.uplink_rate_mbps or lab.rate_mbps) * min(1.0, topo.t1 / topo.hosts_per_t0)
        return 1e6 * min(lab.rate_mbps, share)
    sizes = [contract_of(spec, pool) for pool in spec.pools if pool.nodes & nodes]
    return 1e9 * min((gbps for size in sizes for gbps in (size.ethernet_gbps, *size.hca_rates_gbps) if gbps), default=0)


def _topology(spec: Spec) -> Topology:
    fabric = spec.fabric
    return Topology.divide(planes=fabric.planes, t0=fabric.t0 or 1, t1=fabric.t1 or 1, hosts=len(spec.nodes))


def _lab_paths(nodes: Sequence[str], spec: Spec) -> Paths:
    topo, order = _topology(spec), list(spec.nodes)
    addresses, groups = {}, {}
    for node in nodes:
        t0, port = topo.seat(order.index(node))
        own = [str(usid.port_address(plane, t0, port)) for plane in range(topo.planes)]
        addresses[node] = (str(usid.fabric_address(t0, port)), *own)
        groups[node] = t0
    return Paths(("fabric", *(f"plane {p}" for p in range(topo.planes))), addresses, groups)


def _read_paths(facts: Sequence[NodeFacts]) -> Paths:
    found = {record.node: _interfaces(record) for record in facts}
    rails = sorted({name for _, rdma in found.values() for name in rdma})
    # a rail that one node alone has connects nothing
    shared = [name for name in rails if sum(name in rdma for _, rdma in found.values()) > 1]
    addresses = {node: (main, *(rdma.get(name, "") for name in shared)) for node, (main, rdma) in found.items()}
    return Paths(("default route", *shared), addresses)


def _interfaces(record: NodeFacts) -> tuple[str, dict[str, str]]:
    """(the address programs use, RDMA interface -> address): the default route's interface, else the first there is."""
    facts = Facts(record)
    others, rdma = {}, {}
    try:
        default = str(facts.get("net.default_interface"))
        names = facts.keys("net.links")
    except Unread:
        return "", {}
    for name in names:
        try:
            address = _address(facts.get("net.links", name, "addresses"))
            kind, driver = str(facts.get("net.links", name, "type")), str(facts.get("net.links", name, "driver"))
            master = str(facts.get("net.links", name, "master"))
        except Unread:
            continue
        if name != default and (kind == _INFINIBAND or driver.rsplit("/", 1)[-1] in _RDMA_DRIVERS):
            if address and not master:
                rdma[name] = address
        elif address:
            others[name] = address
    return others.get(default) or next(iter({**others, **rdma}.values()), ""), rdma


def _address(found: Sequence[str]) -> str:
    """The first address that reaches beyond its own link, IPv4 before IPv6."""
    plain = [a.partition("/")[0] for a in found]
    routed = [a for a in plain if not a.startswith(("fe80:", "127.")) and a != "::1"]
    return next((a for a in routed if ":" not in a), routed[0] if routed else "")
