"""The kernel's messages, bounded: warnings and worse, and everything from the drivers a job depends on.

Read from /dev/kmsg; where that is refused, from dmesg and from the journal, which an ordinary user may be allowed.
Programs may write to /dev/kmsg too: only records whose facility is the kernel's own (0, which no program can give) are
the kernel's words.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Callable, Iterator

from fairlead.probe.readers.tree import Hole, Tree, hole

MAX_LINES = 1000
FIRST_ALIKE, NEWEST_ALIKE = 5, 120
"""Of lines that are alike, so many of the first and of the newest are kept: neither a driver that repeats itself nor a
flood of another kind pushes out the one line that says what broke."""

MAX_READ = 8 << 20
DMESG = ["dmesg", "--raw"]
JOURNAL = [
    "journalctl",
    "--dmesg",
    "--boot",
    "--quiet",
    "--no-pager",
    "--output=json",
    "--output-fields=MESSAGE,PRIORITY,SYSLOG_IDENTIFIER,_SOURCE_MONOTONIC_TIMESTAMP",
]
RIGHTS = "root, or membership of the group adm or systemd-journal"
"""What reading the kernel's messages takes where kernel.dmesg_restrict is 1, as distributions set it."""

SUBJECTS = re.compile(
    r"NVRM|nvidia|mlx[45]_|mana|amdgpu|hv_netvsc|Data path|infiniband|nvme|EXT4-fs|XFS|I/O error|soft lockup|hung_task"
    r"|blocked for more|Out of memory|oom-kill|Hardware Error|mce:|EDAC|link becomes ready|Lustre"
    r"|BUG|Oops|Internal error|general protection|Kernel panic|LOCKUP|Unable to handle|Memory failure"
    r"|AER:|PCIe Bus Error"  # codespell:ignore aer
)
_NUMBER = re.compile(r"[0-9]{1,18}")
_VARIES = re.compile(r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|NVRM: Xid \([^)]*\): \d+)|0x[0-9a-fA-F]+|\d+")
Line = tuple[float, int, str]


def read_kernel_log(tree: Tree) -> dict[str, Any]:
    """`lines`: [seconds since boot, level, text], oldest first.

    `num_alike` lines were left out of which others like them are there, and `num_left_out` of which there are none.
    """
    found, where, refused = _records(tree)
    tree.source((), where)
    if not found:
        return _hole_of(refused)
    kept = [line for line in found if is_wanted(line)]
    lines, num_alike, num_left_out = bounded(kept)
    return {
        "lines": [[round(seconds, 3), level, text[:400]] for seconds, level, text in lines],
        "num_read": len(found),
        "num_alike": num_alike,
        "num_left_out": num_left_out,
        "first_s": round(found[0][0], 3),
    }


def is_wanted(line: Line) -> bool:
    """Whether a line is a fact: a warning or worse, or of a driver that jobs depend on."""
    return line[1] <= 4 or SUBJECTS.search(line[2]) is not None


def bounded(lines: list[Line]) -> tuple[list[Line], int, int]:
    """At most MAX_LINES of them; how many were left out with others alike in place, and how many without.

    Every kind keeps its first line before any keeps its newest, and that before any keeps a third.
    """
    kinds: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        kinds.setdefault(kind_of(line[2]), []).append(index)
    ranked = []
    for indexes in kinds.values():
        some = indexes[:FIRST_ALIKE] + indexes[FIRST_ALIKE:][-NEWEST_ALIKE:]
        turns = [i for pair in zip(some, reversed(some)) for i in pair]  # noqa: B905 - strict came with 3.10
        ranked += [(rank, -index, index) for rank, index in enumerate(dict.fromkeys(turns))]
    chosen = sorted(index for _, _, index in sorted(ranked)[:MAX_LINES])
    there = {kind_of(lines[index][2]) for index in chosen}
    num_left_out = sum(len(indexes) for kind, indexes in kinds.items() if kind not in there)
    return [lines[index] for index in chosen], len(lines) - len(chosen) - num_left_out, num_left_out


def kind_of(text: str) -> str:
    """What lines that are alike have in common: everything but numbers; devices and Xids stay apart.

    >>> kind_of("mlx5_core 0101:00:00.0: mlx5_cmd_out_err:839:(pid 77): ACCESS_REG failed")
    'mlx#_core 0101:00:00.0: mlx#_cmd_out_err:#:(pid #): ACCESS_REG failed'
    """
    return _VARIES.sub(lambda m: m.group(1) or "#", text)[:96]


def _hole_of(refused: Hole) -> dict[str, str]:
    missing = hole(refused.why, refused.source)
    if "permi" in refused.why:  # EPERM and EACCES in the C library's words
        missing["needs"] = RIGHTS
    return missing


# ---- where the messages come from ----------------------------------------------------------------------------------


def _records(tree: Tree) -> tuple[list[Line], str, Hole]:
    """The kernel's own messages, from the first place that has some; why /dev/kmsg was not it."""
    ways = (("/dev/kmsg", _kmsg), (" ".join(DMESG), _dmesg), (" ".join(JOURNAL), _journal))
    refused = Hole("holds no message", "/dev/kmsg")
    for where, read in ways:
        try:
            found = list(read(tree))
        except Hole as missing:
            if read is _kmsg:
                refused = missing
            continue
        if found:
            return found, where, refused
    return [], "/dev/kmsg", refused


def _kmsg(tree: Tree) -> Iterator[Line]:
    """Records such as `6,339,5140900,-;NET: Registered protocol family` (linux Documentation/ABI/testing/dev-kmsg)."""
    records = _live_records(tree) if tree.live else tree.read_bytes("/dev/kmsg", MAX_READ).split(b"\n")
    raw: list[tuple[Line, str]] = []
    for record in records:
        head, mark, text = record.decode("utf-8", "backslashreplace").partition(";")
        fields = head.split(",")
        if (
            not mark
            or len(fields) < 3
            or not all(map(_NUMBER.fullmatch, (fields[0], fields[2])))
            or int(fields[0]) >> 3
        ):
            continue
        line = text.split("\n")[0]
        raw.append(((int(fields[2]) / 1e6, int(fields[0]) & 7, line), head + ";" + line))
    if tree.kept is not None and raw:
        wanted, _, _ = bounded([line for line, _ in raw if is_wanted(line)])
        # the newest record shows that the log could be read, also where no line of it is a fact
        there = {*wanted, raw[-1][0]}
        tree.kept["/dev/kmsg"] = "\n".join(text for line, text in raw if line in there)
    return (line for line, _ in raw)


def _dmesg(tree: Tree) -> Iterator[Line]:
    """`<6>[    5.140900] NET: Registered protocol family 10`: facility and level in one number, as in syslog."""
    for line in tree.run(DMESG, 3.0, used=lambda data: _used_lines(data, _dmesg_line)).split("\n"):
        found = _dmesg_line(line)
        if found:
            yield found


def _dmesg_line(line: str) -> Line | None:
    match = re.match(r"<(\d{1,9})>\[ *(\d{1,12}\.\d{1,9})\] (.*)", line)
    if match and not int(match.group(1)) >> 3:
        return float(match.group(2)), int(match.group(1)) & 7, match.group(3)
    return None


def _journal(tree: Tree) -> Iterator[Line]:
    """A JSON object a line. The journal calls the kernel's own words `kernel`, and programs' by their names."""
    for line in tree.run(JOURNAL, 4.0, used=lambda data: _used_lines(data, _journal_line)).split("\n"):
        found = _journal_line(line)
        if found:
            yield found


def _journal_line(line: str) -> Line | None:
    try:
        entry = json.loads(line)
        text, level = entry["MESSAGE"], int(entry["PRIORITY"])
        seconds = int(entry["_SOURCE_MONOTONIC_TIMESTAMP"]) / 1e6
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if entry.get("SYSLOG_IDENTIFIER") == "kernel" and isinstance(text, str):
        return seconds, level & 7, text.replace("\n", "\\x0a")  # as /dev/kmsg writes it
    return None


def _used_lines(data: bytes, parse: Callable[[str], Line | None]) -> bytes:
    """What a capture holds: the kernel's own words that are facts, and the newest, which shows that there are any."""
    kept, newest = [], ""
    for line in data.decode("utf-8", "replace").split("\n"):
        found = parse(line)
        if found:
            newest = line
        if found and is_wanted(found):
            kept.append(line)
    return "\n".join(kept if newest in kept[-1:] else [*kept, newest]).encode()


def _live_records(tree: Tree) -> list[bytes]:
    """Every record the kernel still holds. A read gives one; without O_NONBLOCK the last one would wait for news."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise tree.failed(error, "/dev/kmsg") from None
    records: list[bytes] = []
    size = 0
    try:
        while size < MAX_READ:
            try:
                records.append(os.read(handle, 8192))
            except BrokenPipeError:
                continue  # the oldest record was overwritten while we read; the next read goes on
            size += len(records[-1])
    except BlockingIOError:
        pass
    except OSError as error:
        if not records:
            raise tree.failed(error, "/dev/kmsg") from None
    finally:
        os.close(handle)
    return records
