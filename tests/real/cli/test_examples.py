"""Each verb once for real, with `--json`: stdout is one document, and the status of the process is the one it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fairlead.cli.reference import command_paths

pytestmark = [pytest.mark.real, pytest.mark.requires("netns", "srv6", "tbf", "nft")]

LAB = f"verbs{os.getpid()}"
HERE = """
schema = 1
[cluster]
name = "here"
[[pool]]
name = "here"
nodes = "localhost"
size = "other"
[fabric]
link = "ethernet"
rdma = "none"
[access]
via = "local"
"""

EXAMPLES = {
    "init": ["--output", "-"],
    "check": ["-f", "here.toml"],
    "doctor": [],
    "exec": ["-f", "here.toml", "--", "true"],
    "probe": ["-f", "here.toml"],
    "show": ["last"],
    "rejudge": ["last"],
    "diff": ["last", "last"],
    "explain": [],
    "schema": [],
    "lab": [],
    "lab up": ["--name", LAB],
    "lab status": ["--name", LAB],
    "lab exec": ["--name", LAB, "n0", "--", "hostname"],
    "lab fault": ["--name", LAB, "link-down", "p0/n1"],
    "lab down": ["--name", LAB],
}
"""In an order in which each finds what it needs."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Verb -> the finished process."""
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "here.toml").write_text(HERE)
    env = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD")}

    def call(name, *words):
        argv = [sys.executable, "-m", "fairlead", *name.split(), "--json", *words]
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False)

    done = {}
    try:
        for name, words in EXAMPLES.items():
            done[name] = call(name, *words)
    finally:
        call("lab down", "--name", LAB)
    return done


def test_there_is_an_example_of_every_verb():
    assert {" ".join(path) for path in command_paths()} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_stdout_is_one_document_with_the_status_of_the_process(answers, name):
    done = answers[name]
    document = json.loads(done.stdout)
    assert document["exit"] == done.returncode
    assert "error" not in document, document
    assert "Traceback" not in done.stderr
    assert document["schema"].startswith("fairlead.")
    assert document["start"] <= document["end"]
