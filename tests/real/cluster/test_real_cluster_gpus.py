"""GPUs of a Slurm job and its steps: a step sees what it asks for, and must not ask for what the job does not hold."""

from __future__ import annotations

import sys

import pytest

from fairlead.cluster import Cluster, Command
from fairlead.cluster.engine import Engine
from fairlead.cluster.slurm import Ask, SlurmBackend
from support.slurm import PrivateSlurm

pytestmark = [pytest.mark.real, pytest.mark.requires("slurm", "munge", "root")]
SHOW = ["sh", "-c", "echo GPUs $CUDA_VISIBLE_DEVICES"]


@pytest.fixture(scope="module")
def gpus():
    slurm = PrivateSlurm(2, gpus=2)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def test_steps_and_tasks_see_the_gpus_that_an_exclusive_job_was_given_unasked(gpus, tmp_path):
    notes = []
    environ = {**gpus.env, "SBATCH_ACCOUNT": "physics", "SLURM_EXCLUSIVE": "1"}
    backend = SlurmBackend(Ask(pending_s=30), folder=tmp_path, environ=environ, note=notes.append)
    with Cluster(Engine(backend)) as cluster:
        results = cluster.run("n[1-2]", SHOW, limit_s=30)
        assert [r.stdout.text for r in results] == ["GPUs 0,1\n"] * 2, results
        said = set()
        with cluster.live_tasks("n[1-2]", Command(argv=tuple(SHOW)), per_node=2, limit_s=30) as group:
            while line := group.read(10):
                said |= {line.text} if line.rank is not None else set()
        assert said == {"GPUs 0,1"}
        assert {r.state for r in group.results} == {"done"}
    gpus.until_no_jobs()
    assert "not used, as [slurm] says what to ask for: SBATCH_ACCOUNT, SLURM_EXCLUSIVE" in notes


INSIDE = """
import sys
from pathlib import Path
from fairlead.cluster import Cluster
from fairlead.cluster.engine import Engine
from fairlead.cluster.slurm import SlurmBackend
with Cluster(Engine(SlurmBackend(folder=Path(sys.argv[1])))) as nodes:
    for r in nodes.run("n1", ["sh", "-c", "echo GPUs $CUDA_VISIBLE_DEVICES"], limit_s=20):
        print(r, r.stdout.text.strip(), sep="  ")
"""


@pytest.mark.parametrize(("asks", "sees"), [("", "GPUs"), ("--gres=gpu:1", "GPUs 0"), ("--gres=gpu:2", "GPUs 0,1")])
def test_inside_a_job_its_own_gpus_are_what_a_step_asks_for(gpus, tmp_path, asks, sees):
    program, out = tmp_path / "inside.py", tmp_path / "out"
    program.write_text(INSIDE)
    script = tmp_path / "job.sbatch"
    script.write_text(
        f"#!/bin/sh\n#SBATCH --nodelist=n1 --output={out} {asks}\nexec {sys.executable} {program} {tmp_path}\n"
    )
    gpus.ask("sbatch", str(script))
    gpus.until_no_jobs(40)
    assert out.read_text().splitlines()[-1] == f"n1  done  {sees}"
