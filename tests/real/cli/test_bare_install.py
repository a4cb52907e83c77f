"""fairlead without any extra: every verb works, or says in one sentence which extra to install and how."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest

from support import bare
from support.examples import examples, fill

pytestmark = pytest.mark.real

EXAMPLES = examples()
WORK = [name for name, each in EXAMPLES.items() if not each.extra]
NEED = [name for name, each in EXAMPLES.items() if each.extra]
NAMES = {"lab": "never-built", "other": "never-built"}


@pytest.fixture(scope="module")
def fairlead(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    python = bare.install(folder / "venv")
    fill(folder, "never-built")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD", "PYTHON"))} | {"HOME": str(folder)}

    def call(*words):
        argv = [python, "-m", "fairlead", *words]
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)

    call.python, call.folder = python, folder
    return call


def test_nothing_of_any_extra_is_there(fairlead):
    lines = json.loads(fairlead("doctor", "--json").stdout)["capabilities"]
    without = {line["name"] for line in lines if "fairlead[" in line["get"] and not line["ok"]}
    assert without == {line["name"] for line in lines if "fairlead[" in line["get"]}
    assert without


@pytest.mark.parametrize("verb", WORK)
def test_a_verb_that_needs_no_extra_works(fairlead, verb):
    example = EXAMPLES[verb]
    if example.after:
        fairlead(example.after, *EXAMPLES[example.after].called(bare=True, **NAMES))
    done = fairlead(*verb.split(), "--json", *example.called(bare=True, **NAMES))
    document = json.loads(done.stdout)
    assert document["exit"] == done.returncode != 1, done.stderr
    assert document.get("error", {}).get("code") not in {"cli/bug", "cli/missing-extra"}, document
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", NEED)
def test_a_verb_that_needs_an_extra_names_it_and_the_command_that_brings_it(fairlead, verb):
    extra, words = EXAMPLES[verb].extra, EXAMPLES[verb].called(bare=True, **NAMES)
    done = fairlead(*verb.split(), *words)
    assert (done.returncode, done.stdout) == (4, "")
    said, hint = done.stderr.splitlines()
    assert "bug" not in done.stderr
    assert said.startswith("fairlead: this needs ")
    assert f"the extra `{extra}` of fairlead brings it" in said
    assert shlex.split(hint.removeprefix("next")) == [
        str(fairlead.python),
        "-m",
        "pip",
        "install",
        f"fairlead[{extra}]",
    ]
    error = json.loads(fairlead(*verb.split(), *words, "--json").stdout)["error"]
    assert (error["code"], error["hint"]) == ("cli/missing-extra", hint.removeprefix("next").strip())


def test_preflight_says_what_the_nodes_python_lacks(fairlead):
    """What a node lacks is for its Python, not for the one that runs fairlead: a finding, not an error."""
    document = json.loads(fairlead("preflight", "-f", "here.toml", "--json").stdout)
    assert document["verdict"] in {"fail", "unknown"}
    assert "torch" in json.dumps(document["findings"])


def test_each_stage_of_a_run_is_told_in_its_log(fairlead):
    run = json.loads(fairlead("preflight", "-f", "here.toml", "--json").stdout)["run"]
    log = fairlead.folder / "runs" / run / "log.jsonl"
    said = [json.loads(line) for line in log.read_text().splitlines()]
    told = [at["what"] for at in said if at["source"] == "fairlead.preflight"]
    stages = [what.removeprefix("stage ") for what in told if what.startswith("stage ")]
    assert stages == [f"{name} {how}" for name in ("nodes", "pairs", "ranks") for how in ("begins", "ended")]


def test_a_missing_module_of_our_own_is_a_bug_still(tmp_path):
    """Only what an extra brings is asked for; anything else that is missing is a fault of ours."""
    from fairlead.cli.output import _missing_extra

    for name in ("fairlead.nowhere", "msgspec", "", None):
        assert _missing_extra(ModuleNotFoundError("no", name=name)) is None
    wrapped = ImportError("cannot import the verb")
    wrapped.__cause__ = ModuleNotFoundError("no", name="numba.core")
    assert "the extra `fabric`" in str(_missing_extra(wrapped))
