"""Azure Monitor's data collection rules, as JSON: which files go to which table.

Read as Microsoft publishes them (Microsoft.Insights/dataCollectionRules, `dataSources.logFiles` and `dataFlows`). A
transformation other than `source` (or none) is refused rather than left out: what a table holds would not be what the
rule says.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import NamedTuple

import msgspec

from fairlead.base.trust import read_file
from fairlead.errors import UsageError

_MAX = 1 << 20


class Rule(NamedTuple):
    """Files, and their table."""

    pattern: str
    table: str


class _LogFiles(msgspec.Struct):
    filePatterns: list[str]  # noqa: N815 - Azure's own names, as below
    streams: list[str]


class _Sources(msgspec.Struct):
    logFiles: list[_LogFiles] = msgspec.field(default_factory=list)  # noqa: N815


class _Flow(msgspec.Struct):
    streams: list[str]
    outputStream: str = ""  # noqa: N815
    transformKql: str = "source"  # noqa: N815


class _Properties(msgspec.Struct):
    dataFlows: list[_Flow]  # noqa: N815
    dataSources: _Sources  # noqa: N815


class _Document(msgspec.Struct):
    properties: _Properties


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file, or of all `*.json` below a folder. Raises UsageError."""
    paths = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    made = tuple(rule for each in paths for rule in _of_file(each))
    if not made:
        raise UsageError("logs/rules", f"{path} holds no rule for log files", hint="--rules FILE.json, or a folder")
    return made


def _of_file(path: Path) -> list[Rule]:
    try:
        found = msgspec.json.decode(read_file(path, _MAX), type=_Document).properties
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        text = f"{path} is no data collection rule: {error}"
        raise UsageError("logs/rules", text, hint="a JSON file of Microsoft.Insights/dataCollectionRules") from None
    tables: dict[str, str] = {}
    for flow in found.dataFlows:
        if flow.transformKql.strip() != "source":
            text = f"{path} transforms what it reads: {flow.transformKql[:80]}"
            raise UsageError("logs/rules", text, hint="only the transformation `source` is supported")
        for stream in flow.streams:
            tables[stream] = (flow.outputStream or stream).removeprefix("Custom-")
    return [
        Rule(pattern, tables[stream])
        for source in found.dataSources.logFiles
        for stream in source.streams
        if stream in tables
        for pattern in source.filePatterns
    ]


def table_of(path: Path, rules: tuple[Rule, ...]) -> str:
    """The table of a file, rotated or not, wherever the tree it comes from begins now; empty where no rule says."""
    from fairlead.logs.reading import stem

    for rule in rules:
        for shown in (str(path), stem(path)):
            if fnmatch.fnmatchcase(shown, rule.pattern) or fnmatch.fnmatchcase(shown, "*" + rule.pattern):
                return rule.table
    return ""
