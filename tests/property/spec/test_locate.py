"""locate() against tomllib: every path tomllib yields has a place, and the text there is that key and that value."""

from __future__ import annotations

import datetime as dt
import json
import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.spec.locate import KeyPath, Place, Span, dotted, locate
from support.depth import cases

BARE = st.text("abzAZ019_-", min_size=1, max_size=4)
WORDS = st.text("aZ0 .,=#[]{}\"'\\-_é漢\u2028\x85\x7f😀", max_size=6)
SCALARS = st.one_of(
    st.integers(-(2**40), 2**40),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.dates(min_value=dt.date(1900, 1, 1)),
    st.datetimes(timezones=st.just(dt.UTC)).map(lambda t: t.replace(year=max(t.year, 1000), microsecond=0)),
    WORDS,
)


def basic(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@st.composite
def key(draw: st.DrawFn, name: str | None = None) -> str:
    """A key in one of its three spellings."""
    name = draw(st.one_of(BARE, WORDS)) if name is None else name
    spellings = [basic(name)]
    if name and all(c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-" for c in name):
        spellings.append(name)
    if "'" not in name:
        spellings.append(f"'{name}'")
    return draw(st.sampled_from(spellings))


@st.composite
def gap(draw: st.DrawFn, *, lines: bool) -> str:
    """Space, and inside lists also new lines and comments."""
    choices = ["", " ", "\t", "  "] + (["\n", '\n  # a ] comment, = with "signs\n', " # [x]\r\n"] if lines else [])
    return draw(st.sampled_from(choices))


@st.composite
def string(draw: st.DrawFn) -> str:
    text = draw(WORDS)
    kind = draw(st.integers(0, 3))
    if kind == 1 and "'" not in text:
        return f"'{text}'"
    if kind == 2:
        return (
            '"""'
            + draw(st.sampled_from(["", "\n", "\\\n  "]))
            + basic(text)[1:-1]
            + draw(st.sampled_from(["", '\\"', '""', "\nline"]))
            + '"""'
        )
    if kind == 3 and "'" not in text:
        return f"'''{text}" + draw(st.sampled_from(["", "\nline", "''"])) + "'''"
    return basic(text)


def scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return basic(value)
    if isinstance(value, dt.datetime):
        return str(value)
    return value.isoformat() if isinstance(value, dt.date) else repr(value)


@st.composite
def value(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.integers(0, 4 if depth else 2))
    if kind <= 1:
        return scalar(draw(SCALARS))
    if kind == 2:
        return draw(string())
    if kind == 3:
        items = draw(st.lists(value(depth - 1), max_size=3))
        inner = "".join(draw(gap(lines=True)) + i + draw(gap(lines=True)) + "," for i in items)
        return "[" + (inner[:-1] if inner and draw(st.booleans()) else inner) + draw(gap(lines=True)) + "]"
    names = draw(st.lists(st.one_of(BARE, WORDS), max_size=3, unique=True))
    pairs = [
        draw(key(n)) + draw(gap(lines=False)) + "=" + draw(gap(lines=False)) + draw(value(depth - 1)) for n in names
    ]
    return "{" + ",".join(f" {p} " for p in pairs) + "}"


@st.composite
def document(draw: st.DrawFn) -> str:
    """Lines of a file: plain and dotted keys, tables, lists of tables, comments."""
    out = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.integers(0, 4))
        name = ".".join(draw(st.lists(key(), min_size=1, max_size=3)))
        end = draw(st.sampled_from(["", " # comment [[x]]", " "]))
        if kind <= 2:
            out.append(f"{name}{draw(gap(lines=False))}={draw(gap(lines=False))}{draw(value())}{end}")
        elif kind == 3:
            out.append(f"{draw(gap(lines=False))}[{name}]{end}")
        else:
            out.append(f"[[ {name} ]]{end}")
    return draw(st.sampled_from(["\n", "\r\n"])).join(out)


def paths(tree: Any, path: KeyPath = ()) -> dict[KeyPath, Any]:
    """Every path of a tree, as locate() counts them."""
    found: dict[KeyPath, Any] = {path: tree} if path else {}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, item in items:
        found |= paths(item, (*path, name))
    return found


def written(text: str, span: Span) -> str:
    line = text.split("\n")[span.line - 1]
    return line[span.column - 1 : span.column - 1 + span.length]


def check_place(text: str, path: KeyPath, place: Place, item: Any) -> None:
    if isinstance(path[-1], str):
        shown = written(text, place.key)
        name = tomllib.loads(f"x = {shown}")["x"] if shown[0] in "\"'" else shown
        assert name == path[-1]
    shown = written(text, place.value)
    if not isinstance(item, dict | list) and "\n" not in shown:
        try:
            found = tomllib.loads(f"x = {shown}")["x"]
        except tomllib.TOMLDecodeError:
            assert shown.startswith(('"""', "'''"))  # the first line of several
            return
        assert found == item


@settings(max_examples=cases(300))
@given(document())
def test_every_path_has_its_place(text: str) -> None:
    try:
        tree = tomllib.loads(text)
    except ValueError:
        return
    text = text.replace("\r\n", "\n")
    places = locate(text)
    wanted = paths(tree)
    assert set(places) == set(wanted)
    for path, place in places.items():
        check_place(text, path, place, wanted[path])


def test_the_generator_makes_all_kinds() -> None:
    """The property above would be empty if most documents were not TOML."""
    good: list[int] = []

    @settings(max_examples=cases(200), database=None)
    @given(document())
    def count(text: str) -> None:
        try:
            good.append(len(paths(tomllib.loads(text))))
        except ValueError:
            good.append(-1)

    count()
    assert sum(n > 0 for n in good) > len(good) / 3
    assert max(good) >= 5


def test_dotted() -> None:
    assert dotted(("pool", 0, "nodes")) == "pool[0].nodes"
    assert dotted(()) == ""
