"""Each verb once for real, with `--json`: stdout is one document, and the status of the process is the one it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli.reference import command_paths

pytestmark = [pytest.mark.real, pytest.mark.requires("netns", "srv6", "tbf", "nft")]

LAB, OTHER = f"verbs{os.getpid()}", f"other{os.getpid()}"
ROOT = Path(__file__).parents[3]
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
LAB_FILE = f"""
schema = 1
[cluster]
name = "verbs"
[[pool]]
name = "lab"
nodes = "n[0-1]"
size = "lab"
gpus = 1
[fabric]
link = "ethernet"
rdma = "mrc"
planes = 2
t0 = 1
t1 = 1
[access]
via = "lab"
[lab]
name = "{LAB}"
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
    "lab up": ["--name", OTHER],
    "lab down": ["--name", OTHER],
    "lab status": ["-f", "lab.toml"],
    "lab exec": ["-f", "lab.toml", "n0", "--", "hostname"],
    "lab fault": ["-f", "lab.toml", "--kinds"],
    "fabric": [],
    "fabric sim": [str(ROOT / "examples/fabric/t1-down.toml"), "--estimate"],
    "preflight": ["-f", "lab.toml"],
    "bringup": ["-f", "lab.toml"],
}
"""In an order in which each finds what it needs."""

SLOW = {"preflight", "bringup"}
THERE = {" ".join(path) for path in command_paths()}
VERBS = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else []) for name in EXAMPLES if name in THERE]


@pytest.fixture(scope="module")
def fairlead(tmp_path_factory):
    """Run a verb in a folder with two cluster files, one of them of a lab that stands."""
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "here.toml").write_text(HERE)
    (folder / "lab.toml").write_text(LAB_FILE)
    env = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD")}

    def call(name, *words):
        argv = [sys.executable, "-m", "fairlead", *name.split(), "--json", *words]
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False)

    try:
        assert call("lab up", "-f", "lab.toml").returncode == 0
        yield call
    finally:
        call("lab down", "-f", "lab.toml")
        call("lab down", "--name", OTHER)


def test_there_is_an_example_of_every_verb():
    assert THERE - set(EXAMPLES) == set()


@pytest.mark.parametrize("name", VERBS)
def test_stdout_is_one_document_with_the_status_of_the_process(fairlead, name):
    done = fairlead(name, *EXAMPLES[name])
    document = json.loads(done.stdout)
    assert document["exit"] == done.returncode
    assert "error" not in document, document
    assert "Traceback" not in done.stderr
    assert document["schema"].startswith("fairlead.")
    assert document["start"] <= document["end"]
