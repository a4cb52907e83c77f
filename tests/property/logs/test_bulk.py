"""What the engine reads from plain lines is what `parse.records` reads, row by row: samples, changed at random."""

from __future__ import annotations

import datetime as dt
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.logs import bulk
from fairlead.logs.eventtime import Clock
from fairlead.logs.format import formats
from fairlead.logs.parse import Context, Raw, records
from support.depth import cases

pytest.importorskip("chdb", reason="needs chdb: pip install 'fairlead[logs]'")

NOW = int(dt.datetime(2026, 3, 2, 11, tzinfo=dt.UTC).timestamp()) * 10**9
CLOCK = Clock(written_ns=NOW, now_ns=NOW)
FORMATS = sorted(name for name, form in formats().items() if bulk.can(form, CLOCK))
PLACE = bulk.Place("/v/log", "t", 7, "node-of-file", 5000, "1700000000.000")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from chdb.session import Session

    made = Session(str(tmp_path_factory.mktemp("bulk")))
    yield made
    made.close()


def by_engine(engine, block, form, clock=CLOCK):
    """The rows, or None where it is not plain."""
    number = bulk.form_of(block, form)
    if number is None:
        return None
    with os.fdopen(os.memfd_create("block"), "wb") as file:
        file.write(block)
        file.flush()
        source = f"file('/proc/self/fd/{file.fileno()}', 'RawBLOB', 's String')"
        sql = bulk.statement(form, number, clock, PLACE, source)
        names = ", ".join(f"c{n}" for n in range(1, 17))
        try:
            said = engine.query(
                f"WITH t({names}) AS ({sql}) "
                "SELECT toUnixTimestamp64Nano(c1), c2, c3, c5, c6, c7, c8, c9, c15, c16 FROM t "
                "FORMAT JSONCompactEachRow SETTINGS output_format_json_quote_64bit_integers = 0"
            )
        except RuntimeError as error:
            if bulk.NOT_PLAIN in str(error):
                return None
            raise
    return [tuple(msgspec.json.decode(line)) for line in str(said).splitlines()]


def by_python(block, form, clock=CLOCK):
    at, raws = PLACE.offset, []
    for line in block.split(b"\n")[:-1]:
        raws.append(Raw(at, at + len(line) + 1, line))
        at += len(line) + 1
    return [
        (r.time_ns, r.raw, r.node, r.level, r.component, r.pid, r.job, r.fields, r.offset, r.end)
        for r in records(raws, form, Context(clock, PLACE.node, "", 0))
    ]


def samples(form):
    return [each.line for each in form.sample if "\n" not in each.line]


@pytest.mark.parametrize("name", FORMATS)
def test_samples(engine, name):
    form = formats()[name]
    compared = 0
    for line in samples(form):
        block = (line + "\n").encode() * 3
        if (rows := by_engine(engine, block, form)) is not None:
            assert rows == by_python(block, form)
            compared += 1
    timed = [line for line in form.lines if line.time in {"iso", "bsd"}]
    assert compared or not timed, "no sample of this format is ever plain"


@st.composite
def blocks(draw):
    form = formats()[draw(st.sampled_from(FORMATS))]
    line = draw(st.sampled_from(samples(form)))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        text = line
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, min(len(text) - 1, 60)))
            new = draw(
                st.sampled_from(["0", "1", "2", "3", "9", " ", ":", "-", "T", ".", ",", "[", "]", "x", "", "Z", "+"])
            )
            text = text[:at] + new + text[at + 1 :]
        made.append(
            text + draw(st.sampled_from(["", " JobId=12 ok", " job_77 ", " NVRM: Xid (PCI:0000:1a:00): 79, x", "'\\"]))
        )
    return form, "".join(f"{text}\n" for text in made).encode()


@given(blocks())
@settings(max_examples=cases(150), deadline=None)
def test_changed_lines(engine, drawn):
    form, block = drawn
    rows = by_engine(engine, block, form)
    if rows is not None:
        assert rows == by_python(block, form)


@pytest.mark.parametrize(
    "day", ["Feb 28", "Mar  2", "Mar  3", "Mar  4", "Dec 31", "Apr 30", "Apr 31", "Feb 29", "Jan  1"]
)
def test_years_that_are_not_written(engine, day):
    form = formats()["syslog"]
    block = f"{day} 10:59:59 gpu05 kernel: hello\n".encode() * 2
    rows = by_engine(engine, block, form)
    if day in {"Feb 29", "Apr 31"}:
        assert rows is None
    else:
        assert rows == by_python(block, form)


def test_what_is_not_plain():
    form = formats()["syslog"]
    line = b"Mar  2 10:59:59 gpu05 kernel: hello\n"
    assert bulk.form_of(line, form) == 0
    for odd in (line + b"\n", b" " + line, line + b"\tgoes on\n", line[:-1], "é".encode() + line, b"\x1b" + line,
                line[:-1] + b"x" * 5000 + b"\n", b"no form\n" + line):  # fmt: skip
        assert bulk.form_of(odd, form) is None, odd
    assert bulk.form_of(b"2025-07-16 02:36:31,965 INFO a\nTraceback (most\n", formats()["jetpack"]) is None


@pytest.mark.parametrize("odd", [b"\n", b" Mar  2 10:59:59 gpu05 kernel: x\n", b"\tgoes on\n", b"x" * 5000 + b"\n"])
def test_what_is_odd_far_into_a_block_is_found_by_the_engine(engine, odd):
    form = formats()["syslog"]
    line = b"Mar  2 10:59:59 gpu05 kernel: hello\n"
    block = line * 2000 + (line[:-1] + odd if len(odd) > 1000 else odd) + line
    assert bulk.form_of(block, form) == 0, "it is behind what is looked at before"
    assert by_engine(engine, block, form) is None
    assert len(by_engine(engine, line * 2001, form)) == 2001
