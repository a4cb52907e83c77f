"""What ranks should be: how many GPUs a node has for them, which RDMA devices count, which numbers hold. Pure.

Gathered from the cluster file, the VM size and what the probe read, before anything is judged; the judges know neither.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fairlead.base.nodeset import NodeSet
from fairlead.checks import Expect, expect_of, gpus_of, rdma_devices
from fairlead.preflight.ranks.limits import Numbers, judged_messages, numbers_of
from fairlead.preflight.table import Preflight
from fairlead.probe.addresses import natural
from fairlead.records.addressbook import AddressBook
from fairlead.records.facts import NodeFacts, Unread
from fairlead.spec.contract import contract_of
from fairlead.spec.model import Spec
from fairlead.spec.vmsize import VmSize

Device = Literal["gpu", "cpu", "any"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Everything that ranks are held against."""

    rdma: str = "none"
    link: str = ""
    """infiniband or ethernet, as the cluster file declares the RDMA ports; empty: nobody says."""
    device: Device = "any"
    """gpu: every rank must have one; any: nobody says."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Node -> GPUs that the VM size, the pool or the probe counts, as far as the job of Slurm holds them."""
    hcas: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Node -> names of the RDMA devices that count there; a node that nobody knows this of is missing."""
    num_hcas: int | None = None
    """RDMA ports of a node, by the VM size or the pool."""
    perftest: bool = False
    """Rails were to be measured by RDMA as well."""
    port_gbps: float = 0.0
    size: VmSize | None = None
    """The VM size, with the site's own numbers laid over it; None where pools of several sizes take part."""
    numbers: Numbers = field(default_factory=Numbers)
    pools: Mapping[str, str] = field(default_factory=dict)
    """Node -> its pool: nodes of one kind, which are held side by side."""


def wanted_of(spec: Spec, nodes: Iterable[str], facts: Sequence[NodeFacts]) -> Wanted:
    """What the ranks on some nodes should be."""
    names = NodeSet(nodes)
    pools = [pool for pool in spec.pools if pool.nodes & names]
    contracts = [contract_of(spec, pool) for pool in pools]
    expected = {n: expect for pool in pools for expect in [expect_of(spec, pool)] for n in pool.nodes & names}
    records = {record.node: record for record in facts}
    gpus = gpus_of(spec, names, facts)
    asked = spec.table(Preflight).ranks_on
    device: Device = (
        {"gpus": "gpu", "cpus": "cpu"}.get(asked)  # type: ignore[assignment]
        or ("gpu" if gpus and all(gpus.values()) else "cpu" if gpus and not any_known_or_hidden(gpus) else "any")
    )
    first = contracts[0] if contracts else None
    return Wanted(
        rdma=spec.fabric.rdma,
        link=spec.fabric.link if spec.fabric.rdma != "none" else "",
        device=device,
        gpus={n: num or 0 for n, num in gpus.items()},
        hcas={n: found for n in names if (found := counted_hcas(records.get(n), expected.get(n)))},
        num_hcas=first.hca_ports if first and len({c.hca_ports for c in contracts}) == 1 else None,
        perftest=spec.table(Preflight).perftest,
        # where the file declares no RDMA, ranks talk over another network than these ports
        port_gbps=min((r for c in contracts for r in c.hca_rates_gbps if spec.fabric.rdma != "none"), default=0.0),
        size=first if first and len({c.name for c in contracts}) == 1 else None,
        numbers=numbers_of(spec),
        pools={n: pool.name for pool in pools for n in pool.nodes & names},
    )


def any_known_or_hidden(gpus: Mapping[str, int | None]) -> bool:
    """Whether some node has GPUs, or may have some that nobody could count."""
    return any(num is None or num > 0 for num in gpus.values())


def per_node(wanted: Wanted) -> int:
    """Ranks of each node: one a GPU, as many as the node with the fewest has; one where there are none."""
    return min(wanted.gpus.values(), default=0) or 1


def common_hcas(wanted: Wanted, nodes: Iterable[str]) -> tuple[str, ...]:
    """RDMA devices that count on every node, in the order of their numbers."""
    sets = [wanted.hcas.get(name, frozenset()) for name in nodes]
    return tuple(sorted(frozenset.intersection(*sets), key=natural)) if sets else ()


def sizes_to_try(wanted: Wanted, asked: Sequence[int], num_nodes: int) -> tuple[int, ...]:
    """Message sizes of the all-reduce: those asked for, and on GPUs those that a limit holds for."""
    judged = judged_messages(wanted.size, nodes=num_nodes) if wanted.device == "gpu" else set()
    return tuple(sorted({*asked, *judged}))


def rail_interfaces(book: AddressBook, nodes: Iterable[str]) -> list[dict[str, str]]:
    """For ranks on CPUs: how each node finds its interface of each rail: by name, or by the network its address is in.

    One answer for all nodes, so that what ranks are told does not grow with their number. A rail on which a node has no
    address is left out.
    """
    places, out = [p for n in nodes if (p := book.place(n)) is not None], []
    for rail in book.rails:
        ports = [place.port(rail) for place in places]
        addresses = [port.address for port in ports if port and port.address]
        if len(addresses) == len(places) > 1:
            names = {port.interface for port in ports if port}
            out.append({"rail": rail, "name": min(names) if len(names) == 1 else "", "net": common_network(addresses)})
    nets = [ipaddress.ip_network(rail["net"]) for rail in out if rail["net"]]
    # rails whose networks overlap cannot be told apart by them
    return [rail if not rail["net"] or _overlaps(rail["net"], nets) < 2 else {**rail, "net": ""} for rail in out]


def _overlaps(net: str, nets: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> int:
    """How many networks share an address with one, itself included."""
    low, high = _ends(ipaddress.ip_network(net))
    return sum(low <= other[1] and other[0] <= high for other in map(_ends, nets))


def _ends(net: ipaddress.IPv4Network | ipaddress.IPv6Network) -> tuple[int, int]:
    return int(net.network_address) + (net.version << 128), int(net.broadcast_address) + (net.version << 128)


def common_network(addresses: Iterable[str]) -> str:
    """The smallest network that holds all addresses; empty where they are of different families.

    >>> common_network(["10.0.0.1", "10.0.0.6"])
    '10.0.0.0/29'
    """
    found = [ipaddress.ip_address(a) for a in addresses]
    if len({a.version for a in found}) != 1:
        return ""
    low, high = min(int(a) for a in found), max(int(a) for a in found)
    bits = found[0].max_prefixlen - (low ^ high).bit_length()
    return str(ipaddress.ip_network(f"{found[0]}/{bits}", strict=False))


def counted_hcas(record: NodeFacts | None, expect: Expect | None) -> frozenset[str]:
    """RDMA devices of a node that count, as the checks choose them; empty where nobody can tell."""
    if expect is None:
        return frozenset()
    if record is None:
        return frozenset(expect.get("hcas") or ())
    try:
        return rdma_devices(record, expect)
    except Unread:
        return frozenset()


def is_accelnet(name: str) -> bool:
    """Whether a device is by its name the accelerated Ethernet port, which carries no job's RDMA."""
    return name.startswith("mlx5_an")
