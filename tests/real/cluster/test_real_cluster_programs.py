"""Programs on nodes: lines, frames and beats both ways, to all or to one, each node in the Python of its own pool."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from fairlead.base.program import Program
from fairlead.cluster import Cluster, State
from fairlead.cluster.engine import Engine
from fairlead.cluster.group import MAX_UNSENT_BYTES
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.onnode.guard import STUCK_S, TICK_S, WINDOW_BYTES
from fairlead.cluster.talk import STOP_S
from support.backends import LOCAL
from support.processes import left_after, marked, parent, until

pytestmark = pytest.mark.real

ECHO = Program.of("fairlead-echo", "fairlead.cluster.channel", "support.echo")
slurm_only = pytest.mark.requires("slurm", "munge", "root")


def hear(group, number: int, limit_s: float = 30):
    """That many lines and frames."""
    heard, deadline = [], time.monotonic() + limit_s
    while len(heard) < number and time.monotonic() < deadline:
        heard += [line for line in group.read_all(1.0) if line.rank is not None or line.node]
    assert len(heard) == number, heard
    return heard


def texts(group, number: int) -> list[str]:
    return sorted(line.text for line in hear(group, number))


def test_lines_and_frames_go_to_all_or_to_one_node(world):
    frame = secrets.token_bytes(300_000) + b"\n\0fl\x01"
    with world.cluster() as cluster, cluster.start(ECHO, "n[1-3]", limit_s=60, args=["a b"], first="hello") as group:
        up = texts(group, 6)
        assert [text.split()[:3] for text in up if "got" in text] == [[f"n{i}", "got", "hello"] for i in (1, 2, 3)]
        assert all(text.endswith(" a b") for text in up if "up" in text)
        group.send("only you", to="n2")
        assert texts(group, 1) == ["n2 got only you"]
        group.send(frame)
        assert sorted((line.node, line.stream, line.data == frame) for line in hear(group, 3)) == [
            (f"n{i}", "frame", True) for i in (1, 2, 3)
        ]
        group.send("exit 3", to="n1")
        deadline = time.monotonic() + 60
        while ("n1", None) not in group.ended and time.monotonic() < deadline:
            group.read(0.5)
        assert group.ended["n1", None].rc == 3
        group.send("after", to="n1")  # nobody is there: no fault
        group.send("still there")
        assert texts(group, 2) == ["n2 got still there", "n3 got still there"]


def test_ranks_are_spoken_to_one_by_one_and_give_signs_of_life(world):
    with world.cluster() as cluster, cluster.start(ECHO, "n[1-2]", per_node=2, limit_s=60) as group:
        hear(group, 4)
        for rank in range(4):
            group.send(f"you are {rank}", to=rank)
        assert texts(group, 4) == [f"n{1 + rank // 2}/{rank} got you are {rank}" for rank in range(4)]
        group.send(b"\1" * 70_000, to=2)
        assert [(line.rank, line.data) for line in hear(group, 1)] == [(2, b"\1" * 70_000)]
        group.send("both", to="n1")
        assert texts(group, 2) == ["n1/0 got both", "n1/1 got both"]
        for _ in range(5):
            group.send("beat working")
        deadline = time.monotonic() + 60
        while len(group.beats) < 4 and time.monotonic() < deadline:
            assert group.read(0.2) is None
        assert {key: beat.text for key, beat in group.beats.items()} == {
            (f"n{1 + rank // 2}", rank): "working" for rank in range(4)
        }


def test_each_node_runs_in_the_python_of_its_own_pool(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).symlink_to(Path(sys.executable).resolve())
    pools = {"n1": str(tmp_path / "first"), "n2": str(tmp_path / "second")}
    engine = Engine(LocalBackend(), python_of=pools.__getitem__)
    with Cluster(engine) as cluster, cluster.start(ECHO, "n[1-2]", limit_s=60) as group:
        assert {line.node: line.text.split()[2] for line in hear(group, 2)} == pools


def test_a_process_that_takes_nothing_for_a_while_is_waited_for():
    """Frames are not piled up anywhere: the sender waits."""
    engine = Engine(LocalBackend())
    with Cluster(engine) as cluster, cluster.start(ECHO, "n1", limit_s=120) as group:
        hear(group, 1)
        group.send("hold 2")
        back, most = [], 0
        started = time.monotonic()
        for _ in range(12):
            group.send(b"z" * (1 << 20))
            back += group.read_all(0.0)
            most = max(most, group._group.ways(None)[0]._num_bytes)
        assert 1 < time.monotonic() - started < 60
        assert MAX_UNSENT_BYTES <= most <= MAX_UNSENT_BYTES + (2 << 20)
        back += hear(group, 12 - len(back))
        assert {len(line.data) for line in back} == {1 << 20}


def test_one_rank_that_takes_nothing_any_more_does_not_hold_the_others_for_good():
    with Cluster(Engine(LocalBackend())) as cluster, cluster.start(ECHO, "n1", per_node=2, limit_s=120) as group:
        hear(group, 2)
        group.send("hold 600", to=1)
        for _ in range(4):
            group.send(b"z" * (WINDOW_BYTES // 2))
        got, deadline = [], time.monotonic() + STUCK_S + 20
        while len(got) < 4 and time.monotonic() < deadline:
            got += [line.rank for line in group.read_all(1.0) if line.stream == "frame"]
        assert got == [0, 0, 0, 0]
        assert group.ended["n1", 1].rc == -signal.SIGKILL


def test_a_node_that_talks_without_end_holds_up_nobody():
    with Cluster(Engine(LocalBackend())) as cluster, cluster.start(ECHO, "n[1-8]", limit_s=60) as group:
        hear(group, 8)
        group.send("flood", to="n1")
        for number in range(20):
            group.send(f"x{number}", to="n5")
            deadline = time.monotonic() + 60
            while f"n5 got x{number}" not in [line.text for line in group.read_all(1.0)]:
                assert time.monotonic() < deadline


def test_nodes_that_are_not_reached_yet_are_known():
    class Slow(LocalBackend):
        def wrap(self, node, argv):
            return ["sh", "-c", 'sleep 1; exec "$@"', "sh", *argv]

    with Cluster(Engine(Slow(), fanout=2)) as cluster, cluster.start(ECHO, "n[1-4]", limit_s=60) as group:
        assert group.num_starting == 4
        hear(group, 2)
        assert group.num_starting <= 2
        hear(group, 2)
        assert group.num_starting == 0


# ---- as real tasks of Slurm ------------------------------------------------------------------------------------------


@slurm_only
def test_tasks_of_slurm_take_part_as_well(slurm_world):
    with slurm_world.cluster() as cluster:
        group = cluster.start(ECHO, "n[1-2]", per_node=2, as_tasks=True, limit_s=60, first=b"\0config\n")
        with group:
            assert group.kind == "tasks"
            up = hear(group, 8)
            assert sorted(line.rank for line in up if line.data == b"\0config\n") == [0, 1, 2, 3]
            group.send("only you", to=2)
            assert texts(group, 1) == ["n2/2 got only you"]
            group.send("both", to="n1")
            assert texts(group, 2) == ["n1/0 got both", "n1/1 got both"]
            frame = secrets.token_bytes(200_000)
            group.send(frame, to=3)
            assert [(line.rank, line.data == frame) for line in hear(group, 1)] == [(3, True)]
            group.send("beat here")
            deadline = time.monotonic() + 60
            while len(group.beats) < 4 and time.monotonic() < deadline:
                group.read(0.2)
            assert group.beats["n2", 3].text == "here"
            group.send("exit 0")
            assert {r.state for r in group.close(20)} == {State.DONE}


@slurm_only
def test_pools_of_different_python_are_steps_of_one_group(slurm_world, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).symlink_to(Path(sys.executable).resolve())
    tmp_path.chmod(0o755)

    def python_of(node):
        return str(tmp_path / ("first" if node in ("n1", "n3") else "second"))

    with slurm_world.cluster(python_of=python_of) as cluster:
        with cluster.start(ECHO, "n[1-3]", per_node=2, as_tasks=True, limit_s=60) as group:
            up = {line.rank: line.text.split()[:3:2] for line in hear(group, 6)}
            assert up == {
                0: ["n1/0", str(tmp_path / "first")], 1: ["n1/1", str(tmp_path / "first")],
                2: ["n3/2", str(tmp_path / "first")], 3: ["n3/3", str(tmp_path / "first")],
                4: ["n2/4", str(tmp_path / "second")], 5: ["n2/5", str(tmp_path / "second")],
            }  # fmt: skip
            group.send("hi", to=4)
            assert texts(group, 1) == ["n2/4 got hi"]
            group.send("all")
            assert len(texts(group, 6)) == 6
            group.send("exit 7", to=5)
            deadline = time.monotonic() + 60
            while ("n2", 5) not in group.ended and time.monotonic() < deadline:
                group.read(0.5)
            assert group.ended["n2", 5].rc == 7
            results = group.close()
        assert [(r.rank, r.node) for r in results] == [
            (i, node) for i, node in enumerate(["n1", "n1", "n3", "n3", "n2", "n2"])
        ]


def test_whatever_a_program_does_its_node_gives_signs_of_life(world):
    with world.cluster() as cluster, cluster.live("n[1-2]", ["sleep", "600"], limit_s=120) as group:
        seen: dict[str, set[float]] = {"n1": set(), "n2": set()}
        deadline = time.monotonic() + 60
        while min(map(len, seen.values())) < 4 and time.monotonic() < deadline:
            group.read_all(0.2)
            for node, at in group.alive.items():
                seen[node].add(at)
        assert min(map(len, seen.values())) >= 4
        assert all(group.begun[node] < min(times) for node, times in seen.items())


def test_a_node_that_is_stopped_as_a_whole_falls_silent_and_is_cut_off_at_once():
    mark = "86400.1187"
    with LOCAL.cluster() as cluster:
        with cluster.live("n1", ["sleep", mark], limit_s=120) as group:
            assert until(lambda: (group.read_all(0.2), marked(mark))[1])
            (pid,) = marked(mark)
            os.kill(parent(pid), signal.SIGSTOP)
            group.read_all(0.2)
            last, deadline = group.alive["n1"], time.monotonic() + 3 * TICK_S
            while time.monotonic() < deadline:
                group.read_all(0.2)
            assert group.alive["n1"] - last < 0.5, "what was on its way"
            began = time.monotonic()
            group.give_up("n1")
            (result,) = group.close()
            assert time.monotonic() - began < STOP_S, "it was heard out"
        assert result.state is State.CANCELLED
    assert not left_after(mark, 60)
