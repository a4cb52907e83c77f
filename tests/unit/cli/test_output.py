"""Sessions: run folders, logs, colour."""

from __future__ import annotations

import io
import json

import pytest

from fairlead.cli.output import Answer, Session
from fairlead.records.history import past_runs
from fairlead.records.runs import list_runs
from fairlead.report.text import paint_for


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.usefixtures("more_verbs")
class TestRunFolders:
    def test_a_run_is_kept_and_named(self, fairlead, runs):
        done = fairlead("t-folder", "--json")
        (folder,) = runs()
        assert folder.name == done.document["run"]
        assert json.loads((folder / "result.json").read_text()) == done.document
        assert json.loads((folder / "run.json").read_text())["argv"] == ["fairlead", "t-folder", "--json"]

    def test_a_run_that_ended_is_in_the_history_of_its_place(self, fairlead, own_folder):
        for words in (["t-folder"], ["t-log"], ["t-fail"]):
            fairlead(*words)
        first, second = past_runs(own_folder / "runs")
        assert [first.run.verb, second.run.verb, first.run.verdict, first.run.exit] == ["t-folder", "t-log", "pass", 0]

    def test_where_it_is_stands_on_stderr(self, fairlead, runs):
        assert fairlead("t-folder").err == f"wrote    {runs()[0]}\n"

    def test_a_flag_beats_a_variable_beats_the_default(self, fairlead, own_folder, monkeypatch):
        monkeypatch.setenv("FAIRLEAD_RUNS", str(own_folder / "by-variable"))
        fairlead("t-folder")
        fairlead("t-folder", "--runs", own_folder / "by-flag")
        assert len(list_runs(own_folder / "by-variable")) == 1
        assert len(list_runs(own_folder / "by-flag")) == 1
        assert not (own_folder / "runs").exists()

    def test_retention_is_applied(self, fairlead, runs):
        for _ in range(5):
            fairlead("t-folder")
        assert len(runs()) == 3

    def test_from_the_root_folder_it_goes_to_the_state_folder(self, fairlead, own_folder, monkeypatch):
        monkeypatch.chdir("/")
        fairlead("t-folder")
        assert len(list_runs(own_folder / "home/.local/state/fairlead/runs")) == 1

    def test_the_log_is_kept_and_shown_when_asked(self, fairlead, runs):
        assert "  t  done 1\n" in fairlead("t-log", "-v").err
        lines = [json.loads(line) for line in (runs()[0] / "log.jsonl").read_text().splitlines()]
        assert [(at["source"], at["severity"], at["what"]) for at in lines] == [
            ("fairlead.cli", "info", "verb begins"),
            ("fairlead.t", "info", "done 1"),
            ("fairlead.cli", "info", "verb ended"),
        ]
        assert lines[-1]["data"] == {"verb": "t-log", "verdict": "pass", "exit": 0}
        assert fairlead("t-log", "-q").err == ""

    def test_what_failed_is_kept_too(self, fairlead, runs, monkeypatch):
        import support.verbs

        def failing(**_):
            support.verbs.session().open_folder()
            raise support.verbs.DiskFull("disk/full", "no room left", hint="")

        monkeypatch.setattr(support.verbs, "t_full", failing)
        fairlead("t-full")
        (folder,) = runs()
        assert json.loads((folder / "result.json").read_text())["error"]["code"] == "disk/full"


@pytest.mark.parametrize(
    ("env", "tty", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
    ],
)
def test_colour_only_where_it_is_wanted(env, tty, colour, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert paint_for(Terminal() if tty else io.StringIO()).on is colour


def test_text_that_is_costly_is_not_made_for_json():
    def never():
        raise AssertionError

    out = io.StringIO()
    session = Session(["show", "--json"], stdout=out, stderr=io.StringIO())
    assert session.answer(Answer(schema="fairlead.t/1", text=never)) == 0
    assert json.loads(out.getvalue())["schema"] == "fairlead.t/1"
