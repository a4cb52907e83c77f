"""On a live lab with a real Slurm: a pool's Python without torch accuses no node; services by the command."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.injector import FAIRLEAD, World
from support.services import TALKER
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "torch")]

MARK = "8640009.25"


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Three hosts with a GPU each on two planes, and a Slurm."""
    with world(hosts=4, gpus=1, planes=2) as made:
        yield made


def fairlead(lab: World, *words: str, file: Path | None = None) -> tuple[int, dict]:
    argv = [*FAIRLEAD, *words, "-f", str(file or lab.file), "--runs", str(lab.file.parent / "runs"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def bare() -> Iterator[Path]:
    """A Python without torch, where every host sees it: they share home directories."""
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".fairlead-bare-") as place:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        yield Path(place) / "bin" / "python"


def test_no_torch_in_the_pools_python_is_one_finding_and_nobody_is_left_out(lab, bare):
    python = bare
    file = lab.file.parent / "bare.toml"
    file.write_text(lab.file.read_text().replace("gpus = 1\n", f'gpus = 1\npython = "{python}"\n'))
    status, result = fairlead(lab, "preflight", file=file)
    alarms = [f for f in result["findings"] if f["verdict"] in ("fail", "unknown")]
    assert status == 4, alarms
    assert (result["verdict"], result["bad"], result["exclude"]) == ("unknown", "", "")
    (found,) = alarms
    assert found["code"] == "preflight/no-torch"
    assert "ModuleNotFoundError: No module named 'torch'" in found["message"]
    assert f"{python} -m pip install torch" in found["remedy"]


def test_a_service_is_deployed_seen_and_stopped_on_every_host_by_the_command(lab, tmp_path):
    program = tmp_path / "talk.py"
    program.write_text(TALKER % MARK)
    before = time.monotonic()
    words = ["service", "deploy", str(program), "--name", "talk", "--env", "TONE=loud"]
    try:
        status, began = fairlead(lab, *words)
        assert status == 0, began
        assert {(s["node"], s["did"], s["state"], s["manager"]) for s in began["services"]} == {
            (n, "started", "running", "supervisor") for n in lab.nodes
        }
        assert time.monotonic() - before < 60
        for host in lab.nodes:
            assert lab.sh(host, f"pgrep -c -f '^sleep {MARK}'").strip() == "1", "each host has its own"
        # without a name, also those of other tests are listed and judged: a lab's hosts share the machine's disk
        _, seen = fairlead(lab, "service", "ls")
        assert sorted(s["node"] for s in seen["services"] if s["name"] == "talk") == list(lab.nodes)
        text = subprocess.run(
            [*FAIRLEAD, "service", "ls", "talk", "-f", str(lab.file), "--runs", str(lab.file.parent / "runs")],
            capture_output=True, text=True, timeout=100,
        ).stdout.splitlines()  # fmt: skip
        assert [line.split()[:3] for line in text[1:]] == [["talk", "n[0-3]", "(4)"]], (
            "hosts that are alike are one line"
        )
        status, again = fairlead(lab, "service", "ls", "talk")
        assert status == 0, again
        lab.sh("n2", "pkill -9 -f '[p]rogram-'")
        status, again = fairlead(lab, "service", "ls", "talk", "-w", "n2")
        deadline = time.monotonic() + 30
        while again["services"][0].get("state") != "running" and time.monotonic() < deadline:
            status, again = fairlead(lab, "service", "ls", "talk", "-w", "n2")
        assert again["services"][0]["restarts"] == 1
        assert not list(Path("/var/lib/fairlead/services").glob("n[0-9]/talk*")), (
            "a host's own files are on the machine"
        )
    finally:
        status, ended = fairlead(lab, "service", "stop", "talk")
    assert status == 0
    assert {s["did"] for s in ended["services"]} == {"stopped"}
    for host in lab.nodes:
        assert lab.sh(host, f"pgrep -c -f '^sleep {MARK}' || true").strip() == "0"
        assert lab.sh(host, f"ls -d /var/lib/fairlead/services/{host}/talk* 2>/dev/null || true") == ""
