"""The program around the verbs: whatever happens, the right stream, one document, the right status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import fairlead as package
from fairlead.cli import verbs
from fairlead.cli.reference import command_paths
from fairlead.errors import Exit

HEAD = ["schema", "version", "run", "start", "end", "verdict", "exit"]
STATUS = {
    "t-pass": 0,
    "t-warn": 0,
    "t-fail": 3,
    "t-unknown": 4,
    "t-own": 7,
    "t-crash": 1,
    "t-quit": 1,
    "t-full": 5,
    "t-away": 4,
    "t-spec": 2,
    "t-cluster": 4,
    "t-bad-body": 1,
}
NAGIOS = {"t-pass": 0, "t-warn": 1, "t-fail": 2, "t-unknown": 3, "t-crash": 3, "t-full": 3, "t-spec": 3}
ERRORS = {
    "t-crash": "cli/bug",
    "t-quit": "cli/bug",
    "t-full": "disk/full",
    "t-away": "cluster/no-tool",
    "t-spec": "spec/unknown-key",
    "t-bad-body": "cli/bug",
}


@pytest.mark.usefixtures("more_verbs")
class TestAnyVerb:
    @pytest.mark.parametrize("verb", STATUS)
    def test_with_json_stdout_is_one_document_that_says_the_status(self, fairlead, verb):
        done = fairlead(verb, "--json")
        assert list(done.document)[:7] == HEAD
        assert done.status == done.document["exit"] == STATUS[verb]
        assert ("error" in done.document) == (verb in {*ERRORS, "t-cluster"})

    @pytest.mark.parametrize("verb", STATUS)
    def test_without_json_the_answer_is_on_stdout_and_trouble_on_stderr(self, fairlead, verb):
        done = fairlead(verb)
        assert done.status == STATUS[verb]
        if verb in {*ERRORS, "t-cluster"} and verb != "t-bad-body":
            assert done.out == ""
            assert done.err != ""
            assert "Traceback" not in done.err

    @pytest.mark.parametrize(("verb", "code"), ERRORS.items())
    def test_an_error_has_its_code_its_hint_and_its_details(self, fairlead, verb, code):
        error = fairlead(verb, "--json").document["error"]
        assert error["code"] == code
        if verb == "t-away":
            assert error["nodes"] == "n[1-3]"
        if verb == "t-spec":
            assert [(p["line"], p["code"]) for p in error["problems"]] == [
                (14, "spec/unknown-key"),
                (0, "spec/missing-key"),
            ]

    @pytest.mark.parametrize(("verb", "status"), NAGIOS.items())
    @pytest.mark.parametrize("flag", [["--exit", "nagios"], ["--exit=nagios"]])
    def test_exit_nagios(self, fairlead, verb, status, flag):
        done = fairlead(verb, *flag, "--json")
        assert done.status == done.document["exit"] == status

    def test_a_warning_can_close_the_gate(self, fairlead):
        assert fairlead("t-warn", "--warn-as-fail").status == 3
        assert fairlead("t-warn", "--warn-as-fail", "--exit", "nagios").status == 2
        assert fairlead("t-pass", "--warn-as-fail").status == 0

    def test_a_bug_leaves_a_traceback_file_and_no_traceback(self, fairlead):
        done = fairlead("t-crash")
        (place,) = [word for word in done.err.split() if word.endswith(".txt")]
        assert "something nobody thought of" in Path(place).read_text()
        assert "this is a bug in fairlead: RuntimeError" in done.err

    def test_every_problem_of_a_file_is_shown_with_a_caret(self, fairlead):
        assert fairlead("t-spec").err.splitlines() == [
            "cluster.toml:14: unknown key `planse`",
            "   14 | planse = 8",
            "      | ^^^^^^ did you mean `planes`?",
            "cluster.toml: [cluster] lacks `name`",
            "2 problems; fairlead check",
        ]

    def test_an_error_says_what_to_type_next(self, fairlead):
        assert fairlead("t-full").err.splitlines() == [
            "fairlead: no room left to write x",
            "next     df -h",
            "more     fairlead explain disk/full",
        ]

    def test_hints_go_to_stderr_and_quiet_takes_them_away(self, fairlead):
        assert fairlead("t-pass").err == "next     fairlead show last\n"
        assert fairlead("t-pass", "-q").err == ""
        assert fairlead("t-pass", "--json").err == ""

    @pytest.mark.parametrize("words", [["--json", "t-fail"], ["-q", "--json", "t-fail", "-v"], ["t-fail", "--json"]])
    def test_switches_may_stand_in_front(self, fairlead, words):
        assert fairlead(*words).document["verdict"] == "fail"

    def test_what_stands_behind_two_dashes_is_not_ours(self, fairlead):
        done = fairlead("t-pass", "--", "--json")
        assert done.status == 2
        assert done.out == ""


ALL = verbs.first_words()
PATHS = [pytest.param(path, id=" ".join(path)) for path in command_paths()]


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_flag_is_one_document_with_status_2(fairlead, path):
    done = fairlead(*path, "--no-such-flag", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "cli/usage")
    assert done.document["error"]["hint"] == f"fairlead {' '.join(path)} --help"
    assert done.document["schema"] == "fairlead.error/1"
    assert f"-{path[0]}-" in done.document["run"]


@pytest.mark.parametrize(
    ("words", "left", "hint"),
    [
        (["check", "other.toml"], "other.toml", "fairlead check -f other.toml"),
        (["lab", "up", "other.toml"], "other.toml", "fairlead lab up -f other.toml"),
        (["preflight", "n1", "n2"], "n1 n2", "fairlead preflight --help"),
    ],
)
def test_words_too_many_are_said_and_a_file_is_shown_its_place(fairlead, words, left, hint):
    error = fairlead(*words, "--json").document["error"]
    assert (error["code"], error["hint"]) == ("cli/usage", hint)
    assert error["message"] == f"`fairlead {' '.join(words).removesuffix(left).strip()}` has no place for `{left}`"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["weights", "pull"], "`fairlead weights pull` needs SOURCE"),
        (["serve", "bundle", "model"], "`fairlead serve bundle` needs DEST"),
        (["logs", "diagnose"], "`fairlead logs diagnose` needs JOB"),
        (["weights", "pull", "a", "b", "--include"], "--include"),
    ],
)
def test_what_is_missing_has_the_name_that_the_help_gives_it(fairlead, words, message):
    error = fairlead(*words, "--json").document["error"]
    verb = f"fairlead {' '.join(words[:2])}"
    assert (error["code"], error["hint"]) == ("cli/usage", f"{verb} --help")
    assert message in error["message"]
    assert "--source" not in error["message"]
    assert message.rpartition(" ")[2] in fairlead(*words[:2], "--help").out


@pytest.mark.parametrize("path", PATHS)
def test_help_of_each_verb_is_text_or_one_document(fairlead, path):
    plain = fairlead(*path, "--help")
    assert (plain.status, plain.err) == (0, "")
    assert plain.out.startswith(f"usage: fairlead {' '.join(path)}")
    assert max(map(len, plain.out.splitlines())) <= 100
    assert fairlead(*path, "--help", "--json").document["help"] == plain.out


@pytest.mark.parametrize("path", PATHS)
def test_every_parameter_says_what_it_is(fairlead, path):
    """In the help page each name is followed by words, on its line or on the next."""
    lines = fairlead(*path, "--help").out.splitlines()
    entries = [i for i, line in enumerate(lines) if re.match(r"  \S", line)]
    assert entries
    for i in entries:
        names, _, meaning = lines[i].strip().partition("  ")
        following = lines[i + 1] if i + 1 < len(lines) else ""
        assert meaning.strip() or following.startswith("      "), f"`{names}` of {' '.join(path)} has no help"


def test_an_unknown_verb_is_refused_with_the_nearest(fairlead):
    done = fairlead("prob", "--json")
    assert done.status == 2
    assert done.document["error"]["message"] == "no verb `prob`; did you mean `probe`?"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_verb_it_says_what_there_is(fairlead, words):
    done = fairlead(*words)
    assert done.status == 0
    named = [line.split()[0] for line in done.out.splitlines() if line.startswith("  ")]
    assert [n for n in named if not n.startswith("-")] == ALL, "in the order of the table"
    assert fairlead(*words, "--json").document["schema"] == "fairlead.help/1"


@pytest.mark.parametrize("words", [["--version"], ["-V"]])
def test_version(fairlead, words):
    assert fairlead(*words).out == f"fairlead {package.__version__}\n"
    assert fairlead(*words, "--json").document["version"] == package.__version__


def test_a_verb_with_verbs_alone_shows_them(fairlead):
    for verb in verbs.verbs():
        if not verb.target:
            done = fairlead(verb.name)
            assert done.status == 0
            assert done.out.startswith(f"usage: fairlead {verb.name} COMMAND")
            assert fairlead(verb.name, "--json").document["schema"] == "fairlead.help/1"


@pytest.mark.parametrize("word", ["\udcff\udcfe", "\x1b[31m", "", " ", "-", "ä", "x" * 5000, "../../etc"])
def test_any_word_is_answered(fairlead, word):
    for words in ([word], ["explain", word], ["show", word], [word, "explain"]):
        done = fairlead(*words, "--json")
        assert done.status in (0, 2), words
        assert json.loads(done.out.encode("utf-8"))


def test_the_epilogue_of_help_is_the_table_of_exits(fairlead):
    last = fairlead("--help").out.strip().splitlines()[-1]
    assert [int(w) for w in last.replace(",", " ").split() if w.isdigit()] == sorted(map(int, Exit))
