"""The wire between the node-side program and this side."""

from __future__ import annotations

import pytest

from fairlead.cluster.onnode.frames import END, FRAME, MAGIC, Kept
from fairlead.cluster.talk import Frames, Garbled


def frame(kind: bytes, payload: bytes = b"", rank: int = 0) -> bytes:
    return FRAME.pack(kind, rank, len(payload)) + payload + END


def test_frames_come_whole_and_in_order():
    frames = Frames()
    data = MAGIC + frame(b"H") + frame(b"o", b"one\ntwo") + frame(b"x", b"{}", rank=3)
    assert list(frames.feed(data)) == [(b"H", 0, b""), (b"o", 0, b"one\ntwo"), (b"x", 3, b"{}")]


def test_half_a_frame_waits_for_the_rest():
    frames = Frames()
    data = MAGIC + frame(b"o", b"payload")
    assert list(frames.feed(data[:-1])) == []
    assert list(frames.feed(data[-1:])) == [(b"o", 0, b"payload")]


def test_what_a_login_script_prints_first_is_noise():
    frames = Frames()
    assert list(frames.feed(b"Welcome to n1!\n")) == []
    assert list(frames.feed(b"Last login: never\n" + MAGIC + frame(b"H"))) == [(b"H", 0, b"")]
    assert frames.noise == b"Welcome to n1!\nLast login: never\n"


def test_noise_without_end_is_kept_in_bounds():
    frames = Frames()
    for _ in range(100):
        assert list(frames.feed(b"x" * 10_000)) == []
    assert len(frames.noise) < 30_000
    assert list(frames.feed(MAGIC + frame(b"H"))) == [(b"H", 0, b"")]


@pytest.mark.parametrize(
    "broken",
    [FRAME.pack(b"\r", 0, 1) + b"x\n", FRAME.pack(b"o", 0, 1 << 30) + b"x\n", FRAME.pack(b"o", 0, 1) + b"x\r"],
    ids=["kind", "length", "end"],
)
def test_changed_bytes_are_noticed(broken):
    frames = Frames()
    with pytest.raises(Garbled):
        list(frames.feed(MAGIC + broken))


def test_kept_never_holds_more_than_it_may():
    kept = Kept(1000)
    head = b"".join(kept.feed(bytes([i % 251]) * 777) for i in range(500))
    assert len(head) == 500
    assert len(kept.rest) <= 1000 + 777
    assert len(kept.tail()) == 500
    assert kept.num_bytes == 777 * 500
