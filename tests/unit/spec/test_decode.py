"""Decoding any tree of Structs: every kind of fault, all of them at once, each with its place."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct, field

from fairlead.base.nodeset import NodeSet
from fairlead.errors import SpecError, UsageError
from fairlead.spec.decode import Decoded, decode_file, decode_text
from fairlead.spec.problems import MAX_PROBLEMS, Problems
from fairlead.spec.text import MAX_BYTES, MAX_PARTS
from support.depth import DEPTH


class Part(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern="^[a-z]+$", description="lower-case letters")]
    nodes: NodeSet
    size: Annotated[int, Meta(ge=1, lt=10)] = 3


class Whole(Struct, frozen=True, kw_only=True):
    schema: int
    parts: tuple[Part, ...] = field(default=(), name="part")
    mode: Literal["fast", "slow"] = "fast"
    rate: Annotated[float, Meta(gt=0, le=2.5)] = 1.0
    day: dt.date | None = None
    on: bool = False
    sizes: Annotated[tuple[int, ...], Meta(min_length=1)] = (1,)
    table: dict[str, float] = {}
    anything: Any = None
    title: Annotated[str, Meta(min_length=1, max_length=5)] = "t"
    one: Part | None = None


def decode(text: str, **options: Any) -> Decoded[Whole]:
    return decode_text(text, Whole, file="w.toml", **options)


def problems(text: str, **options: Any) -> list[tuple[str, int, int, str]]:
    with pytest.raises(SpecError) as caught:
        decode(text, **options)
    return [(p.code, p.line, p.column, p.message) for p in caught.value.problems]


def test_a_whole_file() -> None:
    text = """
schema = 1
mode = "slow"
rate = 2
day = 2027-01-31
on = true
sizes = [1, 2]
table = { a = 1, b = 2.5 }
anything = [1, "x"]
[[part]]
name = "a"
nodes = "n[1-2]"
[one]
name = "b"
nodes = ""
size = 9
"""
    part, one = Part(name="a", nodes=NodeSet("n[1-2]")), Part(name="b", nodes=NodeSet(""), size=9)
    wanted = Whole(
        schema=1,
        mode="slow",
        rate=2.0,
        day=dt.date(2027, 1, 31),
        on=True,
        sizes=(1, 2),
        table={"a": 1.0, "b": 2.5},
        anything=(1, "x"),
        parts=(part,),
        one=one,
    )
    decoded = decode(text)
    assert decoded.value == wanted
    assert isinstance(decoded.value.rate, float)
    assert decoded.places["part", 0, "nodes"].value.line == 12
    assert ("part", 0, "size") not in decoded.places


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("mode = 3", "spec/wrong-type", '`mode` must be one of "fast", "slow", not the number 3'),
        ('mode = "fats"', "spec/bad-choice", "`mode` cannot be 'fats'"),
        ("rate = true", "spec/wrong-type", "`rate` must be a number, not true"),
        ("rate = [1]", "spec/wrong-type", "`rate` must be a number, not a list"),
        ("rate = {}", "spec/wrong-type", "`rate` must be a number, not a table"),
        ("rate = 07:30:00", "spec/wrong-type", "`rate` must be a number, not a date or time"),
        ("rate = 0", "spec/out-of-range", "`rate` is 0; it must be more than 0"),
        ("rate = 2.6", "spec/out-of-range", "`rate` is 2.6; it must be at most 2.5"),
        ("rate = nan", "spec/out-of-range", "`rate` is nan; it must be a finite number"),
        ("rate = -inf", "spec/out-of-range", "`rate` is -inf; it must be a finite number"),
        ('day = "2027-01-31"', "spec/wrong-type", None),
        ("day = 2027-01-31T00:00:00", "spec/wrong-type", None),
        ("on = 1", "spec/wrong-type", "`on` must be true or false, not the number 1"),
        ("sizes = 1", "spec/wrong-type", "`sizes` must be a list, not the number 1"),
        ("sizes = []", "spec/out-of-range", "`sizes` must hold at least 1, not 0"),
        ("sizes = [1, 1.5]", "spec/wrong-type", "`sizes[1]` must be a whole number, not the number 1.5"),
        (f"sizes = [{2**63}]", "spec/out-of-range", "`sizes[0]` is beyond 64 bits"),
        ("table = { a = 'x' }", "spec/wrong-type", "`a` must be a number, not the text 'x'"),
        ("table = 3", "spec/wrong-type", "`table` must be a table, not the number 3"),
        ("title = ''", "spec/bad-text", "`title` must not be empty"),
        ("title = 'abcdef'", "spec/bad-text", "`title` is 6 characters long"),
        ('title = "a\\u0000"', "spec/bad-text", "`title` holds control characters"),
        ("title = 1.5", "spec/wrong-type", "`title` must be text in quotes, not the number 1.5"),
        ("one = 1", "spec/wrong-type", "`one` must be a table, not the number 1"),
        ("part = [1]", "spec/wrong-type", "`part[0]` must be a table, not the number 1"),
        ("planes = 1", "spec/unknown-key", "unknown key `planes`"),
        ("secret = 1", "spec/secret", "`secret` looks like a secret; this file holds none"),
        ("title = '?sig=abcdefghijklmnopqrstuvwxyz'", "spec/secret", "`title` holds a secret; this file holds none"),
        (
            "anything = '?sig=abcdefghijklmnopqrstuvwxyz'",
            "spec/secret",
            "`anything` holds a secret; this file holds none",
        ),
    ],
)
def test_one_fault(line: str, code: str, message: str | None) -> None:
    ((found_code, at, _, found),) = problems(f"schema = 1\n{line}\n")
    assert (found_code, at) == (code, 2)
    assert found == (message or found)


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        ("name = 'A'", "spec/bad-text", "`name` cannot be 'A'; it must be lower-case letters"),
        ('name = """a\n"""', "spec/bad-text", None),
        ("name = 'a'\nsize = 0", "spec/out-of-range", "`size` is 0; it must be at least 1"),
        ("name = 'a'\nsize = 10", "spec/out-of-range", "`size` is 10; it must be less than 10"),
        ("name = 'a'\nsize = true", "spec/wrong-type", "`size` must be a whole number, not true"),
        ("nmae = 'a'", "spec/unknown-key", "unknown key `nmae` in [[part]]"),
    ],
)
def test_one_fault_in_a_list_of_tables(lines: str, code: str, message: str | None) -> None:
    ((found_code, _, _, found),) = problems(f"schema = 1\n[[part]]\nnodes = 'n1'\n{lines}\n")
    assert found_code == code
    assert found == (message or found)


def test_node_sets_speak_for_themselves() -> None:
    with pytest.raises(SpecError) as caught:
        decode("schema = 1\n[[part]]\nname = 'a'\nnodes = 'n[2-1]'")
    (problem,) = caught.value.problems
    assert (problem.code, problem.line, problem.column, problem.length) == ("nodes/syntax", 4, 9, 8)
    assert problem.hint == "write names like h200-[000-127],login1"


def test_all_at_once_in_file_order() -> None:
    text = "on = 1\nmode = 'x'\n[[part]]\nsize = 0\nnodes = 3\n[[part]]\nzzz = 1\n[table]\na = 'x'\n"
    assert [(c, n) for c, n, _, _ in problems(text)] == [
        ("spec/wrong-type", 1),
        ("spec/bad-choice", 2),
        ("spec/missing-key", 3),
        ("spec/out-of-range", 4),
        ("spec/wrong-type", 5),
        ("spec/missing-key", 6),
        ("spec/missing-key", 6),
        ("spec/unknown-key", 7),
        ("spec/wrong-type", 9),
        ("spec/missing-key", 0),
    ]


def test_the_caret() -> None:
    with pytest.raises(SpecError) as caught:
        decode("schema = 1\n\trate   =  'x'  # no\n")
    assert str(caught.value) == (
        "w.toml:2: `rate` must be a number, not the text 'x'\n    2 |  rate   =  'x'  # no\n      |            ^^^"
    )


def test_a_misspelt_required_key_is_one_problem() -> None:
    assert [m for _, _, _, m in problems("shcema = 1")] == ["unknown key `shcema`"]


def test_a_table_where_a_list_of_tables_is_meant() -> None:
    with pytest.raises(SpecError) as caught:
        decode("schema = 1\n[part]\nname = 'a'")
    assert caught.value.problems[0].hint == "write [[part]] instead of [part]"


def test_empty_and_comments_only() -> None:
    for text in ("", "# nothing\n"):
        assert [(c, m) for c, _, _, m in problems(text)] == [("spec/empty", "w.toml is empty")]


def test_nesting_has_a_bound() -> None:
    long = "a key has more than 64 parts"
    assert problems("a" + ".a" * MAX_PARTS + " = 1") == [("spec/syntax", 1, 1, long)]
    assert problems("[" + "a." * MAX_PARTS + "a]") == [("spec/syntax", 1, 2, long)]
    assert problems("x = {" + "'a' . " * MAX_PARTS + "a = 1}") == [("spec/syntax", 1, 6, long)]
    assert problems("a" + ".a" * (MAX_PARTS - 1) + " = 1")[0][0] == "spec/unknown-key"


def test_unprintable_key_is_shown_escaped() -> None:
    ((_, _, _, message),) = problems('schema = 1\n"a\\u001bb" = 1')
    assert message == "unknown key `'a\\x1bb'`"


def no_two_parts(whole: Whole, report: Problems) -> None:
    if len(whole.parts) > 1:
        report(("part", 1), "test/two", "two parts", on="key")


def first_part_is_small(whole: Whole, report: Problems) -> None:
    if whole.parts[0].size > 5:
        report(("part", 0, "size"), "test/large", "large", hint="smaller", needs=[("mode",)])


def test_checks_see_the_value() -> None:
    text = "schema = 1\n[[part]]\nname='a'\nnodes='n1'\nsize=7\n[[part]]\nname='b'\nnodes='n2'\n"
    found = problems(text, checks=[no_two_parts, first_part_is_small])
    assert [(c, n) for c, n, _, _ in found] == [("test/large", 5), ("test/two", 6)]


def test_checks_see_the_default_of_what_was_refused() -> None:
    seen: list[Whole] = []
    problems("schema = 1\nrate = 'x'\nsizes = 3", checks=[lambda whole, _: seen.append(whole)])
    assert [(w.rate, w.sizes) for w in seen] == [(1.0, (1,))]


class Inner(Struct, frozen=True, kw_only=True):
    mode: Literal["fast", "slow"]
    nodes: NodeSet


class Outer(Struct, frozen=True, kw_only=True):
    inner: Inner
    day: dt.date
    many: tuple[Inner, ...]


def test_checks_see_harmless_values_where_nothing_was_written() -> None:
    seen: list[Outer] = []
    with pytest.raises(SpecError) as caught:
        decode_text("day = 1", Outer, file="o.toml", checks=[lambda outer, _: seen.append(outer)])
    assert [p.message for p in caught.value.problems] == [
        "`day` must be a date such as 2027-01-31, without quotes, not the number 1",
        "[inner] is missing",
        "`many` is missing",
    ]
    assert seen == [Outer(inner=Inner(mode="fast", nodes=NodeSet("")), day=dt.date.max, many=())]


def test_checks_are_silent_on_what_was_refused() -> None:
    assert [
        c
        for c, *_ in problems(
            "schema=1\nmode='x'\n[[part]]\nname='a'\nnodes='n1'\nsize=7", checks=[first_part_is_small]
        )
    ] == ["spec/bad-choice"]


def test_a_check_may_stumble_over_a_file_with_other_faults() -> None:
    assert [c for c, *_ in problems("schema = 'x'", checks=[first_part_is_small])] == ["spec/wrong-type"]


def test_a_check_may_not_stumble_over_a_good_file() -> None:
    with pytest.raises(IndexError):
        decode("schema = 1", checks=[first_part_is_small])


def test_warnings_stop_nobody() -> None:
    def warn(whole: Whole, report: Problems) -> None:
        report.warn(("mode",), "test/slow", "slow", hint="use fast")

    decoded = decode('schema = 1\nmode = "slow"', checks=[warn])
    (warning,) = decoded.warnings
    assert (warning.code, warning.line, warning.column) == ("test/slow", 2, 8)


class Even:
    def __init__(self, text: str) -> None:
        if len(text) % 2:
            raise UsageError("test/odd", "odd", hint="one more")


class Holder(Struct):
    value: Even


def test_a_class_that_refuses_by_itself() -> None:
    with pytest.raises(SpecError) as caught:
        decode_text("value = 'abc'", Holder, file="h.toml")
    assert (caught.value.problems[0].code, caught.value.problems[0].message) == ("test/odd", "`value` is wrong: odd")


def test_decode_file(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text("schema = 2")
    assert decode_file(path, Whole).value.schema == 2
    with pytest.raises(SpecError, match="there is no scenario"):
        decode_file(tmp_path / "none.toml", Whole, what="scenario")


# ---- a file that is made to be slow ----------------------------------------------------------------------------------

NUM = MAX_BYTES // (1 if DEPTH > 1 else 4) - 200
"""The largest file, or a quarter of it: the square of that would be minutes, too."""
SLOW = {
    "one dotted key": "a" + ".a" * (NUM // 2) + " = 1",
    "one header": "[" + "a." * (NUM // 2) + "a]",
    "a dotted key in a table": "x = {" + "a." * (NUM // 2) + "a = 1}",
    "quoted parts": '"a".' * (NUM // 4) + "a = 1",
    "a list on one line": "sizes = [" + "1," * (NUM // 2) + "]",
    "wrong items on one line": "schema = 1\nsizes = [" + "true," * (NUM // 5 - 4) + "]",
    "many wrong keys": "\n".join(f"k{i} = 1" for i in range(NUM // 12)),
    "wrong keys on one line": "one = {" + ",".join(f"k{i}=1" for i in range(NUM // 12)) + "}",
    "brackets": "x = " + "[" * (NUM // 2),
    "quotes": "x = " + '"' * (NUM - 4),
    "a long word": "a" * NUM,
    "dots": "." * NUM,
    "words and dots": "a.b." * 10 + "a" * NUM,
    "a long number": "x = " + "1" * NUM,
    "a long hexadecimal number": "schema = 0x" + "f" * NUM,
    "a long line": 'name = "' + "a" * NUM,
}


@pytest.mark.parametrize("what", SLOW)
def test_a_large_file_is_refused_in_time_that_grows_with_its_length(what: str) -> None:
    started = time.process_time()
    with pytest.raises(SpecError) as caught:
        decode(SLOW[what])
    assert time.process_time() - started < 20.0, "with its square it would be hours, or all memory"
    said = caught.value.problems
    assert len(said) <= MAX_PROBLEMS
    assert max(len(str(p)) for p in said) < 1500, "a line is cut to what stands around the problem"


def test_a_long_line_is_shown_around_the_problem() -> None:
    with pytest.raises(SpecError) as caught:
        decode("schema = 1 # " + "x" * 1000 + "\nunknown = 1 # " + "y" * 1000)
    (problem, *_) = [p for p in caught.value.problems if p.code == "spec/unknown-key"]
    assert problem.source[problem.column - 1 :].startswith("unknown")
    assert len(problem.source) == 200


def test_sets_of_nodes_have_a_bound_together() -> None:
    class Pools(Struct, forbid_unknown_fields=True):
        pools: tuple[NodeSet, ...] = ()

    text = "pools = [" + ",".join(f'"n{i}-[0-99999]"' for i in range(10_000)) + "]"
    started = time.process_time()
    with pytest.raises(SpecError) as caught:
        decode_text(text, Pools, file="f")
    assert time.process_time() - started < 20.0
    assert {p.code for p in caught.value.problems} == {"nodes/too-many"}
