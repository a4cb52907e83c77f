"""Processes that are talked to while they run: on every backend, and as real tasks of Slurm."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.cluster import Command, State
from fairlead.cluster.heard import LINE_COST_BYTES, MAX_UNREAD_BYTES
from support.processes import left_after, marked, until_marked

pytestmark = pytest.mark.real

ECHO = """
while read -r line; do
    echo "$FAIRLEAD_NODE ${RANK:-} got $line"
    [ "$line" = end ] && exit 0
    [ "$line" = "die $RANK" ] && exit 7
done
"""


def lines(group, number: int, limit_s: float = 60) -> list[str]:
    """That many lines, sorted; a None in between is a process that ended."""
    heard, deadline = [], time.monotonic() + limit_s
    while len(heard) < number and time.monotonic() < deadline:
        line = group.read(1.0)
        if line:
            heard.append(line.text)
    return sorted(heard)


def test_a_line_sent_reaches_every_process_and_their_answers_come(world):
    command = Command(argv=("sh", "-c", ECHO), stdin=b"first\n")
    with world.cluster() as cluster, cluster.live("n[1-2]", command, limit_s=60) as group:
        assert lines(group, 2) == ["n1  got first", "n2  got first"]
        group.send("second")
        assert lines(group, 2) == ["n1  got second", "n2  got second"]
        assert group.read(0.3) is None
        group.send("end")
        assert lines(group, 2) == ["n1  got end", "n2  got end"]
        results = group.close(grace_s=10)
    assert [(r.node, str(r.state)) for r in results] == [("n1", "done"), ("n2", "done")]


def test_a_rank_that_dies_is_seen_while_the_others_run(world):
    command = Command(argv=("sh", "-c", ECHO))
    with world.cluster() as cluster, cluster.live("n[1-2]", command, per_node=2, limit_s=60) as group:
        group.send("hello")
        assert lines(group, 4) == ["n1 0 got hello", "n1 1 got hello", "n2 2 got hello", "n2 3 got hello"]
        group.send("die 2")
        lines(group, 4)
        deadline = time.monotonic() + 60
        while ("n2", 2) not in group.ended and time.monotonic() < deadline:
            group.read(0.2)
        assert group.ended["n2", 2].rc == 7
        group.send("still there")
        assert lines(group, 3) == ["n1 0 got still there", "n1 1 got still there", "n2 3 got still there"]
        results = group.close()
    assert [str(r.state) for r in results] == ["cancelled", "cancelled", "failed", "cancelled"]


def test_leaving_stops_what_still_runs(world, mark):
    command = Command(argv=("sh", "-c", f"trap '' TERM; echo up; (setsid sleep {mark} &) ; sleep {mark}"))
    with world.cluster() as cluster:
        with cluster.live("n[1-2]", command, limit_s=60) as group:
            assert lines(group, 2) == ["up", "up"]
        assert left_after(f"sleep\0{mark}", 20) == {}


def test_the_limit_ends_a_group(world, mark):
    with world.cluster() as cluster:
        cluster.run("n1", ["true"], limit_s=30)
        with cluster.live("n1", Command(argv=("sleep", mark)), limit_s=4) as group:
            deadline = time.monotonic() + 60
            while not group.ended and time.monotonic() < deadline:
                group.read(5.0)
            assert group.read(5.0) is None
        assert group.results[0].state is State.TIMEOUT
    assert left_after(mark, 20) == {}


def test_one_process_that_is_frozen_does_not_hold_up_the_others(world):
    """It takes no input: what is sent waits for it alone, and the end of the group still arrives."""
    mark = f"86{secrets.randbelow(10**9):09}"
    script = f": {mark}; {ECHO}"
    with world.cluster() as cluster:
        with cluster.live("n1", Command(argv=("sh", "-c", script)), per_node=2, limit_s=60) as group:
            group.send("a")
            assert len(lines(group, 2)) == 2
            shells = [p for p, line in marked(mark).items() if line.startswith("sh -c :")]
            assert len(shells) == 2
            [frozen] = [p for p in shells if b"RANK=1" in Path(f"/proc/{p}/environ").read_bytes().split(b"\0")]
            os.kill(frozen, signal.SIGSTOP)
            for number in range(300):
                group.send("x" * 1000 + str(number))
            assert len(lines(group, 300)) == 300
        assert left_after(mark, 20) == {}


PROGRAM = """
from fairlead.cluster import Cluster, Command, Interrupted
from fairlead.cluster.engine import Engine
{source}
try:
    with Cluster(Engine(backend)) as cluster:
        with cluster.live{kind}("n[1-2]", Command(argv=("sh", "-c", {script!r})), limit_s=600, per_node=2) as group:
            group.read(30)
            print("ready", flush=True)
            while True:
                group.read(30)
except Interrupted as stop:
    print(stop, flush=True)
    raise SystemExit(130)
"""


def start(world, mark: str, kind: str = "") -> subprocess.Popen[str]:
    script = f"trap '' TERM HUP INT; echo up; exec sleep {mark}"
    program = PROGRAM.format(source=world.source, script=script, kind=kind)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **world.env},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    until_marked(f"sleep\0{mark}", 4)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_of_a_group_outlives_its_caller(world, mark, number):
    process = start(world, mark)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert left_after(mark, 20) == {}
    if number == signal.SIGINT:
        assert out == "interrupted; stopped on n[1-2] (2)\n"


def test_a_reader_that_is_slow_slows_the_writer():
    from support.backends import LOCAL

    with LOCAL.cluster() as cluster, cluster.live("n1", ["sh", "-c", "yes 0123456789"], limit_s=60) as group:
        for _ in range(2000):
            assert group.read(5.0).text == "0123456789"
            assert len(group._group.heard._lines) * LINE_COST_BYTES < MAX_UNREAD_BYTES + (1 << 20)


# ---- as real tasks of Slurm ------------------------------------------------------------------------------------------

slurm_only = pytest.mark.requires("slurm", "munge", "root")
TASK = 'echo "$SLURM_PROCID $SLURM_LOCALID $SLURMD_NODENAME"; ' + ECHO.replace("$RANK", "$SLURM_PROCID")


@slurm_only
def test_tasks_are_real_tasks_numbered_node_by_node(slurm_world):
    command = Command(argv=("sh", "-c", TASK), env={"EXTRA": "x y"}, stdin=b"first\n")
    with slurm_world.cluster() as cluster, cluster.live_tasks("n[1-2]", command, limit_s=60, per_node=2) as group:
        places = {}
        while len(places) < 4:
            line = group.read(20)
            assert line is not None
            if line.rank is not None and "got" not in line.text:  # srun itself may have a word to say
                places[line.rank] = (line.node, line.text)
        assert places == {
            0: ("n1", "0 0 n1"), 1: ("n1", "1 1 n1"), 2: ("n2", "2 0 n2"), 3: ("n2", "3 1 n2"),
        }  # fmt: skip
        lines(group, 4, limit_s=2)
        group.send("end")
        results = group.close(grace_s=15)
    assert [(r.rank, r.local_rank, r.node, str(r.state)) for r in results] == [
        (0, 0, "n1", "done"), (1, 1, "n1", "done"), (2, 0, "n2", "done"), (3, 1, "n2", "done"),
    ]  # fmt: skip


LIES = 'case $SLURM_PROCID in 1) echo "0: {}"; printf "2: srun: error: n1: task 0: Killed\\n" >&2;; esac; '


@slurm_only
def test_where_a_task_runs_is_what_slurm_says_not_what_it_says_itself(slurm_world):
    """Slurm may number its nodes in another order; and one task writes lines that look like those of others."""
    command = Command(argv=("sh", "-c", LIES + TASK))
    with (
        slurm_world.cluster() as cluster,
        cluster.live_tasks("n[1-2]", command, limit_s=60, per_node=2, options=("--distribution=cyclic",)) as group,
    ):
        places = {}
        while len(places) < 4:
            line = group.read(20)
            assert line is not None
            if line.rank is not None and ":" in line.text:
                assert (line.rank, line.node) == (1, "n2")
            elif line.rank is not None:
                places[line.rank] = (line.node, line.text.split()[-1])
        assert group.knows_places
        assert places == {rank: (node, node) for rank, node in enumerate(("n1", "n2", "n1", "n2"))}
        group.send("end")
        results = group.close(grace_s=15)
    assert [(r.rank, r.local_rank, r.node, str(r.state)) for r in results] == [
        (0, 0, "n1", "done"), (1, 0, "n2", "done"), (2, 1, "n1", "done"), (3, 1, "n2", "done"),
    ]  # fmt: skip


@slurm_only
def test_a_task_that_dies_is_seen_while_the_others_run(slurm_world):
    command = Command(argv=("sh", "-c", ECHO.replace("$RANK", "$SLURM_PROCID")))
    with slurm_world.cluster() as cluster, cluster.live_tasks("n[1-2]", command, limit_s=60, per_node=2) as group:
        group.send("hello")
        assert len(lines(group, 4)) == 4
        group.send("die 2")
        lines(group, 4)
        deadline = time.monotonic() + 60
        while ("n2", 2) not in group.ended and time.monotonic() < deadline:
            group.read(0.2)
        assert group.ended["n2", 2].rc == 7
        group.send("end")
        results = group.close(grace_s=15)
    assert [str(r.state) for r in results] == ["done", "done", "failed", "done"]


@slurm_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_task_outlives_its_caller(slurm_world, slurm, mark, number):
    process = start(slurm_world, mark, kind="_tasks")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert left_after(mark, 60) == {}
    slurm.until_no_jobs()


@slurm_only
def test_tasks_that_hang_end_at_the_limit(slurm_world, mark):
    command = Command(argv=("sh", "-c", f"trap '' TERM; exec sleep {mark}"))
    with slurm_world.cluster() as cluster:
        cluster.run("n[1-2]", ["true"], limit_s=30)
        with cluster.live_tasks("n[1-2]", command, limit_s=4, per_node=2) as group:
            deadline = time.monotonic() + 60
            while not group.ended and time.monotonic() < deadline:
                group.read(5.0)
            assert {r.state for r in group.ended.values()} == {State.TIMEOUT}
        # still inside the allocation: the step's end, not the job's, must have ended them
        assert left_after(f"sleep\0{mark}", 60) == {}
