"""Processes that are talked to while they run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from fairlead.cluster import Command, State
from fairlead.cluster.tasks import task_ends
from support.backends import LOCAL

pytestmark = pytest.mark.real

ECHO = b"""
import os, sys
me = os.environ.get("RANK", os.environ["FAIRLEAD_NODE"])
print("here", flush=True)
while True:
    for word in os.read(0, 100).decode().split() or sys.exit(3):
        print(word, flush=True)
        if word == "die" + me:
            sys.exit(7)
        if word == "bye":
            sys.exit(0)
"""


def program(source: bytes = ECHO) -> Command:
    """A program that keeps its standard input for what follows."""
    boot = f"import os\nb=b''\nwhile len(b)<{len(source)}:b+=os.read(0,{len(source)}-len(b))\nexec(b)"
    return Command(argv=(sys.executable, "-I", "-u", "-c", boot), stdin=source)


def heard(group, num: int, limit_s: float = 10.0) -> list[tuple[str, int | None, str]]:
    """The next so many lines."""
    out, deadline = [], time.monotonic() + limit_s
    while len(out) < num and time.monotonic() < deadline:
        if line := group.read(0.5):
            out.append((line.node, line.rank, line.text))
    return sorted(out)


def test_every_process_hears_every_line_and_answers():
    with LOCAL.cluster() as cluster, cluster.live("n[1-3]", program(), limit_s=20) as group:
        assert heard(group, 3) == [(n, None, "here") for n in ("n1", "n2", "n3")]
        group.send("ping")
        assert heard(group, 3) == [(n, None, "ping") for n in ("n1", "n2", "n3")]
        group.send("bye")
        assert [(r.node, r.state) for r in group.close(5.0)] == [(n, State.DONE) for n in ("n1", "n2", "n3")]


def test_an_end_is_seen_while_the_others_go_on():
    with LOCAL.cluster() as cluster, cluster.live("n[1-2]", program(), limit_s=20, per_node=2) as group:
        heard(group, 4)
        group.send("die2")
        deadline = time.monotonic() + 10
        while ("n2", 2) not in group.ended and time.monotonic() < deadline:
            group.read(0.2)
        assert [(k, r.rc) for k, r in group.ended.items()] == [(("n2", 2), 7)]
        group.send("bye")
        results = group.close(5.0)
        assert [(r.rank, r.local_rank, r.rc) for r in results] == [(0, 0, 0), (1, 1, 0), (2, 0, 7), (3, 1, 0)]


def test_leaving_stops_what_still_runs():
    with LOCAL.cluster() as cluster:
        with cluster.live(
            "n1", program(b"import os,time\nprint(os.getpid(),flush=True)\ntime.sleep(60)"), limit_s=60
        ) as group:
            (_, _, pid), *_ = heard(group, 1)
        assert [r.state for r in group.results] == [State.CANCELLED]
        deadline = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pid}").exists()


def test_a_stopped_process_holds_nobody_else_up():
    with LOCAL.cluster() as cluster, cluster.live("n[1-2]", program(), limit_s=20) as group:
        heard(group, 2)
        group.send("die" + "n1")
        heard(group, 2)
        started = time.monotonic()
        for _ in range(200):
            group.send("x" * 1000)
        assert time.monotonic() - started < 1.0, "send never waits"
        assert all(node == "n2" for node, _, _ in heard(group, 200))


def test_the_limit_ends_a_group():
    with LOCAL.cluster() as cluster, cluster.live("n1", program(), limit_s=1.0) as group:
        while group.read(5.0) or not group.ended:
            pass
        assert [r.state for r in group.close()] == [State.TIMEOUT]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("srun: error: n1: tasks 2-3: Exited with exit code 7", [([2, 3], "exit status 7", 7)]),
        ("srun: error: n0: task 0: Killed", [([0], "killed by SIGKILL", -9)]),
        ("srun: error: n[0-1]: tasks 0,2-3: Segmentation fault (core dumped)", [([0, 2, 3], "killed by SIGSEGV", -11)]),
        ("srun: job 3 queued and waiting for resources", []),
    ],
)
def test_what_srun_says_of_its_tasks(text, want):
    assert task_ends(text) == want
