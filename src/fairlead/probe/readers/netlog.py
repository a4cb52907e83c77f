"""What the managers of networks have logged: links that lost their carrier, interfaces that could not be renamed.

From the journal; where that is not there or says nothing, from the files that syslog writes.
"""

from __future__ import annotations

import calendar
import json
import re
from typing import Any

from fairlead.probe.readers.tree import Hole, Tree

NETLOG_JOURNAL = [
    "journalctl",
    "--boot",
    "--quiet",
    "--no-pager",
    "--output=json",
    "--output-fields=MESSAGE,SYSLOG_IDENTIFIER",
    "--identifier=systemd-networkd",
    "--identifier=systemd-udevd",
    "--identifier=NetworkManager",
]
NETLOG_FILES = ("/var/log/syslog", "/var/log/messages")
NETLOG_SAYS = re.compile(
    r": [Ll]ost carrier\b|Failed to rename network interface|[Cc]annot rename .*Device or resource busy"
)
NETLOG_MAX_LINES, NETLOG_MAX_READ = 500, 32 << 20
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def read_netlog(tree: Tree) -> dict[str, Any]:
    """`lines`: [seconds, who, text], oldest first, the newest of too many; `last_s`: the log's end.

    `clock`: `utc` where seconds are of 1970, else `local`: times that only tell what came how long after what.
    """
    refused = Hole("is empty", " ".join(NETLOG_JOURNAL))
    try:
        return _from_journal(tree)
    except Hole as missing:
        refused = missing
    for path in NETLOG_FILES:
        try:
            data = tree.read_bytes(path, NETLOG_MAX_READ, used=_used_syslog)
        except Hole:
            continue
        tree.source((), path)
        return _bounded_lines([line for line in map(_syslog_line, data.decode("utf-8", "replace").split("\n")) if line])
    raise refused


def _from_journal(tree: Tree) -> dict[str, Any]:
    source = " ".join(NETLOG_JOURNAL)
    tree.source((), source)
    found = []
    for line in tree.run(NETLOG_JOURNAL, 5.0, used=_used_journal).split("\n"):
        try:
            entry = json.loads(line)
            seconds, text = int(entry["__REALTIME_TIMESTAMP"]) / 1e6, entry["MESSAGE"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(text, str):
            found.append((seconds, str(entry.get("SYSLOG_IDENTIFIER", "")), text))
    if not found:
        raise Hole("says nothing", source)
    return {**_bounded_lines(found), "clock": "utc"}


def _bounded_lines(found: list[tuple[float, str, str]]) -> dict[str, Any]:
    told = [line for line in found if NETLOG_SAYS.search(line[2])]
    return {
        "lines": [[round(seconds, 3), who[:40], text[:300]] for seconds, who, text in told[-NETLOG_MAX_LINES:]],
        "num_left_out": max(0, len(told) - NETLOG_MAX_LINES),
        "first_s": round(found[0][0], 3) if found else 0,
        "last_s": round(found[-1][0], 3) if found else 0,
        "clock": "local",
    }


def _syslog_line(line: str) -> tuple[float, str, str] | None:
    """`Aug 17 06:18:01 host systemd-networkd[5398]: ib6: lost carrier`, or with a date of RFC 3339 in front."""
    old = re.match(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) \S+ ([^\[:]+)(?:\[\d+\])?: (.*)", line)
    if old and old.group(1) in MONTHS:
        when = (2000, MONTHS.index(old.group(1)) + 1, *map(int, old.groups()[1:5]))
        return float(calendar.timegm(when)), old.group(6), old.group(7)
    new = re.match(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\S* \S+ ([^\[:]+)(?:\[\d+\])?: (.*)", line)
    if new:
        return float(calendar.timegm(tuple(map(int, new.groups()[:6])))), new.group(7), new.group(8)
    return None


def _used_syslog(data: bytes) -> bytes:
    """What a capture holds of a log: its first and last line by their times alone, and the lines that are facts."""
    lines = [line for line in data.decode("utf-8", "replace").split("\n") if _syslog_line(line)]
    ends = {0, len(lines) - 1}
    kept = []
    for index, line in enumerate(lines):
        if NETLOG_SAYS.search(line):
            kept.append(line)
        elif index in ends:
            kept.append(re.sub(r"^(.{15}|\S+) .*", r"\1 host log: ...", line))
    return "\n".join(kept).encode()


def _used_journal(data: bytes) -> bytes:
    lines = [line for line in data.decode("utf-8", "replace").split("\n") if line.startswith("{")]
    kept = [line for index, line in enumerate(lines) if NETLOG_SAYS.search(line) or index in (0, len(lines) - 1)]
    return "\n".join(kept).encode()
