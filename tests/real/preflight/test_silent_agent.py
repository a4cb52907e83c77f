"""An agent that falls silent, or can hardly speak, while pairs are tested on a live lab: the phase ends, and says who.

What breaks it: a node that is `Limits.lost_s` later with an answer than all others is lost; one that always answers
just in time costs each step at most that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import running
from fairlead.preflight import gate
from fairlead.preflight.report import PreflightReport
from support.gating import without_ranks
from support.injector import World
from support.processes import until
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf")]

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
        self.has_hold, self.is_over = threading.Event(), threading.Event()
        self.num_stops = 0

    def run(self) -> None:
        pids: list[int] = []
        while not pids and not self.is_over.wait(0.01):
            pids = agents_of(self.lab, VICTIM)
        while not self.is_over.is_set():
            try:
                self.signal(pids, signal.SIGSTOP)
                self.has_hold.set()
                self.num_stops += 1
                self.is_over.wait(0.5 - self.awake_s)
                if self.awake_s:
                    self.signal(pids, signal.SIGCONT)
                    self.is_over.wait(self.awake_s)
            except ProcessLookupError:
                return

    def signal(self, pids: list[int], what: signal.Signals) -> None:
        for pid in pids:
            os.kill(pid, what)


@pytest.fixture
def held(lab, monkeypatch) -> Callable[[float], tuple[PreflightReport, Hand]]:
    """Nodes and pairs, with an agent that is held from before the first order to it."""

    def run(awake_s: float) -> tuple[PreflightReport, Hand]:
        hand = Hand(lab, awake_s)

        class Driver(gate.Driver):
            def run(self, phase):
                hand.start()
                assert until(lambda: self.group.read(0.05) or hand.has_hold.is_set(), 60), "no agent on the victim"
                return super().run(phase)

        with monkeypatch.context() as patch:
            patch.setattr(gate, "Driver", Driver)
            try:
                report = without_ranks(lab)
            finally:
                hand.is_over.set()
                hand.join()
        assert until(lambda: not agents_of(lab, VICTIM)), agents_of(lab, VICTIM)
        return report, hand

    return run


def test_an_agent_that_falls_silent_is_lost_and_the_rest_is_tested_without_it(held):
    report, _ = held(0.0)
    assert (report.culprit.code, str(report.bad)) == ("preflight/node-lost", VICTIM), report.findings
    assert str(report.good) == "n[0-1,3]"
    assert set(report.pairs.members) == {0, 1, 3}
    assert report.pairs.rounds["burst"] == 2
    assert report.took_s["pairs"] < WITHIN_S


def test_an_agent_that_can_hardly_speak_does_not_hold_up_the_phase(held):
    """Whether it is accused is its luck: what it has to do may just fit into the moments in which it runs."""
    report, hand = held(0.05)
    assert hand.num_stops > 3
    assert set(report.bad) <= {VICTIM}, [f for f in report.findings if f.verdict == "fail"]
    assert report.pairs.rounds["burst"] >= 2
    assert report.took_s["pairs"] < WITHIN_S
