"""Which RDMA device is missing where one is: by name and PCI address. That some are missing, the rules have found.

A node alone can tell from its PCI functions and from a gap in its devices' numbers; the other nodes of its pool tell
more: a device that most of them have. A guess that does not account for every missing port is not made.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.base.nodeset import fold
from fairlead.checks.hcas import choose
from fairlead.checks.node import Node
from fairlead.records.facts import Facts
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict

CODES = frozenset(("ib/count", "skew/port-count"))
_FUNCTIONS = {"infiniband": ("0x0207",), "ethernet": ("0x0200", "0x0207")}
_VENDOR = "0x15b3"
_NUMBERED = re.compile(r"(.*?)(\d+)\Z")


def name_absent(findings: Sequence[Finding], nodes: Sequence[Node]) -> list[Finding]:
    """The findings again; those about missing ports say which devices are not there, where that can be told."""
    about = [f for f in findings if _is_about_absence(f)]
    if not about:
        return list(findings)
    told = _Told(nodes)
    return [part for f in findings for part in (_named(f, told) if f in about else [f])]


def _is_about_absence(finding: Finding) -> bool:
    if finding.code not in CODES or finding.verdict is not Verdict.FAIL:
        return False
    return finding.code != "ib/count" or bool(finding.data.get("value", 0) < (finding.data.get("expected") or 0))


def _named(finding: Finding, told: _Told) -> Iterator[Finding]:
    """One finding for all nodes that lack the same devices; those of which it cannot be told stay together."""
    alike: defaultdict[Absence, list[str]] = defaultdict(list)
    for name in finding.subject.nodes:
        alike[told.absent(name)].append(name)
    for absence, names in alike.items():
        subject = replace(finding.subject, nodes=tuple(names))
        if not absence.devices:
            yield replace(finding, subject=subject)
            continue
        if len(absence.devices) == 1:
            subject = Subject(kind="device", nodes=tuple(names), name=next(filter(None, absence.devices[0])))
        yield replace(
            finding,
            subject=subject,
            message=f"{finding.message}; not there: {_listed(absence.devices)}",
            evidence=(*finding.evidence, Evidence(*absence.proof)),
            data={**finding.data, "missing": [{"device": device, "pci": pci} for device, pci in absence.devices]},
        )


class Absence(NamedTuple):
    """What is not there, each as (device, PCI address), and what shows it: a source and what it says."""

    devices: tuple[tuple[str, str], ...] = ()
    proof: tuple[str, str] = ("", "")


class _Told:
    """What the nodes' own tables tell, each read once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.facts.node: node for node in nodes}
        self._own = {name: _devices(node) for name, node in self._nodes.items()}
        self._usual: dict[tuple[str, int], tuple[dict[str, str], str]] = {}

    def absent(self, name: str) -> Absence:
        """Which devices a node lacks: by the other nodes of its pool, else by itself. Empty where it cannot be told."""
        node, own = self._nodes.get(name), self._own.get(name)
        if node is None or own is None:
            return Absence()
        usual, whose = self._usual_above(node.expect.pool, len(own))
        if usual and len(found := _without(usual, own)) == len(usual) - len(own):
            return Absence(tuple(found), (f"RDMA devices of {whose}", _listed(sorted(usual.items()))))
        num = (node.expect.get("hca_ports") or 0) - len(own)
        for guess in (_idle_functions, _gap):
            if num > 0 and len(found := guess(node, own)) == num:
                return Absence(tuple(found), ("RDMA devices", _listed(sorted(own.items())) or "none"))
        return Absence()

    def _usual_above(self, pool: str, num: int) -> tuple[dict[str, str], str]:
        """What most nodes of a pool have, of those with more than so many devices, and whose that is."""
        if (pool, num) not in self._usual:
            peers = {
                n: own for n, own in self._own.items() if self._nodes[n].expect.pool == pool and len(own or ()) > num
            }
            counts = Counter(item for own in peers.values() if own for item in own.items())
            usual = dict(item for item, times in counts.items() if 2 * times > len(peers))
            self._usual[pool, num] = usual, fold(peers)
        return self._usual[pool, num]


def _listed(devices: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{device} ({pci})" if device and pci else device or pci for device, pci in devices)


def _devices(node: Node) -> dict[str, str] | None:
    """Device -> PCI address of the ports that count; None where that could not be read."""
    inner = Node(Facts(node.facts.record), node.expect)
    try:
        names = dict.fromkeys(port.rpartition("/")[0] for port in choose(inner).chosen)
        return {name: str(inner.get("ib.devices", name, "pci")) for name in names}
    except Exception:  # noqa: BLE001 - a hole, or strange facts that the rules have reported
        return None


def _without(usual: Mapping[str, str], own: Mapping[str, str]) -> list[tuple[str, str]]:
    """By PCI address where the node has its devices at the usual ones, as names may have moved up; else by name."""
    if set(own.values()) <= set(usual.values()):
        return sorted((device, pci) for device, pci in usual.items() if pci not in own.values())
    return sorted((device, pci) for device, pci in usual.items() if device not in own)


def _idle_functions(node: Node, own: Mapping[str, str]) -> list[tuple[str, str]]:
    """PCI functions of the kind that should have become RDMA devices, and have not."""
    inner = Node(Facts(node.facts.record), node.expect)
    kinds = _FUNCTIONS.get(node.expect.link, ())
    try:
        taken = {str(inner.get("ib.devices", device, "pci")) for device in inner.get("ib.devices")}
        return [
            ("", address)
            for address in sorted(inner.get("pci.devices"))
            if address not in taken
            and inner.get("pci.devices", address, "vendor") == _VENDOR
            and str(inner.get("pci.devices", address, "class")).startswith(kinds)
        ]
    except Exception:  # noqa: BLE001
        return []


def _gap(node: Node, own: Mapping[str, str]) -> list[tuple[str, str]]:
    """Numbers left out below the highest: of mlx5_ib0 and mlx5_ib2, mlx5_ib1. A driver's own mlx5_N move up instead."""
    parts = [match for device in own if (match := _NUMBERED.match(device))]
    if len(parts) < len(own) or len({m[1] for m in parts}) != 1 or parts[0][1] == "mlx5_":
        return []
    numbers = {int(m[2]) for m in parts}
    return [(f"{parts[0][1]}{n}", "") for n in range(node.expect.get("hca_ports")) if n not in numbers]
