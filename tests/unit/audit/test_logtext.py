# ruff: noqa: E501 - one form of log a line
"""Kernel logs in every form they come in: the same servicing, told by each tool, is the same window."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable

import pytest

from fairlead.audit import facts_of_log, tell
from fairlead.audit.judge import judge_log
from fairlead.cli.common import spec_of_size
from fairlead.errors import UsageError
from fairlead.records.verdict import Verdict, aggregate
from support import guests
from support.guests import BOOT, RETURNED, TAKEN, Said

ALL: Said = ((0.0, "Linux version 5.4.0-1010-azure (buildd@lgw01) #10-Ubuntu"), *BOOT, *TAKEN, *RETURNED)
DAY = dt.datetime(2026, 8, 17, 6, 0, 0, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return DAY + dt.timedelta(seconds=seconds)


def human(lines: Said) -> str:
    """dmesg -H (man 1 dmesg, --human): a minute's first line has the date, others how much later they came."""
    out, before, minute = [], 0.0, ""
    for seconds, text in lines:
        now = f"{at(seconds):%b}{at(seconds).day:3d} {at(seconds):%H:%M}"
        out.append(f"[{now}] {text}" if now != minute else f"[{seconds - before:+10.6f}] {text}")
        minute, before = now, seconds
    return "\n".join(out)


# man 1 dmesg; man 1 journalctl, -o; linux Documentation/ABI/testing/dev-kmsg; RFC 3164 and RFC 3339 for syslog's files
FORMS: dict[str, Callable[[Said], str]] = {
    "kmsg": guests.kmsg,
    "dmesg": lambda said: "".join(f"[{s:12.6f}] {t}\n" for s, t in said),
    "dmesg -r": lambda said: "".join(f"<6>[{s:12.6f}] {t}\n" for s, t in said),
    "dmesg -T": lambda said: "".join(f"[{at(s):%a %b %e %H:%M:%S %Y}] {t}\n" for s, t in said),
    "dmesg --time-format iso": lambda said: "".join(f"{at(s):%Y-%m-%dT%H:%M:%S},{int(s % 1 * 1e6):06d}+00:00 {t}\n" for s, t in said),
    "journal, short-monotonic": lambda said: "".join(f"[{s:12.6f}] vm0 kernel: {t}\n" for s, t in said),
    "journal, short": lambda said: "".join(f"{at(s):%b %d %H:%M:%S} vm0 kernel: {t}\n" for s, t in said),
    "journal, short-iso": lambda said: "".join(f"{at(s):%Y-%m-%dT%H:%M:%S}+0000 vm0 kernel: {t}\n" for s, t in said),
    "journal, json": lambda said: "".join(json.dumps({
        "MESSAGE": t, "PRIORITY": "6", "SYSLOG_IDENTIFIER": "kernel", "__REALTIME_TIMESTAMP": str(round(at(s).timestamp() * 1e6)),
        "_SOURCE_MONOTONIC_TIMESTAMP": str(round(s * 1e6))}) + "\n" for s, t in said),
    "syslog with seconds": lambda said: "".join(f"{at(s):%b %e %H:%M:%S} vm0 kernel: [{s:12.6f}] {t}\n" for s, t in said),
    "serial console": lambda said: "\x1b[2J\x1b[1;1H" + "".join(f"\x1b[0m[{s:12.6f}] {t}\r\r\n" for s, t in said) + "\nlogin: \x00",
    "console in a test's log": lambda said: "".join(f"[2026-09-03 05:50:31.887 Debug I] [{at(s):%a %b %e %H:%M:%S %Y}] {t}\n" for s, t in said),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_one_servicing_is_one_window_in_every_form(form: str) -> None:
    told = tell([facts_of_log(FORMS[form](ALL), "log", "log.txt")])["log"]["eth0"]
    assert told["path"] == "vf"
    assert told["boot_changes"] == 2
    assert len(told["windows"]) == 1
    window = told["windows"][0]
    assert window["duration_s"] == pytest.approx(65.356, abs=1.0)
    assert window["start_s"] == pytest.approx(8160.912, abs=1.0), (
        "seconds of the log: since the start, or its first line"
    )


def test_the_form_for_people_too() -> None:
    """Its dates have no seconds, so a window is known to a minute where each end begins one."""
    told = tell([facts_of_log(human(ALL), "log", "log.txt")])["log"]["eth0"]
    assert [told["path"], told["boot_changes"], len(told["windows"])] == ["vf", 2, 1]
    assert told["windows"][0]["duration_s"] == pytest.approx(65.356, abs=60)


def test_an_excerpt_begins_after_the_start() -> None:
    """What syslog has of a day: its first minutes are none of the machine's."""
    told = tell(
        [facts_of_log(FORMS["journal, short"](((8160.0, "sd 0:0:0:0: ready"), *TAKEN, *RETURNED)), "log", "log.txt")]
    )
    assert len(told["log"]["eth0"]["windows"]) == 1


def test_a_selection_of_path_changes_alone_is_enough() -> None:
    """grep 'Data path': nothing says whether the VF went, and after the start it hardly is anything else."""
    lines = tuple(line for line in ALL if "Data path" in line[1])
    told = tell([facts_of_log(FORMS["dmesg"](lines), "log", "log.txt")])["log"]["eth0"]
    assert [round(w["duration_s"], 3) for w in told["windows"]] == [65.356]


def test_a_link_that_goes_down_is_no_revocation() -> None:
    """The path leaves the VF, and the VF stays: hv_netvsc switches whenever the VF's link goes down."""
    lines = (*BOOT, (900.0, TAKEN[0][1]), (905.0, BOOT[-1][1]))
    told = tell([facts_of_log(FORMS["dmesg"](lines), "log", "log.txt")])["log"]["eth0"]
    assert (told["windows"], len(told["changes"])) == ([], 1)


def test_unloading_the_driver_by_hand_is_no_revocation() -> None:
    lines = (
        *BOOT,
        (900.0, "hv_vmbus: unregistering driver hv_netvsc"),
        *guests.later(TAKEN, -7260),
        *guests.later(RETURNED, -7300),
    )
    told = tell([facts_of_log(FORMS["dmesg"](lines), "log", "log.txt")])["log"]["eth0"]
    assert (told["windows"], told["changes"], told["path"]) == ([], [], "vf")


def test_a_machine_that_restarts_begins_anew() -> None:
    """A serial console shows several starts: what was open before is over, and each start has its own changes."""
    lines = (*ALL[:1], *BOOT, *TAKEN)
    text = FORMS["serial console"](lines) + FORMS["serial console"](ALL[:1] + BOOT)
    told = tell([facts_of_log(text, "log", "log.txt")])["log"]["eth0"]
    assert (told["path"], told["windows"]) == ("vf", [])


def test_a_vf_that_never_came_back_is_told() -> None:
    record = facts_of_log(FORMS["dmesg"]((*BOOT, *TAKEN)), "log", "log.txt")
    found = {f.code: f for f in judge_log(record, spec_of_size(""))}
    assert found["net/vf-lost"].verdict is Verdict.WARN
    assert "8160.912 s" in found["net/vf-lost"].message
    assert any("Data path switched from VF" in e.value for e in found["net/vf-lost"].evidence)


@pytest.mark.parametrize("text", ["", "\n\n", "not a log\n", "\x00\x01\x02" * 50, "{}\n[]\n", "[ 1.2", "5;x\n<9>[\n"])
def test_what_is_no_log_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"log\.txt holds no line of a kernel log"):
        facts_of_log(text, "log", "log.txt")


def test_a_log_without_any_nic_is_never_a_pass() -> None:
    record = facts_of_log("[    0.000000] Linux version 6.8.0\n[    1.000000] hello\n", "log", "log.txt")
    assert aggregate(f.verdict for f in judge_log(record, spec_of_size(""))) is Verdict.SKIP


@pytest.mark.parametrize("junk", ["\udcff\udcfe", "A" * 100_000, "[99999999999999999999.5] eth0", "\x1b]0;title\x07"])
def test_junk_between_the_lines_changes_nothing(junk: str) -> None:
    text = FORMS["dmesg"](ALL)
    lines = text.split("\n")
    mixed = "\n".join(part for line in lines for part in (line, junk))
    assert tell([facts_of_log(mixed, "n", "f")]) == tell([facts_of_log(text, "n", "f")])
