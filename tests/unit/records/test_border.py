"""The one place where what others wrote is decoded: types, sizes, depth, and what is shown of a breach."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.records.border import Border, Breach, Index, Port, Word, shown
from fairlead.records.codec import from_json
from support.depth import cases


class Hello(msgspec.Struct, kw_only=True):
    port: Port
    who: Index = 0
    word: Word = ""
    some: Annotated[list[int], msgspec.Meta(max_length=3)] = []
    ratio: float = 0.0


def outcome(said: bytes | str) -> Hello | Breach:
    try:
        return HELLO(said)
    except Breach as breach:
        return breach


HELLO = Border(Hello, "a hello", max_bytes=300)


@pytest.mark.parametrize(
    "said",
    [
        b'{"port":0}', b'{"port":70000}', b'{"port":-1}', b'{"port":[]}', b'{"port":"22"}', b'{"port":22.5}',
        b'{"port":true}', b"{}", b"[]", b"null", b"", b"{", b'{"port":22,"who":-1}', b'{"port":22,"who":1048576}',
        b'{"port":22,"word":"' + b"x" * 65 + b'"}', b'{"port":22,"some":[1,2,3,4]}', b'{"port":22,"ratio":NaN}',
        b'{"port":22,"ratio":Infinity}', b'{"port":22,"ratio":1e999}', b'{"port":' + b"9" * 250 + b"}",
        b'{"port":22,"x":"' + b"x" * 300 + b'"}', b'{"port":22,"word":"\xff"}', b'{"port":22,"word":"\\ud800"}',
    ],
)  # fmt: skip
def test_what_breaks_a_bound_is_a_breach(said):
    with pytest.raises(Breach) as caught:
        HELLO(said)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_what_nobody_asked_for_is_passed_over():
    assert HELLO(b'{"port":22,"new":[1,{"x":null}]}') == Hello(port=22)


@pytest.mark.parametrize("deep", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000])
def test_depth_is_no_end_of_this_program(deep):
    with pytest.raises(Breach, match="too deep"):
        Border(Hello, "a hello")(b'{"port":22,"new":' + deep + b"}")
    with pytest.raises(ValueError, match="too deep"):
        from_json(b'{"port":22,"new":' + deep + b"}", Hello)


@given(st.binary(max_size=400) | st.text(max_size=400))
@settings(max_examples=cases(300))
def test_any_bytes_are_a_hello_or_a_breach(said):
    found = outcome(said)
    assert 1 <= found.port <= 65535 if isinstance(found, Hello) else str(found).isprintable()


@given(st.binary(max_size=400) | st.text(max_size=400))
def test_what_is_shown_moves_no_cursor(said):
    text = shown(said, 40)
    assert text.isprintable()
    assert len(text) <= 40 * 10 + 3
