"""What must fit together in a scenario, beyond the bounds of single keys. Every problem is reported.

Knows: how keys depend on each other, on the fabric, and on files that a scenario names. Must not know: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.fabric.sim.htsim_files import read_matrix, read_topology
from fairlead.fabric.sim.model import Fault, Scenario, Traffic
from fairlead.spec.problems import Problems

Check = Callable[[Scenario, Problems], None]
Where = tuple[str | int, ...]


def checks(folder: Path) -> list[Check]:
    """Every check; files that a scenario names are looked for in `folder`."""

    def check_files(s: Scenario, report: Problems) -> None:
        named: list[tuple[Where, str]] = [(("topology", "file"), s.topology.file)]
        named += [(("traffic", i, "file"), part.file) for i, part in enumerate(s.traffic)]
        for path, name in named:
            if name and not (folder / name).is_file():
                report(
                    path, "sim/file", f"there is no file {name} in {folder}", hint="name it from the scenario's folder"
                )

    def check_traffic_here(s: Scenario, report: Problems) -> None:
        check_traffic(s, report, folder)

    def check_faults_here(s: Scenario, report: Problems) -> None:
        check_faults(s, report, folder)

    return [check_files, check_topology, check_transport, check_traffic_here, check_faults_here]


@dataclass(frozen=True)
class Extent:
    """How many there are of everything that a scenario can name."""

    plane: int
    t0: int
    t1: int
    core: int
    nic: int
    pod_t0: int
    pod_t1: int


def extent(s: Scenario, report: Problems, folder: Path) -> Extent | None:
    """The extent of the fabric; None where its tables or its file were refused. Raises SpecError for a bad file."""
    t = s.topology
    if report.is_refused(("topology",)):
        return None
    if t.kind == "file":
        shape = read_topology(folder / t.file)
        return Extent(1, shape.t0, shape.t1, shape.cores, shape.num_nics, shape.pod_t0, shape.pod_t1)
    pods = t.pods if t.kind == "fat-tree" else 1
    return Extent(t.planes, pods * t.t0, pods * t.t1, t.cores, t.nics or pods * t.t0 * t.hosts_per_t0, t.t0, t.t1)


def _refuse_idle(
    report: Problems, at: Where, kind: str, taken: Collection[str], of: Mapping[str, Collection[str]]
) -> None:
    """Keys the file says that this kind does not read: what is said must not be silently without effect."""
    for path in report.places:
        if path[:-1] == at and path[-1] not in taken:
            others = sorted(other for other, keys in of.items() if path[-1] in keys)
            if others:
                hint = f"it is for {', '.join(f'`{o}`' for o in others)}"
                report(path, "sim/choice", f"`{kind}` does not take `{path[-1]}`", hint=hint, on="key")


TOPOLOGY_KEYS = {
    "planes": ("planes", "t0", "t1", "hosts_per_t0", "nics", "links_per_pair"),
    "fat-tree": ("planes", "t0", "t1", "hosts_per_t0", "pods", "cores", "links_per_pair"),
    "file": ("file",),
}


def check_topology(s: Scenario, report: Problems) -> None:
    """The fabric divides, and says what its kind needs."""
    t, path = s.topology, ("topology",)
    if report.is_refused_itself((*path, "kind")):
        return
    _refuse_idle(report, path, t.kind, ("kind", *TOPOLOGY_KEYS[t.kind]), TOPOLOGY_KEYS)
    if t.kind == "file":
        if not t.file:
            report((*path, "kind"), "sim/missing", "a topology of kind `file` needs `file`", hint="name a .topo file")
        for place in report.places:
            if place[:1] == ("links",) and len(place) == 2:
                report(place, "sim/choice", "a topology file says its own rates and latencies", on="key")
    if t.kind == "fat-tree":
        if not t.cores:
            report((*path, "kind"), "sim/missing", "a fat tree needs `cores`", hint=f"use a multiple of {t.t1}")
        elif t.cores % t.t1:
            report(
                (*path, "cores"), "sim/topology-divide",
                f"{t.cores} core switches cannot be shared evenly by {t.t1} aggregation switches",
                hint=_nearest(t.cores, t.t1),
            )  # fmt: skip
    if t.kind == "planes" and t.nics % t.t0:
        report(
            (*path, "nics"), "sim/topology-divide", f"{t.nics} NICs cannot be spread evenly over {t.t0} T0 switches",
            hint=_nearest(t.nics, t.t0), needs=[(*path, "t0")],
        )  # fmt: skip


def _nearest(whole: int, part: int) -> str:
    return f"use {whole // part * part or part} or {(whole // part + 1) * part}"


_CORE_KEYS = ("paths", "congestion", "evs", "cwnd_bdp", "cwnd_packets", "sack_bytes", "announce_ports")
TRANSPORT_KEYS = {"mrc": _CORE_KEYS, "uec": _CORE_KEYS, "roce": ("dcqcn",)}
COMMON_TRANSPORT = ("routing", "payload_bytes", "header_bytes", "window_packets", "timeout_us")


def check_transport(s: Scenario, report: Problems) -> None:
    """Choices that exclude each other."""
    t, path = s.transport, ("transport",)
    if not report.is_refused_itself((*path, "kind")):
        _refuse_idle(report, path, t.kind, ("kind", *COMMON_TRANSPORT, *TRANSPORT_KEYS[t.kind]), TRANSPORT_KEYS)
    if t.routing == "source" and s.topology.kind == "fat-tree":
        report(
            (*path, "routing"), "sim/choice", "packets name their uplink only on planes of two tiers",
            hint='routing = "hash"',
        )  # fmt: skip
    if s.queues.pfc and t.kind != "roce":
        report(
            ("queues", "pfc"), "sim/choice", "PFC is for RoCE; MRC runs without", hint='transport.kind = "roce"',
            needs=[(*path, "kind")],
        )  # fmt: skip
    if s.queues.ecn_low_bdp > s.queues.ecn_high_bdp:
        report(("queues", "ecn_low_bdp"), "sim/choice", "the low ECN threshold stands above the high one")


_PAIRS = ("nics", "size_bytes", "start_us", "qps", "messages")
_COLLECTIVE = ("nics", "size_bytes", "start_us", "qps")
TRAFFIC_KEYS = {
    "permutation": (*_PAIRS, "depth"),
    "send-recv": (*_PAIRS, "depth"),
    "incast": (*_PAIRS, "depth", "to"),
    "flow": (*_PAIRS, "depth", "to"),
    "all-to-all": (*_COLLECTIVE, "messages"),
    "ring-all-reduce": (*_COLLECTIVE, "messages"),
    "tree-all-reduce": (*_COLLECTIVE, "messages", "chunk_bytes"),
    "training": (*_COLLECTIVE, "collective", "steps", "compute_us", "compute_jitter", "chunk_bytes"),
    "file": ("file", "start_unit"),
}


def check_traffic(s: Scenario, report: Problems, folder: Path) -> None:
    """Senders and receivers exist."""
    if not s.traffic:
        report(("traffic",), "sim/missing", "there is no traffic", hint="add a [[traffic]] table")
        return
    size = extent(s, report, folder)
    total = size.nic if size else 0
    for i, part in enumerate(s.traffic):
        path: Where = ("traffic", i)
        if report.is_refused_itself((*path, "kind")):
            continue
        _refuse_idle(report, path, part.kind, ("kind", "name", *TRAFFIC_KEYS[part.kind]), TRAFFIC_KEYS)
        if part.kind == "file":
            _check_matrix(part, total, path, report, folder)
        else:
            _check_part(part, total, path, report)


def _check_matrix(part: Traffic, total: int, path: Where, report: Problems, folder: Path) -> None:
    if not part.file:
        report((*path, "kind"), "sim/missing", "traffic of kind `file` needs `file`", hint="name a .cm file")
    elif total and not report.is_refused((*path, "file")):
        nodes = read_matrix(folder / part.file).nodes
        if nodes > total:
            report(
                (*path, "file"), "sim/no-such-nic", f"{part.file} is for {nodes} nodes; the fabric has {total} NICs",
                hint="use a larger topology",
            )  # fmt: skip


def _check_part(part: Traffic, total: int, path: Where, report: Problems) -> None:
    if total and part.nics.highest >= total:
        report((*path, "nics"), "sim/no-such-nic", f"there is no NIC {part.nics.highest}; there are {total}, from 0")
        return
    if part.kind in {"incast", "flow"}:
        if part.to < 0:
            report((*path, "kind"), "sim/missing", f"`{part.kind}` needs `to`", hint="name the receiving NIC")
        elif total and part.to >= total:
            report((*path, "to"), "sim/no-such-nic", f"there is no NIC {part.to}; there are {total}, from 0")
        elif part.kind == "flow" and (part.nics.is_all or part.to in part.nics.numbers(0)):
            report((*path, "nics"), "sim/choice", "a flow needs senders other than its receiver")
        elif not part.nics.is_all and set(part.nics.numbers(0).tolist()) == {part.to}:
            report((*path, "nics"), "sim/choice", "an incast needs senders other than its receiver")
    elif (total if part.nics.is_all else len(part.nics.numbers(0))) < 2 and total:
        report((*path, "nics"), "sim/choice", f"`{part.kind}` needs at least two NICs", needs=[(*path, "nics")])


_SPAN = ("kind", "at_us", "until_us", "planes", "plane", "apart_us")
_BROKEN = (*_SPAN, "flap_us", "reroute_us")
_WEAK = (*_SPAN, "t0", "t1", "t1s", "nic", "nics", "core", "direction")
FAULT_KEYS = {
    "link": (*_BROKEN, "t0", "t1", "t1s"),
    "port": (*_BROKEN, "nic", "nics"),
    "t0": (*_BROKEN, "t0"),
    "t1": (*_BROKEN, "t1", "t1s"),
    "loss": (*_WEAK, "loss"),
    "slow": (*_WEAK, "rate"),
    "paths": ("kind", "at_us", "until_us", "planes", "plane", "nics", "t1s", "loss"),
}
_MOST_FLAPS = 10_000
_MOST_PATHS = 62  # a bit of a word each
_SEVERAL = {"plane": "planes", "t1": "t1s", "nic": "nics"}
_NEEDED = {"link": ("t0", "t1"), "port": ("nic",), "t0": ("t0",), "t1": ("t1",)}


def check_faults(s: Scenario, report: Problems, folder: Path) -> None:
    """Each fault names parts that exist, and times that can be."""
    size = extent(s, report, folder) if s.fault else None
    num_paths = 0
    for i, fault in enumerate(s.fault):
        path: Where = ("fault", i)
        num_paths += fault.kind == "paths"
        if fault.kind == "paths" and num_paths > _MOST_PATHS:
            report((*path, "kind"), "sim/choice", f"more than {_MOST_PATHS} faults of kind `paths`")
        if report.is_refused_itself((*path, "kind")):
            continue
        _refuse_idle(report, path, fault.kind, FAULT_KEYS[fault.kind], FAULT_KEYS)
        _check_fault(s, fault, path, report)
        if size:
            _check_place(size, fault, path, report)
            _check_routing(s, size, fault, path, report)


def _check_fault(s: Scenario, fault: Fault, path: Where, report: Problems) -> None:
    for key in _NEEDED.get(fault.kind, ()):
        several = _SEVERAL.get(key)
        if getattr(fault, key) < 0 and not (several and not getattr(fault, several).is_all):
            report((*path, "kind"), "sim/missing", f"a fault of kind `{fault.kind}` needs `{key}`")
    for key, several in _SEVERAL.items():
        if fault.kind != "paths" and getattr(fault, key) >= 0 and not getattr(fault, several).is_all:
            report((*path, several), "sim/choice", f"either `{key}` or `{several}`, not both", on="key")
    if fault.apart_us and all(getattr(fault, several).is_all for several in _SEVERAL.values()):
        report((*path, "apart_us"), "sim/choice", "`apart_us` needs several", hint='t1s = "0-3"', on="key")
    if fault.until_us and fault.until_us <= fault.at_us:
        report((*path, "until_us"), "sim/fault-time", "the repair comes before the fault")
    if fault.flap_us and ((fault.until_us or s.run.until_us) - fault.at_us) / fault.flap_us > _MOST_FLAPS:
        report((*path, "flap_us"), "sim/fault-time", f"it would flap more than {_MOST_FLAPS:,} times")
    if fault.at_us >= s.run.until_us:
        report((*path, "at_us"), "sim/fault-time", f"the run ends at {s.run.until_us:g} us, before this fault")
    if fault.kind in {"loss", "paths"} and not fault.loss:
        report((*path, "kind"), "sim/missing", f"`{fault.kind}` needs `loss`", hint="loss = 0.01")
    if fault.kind == "slow" and fault.rate == 1.0:
        report((*path, "kind"), "sim/missing", "`slow` needs `rate`", hint="rate = 0.25")


def _check_routing(s: Scenario, size: Extent, fault: Fault, path: Where, report: Problems) -> None:
    if report.is_refused(("transport",)):
        return
    if s.transport.names_uplinks(size.core):
        if fault.reroute_us:
            report(
                (*path, "reroute_us"), "sim/choice", "packets that name their uplink are not routed around a dead link",
                hint='transport.routing = "hash"', on="key",
            )  # fmt: skip
    elif fault.kind == "paths":
        report(
            (*path, "kind"), "sim/choice", "`paths` are those that packets name; here switches choose them by hash",
            hint='use `loss` with `t1s`, or transport.routing = "source"',
        )  # fmt: skip


def _check_place(size: Extent, fault: Fault, path: Where, report: Problems) -> None:
    for key in ("plane", "t0", "t1", "nic", "core"):
        limit = getattr(size, key)
        if getattr(fault, key) >= limit:
            report((*path, key), "sim/no-such-part", _no_such(key, getattr(fault, key), limit))
    for key, several in _SEVERAL.items():
        highest = getattr(fault, several).highest
        limit = size.pod_t1 if fault.kind == "paths" and key == "t1" else getattr(size, key)
        if highest >= limit:
            report((*path, several), "sim/no-such-part", _no_such(key, highest, limit))
    if fault.t0 >= 0 and fault.t1 >= 0 and fault.t0 // size.pod_t0 != fault.t1 // size.pod_t1:
        report(
            (*path, "t1"), "sim/no-such-part",
            f"T0 {fault.t0} and T1 {fault.t1} are in different pods: no link joins them",
            needs=[(*path, "t0")],
        )  # fmt: skip
    if fault.core >= 0:
        if fault.t1 < 0:
            report((*path, "core"), "sim/missing", "`core` needs `t1`: the switch at the other end of the link")
        elif fault.core % size.pod_t1 != fault.t1 % size.pod_t1:
            report(
                (*path, "core"), "sim/no-such-part", f"no link joins core {fault.core} and T1 {fault.t1}",
                hint=f"cores {fault.t1 % size.pod_t1}, {fault.t1 % size.pod_t1 + size.pod_t1}, ... are joined to it",
                needs=[(*path, "t1")],
            )  # fmt: skip


def _no_such(key: str, number: int, limit: int) -> str:
    name = {"plane": "plane", "t0": "T0", "t1": "T1", "nic": "NIC", "core": "core switch"}[key]
    return f"there is no {name} {number}; there are {limit}, counted from 0" if limit else f"there is no {name}"
