"""`fabric ping` and `fabric perf` where Slurm is how nodes are reached: typed once, in a job's batch script."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.lab import slurm_environ
from fairlead.fabric.mrc.compile import cache_folder
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down
from support.injector import FAIRLEAD
from support.labs import Lab, fresh_name
from support.processes import until

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytestmark += [pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm")]
CLUSTER = f"""
schema = 1
[cluster]
name = "under-slurm"
[access]
via = "slurm"
[slurm]
options = []
[[pool]]
name = "lab"
size = "other"
nodes = "n[0-3]"
python = "{sys.executable}"
[fabric]
link = "ethernet"
rdma = "mrc"
planes = 2
"""


SCRIPT = f"""#!/bin/sh
#SBATCH --nodes=4 --chdir=/mnt --output=/mnt/out
cat > cluster.toml <<EOF
{CLUSTER}
EOF
export HOME=/mnt XDG_CACHE_HOME={cache_folder().parents[1]}
{" ".join(FAIRLEAD)} fabric ping --count 60 --json > ping
{" ".join(FAIRLEAD)} fabric perf n0 n3 --duration 2 --json > perf
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab(LabShape(name=fresh_name(), planes=2, slurm=True))
    yield made
    down(made.name)


def test_ping_and_perf_are_typed_once_in_a_batch_script_and_start_a_step_on_each_node(lab: Lab, tmp_path: Path) -> None:
    assert until(lambda: lab.sh("head", "sinfo -h -t idle -o %D") == "4", 90), lab.sh("head", "sinfo -N -l")
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    words = ["sbatch", "--wait", "--parsable", "--nodelist=n[0-3]", str(script)]
    done = subprocess.run(words, env=slurm_environ(lab.name), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr + lab.sh("n0", "cat /mnt/out /mnt/ping /mnt/perf")
    ping, perf = (json.loads(lab.sh("n0", f"cat /mnt/{name}")) for name in ("ping", "perf"))
    assert ping["verdict"] == "pass", ping
    assert perf["verdict"] == "pass", perf
    assert perf["intact"]
    assert perf["planes"] == 2
    assert perf["sums"]["n0"]["num_bytes"] > 1 << 20
