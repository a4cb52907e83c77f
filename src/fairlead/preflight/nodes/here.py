"""Judging the node one stands on, for a Slurm prolog, epilog or health program: quick, alone, and at its own pace.

A health program starts with `/` as its directory, no home, and sometimes before slurmd has registered. So nothing here
asks the scheduler or writes elsewhere than to the pace's place; the probe is a child with a time limit of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import duration
from fairlead.checks import judge
from fairlead.preflight.nodes.pace import PERIOD, Paced, paced, place_of, since_boot_s
from fairlead.probe import NodeAnswer, arguments, program, sort_answers
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, node, verdict_of
from fairlead.records.report import Report
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec

LIMIT_S = 20.0
"""Slurm kills a health program after 60 s, and a job waits for its prolog."""
GRACE_S = 5.0
STALE = 4
"""A verdict this many periods old, with a look that does not end, is no verdict."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often, and how long."""

    every_s: float = 0.0
    """0: look every time."""
    jitter_s: float = 0.0
    """Wait up to this long before a look, each node another time."""
    limit_s: float = LIMIT_S


@dataclass(frozen=True, kw_only=True)
class HereReport(Report):
    """What is said of this node. Of a fresh look all findings are there, otherwise what was not well."""

    stage: str = "preflight --here"
    is_fresh: bool
    age_s: float
    facts: tuple[NodeFacts, ...] = ()
    """Of a fresh look, what was read."""


def look_here(
    name: str,
    spec: Spec,
    place: Path,
    pace: Pace = Pace(),
    *,
    now: Callable[[], float] = since_boot_s,
    sleep: Callable[[float], None] = time.sleep,
) -> HereReport:
    """Judge this machine as the node `name`; while it is too early, or somebody is at it, the last verdict holds."""
    read: list[NodeFacts] = []

    def look() -> tuple[Verdict, tuple[Finding, ...]]:
        if pace.jitter_s > 0:
            sleep(place_of(name) * pace.jitter_s)
        facts, silent = sort_answers([_ask(name, pace.limit_s)])
        read.extend(facts)
        findings = (*silent, *(judge(facts, spec) if facts else ()))
        return verdict_of(findings), findings

    wait_s = pace.limit_s + GRACE_S + pace.jitter_s
    found = paced(look, name, pace.every_s, place, wait_s=wait_s, now=now, sleep=sleep)
    return replace(_report(name, found, pace), facts=tuple(read))


def _report(name: str, found: Paced, pace: Pace) -> HereReport:
    is_stale = not found.is_fresh and found.age_s > STALE * PERIOD * max(pace.every_s, pace.limit_s)
    if found.look is None or is_stale:
        last = f"the last verdict is {duration(found.age_s)} old" if found.look else "there is no earlier verdict"
        silent = Finding(
            code="preflight/no-verdict",
            verdict=Verdict.UNKNOWN,
            subject=node(name),
            message=f"another look at this node does not end, and {last}",
            remedy="ps -ef | grep fairlead; look for processes in state D: they wait for a device or a file system",
        )
        return HereReport(nodes=NodeSet([name]), findings=(silent,), is_fresh=False, age_s=found.age_s)
    return HereReport(
        nodes=NodeSet([name]),
        ended=found.look.verdict,
        findings=found.findings,
        is_fresh=found.is_fresh,
        age_s=found.age_s,
    )


def _ask(name: str, limit_s: float) -> NodeAnswer:
    """What the probe says of this machine, or why it says nothing."""
    argv = program().words(sys.executable, arguments(limit_s=max(1.0, limit_s - 1.0)))
    child = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(program().stdin, timeout=limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)  # one that sleeps in the kernel cannot be waited for
        for pipe in filter(None, (child.stdin, child.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()
        return NodeAnswer(name, None, f"the probe did not end within {duration(limit_s + GRACE_S)}")
    if child.returncode or not said:
        return NodeAnswer(name, None, f"the probe ended with status {child.returncode}")
    return NodeAnswer(name, said)
