"""What cannot be answered is refused, with its place and what comes nearest; nothing is guessed."""

from __future__ import annotations

import pytest

from fairlead.errors import Exit, QueryError
from fairlead.logs.kql import Limits, answer


def problem(query: str, **more: object) -> tuple[str, str, str, str]:
    """Code, message, what the caret stands under, hint."""
    with pytest.raises(QueryError) as raised:
        answer(query, **more)  # type: ignore[arg-type]
    assert raised.value.exit is Exit.USAGE
    found = raised.value.problems[0]
    under = found.source[found.column - 1 : found.column - 1 + found.length] if found.line else ""
    return found.code, found.message, under, found.hint


REFUSED = [
    ("print 1 |", "kql/syntax", "operator behind", "", ""),
    ("print (1", "kql/syntax", "expected `)`", "", ""),
    ("print 'a", "kql/syntax", "has no end", "'", ""),
    ("print a = dynamic([1]) | mv-expand a to typeof()", "kql/syntax", "is no type", ")", ""),
    ("datatable(a:long)[1] | wher a", "kql/unknown-name", "no operator `wher`", "wher", "where"),
    ("datatable(abc:long)[1] | where abd > 1", "kql/unknown-name", "no column `abd`", "abd", "abc"),
    ("print strlne('a')", "kql/unknown-name", "no function `strlne`", "strlne", "strlen"),
    ("Syslog | count", "kql/unknown-name", "no table `Syslog`", "Syslog", "store"),
    ("print 'a' + 'b'", "kql/types", "does not take string and string", "'a' + 'b'", "strcat"),
    ("print 1 == 'a'", "kql/types", "does not take long and string", "1 == 'a'", "tolong"),
    ("datatable(a:long)[1] | where a", "kql/types", "a bool is needed", "a", ""),
    ("print sqrt('a')", "kql/types", "takes number", "'a'", "todouble"),
    ("print substring('a')", "kql/types", "takes 2 to 3 arguments", "substring('a')", ""),
    ("datatable(a:long)[1] | extend b = sum(a)", "kql/types", "looks at many rows", "sum(a)", "summarize"),
    ("datatable(a:long)[1] | extend b = prev(a)", "kql/types", "in an order", "", "serialize"),
    ("datatable(a:long)[1,2,3][4]", "kql/syntax", "", "", ""),
    ("datatable(a:long,b:long)[1,2,3]", "kql/syntax", "3 values do not fill rows of 2", "", ""),
    ("datatable(a:long)[1] | facet by a", "kql/unsupported", "`facet` is not supported", "facet", "summarize"),
    ("print series_decompose(dynamic([1]))", "kql/unsupported", "not supported", "series_decompose(dynamic([1]))", ""),
    ("set notruncation; print 1", "kql/unsupported", "`set`", "set notruncation", ""),
    ("cluster('x').database('y').T | count", "kql/unsupported", "one store", "", ""),
    (".show tables", "kql/unsupported", "management", ".", ""),
    ("print 'a' matches regex '(?=b)'", "kql/types", "looks around", "", ""),
    (r"print 'a' matches regex '(a)\\1'", "kql/types", "refers back", "", ""),
    ("print 'a' matches regex '('", "kql/types", "no regular expression", "", ""),
    ("print format_datetime(now(), 'Q')", "kql/types", "no such form", "'Q'", "yyyy"),
    ("print a=1 | join (print a=1) on $left.a > $right.a", "kql/unsupported", "equality", "", "where"),
    ("datatable(a:long)[1] | join kind=outer (datatable(a:long)[1]) on a", "kql/types", "no kind of join", "", "outer"),
    ("datatable(a:long)[1] | render sankey", "kql/unsupported", "sankey", "", ""),
    ("print datetime(2020-13-01)", "kql/syntax", "is no datetime", "datetime(2020-13-01)", ""),
    ("print 99999999999999999999", "kql/syntax", "does not fit", "", "decimal"),
    ("print 1e999d", "kql/syntax", "does not fit", "1e999d", ""),
    ("print " + "9" * 5000, "kql/syntax", "does not fit", "9" * 5000, ""),
    ("print " + "9" * 5000 + "d", "kql/syntax", "does not fit", "9" * 5000 + "d", ""),
    ("let f = (x:long) { x + 1 }; print f('a')", "kql/types", "is a long", "'a'", "tolong"),
    ("print assert(1 == 2, 'no')", "kql/assert", "no", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("query", "code", "message", "under", "hint"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_refusal(query: str, code: str, message: str, under: str, hint: str) -> None:
    found = problem(query)
    assert found[0].startswith(code or "kql/")
    assert message in found[1]
    assert not under or found[2] == under
    assert hint in found[3]


def test_the_caret_stands_under_the_word_on_its_line() -> None:
    with pytest.raises(QueryError) as raised:
        answer("datatable(a:long)[1]\n| where a > 0\n| project bb\n", name="asked.kql")
    assert str(raised.value).splitlines() == [
        "asked.kql:3: no column `bb`",
        "    3 | | project bb",
        "      |           ^^ known: a",
    ]


def test_nothing_is_read_before_all_of_it_is_bound() -> None:
    """A wrong name behind ten million rows is told at once."""
    assert problem("range x from 1 to 10000000000 step 1 | summarize n = count() by x | where m > 1")[2] == "m"


def test_rows_have_a_limit() -> None:
    code, message, _, hint = problem("range x from 1 to 100000 step 1 | sort by x", limits=Limits(rows=10_000))
    assert (code, "10,000 rows" in message, "where" in hint) == ("kql/limit", True, True)


def test_memory_has_a_limit() -> None:
    query = "range x from 1 to 10000000 step 1 | extend s = strrep('0123456789', 100) | sort by s"
    assert problem(query, limits=Limits(memory_bytes=400 << 20))[0] == "kql/limit"


def test_an_answer_has_a_limit_and_says_so() -> None:
    found = answer("range x from 1 to 100 step 1", limits=Limits(answer_rows=10))
    assert (len(found.rows), found.cut) == (10, True)


@pytest.mark.parametrize(
    "query", ["print " + "(" * 5000 + "1", "print " + "-" * 5000 + "1", "print dynamic(" + "[" * 5000]
)
def test_depth_has_a_limit(query: str) -> None:
    assert problem(query)[0] in {"kql/syntax", "kql/limit"}


def test_a_parameter_is_a_value_and_never_text() -> None:
    hostile = "x' or 1 == 1 | print 2 //"
    query = "declare query_parameters(who:string, num:long = 7); print a = who, b = num"
    assert answer(query, parameters={"who": hostile}).rows == [(hostile, 7)]
    assert problem(query)[0] == "kql/types"
    assert problem(query, parameters={"who": "", "num": "1; drop"})[0] == "kql/types"


NOTHING = [
    "totimespan('1e999d')", "totimespan('{long}d')", "totimespan('{long}')", "totimespan('{long}.10:00')",
    "timespan(1d) * 1e300", "tolong('{long}')", "todatetime(real(inf))", "unixtime_seconds_todatetime(real(inf))",
    "unixtime_nanoseconds_todatetime(real(nan))", "make_timespan(real(inf), 1, 1, 1)",
    "todecimal('1e999999999') * todecimal('1e999999999')", "bin(1e300, 1e-300)",
]  # fmt: skip


@pytest.mark.parametrize("said", NOTHING)
def test_what_no_number_holds_is_null(said: str) -> None:
    """Texts of a log come to functions: one of them ends no query."""
    query = "print isnull(" + said.replace("{long}", "9" * 5000) + ")"
    assert answer(query).rows == [(True,)]


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_many_digits_in_the_json_of_a_log_is_a_real(digits: int) -> None:
    assert answer(f"print toreal(parse_json('[{'9' * digits}]')[0])").rows == [(float("inf"),)]


def test_a_place_far_to_the_left_costs_nothing() -> None:
    assert answer("print round(5, -999999999)").rows == [(0,)]
