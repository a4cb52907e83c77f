"""One meaning, two bodies: what the store's engine answers is what the rows themselves answer."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.logs.kql.sql.text import named, quoted
from support.depth import cases
from support.kql_engine import Both

pytestmark = pytest.mark.requires("chdb")


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    made = Both()
    yield made
    made.close()


IN_ENGINE = [
    "Syslog | count",
    'Syslog | where RawData has "xid" | count',
    'Syslog | where RawData has "xi" | count',
    'Syslog | where RawData has "größe" | count',
    'Syslog | where RawData has_cs "Link" and RawData !has "xid" | count',
    'Syslog | where RawData has "carrier-lost" | count',
    'Syslog | where RawData has "0000:1a" | count',
    'Syslog | where RawData hasprefix "carr" or RawData hassuffix "Core" | count',
    'Syslog | where RawData contains "äö" | count',
    'Syslog | where RawData !contains_cs "line" | project RawData',
    'Syslog | where RawData startswith "nv" and RawData endswith "bus" | count',
    'Syslog | where RawData endswith_cs "BUS" | count',
    'Syslog | where RawData has_any ("xid", "down") | count',
    'Syslog | where RawData has_all ("xid", "bus") | count',
    'Syslog | where RawData == "" | count',
    'Syslog | where RawData =~ "" | count',
    "Syslog | where isempty(RawData) | count",
    "Syslog | where isnull(JobId) | count",
    "Syslog | where isnotempty(Level) | count",
    "Syslog | where JobId == 4 | project JobId",
    "Syslog | where JobId != 4 | count",
    "Syslog | where not(JobId == 4) | count",
    "Syslog | where not(JobId > 4) | count",
    "Syslog | where JobId in (1, 2, 4) | count",
    "Syslog | where JobId !in (1, 2, 4) | count",
    'Syslog | where Level in~ ("0") | count',
    "Syslog | where JobId between (10 .. 20) | count",
    "Syslog | where JobId !between (10 .. 20) | count",
    "Syslog | where TimeGenerated > datetime(2026-01-01 02:00) | count",
    "Syslog | where TimeGenerated between (datetime(2026-01-01) .. 1h) | count",
    "Syslog | where Took > 3.5 and Num < 100 | count",
    r"Syslog | where RawData matches regex @'^line.\d+' | count",
    r"Syslog | where RawData matches regex @'[0-9]+\\x$' | count",
    "Syslog | summarize count() by bin(TimeGenerated, 1h)",
    "Syslog | summarize n = count(), max(Num), min(JobId), dcount(Computer), avg(Num), sum(JobId) by Computer",
    "Syslog | summarize countif(RawData has 'xid'), max(RawData), min(TimeGenerated)",
    "Syslog | where false | summarize count(), max(Num), avg(Num), sum(Num), max(RawData)",
    "Syslog | where Num > 1000 | summarize count() by Computer",
    "Syslog | distinct Computer, Level",
    "Syslog | top 5 by TimeGenerated desc | project TimeGenerated, Computer",
    "Syslog | sort by JobId asc, Num desc | project JobId, Num | take 20",
    "Syslog | sort by Level desc, Num asc | project Level",
    "Syslog | extend twice = Num * 2 - 1 | where twice > 100 | project twice, RawData | count",
    "Syslog | project a = strlen(RawData), b = tolower(RawData), c = strcat(Computer, '-', RawData)",
    r"Syslog | project x = extract(@'Xid .*: (\d+)', 1, RawData)",
    "Syslog | project bin(Num, 7), bin(JobId, 10)",
    "Syslog | project-away RawData | project-rename n = Num | where n < 3",
    "Syslog | take 10 | where Num < 5 | count",
    "union withsource=t Syslog, (Syslog | where Num < 5) | summarize count() by t",
    "union (Syslog | project Num), (Syslog | where Num < 9 | project Num, X = Computer) | summarize count() by X",
    "Syslog | summarize count() by $table",
    "union Syslog, (Syslog | where Num < 9) | summarize count() by $table",
    "union Syslog, (Syslog | where Num < 9) | where $table == 'Syslog' and Num < 3 | project-away RawData",
    "union Syslog, (Syslog | where Num < 9) | where $table == 'Syslog' and Num < 3",
    "Syslog | summarize n = count() by Computer | where n > 3 | sort by Computer asc | summarize sum(n)",
    'search "carrier" | count',
    "Syslog | where Num == toscalar(Syslog | summarize max(Num))",
    "Syslog | where Computer in ((Syslog | where Num < 2 | project Computer)) | count",
]
HERE_TOO = [
    "Syslog | where Level == tostring(Num % 2) | count",
    "Syslog | summarize make_set(Computer), arg_max(TimeGenerated, *), percentile(Num, 50) by Ok",
    "Syslog | parse RawData with * 'Xid (' bus '): ' xid:int ',' rest | summarize count() by bus, xid",
    "let bad = Syslog | where RawData has 'xid'; Syslog | join kind=inner bad on Computer | count",
    "Syslog | make-series n = count() on TimeGenerated step 1h by Computer",
    "Syslog | summarize s = sum(Took) by Computer | sort by Computer asc",
    "Syslog | sort by Took desc | take 3",
    "Syslog | mv-expand w = split(RawData, ' ') to typeof(string) | summarize count() by w",
    "Syslog | getschema",
]


@pytest.mark.parametrize("query", IN_ENGINE)
def test_all_of_it_in_the_engine(both: Both, query: str) -> None:
    both.ask(query)
    assert both.is_whole(query)


@pytest.mark.parametrize("query", HERE_TOO)
def test_part_of_it_here(both: Both, query: str) -> None:
    both.ask(query)
    assert not both.is_whole(query)


def test_an_index_is_used_for_a_time_filter(both: Both) -> None:
    """The column stands bare in the condition, so that the engine can skip parts by its key."""
    _, sql = both.ask("Syslog | where TimeGenerated > datetime(2026-01-01 02:00) | count")
    plan = both.session.query(f"EXPLAIN indexes = 1 {sql}", "TSV").bytes().decode()
    assert "PrimaryKey" in plan
    assert "TimeGenerated" in plan.split("PrimaryKey", 1)[1]


HOSTILE = [
    "' OR 1=1 --", "\\' OR 1=1 --", "'; DROP TABLE Syslog; --", "a\\", "\\\\'", "`", "\x00", "\n'\r", "\x1b[2J",
    "{x:String}", "%s %d", "$$", "*/ /*", "\u2019 ʼ ＇", "😀'", "--",
    "');SELECT sleep(3)", "\\x27", "\\u0027", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_hostile_text_stays_a_text(both: Both, text: str) -> None:
    literal = "'" + "".join(f"\\U{ord(char):08x}" for char in text) + "'"
    rows, _ = both.ask(f"Syslog | where RawData == {literal} or Computer contains {literal} | count")
    assert rows == [(0,)]
    assert both.session.query("SELECT count() FROM Syslog", "TSV").bytes() == b"400\n"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=cases(150))
def test_a_text_comes_back_as_it_was(both: Both, text: str) -> None:
    found = both.session.query(f"SELECT base64Encode({quoted(text)}) AS {named(text or 'x')}", "TSV").bytes().decode()
    assert base64.b64decode(found).decode() == text


@given(st.text(max_size=60))
def test_a_literal_is_one_literal(text: str) -> None:
    """Between its quotes stand only plain characters and escapes of bytes: nothing in it can end it."""
    assert re.fullmatch(r"'(?:[ -&(-\[\]-~]|\\x[0-9A-F]{2})*'", quoted(text))
    assert re.fullmatch(r"`[^`\\]*(?:\\x[0-9A-F]+[^`\\]*)*`", named(text))
