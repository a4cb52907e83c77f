"""Lab hosts as nodes of a cluster: commands, ranks, files, limits, and hosts that are dead or hung."""

from __future__ import annotations

import hashlib
import json
import os

import msgspec
import pytest

from fairlead.cluster import State, connect
from fairlead.cluster.enter import running
from fairlead.errors import LabError
from fairlead.lab.faults.apply import inject
from fairlead.lab.table import Lab as LabTable
from fairlead.spec import preset
from support.processes import until

pytestmark = [
    pytest.mark.real,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft"),
    pytest.mark.usefixtures("healed"),
]


@pytest.fixture
def cluster(lab):
    spec = preset("lab").spec
    spec = spec.with_table(msgspec.structs.replace(spec.table(LabTable), name=lab.name))
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


def test_a_push_fans_out_over_the_fabric(cluster, lab, tmp_path):
    source = tmp_path / "model"
    source.mkdir()
    (source / "weights").write_bytes(os.urandom(3 << 20))
    addresses = {host.name: host.fabric for host in running(lab.name).hosts}
    results = cluster.push("n[0-3]", source, "/mnt/model", limit_s=60, addresses=addresses)
    assert {r.state for r in results} == {State.DONE}, results
    took = [line for r in results for line in r.stdout.text.splitlines() if json.loads(line)["do"] == "source"]
    assert len(took) == 3, "one was sent the bytes, and three had them from a node"
    sums = cluster.run("n[0-3]", ["md5sum", "/mnt/model/weights"], limit_s=20)
    assert {r.stdout.text.split()[0] for r in sums} == {hashlib.md5((source / "weights").read_bytes()).hexdigest()}


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
    results = {r.node: r for r in cluster.run("n[0-3]", ["hostname"], limit_s=6)}
    assert max(r.duration_s for r in results.values()) < 60
    assert results["n0"].ok
    assert results["n3"].ok
    assert results["n1"].state is State.UNREACHABLE
    assert results["n2"].state in (State.TIMEOUT, State.UNREACHABLE)
    assert "no answer within" in results["n2"].error or "within 6 s" in results["n2"].error


def test_what_a_command_leaves_is_stopped(cluster, lab):
    (result,) = cluster.run("n3", ["sh", "-c", "setsid sleep 900 & echo started"], limit_s=20)
    assert result.ok
    assert until(lambda: not lab.sh("n3", "pidof sleep", check=False))


def test_a_lab_that_is_not_up_says_so_once():
    spec = preset("lab").spec
    spec = spec.with_table(LabTable(name="never-built"))
    with connect(spec) as connected, pytest.raises(LabError) as caught:
        connected.run("n[0-3]", ["true"], limit_s=5)
    assert caught.value.code == "lab/not-up"
    assert caught.value.hint.split(",")[0] == "fairlead lab up"  # labs of other tests may be up, and are named
