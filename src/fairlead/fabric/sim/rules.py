"""What must fit together in a scenario, beyond the bounds of single keys. Every problem is reported.

Knows: how keys depend on each other and on the fabric. Must not know: engine, or how a run goes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairlead.fabric.sim.model import Fault, Scenario, Traffic
from fairlead.spec.report import Report

_NEEDS_TO = ("incast", "flow")
_NEEDS_TWO = ("permutation", "send-recv", "all-to-all", "ring-all-reduce", "tree-all-reduce", "training")


def check_topology(s: Scenario, report: Report) -> None:
    """The fabric divides, and says what its kind needs."""
    t, path = s.topology, ("topology",)
    if t.kind == "file":
        if not t.file:
            report((*path, "kind"), "sim/missing", "a topology of kind `file` needs `file`", hint="name a .topo file")
        return
    if t.kind == "fat-tree":
        if not t.cores:
            report((*path, "kind"), "sim/missing", "a fat tree needs `cores`", hint=f"use a multiple of {t.t1}")
        elif t.cores % t.t1:
            report(
                (*path, "cores"), "sim/topology-divide",
                f"{t.cores} core switches cannot be shared evenly by {t.t1} aggregation switches",
                hint=f"use {t.cores // t.t1 * t.t1 or t.t1} or {(t.cores // t.t1 + 1) * t.t1}",
            )  # fmt: skip
    elif t.cores or t.pods > 1:
        report((*path, "kind"), "sim/topology-kind", "planes have no cores or pods", hint='kind = "fat-tree"')
    if t.nics and t.nics % t.t0:
        report(
            (*path, "nics"), "sim/topology-divide", f"{t.nics} NICs cannot be spread evenly over {t.t0} T0 switches",
            hint=f"use {t.nics // t.t0 * t.t0 or t.t0} or {(t.nics // t.t0 + 1) * t.t0}",
        )  # fmt: skip


def check_transport(s: Scenario, report: Report) -> None:
    """Choices that exclude each other."""
    t, path = s.transport, ("transport",)
    if t.kind == "roce" and t.paths:
        report(
            (*path, "paths"),
            "sim/choice",
            "RoCE takes one path for each queue pair",
            hint="remove `paths`, or use `qps`",
        )
    if t.routing == "source" and s.topology.kind == "fat-tree":
        report(
            (*path, "routing"),
            "sim/choice",
            "packets name their uplink only on planes of two tiers",
            hint='routing = "hash"',
        )
    if s.queues.pfc and t.kind != "roce":
        report(("queues", "pfc"), "sim/choice", "PFC is for RoCE; MRC runs without", hint='transport.kind = "roce"')
    if s.queues.ecn_low_bdp > s.queues.ecn_high_bdp:
        report(("queues", "ecn_low_bdp"), "sim/choice", "the low ECN threshold stands above the high one")


def num_nics(s: Scenario) -> int:
    """NICs of the fabric; 0 where a file says it."""
    t = s.topology
    if t.kind == "file":
        return 0
    pods = t.pods if t.kind == "fat-tree" else 1
    return t.nics or pods * t.t0 * t.hosts_per_t0


def check_traffic(s: Scenario, report: Report) -> None:
    """Senders and receivers exist."""
    total = num_nics(s)
    for i, part in enumerate(s.traffic):
        _check_part(part, total, ("traffic", i), report)
    if not s.traffic:
        report(("traffic",), "sim/missing", "there is no traffic", hint="add a [[traffic]] table")


def _check_part(part: Traffic, total: int, path: tuple[str | int, ...], report: Report) -> None:
    if part.kind == "file":
        if not part.file:
            report((*path, "kind"), "sim/missing", "traffic of kind `file` needs `file`", hint="name a .cm file")
        return
    if total and part.nics.highest >= total:
        report((*path, "nics"), "sim/no-such-nic", f"there is no NIC {part.nics.highest}; there are {total}")
        return
    if part.kind in _NEEDS_TO:
        if part.to < 0:
            report((*path, "kind"), "sim/missing", f"`{part.kind}` needs `to`", hint="name the receiving NIC")
        elif total and part.to >= total:
            report((*path, "to"), "sim/no-such-nic", f"there is no NIC {part.to}; there are {total}")
        elif part.kind == "flow" and (part.nics.is_all or part.to in part.nics.numbers(0)):
            report((*path, "nics"), "sim/choice", "a flow needs senders other than its receiver")
    elif part.kind in _NEEDS_TWO and not part.nics.is_all and len(part.nics.numbers(0)) < 2:
        report((*path, "nics"), "sim/choice", f"`{part.kind}` needs at least two NICs")


def check_faults(s: Scenario, report: Report) -> None:
    """Each fault names parts that exist, and times that can be."""
    for i, fault in enumerate(s.fault):
        path = ("fault", i)
        _check_place(s, fault, path, report)
        if fault.until_us and fault.until_us <= fault.at_us:
            report((*path, "until_us"), "sim/fault-time", "the repair comes before the fault")
        if fault.at_us >= s.run.until_us:
            report((*path, "at_us"), "sim/fault-time", f"the run ends at {s.run.until_us:g} us, before this fault")
        if fault.kind in ("loss", "paths") and not fault.loss:
            report((*path, "kind"), "sim/missing", f"`{fault.kind}` needs `loss`", hint="loss = 0.01")
        if fault.kind == "slow" and fault.rate == 1.0:
            report((*path, "kind"), "sim/missing", "`slow` needs `rate`", hint="rate = 0.25")


_WANTS = {"link": ("t0", "t1"), "port": ("nic",), "t0": ("t0",), "t1": ("t1",), "paths": ()}


def _check_place(s: Scenario, fault: Fault, path: tuple[str | int, ...], report: Report) -> None:
    for key in _WANTS.get(fault.kind, ()):
        if getattr(fault, key) < 0:
            report((*path, "kind"), "sim/missing", f"a fault of kind `{fault.kind}` needs `{key}`")
    if s.topology.kind == "file":
        return
    t = s.topology
    pods = t.pods if t.kind == "fat-tree" else 1
    limits = {"plane": t.planes, "t0": pods * t.t0, "t1": pods * t.t1, "nic": num_nics(s), "core": t.cores}
    for key, limit in limits.items():
        if getattr(fault, key) >= limit:
            what = "no such link, switch or NIC"
            report(
                (*path, key),
                "sim/no-such-part",
                f"{what}: {key} {getattr(fault, key)}; there are {limit}, counted from 0",
            )
    if fault.kind == "link" and fault.t0 >= 0 and fault.t1 >= 0 and fault.t0 // t.t0 != fault.t1 // t.t1 and pods > 1:
        report(
            (*path, "t1"),
            "sim/no-such-part",
            f"T0 {fault.t0} and T1 {fault.t1} are in different pods: no link joins them",
        )
    for key in ("nics", "t1s"):
        limit = num_nics(s) if key == "nics" else t.t1
        if getattr(fault, key).highest >= limit:
            report((*path, key), "sim/no-such-part", f"there are {limit}, counted from 0")


def check_files(folder: Path) -> Callable[[Scenario, Report], None]:
    """A check that files named in the scenario exist beside it."""

    def check(s: Scenario, report: Report) -> None:
        named: list[tuple[tuple[str | int, ...], str]] = [(("topology", "file"), s.topology.file)]
        named += [(("traffic", i, "file"), part.file) for i, part in enumerate(s.traffic)]
        for path, name in named:
            if name and not (folder / name).is_file():
                report(path, "sim/file", f"there is no file {name} in {folder}")

    return check


CHECKS = (check_topology, check_transport, check_traffic, check_faults)
