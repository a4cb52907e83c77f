from __future__ import annotations

import json
from pathlib import Path

import pytest

import fairlead as package
from fairlead.cli.app import run
from fairlead.records.runs import list_runs
from support.verbs import ROOMS


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test runs in a folder of its own, with a home of its own, and a plain environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("NO_COLOR", "FORCE_COLOR", "FAIRLEAD_RUNS", "FAIRLEAD_SPEC", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def more_verbs(monkeypatch):
    """The program with the verbs of support/verbs.py."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, ROOMS])


class Done:
    """What a run left: its status and its two streams."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def document(self):
        """The one document on stdout; fails where there is anything else."""
        return json.loads(self.out)


@pytest.fixture
def fairlead(capsys):
    def call(*words):
        status = run([str(w) for w in words])
        said = capsys.readouterr()
        return Done(status, said.out, said.err)

    return call


@pytest.fixture
def runs(own_folder):
    return lambda: list_runs(own_folder / "runs")


ROOT = Path(__file__).parents[3]
