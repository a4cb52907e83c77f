"""The file that keeps the running manager of networks off virtual functions (VFs): which is right for a node. Pure.

One file for one manager. Where two compete, where nothing tells which one runs, or where the file would also take away
an interface that a job needs, there is none, and the reason is said. Writing it is apply.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.checks.expect import Expect
from fairlead.checks.node import Node
from fairlead.checks.rules import accel, managers
from fairlead.checks.rules.managers import NETWORKD_NAME, NM_NAME
from fairlead.checks.vfrules import NETWORKD_FILE, UDEV_FILE
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.records.verdict import Verdict

NETWORKD_FAMILY = ("ubuntu", "debian", "flatcar", "azurelinux", "mariner", "cos")
NM_FAMILY = ("rhel", "centos", "rocky", "almalinux", "ol", "fedora", "sles", "sle_hpc", "opensuse-leap")
"""Distributions by ID of os-release, and the manager their images for Azure come with. What runs goes before it."""


@dataclass(frozen=True, slots=True)
class Fix:
    """What to write on a node; with an empty path nothing, and `why` says why."""

    node: str
    why: str
    path: str = ""
    content: str = ""
    then: str = ""
    """What to type on the node so that it is read."""
    is_needed: bool = True
    """Whether something is left open: False where rules are there already."""


FILES = {NM_NAME: UDEV_FILE, NETWORKD_NAME: NETWORKD_FILE}


def plan(record: NodeFacts) -> Fix:
    """The file for one node, or why there is none."""
    node = Node(Facts(record), Expect())
    name = record.node
    try:
        if not accel.is_accelerated(node):
            return Fix(name, "the machine has no synthetic NIC", is_needed=False)
        found = managers.rules(node, "")
        if found.verdict is Verdict.PASS:
            return Fix(name, found.message, is_needed=False)
        if found.verdict is Verdict.UNKNOWN:
            return Fix(name, found.message)
        if managers.competing(node, "").verdict is not Verdict.PASS:
            return Fix(name, managers.competing(node, "").message)
        running = [m for m in managers.running(node) if m in FILES]
        lacking = [m for m in running if f"keeps {m} off" in found.message]
        own = _own_interfaces(node)
    except Unread as hole:
        return _by_distribution(node, f"could not read {hole.path}: {hole.why}")
    if own:
        return Fix(
            name, f"{', '.join(own)} has a driver of such functions and an address of its own: a job may need it"
        )
    if not running:
        return _by_distribution(node, "no manager runs")
    if len(lacking) != 1:
        return Fix(name, f"{' and '.join(lacking) or 'no manager'} would need a file: disable one of them first")
    path, content, then = FILES[lacking[0]]
    return Fix(name, found.message, path, content, then)


def _own_interfaces(n: Node) -> Sequence[str]:
    """Ethernet interfaces of these drivers that no synthetic NIC holds and that have an address: rails of RoCE."""
    found = []
    for link, hole in n.once("VFs", accel.functions).items():
        if hole is not None:
            raise hole
        if not n.get("net.links", link, "master") and accel.addresses(n, link):
            found.append(link)
    return found


def _by_distribution(n: Node, why: str) -> Fix:
    """Of a machine that does not run, such as an image, the distribution tells what will."""
    name = n.facts.node
    there = n.peek("netconf.managers")
    kind = n.peek("host.os.id")
    if there is not None and any(runs is True for runs in there.values()):
        return Fix(name, why)
    manager = NETWORKD_NAME if kind in NETWORKD_FAMILY else NM_NAME if kind in NM_FAMILY else ""
    if not manager or n.peek("net.links") is not None:
        return Fix(name, why)
    path, content, then = FILES[manager]
    return Fix(name, f"{why}; images of {kind} come with {manager}", path, content, then)
