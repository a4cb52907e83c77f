"""Findings about what could not be read or judged: what to type to see why, and how a page says it once.

One file that cannot be read leaves every check open that rests on it. Each of them is a finding of its own, in JSON and
in the verdict; a person wants the file named once, with the checks it leaves open behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from fairlead.records.facts import Unread
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict


def unread(code: str, subject: Subject, hole: Unread) -> Finding:
    """A check that asked for a hole."""
    return Finding(
        code=code,
        verdict=Verdict.UNKNOWN,
        subject=subject,
        message=f"could not read {hole.path}: {hole.why}",
        evidence=(Evidence(hole.source or hole.path, hole.why),),
        remedy=_how_to_read(hole, ",".join(subject.nodes) or "the node"),
        data={"path": hole.path},
    )


def not_allowed(code: str, subject: Subject, hole: Unread, what_to_do: str) -> Finding:
    """A check whose fact takes what this user has not: skipped and shown, so that the rest can still be a verdict."""
    return Finding(
        code=code,
        verdict=Verdict.SKIP,
        subject=subject,
        message=f"not looked at: {hole.source}: {hole.why}; it takes {hole.needs}",
        remedy=what_to_do,
        data={"path": hole.path, "needs": hole.needs},
    )


def broken(code: str, subject: Subject, rule: Callable[..., Any], bug: Exception) -> Finding:
    """A check whose rule fell over: a bug of fairlead's, or facts that no probe would print."""
    return Finding(
        code=code,
        verdict=Verdict.UNKNOWN,
        subject=subject,
        message=f"the rule {rule.__module__}.{rule.__name__} has a bug: {type(bug).__name__}: {bug}",
        remedy=f"report it with these facts; until it is mended, waive {code}",
        data={"bug": type(bug).__name__},
    )


def _how_to_read(hole: Unread, node: str) -> str:
    """What to type to see for oneself why something could not be read."""
    if "permission" in hole.why or "not permitted" in hole.why:
        return f"run the probe as root on {node}, or waive what it leaves open there"
    if hole.source.startswith("/"):
        return f"on {node}: ls -l {hole.source}; cat {hole.source}"
    return f"on {node}: {hole.source}" if " " in hole.source else f"fairlead probe -w {node}"


def condensed(findings: Iterable[Finding]) -> list[Finding]:
    """The findings for a page: those of one node that one hole leaves open, or not looked at, are one."""
    out: list[Finding] = []
    first: dict[tuple[str, tuple[str, ...]], int] = {}
    codes: dict[int, list[str]] = {}
    for finding in findings:
        is_open = finding.verdict is Verdict.UNKNOWN or (finding.verdict is Verdict.SKIP and "needs" in finding.data)
        path = finding.data.get("path") if is_open and not finding.waived else None
        key = (f"{finding.verdict} {path}", finding.subject.nodes)
        if path and key in first:
            seen = codes[first[key]]
            if finding.code not in seen:
                seen.append(finding.code)
            continue
        if path:
            first[key] = len(out)
            codes[len(out)] = [finding.code]
        out.append(finding)
    for index, open_ in codes.items():
        if len(open_) > 1:
            one = out[index]
            out[index] = msgspec.structs.replace(one, message=f"{one.message}; also leaves open {', '.join(open_[1:])}")
    return out
