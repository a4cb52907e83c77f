"""Kernel messages, judged by a table of patterns (messages.toml): which line means what, how bad, and for how long.

Judges only messages the probe kept, and only from where the kernel begins to speak: a program may call itself
`EXT4-fs error` and crash, and the kernel then begins a line with that name. An empty log is no evidence.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

from fairlead.checks.node import Node, Outcome, bad, ok, skip, unknown, warn
from fairlead.records.verdict import Verdict

SHARED = (
    "the node is a container or another virtual host: the kernel and its messages are those of the machine under it"
)
OWN_KERNEL = "the kernel's messages are the node's own"


class Pattern(NamedTuple):
    """One kind of message. `within_h` 0: it counts until the next boot. A group `num`: how many one line tells of."""

    code: str
    match: re.Pattern[str]
    means: str
    verdict: Verdict
    within_h: float
    at_least: int
    limit: str
    """The name of the limit that says how many are needed, where a site may say otherwise."""
    level: int
    """The kernel's level of a line that counts, at most; 7 takes any."""
    after_s: float
    """Lines before, in seconds since boot, do not count."""
    failure: str = ""
    """What kind of cause of a job's end it may be, in the words of `logs/diagnose/classes.toml`; empty: none."""
    words: tuple[str, ...] = ()
    """One of which stands in every such line; given where `failure` is."""


class Xid(NamedTuple):
    """What one of NVIDIA's Xid numbers means."""

    means: str
    verdict: Verdict
    stays: bool = False
    """No reset of the GPU cures it."""
    failure: str = ""
    """As of a Pattern."""


@functools.cache
def _table() -> tuple[tuple[Pattern, ...], dict[int, Xid]]:
    data = tomllib.loads(resources.files("fairlead.checks").joinpath("messages.toml").read_text("utf-8"))
    words = data["word"]
    patterns = tuple(
        Pattern(
            p["code"],
            re.compile(re.sub(r"(?<!P)<(\w+)>", lambda m: str(words[m[1]]), p["match"])),
            p["means"],
            Verdict(p["verdict"]),
            p.get("within_h", 0),
            p.get("at_least", 1),
            p.get("limit", ""),
            p.get("level", 7),
            p.get("after_s", 0.0),
            p.get("failure", ""),
            tuple(p.get("words", ())),
        )
        for p in data["pattern"]
    )
    xids = {
        int(number): Xid(x["means"], Verdict(x["verdict"]), x.get("stays", False), x.get("failure", ""))
        for number, x in data["xid"].items()
    }
    return patterns, xids


def patterns() -> tuple[Pattern, ...]:
    """Every kind of message that is judged."""
    return _table()[0]


def xids() -> dict[int, Xid]:
    """Xid number -> what it means."""
    return _table()[1]


Line = Sequence[Any]


def judge_messages(n: Node, code: str) -> Outcome:
    """The worst of a check's patterns over the messages kept, with how often and the latest line."""
    if is_inside(n):
        return skip(SHARED)
    told = _told(n, code)
    if not told.said:
        return _none(n, told.few)
    return (bad if told.worst is Verdict.FAIL else warn)("; ".join(told.said), line=told.last)


class _Told(NamedTuple):
    """What the patterns of a check found: kinds that count, kinds too rare to count, the worst, the latest line."""

    said: list[str]
    few: list[str]
    worst: Verdict
    last: str


def _told(n: Node, code: str) -> _Told:
    lines = n.get("kernel_log.lines")
    said, few, worst, last = [], [], Verdict.PASS, ""
    for pattern in (p for p in patterns() if p.code == code):
        found = list(_found(n, pattern, lines))
        num = sum(times for times, _ in found)
        least = (n.expect.get(pattern.limit) if pattern.limit else None) or pattern.at_least
        if num >= least:
            said.append(f"{pattern.means} ({num} x)" if num > 1 else pattern.means)
            last = found[-1][1]
            worst = Verdict.FAIL if Verdict.FAIL in (worst, pattern.verdict) else Verdict.WARN
        elif found:
            hours = f" within {pattern.within_h:g} h" if pattern.within_h else ""
            few.append(f"{pattern.means} ({num} x; {least:g}{hours} would count)")
    return _Told(said, few, worst, last)


def _found(n: Node, pattern: Pattern, lines: Sequence[Line]) -> Iterator[tuple[int, str]]:
    """The lines of a pattern that still count, and how often each. When the node booted is asked where it matters."""
    hits = [
        (seconds, m) for seconds, level, text in lines if level <= pattern.level and (m := pattern.match.match(text))
    ]
    if not hits:
        return
    since = n.get("host.os.uptime_s") - pattern.within_h * 3600 if pattern.within_h else 0.0
    for seconds, match in hits:
        if seconds >= max(since, pattern.after_s):
            yield int(match.groupdict().get("num") or 1), match.string


XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)\b")
"""A slice is named behind the address: `(PCI:0000:01:00 GPU-I:05 GPU-CI:00)`."""
RECOVERY = 154
"""The GPU's recovery action changed, and the line says to what: `... from 0x1 (GPU Reset Required) to 0x0 (None)` comes
when it has been reset, and takes back what that GPU said before, but for what no reset cures. Drivers that know no such
number say nothing of a reset: there an Xid counts until the next boot."""


def judge_xids(n: Node) -> Outcome:
    """Xids since boot or since that GPU's reset, worst first. Those an application causes are no fault of the node."""
    if is_inside(n):
        return skip(SHARED)
    counts: Counter[tuple[int, str]] = Counter()
    means: dict[tuple[int, str], Xid] = {}
    last, before = "", set[str]()
    for _, _, text in n.get("kernel_log.lines"):
        match = XID.match(text)
        if not match:
            continue
        key, found = (int(match[2]), match[1]), _xid(int(match[2]), text)
        if found.verdict is not Verdict.PASS:
            counts[key] += 1
            if key not in means or found.verdict is Verdict.FAIL:
                means[key] = found
            last = text
        elif key[0] == RECOVERY:
            cured = [known for known in counts if known[1] == key[1] and not means[known].stays]
            before.update(f"Xid {known[0]} on {known[1]}" for known in cured)
            for known in cured:
                del counts[known]
    told = _told(n, "gpu/xid")
    if not counts and not told.said:
        healed = [f"{', '.join(sorted(before))}, before a reset"] if before else []
        return _none(n, [*healed, *told.few])
    ordered = sorted(counts.items(), key=lambda item: (means[item[0]].verdict is not Verdict.FAIL, item[0]))
    texts = [
        f"Xid {key[0]} ({means[key].means}) on {key[1]}" + (f", {num} x" if num > 1 else "") for key, num in ordered
    ]
    is_fatal = told.worst is Verdict.FAIL or any(means[key].verdict is Verdict.FAIL for key in counts)
    said = [*texts[:4], *told.said]
    return (bad if is_fatal else warn)("; ".join(said), line=last or told.last, xids=sorted({x for x, _ in counts}))


def is_inside(n: Node) -> bool:
    """Whether other nodes may share the kernel, so that its messages single out none of them."""
    return bool(n.get_or("first", OWN_KERNEL, "host.pid_namespace") == "inner")


def _none(n: Node, few: list[str]) -> Outcome:
    """Nothing that counts was found; that is good news only if every kind of message was looked at."""
    left_out = n.get("kernel_log.num_left_out")
    if left_out:
        return unknown(f"{left_out} kernel messages, of kinds that are not among the facts, did not fit into them")
    return ok("; ".join(["none that counts", *few]) if few else "none")


NVLINK_5 = range(144, 151)
"""The driver calls each of these fatal or not: `149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (...)`. A fatal one takes the
GPU out of its fabric until a reset."""


def _xid(number: int, text: str) -> Xid:
    if number == RECOVERY and re.search(r" to 0x0\b", text):
        return Xid("nothing is asked for any more", Verdict.PASS)
    if number in NVLINK_5 and re.search(rf": {number}, .*\bFatal\b", text):
        return Xid("fatal NVLink error", Verdict.FAIL)
    return xids().get(number, Xid("not in the table", Verdict.WARN))
