"""Which machine a node is, written down before it is drained: a repair ticket needs it when nobody can ask the node.

A dead node says nothing, so its words from the newest earlier run are taken, and their date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fairlead.base.trust import read_file
from fairlead.records.codec import from_json
from fairlead.records.facts import NodeFacts, is_unread
from fairlead.records.runs import MAX_PART_BYTES, RunFolder, list_runs

FILE = "identity.json"
_FIELDS = ("hostname", "vm_id", "asset_tag", "sys_vendor", "product_name", "machine_id", "boot_id")


def save_identity(folder: RunFolder, nodes: Iterable[str], facts: Iterable[NodeFacts]) -> dict[str, Any]:
    """Write identity.json into the run folder: node -> who it is. Raises DiskFull or NotPermitted."""
    known = {record.node: (record, folder.info.id) for record in facts}
    found = {}
    for node in nodes:
        record, run_id = known.get(node) or _earlier(folder, node) or (None, "")
        found[node] = identity_of(record) | {"run": run_id} if record else {"unread": "no run has facts of this node"}
    folder.write(FILE, found)
    return found


def identity_of(record: NodeFacts) -> dict[str, Any]:
    """A node's names and numbers, as far as it told them: its own, the VM's, and those of the physical host."""
    tree = record.facts.get("host", {}).get("identity", {})
    said = {key: tree[key] for key in _FIELDS if key in tree and not is_unread(tree[key])}
    kvp = tree.get("kvp", {})
    if not is_unread(kvp) and kvp:
        said["kvp"] = kvp
        # the name with domain is the one a ticket asks for
        physical = kvp.get("PhysicalHostNameFullyQualified") or kvp.get("PhysicalHostName")
        said |= {"physical_host": physical} if physical else {}
    compute = record.facts.get("imds", {}).get("compute", {})
    if not is_unread(compute) and compute:
        said["imds"] = compute
    return said | {"taken_at_ns": record.taken_at_ns}


def _earlier(folder: RunFolder, node: str) -> tuple[NodeFacts, str] | None:
    """What a node said in the newest run beside this one in which it said anything."""
    return next(_facts_of(folder.path.parent, node), None)


def _facts_of(place: Path, node: str) -> Iterator[tuple[NodeFacts, str]]:
    for run in reversed(list_runs(place)):
        try:
            yield from_json(read_file(run / "facts" / f"{node}.json", MAX_PART_BYTES), NodeFacts), run.name
        except (OSError, ValueError):
            continue
