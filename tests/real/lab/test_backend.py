"""Lab hosts as nodes of a cluster: commands, ranks, files, limits, and hosts that are dead or hung."""

from __future__ import annotations

import time

import msgspec
import pytest

from fairlead.cluster import State, connect
from fairlead.errors import LabError
from fairlead.lab.faults.apply import inject
from fairlead.spec import preset

pytestmark = [
    pytest.mark.real,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft"),
    pytest.mark.usefixtures("healed"),
]


@pytest.fixture
def cluster(lab):
    spec = preset("lab").spec
    spec = msgspec.structs.replace(spec, lab=msgspec.structs.replace(spec.lab, name=lab.name))
    with connect(spec) as connected:
        yield connected


def test_a_command_runs_on_every_host_as_that_host(cluster):
    results = cluster.run("n[0-3]", ["sh", "-c", "hostname; cat; echo $A; pwd"], limit_s=20)
    assert [r.state for r in results] == [State.DONE] * 4
    assert [r.stdout.text.split()[0] for r in results] == ["n0", "n1", "n2", "n3"]


def test_arguments_arrive_as_they_are(cluster):
    odd = ["a b", "$HOME", "'", '"', "*", "", "--", "é\n"]
    (result,) = cluster.run("n1", ["python3", "-c", "import sys; print(sys.argv[1:])", *odd], limit_s=20)
    assert result.stdout.text.strip() == str(odd)


def test_files_go_there_and_come_back(cluster, tmp_path):
    (tmp_path / "x").write_bytes(b"\0\xffdata")
    assert all(r.ok for r in cluster.push("n[0-1]", tmp_path / "x", "/mnt/deep/x", limit_s=20))
    assert all(r.ok for r in cluster.fetch("n[0-1]", "/mnt/deep/x", tmp_path / "back", limit_s=20, max_bytes=1 << 20))
    assert (tmp_path / "back/n1/x").read_bytes() == b"\0\xffdata"
    (missing,) = cluster.fetch("n2", "/mnt/deep/x", tmp_path / "back", limit_s=20, max_bytes=1 << 20)
    assert missing.state is State.FAILED


def test_ranks_know_their_place(cluster):
    say = "import os; print(os.environ['RANK'], os.environ['FAIRLEAD_NODE'], os.uname().nodename)"
    results = cluster.run_ranks("n[2-3]", ["python3", "-c", say], per_node=2, limit_s=30)
    assert [r.stdout.text.split() for r in results] == [
        ["0", "n2", "n2"],
        ["1", "n2", "n2"],
        ["2", "n3", "n3"],
        ["3", "n3", "n3"],
    ]


def test_dead_and_hung_hosts_are_results_and_hold_up_nobody(cluster, lab):
    inject(lab.name, "node-dead", "n1", {})
    inject(lab.name, "node-hung", "n2", {})
    began = time.monotonic()
    results = {r.node: r for r in cluster.run("n[0-3]", ["hostname"], limit_s=4)}
    assert time.monotonic() - began < 20
    assert results["n0"].ok
    assert results["n3"].ok
    assert results["n1"].state is State.UNREACHABLE
    assert results["n2"].state in (State.TIMEOUT, State.UNREACHABLE)
    assert "within 4 s" in results["n2"].error


def test_what_a_command_leaves_is_stopped(cluster, lab):
    (result,) = cluster.run("n3", ["sh", "-c", "setsid sleep 900 & echo started"], limit_s=20)
    assert result.ok
    deadline = time.monotonic() + 30
    while lab.sh("n3", "pidof sleep", check=False) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lab.sh("n3", "pidof sleep", check=False) == ""


def test_a_lab_that_is_not_up_says_so_once():
    spec = preset("lab").spec
    spec = msgspec.structs.replace(spec, lab=msgspec.structs.replace(spec.lab, name="never-built"))
    with connect(spec) as connected, pytest.raises(LabError) as caught:
        connected.run("n[0-3]", ["true"], limit_s=5)
    assert caught.value.code == "lab/not-up"
    assert caught.value.hint == "fairlead lab up"
