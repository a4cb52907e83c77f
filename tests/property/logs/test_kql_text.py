"""Texts of queries: what is written is read back, and no text makes the reader do anything but answer or refuse."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import QueryError
from fairlead.logs.kql import Limits, answer
from fairlead.logs.kql.lexer import tokens
from fairlead.logs.kql.parser import Parser
from fairlead.logs.kql.problems import Refused
from fairlead.logs.kql.texts import json_text
from fairlead.logs.kql.times import MAX_DATETIME, datetime_text, parse_datetime, parse_timespan, timespan_text
from fairlead.logs.kql.tree import Binary, Call, Index, Literal, Member, Name, Node, Unary
from support.depth import cases

NAMES = st.sampled_from(["a", "b", "Computer", "x1", "_t"])
LITERALS = st.one_of(
    st.integers(0, 10**12).map(str),
    st.text(alphabet="ab'\"\\ \n|;é", max_size=6).map(
        lambda s: "'" + s.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    ),
    st.sampled_from(["true", "false", "1h", "1.5d", "10ms", "datetime(2020-01-01)", "long(null)", "dynamic([1])"]),
)
LEVELS = [
    ["or"],
    ["and"],
    ["==", "!="],
    ["<", ">", "<=", ">="],
    ["+", "-"],
    ["*", "/", "%"],
    ["has", "contains", "!startswith_cs"],
]


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from([op for level in LEVELS for op in level])
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        st.tuples(NAMES, st.lists(inner, max_size=3)).map(lambda t: f"{t[0]}({', '.join(t[1])})"),
        inner.map(lambda t: f"-({t})"),
        st.tuples(NAMES, inner).map(lambda t: f"{t[0]}[{t[1]}].m"),
    )


EXPRESSIONS = st.recursive(st.one_of(NAMES, LITERALS), _combined, max_leaves=12)


def written(node: Node) -> str:
    """A tree as text, with every parenthesis."""
    match node:
        case Literal(value=value, kind=kind):
            return f"<{kind}:{value!r}>"
        case Name(name=name):
            return name
        case Member(of=of, name=name):
            return f"{written(of)}.{name}"
        case Index(of=of, index=index):
            return f"{written(of)}[{written(index)}]"
        case Unary(op=op, of=of):
            return f"{op}({written(of)})"
        case Binary(op=op, left=left, right=right):
            return f"({written(left)}) {op} ({written(right)})"
        case Call(name=name, args=args):
            return f"{name}({', '.join(map(written, args))})"
        case _:
            raise AssertionError(node)


@given(EXPRESSIONS)
@settings(max_examples=cases(200))
def test_the_place_of_a_node_is_its_text(text: str) -> None:
    """What stands at the place of a node reads as that node, all the way down."""
    tree = Parser(text).expression()
    for node in _all(tree):
        part = text[node.at.start : node.at.end]
        assert written(Parser(part).expression()) == written(node)


def _all(node: Node) -> list[Node]:
    inner: list[Any] = [getattr(node, key, None) for key in ("of", "left", "right", "index")] + list(
        getattr(node, "args", ())
    )
    return [node] + [found for child in inner if isinstance(child, Node) for found in _all(child)]


@given(st.lists(st.tuples(NAMES, st.sampled_from(range(len(LEVELS)))), min_size=2, max_size=8), st.data())
def test_precedence(parts: list[tuple[str, int]], data: st.DataObject) -> None:
    """Without parentheses the tighter operator binds, and equals bind from the left."""
    ops = [data.draw(st.sampled_from(LEVELS[level])) for _, level in parts[:-1]]
    names = [name for name, _ in parts]
    text = names[0] + "".join(f" {op} {name}" for op, name in zip(ops, names[1:], strict=True))
    assert written(Parser(text).expression()) == _climbed(names, ops)


def _climbed(names: list[str], ops: list[str]) -> str:
    if not ops:
        return names[0]
    rank = {op: at for at, level in enumerate(LEVELS) for op in level}
    loosest = min(rank[op] for op in ops)
    cut = max(at for at, op in enumerate(ops) if rank[op] == loosest)
    left, right = _climbed(names[: cut + 1], ops[:cut]), _climbed(names[cut + 1 :], ops[cut + 1 :])
    return f"({left}) {ops[cut]} ({right})"


@given(st.text(max_size=80))
@settings(max_examples=cases(300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = tokens(text)
    except Refused:
        return
    assert all(text[t.at.start : t.at.end] == t.text for t in found)


_WORDS = """print range datatable let | where project extend summarize by join on ( ) [ ] { } , ; = == 'a' "b" 1 2.5 1h
    x y T count() sum(x) sort take 5 mv-expand to typeof(long) union search parse with * : long dynamic({"a":1}) . $left
    $right and or not -1 in between .. has make-series step evaluate pivot render timechart as => @"\\d" // !in scan
    declare"""
WORDS = st.sampled_from(_WORDS.split())


@given(st.lists(WORDS, max_size=25))
@settings(max_examples=cases(400))
def test_any_words_are_answered_or_refused(words: list[str]) -> None:
    with contextlib.suppress(QueryError):
        answer(" ".join(words), limits=Limits(rows=50_000, answer_rows=1_000))


@given(st.integers(0, MAX_DATETIME))
def test_a_datetime_reads_back(ticks: int) -> None:
    assert parse_datetime(datetime_text(ticks)) == ticks


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_timespan_reads_back(ticks: int) -> None:
    assert parse_timespan(timespan_text(ticks)) == ticks


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=10,
)


@given(VALUES)
def test_a_dynamic_value_reads_back(value: Any) -> None:
    from fairlead.logs.kql.functions.dynamics import parsed

    again = parsed(json_text([value]))
    assert json_text(again) == json_text([value])
