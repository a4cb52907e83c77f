"""What holds for any lines: every byte is in exactly one record, wherever reading stopped and went on."""

from __future__ import annotations

import gzip
import io
import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairlead.logs.eventtime import KINDS, Clock, event_ns
from fairlead.logs.format import formats
from fairlead.logs.parse import MAX_LINE, Context, Raw, Record, records
from fairlead.logs.reading import lines

NOW = 1_767_225_600 * 10**9
CLOCK = Clock(written_ns=NOW, now_ns=NOW, boot_ns=NOW)
SAMPLES = [line.encode() for form in formats().values() for sample in form.sample for line in sample.line.split("\n")]
PIECES = st.one_of(st.sampled_from(SAMPLES), st.binary(max_size=60), st.text(max_size=40).map(str.encode))
LINES = st.lists(st.one_of(PIECES, st.tuples(PIECES, PIECES).map(b"".join)), max_size=40).map(b"\n".join)
FORMATS = st.sampled_from(sorted(formats()))


def read(data: bytes, name: str, start: int = 0, last_ns: int = 0) -> list[Record]:
    head = data.partition(b"\n")[0].decode("utf-8", "replace")
    context = Context(CLOCK, "n1", head, last_ns)
    return list(records(lines(io.BytesIO(data), start, [], whole=True), formats()[name], context))


@given(LINES, FORMATS)
def test_every_line_that_says_something_is_in_one_record(data, name):
    found = read(data, name)
    said = [line.decode("utf-8", "backslashreplace").rstrip("\r") for line in data.split(b"\n")]
    kept = [line for record in found for line in record.raw.split("\n")]
    if not formats()[name].hide:
        assert [line for line in kept if line.strip()] == [line for line in said if line.strip()]
    for one, two in itertools.pairwise(found):
        assert one.offset < one.end <= two.offset
    for record in found:
        assert record.time_ns > 0
        assert record.time_from in {"line", "before", "file"}
        assert record.pid is None or 0 <= record.pid < 1 << 63


@given(LINES, FORMATS, st.data())
def test_reading_that_stopped_behind_any_record_goes_on_as_if_it_had_not(data, name, draw):
    whole = read(data, name)
    if not whole:
        return
    num = draw.draw(st.integers(0, len(whole) - 1))
    dated = [record.time_ns for record in whole[: num + 1] if record.time_from != "file"]
    later = read(data, name, whole[num].end, dated[-1] if dated else 0)
    assert [*whole[: num + 1], *later] == whole


@given(st.lists(st.binary(max_size=30), max_size=20), st.booleans(), st.booleans())
def test_lines_and_their_places_are_those_of_the_file(parts, whole, packed):
    data = b"\n".join(parts)
    file = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data))) if packed else io.BufferedReader(io.BytesIO(data))
    found = list(lines(file, 0, [], whole=whole))
    assert [data[raw.offset : raw.end].removesuffix(b"\n") for raw in found] == [raw.data for raw in found]
    last = data.split(b"\n")[-1]
    assert b"".join(data[raw.offset : raw.end] for raw in found) == (data if whole else data.removesuffix(last))


@given(st.integers(0, 3 << 20), st.integers(0, 50))
def test_a_long_line_is_cut_and_says_by_how_much(long, short):
    data = b"x" * long + b"\n" + b"y" * short + b"\n"
    first, second = lines(io.BytesIO(data), 0, [], whole=True)
    assert (len(first.data) + first.cut, first.end) == (long, long + 1)
    assert len(first.data) <= MAX_LINE
    assert second == Raw(long + 1, long + short + 2, b"y" * short)


@given(st.sampled_from(sorted(KINDS)), st.text(max_size=40))
def test_no_text_is_a_time_that_cannot_be(kind, text):
    found = event_ns(kind, text, CLOCK)
    assert found is None or 0 < found <= NOW + 86_400 * 10**9
