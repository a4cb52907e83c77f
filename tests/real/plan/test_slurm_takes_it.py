"""A real slurmctld and slurmds take the files that are written for them, and what they say comes about."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.plan.slurm.files import slurm_files
from fairlead.plan.table import PlanTable
from fairlead.plan.wanted import PoolWanted, Wanted
from fairlead.spec.model import Fabric
from fairlead.spec.vmsize import size
from support.slurm import PrivateSlurm

pytestmark = [pytest.mark.real, pytest.mark.requires("slurm", "munge", "root")]

NODES = "n[1-4]"


@pytest.fixture(scope="module")
def slurm():
    """Four nodes of ND A100 v4 below two switches, as the plan writes them; only places are this machine's."""
    made = PrivateSlurm()
    root = made.root
    said = PlanTable(program="/bin/true", archive=str(root / "jobs"), topology="tree")
    pool = PoolWanted(name="a100", nodes=NodeSet(NODES), size=size("Standard_ND96asr_v4"))
    wanted = Wanted(
        cluster="train",
        pools=(pool,),
        said=said,
        fabric=Fabric(link="infiniband", rdma="ib", t0=2, t1=1),
        partition="main",
    )
    files, notes = slurm_files(wanted)
    assert notes == []
    text = {f.path.removeprefix("slurm/"): f.text for f in files}
    own = [
        line
        for line in (root / "slurm.conf").read_text().splitlines()
        if not line.startswith(("NodeName", "Partition", "Gres"))
    ]
    # SchedulerParameters may stand once; the test's own only makes Slurm quick
    own = [line for line in own if not line.startswith("SchedulerParameters")]
    place = next(line for line in (root / "slurm.conf").read_text().splitlines() if line.startswith("NodeName"))
    where = " ".join(word for word in place.split() if word.startswith(("NodeAddr", "NodeHostname", "Port")))
    nodes = text["nodes.conf"].replace("State=UNKNOWN", f"State=UNKNOWN {where}")
    (root / "nodes.conf").write_text(nodes)
    (root / "fairlead.conf").write_text(text["fairlead.conf"].replace("/etc/slurm", str(root)))
    (root / "slurm.conf").write_text(
        "\n".join([*own, f"Include {root}/fairlead.conf", f"Include {root}/nodes.conf", ""])
    )
    (root / "topology.conf").write_text(text["topology.conf"])
    for gpu in range(8):
        os.mknod(root / f"nvidia{gpu}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (root / "gres.conf").write_text(text["gres.conf"].replace("/dev/nvidia", f"{root}/nvidia"))
    for name in ("health.sh", "prolog.sh", "epilog.sh"):
        script = text[name].replace("exec /bin/true", f"touch {root}/looked; exec /bin/true")
        (root / name).write_text(script.replace("export PATH=", f"export SLURM_CONF={root}/slurm.conf PATH="))
        (root / name).chmod(0o755)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def wait_for(what, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.2)
    return found


def test_the_settings_are_those_of_the_file(slurm):
    said = slurm.ask("scontrol", "show", "config")
    for name, value in (
        ("HealthCheckProgram", "health.sh"), ("HealthCheckInterval", "300"), ("HealthCheckNodeState", "IDLE"),
        ("Prolog ", "prolog.sh"), ("Epilog ", "epilog.sh"), ("PrologFlags", "Alloc"),
        ("TopologyPlugin", "topology/tree"),
        ("SchedulerParameters", "nohold_on_prolog_fail"), ("PropagateResourceLimitsExcept", "MEMLOCK"),
    ):  # fmt: skip
        line = next(line for line in said.splitlines() if line.startswith(name))
        assert value in line


def test_every_node_has_its_gpus_and_none_is_invalid(slurm):
    said = slurm.ask("scontrol", "-o", "show", "node", "n1")
    assert "Gres=gpu:a100:8" in said
    assert "CPUTot=96" in said
    assert "INVAL" not in said
    first = slurm.ask("srun", "-w", "n1", "--gres=gpu:a100:2", "--chdir=/tmp", "printenv", "CUDA_VISIBLE_DEVICES")
    assert len(first.split(",")) == 2
    words = ["slurmd", "-G", "-N", "n1", "-f", slurm.env["SLURM_CONF"]]
    said = subprocess.run(words, env=slurm.env, capture_output=True, text=True).stderr
    # GPUs 0 and 1 near CPUs 24 to 47: the driver's order, not that of NUMA nodes
    near = [line.partition("Cores=")[2].split(" ")[0].split("(")[0] for line in said.splitlines() if "Name=gpu" in line]
    assert near == ["24-47", "0-23", "72-95", "48-71"], said


def test_jobs_know_their_place_in_the_fabric(slurm):
    assert "Switches=sw[000-001]" in slurm.ask("scontrol", "show", "topology")
    address = slurm.ask("srun", "-w", "n3", "--chdir=/tmp", "printenv", "SLURM_TOPOLOGY_ADDR")
    assert address == "core.sw001.n3"


def test_the_health_program_runs(slurm):
    wait_for((slurm.root / "looked").exists, 90)


def test_a_job_leaves_its_script_and_output(slurm):
    script = slurm.root / "job.sh"
    script.write_text("#!/bin/sh\necho out of the job\necho error of the job >&2\n")
    out, err = slurm.root / "o.txt", slurm.root / "e.txt"
    job = slurm.ask("sbatch", "--parsable", "-N2", "--chdir=/tmp", f"-o{out}", f"-e{err}", str(script))
    assert job.isdigit()
    (place,) = wait_for(lambda: [p.parent for p in (slurm.root / "jobs").glob(f"*/{job}/StdErr") if p.stat().st_size])
    assert (place / "StdOut").read_text() == "out of the job\n"
    assert (place / "StdErr").read_text() == "error of the job\n"
    assert "echo out of the job" in (place / "script").read_text()
    assert f"JobId={job} " in (place / "job").read_text()
    assert place.stat().st_mode & 0o077 == 0


def test_a_job_cannot_have_somebody_elses_file_archived(slurm):
    """The job names its output; here it is a link to what only root may read. The epilog reads as the user."""
    secret = slurm.root / "secret"
    secret.write_text("only for root\n")
    secret.chmod(0o600)
    place = Path("/tmp") / f"fl-plan-{os.getpid()}"
    place.mkdir(mode=0o777)
    try:
        place.chmod(0o777)
        words = f"sbatch --parsable -N1 --chdir=/tmp -o {place}/out --wrap 'rm {place}/out; ln -s {secret} {place}/out'"
        job = subprocess.run(
            ["runuser", "-u", "nobody", "--", "sh", "-c", words],
            env=slurm.env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        archived = wait_for(lambda: list((slurm.root / "jobs").glob(f"*/{job}/StdOut")))
        slurm.until_no_jobs()
        time.sleep(0.5)
        assert (place / "out").is_symlink()
        assert archived[0].read_text() == ""
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
