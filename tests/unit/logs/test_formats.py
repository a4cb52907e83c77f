"""Every format reads its own samples, which are forms that others documented; each names where."""

from __future__ import annotations

import datetime as dt
import re
import time
from pathlib import Path

import pytest

from fairlead.logs.eventtime import Clock, event_ns
from fairlead.logs.format import Format, format_of, formats, read_format
from fairlead.logs.parse import LOOKED, MAX_LINE, Context, Raw, Record, records

NS = 10**9
NEW_YEAR = 1_767_225_600 * NS  # 2026-01-01T00:00:00Z
CLOCK = Clock(written_ns=NEW_YEAR, now_ns=NEW_YEAR + NS, boot_ns=NEW_YEAR)
SAMPLES = [
    pytest.param(form, sample, id=f"{name}-{num}")
    for name, form in formats().items()
    for num, sample in enumerate(form.sample)
]


def raws(text: str) -> list[Raw]:
    found, offset = [], 0
    for line in text.encode("utf-8", "surrogatepass").split(b"\n"):
        found.append(Raw(offset, offset + len(line) + 1, line))
        offset += len(line) + 1
    return found


def read(form: Format, text: str, clock: Clock = CLOCK, **more: object) -> list[Record]:
    return list(records(raws(text), form, Context(clock, head=text.partition("\n")[0], **more)))


def instant(text: str) -> int:
    whole, _, part = text.rstrip("Z").partition(".")
    at = dt.datetime.fromisoformat(whole + "+00:00")
    return int(at.timestamp()) * NS + int(part.ljust(9, "0") or 0)


@pytest.mark.parametrize(("form", "sample"), SAMPLES)
def test_a_format_reads_its_samples(form: Format, sample: object) -> None:
    found = read(form, sample.line)
    record = found[-1]
    said = {"node": record.node, "level": record.level, "component": record.component, "pid": record.pid}
    said |= {"job": record.job, "raw": record.raw} | record.fields
    for name, value in sample.is_.items():
        if name == "time":
            assert (record.time_ns, record.time_from) == (instant(value), "line")
        else:
            assert said[name] == value
    if "\n" in sample.line and not form.columns:
        assert [record.raw] == [sample.line]


def test_every_source_of_the_ten_published_rules_has_a_format_of_its_table() -> None:
    stems = "slurmctld slurmd slurmdb slurmrestd slurmjobs syslog dmesg jetpack jetpackd healthagent"
    assert {f"{stem}_raw_CL" for stem in stems.split()} <= {form.table for form in formats().values()}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/var/log/slurmctld/slurmctld.log", "slurmctld"), ("/var/log/slurmd/slurmd.log.2.gz", "slurmd"),
        ("/var/log/slurmctld/slurmdbd.log", "slurmdbd"), ("/var/log/slurm/slurmrestd.log", "slurmrestd"),
        ("/shared/slurm-logs/job_7.err", "job"), ("/shared/slurm-logs/job_7.env", "env"),
        ("/var/log/syslog.1", "syslog"), ("/var/log/dmesg", "dmesg"),
        ("/opt/cycle/jetpack/logs/jetpack.log", "jetpack"), ("/opt/cycle/jetpack/logs/jetpackd.log", "jetpackd"),
        ("/opt/healthagent/healthagent.log", "healthagent"),
    ],
)  # fmt: skip
def test_a_file_is_known_by_the_place_where_it_is_published(path: str, name: str) -> None:
    assert format_of(Path(path), []).name == name


def test_the_environment_of_a_job_is_kept_without_its_secrets() -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    found = read(formats()["env"], f"WANDB_API_KEY={secret}\nNCCL_DEBUG=INFO\nDB_PASSWORD=tr0ub4dor and\n3 more\nA=1")
    assert found[1].raw == "NCCL_DEBUG=INFO"
    assert not [
        text for text in (secret, "tr0ub4dor", " and", "3 more") if any(text in repr(record) for record in found)
    ]


def test_a_file_of_any_name_is_known_by_its_lines() -> None:
    journal = formats()["journald"].sample[0].line
    assert format_of(Path("/x/dump"), [journal]).name == "journald"
    assert format_of(Path("/x/dump"), ["no form", "at all"]).name == "text"


def test_a_line_without_a_time_has_that_of_the_line_before() -> None:
    first = "[2025-09-08T21:11:35.869] debug:  one"
    found = read(formats()["slurmctld"], f"{first}\nnothing\n[2099-01-01T00:00:00.000] error: later than now")
    assert [record.time_from for record in found] == ["line", "before", "before"]
    assert len({record.time_ns for record in found}) == 1
    assert read(formats()["slurmctld"], "nothing")[0].time_ns == NEW_YEAR


def test_zones_years_and_leap_days() -> None:
    from zoneinfo import ZoneInfo

    berlin = Clock(zone=ZoneInfo("Europe/Berlin"), written_ns=NEW_YEAR, now_ns=NEW_YEAR)
    assert event_ns("iso", "2025-07-01T12:00:00", berlin) == instant("2025-07-01T10:00:00Z")
    assert event_ns("iso", "2025-07-01T12:00:00+00:00", berlin) == instant("2025-07-01T12:00:00Z")
    assert event_ns("bsd", "Jan  1 00:00:00", CLOCK) == NEW_YEAR
    assert event_ns("bsd", "Jan  3 00:00:00", CLOCK) == instant("2025-01-03T00:00:00Z")
    assert event_ns("bsd", "Feb 29 12:00:00", CLOCK) == instant("2024-02-29T12:00:00Z")
    assert event_ns("bsd", "Feb 30 12:00:00", CLOCK) is None
    assert event_ns("iso", "1970-01-01T00:00:09", CLOCK) is None
    assert event_ns("boot", "5.1", Clock(now_ns=NEW_YEAR)) is None


def test_lines_of_a_traceback_are_one_record_and_those_of_other_ranks_are_not() -> None:
    text = 'step 1\nTraceback (most recent call last):\n  File "a.py", line 1\nValueError: no\nstep 2\n7: own'
    assert [record.raw for record in read(formats()["job"], text)] == [
        "step 1", 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no', "step 2", "7: own",
    ]  # fmt: skip
    mixed = "1: Traceback (most recent call last):\n2: step\n1:   File"
    assert len(read(formats()["job"], mixed)) == 3


@pytest.mark.parametrize("name", sorted(formats()))
@pytest.mark.parametrize(
    "line",
    [
        b"\x00" * 2000, bytes(range(256)).replace(b"\n", b"") * 20, b"[" * MAX_LINE, b" " * MAX_LINE + b"x",
        b"2025-09-08T" + b"1" * MAX_LINE, b"Dec  6 19:25:33 " + b"a" * MAX_LINE, b"JobId=" + b"9" * 5000,
        b'{"__REALTIME_TIMESTAMP":' + b"[" * 100_000, b"<9999999999>1 ", b"JobID|" + b"|" * 5000,
        b"\x1b[2J'; DROP TABLE Logs; --", b"slurmstepd: error: *** " + b"CANCELLED AT " * 50_000,
        b"job" * 100_000, b"job:" + b" " * 100_000,
    ],
    ids=lambda line: re.sub(r"\W", ".", repr(line[:12])),
)  # fmt: skip
def test_a_hostile_line_is_one_record_and_soon(name: str, line: bytes) -> None:
    started = time.process_time()
    found = list(records([Raw(0, len(line) + 1, line)], formats()[name], Context(CLOCK, head="JobID|State")))
    assert time.process_time() - started < 2, "the first characters alone are looked at"
    assert [(record.offset, record.end) for record in found] == [(0, len(line) + 1)]
    found[0].raw.encode("utf-8")
    assert all(len(value) <= LOOKED for value in found[0].fields.values())


def test_a_new_source_is_fifteen_lines() -> None:
    text = """about = "a"
source = "b"
table = "mine_CL"
files = ["*mine*"]
lines = [{ time = "iso", pattern = '(?P<time>\\S+) (?P<Shelf>\\w+)' }]
[[sample]]
line = "2025-09-08T21:12:11 top"
is = { Shelf = "top" }"""
    form = read_format(text, "mine")
    assert read(form, form.sample[0].line)[0].fields == {"Shelf": "top"}
    with pytest.raises(ValueError, match="form of time"):
        read_format(text.replace('"iso"', '"isso"'), "mine")


def test_the_name_of_a_folder_above_decides_nothing() -> None:
    assert format_of(Path("/x/prolog-fails/var/log/slurmctld/slurmctld.log"), []).name == "slurmctld"
    assert format_of(Path("/x/dmesg.d/syslog"), []).name == "syslog"
