"""The reference page of the check list: every id, the codes that tell it, and the other tools that have it."""

from __future__ import annotations

from itertools import groupby

from fairlead.records.codes import Listed, listed, peers

_MADE = "<!-- made by `make docs`; do not edit -->"

_HEAD = """\
Each id of the check list fairlead was made from, what passes, the [codes](codes.md) that tell it, and other tools that
have it, as their public sources of August 2026 show. `fairlead explain A3` finds the codes of an id. An empty last
column means that no tool that was looked at has it; what a tool has may be less than what is asked here."""

GROUPS = {
    "S": "Scheduler, launch, rendezvous",
    "U": "GPUs",
    "H": "Host",
    "A": "Accelerated networking",
    "I": "InfiniBand and RDMA devices",
    "F": "Fabric membership and maintenance",
    "R": "Who uses RDMA",
    "C": "Collectives",
    "K": "Kubernetes and plans",
}


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    return {"check-list.md": page()}


def page() -> str:
    """docs/reference/check-list.md."""
    entries = listed()
    told = sum(bool(e.codes) for e in entries.values())
    alone = sum(bool(e.codes) and not e.peers for e in entries.values())
    counts = f"{len(entries)} ids; {told} have a code, and of these {alone} are in no other tool that was looked at."
    parts = ["# Check list", _MADE, _HEAD, counts]
    for letter, rows in groupby(entries.values(), key=lambda e: e.id[0]):
        parts += [
            f"## {GROUPS[letter]}",
            "\n".join(["| id | check | passes | codes | peers |", "|---|---|---|---|---|"] + [_row(e) for e in rows]),
        ]
    tools = "\n".join(f"- {name}: {where}" for name, where in peers().items())
    return "\n\n".join([*parts, "## Peers", tools]) + "\n"


def _row(entry: Listed) -> str:
    codes = ", ".join(f"`{code}`" for code in entry.codes) or f"none: {entry.gap}"
    cells = (entry.id, entry.what, entry.good, codes, ", ".join(entry.peers))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
