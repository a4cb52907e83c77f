"""The batch script: bash reads it, sbatch's options stand before the first command, words survive."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest

from fairlead.spec.loader import load
from fairlead.weights.script import batch_script

BASE = 'schema = 1\n[[pool]]\nname = "p"\nsize = "other"\nnodes = "n[0-15]"\n[access]\nvia = "slurm"\n[slurm]\n'


def script(slurm: str = "", dest: str = "/mnt/nvme/m", run: str = "python train.py") -> str:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "c.toml").write_text(BASE + slurm)
        spec = load(Path(place) / "c.toml")
    return batch_script(spec, "az://models/m", dest, file="/c.toml", num_nodes=16, run=run)


PYXIS = """container_runtime = "pyxis"
container = "nvcr.io#nvidia/pytorch:25.01-py3"
container_mounts = ["/d:/d"]
"""
APPTAINER = 'container_runtime = "apptainer"\ncontainer = "/images/t.sif"\n'
LAST = {
    "": ["srun"],
    PYXIS: [
        "srun",
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3",
        "--container-mounts=/mnt/nvme/m:/mnt/nvme/m:ro,/d:/d",
    ],
    APPTAINER: ["srun", "apptainer", "exec", "--bind", "/mnt/nvme/m:/mnt/nvme/m:ro", "/images/t.sif"],
}


@pytest.mark.parametrize(("slurm", "last"), LAST.items(), ids=["bare", "pyxis", "apptainer"])
def test_the_job_starts_behind_the_spread(slurm, last):
    text = script(slurm + 'partition = "gpu"\n')
    assert shlex.split(text.splitlines()[-1]) == [*last, "python", "train.py"]
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert options == ["--job-name=weights", "--nodes=16", "--partition=gpu", "--exclusive", "--mem=0"]
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_a_destination_with_spaces_is_one_word():
    line = next(line for line in script(dest="/mnt/a b;c").splitlines() if line.startswith("fairlead"))
    assert shlex.split(line)[:6] == ["fairlead", "weights", "spread", "az://models/m", "/mnt/a b;c", "-f"]
