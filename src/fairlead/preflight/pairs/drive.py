"""Performs the steps of a phase on real nodes: one line to all agents, then answers until everybody spoke or is lost.

Knows: time, patience, lines of JSON. Must not know: what a step is for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fairlead.cluster.protocol import Line, Result
from fairlead.preflight.pairs.answers import REPORT, AgentReport, Asked
from fairlead.preflight.pairs.steps import Answers, Step
from fairlead.records.border import Breach, shown

T = TypeVar("T")

BEHIND_S = 2.0
"""How far this side may be behind with its reading."""
OVERSLEPT_S = 0.25
"""This side was late itself if a wait took so much longer than it was to take: that wait was nobody's silence."""
AGENT = (
    "fairlead-agent",
    "fairlead.preflight.pairs.onnode.coming",
    "fairlead.preflight.pairs.onnode.counting",
    "fairlead.preflight.pairs.onnode.working",
    "fairlead.preflight.pairs.onnode.wire",
    "fairlead.preflight.pairs.onnode.agent",
)
"""The name and the parts of the program that is driven."""

MAX_WORDS_BYTES = 1 << 20
"""What one node may write beside its answers."""


class Agents(Protocol):
    """Processes that run on nodes, one each, with their lines in and out."""

    def send(self, text: str) -> None:
        """One line to the standard input of every process."""
        ...

    def read(self, timeout_s: float) -> Line | None:
        """The next line any of them wrote, or None: nothing came within that time, or all have ended."""
        ...

    @property
    def ended(self) -> Mapping[str, Result]:
        """Nodes whose process has ended so far, and how."""
        ...

    @property
    def has_unread(self) -> bool:
        """Whether a line waits to be read: that a process has ended is known before its last words are."""
        ...

    @property
    def num_starting(self) -> int:
        """Nodes that have not been reached yet: behind a fan-out they are, one wave after the other."""
        ...


class Driver:
    """Drives one group of agents. `hears` sees everything that is not an answer: complaints on standard error."""

    def __init__(
        self, group: Agents, nodes: Sequence[str], *, lost_s: float, hears: Callable[[Line], None] = lambda _: None
    ) -> None:
        self.group, self.nodes, self.lost_s, self.hears = group, nodes, lost_s, hears
        self.number = {node: i for i, node in enumerate(nodes)}
        self.said: dict[int, str] = {}
        """The last complaint of each node."""
        self.num_words = [0] * len(nodes)
        self.setup: Mapping[str, Any] = {}
        """The first order of the phase: what is asked for in later ones, too."""

    def run(self, phase: Generator[Step, Answers, T]) -> T:
        """Perform a phase to its end."""
        answers = Answers({})
        try:
            step = next(phase)
            while True:
                answers = self.perform(step)
                step = phase.send(answers)
        except StopIteration as end:
            result: T = end.value
            return result

    def perform(self, step: Step) -> Answers:
        """One step. A node is lost when its process ends, or is `lost_s` later than the others or `limit_s` in all.

        As long as nodes are still being reached, one after the other, both times begin anew with each of them.
        """
        asked_ns, asked = time.time_ns(), time.monotonic()
        started, starting = asked, self.group.num_starting
        self.group.send(json.dumps(step.line, separators=(",", ":")))
        if step.line["do"] == "setup":
            self.setup = step.line
        asked_of = Asked(step.line, self.setup)
        refused: dict[int, str] = {}
        reports: dict[int, AgentReport] = {}
        at_ns: dict[int, int] = {}
        waiting, unsent = set(step.expect), set(step.expect)
        lost: dict[int, str] = {}
        has_collected = False
        last_word = started
        while waiting:
            if not self.group.has_unread:  # who answers and ends has answered
                self._lose_ended(waiting, lost)
            unsent &= waiting
            if step.collect and waiting and not unsent and not has_collected:
                self.group.send(json.dumps(step.collect, separators=(",", ":")))
                has_collected, last_word = True, time.monotonic()
            wait_s, began = self._wait_s(started, last_word, step, len(waiting)), time.monotonic()
            line = self.group.read(wait_s)
            now = time.monotonic()
            if now - began > wait_s + OVERSLEPT_S:
                started, last_word = started + now - began, last_word + now - began
            if self.group.num_starting != starting:
                started, last_word, starting = now, now, self.group.num_starting
            node = self.number.get(line.node) if line is not None else None
            report = None
            try:
                if line is not None:
                    report = self._report(line, node if node in waiting else None, step, asked_of)
            except Breach as breach:
                assert node is not None
                lost[node], refused[node] = f"it sent {breach.what}", breach.said
                waiting.discard(node)
                unsent.discard(node)
                continue
            # who says twice that it has sent tells nothing new: that is no reason to wait on
            if report is not None and node is not None and not (report.sent and node not in unsent):
                last_word = now
                unsent.discard(node)
                if not report.sent:
                    reports[node], at_ns[node] = report, time.time_ns()
                    waiting.discard(node)
            # while lines come, an answer may be among those not read yet; but not for ever
            elif self._is_late(now - (BEHIND_S if line is not None else 0), started, last_word, step, waiting):
                silent = set(unsent or waiting)
                lost.update(dict.fromkeys(silent, f"no answer to `{step.line['do']}` within {now - asked:.1f} s"))
                waiting -= silent
                unsent -= silent
                last_word = now
        return Answers(reports, asked_ns, at_ns, lost, refused)

    def _lose_ended(self, waiting: set[int], lost: dict[int, str]) -> None:
        for name, result in self.group.ended.items():
            node = self.number.get(name)
            if node in waiting:
                why = result.error or self.said.get(node, "") or "its agent ended"
                lost[node] = why
                waiting.discard(node)

    def _wait_s(self, started: float, last_word: float, step: Step, num_waiting: int) -> float:
        if num_waiting == len(step.expect):  # nobody has answered yet: the step may simply take long
            return max(0.05, started + step.limit_s - time.monotonic())
        return max(0.05, min(last_word + self.lost_s, started + step.limit_s) - time.monotonic())

    def _is_late(self, now: float, started: float, last_word: float, step: Step, waiting: set[int]) -> bool:
        if not waiting:
            return False
        if now >= started + step.limit_s:
            return True
        return len(waiting) < len(step.expect) and now >= last_word + self.lost_s

    def _report(self, line: Line, node: int | None, step: Step, asked: Asked) -> AgentReport | None:
        """Its answer to this step, if it is one; of a node that is not waited for, words alone. Raises Breach."""
        if line.stream == "stdout" and line.text.startswith("{"):
            if node is None:
                return None
            report = REPORT(line.text)
            if report.step != step.line.get("step"):
                return None
            asked.hold(report, node)
            return report
        if (number := self.number.get(line.node)) is not None:
            self.num_words[number] += len(line.text) + 1
            if self.num_words[number] > MAX_WORDS_BYTES:
                if node is None:
                    return None
                raise Breach(f"more than {MAX_WORDS_BYTES} bytes of words beside its answers", line.text)
            if words := shown(line.text.strip()):
                self.said[number] = words
        self.hears(line)
        return None
