"""Ranks on this machine, with real torch and gloo: they meet, and who does not come, stops or cannot begin is named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.launch import Beat, CannotStart, Ended, Over, Patience, RankJob, Said, launch
from support.backends import LOCAL

pytestmark = [pytest.mark.real, pytest.mark.requires("torch")]

LOOPBACK = "0100007F"


def run(python=sys.executable, nodes="n[1-2]", per_node=2, own=None, **settings):
    """Every event of a group with the test body, and how long it took."""
    found = NodeSet(nodes)
    job = RankJob(
        nodes=found,
        per_node=per_node,
        parts=("support.meeting_body",),
        settings=settings,
        host="127.0.0.1",
        patience=Patience(ranks=len(found) * per_node, own=own or {}),
        device="cpu",
        limit_s=60,
    )
    began = time.monotonic()
    with LOCAL.cluster(python_of=lambda _: str(python)) as cluster, launch(cluster, job) as ranks:
        return list(ranks), time.monotonic() - began


def what(events, kind):
    return [e for e in events if isinstance(e, Said) and e.what == kind]


def over(events) -> Over:
    assert isinstance(events[-1], Over)
    return events[-1]


def test_they_meet_and_the_store_listens_at_its_own_address_alone():
    events, _ = run()
    assert over(events).why == "", over(events)
    assert {e.fields["value"] for e in what(events, "sum")} == {6.0}
    assert {e.rank for e in what(events, "joined")} == {0, 1, 2, 3}
    (first,) = [e for e in what(events, "sum") if e.rank == 0]
    assert LOOPBACK in first.fields["listens"]
    for said in what(events, "sum"):
        assert "00000000" not in said.fields["listens"], "a socket that any address reaches"
        assert "0" * 32 not in said.fields["listens"]
    assert [e.is_well for e in events if isinstance(e, Ended)] == [True] * 4


def test_a_rank_that_lets_nothing_else_run_for_longer_than_a_hang_was_is_waited_for_and_its_task_beats():
    """As NCCL does when it starts: 55 s for eight GPUs are published."""
    events, took_s = run(hold={"3": 12})
    assert over(events).why == "", over(events)
    assert took_s > 12
    beats = [e.at_s for e in events if isinstance(e, Beat) and e.rank == 3]
    assert beats
    assert max(b - a for a, b in pairwise(beats)) < 6


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_group_that_takes_a_minute_to_start_passes():
    events, took_s = run(hold={"1": 62}, nodes="n1")
    assert over(events).why == "", over(events)
    assert took_s > 62


def test_who_does_not_come_to_the_rendezvous_is_named_by_the_store():
    events, _ = run(absent=[2], own={"rendezvous": 6.0})
    assert (over(events).kind, over(events).ranks) == ("rendezvous", (2,))
    assert [e.fields["ranks"] for e in what(events, "missing")][-1] == "2"


def test_a_body_that_is_stopped_is_named_within_seconds():
    events, _ = run(stop=[1])
    joined = max(e.at_s for e in what(events, "joined"))
    assert (over(events).kind, over(events).ranks) == ("stopped", (1,))
    assert over(events).at_s - joined < 10
    assert "T" in {e.state for e in events if isinstance(e, Beat) and e.rank == 1}


def test_a_hang_in_which_all_go_on_beating_is_over_after_what_the_group_took_so_far():
    events, _ = run(hang=[2])
    assert (over(events).kind, over(events).ranks) == ("hang", ())
    phases = {(e.rank, e.phase): e.at_s for e in what(events, "phase")}
    longest_s = max(phases[r, "sum"] - phases[r, "import"] for r in range(4))
    waited_s = over(events).at_s - max(phases.values())
    assert waited_s >= 6
    assert waited_s < max(6, longest_s) + 5
    assert {e.rank for e in events if isinstance(e, Beat) and e.at_s > over(events).at_s - 3} == {0, 1, 2, 3}


@pytest.fixture
def bare(tmp_path) -> Path:
    """A Python without torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    return tmp_path / "bare" / "bin" / "python"


def test_without_torch_every_rank_says_so_as_a_type(bare):
    events, _ = run(python=bare)
    failed = [e for e in events if isinstance(e, CannotStart)]
    assert sorted(e.rank for e in failed) == [0, 1, 2, 3]
    assert {(e.why, e.kind, e.text) for e in failed} == {
        ("no-torch", "ModuleNotFoundError", "No module named 'torch'")
    }  # fmt: skip
    starts = what(events, "start")
    assert {e.fields["executable"] for e in starts} == {str(bare)}


def test_nothing_of_what_ranks_are_told_is_in_a_command_line_or_an_environment():
    job_secret = "only-by-standard-input"
    seen = set()

    found = NodeSet("n1")
    job = RankJob(
        nodes=found, per_node=2, parts=("support.meeting_body",), settings={"note": job_secret}, host="127.0.0.1",
        patience=Patience(ranks=2), device="cpu",
    )  # fmt: skip
    with LOCAL.cluster(python_of=lambda _: sys.executable) as cluster, launch(cluster, job) as ranks:
        for event in ranks:
            if isinstance(event, Said) and event.what == "sum":
                for entry in Path("/proc").iterdir():
                    if entry.name.isdigit() and int(entry.name) != os.getpid():
                        seen |= {f for f in ("cmdline", "environ") if job_secret.encode() in _read(entry / f)}
    assert seen == set()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_another_users_process_at_the_meeting_point_is_left_alone(monkeypatch):
    """Ranks of a node share one import of torch by a socket that has a name anybody can see once it is there."""
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    from fairlead.launch.onnode import share
    from fairlead.launch.onnode.me import Me

    monkeypatch.setenv("FAIRLEAD_NODE", "n1")
    name = "\0fairlead-token-n1"
    ready = "import socket,os,time,sys\nos.setuid(65534)\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\n"
    ready += f"s.bind({name!r})\ns.listen(8)\nprint('up',flush=True)\ntime.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", ready], stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout.readline().strip() == "up"
        with pytest.raises(PermissionError):
            share.Shared(Me({"run": "token", "per_node": 1}), lambda _: 0)
        stranger.kill()


def test_another_users_process_gets_no_body_and_a_silent_one_is_not_waited_for():
    from fairlead.launch.onnode import share

    if os.geteuid():
        pytest.skip("needs root, to be another user")
    name = f"\0fairlead-door-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(name)
    listener.listen(8)
    come = "import os,socket\nos.setuid(UID)\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\n"
    come += f"s.connect({name!r})\n"
    come += "s.settimeout(20)\nprint(repr(s.recv(10)), flush=True)\n"
    for uid in (65534, 0):  # another user; and ourselves, without a word
        with subprocess.Popen([sys.executable, "-c", come.replace("UID", str(uid))], stdout=subprocess.PIPE) as other:
            asked: list = []
            listener.settimeout(20)
            began = time.monotonic()
            share.accept(listener, asked)
            assert asked == []
            assert other.stdout.readline().strip() == b"b''", "it was turned away"
            assert time.monotonic() - began < 15
    listener.close()
