"""Lines, frames and beats between a program and whoever started it."""

from __future__ import annotations

import os
import random
import threading

import pytest

from fairlead.cluster.channel import (
    A_BEAT,
    A_FRAME,
    A_LINE,
    MARK,
    MAX_FRAME_BYTES,
    MAX_LINE_BYTES,
    Channel,
    Incoming,
    encoded,
)


@pytest.fixture
def pipes(monkeypatch):
    """A channel, the descriptor that feeds it, and all it has written."""

    def make(**env):
        for name in ("RANK", "SLURM_PROCID", "FAIRLEAD_WIRE", "FAIRLEAD_FIRST_RANK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        (out_r, out_w), (in_r, in_w) = os.pipe(), os.pipe()
        fds.extend((out_r, in_r))
        return Channel(in_r, out_w), in_w, out_r

    fds: list[int] = []
    yield make
    for fd in fds:
        os.close(fd)


def heard(fd: int) -> list[tuple[str, bytes]]:
    incoming, out = Incoming(), []
    while data := os.read(fd, 1 << 16):
        out += incoming.feed(data)
    return out + incoming.end()


@pytest.mark.parametrize("wire", ["", "lines"])
def test_what_a_program_says_arrives_whole_and_in_order(pipes, wire):
    channel, _, fd = pipes(FAIRLEAD_WIRE=wire)
    frame = random.Random(1).randbytes(MAX_FRAME_BYTES)
    got = []
    reader = threading.Thread(target=lambda: got.extend(heard(fd)))
    reader.start()
    channel.say("up")
    channel.send(frame)
    channel.say("x" * 5000)
    channel.beat("reduce")
    channel.send(b"")
    os.close(channel.fd_out)
    reader.join()
    assert got == [(A_LINE, b"up"), (A_FRAME, frame), (A_LINE, b"x" * 5000), (A_BEAT, b"reduce"), (A_FRAME, b"")]


@pytest.mark.parametrize("wire", ["", "lines"])
def test_no_write_is_longer_than_the_way_passes_whole(pipes, wire, monkeypatch):
    channel, _, _ = pipes(FAIRLEAD_WIRE=wire)
    writes = []
    monkeypatch.setattr(channel, "write", writes.append)
    channel.send(b"y" * 100_000)
    channel.say("z" * 3000)
    assert max(map(len, writes[:-1])) <= (1000 if wire else 4096)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_cut_anywhere_the_same_messages_come(size):
    data = b"one\n" + encoded(b"a\nb" + MARK) + b"two" + encoded("for three", 3) + b" more\n" + encoded(b"c" * 70_000)
    incoming, out = Incoming(), []
    for start in range(0, len(data), size):
        out += incoming.feed(data[start : start + size])
    assert out == [
        (A_LINE, b"one"),
        (A_FRAME, b"a\nb" + MARK),
        (A_LINE, b"for three"),
        (A_LINE, b"two more"),
        (A_FRAME, b"c" * 70_000),
    ]


def test_what_is_for_another_rank_is_left_out():
    data = encoded("mine", 3) + encoded("yours", 4) + encoded("ours") + encoded(b"f", 4) + encoded(b"g")
    assert Incoming(3).feed(data) == [(A_LINE, b"mine"), (A_LINE, b"ours"), (A_FRAME, b"g")]


def test_bytes_that_only_look_like_a_segment_are_text():
    junk = MARK + b"\xff" * 20
    assert Incoming().feed(junk + b"\nnext\n") == [(A_LINE, junk), (A_LINE, b"next")]
    assert Incoming().feed(b"~fl1 x\n~fl1 0 !\n")[0] == (A_LINE, b"~fl1 x")


def test_what_has_no_end_is_bounded():
    incoming, out = Incoming(), []
    for _ in range(40):
        out += incoming.feed(b"x" * 100_000)
    assert [len(line) for _, line in out] == [len(out[0][1])] * 3
    assert len(out[0][1]) <= MAX_LINE_BYTES + 100_000
    from fairlead.cluster.channel import segments

    for _ in range(5):
        for segment in segments(b"y" * 700_000):
            out += incoming.feed(segment[:4] + bytes([segment[4] & ~1]) + segment[5:])
    assert sum(map(len, incoming.parts)) <= MAX_FRAME_BYTES


def test_a_program_reads_lines_frames_nothing_and_the_end(pipes):
    channel, fd, _ = pipes(RANK="2")
    assert channel.read(0.01) is None
    os.write(fd, encoded("go") + encoded(b"\0\1") + encoded("not me", 1) + encoded("me", 2))
    assert [channel.read(1) for _ in range(3)] == ["go", b"\0\1", "me"]
    os.close(fd)
    with pytest.raises(EOFError):
        channel.read()


def test_tasks_of_a_second_step_count_on_from_the_first(pipes):
    channel, _, _ = pipes(FAIRLEAD_FIRST_RANK="8", SLURM_PROCID="3")
    assert channel.incoming.me == 11


def test_a_frame_beyond_the_bound_is_the_senders_error(pipes):
    channel, _, _ = pipes()
    with pytest.raises(AssertionError, match="send several"):
        channel.send(bytes(MAX_FRAME_BYTES + 1))
    with pytest.raises(AssertionError, match="send several"):
        encoded(bytes(MAX_FRAME_BYTES + 1))
