"""The README's line, as it stands there, given to a real sbatch: after a no-go, after a go, after a run cut short."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import running
from support.injector import FAIRLEAD, World
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm")]

README = Path(__file__).parents[3] / "README.md"
JOB = "#!/bin/sh\n#SBATCH --nodes={nodes} --chdir=/tmp --output=/dev/null\nsrun hostname\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    with world(gpus=1, planes=2) as made:
        yield made


def readme_line() -> str:
    """The command that submits without the bad nodes."""
    (line,) = re.findall(r"^\$ (sbatch .*train\.sbatch)", README.read_text("utf-8"), re.MULTILINE)
    return line


def command(lab: World, *words: str) -> list[str]:
    return [*FAIRLEAD, "preflight", "-f", str(lab.file), "--runs", "runs", *words]


def preflight(lab: World, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(lab, *words), cwd=place, capture_output=True, text=True, timeout=240)


def submit(lab: World, place: Path, nodes: int) -> subprocess.CompletedProcess[str]:
    """What the README's line does with a job of so many nodes."""
    (place / "train.sbatch").write_text(JOB.format(nodes=nodes))
    env = {**os.environ, "PATH": f"{running(lab.name).slurm.bin}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", readme_line()], cwd=place, env=env, capture_output=True, text=True, timeout=60)


def nodes_of(lab: World, said: str) -> str:
    """Where a submitted job ran, once it has."""
    job = said.rsplit(maxsplit=1)[-1]
    deadline = time.monotonic() + 60
    while "JobState=COMPLETED" not in (shown := lab.sh("head", f"scontrol -o show job {job}")):
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
    found = re.search(r" NodeList=(\S+)", shown)
    assert found is not None
    return found[1]


def tells_what_it_did(path: Path) -> None:
    """The log of a run that left n2 out: stages with their times, the patience, the numbers and the decision."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    said = {e["what"]: e for e in events}
    for stage in ("nodes", "pairs", "ranks"):
        assert f"stage {stage} begins" in said
        assert said[f"stage {stage} ended"]["data"]["took_ms"] >= 0
    assert said["4 of 4 probes ended"]["data"]["patience_s"] > 0
    assert said["pairs on 3 of 4 nodes"]["data"]["nodes"] == "n[0-1,3]"
    assert [e["node"] for e in events if e["what"].startswith("left out of pairs: ib/port-rate")] == ["n2"]
    assert all(e["data"]["source"] for e in events if e["what"].startswith("limit "))
    assert any(e["what"].startswith("fail: ") and e["data"]["code"] == "ib/port-rate" for e in events)


@pytest.mark.slow
def test_the_readmes_line_after_each_kind_of_run(lab, tmp_path):
    rate = ["path=/sys/class/infiniband/mlx5_1/ports/1/rate", "content=50 Gb/sec (1X EDR)"]
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, "file", "n2", *rate], check=True, capture_output=True)
    done = preflight(lab, tmp_path)
    assert done.returncode == 3
    assert "exclude  --exclude=n2" in done.stdout
    assert "Total Execution Ranks: 3" in done.stdout
    assert "SUCCESS: DDP Multi-Node AllReduce Ring Complete!" in done.stdout
    assert "next     sbatch --exclude=n2 JOB.sbatch" in done.stderr
    tells_what_it_did(next(tmp_path.glob("runs/*/log.jsonl")))
    assert nodes_of(lab, submit(lab, tmp_path, 3).stdout) == "n[0-1,3]"

    lab.heal()
    assert preflight(lab, tmp_path).returncode == 0
    assert nodes_of(lab, submit(lab, tmp_path, 4).stdout) == "n[0-3]"

    cut_short = subprocess.Popen([*command(lab), "-q"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("runs/*/exclude"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    cut_short.kill()
    cut_short.wait()
    refused = submit(lab, tmp_path, 4)
    assert refused.returncode != 0
    assert "Invalid node name" in refused.stderr


def test_a_gate_that_goes_on_without_the_bad_nodes(lab, tmp_path):
    rate = ["path=/sys/class/infiniband/mlx5_1/ports/1/rate", "content=50 Gb/sec (1X EDR)"]
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, "file", "n1", *rate], check=True, capture_output=True)
    try:
        assert preflight(lab, tmp_path, "--without-bad").returncode == 0
        assert (next(tmp_path.glob("runs/*/exclude"))).read_text() == "--exclude=n1\n"
    finally:
        lab.heal()
