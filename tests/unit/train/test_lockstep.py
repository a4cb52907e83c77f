"""Forwards meet at each layer, one at a time and in order."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time

import pytest

pytest.importorskip("torch")

from fairlead.train import lockstep


@pytest.mark.parametrize("num", [1, 2, 5])
def test_all_meet_each_time_in_their_order(num) -> None:
    heard, busy = [], []

    def forward(k):
        def run(meet):
            got = []
            for layer in range(3):
                assert not busy
                busy.append(k)
                busy.pop()
                got.append(meet((layer, k)))
            return got

        return run

    def together(items):
        heard.append(list(items))
        return [layer * 10 + k for layer, k in items]

    results = lockstep.run([forward(k) for k in range(num)], together, lambda: None)
    assert results == [[k, 10 + k, 20 + k] for k in range(num)]
    assert heard == [[(layer, k) for k in range(num)] for layer in range(3)]


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_one_that_fails_ends_all(culprit) -> None:
    def forward(k):
        def run(meet):
            meet(k)
            if k == culprit:
                raise ValueError(k)
            return meet(k)

        return run

    with pytest.raises(ValueError, match=str(culprit)):
        lockstep.run([forward(k) for k in range(3)], lambda items: items, lambda: None)


@contextlib.contextmanager
def interrupt_before(at, fell):
    """An interrupt before the `at`-th line of the module that this thread comes to, or at the begin or the end of a
    call of `Thread.start` or `join`. Inside of these Python's own locks could be left behind.
    """
    seen = [0]
    calls = {threading.Thread.start.__code__, threading.Thread.join.__code__}

    def trace(frame, event, _arg):
        is_call = frame.f_code in calls
        if not is_call and frame.f_code.co_filename != lockstep.__file__:
            return None
        frame.f_trace_lines = not is_call
        if event == "line" or (is_call and event in {"call", "return"}):
            seen[0] += 1
            if seen[0] == at:
                fell.append(f"{frame.f_code.co_name} {event} {frame.f_lineno}")
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def left_behind(interrupt):
    """How many forwards wait or compute after an interrupt, and whether it came out of `run`."""
    computing = [0]

    def forward(k):
        def run(meet):
            computing[0] += 1
            try:
                for layer in range(2):
                    meet((layer, k))
            finally:
                computing[0] -= 1

        return run

    before, is_raised = len(sys._current_frames()), False
    try:
        with interrupt:
            lockstep.run([forward(k) for k in range(3)], lambda items: items, lambda: None)
    except KeyboardInterrupt:
        is_raised = True
    deadline = time.monotonic() + 10
    while len(sys._current_frames()) > before and time.monotonic() < deadline:
        time.sleep(0.002)
    return len(sys._current_frames()) - before + computing[0], is_raised


def test_an_interrupt_at_any_line_leaves_no_forward_behind(monkeypatch) -> None:
    monkeypatch.setattr(lockstep, "_LOOKS_S", 0.05)
    all_fell = set()
    for at in itertools.count(1):
        fell = []
        left, is_raised = left_behind(interrupt_before(at, fell))
        if not fell:
            break
        assert (left, is_raised) == (0, True), fell
        all_fell.update(fell)
    assert {fall.rpartition(" ")[0] for fall in all_fell} >= {"run line", "start call", "start return", "join call"}


def test_a_second_interrupt_while_the_first_is_answered(monkeypatch) -> None:
    monkeypatch.setattr(lockstep, "_LOOKS_S", 0.05)
    begun, may_end = threading.Event(), threading.Event()

    def together(items):
        begun.set()
        may_end.wait(10)
        return items

    def twice():
        begun.wait(10)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        may_end.set()

    sender = threading.Thread(target=twice)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        lockstep.run([lambda meet: meet(1), lambda meet: meet(2)], together, lambda: None)
    assert may_end.is_set(), "it came back while a layer was still computed"
    sender.join()
