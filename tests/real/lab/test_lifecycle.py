"""Labs come, stand side by side, and go without a trace, also when the one who builds them is killed half-way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.cluster import enter
from fairlead.errors import LabError
from fairlead.lab import cgroups
from fairlead.lab import up as up_module
from fairlead.lab.faults.apply import heal, inject
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down, up
from support import lab_census as census
from support.labs import Lab, fresh_name
from support.processes import until

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft")]

UP = """
import sys
from fairlead.lab.shape import LabShape
from fairlead.lab.up import up
up(LabShape(name=sys.argv[1]))
"""
SMALL = {"planes": 1, "t0": 1, "t1": 1, "nodes": ("n0", "n1")}


def test_up_twice_is_up_once_and_another_shape_is_refused(lab):
    before = lab.state
    assert up(lab.shape) == before
    with pytest.raises(LabError) as caught:
        up(LabShape(name=lab.name, rate_mbps=100))
    assert caught.value.code == "lab/other-shape"
    assert "rate_mbps" in caught.value.message
    assert lab.state == before


def test_down_leaves_nothing_and_says_whether_there_was_something():
    made = Lab(LabShape(name=fresh_name()))
    state = made.state
    names = census.namespaces_of(state)
    assert census.in_use(names) == names
    assert len(census.processes(made.name)) == 5
    assert down(made.name)
    assert census.left_of(made.name, state.cgroup_roots) == []
    # a process is the lab's no more when its files are closed, and out of its namespaces a moment later
    assert until(lambda: census.in_use(names) == set())
    assert not down(made.name)


def test_what_runs_on_hosts_goes_with_the_lab():
    made = Lab(LabShape(name=fresh_name(), **SMALL))
    words = enter.into_host(
        made.state, made.state.host("n0"), ["sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & wait"]
    )
    runner = subprocess.Popen(words)
    while len(made.sh("n0", "pidof sleep", check=False).split()) != 2:
        time.sleep(0.01)
    down(made.name)
    assert runner.wait(60) != 0


def test_labs_stand_side_by_side(lab):
    other = Lab(LabShape(name=fresh_name(), **SMALL))
    try:
        assert other.sh("n0", "hostname") == lab.sh("n0", "hostname") == "n0"
        other.sh("n0", "echo here >/tmp/mark")
        assert lab.sh("n0", "cat /tmp/mark 2>&1", check=False) != "here"
        assert "10.99.1.0" in other.sh("n0", "ip addr show eth0")
    finally:
        down(other.name)
    assert lab.sh("n0", "hostname") == "n0"


def test_a_lab_of_the_same_name_in_another_place_is_another_lab(lab, tmp_path, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("FAIRLEAD_LABS", str(tmp_path))
        up(LabShape(name=lab.name, **SMALL))
        assert down(lab.name)
    assert all(enter.is_alive(h.anchor) for h in lab.state.hosts)
    assert lab.sh("n0", "hostname") == "n0"


def test_a_host_has_its_own_view_of_the_machine(lab):
    assert lab.sh("n1", "ps -e -o pid= | head -1").strip() == "1"
    assert lab.sh("n1", "ls /sys/class/net").split() == [
        "eth0",
        "eth1",
        "eth2",
        "eth3",
        "eth4",
        "fab0",
        "fab0-peer",
        "lo",
    ]
    assert lab.sh("n1", "getent hosts n2").split() == [lab.state.host("n2").fabric, "n2"]
    lab.sh("n1", "echo x >/tmp/x; echo x >/run/x; echo x >/var/log/x; echo x >/etc/x; echo x >/dev/shm/x")
    assert lab.sh("n2", "ls /tmp/x /run/x /var/log/x /etc/x /dev/shm/x 2>/dev/null", check=False) == ""
    assert not Path("/etc/x").exists()
    assert lab.sh("n1", "test -c /dev/nvidia1 && test -c /dev/infiniband/uverbs0 && echo both") == "both"
    assert int(lab.sh("n1", "df --output=size -m /tmp | tail -1")) == lab.shape.scratch_mib


def test_zombies_of_a_host_are_reaped(lab):
    lab.sh("n1", "(sh -c 'sleep 0.05 & exit' &)")
    assert until(lambda: "sleep" not in (shown := lab.sh("n1", "ps -e -o stat=,comm=")) and "Z" not in shown)


def test_a_lab_survives_the_process_that_built_it():
    name = fresh_name()
    subprocess.run([sys.executable, "-c", UP, name], check=True)
    state = enter.running(name)
    assert enter.is_alive(state.keeper)
    assert all(enter.is_alive(h.anchor) for h in state.hosts)
    down(name)


def test_what_does_not_fit_into_memory_leaves_nothing(monkeypatch):
    name = fresh_name()
    monkeypatch.setattr(up_module, "_available_kib", lambda: 10_000)
    with pytest.raises(LabError) as caught:
        up(LabShape(name=name))
    assert caught.value.code == "lab/memory"
    assert census.left_of(name) == []


def test_a_step_that_fails_leaves_nothing():
    # no kernel takes this MTU for a veth: the first link is refused
    name = fresh_name()
    with pytest.raises(LabError) as caught:
        up(LabShape(name=name, mtu=10))
    assert caught.value.code == "lab/build"
    assert "mtu 10" in caught.value.message
    assert census.left_of(name) == []


def test_a_record_that_was_spoilt_still_goes():
    made = Lab(LabShape(name=fresh_name(), **SMALL))
    roots, keeper = made.state.cgroup_roots, made.state.keeper
    (enter.folder(made.name) / "state.json").write_text("{")
    with pytest.raises(LabError):
        enter.running(made.name)
    os.kill(keeper.pid, signal.SIGKILL)
    assert down(made.name)
    assert census.left_of(made.name, roots) == []


def test_two_at_once_build_one_lab():
    name = fresh_name()
    both = [subprocess.Popen([sys.executable, "-c", UP, name]) for _ in range(2)]
    assert [p.wait(60) for p in both] == [0, 0]
    assert len(census.processes(name)) == 5
    down(name)
    assert census.left_of(name) == []


KILLED_AT = """
import os, signal, sys
from fairlead.lab import store, up as this
from fairlead.lab.shape import LabShape

name, moment = sys.argv[1:]

def die_at(reached):
    if reached == moment:
        os.kill(os.getpid(), signal.SIGKILL)

def write(state, record=store.RECORD, write=store.write):
    write(state, record)
    die_at("ready" if record == store.NEXT else "named" if state.keeper else "journal")

def report(keeper, said=[], report=this._report):
    said.append(keeper)
    die_at("commit" if len(said) == 2 else "build")
    answer = report(keeper)
    die_at("held" if len(said) == 2 else "built")
    return answer

store.write, this._report = write, report
this.up(LabShape(name=name, planes=1, t0=1, t1=1, nodes=("n0", "n1")))
"""


def kill_up_at(moment, name):
    """Run an `up` of a SMALL lab that is killed when it has come to a step."""
    assert subprocess.run([sys.executable, "-c", KILLED_AT, name, moment]).returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["journal", "build", "built", "named", "ready"])
def test_killed_before_it_commits_no_process_stays_and_no_record_says_up(moment):
    name = fresh_name()
    kill_up_at(moment, name)
    assert enter.read(name).phase == "building"
    assert until(lambda: not census.processes(name))
    down(name)
    assert census.left_of(name) == []


@pytest.mark.parametrize("moment", ["built", "named", "ready", "commit", "held"])
def test_an_up_right_after_a_killed_one_leaves_a_lab_that_stays(moment):
    name = fresh_name()
    kill_up_at(moment, name)
    state = up(LabShape(name=name, **SMALL))
    try:
        # a keeper that was to die with the killed one would be gone by now
        time.sleep(0.2)
        assert enter.running(name) == state
        assert all(enter.is_alive(h.anchor) for h in state.hosts)
    finally:
        down(name)
    assert census.left_of(name) == []


def test_killed_when_the_lab_is_held_it_stands():
    name = fresh_name()
    kill_up_at("held", name)
    state = enter.running(name)
    assert up(LabShape(name=name, **SMALL)) == state
    down(name)
    assert census.left_of(name) == []


def kill_up_after(delay_s, name):
    """Start `up`, SIGKILL it after a while; returns whether it was still at it."""
    victim = subprocess.Popen([sys.executable, "-c", UP, name])
    try:
        victim.wait(delay_s)
    except subprocess.TimeoutExpired:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        return True
    return False


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_killed_at_random_moments_down_and_up_clean_after_it(rounds):
    name = fresh_name()
    chance = random.Random(20261121)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", UP, name], check=True)
    whole_s = time.monotonic() - began
    down(name)
    killed = 0
    for number in range(10 * rounds):
        if kill_up_after(chance.uniform(0.0, whole_s), name):
            killed += 1
            whole_s *= 1.1
        else:
            # how long an `up` takes changes with what else the machine does: follow it
            whole_s *= 0.8
        if number % 2:
            # the next `up` finds what is left and builds over it
            up(LabShape(name=name))
            assert enter.is_up(enter.read(name))
        down(name)
        assert census.left_of(name) == [], f"round {number}"
        if killed == rounds:
            break
    assert killed == rounds


def test_hosts_show_a_captured_tree(tmp_path):
    for node in ("n0", "n1"):
        tree = tmp_path / node
        (tree / "sys/class/infiniband/mlx5_ib0/ports/1").mkdir(parents=True)
        (tree / "sys/class/infiniband/mlx5_ib0/ports/1/state").write_text("4: ACTIVE\n")
        (tree / "proc").mkdir()
        (tree / "proc/cpuinfo").write_text(f"model name: captured on {node}\n")
        (tree / "cmd").mkdir()
        (tree / "cmd/ibstat_-l").write_text("mlx5_ib0\n")
    made = Lab(LabShape(name=fresh_name(), facts=str(tmp_path), **SMALL))
    try:
        assert made.sh("n1", "ls /sys/class/infiniband; cat /proc/cpuinfo; ibstat -l").splitlines() == [
            "mlx5_ib0",
            "model name: captured on n1",
            "mlx5_ib0",
        ]
        inject(made.name, "file", "n1", {"path": "/proc/cpuinfo", "content": "changed"})
        assert made.sh("n1", "cat /proc/cpuinfo") == "changed"
        heal(made.name, "all")
        assert "captured on n1" in made.sh("n1", "cat /proc/cpuinfo")
    finally:
        down(made.name)


def test_a_missing_tree_is_named_and_nothing_is_left(tmp_path):
    name = fresh_name()
    (tmp_path / "n0").mkdir()
    with pytest.raises(LabError) as caught:
        up(LabShape(name=name, facts=str(tmp_path), **SMALL))
    assert caught.value.code == "lab/no-facts"
    assert "n1" in caught.value.message
    assert census.left_of(name) == []


@pytest.mark.skipif(not Path("/sys/fs/cgroup/freezer").is_dir(), reason="needs the v1 freezer controller")
def test_the_v1_freezer_does_where_there_is_no_v2(monkeypatch):
    def v1_only(lab, **_):
        return [Path("/sys/fs/cgroup", c, "fairlead", lab) for c in ("freezer", "cpu")]

    monkeypatch.setattr(cgroups, "choose", v1_only)
    made = Lab(LabShape(name=fresh_name(), **SMALL))
    try:
        roots = made.state.cgroup_roots
        runner = subprocess.Popen(enter.into_host(made.state, made.state.host("n0"), ["sleep", "1000"]))
        while "sleep" not in made.sh("n0", "ps -e -o comm="):
            time.sleep(0.01)
        inject(made.name, "node-hung", "n0", {})
        state = Path(made.state.host("n0").cgroups[0], "freezer.state")
        assert until(lambda: state.read_text() == "FROZEN\n")
        inject(made.name, "node-dead", "n0", {})  # also while it is frozen
        assert runner.wait(60) != 0
        heal(made.name, "node-hung")
        heal(made.name, "node-dead")
        assert made.sh("n0", "hostname") == "n0"
    finally:
        down(made.name)
    assert census.left_of(made.name, roots) == []
