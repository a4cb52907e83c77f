"""Fixes on nodes, or in a tree: what stands there now, as a diff, and writing the file. The same program does both.

A node's answer is typed and small; one that lies spoils its own diff alone.
"""

from __future__ import annotations

import difflib
import functools
import subprocess
from collections.abc import Callable, Mapping, Sequence

import msgspec

from fairlead.audit.fix import Fix
from fairlead.base.program import Program
from fairlead.cluster import Command
from fairlead.records.border import Border, Breach
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict

LIMIT_S = 20.0


class Answer(msgspec.Struct, frozen=True):
    """What the program on the node says."""

    old: str | None = None
    digest: str = ""
    done: bool = False
    error: str = ""


ANSWER = Border(Answer, "an answer about a file", max_bytes=1 << 18)
Ask = Callable[[Mapping[str, Command]], Mapping[str, bytes | str]]
"""Runs a command per node: its output, or the reason why there is none."""


@functools.cache
def program() -> Program:
    """What runs on the node."""
    return Program.of("fairlead-put", "fairlead.base.trust", "fairlead.audit.onnode.put")


def command(mode: str, fix: Fix, python: str, *, root: str = "/", digest: str = "") -> Command:
    """The program with its words, for one file."""
    words = program().words(python, (mode, root, fix.path, digest))
    return Command(argv=words, stdin=program().stdin + (fix.content.encode() if mode == "write" else b""))


def in_trees(commands: Mapping[str, Command]) -> Mapping[str, bytes | str]:
    """For captured trees and images: the program runs here, each with its tree as its root."""
    found: dict[str, bytes | str] = {}
    for node, one in commands.items():
        done = subprocess.run(one.argv, input=one.stdin, capture_output=True, timeout=LIMIT_S, check=False)
        tail = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        found[node] = done.stdout if not done.returncode else f"ended with status {done.returncode}: {tail}"
    return found


def show(fixes: Sequence[Fix], ask: Ask, python: Mapping[str, str], roots: Mapping[str, str]) -> dict[str, Answer]:
    """Node -> what stands there now."""
    return _asked(fixes, ask, {f.node: command("show", f, python[f.node], root=roots.get(f.node, "/")) for f in fixes})


def write(
    fixes: Sequence[Fix],
    ask: Ask,
    python: Mapping[str, str],
    roots: Mapping[str, str],
    shown: Mapping[str, Answer],
) -> dict[str, Answer]:
    """Node -> what came of writing, where what stands there is still what was shown."""
    fixes = [fix for fix in fixes if not shown[fix.node].error]
    commands = {
        f.node: command("write", f, python[f.node], root=roots.get(f.node, "/"), digest=shown[f.node].digest)
        for f in fixes
    }
    return {**shown, **_asked(fixes, ask, commands)}


def _asked(fixes: Sequence[Fix], ask: Ask, commands: Mapping[str, Command]) -> dict[str, Answer]:
    if not fixes:
        return {}
    outputs = ask(commands)
    return {fix.node: _answer(outputs.get(fix.node, "no answer")) for fix in fixes}


def _answer(output: bytes | str) -> Answer:
    if isinstance(output, str):
        return Answer(error=output)
    try:
        return ANSWER(output)
    except Breach as breach:
        return Answer(error=f"it answered with {breach.what}")


def diff(fix: Fix, answer: Answer) -> str:
    """A unified diff of what would change on the node; empty where nothing would."""
    old = (answer.old or "").splitlines(keepends=True)
    name = "/dev/null" if answer.old is None else f"a{fix.path}"
    return "".join(difflib.unified_diff(old, fix.content.splitlines(keepends=True), name, f"b{fix.path}"))


def told(fix: Fix, answer: Answer) -> Finding:
    """What came of writing, as a finding."""
    text = f"{fix.path} is written" if answer.done else f"{fix.path} is not written: {answer.error or 'no answer'}"
    return Finding(
        code="audit/written",
        verdict=Verdict.PASS if answer.done else Verdict.FAIL,
        subject=Subject(kind="node", nodes=(fix.node,)),
        message=f"{text}; then: {fix.then}" if answer.done else text,
        evidence=() if answer.done else (Evidence(fix.path, answer.error or "no answer"),),
        remedy="" if answer.done else f"as root on {fix.node}: write the file as the diff shows",
    )


def none_right(fix: Fix) -> Finding:
    """No file is right for sure."""
    return Finding(
        code="audit/no-fix",
        verdict=Verdict.SKIP,
        subject=Subject(kind="node", nodes=(fix.node,)),
        message=fix.why,
    )
