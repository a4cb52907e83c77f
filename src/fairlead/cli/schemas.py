"""The documents whose JSON Schema `fairlead schema` prints: name -> what it is, and the record behind it."""

from __future__ import annotations

import importlib
from typing import Any

_RECORDS = {
    "finding": ("one judged statement", "fairlead.records.finding:Finding"),
    "facts": ("what a probe read on one node", "fairlead.records.facts:NodeFacts"),
    "run": ("the head of a run folder", "fairlead.records.runs:RunInfo"),
    "explanation": ("what a code means", "fairlead.records.codes:Explanation"),
    "lab-state": ("what a running lab is", "fairlead.records.labstate:LabState"),
    "lab-status": ("what a running lab is doing", "fairlead.records.labstate:LabStatus"),
    "cluster": ("the cluster file", "fairlead.spec.model:Spec"),
}


def schemas() -> dict[str, tuple[str, str]]:
    """Name -> (what it is, `module:record`)."""
    return dict(sorted(_RECORDS.items()))


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one document; what stands below a field in its source describes it."""
    from fairlead.spec import json_schema

    module, _, attribute = _RECORDS[name][1].partition(":")
    return json_schema(getattr(importlib.import_module(module), attribute))
