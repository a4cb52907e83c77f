"""Holds nodes side by side: folds them by value, and names the odd ones against the majority of their pool.

Also what no node can know of itself: that its clock is off, and that another name leads to the same machine.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.units import counted
from fairlead.checks.holes import broken, not_allowed, unread
from fairlead.checks.node import Node
from fairlead.checks.rules import gpu
from fairlead.checks.scopes import CONDITIONS
from fairlead.checks.skews import FAIL, SKEWS, Skew, Values
from fairlead.records.facts import Unread
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict


def judge_fleet(nodes: Sequence[Node], skews: Sequence[Skew] = SKEWS) -> list[Finding]:
    """Everything that only shows when nodes are held side by side, pool by pool."""
    pools: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        pools[node.expect.pool].append(node)
    findings: list[Finding] = []
    for members in pools.values():
        if len(members) > 1:
            for skew in skews:
                findings += _judge(skew, members)
    return findings + (_same_gpu(nodes) + _clocks(nodes) if len(nodes) > 1 else [])


def _judge(skew: Skew, nodes: Sequence[Node]) -> list[Finding]:
    if skew.without and _has_number(nodes[0].expect.get(skew.without)):
        return []
    findings: list[Finding] = []
    open_: list[Finding] = []
    asked: list[tuple[str, Values]] = []
    assumed: dict[str, None] = {}
    for node in nodes:
        node.begin()
        name = node.facts.node
        try:
            if not CONDITIONS[skew.when](node):
                asked.append((name, {str(label): str(value) for label, value in skew.values(node).items()}))
                assumed |= dict.fromkeys(f"{text} on {name}" for text in node.assumptions())
        except Unread as hole:
            subject = Subject(kind="node", nodes=(name,))
            told = not_allowed(skew.code, subject, hole, skew.optional) if skew.optional and hole.needs else None
            open_.append(told or unread(skew.code, subject, hole))
        except Exception as bug:  # noqa: BLE001 - one comparison's bug must not hide what the others find
            open_.append(broken(skew.code, Subject(kind="node", nodes=(name,)), skew.values, bug))
    labels = sorted({label for _, values in asked for label in values})
    for label in labels:
        by_value: dict[str, list[str]] = defaultdict(list)
        for name, values in asked:
            if label in values or skew.fill:
                by_value[values.get(label, "not set")].append(name)
        findings += _odd(skew, label, by_value)
    if asked and not findings:
        shown = f"{len(labels)} compared" if len(labels) > 1 else next(iter(by_value)) if labels else "none"
        message = f"{skew.what}: {shown} on {counted(len(asked), 'node')}"
        findings = [Finding(code=skew.code, verdict=Verdict.PASS, subject=Subject(kind="cluster"), message=message)]
    return [_with(finding, list(assumed)) for finding in findings] + open_


def _with(finding: Finding, assumed: list[str]) -> Finding:
    """A finding that says what was taken for granted on the nodes it compares."""
    if not assumed:
        return finding
    more = [f"{len(assumed) - 2} more of the kind"] if len(assumed) > 2 else []
    message = "; assuming that ".join((finding.message, *assumed[:2], *more))
    return replace(finding, message=message, data={**finding.data, "assumes": assumed})


def _has_number(value: object) -> bool:
    """Whether a node can be judged by itself. Several right answers still leave the nodes to be compared."""
    return value is not None and not (isinstance(value, tuple) and len(value) > 1)


def _odd(skew: Skew, label: str, groups: Mapping[str, list[str]]) -> list[Finding]:
    """The nodes that differ, a finding for each value of theirs. Where no value leads, every side is named."""
    if len(groups) < 2:
        return []
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    (most, leaders), (_, second) = ordered[0], ordered[1]
    what = f"{skew.what} {label}".strip()
    proof = [Evidence(fold(names), value) for value, names in ordered[:8]]
    if len(leaders) == len(second):
        sides = "; ".join(f"{value} on {fold(names)}" for value, names in ordered[:4])
        message = f"{what} differs, and no value has a majority: {sides}"
        return [_about(skew, skew.tie, [n for _, names in ordered for n in names], message, proof)]
    return [
        _about(
            skew,
            Verdict.WARN if skew.mild and skew.mild.fullmatch(label) else skew.severity,
            names,
            f"{what} is {value}, but {most} on {counted(len(leaders), 'node')}",
            [proof[0], Evidence(fold(names), value)],
        )
        for value, names in ordered[1:]
    ]


def _about(skew: Skew, verdict: Verdict, names: Sequence[str], message: str, proof: Sequence[Evidence]) -> Finding:
    return Finding(
        code=skew.code,
        verdict=verdict,
        subject=Subject(kind="node", nodes=tuple(NodeSet(names))),
        message=message,
        evidence=tuple(proof),
        remedy=skew.remedy.replace("{nodes}", fold(names)).replace("{what}", skew.what),
    )


def _same_gpu(nodes: Sequence[Node]) -> list[Finding]:
    """No GPU is on two nodes: the same UUID twice means that two names lead to one machine."""
    owners: dict[str, list[str]] = defaultdict(list)
    open_: list[Finding] = []
    for node in nodes:
        node.begin()
        try:
            for address in node.get(gpu.SMI):
                owners[node.text(gpu.SMI, address, "uuid")].append(node.facts.node)
        except Unread:
            continue  # gpu/count already says so
        except Exception as bug:  # noqa: BLE001 - as in _judge
            open_.append(broken("gpu/shared", Subject(kind="node", nodes=(node.facts.node,)), _same_gpu, bug))
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for uuid, names in owners.items():
        if len(names) > 1 and uuid.startswith("GPU-"):
            shared[tuple(sorted(set(names)))].append(uuid)
    if owners and not shared:
        message = f"{len(owners)} GPUs, each on one node"
        open_ += [Finding(code="gpu/shared", verdict=Verdict.PASS, subject=Subject(kind="cluster"), message=message)]
    return open_ + [
        Finding(
            code="gpu/shared",
            verdict=FAIL,
            subject=Subject(kind="node", nodes=names),
            message=f"the same {len(uuids)} GPUs answer under {len(names)} nodes: the names lead to one machine",
            evidence=(Evidence("nvidia-smi -q -x", ", ".join(uuids[:8])),),
            remedy=f"getent hosts {' '.join(names)}; correct the name service or the cluster file",
        )
        for names, uuids in shared.items()
    ]


def _clocks(nodes: Sequence[Node]) -> list[Finding]:
    """The nodes' clocks agree within what munge takes. Seconds also come from reading one node after another.

    Only where most clocks agree does one of them stand out: of two nobody knows which is right.
    """
    times = {node.facts.node: node.facts.record.taken_at_ns / 1e9 for node in nodes}
    middle = statistics.median([seconds for seconds in times.values() if seconds] or [0.0])
    limits = {node.facts.node: node.expect.get("max_clock_skew_s") for node in nodes}
    wrong = [name for name, seconds in times.items() if seconds and abs(seconds - middle) > limits[name]]
    if 2 * len(wrong) >= sum(map(bool, times.values())) > 0:
        return [_no_clock_leads({name: times[name] - middle for name in wrong}, len(times))]
    found = []
    for name, seconds in times.items():
        off = seconds - middle
        if not seconds:
            found.append(
                Finding(
                    code="host/clock-skew",
                    verdict=Verdict.UNKNOWN,
                    subject=Subject(kind="node", nodes=(name,)),
                    message="the facts carry no time",
                    remedy=f"fairlead probe -w {name}",
                )
            )
        elif name in wrong:
            found.append(
                Finding(
                    code="host/clock-skew",
                    verdict=FAIL,
                    subject=Subject(kind="node", nodes=(name,)),
                    message=f"the clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the other nodes'",
                    evidence=(Evidence("clock", f"{off:+.0f} s from the median of {counted(len(times), 'node')}"),),
                    remedy=f"on {name}: chronyc makestep; chronyc tracking",
                    data={"value": round(off), "unit": "s", "limit": limits[name]},
                )
            )
    if found:
        return found
    return [
        Finding(
            code="host/clock-skew", verdict=Verdict.PASS, subject=Subject(kind="cluster"), message="the clocks agree"
        )
    ]


def _no_clock_leads(off_s: Mapping[str, float], num_nodes: int) -> Finding:
    """Clocks of which no majority says who is right."""
    apart_s = max(off_s.values()) - min(off_s.values())
    return Finding(
        code="host/clock-skew",
        verdict=FAIL,
        subject=Subject(kind="cluster", nodes=tuple(NodeSet(off_s))),
        message=f"the clocks of {len(off_s)} of {num_nodes} nodes are up to {apart_s:.0f} s apart, and no majority "
        "says which are right",
        evidence=tuple(Evidence(name, f"{off:+.0f} s from the median") for name, off in [*off_s.items()][:4]),
        remedy="chronyc tracking on each of them; chronyc makestep where it is off",
        data={"value": round(apart_s), "unit": "s"},
    )
