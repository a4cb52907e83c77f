"""`fairlead init` and `fairlead check` as a person and as a program see them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.app import run
from fairlead.spec.loader import preset_names

BAD = 'schema = 1\n[access]\nvia = "shs"\nfanout = 0\n'


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [n for n in os.environ if n.startswith("FAIRLEAD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = run(argv)
    out, err = capsys.readouterr()
    return status, out, err


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    status, out, _ = told(capsys, *argv, "--json")
    return status, json.loads(out)


@pytest.mark.parametrize("name", preset_names())
def test_init_then_check(capsys: pytest.CaptureFixture[str], own_folder: Path, name: str) -> None:
    status, out, err = told(capsys, "init", "--preset", name)
    assert (status, out.startswith("wrote cluster.toml: "), "next     fairlead check\n" in err) == (0, True, True)
    status, out, err = told(capsys, "check")
    assert status == 0
    assert out.splitlines()[-1].startswith("cluster.toml: no problem; via ")
    assert "next     fairlead check --origin" in err


def test_init_from_here(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    assert told(capsys, "init", "--from-here", "-o", "mine.toml")[0] == 0
    status, out, _ = told(capsys, "check", "-f", "mine.toml")
    assert (status, "mine.toml: no problem" in out) == (0, True)


def test_init_never_writes_over_a_file(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    Path("cluster.toml").write_text("mine")
    status, out, err = told(capsys, "init")
    assert (status, out) == (2, "")
    assert err.splitlines()[:2] == [
        "fairlead: cluster.toml is already there",
        "next     fairlead init --output cluster.toml --force",
    ]
    assert Path("cluster.toml").read_text() == "mine"
    assert told(capsys, "init", "--force")[0] == 0
    assert told(capsys, "check")[0] == 0


def test_init_does_not_follow_a_dangling_link(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    Path("cluster.toml").symlink_to("elsewhere.toml")
    assert told(capsys, "init")[0] == 2
    assert not Path("elsewhere.toml").exists()
    Path("folder").mkdir()
    status, _, err = told(capsys, "init", "-o", "folder")
    assert (status, "fairlead init --output folder/cluster.toml" in err) == (2, True)


def test_init_prints(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    status, out, _ = told(capsys, "init", "-o", "-")
    assert (status, out.startswith("# A virtual cluster on this machine"), list(own_folder.iterdir())) == (0, True, [])
    status, found = document(capsys, "init", "-o", "-")
    assert (status, found["schema"], found["text"]) == (0, "fairlead.init/1", out)


def test_init_lists_and_refuses(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    status, found = document(capsys, "init", "--list")
    assert (status, [p["name"] for p in found["presets"]]) == (0, preset_names())
    assert told(capsys, "init", "--preset", "lba")[0] == 2
    assert told(capsys, "init", "--preset", "lab", "--from-here")[0] == 2
    assert list(own_folder.iterdir()) == []


def test_check_tells_every_problem_and_nothing_on_stdout(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    Path("cluster.toml").write_text(BAD)
    status, out, err = told(capsys, "check")
    assert (status, out) == (2, "")
    assert (
        "cluster.toml:3: `via` cannot be 'shs'\n    3 | via = \"shs\"\n      |       ^^^^^ did you mean `ssh`?" in err
    )
    assert "cluster.toml:4: `fanout` is 0; it must be at least 1" in err
    assert "2 problems" in err


def test_check_json_on_failure_is_one_document(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    Path("cluster.toml").write_text(BAD)
    status, found = document(capsys, "check")
    assert (status, found["verdict"], found["exit"]) == (2, "unknown", 2)
    assert [(p["code"], p["line"]) for p in found["error"]["problems"]] == [
        ("spec/bad-choice", 3),
        ("spec/out-of-range", 4),
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no cluster file cluster.toml"),
        (b"", "cluster.toml is empty"),
        (b"\x7fELF\x02\x01\xff\xfe", "byte 0xff is not UTF-8 text"),
        (b"schema 1", "not TOML: expected '=' after a key in a key/value pair"),
    ],
)
def test_check_bad_files(
    capsys: pytest.CaptureFixture[str], own_folder: Path, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        Path("cluster.toml").write_bytes(content)
    status, out, err = told(capsys, "check")
    assert (status, out, err.count(sentence)) == (2, "", 1)
    assert "Traceback" not in err


def test_check_warns_and_exits_0_unless_told(capsys: pytest.CaptureFixture[str], own_folder: Path) -> None:
    told(capsys, "init", "--preset", "nd-h100")
    waiver = '\n[[waiver]]\ncode = "spec/count"\nnodes = "all"\nreason = "r"\nexpires = 2020-01-01\n'
    Path("cluster.toml").write_text(Path("cluster.toml").read_text() + waiver)
    status, out, _ = told(capsys, "check")
    assert (status, "the waiver of spec/count ended on 2020-01-01; it no longer applies" in out) == (0, True)
    status, found = document(capsys, "check")
    assert (status, found["verdict"], [w["code"] for w in found["warnings"]]) == (0, "warn", ["spec/waiver-expired"])
    assert told(capsys, "check", "--warn-as-fail")[0] == 3
    assert told(capsys, "check", "--exit", "nagios")[0] == 1


def test_check_origin(capsys: pytest.CaptureFixture[str], own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(capsys, "init", "--preset", "nd-h200")
    monkeypatch.setenv("FAIRLEAD_FANOUT", "9")
    status, out, _ = told(capsys, "check", "--origin", "--runs", "/tmp/r")
    assert status == 0
    rows = {
        line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines() if line.startswith(("access", "runs"))
    }
    assert rows["access.fanout"] == ["9", "environment FAIRLEAD_FANOUT"]
    assert rows["runs.dir"] == ['"/tmp/r"', "flag --runs"]
    assert rows["access.timeout_s"] == ["60.0", "default"]
    assert "Azure documentation, ND-H200-v5 series, 2025-09-02" in out
    _, found = document(capsys, "check", "--origin")
    values = {v["key"]: v for v in found["values"]}
    assert (values["access.via"]["kind"], values["access.via"]["line"] > 0) == ("file", True)
    assert (values["pool[0].gpus"]["value"], values["pool[0].gpus"]["kind"]) == (8, "size")
    facts = {f["fact"]: f for f in found["facts"]}
    assert (facts["hca_rates_gbps"]["value"], facts["numa_nodes"]["confidence"]) == ([400.0], "practice")
    assert not [k for k in values if k.startswith("lab.")]
