"""Verbs as programs of their own: called, waited for, their documents read. A stage says what its verbs said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlead.base.shown import shown
from fairlead.bringup.stages import GOOD, Document, Stage, Wanted
from fairlead.records.finding import Finding, worst_first
from fairlead.records.report import Report
from fairlead.records.verdict import Verdict, aggregate
from fairlead.report.text import counts_line

_STOP_S = 60.0
_MAX_DOCUMENT = 256 << 20
_EXITS = {0: Verdict.PASS, 3: Verdict.FAIL}
"""Of a verb that judges nothing; what it could not do is unknown."""


def run_stage(stage: Stage, wanted: Wanted, place: Path) -> tuple[Report, tuple[str, ...]]:
    """The stage's report, and the lines that were called. `place` is a folder of this run for what they write."""
    place.mkdir(parents=True, exist_ok=True)
    documents, verdicts, lines = list[Document](), list[Verdict](), list[str]()
    for words in stage.calls(wanted):
        lines.append(" ".join(["fairlead", *(f"'{w}'" if " " in w else w for w in words)]))
        document, verdict = _called(words, place)
        documents.append(document)
        verdicts.append(verdict)
        if verdict not in GOOD:
            break
    findings = tuple(worst_first(finding for document in documents for finding in _findings(document)))
    ended = aggregate(verdicts)
    error = documents[-1].get("error")
    said = str(error["message"]) if error else _said(stage, documents, findings, ended)
    return Report(stage=stage.name, findings=findings, ended=ended, said=shown(said)[:500]), tuple(lines)


def _said(stage: Stage, documents: Sequence[Document], findings: Sequence[Finding], ended: Verdict) -> str:
    loud = next((f for f in findings if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN)), None)
    if ended not in GOOD and loud is not None:
        return f"{loud.subject}: {loud.message}"
    return stage.headline(documents) or counts_line(findings)


def _called(words: Sequence[str], place: Path) -> tuple[Document, Verdict]:
    """What a verb answered. It ends with us: with a signal where we can, by SIGTERM where we are killed."""
    at = words.index("--") if "--" in words else len(words)
    head, tail = words[:at], words[at:]
    argv = [sys.executable, "-m", "fairlead", *head, "--json", "--quiet", "--runs", str(place), *tail]
    if setpriv := shutil.which("setpriv"):
        argv = [setpriv, "--pdeathsig", "TERM", "--", *argv]
    # no file of ours in the way: the verbs are told everything
    env = {key: value for key, value in os.environ.items() if key not in ("FAIRLEAD_SPEC", "FAIRLEAD_RUNS")}
    out, err = place / "answer.json", place / f"{words[0]}.err"
    with out.open("wb") as answer, err.open("ab") as errors:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=answer, stderr=errors, env=env)
        try:
            status = child.wait()
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
    document = _document(out)
    out.rename(place / f"{'-'.join(words[:2]) if words[1][:1].isalpha() else words[0]}.json")
    if not document:
        text = f"`fairlead {' '.join(words[:2])}` ended with {status} and no answer; {err} has what it said"
        return {"error": {"message": text}}, Verdict.UNKNOWN
    said = document.get("verdict")
    if status in _EXITS and said in set(Verdict):
        return document, Verdict(said)
    return document, _EXITS.get(status, Verdict.UNKNOWN)


def _document(path: Path) -> Document:
    if path.stat().st_size > _MAX_DOCUMENT:
        return {}
    try:
        found: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _findings(document: Document) -> tuple[Finding, ...]:
    try:
        return msgspec.convert(document.get("findings", ()), tuple[Finding, ...])
    except msgspec.ValidationError:
        return ()
