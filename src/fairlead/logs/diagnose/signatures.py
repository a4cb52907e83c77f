"""Which lines mean something: `signatures/*.toml`, and the Xids and kernel messages that node checks judge.

Who speaks matters: a kernel's words in the output of a job are no words of the kernel. One of a signature's literals
must stand in a line before its pattern is tried; the literals of all are what the store is asked for. The first that
fits counts, so an entry that says more stands before one that says less. Pure.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import msgspec

from fairlead.checks.messages import NVLINK_5, RECOVERY, XID, patterns, xids
from fairlead.logs.diagnose.model import Line
from fairlead.logs.format import formats
from fairlead.records.verdict import Verdict

LOOKED = 4096
_ORDER = ("gpu", "kernel", "storage", "network", "slurm", "job")


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of line. Groups: node, peer, dev, rank, job, server, ran_ms, late_s, host, address; due: not before then,
    as HTTP writes a date (RFC 9110, 5.6.7).
    """

    id: str
    role: str
    """cause, may, symptom, end, learn: see README."""
    by: tuple[str, ...]
    """Who may say it."""
    has: tuple[str, ...]
    match: str
    says: str
    cls: str = msgspec.field(default="", name="class")
    samples: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    pair: bool = False
    """It is between the speaker and the peer."""
    nobody: bool = False
    """It is about no node, whoever says it."""
    last: bool = False
    """Only the last line of a record counts."""
    late_s: float = 0
    """It happened up to so many seconds before it was told."""


MAX_DIGITS = 18


class Hit(NamedTuple):
    """A line that means something."""

    line: Line
    signature: Signature
    groups: dict[str, str]
    text: str
    """The words that mean it, without the line's head."""


class _Ready(NamedTuple):
    signature: Signature
    pattern: re.Pattern[str]


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """All of them, in the order in which they are tried."""
    found: list[Signature] = []
    for name in _ORDER:
        text = resources.files("fairlead.logs.diagnose").joinpath(f"signatures/{name}.toml").read_text("utf-8")
        found.extend(msgspec.convert(entry, Signature) for entry in tomllib.loads(text)["signature"])
    return (*_of_xids(), *found, *_of_checks())


def _of_xids() -> Iterator[Signature]:
    """Each Xid by its number. One that node checks call a fault is a cause; the others need a symptom."""
    for number, xid in xids().items():
        if not xid.failure:
            continue
        fatal = r".*\bFatal\b" if number in NVLINK_5 else ""
        yield Signature(
            id=f"xid-{number}",
            cls=xid.failure,
            role="cause" if xid.verdict is Verdict.FAIL or fatal else "may",
            by=("kernel",),
            has=("NVRM: Xid",),
            match=rf"^NVRM: Xid \((?:PCI:)?(?P<dev>[0-9a-fA-F:.]+)[^)]*\): {number}\b{fatal}",
            says=f"Xid {number}: {'fatal ' if fatal else ''}{xid.means}",
        )
    assert RECOVERY not in {n for n, xid in xids().items() if xid.failure}, "a consequence by its nature"


def _of_checks() -> Iterator[Signature]:
    """Kernel messages of node checks. Whether one of them ended the job is for what follows to say."""
    for number, pattern in enumerate(patterns()):
        if pattern.failure:
            yield Signature(
                id=f"kernel-{number}", cls=pattern.failure, role="may", by=("kernel",), has=pattern.words,
                match=rf"^(?:{pattern.match.pattern})", says=pattern.means,
            )  # fmt: skip


@functools.cache
def literals() -> tuple[str, ...]:
    """What a line must hold one of to mean anything."""
    return tuple(dict.fromkeys(word for each in signatures() for word in each.has))


@functools.cache
def _ready() -> dict[str, tuple[tuple[str, tuple[_Ready, ...]], ...]]:
    """Speaker -> literal -> what to try, in order."""
    made: dict[str, dict[str, list[_Ready]]] = {}
    for each in signatures():
        one = _Ready(each, re.compile(each.match))
        for speaker in each.by:
            for word in each.has:
                made.setdefault(speaker, {}).setdefault(word, []).append(one)
    return {who: tuple((word, tuple(each)) for word, each in words.items()) for who, words in made.items()}


@functools.cache
def _rank_of() -> dict[str, int]:
    return {each.id: place for place, each in enumerate(signatures())}


_TABLES = {
    "slurmctld_raw_CL": "slurmctld", "slurmd_raw_CL": "slurmd", "slurmjobs_raw_CL": "job", "dmesg_raw_CL": "kernel",
    "prolog_CL": "prolog", "fabricmanager_CL": "fabricmanager",
}  # fmt: skip
_COMPONENTS = {"kernel": "kernel", "systemd-networkd": "networkd", "NetworkManager": "networkd"} | {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "slurmstepd": "slurmd", "nv-fabricmanager": "fabricmanager",
}  # fmt: skip


def speaker(line: Line) -> str:
    """Who says it: by the file, and in a log of many by the program that the line names."""
    return _TABLES.get(line.table) or _COMPONENTS.get(line.component, "syslog")


_KERNEL_HEAD = re.compile(r"(?:\[ *\d+\.\d+\] ?)?(?:\[ *[TC]\d+\] ?)?")
_JOB_HEAD = re.compile(r"(?:\[(?:rank|default)\d+\]: ?|\d{1,6}: )+")


def words(line: Line) -> list[str]:
    """The lines of a record, without heads: what was said."""
    texts = line.text[: LOOKED * 4].split("\n")
    who = speaker(line)
    if line.table == "journald_CL":
        texts = [_message(texts[0])]
    elif line.table != "slurmjobs_raw_CL":
        texts[0] = _headless(texts[0], line.table)
    if who == "kernel":
        texts[0] = texts[0][found.end() :] if (found := _KERNEL_HEAD.match(texts[0])) else texts[0]
    elif who == "job":
        texts = [
            text[found.end() :] if (found := _JOB_HEAD.match(text)) and len(text) > found.end() else text
            for text in texts
        ]
    return [text[:LOOKED] for text in texts if text.strip()]


@functools.cache
def _heads() -> dict[str, tuple[re.Pattern[str], ...]]:
    made: dict[str, list[re.Pattern[str]]] = {}
    for form in formats().values():
        made.setdefault(form.table, []).extend(pattern for pattern, _ in form.compiled.lines)
    return {table: tuple(each) for table, each in made.items()}


def _headless(text: str, table: str) -> str:
    for pattern in _heads().get(table, ()):
        if found := pattern.match(text):
            return text[found.end() :].strip()
    return text.strip()


def _message(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    said = found.get("MESSAGE") if isinstance(found, dict) else None
    return said if isinstance(said, str) else ""


def read(line: Line) -> Hit | None:
    """What a line means; None where it means nothing."""
    tried = _ready().get(speaker(line), ())
    if not any(word in line.text for word, _ in tried):
        return None
    best: Hit | None = None
    texts = words(line)
    for place, text in enumerate(texts):
        for word, those in tried:
            if word not in text:
                continue
            for one in those:
                if one.signature.last and place + 1 < len(texts):
                    continue
                if best is not None and _rank_of()[one.signature.id] >= _rank_of()[best.signature.id]:
                    continue
                if found := one.pattern.search(text):
                    # a number that nobody counts to is none: lines are anybody's
                    said = ((name.rstrip("2"), value) for name, value in found.groupdict().items() if value)
                    groups = {name: value for name, value in said if len(value) <= MAX_DIGITS or not value.isdigit()}
                    best = Hit(line, one.signature, groups, text)
    return best


__all__ = ["XID", "Hit", "Signature", "literals", "read", "signatures", "speaker", "words"]
