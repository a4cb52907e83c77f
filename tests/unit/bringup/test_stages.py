"""The order of a bringup: which stages are run, which are left out and why, what each calls. Pure."""

from __future__ import annotations

import json
import stat
import sys

import pytest

from fairlead.bringup import calls
from fairlead.bringup.stages import NAMES, STAGES, Stage, Wanted, chosen, why_not
from fairlead.bringup.table import Bringup
from fairlead.errors import UsageError
from fairlead.records.verdict import Verdict

SAID = Bringup(weights="hf://o/m@1", train="t.toml", model="/m", engine=("--a", "b"))
WANTED = Wanted(spec="/r/spec.toml", folder="/r", said=SAID)
BY_NAME = {stage.name: stage for stage in STAGES}


def test_the_order():
    assert NAMES == ("audit", "preflight", "weights", "train", "serve", "logs")
    assert [stage.name for stage in chosen()] == list(NAMES)
    assert [stage.name for stage in chosen(passed=NAMES)] == []
    assert [stage.name for stage in chosen(start="serve", passed=["logs"])] == ["serve"]


@pytest.mark.parametrize("asked", [{"start": "x"}, {"only": ["audit", "x"]}, {"start": "logs", "only": ["audit"]}])
def test_what_is_no_choice(asked):
    with pytest.raises(UsageError):
        chosen(**asked)


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNKNOWN])
def test_nothing_dear_is_begun_after_a_preflight_that_did_not_pass(verdict):
    left_out = {stage.name for stage in STAGES if why_not(stage, {"preflight": verdict}, WANTED.said)}
    assert left_out == {"weights", "train", "serve"}
    assert not any(why_not(stage, {"preflight": Verdict.WARN}, WANTED.said) for stage in STAGES)
    # where it was not asked for, it decides nothing
    assert not why_not(BY_NAME["train"], {}, WANTED.said)


def test_a_stage_without_anything_to_work_with_says_which_key_names_it():
    said = {stage.name: why_not(stage, {}, Bringup()) for stage in STAGES}
    assert {name: text.split()[2] for name, text in said.items() if text} == {
        "weights": "bringup.weights", "train": "bringup.train", "serve": "bringup.model"
    }  # fmt: skip


def test_every_line_is_one_that_fairlead_has():
    from fairlead.cli.verbs import verbs

    known = {verb.name for verb in verbs()}
    for stage in STAGES:
        for words in stage.calls(WANTED):
            assert " ".join(words[:2]) in known or words[0] in known, words
    assert BY_NAME["train"].calls(WANTED)[0][1] == "run"
    assert BY_NAME["serve"].calls(WANTED)[0][-3:] == ["--", "--a", "b"]


def answering(monkeypatch, tmp_path, document: object, status: int) -> None:
    """In place of Python: a program that answers so."""
    program = tmp_path / "answers"
    text = document if isinstance(document, str) else json.dumps(document)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize(
    ("document", "status", "verdict", "said"),
    [
        ({"verdict": "pass", "n": 3}, 0, Verdict.PASS, "3 of them"),
        ({"n": 3}, 0, Verdict.PASS, "3 of them"),
        ({"verdict": "warn", "n": 1}, 0, Verdict.WARN, "1 of them"),
        ({"verdict": "fail", "n": 0}, 3, Verdict.FAIL, "0 of them"),
        ({"error": {"message": "no such thing"}}, 2, Verdict.UNKNOWN, "no such thing"),
        ("half a docum", 0, Verdict.UNKNOWN, "no answer"),
        ("[1, 2]", 0, Verdict.UNKNOWN, "no answer"),
        ("", 137, Verdict.UNKNOWN, "ended with 137"),
        ({"verdict": "fine", "n": 2, "findings": 7}, 0, Verdict.PASS, "2 of them"),
    ],
)
def test_what_a_verb_answers_is_what_the_stage_says(  # noqa: PLR0917 - a row each
    monkeypatch, tmp_path, document, status, verdict, said
):
    answering(monkeypatch, tmp_path, document, status)
    stage = Stage(name="s", calls=lambda _: [["thing", "do"]], headline=lambda found: f"{found[-1]['n']} of them")
    report, lines = calls.run_stage(stage, WANTED, tmp_path / "s")
    assert report.verdict is verdict
    assert said in report.said
    assert lines == ("fairlead thing do",)


def test_the_verbs_behind_one_that_failed_are_not_called(monkeypatch, tmp_path):
    answering(monkeypatch, tmp_path, {"verdict": "fail"}, 3)
    stage = Stage(name="s", calls=lambda _: [["thing", "do"], ["thing", "again"]])
    report, lines = calls.run_stage(stage, WANTED, tmp_path / "s")
    assert (report.verdict, lines) == (Verdict.FAIL, ("fairlead thing do",))


def test_an_answer_of_random_weights_is_one_line_that_can_be_read():
    (serve,) = [stage for stage in STAGES if stage.name == "serve"]
    said = serve.headline([{"engine": "transformers", "reply": "\ufffdariC\ufffd\n NNN\x1b[2J" + "x" * 200}])
    assert said.startswith("transformers answered `·ariC· NNN\\x1b[2Jxxx")
    assert said.endswith("xxx ...`")
    assert "\n" not in said
