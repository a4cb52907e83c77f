"""Kernel messages, judged by a table of patterns (messages.toml): which line means what, how bad, and for how long.

Judges only messages the probe kept. An empty log is no evidence; the probe says then that it could not read it.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections import Counter
from importlib import resources
from typing import NamedTuple

from fairlead.checks.node import Node, Outcome, bad, ok, skip, unknown, warn
from fairlead.records.verdict import Verdict

SHARED = "lab hosts share this machine's kernel and its messages"


class Pattern(NamedTuple):
    """One kind of message. `within_h` 0: it counts until the next boot."""

    code: str
    match: re.Pattern[str]
    means: str
    verdict: Verdict
    within_h: float
    at_least: int


class Xid(NamedTuple):
    """What one of NVIDIA's Xid numbers means."""

    means: str
    verdict: Verdict


@functools.cache
def _table() -> tuple[tuple[Pattern, ...], dict[int, Xid]]:
    data = tomllib.loads(resources.files("fairlead.checks").joinpath("messages.toml").read_text("utf-8"))
    patterns = tuple(
        Pattern(
            p["code"],
            re.compile(p["match"]),
            p["means"],
            Verdict(p["verdict"]),
            p.get("within_h", 0),
            p.get("at_least", 1),
        )
        for p in data["pattern"]
    )
    xids = {int(number): Xid(x["means"], Verdict(x["verdict"])) for number, x in data["xid"].items()}
    return patterns, xids


def patterns() -> tuple[Pattern, ...]:
    """Every kind of message that is judged."""
    return _table()[0]


def xids() -> dict[int, Xid]:
    """Xid number -> what it means."""
    return _table()[1]


def judge_messages(n: Node, code: str) -> Outcome:
    """The worst of a check's patterns over the messages kept, with how often and the latest line."""
    if n.expect.is_lab:
        return skip(SHARED)
    lines, uptime_s = n.get("kernel_log.lines"), n.get("host.os.uptime_s")
    said: list[str] = []
    worst = Verdict.PASS
    last = ""
    for pattern in patterns():
        if pattern.code != code:
            continue
        since = uptime_s - pattern.within_h * 3600 if pattern.within_h else 0.0
        found = [text for seconds, _, text in lines if seconds >= since and pattern.match.search(text)]
        if len(found) >= pattern.at_least:
            said.append(f"{pattern.means} ({len(found)} x)" if len(found) > 1 else pattern.means)
            last = found[-1]
            worst = Verdict.FAIL if Verdict.FAIL in (worst, pattern.verdict) else Verdict.WARN
    if not said:
        return _none(n)
    return (bad if worst is Verdict.FAIL else warn)("; ".join(said), line=last)


XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def judge_xids(n: Node) -> Outcome:
    """Xids since boot, worst first. Those an application causes by itself are no fault of the node."""
    if n.expect.is_lab:
        return skip(SHARED)
    counts: Counter[tuple[int, str]] = Counter()
    last = ""
    for _, _, text in n.get("kernel_log.lines"):
        match = XID.search(text)
        if match and _xid(int(match[2])).verdict is not Verdict.PASS:
            counts[int(match[2]), match[1]] += 1
            last = text
    if not counts:
        return _none(n)
    ordered = sorted(counts.items(), key=lambda item: (_xid(item[0][0]).verdict is not Verdict.FAIL, item[0]))
    texts = [
        f"Xid {number} ({_xid(number).means}) on {place}" + (f", {num} x" if num > 1 else "")
        for (number, place), num in ordered
    ]
    is_fatal = any(_xid(number).verdict is Verdict.FAIL for number, _ in counts)
    return (bad if is_fatal else warn)("; ".join(texts[:4]), line=last, xids=sorted({number for number, _ in counts}))


def _none(n: Node) -> Outcome:
    """Nothing was found; that is good news only if every message was looked at."""
    left_out = n.get("kernel_log.num_left_out")
    return unknown(f"{left_out} older kernel messages did not fit into the facts") if left_out else ok("none")


def _xid(number: int) -> Xid:
    return xids().get(number, Xid("not in the table", Verdict.WARN))
