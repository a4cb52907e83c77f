"""The reason Slurm is told when a node is drained: who must act, since when, what was found, in which run. Pure.

    fairlead node: 2026-11-20 gpu/count: 7 GPUs answer, 8 expected (run 20261120-214207-preflight-7f3a)

`node` calls for whoever repairs machines, `user` for whoever wrote the job or owns its environment. Only a reason that
reads exactly so is ours: one that a person has added a word to is that person's.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from typing import NamedTuple

from fairlead.records.finding import Finding

MAX_LENGTH = 200
"""Slurm keeps any length, and passes it to `sinfo -R`, mails and other people's scripts."""

USERS = frozenset(
    {
        "preflight/affinity",
        "preflight/env-drift",
        "preflight/gpu-missing",
        "preflight/gpu-shared",
        "preflight/interface",
        "preflight/local-ranks",
        "preflight/rank-count",
        "preflight/rank-twice",
        "preflight/rdma-off",
        "preflight/version-drift",
        "skew/environment",
        "skew/nccl",
        "skew/python",
        "skew/torch",
    }
)
"""What a job's request, its settings or its Python environment bring about. Everything else is the node's problem: a
defect taken for a user's mistake would never be repaired, a mistake taken for a defect is soon found out."""

# words that mean something to a shell, to `key=value` readers or to Slurm's own `[user@time]` never get in
_UNSAFE = re.compile(r"[^A-Za-z0-9 .,:;/()+%_@-]+")
_FORM = re.compile(r"fairlead (node|user): (\d{4}-\d\d-\d\d) ([a-z0-9]+/[a-z0-9-]+): (.*) \(run ([\w-]+)\)\Z")
_SET_BY = re.compile(r" \[([^\[\]@]*)@(\d{4}-[^\[\]]*)\]")


class Who(enum.StrEnum):
    """Who must act."""

    NODE = "node"
    USER = "user"


class Reason(NamedTuple):
    """A reason of ours."""

    who: Who
    day: str
    """UTC, `2026-11-20`."""
    code: str
    text: str
    """One short sentence."""
    run_id: str

    def __str__(self) -> str:
        head, tail = f"fairlead {self.who}: {self.day} {self.code}: ", f" (run {self.run_id})"
        return head + _shortened(self.text, MAX_LENGTH - len(head) - len(tail)) + tail


def who_acts(code: str) -> Who:
    """Who must act on a finding."""
    return Who.USER if code in USERS else Who.NODE


def reason_of(findings: list[Finding], run_id: str, when: dt.datetime) -> Reason:
    """The reason of one node's findings, the worst first. A user's mistake never hides a defect."""
    found = next((f for f in findings if who_acts(f.code) is Who.NODE), findings[0])
    part = f"{found.subject.name}: " if found.subject.name else ""
    more = f" (+{len(findings) - 1} more)" if len(findings) > 1 else ""
    room = MAX_LENGTH - len(str(Reason(who_acts(found.code), _day(when), found.code, "", run_id))) - len(more)
    text = _shortened(_safe(part + found.message), room) + more
    return Reason(who_acts(found.code), _day(when), found.code, text, run_id)


def parse_reason(text: str) -> Reason | None:
    """A reason as Slurm shows it, with or without who set it behind; None where it is not ours to the letter.

    >>> parse_reason("fairlead node: 2026-11-20 gpu/count: 7 of 8 (run x-1) [root@2026-11-20T21:42:07]").code
    'gpu/count'
    >>> parse_reason("fairlead node: 2026-11-20 gpu/count: 7 of 8 (run x-1), ticket 42") is None
    True
    """
    match = _FORM.match(bare(text))
    return Reason(Who(match[1]), *match.groups()[1:]) if match else None


def is_ours(text: str) -> bool:
    """Whether fairlead wrote a reason and nobody has changed it since."""
    return parse_reason(text) is not None


def bare(text: str) -> str:
    """A reason without Slurm's `[user@time]` and what may follow it.

    >>> bare("bad fan [root@2026-11-20T21:42:07] Comment=rack 7")
    'bad fan'
    """
    match = _stamp(text)
    return text[: match.start()] if match else text.strip()


def set_by(text: str) -> str:
    """Who set a reason; empty where Slurm does not say.

    >>> set_by("bad fan [root@2026-11-20T21:42:07]")
    'root'
    """
    match = _stamp(text)
    return match[1] if match else ""


def set_at(text: str) -> str:
    """When a reason was set, as Slurm writes times; empty where it does not say.

    >>> set_at("bad fan [root@2026-11-20T21:42:07]")
    '2026-11-20T21:42:07'
    """
    match = _stamp(text)
    return match[2] if match else ""


def _stamp(text: str) -> re.Match[str] | None:
    """Slurm's own `[user@time]`: the last, as somebody may have copied an earlier one into a reason of theirs."""
    return next(reversed(list(_SET_BY.finditer(text))), None)


def _day(when: dt.datetime) -> str:
    return when.astimezone(dt.UTC).date().isoformat()


def _safe(text: str) -> str:
    return " ".join(_UNSAFE.sub(" ", text).split())


def _shortened(text: str, room: int) -> str:
    """Text within `room` characters, cut between words where that is possible."""
    if len(text) <= room:
        return text
    cut = text[: max(0, room - 3)]
    head, blank, _ = cut.rpartition(" ")
    return (head if blank and len(head) > room // 2 else cut).rstrip() + "..." if room > 3 else cut
