"""Files and folders of others: read, put together, held against every rule; findings with file, line and column."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from fairlead.base.trust import read_file
from fairlead.errors import UsageError
from fairlead.plan.lint import rules_azure, rules_cluster, rules_networks, rules_offline, rules_operators, rules_pods
from fairlead.plan.lint.bundle import Bundle
from fairlead.plan.lint.commands import Command, commands
from fairlead.plan.lint.read import MAX_BYTES, MAX_DUMP_BYTES, Document, Place, Refused, documents
from fairlead.plan.lint.rule import OFFLINE, RULES, Hit, Lacks, Rule, Well
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import size as size_of_name

YAML, SHELL = (".yaml", ".yml", ".json"), (".sh", ".bash", ".azcli", ".zsh")
MAX_FILES = 5_000
_ALL = (rules_azure, rules_cluster, rules_networks, rules_offline, rules_operators, rules_pods)
"""Loaded for the rules that stand in them."""


class Linted(Struct, frozen=True, kw_only=True):
    """What came of it."""

    files: tuple[str, ...]
    num_objects: int
    num_commands: int
    findings: tuple[Finding, ...]


def lint_paths(paths: Iterable[Path], *, sizes: Sequence[str] = (), offline: bool = False) -> Linted:
    """Every manifest, values file and script of files and folders; with `offline`, held against the rules of sites
    without a way out alone. Raises UsageError for a path that is not there.
    """
    for name in sizes:
        if size_of_name(name) is None:
            raise UsageError("cli/no-size", f"no VM size `{name}`", hint="fairlead init --list")
    found, calls, files, problems = list[Document](), list[Command](), list[str](), list[Finding]()
    for path in _files(paths):
        files.append(str(path))
        try:
            text = read_file(path, MAX_DUMP_BYTES if path.suffix == ".json" else MAX_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            problems.append(_unread(Place(str(path)), f"cannot be read: {why or error}", ""))
            continue
        if path.suffix in SHELL:
            calls += commands(text, file=str(path))
            continue
        try:
            for document in documents(text, file=str(path)):
                found.append(document)
                problems += [_twice(name, place) for name, place in document.twice]
        except Refused as error:
            problems.append(_unread(error.place, error.why, error.hint))
    if not files:
        shown = ", ".join(str(p) for p in paths)
        raise UsageError(
            "plan/no-files", f"no manifests or scripts in {shown}", hint=f"names end in {', '.join((*YAML, *SHELL))}"
        )
    bundle = Bundle(found, calls, sizes)
    return Linted(
        files=tuple(files),
        num_objects=len(bundle.objects),
        num_commands=len(calls),
        findings=(*problems, *judge(bundle, OFFLINE if offline else RULES)),
    )


def judge(bundle: Bundle, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Every rule over a bundle: a finding for each trap, one pass or one skip for what was looked at. Pure."""
    well, lacks = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    hits: dict[tuple[str, Place, str], Hit] = {}
    for rule in rules:
        for said in rule(bundle):
            if isinstance(said, Hit):
                hits.setdefault((said.code, said.place, said.message), said)
            elif isinstance(said, Well):
                well[said.code].append(said.about)
            elif isinstance(said, Lacks):
                lacks[said.code].append(said.why)
    bad = {hit.code for hit in hits.values()}
    findings = [_finding(hit) for hit in hits.values()]
    for code, abouts in well.items():
        if code not in bad and code not in lacks:
            num = len(dict.fromkeys(abouts))
            text = f"{num} looked at: {', '.join(list(dict.fromkeys(abouts))[:4])}"
            findings.append(Finding(code=code, verdict=Verdict.PASS, subject=Subject(kind="cluster"), message=text))
    for code, whys in lacks.items():
        if code not in bad:
            text = "; ".join(dict.fromkeys(whys))
            findings.append(
                Finding(code=code, verdict=Verdict.SKIP, subject=Subject(kind="cluster"), message=f"not judged: {text}")
            )
    return findings


def _finding(hit: Hit) -> Finding:
    return Finding(
        code=hit.code,
        verdict=hit.verdict,
        subject=Subject(kind="cluster", name=str(hit.place)),
        message=f"{hit.about}: {hit.message}",
        evidence=(Evidence(str(hit.place), hit.read),),
        remedy=hit.remedy,
        data={"file": hit.place.file, "line": hit.place.line, "column": hit.place.column},
    )


def _unread(place: Place, why: str, hint: str) -> Finding:
    return Finding(
        code="plan/yaml",
        verdict=Verdict.UNKNOWN,
        subject=Subject(kind="cluster", name=str(place)),
        message=why,
        evidence=(Evidence(str(place), why),),
        remedy=hint or "Mend the file; nothing in it was judged from there on.",
        data={"file": place.file, "line": place.line, "column": place.column},
    )


def _twice(name: str, place: Place) -> Finding:
    return Finding(
        code="plan/key-twice",
        verdict=Verdict.WARN,
        subject=Subject(kind="cluster", name=str(place)),
        message=f"the key `{name}` stands twice: the last one counts, where the file is taken at all",
        evidence=(Evidence(str(place), name),),
        remedy="Remove one of them.",
        data={"file": place.file, "line": place.line, "column": place.column},
    )


def _files(paths: Iterable[Path]) -> list[Path]:
    """Files as they were named; of folders all that look like manifests or scripts, hidden ones and links left out."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            for folder, below, names in os.walk(path):
                below[:] = sorted(name for name in below if not name.startswith("."))
                found += [
                    Path(folder, name)
                    for name in sorted(names)
                    if name.endswith((*YAML, *SHELL))
                    and not name.startswith(".")
                    and not Path(folder, name).is_symlink()
                ]
        elif path.exists():
            found.append(path)
        else:
            raise UsageError("plan/no-files", f"{path} is not there", hint="fairlead plan --lint DIR")
        if len(found) > MAX_FILES:
            raise UsageError("plan/no-files", f"more than {MAX_FILES} files", hint="name the folder of the manifests")
    return list(dict.fromkeys(found))
