"""`fairlead probe` on captured trees, and what becomes of nodes that gave no facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.probe import NodeAnswer, sort_answers
from fairlead.records.verdict import Verdict
from support import trees

SIZE = "Standard_ND96isr_H100_v5"
FILE = f"""
schema = 1
[[pool]]
name = "h"
size = "{SIZE}"
nodes = "h[0-2]"
[fabric]
link = "infiniband"
rdma = "ib"
[access]
via = "ssh"
[[waiver]]
code = "ib/port-rate"
nodes = "all"
reason = "ticket 7"
expires = 2030-01-01
"""


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """Three nodes: one well, one with a slow port, one with a port nobody can read."""
    for name in ("h0", "h1", "h2"):
        m = trees.nd_h100_v5(name)
        if name == "h1":
            m.put("/sys/class/infiniband/mlx5_ib3/ports/1/rate", "200 Gb/sec (2X NDR)\n")
        if name == "h2":
            m.put("/sys/class/infiniband/mlx5_ib5/ports/1/rate", b"\xff\xfe")
        m.write(tmp_path / "trees" / name)
    return tmp_path / "trees"


def test_trees_of_a_cluster(captured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--root", str(captured), "--size", SIZE, "--quiet"]) == 3
    text = capsys.readouterr().out
    assert "h[0,2] (2)" not in text  # h2 has a port nobody could read, so it is a line of its own
    assert "8 x H100 80GB HBM3" in text
    assert "FAIL    h1 mlx5_ib3/1" in text
    assert "200 Gb/sec (2X NDR), expected 400 Gb/s" in text
    assert "UNKNOWN h2 mlx5_ib5/1" in text
    assert "also leaves open skew/port-rate" not in text  # one right rate: nodes are judged by it, not compared
    assert text.rstrip().endswith("verdict  fail")


def test_one_tree_that_is_well(captured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--root", str(captured / "h0"), "--size", SIZE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["verdict"], document["nodes"]) == ("fairlead.probe/1", "pass", "h0")
    passed = {f["code"]: f["message"] for f in document["findings"] if f["verdict"] == "pass"}
    assert passed["ib/port-rate"] == "8 x 400 Gb/s"


def test_a_hole_alone_could_not_be_judged(captured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--root", str(captured / "h2"), "--size", SIZE, "--quiet"]) == 4
    assert "holds bytes that are not text" in capsys.readouterr().out


def test_without_a_size_nothing_is_compared(captured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--root", str(captured / "h1"), "--all", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "SKIP    h1                    host/cpus               no number to compare with" in text


def test_with_a_cluster_file(captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "cluster.toml"
    spec.write_text(FILE)
    assert run(["probe", "--root", str(captured), "-f", str(spec), "--quiet", "--json"]) == 0
    waived = [f for f in json.loads(capsys.readouterr().out)["findings"] if f.get("waived")]
    assert {(f["subject"]["nodes"][0], f["waived"]["was"]) for f in waived} == {("h1", "fail"), ("h2", "unknown")}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--root", "nowhere"], "probe/no-tree", "no captured tree at nowhere"),
        (["--root", "EMPTY"], "probe/no-tree", "holds neither sys and proc nor folders that do"),
        (["--root", "TREE", "--size", "Standard_ND96isr_H100"], "cli/no-size", "did you mean"),
        (["--size", SIZE], "cli/usage", "--size goes with --root"),
        (["--root", "TREE", "--capture", "x"], "cli/usage", "--root and --capture exclude each other"),
        (["--root", "TREE", "-w", "h0"], "cli/usage", "--root and --nodes exclude each other"),
        (["--root", "TREE", "-x", "h0"], "cli/usage", "--root and --exclude exclude each other"),
        (["--root", "TREE", "--imds"], "cli/usage", "--root and --imds exclude each other"),
    ],
)
def test_bad_words(words: list[str], code: str, says: str, captured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = captured.parent / "empty"
    empty.mkdir()
    filled = [{"TREE": str(captured / "h0"), "EMPTY": str(empty)}.get(w, w) for w in words]
    assert run(["probe", *filled, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == code
    assert says in error["message"]


def test_nodes_that_gave_no_facts() -> None:
    whole = b'{"schema": "fairlead.facts/1", "facts": {}}'
    facts, findings = sort_answers(
        [
            NodeAnswer("n0", whole),
            NodeAnswer("n1", None, "no route to host", "ping n1"),
            NodeAnswer("n2", whole[:30]),
            NodeAnswer("n3", b"Welcome!\n" + whole),
        ]
    )
    assert [f.node for f in facts] == ["n0"]
    assert [(f.code, f.verdict, f.subject.nodes) for f in findings] == [
        ("probe/no-answer", Verdict.UNKNOWN, ("n1",)),
        ("probe/bad-answer", Verdict.UNKNOWN, ("n2",)),
        ("probe/bad-answer", Verdict.UNKNOWN, ("n3",)),
    ]
    assert (findings[0].message, findings[0].remedy) == ("no route to host", "ping n1")
    assert "Welcome!" in findings[2].evidence[0].value
    assert all(f.remedy for f in findings)


def test_a_gate_counts_a_silent_node_as_failed() -> None:
    _, findings = sort_answers([NodeAnswer("n1", None, "no answer within 10 s")], silent=Verdict.FAIL)
    assert [f.verdict for f in findings] == [Verdict.FAIL]
