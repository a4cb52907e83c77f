"""Compares what preflight said with what was done to the cluster, and keeps the result of every trial. Pure.

Knows nothing of how faults are put in, nor of preflight but the document it prints with `--json`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
LIMIT_S = 20.0
"""A culprit that is named later than this does not count."""
_ACCUSES = ("node", "device", "port", "rank", "pair", "plane", "link")
"""Subjects that point at somebody; a finding about the job or the cluster as a whole accuses nobody."""


class Truth(msgspec.Struct, kw_only=True):
    """What was done, and what a report must say of it: one of `codes`, about these nodes, naming this part."""

    kind: str
    target: str
    """In words for the table: `p2/n3`, `rank 5`."""
    codes: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    """Exactly these, in any order."""
    part: tuple[str, ...] = ()
    """The finding's subject must be called one of these."""
    all_parts: bool = False
    """Each word of `part` must be named, by a finding of its own."""
    way: str = ""
    """`out` or `in`, where the fault has a direction."""
    verdict: str = "fail"
    """What a report must end with; with `pass` it must say nothing against anybody."""
    limit_s: float = LIMIT_S
    """How late it may be."""
    was_done: bool = True
    """False until it was: a fault inside the collective needs one."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, as far as it matters here."""

    code: str
    kind: str
    nodes: tuple[str, ...]
    name: str
    way: str
    verdict: str

    def __str__(self) -> str:
        return " ".join(filter(None, [self.code, ",".join(self.nodes), self.name]))


class Trial(msgspec.Struct, kw_only=True):
    """One run of preflight, and how it compares."""

    suite: str
    """`single`, `double`, `healthy`."""
    name: str
    seed: int
    hosts: int
    gpus: int
    rate_mbps: int
    truths: list[Truth]
    wall_s: float
    verdict: str
    first: str
    """What the report says first of what is not well."""
    named: list[bool]
    """For each fault whether a fail names it."""
    is_first: bool
    """Whether the first thing said is one of the faults."""
    accused: list[str]
    """Fails about somebody to whom nothing was done."""
    took_s: dict[str, float] = {}
    run: str = ""
    at: str = ""
    load: float = 0.0
    """The machine's load average over the last minute, at the start."""
    commit: str = ""
    """Of the source; with `+` where files were changed since."""

    @property
    def is_hit(self) -> bool:
        """Every fault named, one of them first, in time; a healthy cluster found well."""
        if self.is_healthy:
            return self.verdict == "pass" and self.is_quick
        told = {t.verdict for t in self.truths} - {"pass"}
        return self.verdict in told and all(self.named) and self.is_first and self.is_quick

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was done that a report may hold against anybody."""
        return all(t.verdict == "pass" for t in self.truths)

    @property
    def is_quick(self) -> bool:
        """Whether it came in time."""
        return not self.truths or self.wall_s <= max(t.limit_s for t in self.truths)

    @property
    def key(self) -> tuple[str, str, int, int, int, int]:
        """What makes a trial the same one when it is run again."""
        return self.suite, self.name, self.seed, self.hosts, self.gpus, self.rate_mbps


def score(trial: Trial, document: Mapping[str, Any]) -> Trial:
    """The trial with everything that follows from the document preflight printed; an empty one names nobody."""
    said = [_said(f) for f in document.get("findings", [])]
    bad = [f for f in said if f.verdict in ("fail", "unknown", "warn")]
    fails = [f for f in said if f.verdict == "fail"]
    trial.verdict = str(document.get("verdict", "none"))
    trial.first = str(bad[0]) if bad else str(document.get("error", {}).get("message", ""))
    trial.named = [
        t.verdict == "pass" or is_named(t, [f for f in said if f.verdict == t.verdict]) for t in trial.truths
    ]
    trial.is_first = bool(bad) and any(t.verdict == bad[0].verdict and fits(t, bad[0]) for t in trial.truths)
    trial.accused = [str(f) for f in fails if accuses(f, trial.truths)]
    trial.took_s = dict(document.get("took_s", {}))
    trial.run = str(document.get("run", ""))
    return trial


def is_named(truth: Truth, fails: Sequence[Said]) -> bool:
    """Whether fails name the fault, and all of its parts where it has several."""
    mine = [f for f in fails if fits(truth, f)]
    return bool(mine) and (not truth.all_parts or {f.name for f in mine} >= set(truth.part))


def fits(truth: Truth, said: Said) -> bool:
    """Whether a finding names the fault: the right cause, the right nodes, the right part, the right way."""
    if said.code not in truth.codes or (truth.nodes and sorted(said.nodes) != sorted(truth.nodes)):
        return False
    if truth.part and not any(said.name == word or said.name.startswith(word + "/") for word in truth.part):
        return False
    return not truth.way or said.way == truth.way


def accuses(said: Said, truths: Sequence[Truth]) -> bool:
    """Whether a fail points at somebody to whom nothing was done. More about a guilty node is no accusation."""
    if said.kind not in _ACCUSES or any(fits(t, said) for t in truths):
        return False
    return not said.nodes or not any(set(said.nodes) <= set(t.nodes) for t in truths)


def _said(finding: Mapping[str, Any]) -> Said:
    subject = finding.get("subject", {})
    return Said(
        code=finding["code"],
        kind=subject.get("kind", ""),
        nodes=tuple(subject.get("nodes", ())),
        name=subject.get("name", ""),
        way=(finding.get("data") or {}).get("way", ""),
        verdict=finding["verdict"],
    )


# ---- the file of results ---------------------------------------------------------------------------------------------


def read(path: Path) -> list[Trial]:
    """Every trial kept; of one that was run again the last."""
    return list({t.key: t for t in lines(path, Trial)}.values())


def lines(path: Path, kind: type[T]) -> list[T]:
    """Every whole line of a file of results; the last may have been cut short by a kill, and does not count."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [msgspec.json.decode(line, type=kind) for line in whole.splitlines() if line]


def append(path: Path, record: msgspec.Struct) -> None:
    """Add a record as one line, in place of one that was cut short."""
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(record) + b"\n")


def commit_of(root: Path) -> str:
    """The last commit that changed the source, with `+` where it was changed since; empty without git."""
    words = ["git", "-C", str(root)]
    try:
        last = subprocess.run([*words, "log", "-1", "--format=%h", "--", "src"], capture_output=True, text=True)
        changed = subprocess.run([*words, "status", "--porcelain", "--", "src"], capture_output=True, text=True)
    except OSError:
        return ""
    return last.stdout.strip() + ("+" if changed.stdout.strip() else "")


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(trials: Sequence[Trial]) -> str:
    """A row a trial, in the order they were run."""
    lines = ["| fault | where | said first | named | seconds |", "|---|---|---|---|---|"]
    for t in trials:
        where = ", ".join(truth.target for truth in t.truths)
        named = "yes" if t.is_hit else "**no**: " + _why(t)
        named += f"; also accused: {', '.join(t.accused)}" if t.accused else ""
        lines.append(f"| {t.name} | {where} | `{t.first}` | {named} | {t.wall_s:.1f} |")
    return "\n".join(lines) + "\n"


def _why(trial: Trial) -> str:
    """Why a trial is no hit."""
    missed = [t.kind for t, named in zip(trial.truths, trial.named, strict=True) if not named]
    if missed:
        return f"{', '.join(missed)} not named"
    if not trial.is_first:
        return "not first"
    return (
        f"later than {max(t.limit_s for t in trial.truths):g} s" if not trial.is_quick else f"verdict {trial.verdict}"
    )


def counts(trials: Sequence[Trial]) -> str:
    """One line: how many named, first, in time, without accusing others; how long; under what load."""
    num = len(trials)
    walls = sorted(t.wall_s for t in trials)
    right = sum(t.is_hit for t in trials)
    middle, load = walls[num // 2], sorted(t.load for t in trials)[num // 2]
    if all(t.is_healthy for t in trials):
        said = f"{right} of {num} healthy runs passed"
    else:
        both = sum(all(t.named) for t in trials)
        first = sum(t.is_first or t.is_healthy for t in trials)
        quick = sum(t.is_quick for t in trials)
        clean = sum(not t.accused for t in trials)
        said = (
            f"{right} of {num} hits: all faults named in {both}, one of them first in {first}, "
            f"in time ({LIMIT_S:g} s, unless the row says another) in {quick}; nobody else accused in {clean}"
        )
    return f"{said}. Median {middle:.1f} s, slowest {walls[-1]:.1f} s; load {load:.1f}."
