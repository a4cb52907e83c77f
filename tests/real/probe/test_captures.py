"""Captured nodes of others, replayed through `fairlead probe`: each must get its author's label, and nothing else."""

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
    run(case.words(case.lay_out(tmp_path)))
    document = json.loads(capsys.readouterr().out)
    assert not (wrong := labels.wrongs(document["findings"], case.expect)), "\n".join(wrong)
