"""A job of a real Slurm trains the example with steps of its own, and gets the bits that one host gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.slurm import PrivateSlurm

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.train.config import load
from fairlead.train.session import Session
from unit.train.test_session import losses

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.requires("slurm", "munge", "root", "torch"),
]

PREPARE = Path(__file__).parents[3] / "examples" / "train" / "prepare.py"
STEPS = 3
JOB = "#!/bin/sh\nfairlead train run --inside --threads 1 --steps {steps} {folder}/train.toml\n"


@pytest.fixture
def slurm():
    made = PrivateSlurm(2)
    try:
        made.start()
        yield made
    finally:
        made.stop()
    assert made.processes() == []


def prepared(folder: Path) -> Path:
    """The example, with a micro-batch for each of two ranks."""
    subprocess.run([sys.executable, PREPARE, folder], check=True, timeout=60)
    config = folder / "train.toml"
    text = config.read_text().replace("rows = 8", 'rows = 4\naccumulation = 2\nkeep = "memory"\nsave_every = 1')
    config.write_text(text + '\n[memory]\ndevice = "cpu"\n')
    return folder


def test_two_ranks_of_a_job_train_as_one_host_does(slurm, tmp_path, one_thread) -> None:
    alone, many = prepared(tmp_path / "alone"), prepared(tmp_path / "many")
    (tmp_path / "job.sh").write_text(JOB.format(steps=STEPS, folder=many))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in an activated environment
    words = ["sbatch", "--wait", "--nodes=2", f"--chdir={tmp_path}", f"--output={tmp_path}/out", tmp_path / "job.sh"]
    done = subprocess.run(words, env={**slurm.env, "PATH": path}, capture_output=True, text=True, timeout=240)
    said = (tmp_path / "out").read_text()
    assert done.returncode == 0, done.stderr + said
    assert f"{STEPS} of 60 steps on 2 nodes" in said
    with Session.open(load(alone / "train.toml"), alone) as run:
        list(run.train(STEPS))
    assert len(losses(many)) == STEPS
    assert losses(many) == losses(alone)
    for name in ("snapshot-0.bin", "snapshot-1.bin"):
        assert (many / "store" / name).read_bytes() == (alone / "store" / name).read_bytes()
