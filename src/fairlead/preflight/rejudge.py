"""An earlier preflight judged by today's rules, from its run folder alone."""

from __future__ import annotations

from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.evidence import judge_all, read_evidence
from fairlead.records.finding import Finding
from fairlead.records.runs import Run
from fairlead.spec.loader import load


def rejudge(run: Run) -> list[Finding] | None:
    """Today's findings; None for a run that looked at one node alone, or ended before the nodes had answered."""
    if not (run.path / "silent.json").exists():
        return None

    def read(name: str, kind: type[Any]) -> Any:
        return run.read(name, kind) if (run.path / name).exists() else None

    spec = load(run.path / "spec.toml")
    nodes = NodeSet(run.result().get("nodes", str(spec.nodes)))
    return list(judge_all(read_evidence(read, spec, nodes, run.facts())))
