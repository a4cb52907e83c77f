"""Every node reads what was published there and compares it with its record; findings for those that differ."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import counted, size
from fairlead.cluster import Cluster, Command, Program
from fairlead.records.border import Border, Breach, Count, Text, Word, shown
from fairlead.records.finding import Evidence, Finding, node
from fairlead.records.verdict import Verdict

PARTS = (
    "fairlead.cluster.channel",
    "fairlead.base.trust",
    "fairlead.weights.onnode.place",
    "fairlead.weights.onnode.checking",
)


class Checked(msgspec.Struct, kw_only=True):
    """A node's answer."""

    record: bool = True
    files: Count = 0
    bytes: Count = 0
    num_damaged: Count = 0
    damaged: Annotated[list[Text], Meta(max_length=100)] = []
    root: Word = ""
    error: Text = ""


_checked = Border(Checked, "an answer of a check")


def verify(cluster: Cluster, nodes: NodeSet, dest: str, pythons: dict[str, str], *, limit_s: float) -> list[Finding]:
    """A finding for every node."""
    program = Program.of("fairlead-weights-check", *PARTS, call="check_files()", needs_packages=True)
    told = json.dumps({"dest": dest}).encode() + b"\n"
    commands = {n: Command(argv=program.words(pythons.get(n, "python3")), stdin=program.stdin + told) for n in nodes}
    results = cluster.run_each(commands, limit_s=limit_s)
    return list(_judged(((r.node, r.stdout.text if r.ok else "", r.error) for r in results), dest))


def _judged(answers: Iterable[tuple[str, str, str]], dest: str) -> Iterable[Finding]:
    for name, text, error in answers:
        try:
            said = (
                _checked(next((line for line in text.splitlines() if line.startswith("{")), "")) if not error else None
            )
            why = error or (said.error if said else "")
        except Breach as breach:
            said, why = None, f"it answered with {breach}"
        if said is None or said.error:
            yield Finding(code="weights/damaged", verdict=Verdict.UNKNOWN, subject=node(name),
                          message=f"could not be read: {why}",
                          remedy=f"fairlead exec -w {name} -- true")  # fmt: skip
        elif not said.record:
            text_ = f"nothing was published at {dest}"
            yield Finding(code="weights/no-record", verdict=Verdict.FAIL, subject=node(name), message=text_,
                          remedy=f"fairlead weights spread SOURCE {dest} -w {name}")  # fmt: skip
        elif said.num_damaged:
            names = ", ".join(shown(path) for path in said.damaged[:5])
            yield Finding(code="weights/damaged", verdict=Verdict.FAIL, subject=node(name),
                          message=f"{counted(said.num_damaged, 'file')} of {said.files} are not what was published",
                          evidence=(Evidence(dest, names),),
                          remedy=f"fairlead weights spread SOURCE {dest} -w {name}")  # fmt: skip
        else:
            yield Finding(code="weights/verified", verdict=Verdict.PASS, subject=node(name),
                          message=f"{counted(said.files, 'file')}, {size(said.bytes)}, as published",
                          data={"root": said.root})  # fmt: skip
