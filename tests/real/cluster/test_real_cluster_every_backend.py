"""What every backend must do alike: a result for every node, limits that hold, nothing left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fairlead.cluster import Command, State
from support.processes import left_after, until_marked

pytestmark = pytest.mark.real


def states(results):
    return [str(r.state) for r in results]


def test_every_node_has_its_result_whatever_the_others_do(world, mark):
    script = f"""
    case $FAIRLEAD_NODE in
        n1) echo fine;;
        n2) echo wrong >&2; exit 3;;
        n3) trap '' TERM HUP INT; echo hanging; while :; do sleep {mark}; done;;
        n4) kill -SEGV $$;;
    esac"""
    records = []
    with world.cluster(recorder=records.append) as cluster:
        cluster.run(world.nodes, ["true"], limit_s=30)
        results = cluster.run(world.nodes, ["sh", "-c", script], limit_s=5)
    assert states(results) == ["done", "failed", "timeout", "failed"]
    killed = results[2].rc  # on a machine that is very busy, how it ended may come too late to be known
    assert killed in (-9, None)
    assert [r.rc for r in results if r is not results[2]] == [0, 3, -11]
    assert [r.stdout.text for r in results] == ["fine\n", "", "hanging\n", ""]
    assert results[1].stderr.text == "wrong\n"
    assert results[2].error == "ran into the limit of 5 s"
    assert results[3].error == "killed by SIGSEGV"
    assert 5 <= results[2].duration_s < 20
    assert left_after(mark, 20) == {}
    assert records[-1].via == world.name
    assert records[-1].states == {"done": "n1", "failed": "n[2,4]", "timeout": "n3"}


def test_bytes_pass_unchanged_both_ways(world):
    data = bytes(range(256)) * 4000 + b"\xe2\x82"  # ends in half a character
    with world.cluster() as cluster:
        [result] = cluster.run("n1", Command(argv=("cat",), stdin=data), limit_s=20, keep_bytes=1 << 22)
    assert result.ok, result
    assert result.stdout.data == data
    assert result.stdout.text.endswith(r"\xe2\x82")


def test_words_and_environment_pass_unchanged(world):
    words = ["a b", "", "$HOME", "'\"\\", "*", "nön-äscii", "line\nbreak", "; exit 9"]
    show = "sys.argv[1:], os.environ['VALUE'], os.environ['FAIRLEAD_NODE'], os.getcwd()"
    code = f"import sys, os, json; print(json.dumps([{show}]))"
    command = Command(argv=("python3", "-c", code, *words), env={"VALUE": "x'y $z"}, cwd="/usr")
    with world.cluster() as cluster:
        [result] = cluster.run("n2", command, limit_s=20)
    import json

    assert json.loads(result.stdout.text) == [words, "x'y $z", "n2", "/usr"]


def test_huge_output_stays_small_here(world):
    with world.cluster() as cluster:
        [result] = cluster.run(
            "n1", ["sh", "-c", "echo first; head -c 300000000 /dev/zero; echo last"], limit_s=60, keep_bytes=4096
        )
    assert result.ok, result
    assert result.stdout.num_bytes == 300_000_011
    assert result.stdout.is_truncated
    assert result.stdout.data.startswith(b"first\n")
    assert result.stdout.data.endswith(b"last\n")
    assert len(result.stdout.data) < 5000


def test_what_cannot_be_started_says_so(world):
    with world.cluster() as cluster:
        [missing] = cluster.run("n1", ["no-such-program-here"], limit_s=20)
        [directory] = cluster.run("n1", Command(argv=("true",), cwd="/no/such/folder"), limit_s=20)
        [not_program] = cluster.run("n1", ["/etc/passwd"], limit_s=20)
    assert (missing.state, missing.rc, missing.error) == (
        State.FAILED,
        127,
        "there is no program `no-such-program-here`",
    )
    assert (directory.state, directory.rc) == (State.FAILED, 126)
    assert directory.error == "cannot start in /no/such/folder: No such file or directory"
    assert (not_program.state, not_program.rc) == (State.FAILED, 126)


def test_what_a_command_leaves_running_ends_with_it(world, mark):
    """Also what has a session of its own and has lost its parent, and holds the output pipe open."""
    with world.cluster() as cluster:
        [result] = cluster.run(
            "n1", ["sh", "-c", f"(setsid sh -c 'sleep {mark} & sleep {mark}' &); echo done"], limit_s=20
        )
        assert left_after(mark, 20) == {}
    assert result.ok
    assert result.stdout.text == "done\n"


def test_each_node_its_own_command_at_the_same_time(world, tmp_path):
    def meet(me: int, other: int) -> Command:
        script = f"touch {tmp_path}/{me}; while [ ! -e {tmp_path}/{other} ]; do sleep 0.05; done; echo {me}"
        return Command(argv=("sh", "-c", script))

    with world.cluster() as cluster:
        results = cluster.run_each({"n1": meet(1, 2), "n2": meet(2, 1)}, limit_s=30)
    assert [r.stdout.text for r in results] == ["1\n", "2\n"]


def test_a_group_of_ranks_knows_its_places(world):
    script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $FAIRLEAD_NODE; cat"
    heard = []
    with world.cluster() as cluster:
        results = cluster.run_ranks(
            "n[1-2]",
            Command(argv=("sh", "-c", script), stdin=b"the same for all\n"),
            per_node=3,
            limit_s=20,
            on_line=heard.append,
        )
    assert states(results) == ["done"] * 6
    assert [(r.node, r.rank, r.local_rank) for r in results] == [
        ("n1", 0, 0), ("n1", 1, 1), ("n1", 2, 2), ("n2", 3, 0), ("n2", 4, 1), ("n2", 5, 2),
    ]  # fmt: skip
    assert [r.stdout.text for r in results] == [
        f"{rank} {rank % 3} 6 3 {rank // 3} n{rank // 3 + 1}\nthe same for all\n" for rank in range(6)
    ]
    assert {line.rank for line in heard if line.text == "the same for all"} == set(range(6))


def test_lines_arrive_while_ranks_still_run(world, tmp_path):
    """The rank goes on when its first lines have been heard here."""
    arrived = []

    def hear(line) -> None:
        arrived.append((line.stream, line.text))
        if len(arrived) == 2:
            (tmp_path / "heard").touch()

    script = f"echo a; echo b >&2; until [ -e {tmp_path}/heard ]; do sleep 0.05; done; echo c"
    with world.cluster() as cluster:
        results = cluster.run_ranks("n1", ["sh", "-c", script], per_node=1, limit_s=60, on_line=hear)
    assert states(results) == ["done"]
    assert sorted(arrived) == [("stderr", "b"), ("stdout", "a"), ("stdout", "c")]
    assert arrived[-1] == ("stdout", "c")


def test_the_first_rank_that_fails_stops_its_group(world, mark):
    script = f"[ $RANK = 1 ] && sleep 0.5 && exit 7; trap '' TERM; sleep {mark}"
    with world.cluster() as cluster:
        cluster.run("n[1-2]", ["true"], limit_s=30)
        results = cluster.run_ranks("n[1-2]", ["sh", "-c", script], per_node=2, limit_s=60)
    assert states(results) == ["cancelled", "failed", "cancelled", "cancelled"]
    assert results[1].rc == 7
    assert left_after(mark, 20) == {}


def test_ranks_may_also_fail_alone(world):
    with world.cluster() as cluster:
        results = cluster.run_ranks(
            "n[1-2]", ["sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 1"], per_node=2, limit_s=30, stop_on_failure=False
        )
    assert states(results) == ["done", "failed", "done", "done"]


def test_files_arrive_whole_with_their_mode(world, tmp_path):
    source, target = tmp_path / "source", tmp_path / "there/deep/target"
    content = os.urandom(3_000_001)
    source.write_bytes(content)
    with world.cluster() as cluster:
        pushed = cluster.push("n1", source, str(target), limit_s=60, mode=0o750)
        fetched = cluster.fetch("n[1-2]", str(target), tmp_path / "back", limit_s=60, max_bytes=1 << 30)
    assert states(pushed) == ["done"], pushed
    assert target.read_bytes() == content
    assert target.stat().st_mode & 0o777 == 0o750
    assert states(fetched) == ["done", "done"]
    assert (tmp_path / "back/n2/target").read_bytes() == content
    assert sorted(p.name for p in target.parent.iterdir()) == ["target"]


def test_copies_that_cannot_be_made_say_so_and_leave_nothing(world, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    with world.cluster() as cluster:
        errors = {}
        for target in ("folder", "file/below"):
            [result] = cluster.push("n1", source, str(tmp_path / target), limit_s=60)
            errors[target] = (str(result.state), result.error.removeprefix(str(tmp_path)))
        for name, allowed in (("nothing", 99), ("folder", 99), ("fifo", 99), ("source", 99)):
            [result] = cluster.fetch("n1", str(tmp_path / name), tmp_path / "back", limit_s=60, max_bytes=allowed)
            errors[f"fetch {name}"] = (str(result.state), result.error.removeprefix(str(tmp_path)))
    assert errors == {
        "folder": ("failed", "/folder: Is a directory"),
        "file/below": ("failed", "/file/below: File exists"),
        "fetch nothing": ("failed", "/nothing: No such file or directory"),
        "fetch folder": ("failed", "/folder: Is a directory"),
        "fetch fifo": ("failed", "/fifo: Not a regular file"),
        "fetch source": ("failed", "/source: Larger than the 99 bytes allowed"),
    }
    assert list((tmp_path / "back").iterdir()) == []
    assert {p.name for p in tmp_path.iterdir()} == {"source", "folder", "file", "fifo", "back"}


PROGRAM = """
import os, signal, sys
from fairlead.cluster import Cluster, Interrupted
from fairlead.cluster.engine import Engine
{source}
try:
    with Cluster(Engine(backend)) as cluster:
        cluster.run({nodes!r}, ["true"], limit_s=60)
        print("ready", flush=True)
        cluster.run({nodes!r}, ["sh", "-c", {script!r}], limit_s=600)
except Interrupted as stop:
    print(stop, *(str(r.state) for r in stop.results), sep="|", flush=True)
    sys.exit(130)
"""

STUBBORN = "trap '' TERM HUP INT; (setsid sh -c 'sleep {mark} & sleep {mark}' &); while :; do sleep {mark}; done"
NUM_STUBBORN = 5
"""Processes a node with the mark in their command line: three sleeps and two shells."""


def start(world, mark) -> subprocess.Popen[str]:
    """Another fairlead, with a hanging command on every node."""
    program = PROGRAM.format(source=world.source, nodes=world.nodes, script=STUBBORN.format(mark=mark))
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **world.env},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    until_marked(mark, 4 * NUM_STUBBORN)
    return process


def test_nothing_is_left_after_a_kill(world, mark, request):
    process = start(world, mark)
    process.kill()
    process.communicate()
    assert left_after(mark, 20) == {}
    if world.name == "slurm":
        request.getfixturevalue("slurm").until_no_jobs()


def test_one_interrupt_stops_everything_and_says_so(world, mark, request):
    process = start(world, mark)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == "interrupted; stopped on n[1-4] (4)|cancelled|cancelled|cancelled|cancelled\n"
    assert left_after(mark, 20) == {}
    if world.name == "slurm":
        request.getfixturevalue("slurm").until_no_jobs()


def test_a_second_interrupt_does_not_wait(world, mark, request):
    process = start(world, mark)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.startswith("interrupted"), out
    assert left_after(mark, 20) == {}
    if world.name == "slurm":
        request.getfixturevalue("slurm").until_no_jobs()


def test_two_callers_do_not_disturb_each_other(world, mark):
    outcomes = {}

    def call(name: str, script: str) -> None:
        with world.cluster() as cluster:
            outcomes[name] = [str(r) for r in cluster.run("n[1-2]", ["sh", "-c", script], limit_s=30)]

    threads = [
        threading.Thread(target=call, args=("quick", "echo hi")),
        threading.Thread(target=call, args=("slow", f"sleep 1; exit 3 # {mark}")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {
        "quick": ["n1  done", "n2  done"],
        "slow": ["n1  failed  exit status 3", "n2  failed  exit status 3"],
    }


@pytest.mark.slow
def test_a_large_file_keeps_its_digest(world, tmp_path):
    source = tmp_path / "large"
    digest = hashlib.sha256()
    with source.open("wb") as file:
        for _ in range(200):
            block = os.urandom(1 << 20)
            digest.update(block)
            file.write(block)
    with world.cluster() as cluster:
        [pushed] = cluster.push("n1", source, str(tmp_path / "there"), limit_s=120)
        [fetched] = cluster.fetch("n1", str(tmp_path / "there"), tmp_path / "back", limit_s=120, max_bytes=1 << 30)
    assert pushed.ok, pushed
    assert fetched.ok, fetched
    for path in (tmp_path / "there", tmp_path / "back/n1/there"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest.hexdigest()
