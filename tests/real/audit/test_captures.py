"""Captured nodes and logs of others, replayed through `fairlead audit`: each gets its author's label, nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli.app import run
from support import labels

pytestmark = [pytest.mark.real, pytest.mark.requires("captures")]


@pytest.mark.parametrize("name", labels.names() or ["every case"])
def test_each_case_gets_its_label(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = labels.case(name)
    run(["audit", *case.words(case.lay_out(tmp_path))[1:]])
    document = json.loads(capsys.readouterr().out)
    wrong = labels.wrongs(document["findings"], case.audited) + labels.paths_wrong(document["paths"], case.expect)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", labels.with_log() or ["every log"])
def test_each_log_alone_gets_its_label(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a label, what a log can tell: where the path is, when the VF was away, which links flapped."""
    case = labels.case(name)
    run(["audit", "--kernel-log", str(case.folder / "log.txt"), "--json"])
    document = json.loads(capsys.readouterr().out)
    told = [w for w in case.audited.get("any", ()) if w["what"] in labels.OF_A_LOG]
    wrong = labels.wrongs(document["findings"], {"any": told}) + labels.paths_wrong(document["paths"], case.expect)
    assert not wrong, "\n".join(wrong)
