"""Services on real processes: restarted when killed, upgraded in place, gone when stopped, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.launch import service as services
from fairlead.launch.onnode.keeping import Supervised
from fairlead.launch.onnode.service import locked
from fairlead.launch.onnode.supervisor import start_ticks
from fairlead.launch.service import Service, renew, status, stop
from support.backends import LOCAL
from support.services import FAILS, TALKER, is_alive, kill, until, with_mark

pytestmark = pytest.mark.real


@pytest.fixture
def place(tmp_path, monkeypatch) -> Iterator[Path]:
    """Where this test's services have their files; nothing of them is left."""
    monkeypatch.setenv("FAIRLEAD_SERVICES", str(tmp_path))
    yield tmp_path / "fairlead" / "services"
    with LOCAL.cluster() as cluster:
        for state in status(cluster, "n1"):
            stop(cluster, "n1", state.name)
    until(lambda: not with_mark(str(tmp_path)))
    assert supervisors(tmp_path) == []


def supervisors(place: Path) -> list[int]:
    return [
        int(e.name)
        for e in Path("/proc").iterdir()
        if e.name.isdigit() and f"{place}/".encode() in cmdline(e) and b"supervisor.py" in cmdline(e)
    ]


def cmdline(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def talker(mark="8640000.25", **more) -> Service:
    return Service(**{"name": "talk", "source": TALKER % mark, "manager": "supervisor"} | more)


def deploy(cluster, nodes, service, python=sys.executable):
    return services.deploy(cluster, nodes, service, python=python, limit_s=60)


def one(states):
    (found,) = states
    return found


def test_it_outlives_the_command_and_is_seen_and_stopped_by_later_ones(place):
    with LOCAL.cluster() as cluster:
        first = one(deploy(cluster, "n1", talker(args=("a", "b c"), env={"TONE": "loud $x"})))
        assert (first.did, first.state, first.manager, first.ok) == ("started", "running", "supervisor", True)
    time.sleep(0.3)
    assert is_alive(first.pid)
    with LOCAL.cluster() as cluster:
        seen = one(status(cluster, "n1"))
        assert (seen.name, seen.state, seen.pid, seen.restarts) == ("talk", "running", first.pid, 0)
        until(lambda: one(status(cluster, "n1")).log)
        assert one(status(cluster, "n1")).log[0].endswith("['a', 'b c'] loud $x")
        assert seen.lease_s > 86_000
        ended = one(stop(cluster, "n1", "talk"))
        assert (ended.did, ended.state, ended.ok) == ("stopped", "absent", True)
        assert status(cluster, "n1") == []
    assert with_mark(str(place)) == {}, "also what it had started in a session of its own"
    assert not place.exists(), "nor is a file or folder of it left"


def test_its_files_are_its_users_alone_and_what_it_is_told_is_on_no_command_line(place):
    with LOCAL.cluster() as cluster:
        found = one(deploy(cluster, "n1", talker(env={"TONE": "a-secret"})))
    folder = place / "n1" / "talk"
    assert folder.stat().st_mode & 0o077 == 0
    assert all(f.stat().st_mode & 0o077 == 0 for f in folder.iterdir())
    words = [cmdline(Path(f"/proc/{pid}")) for pid in (found.pid, *supervisors(place))]
    assert not any(b"a-secret" in word for word in words)


def test_killed_outright_it_is_started_again_and_what_it_left_is_gone(place):
    with LOCAL.cluster() as cluster:
        first = one(deploy(cluster, "n1", talker()))
        until(lambda: len(with_mark(str(place))) == 2)
        before = set(with_mark(str(place)))
        kill(first.pid)
        began = time.monotonic()
        again = until(lambda: (s := one(status(cluster, "n1"))).state == "running" and s.pid != first.pid and s)
        assert time.monotonic() - began < 10
        assert (again.restarts, again.last_exit) == (1, "killed by SIGKILL")
        until(lambda: not any(is_alive(pid) for pid in before))


def test_its_supervisor_killed_outright_it_ends_and_the_next_deploy_begins_anew(place):
    """An orphan that nobody supervises would run for ever."""
    with LOCAL.cluster() as cluster:
        first = one(deploy(cluster, "n1", talker()))
        (supervisor,) = supervisors(place)
        kill(supervisor)
        until(lambda: not is_alive(first.pid))
        dead = one(status(cluster, "n1"))
        assert (dead.state, dead.last_exit, dead.ok) == ("dead", "its supervisor was killed", False)
        again = one(deploy(cluster, "n1", talker()))
        assert (again.did, again.state) == ("upgraded", "running")
        assert len(supervisors(place)) == 1


def test_one_that_fails_at_once_waits_longer_and_longer_and_says_why(place):
    with LOCAL.cluster() as cluster:
        found = one(deploy(cluster, "n1", talker(source=FAILS)))
        assert not found.ok
        found = until(lambda: (s := one(status(cluster, "n1"))).restarts >= 3 and s)
        assert found.state in ("waiting", "dead", "running")
        assert found.last_exit == "exit status 3"
        assert "no luck" in found.log
        pauses = [float(w.rpartition("again in ")[2].split()[0]) for w in found.log if "again in" in w]
        assert pauses == sorted(pauses)
        assert pauses[-1] >= 2.0


def test_an_upgrade_replaces_it_with_no_gap_but_a_restart_and_the_same_again_changes_nothing(place):
    with LOCAL.cluster() as cluster:
        first = one(deploy(cluster, "n1", talker()))
        (supervisor,) = supervisors(place)
        assert one(deploy(cluster, "n1", talker())).did == "unchanged"
        assert is_alive(first.pid)
        second = one(deploy(cluster, "n1", talker(args=("new",))))
        assert (second.did, second.state) == ("upgraded", "running")
        assert second.digest != first.digest
        assert not is_alive(first.pid)
        assert supervisors(place) == [supervisor], "the supervisor stays"
        assert second.up_s < 8
        programs = [f.name for f in (place / "n1" / "talk").iterdir() if f.name.startswith("program-")]
        assert len(programs) == 1


def test_two_deploys_at_once_take_turns_and_one_service_runs(place):
    found = {}

    def go(tone):
        with LOCAL.cluster() as cluster:
            found[tone] = one(deploy(cluster, "n1", talker(env={"TONE": tone})))

    threads = [threading.Thread(target=go, args=(tone,)) for tone in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(s.did for s in found.values()) == ["started", "upgraded", "upgraded"]
    assert len(supervisors(place)) == 1
    with LOCAL.cluster() as cluster:
        now = one(status(cluster, "n1"))
    assert now.digest in {s.digest for s in found.values()}
    mine = [pid for pid, words in with_mark(str(place)).items() if "program-" in words]
    assert mine == [now.pid]


def test_requests_that_take_the_last_empty_folder_away_are_in_nobodys_way(tmp_path):
    failed = []

    def go(name):
        try:
            for _ in range(300):
                with locked(str(tmp_path / "a" / "b" / "c" / name)):  # which leaves no service: its folders go, too
                    pass
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=go, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert list(tmp_path.iterdir()) == []


def test_a_supervisor_that_ends_just_before_it_is_told_is_replaced(place, monkeypatch):
    """Its lease may end at any moment: here between the look at it and the signal to it."""
    with LOCAL.cluster() as cluster:
        first = one(deploy(cluster, "n1", talker()))
        folder = place / "n1" / "talk"
        at_work = Supervised(str(folder))
        seen = at_work.running()
        kill(seen["pid"])
        until(lambda: start_ticks(seen["pid"]) < 0)
        monkeypatch.setattr(at_work, "running", lambda: seen)
        at_work.renew()
        at_work.apply(json.loads((folder / "spec.json").read_text()))
        until(lambda: one(status(cluster, "n1")).state == "running")
        second = one(status(cluster, "n1"))
        assert second.pid != first.pid
        assert supervisors(place) != [seen["pid"]]


def test_it_ends_by_itself_when_nobody_renews_its_lease(place):
    with LOCAL.cluster() as cluster:
        found = one(deploy(cluster, "n1", talker(lease_s=6.0)))
        ends_at = time.monotonic() + found.lease_s
        renew(cluster, "n1", "talk", lease_s=9.0)
        time.sleep(max(0.0, ends_at + 0.5 - time.monotonic()))
        assert is_alive(found.pid), "renewed"
        until(lambda: not is_alive(found.pid))
        until(lambda: supervisors(place) == [])
        ended = one(status(cluster, "n1"))
        assert (ended.state, ended.last_exit) == ("dead", "its lease ended, as nobody renewed it")
    assert with_mark(str(place)) == {}


def test_the_control_side_killed_outright_leaves_the_service_running(place, tmp_path):
    script = tmp_path / "control.py"
    script.write_text(
        "import sys, time\n"
        "from fairlead.cluster import Cluster\n"
        "from fairlead.cluster.engine import Engine\n"
        "from fairlead.cluster.local import LocalBackend\n"
        "from fairlead.launch.service import Service, deploy\n"
        f"service = Service(name='talk', source={TALKER % '8640001.25'!r}, manager='supervisor')\n"
        "with Cluster(Engine(LocalBackend())) as cluster:\n"
        "    (state,) = deploy(cluster, 'n1', service, limit_s=60)\n"
        "    print(state.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as control:
        pid = int(control.stdout.readline())
        control.send_signal(signal.SIGKILL)
    time.sleep(1.0)
    assert is_alive(pid)
    with LOCAL.cluster() as cluster:
        assert one(status(cluster, "n1")).pid == pid


def test_a_command_that_may_leave_nothing_still_leaves_nothing(place):
    """What lets a deploy start a supervisor is asked for, and does not hold for commands."""
    mark = "8640002.25"
    with LOCAL.cluster() as cluster:
        cluster.run("n1", ["sh", "-c", f"setsid sleep {mark} </dev/null >/dev/null 2>&1 & sleep 0.2"], limit_s=20)
    assert not [e for e in Path("/proc").iterdir() if e.name.isdigit() and mark.encode() in cmdline(e)]


def test_a_step_of_slurm_is_told_that_it_cannot_keep_a_service(place, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    with LOCAL.cluster() as cluster:
        found = one(deploy(cluster, "n1", talker()))
    assert (found.state, found.ok) == ("unknown", False)
    assert "step of Slurm job 42" in found.error
    assert "prolog" in found.hint


def test_a_folder_that_is_not_ours_is_not_used(place):
    if os.geteuid():
        pytest.skip("needs root, to make a folder of another user")
    folder = place / "n1" / "talk"
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 12345)
    with LOCAL.cluster() as cluster:
        found = one(deploy(cluster, "n1", talker()))
    assert "not a directory of our own" in found.error
    folder.rmdir()


def test_a_node_that_does_not_answer_has_a_result_too(place):
    with LOCAL.cluster() as cluster:
        found = one(deploy(cluster, "n1", talker(), python="/no/such/python"))
    assert (found.node, found.state) == ("n1", "unknown")
    assert "/no/such/python" in found.error


def test_the_answer_is_data(place):
    with LOCAL.cluster() as cluster:
        found = one(status(cluster, "n1", "talk"))
    assert (found.state, found.ok) == ("absent", False)
    assert json.loads(services.msgspec.json.encode(found))["state"] == "absent"
