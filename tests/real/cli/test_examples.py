"""Each verb once for real, with `--json`: stdout is one document, and the status of the process is the one it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fairlead.cli.reference import command_paths
from support.examples import examples, fill

pytestmark = [pytest.mark.real, pytest.mark.requires("netns", "srv6", "tbf", "nft")]

NAMES = {"lab": f"verbs{os.getpid()}", "other": f"other{os.getpid()}"}
EXAMPLES = examples()


@pytest.fixture(scope="module")
def fairlead(tmp_path_factory):
    """Run a verb in a folder with two cluster files, one of them of a lab that stands."""
    folder = tmp_path_factory.mktemp("verbs")
    fill(folder, NAMES["lab"])
    env = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD") or k == "FAIRLEAD_LABS"}

    called: dict[str, subprocess.CompletedProcess[str]] = {}

    def call(name, *words):
        argv = [sys.executable, "-m", "fairlead", *name.split(), "--json", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
        with subprocess.Popen(argv, cwd=folder, env=env, **pipes) as child:
            if name in EXAMPLES and EXAMPLES[name].ends:
                assert child.stderr.readline()
                child.terminate()
            out, err = child.communicate(timeout=250)
        called[name] = subprocess.CompletedProcess(argv, child.returncode, out, err)
        return called[name]

    try:
        assert call("lab up", "-f", "lab.toml").returncode == 0
        yield call, called
    finally:
        call("service stop", "-f", "here.toml", NAMES["other"])
        call("lab down", "-f", "lab.toml")
        call("lab down", "--name", NAMES["other"])


def test_there_is_an_example_of_every_verb_and_of_nothing_else():
    assert {" ".join(path) for path in command_paths()} == set(EXAMPLES), "one in tests/real/cli/examples/ROOM.toml"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if each.slow else []) for name, each in EXAMPLES.items()]
)
def test_stdout_is_one_document_with_the_status_of_the_process(fairlead, name):
    example, (call, called) = EXAMPLES[name], fairlead
    if example.after and example.after not in called:
        call(example.after, *EXAMPLES[example.after].called(**NAMES))
    done = call(name, *example.called(**NAMES))
    document = json.loads(done.stdout)
    assert document["exit"] == done.returncode
    assert "error" not in document, document
    assert "Traceback" not in done.stderr
    assert document["schema"].startswith("fairlead.")
    assert document["start"] <= document["end"]
