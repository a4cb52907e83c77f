"""A kernel log, or what a serial console showed, as facts: lines with seconds, whatever wrote them.

Understood are /dev/kmsg, dmesg (seconds, -T, -H, -r, ISO), the journal (short, short-monotonic, ISO, JSON), syslog's
files, and consoles whose lines have something before any of these. Seconds are those since the start of the kernel
where the log has them; else those since the log's first line, and `clock` says so.

Pure. Must not know: any machine.
"""

from __future__ import annotations

import calendar
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fairlead.errors import UsageError
from fairlead.probe.readers.kernel_log import bounded, is_wanted
from fairlead.probe.readers.netlog import MONTHS
from fairlead.records.facts import NodeFacts

MAX_LOG_BYTES = 256 << 20
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|[\x00-\x08\x0b-\x1a\x1c-\x1f]")
_MANAGERS = re.compile(r"systemd-networkd|systemd-udevd|NetworkManager")


class _Said(NamedTuple):
    """One line: its time by the kernel's clock or by people's, and what it says."""

    monotonic_s: float | None
    wall_s: float | None
    level: int
    who: str
    """`kernel`, or the program that said it."""
    text: str


def facts_of_log(text: str, node: str, source: str) -> NodeFacts:
    """The log as facts of a node that nothing else is known of. Raises UsageError `audit/no-log-lines`."""
    said = _lines(text)
    if not said:
        raise UsageError(
            "audit/no-log-lines",
            f"{source} holds no line of a kernel log",
            hint="journalctl -k -b -o short-monotonic > FILE",
        )
    kernel = [s for s in said if s.who == "kernel"]
    has_seconds = any(s.monotonic_s is not None for s in kernel)
    if has_seconds:
        lines = [(s.monotonic_s, s.level, s.text) for s in kernel if s.monotonic_s is not None]
    else:
        first = next((s.wall_s for s in kernel if s.wall_s is not None), 0.0)
        lines = [(round(s.wall_s - first, 6), s.level, s.text) for s in kernel if s.wall_s is not None]
    facts: dict[str, Any] = {}
    if lines:
        facts["kernel_log"] = _kernel_log(lines, "start" if has_seconds else "log")
        facts["host"] = {"pid_namespace": "first", "os": {"uptime_s": lines[-1][0]}}
    managers = [s for s in said if s.who != "kernel" and s.wall_s is not None]
    if managers:
        facts["netlog"] = {
            "lines": [[s.wall_s, s.who, s.text[:300]] for s in managers][-500:],
            "num_left_out": max(0, len(managers) - 500),
            "first_s": managers[0].wall_s,
            "last_s": managers[-1].wall_s,
            "clock": "local",
        }
    sources = {"kernel_log": source, "netlog": source, "host": source}
    return NodeFacts(node=node, facts=facts, sources=sources)


def _kernel_log(lines: list[tuple[float, int, str]], clock: str) -> dict[str, Any]:
    # `Linux version` tells that the machine starts: kept beside the lines that are facts
    kept, num_alike, num_left_out = bounded([x for x in lines if is_wanted(x) or x[2].startswith("Linux version ")])
    return {
        "lines": [[round(seconds, 6), level, text[:400]] for seconds, level, text in kept],
        "num_read": len(lines),
        "num_alike": num_alike,
        "num_left_out": num_left_out,
        "first_s": round(lines[0][0], 3),
        "clock": clock,
    }


# ---- lines -----------------------------------------------------------------------------------------------------------


def _lines(text: str) -> list[_Said]:
    found: list[_Said] = []
    human = _HumanClock()
    for raw in text.split("\n"):
        line = _ESCAPES.sub("", raw).rstrip("\r ")
        if not line or len(line) > 8192:
            continue
        said = human.read(line) or next(filter(None, (read(line) for read in _FORMS)), None)
        if said is not None:
            found.append(said)
    return found


def _kmsg(line: str) -> _Said | None:
    match = re.match(r"(\d{1,3}),\d+,(\d{1,16}),[^;]{0,80};(.*)", line)
    if not match:
        return None
    number = int(match[1])
    return _Said(int(match[2]) / 1e6, None, number & 7, "kernel" if number < 8 else "", match[3])


def _json(line: str) -> _Said | None:
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
        who, text = str(entry["SYSLOG_IDENTIFIER"]), entry["MESSAGE"]
        wall_s = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        since = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry.get("__MONOTONIC_TIMESTAMP")
        return _Said(int(since) / 1e6 if since else None, wall_s, int(entry.get("PRIORITY", 6)) & 7, who, str(text))
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError, OverflowError):
        return None


_SECONDS = re.compile(r"(?:<(\d{1,3})>)?\[ {0,8}(\d{1,9}\.\d{3,9})\](?:\[[ \w]{0,12}\])? ?(.*)")
_BEHIND = re.compile(r"(?:\S+ )?(?P<who>kernel|[\w.-]{1,40})(?:\[\d+\])?: (?P<text>.*)")


def _seconds(line: str) -> _Said | None:
    """`[    5.140900] text`, also behind something else; the journal puts host and program behind the seconds."""
    match = _SECONDS.search(line)
    if not match:
        return None
    before, text = line[: match.start()], match[3]
    head = _dated(before + "x: x") if before.strip() else None
    who = "kernel"
    behind = re.match(r"[\w.-]+ (kernel|systemd-networkd|systemd-udevd|NetworkManager)(?:\[\d+\])?: (.*)", text)
    program = re.match(r"(systemd-networkd|systemd-udevd|NetworkManager)\[\d+\]: (.*)", text)
    if behind:
        who, text = behind[1], behind[2]
    elif program:  # what programs write to /dev/kmsg shows on a console as the kernel's own lines do
        who, text = program[1], program[2]
    level = int(match[1]) & 7 if match[1] else 6
    seconds = float(match[2])
    return _Said(seconds, head.wall_s if head else seconds, level, who, text)


def _ctime(line: str) -> _Said | None:
    """`[Thu Sep  3 05:08:02 2026] text`, as dmesg -T writes."""
    match = re.search(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\] (.*)", line)
    if not match or match[1] not in MONTHS:
        return None
    when = (int(match[6]), MONTHS.index(match[1]) + 1, int(match[2]), int(match[3]), int(match[4]), int(match[5]))
    return _Said(None, float(calendar.timegm(when)), 6, "kernel", match[7])


_DATE = re.compile(
    r"(?:([A-Z][a-z]{2}) {1,2}(\d{1,2})|(\d{4})-(\d\d)-(\d\d))[ T](\d\d):(\d\d):(\d\d)([.,]\d{1,9})?\S* (.*)"
)


def _dated(line: str) -> _Said | None:
    """`Aug 17 06:18:01 host systemd-networkd[5398]: ib6: lost carrier`, or the same behind a date of ISO 8601."""
    match = _DATE.match(line)
    if not match or (match[1] and match[1] not in MONTHS):
        return None
    year, month = (2000, MONTHS.index(match[1]) + 1) if match[1] else (int(match[3]), int(match[4]))
    when = (year, month, int(match[2] or match[5]), int(match[6]), int(match[7]), int(match[8]))
    wall_s = calendar.timegm(when) + float((match[9] or ".0").replace(",", "."))
    behind = _BEHIND.match(match[10])
    if not behind:
        return _Said(None, wall_s, 6, "kernel", match[10])  # dmesg with ISO dates names nobody
    return _Said(None, wall_s, 6, behind["who"], behind["text"])


_FORMS: tuple[Callable[[str], _Said | None], ...] = (_kmsg, _json, _seconds, _ctime, _dated)


class _HumanClock:
    """dmesg -H: a date where a minute begins, then how much later each line came: `[  +0.113671] text`."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def read(self, line: str) -> _Said | None:
        later = re.match(r"\[ *\+(\d{1,9}\.\d{1,9})\] (.*)", line)
        if later and self.at_s is not None:
            self.at_s += float(later[1])
            return _Said(None, self.at_s, 6, "kernel", later[2])
        if later:
            self.at_s = float(later[1])
            return _Said(None, self.at_s, 6, "kernel", later[2])
        date = re.match(r"\[([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d)\] (.*)", line)
        if date and date[1] in MONTHS:
            when = (2000, MONTHS.index(date[1]) + 1, int(date[2]), int(date[3]), int(date[4]), 0)
            self.at_s = float(calendar.timegm(when))
            return _Said(None, self.at_s, 6, "kernel", date[5])
        return None
