"""What must fit together in a cluster file. Each rule sees the whole spec and says everything it objects to.
Rules about a room's table stand beside that table.

Pure: no rule reads a machine, a clock or the environment. A rule names every path it looked at in `needs`, so that it
stays silent where one of them was refused before.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

from fairlead.base.nodeset import NodeSet
from fairlead.base.rooms import load
from fairlead.base.suggest import did_you_mean
from fairlead.errors import UsageError
from fairlead.spec.contract import expectable
from fairlead.spec.decode import decode_value
from fairlead.spec.locate import KeyPath
from fairlead.spec.model import Spec
from fairlead.spec.problems import Problems
from fairlead.spec.resolve import num_nics
from fairlead.spec.tables import tables
from fairlead.spec.topology import Topology
from fairlead.spec.vmsize import EXPECTED, size, sizes

SCHEMA = 1

_VIA: KeyPath = ("access", "via")


def rules(today: dt.date) -> list[Callable[[Spec, Problems], None]]:
    """Every rule, in the order of the file."""

    def waivers(spec: Spec, report: Problems) -> None:
        _waivers(spec, report, today)

    return [
        _schema,
        _pool_names,
        _pool_nodes,
        _pool_sizes,
        _fabric,
        _topology,
        _access,
        *(load(t.rules) for t in tables() if t.rules),
        waivers,
        _expects,
    ]


def _schema(spec: Spec, report: Problems) -> None:
    if spec.schema != SCHEMA:
        report(("schema",), "spec/schema", f"schema is {spec.schema}; this fairlead reads schema {SCHEMA}")


def _pool_names(spec: Spec, report: Problems) -> None:
    if not spec.pools:
        report(
            ("pool",),
            "spec/no-pool",
            "no nodes: the file has no [[pool]]",
            hint="fairlead init shows one",
            needs=[_VIA],
        )
    first: dict[str, int] = {}
    for number, pool in enumerate(spec.pools):
        if pool.name in first:
            here, there = ("pool", number, "name"), ("pool", first[pool.name], "name")
            report(here, "spec/duplicate-pool", f"a second pool is called `{pool.name}`", needs=[there])
        first.setdefault(pool.name, number)


def _pool_nodes(spec: Spec, report: Problems) -> None:
    owner: dict[str, int] = {}
    for number, pool in enumerate(spec.pools):
        here, nodes = ("pool", number, "nodes"), pool.nodes
        if not nodes:
            report(here, "spec/no-nodes", f"pool `{pool.name}` names no nodes")
        shared: dict[int, list[str]] = {}
        for node in nodes:
            if node in owner:
                shared.setdefault(owner[node], []).append(node)
            else:
                owner[node] = number
        for other, names in shared.items():
            theirs = spec.pools[other].name
            text = f"{NodeSet(names)} ({len(names)}) is also in pool `{theirs}`"
            report(here, "spec/node-in-two-pools", text, needs=[("pool", other, "nodes")])
        if pool.count is not None and pool.count != len(nodes):
            path = ("pool", number, "count")
            report(path, "spec/count", f"count is {pool.count}, but `nodes` names {len(nodes)}", needs=[here])


def _pool_sizes(spec: Spec, report: Problems) -> None:
    for number, pool in enumerate(spec.pools):
        here: KeyPath = ("pool", number, "size")
        facts = size(pool.size)
        if facts is None:
            hint = did_you_mean(pool.size, _spellings(pool.size))
            report(here, "spec/unknown-size", f"no VM size `{pool.size}`", hint=hint + ' (or "other")')
            continue
        if facts.name == "lab" and not spec.is_lab:
            report(
                here,
                "spec/lab-size",
                f'size "lab" is for `via = "lab"`, not for `via = "{spec.access.via}"`',
                needs=[_VIA],
            )
        if spec.is_lab:
            continue  # a lab host can be shaped at will
        for key, known, code in (("gpus", facts.gpus, "spec/size-gpus"), ("ports", facts.hca_ports, "spec/size-ports")):
            declared, path = getattr(pool, key), ("pool", number, key)
            if known is not None and declared is not None and declared != known:
                why = f"{key} is {declared}, but {facts.name} has {known}"
                hint = f"leave `{key}` out, or write an [[expect]] with the reason"
                report(path, code, why, hint=hint, needs=[here, _VIA])
        if spec.fabric.rdma != "none" and facts.rdma is False:
            text = f"pool `{pool.name}`: {facts.name} has no RDMA"
            report(("fabric", "rdma"), "spec/size-no-rdma", text, hint='use rdma = "none"', needs=[here, _VIA])


def _fabric(spec: Spec, report: Problems) -> None:
    fabric, here, link = spec.fabric, ("fabric", "rdma"), ("fabric", "link")
    if fabric.rdma == "ib" and fabric.link == "ethernet":
        report(here, "spec/rdma-link", 'rdma = "ib" needs link = "infiniband"', needs=[link])
    if fabric.rdma in ("roce", "mrc") and fabric.link == "infiniband":
        report(here, "spec/rdma-link", f'rdma = "{fabric.rdma}" needs link = "ethernet"', needs=[link])
    if fabric.lossless is False and fabric.link == "infiniband":
        text = "InfiniBand's link layer drops nothing for want of room, so any loss is a fault"
        hint = "leave `lossless` out; what is let pass is `loss` in [preflight.limits]"
        report(("fabric", "lossless"), "spec/lossless", text, hint=hint, needs=[link])


def _topology(spec: Spec, report: Problems) -> None:
    fabric = spec.fabric
    for number, pool in enumerate(spec.pools):
        path: KeyPath = ("pool", number, "ports")
        needs: list[KeyPath] = [("fabric", "planes"), ("pool", number, "size"), _VIA]
        if spec.is_lab and pool.ports != fabric.planes:
            text = f"a lab host has one port in each plane: ports is {pool.ports}, planes is {fabric.planes}"
            report(path, "spec/ports-planes", text, needs=needs)
        elif not spec.is_lab and pool.ports and pool.ports % fabric.planes:
            text = f"{pool.ports} ports of a node cannot be spread evenly over {fabric.planes} planes"
            report(("fabric", "planes"), "spec/ports-planes", text, needs=[path, *needs])
    if (fabric.t0 is None) != (fabric.t1 is None):
        have, lack = ("t0", "t1") if fabric.t1 is None else ("t1", "t0")
        report(("fabric", have), "spec/topology-half", f"`{have}` is given, but not `{lack}`", needs=[("fabric", lack)])
    if fabric.t0 is None or fabric.t1 is None:
        return
    where: KeyPath = ("fabric", "t0")
    needs = [*(("fabric", k) for k in ("planes", "t1", "hosts_per_t0")), *_of_pools(spec, "nodes", "size", "ports")]
    nics = sum(num_nics(spec, p) for p in spec.pools)
    try:
        if fabric.hosts_per_t0 is None:
            Topology.divide(planes=fabric.planes, t0=fabric.t0, t1=fabric.t1, hosts=nics)
            return
        whole = Topology(fabric.planes, fabric.t0, fabric.t1, fabric.hosts_per_t0)
    except UsageError as error:
        report(where, error.code, error.message, hint=error.hint, needs=needs)
        return
    if whole.num_hosts < nics or (spec.is_lab and whole.num_hosts != nics):
        text = f"{fabric.t0} T0 x {fabric.hosts_per_t0} hosts hold {whole.num_hosts} NICs, but the pools have {nics}"
        report(("fabric", "hosts_per_t0"), "spec/topology-divide", text, needs=[where, *needs])


def _access(spec: Spec, report: Problems) -> None:
    via = spec.access.via
    unused: dict[KeyPath, tuple[str, ...]] = {("access", "user"): ("ssh",)}
    unused |= {(t.name,): t.via for t in tables() if t.via}
    for path, readers in unused.items():
        if path in report.places and via not in readers:
            name = f"`{path[-1]}`" if len(path) > 1 else f"[{path[0]}]"
            text = f'{name} is not used with `via = "{via}"`'
            report.warn(path, "spec/ignored", text, needs=[_VIA], on="key")


def _waivers(spec: Spec, report: Problems, today: dt.date) -> None:
    if not spec.waivers:
        return
    from fairlead.records.codes import explanations  # reads every room's codes: only where a waiver asks for one

    codes, known = explanations(), set(spec.nodes)
    for number, waiver in enumerate(spec.waivers):
        path = ("waiver", number)
        if waiver.code not in codes:
            hint = did_you_mean(waiver.code, codes)
            report((*path, "code"), "spec/waiver-code", f"no finding has the code `{waiver.code}`", hint=hint)
        strangers = NodeSet(n for n in waiver.nodes if n not in known)
        if not waiver.nodes:
            report((*path, "nodes"), "spec/waiver-nodes", "a waiver must name its nodes", hint='"all" for every node')
        elif strangers and not waiver.covers_all:
            text = f"no pool has {strangers} ({len(strangers)})"
            report((*path, "nodes"), "spec/waiver-nodes", text, needs=_of_pools(spec, "nodes"))
        if not waiver.is_active(today):
            text = f"the waiver of {waiver.code} ended on {waiver.expires}; it no longer applies"
            hint = "repair the nodes and remove it, or set a new date"
            report.warn((*path, "expires"), "spec/waiver-expired", text, hint=hint, needs=[(*path, "code")])


def _expects(spec: Spec, report: Problems) -> None:
    pools = {p.name for p in spec.pools}
    seen: set[tuple[object, ...]] = set()
    for number, expect in enumerate(spec.expects):
        path = ("expect", number)
        if expect.pool and expect.pool not in pools:
            hint = did_you_mean(expect.pool, pools)
            report(
                (*path, "pool"),
                "spec/expect-pool",
                f"no pool `{expect.pool}`",
                hint=hint,
                needs=_of_pools(spec, "name"),
            )
        kinds = expectable()
        if expect.fact not in kinds:
            hint = did_you_mean(expect.fact, kinds)
            report((*path, "fact"), "spec/expect-fact", f"no fact `{expect.fact}`", hint=hint)
            continue
        if not report.is_refused((*path, "value")):
            decode_value(_as_list(expect.value), kinds[expect.fact], (*path, "value"), report)
        held = (expect.message_bytes, expect.min_nodes, expect.max_nodes)
        if expect.fact not in EXPECTED and any(value is not None for value in held):
            text = f"`{expect.fact}` holds for a node, whatever the messages and the number of nodes"
            report((*path, "fact"), "spec/expect-holds", text, hint="leave message_bytes, min_nodes and max_nodes out")
        elif expect.min_nodes and expect.max_nodes and expect.min_nodes > expect.max_nodes:
            report((*path, "max_nodes"), "spec/expect-holds", "max_nodes is less than min_nodes")
        if (expect.fact, expect.pool, *held) in seen:
            report((*path, "fact"), "spec/expect-twice", f"`{expect.fact}` is expected twice")
        seen.add((expect.fact, expect.pool, *held))


def _of_pools(spec: Spec, *keys: str) -> list[KeyPath]:
    """The paths of some keys in every pool."""
    return [("pool", number, key) for number in range(len(spec.pools)) for key in keys]


def _as_list(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _spellings(near: str) -> Iterator[str]:
    """Every name of a VM size, in the case of the word it is compared with."""
    for known in sizes().values():
        for name in (known.name, *known.aliases):
            yield name if any(c.isupper() for c in near) else name.lower()
