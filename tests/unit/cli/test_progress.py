"""How far we are: live on a terminal of any width, and lines elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from fairlead.cli.progress import Progress, live


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.usefixtures("more_verbs")
def test_elsewhere_than_on_a_terminal_progress_is_a_line_at_the_start_and_at_the_end(fairlead):
    lines = [line[:30].split() for line in fairlead("t-progress").err.splitlines()]
    assert [line[:4] for line in lines] == [
        ["pairs", "0", "of", "5"],
        ["pairs", "5", "of", "5"],
        ["half", "time"],
        ["ranks", "0", "of", "2"],
    ]
    assert "\x1b" not in fairlead("t-progress").err
    assert fairlead("t-progress", "-q").err == ""


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_elsewhere_a_line_comes_every_thirty_seconds():
    stream, clock = io.StringIO(), Clock()
    progress = Progress("pairs", stream, clock)
    for second in range(100):
        clock.now = float(second)
        progress.show(second, 100)
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["0", "30", "60", "90"]
    progress.show(100, 100)
    assert stream.getvalue().splitlines()[-1].split()[1] == "100"


def test_on_a_terminal_progress_is_one_live_line_that_fits_and_goes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream, clock = Terminal(), Clock()
    progress = Progress("pairs", stream, clock)
    for step in range(30):
        clock.now = step * 0.02
        progress.show(step, 100, ["slowest n2\x1b[31m" + "x" * 300])
    progress.end()
    drawn = stream.getvalue().split("\r\x1b[2K")
    assert drawn[0] == ""
    assert drawn[-1] == ""
    assert 3 <= len(drawn) - 2 <= 8, "ten a second at most"
    assert all(len(line) < 60 for line in drawn)
    assert "\n" not in stream.getvalue()
    assert "\x1b[31m" not in stream.getvalue()


DETAILS = ["loss 10.24", "compute-bound 100%", "12:34:56 left", "12,345 tokens/s"]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (10, "steps 999/"),
        (24, "steps 999/1000  loss 10."),
        (46, "steps 999/1000  loss 10.24  compute-bound 100%"),
        (60, "steps 999/1000  loss 10.24  compute-bound 100%"),
        (61, "steps 999/1000  loss 10.24  compute-bound 100%  12:34:56 left"),
        (79, "steps 999/1000  loss 10.24  compute-bound 100%  12:34:56 left  12,345 tokens/s"),
        (87, "steps 999/1000  loss 10.24  compute-bound 100%  12:34:56 left  12,345 tokens/s  500.5 s"),
    ],
)
def test_as_much_is_said_as_fits_the_most_important_first(room, expected):
    assert live("steps", 999, 1000, [*DETAILS, "500.5 s"], room) == expected
    assert len(expected) <= room


@pytest.mark.parametrize(("done", "drawn"), [(0, 0), (1, 10), (3, 30), (4, 40), (9, 40)])
def test_a_bar_takes_what_is_left(done, drawn):
    line = live("steps", done, 4, ["loss 2.3", "1.0 s"], 200)
    assert line == f"steps {done}/4  [{'=' * drawn:40}]  loss 2.3  1.0 s"
    narrow = live("steps", 2, 4, ["loss 2.3", "1.0 s"], 40)
    assert narrow == "steps 2/4  [=====     ]  loss 2.3  1.0 s"
    assert len(narrow) == 40
    assert live("steps", 2, 4, ["loss 2.3", "1.0 s"], 39) == "steps 2/4  loss 2.3  1.0 s"


def test_nothing_of_nothing_is_drawn():
    assert live("bytes", 0, 0, (), 60).startswith("bytes 0/0  [    ")


def test_the_width_is_that_of_the_terminal_it_is_drawn_on(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 47, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        Progress("steps", stream).show(999, 1000, DETAILS)
        drawn = os.read(ours, 1000).decode().removeprefix("\r\x1b[2K")
    os.close(ours)
    assert drawn == "steps 999/1000  loss 10.24  compute-bound 100%"
