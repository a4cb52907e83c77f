"""Sessions: run folders, logs, progress, colour."""

from __future__ import annotations

import io
import json

import pytest

from fairlead.cli.output import Answer, Progress, Session
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


@pytest.mark.usefixtures("more_verbs")
def test_elsewhere_than_on_a_terminal_progress_is_a_line_at_the_start_and_at_the_end(fairlead):
    lines = [line[:30].split() for line in fairlead("t-progress").err.splitlines()]
    assert [line[:4] for line in lines] == [
        ["pairs", "0", "of", "5"],
        ["pairs", "5", "of", "5"],
        ["half", "time"],
        ["ranks", "0", "of", "2"],
    ]
    assert "\x1b" not in fairlead("t-progress").err
    assert fairlead("t-progress", "-q").err == ""


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_elsewhere_a_line_comes_every_thirty_seconds():
    stream, clock = io.StringIO(), Clock()
    progress = Progress("pairs", stream, clock)
    for second in range(100):
        clock.now = float(second)
        progress.show(second, 100)
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["0", "30", "60", "90"]
    progress.show(100, 100)
    assert stream.getvalue().splitlines()[-1].split()[1] == "100"


def test_on_a_terminal_progress_is_one_live_line_that_fits_and_goes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream, clock = Terminal(), Clock()
    progress = Progress("pairs", stream, clock)
    for step in range(30):
        clock.now = step * 0.02
        progress.show(step, 100, "slowest n2\x1b[31m" + "x" * 300)
    progress.end()
    drawn = stream.getvalue().split("\r\x1b[2K")
    assert drawn[0] == ""
    assert drawn[-1] == ""
    assert 3 <= len(drawn) - 2 <= 8, "ten a second at most"
    assert all(len(line) < 60 for line in drawn)
    assert "\n" not in stream.getvalue()
    assert "\x1b[31m" not in stream.getvalue()


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
