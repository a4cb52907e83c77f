"""What fails on every node in the same way is nobody's own: the job's, the image's, the cluster file's, a rule's. Pure.

A port that no node has in use, and nobody asked for, is a warning. A node is left out for what sets it apart. Where all
of them lack a driver, a GPU request or a limit, leaving out nodes cures nothing and blames everybody; so one finding
says it once, about all, with what all have in common to look at. And where no node answers at all, nothing was read, so
nothing is known to be bad.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec

from fairlead.base.nodeset import NodeSet
from fairlead.checks.spare import MAYBE_UNUSED
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.report import is_own
from fairlead.records.verdict import Verdict

AT_LEAST = 2
"""Of a single node nobody can say that it is like all others."""
EVERY_NODE = "every node"
_VARIES = re.compile(r"[0-9A-Fa-f.:]*[0-9][0-9A-Fa-f.:]*")
"""Numbers, addresses and device numbers differ from node to node where the fault is one."""
_IN_COMMON = {
    "cluster": "the image, the drivers, limits, and the cluster file itself",
    "job": "the job's script and request, its environment, and the image",
}


def shared(findings: Sequence[Finding], nodes: NodeSet, kind: str = "cluster") -> list[Finding]:
    """The findings, with one about all in the place of those that all nodes have alike. `kind`: cluster or job."""
    if len(nodes) < AT_LEAST:
        return list(findings)
    who: defaultdict[tuple[str, str], dict[str, set[str]]] = defaultdict(dict)
    """How -> node -> its parts that fail so."""
    for finding in findings:
        if _is_one_nodes(finding):
            who[_way(finding)].setdefault(finding.subject.nodes[0], set()).add(finding.subject.name)
    common = {way for way, some in who.items() if some.keys() >= set(nodes)}
    out: list[Finding] = []
    said: set[tuple[str, str]] = set()
    for finding in findings:
        way = _way(finding)
        if way not in common or not _is_one_nodes(finding):
            out.append(finding)
        elif way not in said:
            said.add(way)
            out.append(_of_all(finding, nodes, kind, is_unused=_is_unused(finding, who[way].values())))
    return out


def none_answered(silent: Sequence[Finding], nodes: NodeSet) -> list[Finding]:
    """One unknown in the place of a fault of every node, where none of them gave any facts."""
    if len(nodes) < AT_LEAST or {n for f in silent for n in f.subject.nodes} < set(nodes):
        return list(silent)
    first = silent[0]
    return [
        Finding(
            code=first.code,
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="cluster", name=EVERY_NODE),
            message=f"none of {len(nodes)} answered, so nothing is known of any: {first.message}",
            evidence=tuple(Evidence(f.subject.nodes[0], f.message) for f in silent[:3]),
            remedy=f"look at the way to the nodes, and at [access] and `python`: fairlead exec -w {nodes[0]} true",
            data={"nodes": str(nodes), "everywhere": True},
        )
    ]


def is_shared(finding: Finding) -> bool:
    """Whether a finding says what all nodes have in common."""
    return bool(finding.data.get("everywhere"))


def _is_one_nodes(finding: Finding) -> bool:
    is_wrong = finding.verdict is Verdict.FAIL or bool(finding.data.get(MAYBE_UNUSED))
    return is_wrong and is_own(finding.subject) and len(finding.subject.nodes) == 1


def _way(finding: Finding) -> tuple[str, str]:
    """How it fails: its words without what is the node's own."""
    words = f"{finding.subject.name}: {finding.message}"
    for name in finding.subject.nodes:
        words = words.replace(name, "NODE")
    return finding.code, _VARIES.sub("#", words)


def _is_unused(finding: Finding, parts: Collection[set[str]]) -> bool:
    """Whether these may be parts that nobody uses: the very same on every node."""
    return bool(finding.data.get(MAYBE_UNUSED)) and all(some == next(iter(parts)) for some in parts)


def _of_all(finding: Finding, nodes: NodeSet, kind: str, *, is_unused: bool) -> Finding:
    part = f"{finding.subject.name}: " if finding.subject.name else ""
    hint = f"alike on all {len(nodes)} nodes, so look at what they share: {_IN_COMMON[kind]}"
    first = f"read on {finding.subject.nodes[0]}"
    if is_unused:
        hint += '; if these ports are not used, name those that are: [[expect]] fact = "hcas"'
    return msgspec.structs.replace(
        finding,
        verdict=Verdict.WARN if is_unused else finding.verdict,
        subject=Subject(kind="job" if kind == "job" else "cluster", name=EVERY_NODE),
        message=f"{part}{finding.message}",
        evidence=tuple(Evidence(f"{first}: {e.source}", e.value) for e in finding.evidence),
        remedy=f"{hint}; {finding.remedy}" if finding.remedy else hint,
        data={**finding.data, "nodes": str(nodes), "everywhere": True},
    )
