"""Bytes arrive in any pieces; what is made of them does not depend on where they were cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.channel import EVERYONE, IS_BEAT, IS_TEXT, MARK, Incoming, segments
from fairlead.cluster.onnode.frames import END, FRAME, MAGIC, Kept
from fairlead.cluster.outputs import Stream
from fairlead.cluster.talk import Frames

FRAMES = st.lists(
    st.tuples(st.sampled_from([b"o", b"e", b"O", b"x", b"z"]), st.integers(0, 65535), st.binary(max_size=300))
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(FRAMES, st.binary(max_size=50), st.lists(st.integers(0, 10_000)))
def test_any_cut_gives_the_same_frames(frames, noise, cuts):
    if MAGIC in noise + MAGIC[:-1]:
        return
    data = noise + MAGIC + b"".join(FRAME.pack(k, r, len(p)) + p + END for k, r, p in frames)
    parser = Frames()
    assert [f for piece in pieces(data, cuts) for f in parser.feed(piece)] == frames
    assert parser.noise == noise


@given(st.binary(max_size=2000), st.integers(0, 400), st.lists(st.integers(0, 2000)))
def test_kept_is_the_first_and_the_last_half(data, keep, cuts):
    kept = Kept(keep)
    head = b"".join(kept.feed(piece) for piece in pieces(data, cuts))
    tail = kept.tail()
    half = keep // 2
    assert head == data[:half]
    assert tail == data[max(half, len(data) - half) :]
    assert kept.num_bytes == len(data)


@given(st.text(alphabet="ab\n", max_size=300), st.lists(st.integers(0, 300)))
def test_any_cut_gives_the_same_lines(text, cuts):
    lines: list[str] = []
    stream = Stream(1 << 20, lines.append)
    for piece in pieces(text.encode(), cuts):
        stream.feed(piece)
    stream.flush()
    assert lines == text.removesuffix("\n").split("\n") if text else lines == []
    assert stream.output().text == text


SAID = st.lists(
    st.one_of(
        st.sampled_from([b"a line\n", b"half ", b"\n", MARK, MARK[:2], b"\0"]),
        st.tuples(
            st.binary(max_size=40), st.sampled_from([0, IS_TEXT, IS_BEAT]), st.sampled_from([EVERYONE, 3, 4])
        ).map(lambda one: b"".join(segments(*one, size=7))),
    ),
    max_size=20,
)


@given(SAID, st.lists(st.integers(0, 2000), max_size=40), st.booleans())
def test_any_cut_gives_the_same_messages(said, cuts, byte_by_byte):
    data = b"".join(said)
    whole, cut = Incoming(3), Incoming(3)
    expected = whole.feed(data) + whole.end()
    found = pieces(data, cuts) if not byte_by_byte else [data[i : i + 1] for i in range(len(data))]
    assert [m for piece in found for m in cut.feed(piece)] + cut.end() == expected
