"""An agent that falls silent, or can hardly speak, while pairs are tested on a live lab: the phase ends, and says who.

What breaks it: a node that is `Limits.lost_s` later with an answer than all others is lost; one that always answers
just in time costs each step at most that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import running
from support.injector import FAIRLEAD, World
from support.processes import until
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "torch")]

VICTIM = "n2"
WITHIN_S = 60.0
"""Of `pairs`, on however busy a machine: a quiet one takes 5 s with a silent agent."""


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    with world(gpus=1, planes=2) as made:
        yield made


def agents_of(lab: World, node: str) -> list[int]:
    """The agent's processes on a host, as this machine numbers them."""
    host = running(lab.name).host(node)
    assert host is not None
    assert host.anchor is not None
    where = Path(f"/proc/{host.anchor.pid}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == where:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"fairlead-agent" in words and b"python" in words[0]:
                    found.append(int(entry.name))
    return found


class Hand(threading.Thread):
    """Stops the victim's agent as soon as it is there; lets it run for `awake_s` of each half second."""

    def __init__(self, lab: World, awake_s: float) -> None:
        super().__init__(daemon=True)
        self.lab, self.awake_s = lab, awake_s
        self.is_over = threading.Event()

    def run(self) -> None:
        pids: list[int] = []
        while not pids and not self.is_over.wait(0.01):
            pids = agents_of(self.lab, VICTIM)
        while not self.is_over.is_set():
            with contextlib.suppress(ProcessLookupError):
                self.signal(pids, signal.SIGSTOP)
                self.is_over.wait(0.5 - self.awake_s)
                if self.awake_s:
                    self.signal(pids, signal.SIGCONT)
                    self.is_over.wait(self.awake_s)
                continue
            return

    def signal(self, pids: list[int], what: signal.Signals) -> None:
        for pid in pids:
            os.kill(pid, what)


def preflight_with(lab: World, awake_s: float) -> dict:
    """A run with that agent; again if, on a busy machine, the hand came when the phase was over."""
    for _ in range(3):
        result = once(lab, awake_s)
        if result["verdict"] != "pass":
            break
    return result


def once(lab: World, awake_s: float) -> dict:
    hand = Hand(lab, awake_s)
    hand.start()
    words = [*FAIRLEAD, "preflight", "-f", str(lab.file), "--runs", str(lab.file.parent / "runs"), "--json"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    finally:
        hand.is_over.set()
        hand.join()
    assert until(lambda: not agents_of(lab, VICTIM)), agents_of(lab, VICTIM)
    return json.loads(done.stdout)


def test_an_agent_that_falls_silent_is_lost_and_the_rest_is_tested_without_it(lab):
    result = preflight_with(lab, 0.0)
    assert result["culprit"]["code"] == "preflight/node-lost"
    assert result["bad"] == VICTIM, [f for f in result["findings"] if f["verdict"] == "fail"]
    assert result["success"]
    assert result["took_s"]["pairs"] < WITHIN_S


def test_an_agent_that_can_hardly_speak_does_not_hold_up_the_phase(lab):
    result = preflight_with(lab, 0.05)
    assert VICTIM in result["bad"], [f for f in result["findings"] if f["verdict"] == "fail"]
    assert result["took_s"]["pairs"] < WITHIN_S
