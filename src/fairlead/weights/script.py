"""A batch script for Slurm that spreads a model over the job's nodes and then starts the job. Pure.

A spread needs no container, MPI or key of its own: it runs as steps of the job, in the nodes' own Python. What runs
then may be bare, in enroot by pyxis, or in apptainer; it sees DEST read-only.
"""

from __future__ import annotations

import shlex

from fairlead.cluster.table import Slurm
from fairlead.spec.model import Spec


def batch_script(spec: Spec, source: str, dest: str, *, file: str, num_nodes: int, run: str) -> str:
    """The script. `file` is the cluster file, `run` what srun is to start, in the user's own words; empty: nothing."""
    slurm = spec.table(Slurm)
    asked = [f"--{key}={value}" for key in ("partition", "account", "reservation") if (value := getattr(slurm, key))]
    options = ["--job-name=weights", f"--nodes={num_nodes}", *asked, *slurm.options]
    words = ["fairlead", "weights", "spread", source, dest, "-f", file]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        "set -eu",
        "",
        "# Each byte leaves the source once. A second run fetches only what is missing or has changed.",
        "# Credentials are those of this environment (AZURE_STORAGE_..., AWS_..., HF_TOKEN); nodes never get them.",
        "# Status 3: a node is left out, or an object could not be had; the job then does not start.",
        f'{shlex.join(words)} -w "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)"',
    ]
    if run:
        lines += ["", "# Every node has all files under their names now.", _start(slurm, dest, run)]
    return "\n".join(lines) + "\n"


def _start(slurm: Slurm, dest: str, run: str) -> str:
    """The srun of the job itself."""
    mounts = [f"{dest}:{dest}:ro", *slurm.container_mounts]
    if slurm.container_runtime == "pyxis":
        words = [f"--container-image={slurm.container}", f"--container-mounts={','.join(mounts)}"]
        return f"srun {shlex.join(words)} {run}"
    if slurm.container_runtime == "apptainer":
        words = ["apptainer", "exec", *(word for mount in mounts for word in ("--bind", mount)), slurm.container]
        return f"srun {shlex.join(words)} {run}"
    return f"srun {run}"
