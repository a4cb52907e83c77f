"""`fairlead probe` against nodes that are there: this machine by the local backend, and lab hosts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.records.runs import list_runs

pytestmark = pytest.mark.real

LOCAL = """
schema = 1
[access]
via = "local"
[[pool]]
name = "here"
size = "other"
nodes = "n[0-1]"
[[pool]]
name = "broken"
size = "other"
nodes = "b0"
python = "{python}"
"""


HALF = """#!/bin/sh
# the probe's own call is answered with a banner and half a document; any other is the real Python's
case "$*" in
    *fairlead-probe*--limit*)
        cat > /dev/null
        echo "Authorized users only!"
        printf '{{"schema": "fairlead.facts/1", "facts": {{"host": ';;
    *) exec {python} "$@";;
esac
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Two nodes that are this machine, and one whose Python prints a banner and then breaks off."""
    python = tmp_path / "python3"
    python.write_text(HALF.format(python=sys.executable))
    python.chmod(0o755)
    path = tmp_path / "cluster.toml"
    path.write_text(LOCAL.format(python=python))
    return path


def document(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def test_nodes_that_answer_and_one_that_answers_half(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["probe", "-f", str(spec), "--runs", str(tmp_path / "runs"), "--json"]) == 4
    found = document(capsys)
    assert found["nodes"] == "n[0-1]"
    assert found["silent"] == "b0"
    bad = [f for f in found["findings"] if f["code"] == "probe/bad-answer"]
    assert [(f["verdict"], f["subject"]["nodes"]) for f in bad] == [("unknown", ["b0"])]
    assert "Authorized users only!" in bad[0]["evidence"][0]["value"]
    folder = list_runs(tmp_path / "runs")[0]
    facts = json.loads((folder / "facts" / "n1.json").read_text())
    assert facts["node"] == "n1"
    assert facts["facts"]["host"]["os"]["kernel"] == os.uname().release
    assert {p.name for p in folder.iterdir()} >= {
        "facts",
        "findings.json",
        "spec.toml",
        "commands.jsonl",
        "result.json",
    }
    commands = [json.loads(line) for line in (folder / "commands.jsonl").read_text().splitlines()]
    assert sum(c["bytes_in"] for c in commands) > 50_000


def test_facts_and_captures_are_judged_again(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, place = str(tmp_path / "runs"), tmp_path / "kept"
    status = run(["probe", "-f", str(spec), "-w", "n0", "--runs", runs, "--capture", str(place), "--json"])
    first = document(capsys)
    assert run(["rejudge", "last", "--runs", runs, "--json"]) == status
    assert [(f["code"], f["verdict"]) for f in document(capsys)["findings"]] == [
        (f["code"], f["verdict"]) for f in first["findings"]
    ]
    assert run(["probe", "--root", str(place), "-f", str(spec), "--json"]) == status
    again = document(capsys)
    assert again["nodes"] == "n0"
    assert [(f["code"], f["verdict"]) for f in again["findings"]] == [
        (f["code"], f["verdict"]) for f in first["findings"]
    ]


def test_a_node_that_is_not_in_the_file(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "-f", str(spec), "-w", "n7", "--runs", str(tmp_path / "runs"), "--json"]) == 2
    assert document(capsys)["error"]["code"] == "nodes/unknown"


def test_a_python_that_is_not_there(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(LOCAL.format(python="/no/such/python3"))
    assert run(["probe", "-f", str(spec), "-w", "b0", "--runs", str(tmp_path / "runs"), "--json"]) == 4
    error = document(capsys)["error"]
    assert error["code"] == "cluster/no-tool"
    assert "/no/such/python3" in error["message"]
