"""What needs a special place on this machine: a full disk, another user, a frozen process, many nodes at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fairlead.cluster import Cluster, State
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.protocol import Refusal
from fairlead.errors import DiskFull, MissingTool, NotPermitted, UsageError
from support.backends import LOCAL, Prefixed
from support.processes import left_after, marked, parent, until_marked

pytestmark = pytest.mark.real


def states(results):
    return [str(r.state) for r in results]


@pytest.fixture
def small_disk(tmp_path):
    """Four MiB, and gone at the end."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "fairlead-test", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.requires("root")
def test_a_full_disk_on_a_node_is_a_result_and_leaves_nothing(tmp_path, small_disk):
    source = tmp_path / "large"
    source.write_bytes(os.urandom(6 << 20))
    with LOCAL.cluster() as cluster:
        [result] = cluster.push("n1", source, str(small_disk / "x"), limit_s=20)
    assert (result.state, result.error) == (State.FAILED, f"{small_disk}/x: No space left on device")
    assert list(small_disk.iterdir()) == []


@pytest.mark.requires("root")
def test_a_full_disk_here_is_an_error_and_leaves_nothing(tmp_path, small_disk):
    source = tmp_path / "large"
    source.write_bytes(os.urandom(6 << 20))
    with LOCAL.cluster() as cluster, pytest.raises(DiskFull):
        cluster.fetch("n[1-3]", str(source), small_disk / "back", limit_s=20, max_bytes=1 << 30)
    assert not [p for p in small_disk.rglob("*") if p.is_file()]


@pytest.mark.requires("root")
def test_a_copy_keeps_the_old_file_until_the_new_one_is_whole(tmp_path, small_disk):
    source, target = tmp_path / "large", small_disk / "x"
    source.write_bytes(os.urandom(6 << 20))
    target.write_text("old")
    with LOCAL.cluster() as cluster:
        [result] = cluster.push("n1", source, str(target), limit_s=20)
    assert not result.ok
    assert target.read_text() == "old"


@pytest.mark.requires("root")
def test_what_another_user_may_not_do():
    with tempfile.TemporaryDirectory(prefix="fl-nobody-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        secret = place / "secret"
        secret.write_text("y")
        secret.chmod(0o600)
        nobody = Prefixed("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
        with Cluster(Engine(nobody, python_of=lambda _: "/usr/bin/python3")) as cluster:
            [pushed] = cluster.push("n1", secret, "/root/x", limit_s=20)
            [fetched] = cluster.fetch("n1", str(secret), place / "back", limit_s=20, max_bytes=99)
            [ran] = cluster.run("n1", [str(secret)], limit_s=20)
    assert (pushed.state, pushed.error) == (State.FAILED, "/root/x: Permission denied")
    assert (fetched.state, fetched.error) == (State.FAILED, f"{secret}: Permission denied")
    assert (ran.state, ran.rc, ran.error) == (State.FAILED, 126, f"cannot run `{secret}`: Permission denied")


@pytest.mark.requires("root")
def test_a_folder_that_cannot_be_written_here(tmp_path):
    place = tmp_path / "read-only"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "fairlead-test", str(place)], check=True)
    try:
        with LOCAL.cluster() as cluster, pytest.raises(NotPermitted):
            cluster.fetch("n1", "/etc/passwd", place, limit_s=20, max_bytes=1 << 20)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_what_a_killed_copy_left_is_cleaned_by_the_next(tmp_path):
    target = tmp_path / "target"
    left = tmp_path / ".target.fairlead-1-1"
    left.write_text("half")
    source = tmp_path / "source"
    source.write_text("whole")
    with LOCAL.cluster() as cluster:
        [result] = cluster.push("n1", source, str(target), limit_s=20)
    assert result.ok
    assert not left.exists()
    assert target.read_text() == "whole"


def test_two_copies_to_one_place_at_once_leave_one_whole_file(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    content = os.urandom(4 << 20)
    source.write_bytes(content)
    with LOCAL.cluster() as cluster:
        results = cluster.push("n[1-6]", source, str(target), limit_s=60)
    assert states(results) == ["done"] * 6
    assert target.read_bytes() == content
    assert {p.name for p in tmp_path.iterdir()} == {"source", "target"}


def test_a_frozen_node_is_given_up_in_time(mark):
    """Not even the node-side program answers: this machine's part of the connection is cut."""
    results = []

    def run() -> None:
        with LOCAL.cluster() as cluster:
            results[:] = cluster.run("n[1-2]", ["sh", "-c", f"[ $FAIRLEAD_NODE = n2 ] || sleep {mark}"], limit_s=3)

    thread = threading.Thread(target=run)
    thread.start()
    # the shell of the other node has the mark, too, as long as it lives
    [sleeper] = until_marked(f"sleep\0{mark}", 1)
    os.kill(parent(parent(sleeper)), signal.SIGSTOP)
    thread.join(60)
    assert states(results) == ["timeout", "done"]
    assert "did not answer when told to stop" in results[0].error
    assert left_after(mark, 20) == {}


def test_the_limit_holds_on_the_node_when_nobody_is_left_to_enforce_it(mark):
    """The asking side is frozen: a lost network looks the same from the node."""
    program = f"""
from fairlead.cluster import Cluster
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
with Cluster(Engine(LocalBackend())) as cluster:
    cluster.run("n1", ["sleep", "{mark}"], limit_s=2)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        until_marked(f"sleep\0{mark}", 1)
        process.send_signal(signal.SIGSTOP)
        assert left_after(f"sleep\0{mark}", 60) == {}
    finally:
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0


def test_a_killed_node_side_program_takes_its_command_with_it(mark):
    results = []

    def call() -> None:
        with LOCAL.cluster() as cluster:
            results.extend(cluster.run("n1", ["sleep", mark], limit_s=30))

    thread = threading.Thread(target=call)
    thread.start()
    [sleeper] = until_marked(f"sleep\0{mark}", 1)
    os.kill(parent(sleeper), signal.SIGKILL)
    thread.join(60)
    assert states(results) == ["unreachable"]
    assert left_after(mark, 20) == {}


def high_water_kib() -> int:
    """The most memory this process has had at once."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def test_a_consumer_that_is_slow_slows_the_command_not_the_memory():
    seen = []

    def slow(line) -> None:
        if len(seen) < 20:
            time.sleep(0.02)
        seen.append(len(line.text))

    Path("/proc/self/clear_refs").write_text("5")  # the high water of memory begins anew: proc_pid_clear_refs(5)
    before = high_water_kib()
    with LOCAL.cluster() as cluster:
        [result] = cluster.run(
            "n1", ["sh", "-c", "yes 0123456789abcdef 2>/dev/null | head -n 2000000"], limit_s=60, on_line=slow
        )
    assert result.ok
    assert len(seen) == 2_000_000
    assert result.stdout.is_truncated
    assert high_water_kib() - before < 60_000


def test_a_command_that_ignores_its_input_is_no_fault():
    from fairlead.cluster import Command

    with LOCAL.cluster() as cluster:
        results = cluster.run("n[1-2]", Command(argv=("true",), stdin=b"x" * (8 << 20)), limit_s=30)
    assert states(results) == ["done", "done"]


def test_the_fan_out_is_a_bound_for_commands_and_not_for_groups(tmp_path):
    meter = f"""
import os, time
os.close(os.open("{tmp_path}/" + os.environ["FAIRLEAD_NODE"], os.O_CREAT))
time.sleep(0.3)
print(len(os.listdir("{tmp_path}")))
os.unlink("{tmp_path}/" + os.environ["FAIRLEAD_NODE"])
"""
    together = f"""
import os, time
os.close(os.open("{tmp_path}/rank" + os.environ["RANK"], os.O_CREAT))
while len(os.listdir("{tmp_path}")) < 6:
    time.sleep(0.02)
"""
    with LOCAL.cluster(fanout=2) as cluster:
        results = cluster.run("n[1-6]", ["python3", "-c", meter], limit_s=60)
        assert states(results) == ["done"] * 6
        assert max(int(r.stdout.text) for r in results) <= 2
        ranks = cluster.run_ranks("n[1-6]", ["python3", "-c", together], per_node=1, limit_s=30)
    assert states(ranks) == ["done"] * 6


def test_how_far_a_call_is_can_be_watched(tmp_path):
    """The second node ends when the watcher has heard that only it is out."""
    seen = []

    def watch(done, total, out) -> None:
        seen.append((done, total, str(out)))
        if seen[-1] == (1, 2, "n2"):
            (tmp_path / "seen").touch()

    script = f"[ $FAIRLEAD_NODE = n1 ] || until [ -e {tmp_path}/seen ]; do sleep 0.05; done"
    with LOCAL.cluster(watch=watch) as cluster:
        assert states(cluster.run("n[1-2]", ["sh", "-c", script], limit_s=60)) == ["done"] * 2
    assert seen[-1] == (2, 2, "")


@pytest.mark.parametrize("nodes", ["", "n9", "n[7-9]", "n[1-"])
def test_a_wrong_node_set_runs_nothing(nodes):
    from fairlead.base.nodeset import NodeSet

    with LOCAL.cluster(known=NodeSet("n[1-4]")) as cluster, pytest.raises(UsageError) as caught:
        cluster.run(nodes, ["true"], limit_s=1)
    assert caught.value.code in ("nodes/empty", "nodes/unknown", "nodes/syntax")
    assert caught.value.hint


def test_a_way_that_is_not_installed_is_an_error():
    with Cluster(Engine(Prefixed("no-such-ssh"))) as cluster, pytest.raises(MissingTool) as caught:
        cluster.run("n[1-3]", ["true"], limit_s=5)
    assert "no-such-ssh" in caught.value.message


def test_too_many_connections_for_this_process_are_refused_before_any_is_made():
    program = """
import resource
from fairlead.cluster import Cluster
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
from fairlead.errors import ClusterError
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
with Cluster(Engine(LocalBackend(), fanout=100)) as cluster:
    try:
        cluster.run("n[1-100]", ["true"], limit_s=5)
    except ClusterError as error:
        print(error.code, error.hint)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("cluster/too-many-files ulimit -n "), done.stderr


def test_a_few_more_files_than_the_soft_limit_are_asked_for():
    program = """
import resource
from fairlead.cluster import Cluster
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
with Cluster(Engine(LocalBackend(), fanout=40)) as cluster:
    print(sum(r.ok for r in cluster.run("n[1-40]", ["true"], limit_s=30)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "40\n", done.stderr


async def test_a_cancelled_task_stops_its_nodes_and_keeps_their_results(mark):
    engine = Engine(LocalBackend(), fanout=2)
    task = asyncio.create_task(engine.run("n[1-3]", ["sleep", mark], limit_s=60))
    while len(marked(f"sleep\0{mark}")) < 2:
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_after(mark, 20) == {}
    assert [(str(r.state), r.error) for r in engine.last] == [
        ("cancelled", "stopped"), ("cancelled", "stopped"), ("cancelled", "not started"),
    ]  # fmt: skip


async def test_a_timeout_of_the_caller_works_around_a_call():
    engine = Engine(LocalBackend())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.7):
            await engine.run("n1", ["sleep", "3600"], limit_s=60)
    assert states(await engine.run("n1", ["true"], limit_s=20)) == ["done"]


async def test_two_calls_on_one_cluster_at_once():
    engine = Engine(LocalBackend())
    first, second = await asyncio.gather(
        engine.run("n[1-2]", ["sh", "-c", "sleep 0.5; echo 1"], limit_s=20),
        engine.run("n[1-2]", ["echo", "2"], limit_s=20),
    )
    assert [r.stdout.text for r in (*first, *second)] == ["1\n", "1\n", "2\n", "2\n"]


def test_a_node_that_waits_for_its_turn_loses_none_of_its_time():
    with LOCAL.cluster(fanout=1) as cluster:
        results = cluster.run("n[1-3]", ["sleep", "1.5"], limit_s=4)  # the third begins after 3 s
    assert states(results) == ["done"] * 3


def test_a_group_is_not_begun_without_a_member(tmp_path):
    class OneShort(LocalBackend):
        async def ready(self, nodes):
            return {"n2": Refusal(State.UNREACHABLE, "it does not answer")}

    with Cluster(Engine(OneShort())) as cluster:
        script = f"touch {tmp_path}/$RANK"
        results = cluster.run_ranks("n[1-3]", ["sh", "-c", script], per_node=2, limit_s=20)
        assert states(results) == ["cancelled"] * 2 + ["unreachable"] * 2 + ["cancelled"] * 2
        assert list(tmp_path.iterdir()) == []
        # a group that may be incomplete is
        results = cluster.run_ranks("n[1-3]", ["sh", "-c", script], per_node=2, limit_s=20, stop_on_failure=False)
        assert states(results) == ["done"] * 2 + ["unreachable"] * 2 + ["done"] * 2


SLOW_LINE = """
import os, queue, threading, time
late = queue.SimpleQueue()
def write():
    while (item := late.get())[1]:
        time.sleep(max(0.0, item[0] - time.monotonic()))
        os.write(1, item[1])
threading.Thread(target=write).start()
while data := os.read(0, 65536):
    late.put((time.monotonic() + 1.2, data))
late.put((0, b""))
"""


def test_a_far_node_is_heard_out_when_it_is_told_to_stop(mark):
    """Every byte takes 1.2 s to come back."""
    far = Prefixed("sh", "-c", f"\"$@\" | python3 -c '{SLOW_LINE}'", "sh")
    with Cluster(Engine(far)) as cluster:
        script = f"[ $RANK = 1 ] && exit 7; sleep {mark}"
        results = cluster.run_ranks("n[1-2]", ["sh", "-c", script], per_node=1, limit_s=30)
    assert [(str(r.state), r.error) for r in results] == [("cancelled", "stopped"), ("failed", "exit status 7")]
    assert left_after(mark, 20) == {}


def test_a_way_that_is_slow_takes_nothing_from_the_time_of_the_command():
    """A name server that does not answer costs a login 5 s (resolv.conf(5)); a busy machine here costs as much."""
    slow = Prefixed("sh", "-c", 'sleep 1.1; exec "$@"', "sh")
    with Cluster(Engine(slow)) as cluster:
        results = cluster.run("n[1-2]", ["sh", "-c", "[ $FAIRLEAD_NODE = n1 ] || exec sleep 60"], limit_s=1)
    assert [(str(r.state), r.error) for r in results] == [("done", ""), ("timeout", "ran into the limit of 1 s")]


def test_a_busy_node_is_heard_out_at_its_limit(mark, tmp_path):
    """Frozen for a second when the limit comes: the status of what it killed is still told."""
    busy = Prefixed("sh", "-c", f'echo $$ > {tmp_path}/guard; exec "$@"', "sh")
    results = []

    def run() -> None:
        with Cluster(Engine(busy)) as cluster:
            results[:] = cluster.run("n1", ["sh", "-c", f"trap '' TERM; while :; do sleep {mark}; done"], limit_s=2)

    thread = threading.Thread(target=run)
    thread.start()
    until_marked(mark, 2)
    guard = int((tmp_path / "guard").read_text())
    os.kill(guard, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(guard, signal.SIGCONT)
    thread.join(60)
    assert [(r.state, r.rc, r.error) for r in results] == [(State.TIMEOUT, -9, "ran into the limit of 2 s")]
    assert left_after(mark, 20) == {}
