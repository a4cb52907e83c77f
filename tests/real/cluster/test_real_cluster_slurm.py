"""Slurm for real: allocations, nodes that cannot be used, jobs inside jobs, and what is left afterwards."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from fairlead.cluster import Cluster, Command, State
from fairlead.cluster.engine import Engine
from fairlead.cluster.slurm import Ask, SlurmBackend
from fairlead.errors import SchedulerError
from support.processes import left_after, parent, until, until_marked
from support.slurm import PrivateSlurm

pytestmark = [pytest.mark.real, pytest.mark.requires("slurm", "munge", "root")]


@pytest.fixture
def notes() -> list[str]:
    return []


def cluster(slurm: PrivateSlurm, folder: Path, notes=None, environ=None, **ask) -> Cluster:
    said = notes if notes is not None else []
    backend = SlurmBackend(
        Ask(**{"pending_s": 30.0, **ask}), folder=folder, note=said.append, environ=environ or slurm.env
    )
    return Cluster(Engine(backend))


def test_a_readable_script_is_left_and_works_by_hand(slurm, tmp_path):
    with cluster(slurm, tmp_path, partition="main", minutes=5) as nodes:
        results = nodes.run("n[1-2]", ["sh", "-c", "echo $SLURMD_NODENAME"], limit_s=20)
        assert [r.stdout.text for r in results] == ["n1\n", "n2\n"]
        assert "n[1-2]" in slurm.jobs()
    slurm.until_no_jobs()
    [script] = tmp_path.iterdir()
    assert script.suffix == ".sbatch"
    job = slurm.ask("sbatch", "--parsable", str(script))
    try:
        assert until(lambda: "RUNNING n[1-2]" in slurm.jobs()), slurm.jobs()
    finally:
        slurm.ask("scancel", job)
        slurm.until_no_jobs()


def test_a_second_call_uses_the_nodes_already_held(slurm, tmp_path):
    with cluster(slurm, tmp_path) as nodes:
        nodes.run("n[1-2]", ["true"], limit_s=20)
        nodes.run("n[1-3]", ["true"], limit_s=20)
        assert len(slurm.jobs().splitlines()) == 2
        assert len(list(tmp_path.iterdir())) == 2
    slurm.until_no_jobs()


def test_nodes_slurm_cannot_use_are_results_with_slurms_reason(slurm, tmp_path):
    slurm.ask("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=IB port 3 is down")
    try:
        with cluster(slurm, tmp_path) as nodes:
            results = nodes.run("n[1-2,77]", ["true"], limit_s=20)
            group = nodes.run_ranks("n[1-2]", ["true"], per_node=2, limit_s=20)
    finally:
        slurm.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
        slurm.until_no_jobs()
    assert [(r.node, str(r.state), r.error) for r in results] == [
        ("n1", "done", ""),
        ("n2", "unreachable", "Slurm has it drained: IB port 3 is down"),
        ("n77", "unreachable", "Slurm knows no node of that name"),
    ]
    # a group that cannot be whole is not begun
    assert [(r.rank, str(r.state), r.error) for r in group] == [
        (0, "cancelled", "not started"),
        (1, "cancelled", "not started"),
        (2, "unreachable", "Slurm has it drained: IB port 3 is down"),
        (3, "unreachable", "Slurm has it drained: IB port 3 is down"),
    ]


def test_a_job_that_does_not_start_says_what_it_waits_for(slurm, tmp_path, notes):
    blocker = slurm.ask("sbatch", "--parsable", "--exclusive", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 300")
    try:
        with cluster(slurm, tmp_path, notes, pending_s=3.0) as nodes:
            results = nodes.run("n[1-2]", ["true"], limit_s=20)
    finally:
        slurm.ask("scancel", blocker)
        slurm.until_no_jobs()
    assert {r.state for r in results} == {State.UNREACHABLE}
    assert "did not start within 3 s" in results[0].error
    assert any("waits: " in note for note in notes)
    assert len(notes) < 6


def test_a_refused_job_is_an_error_that_quotes_slurm(slurm, tmp_path):
    with cluster(slurm, tmp_path, partition="nonesuch") as nodes, pytest.raises(SchedulerError) as caught:
        nodes.run("n1", ["true"], limit_s=20)
    assert caught.value.code == "cluster/slurm-refused"
    assert "invalid partition" in caught.value.message.lower()
    assert caught.value.hint.startswith("sbatch ")


def test_a_partition_that_is_down_is_not_waited_for(slurm, tmp_path):
    with cluster(slurm, tmp_path, partition="closed") as nodes:
        [result] = nodes.run("n1", ["true"], limit_s=20)
    slurm.until_no_jobs()
    assert "PartitionDown" in result.error
    assert "did not start within" not in result.error


def test_without_a_controller_nothing_runs(slurm, tmp_path):
    conf = tmp_path / "slurm.conf"
    lines = (slurm.root / "slurm.conf").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("SlurmctldPort")]
    conf.write_text("\n".join([*kept, "SlurmctldPort=9", "MessageTimeout=2", ""]))
    environ = {**slurm.env, "SLURM_CONF": str(conf)}
    with cluster(slurm, tmp_path, environ=environ) as nodes, pytest.raises(SchedulerError) as caught:
        nodes.run("n1", ["true"], limit_s=20)
    assert caught.value.code == "cluster/slurm-silent"
    assert caught.value.hint == "scontrol ping"


INSIDE = """
import sys
from pathlib import Path
from fairlead.cluster import Cluster
from fairlead.cluster.engine import Engine
from fairlead.cluster.slurm import SlurmBackend
with Cluster(Engine(SlurmBackend(folder=Path(sys.argv[1])))) as nodes:
    for r in nodes.run("n[1-3]", ["sh", "-c", "echo $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_NTASKS"], limit_s=20):
        print(r, r.stdout.text.strip(), sep="  ")
"""


def test_inside_a_job_its_own_nodes_are_used(slurm, tmp_path):
    program, out = tmp_path / "inside.py", tmp_path / "out"
    program.write_text(INSIDE)
    script = tmp_path / "job.sbatch"
    settings = f"#SBATCH --nodelist=n[1-2] --ntasks-per-node=2 --output={out}"
    script.write_text(f"#!/bin/sh\n{settings}\nexec {sys.executable} {program} {tmp_path}\n")
    job = slurm.ask("sbatch", "--parsable", str(script))
    slurm.until_no_jobs()
    assert out.read_text().splitlines() == [
        f"n1  done  {job} n1 1",
        f"n2  done  {job} n2 1",
        f"n3  unreachable  it is not part of job {job}  ",
    ]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("fairlead-")], "no job of its own"


@pytest.mark.slow
def test_a_node_that_dies_is_that_nodes_result(slurm, tmp_path, mark):
    """Its slurmd and its step are killed, as when the machine loses power; the other node goes on."""
    results = []

    def call() -> None:
        with cluster(slurm, tmp_path) as nodes:
            script = f"[ $FAIRLEAD_NODE = n1 ] && sleep 6 || sleep {mark}"
            results.extend(nodes.run("n[1-2]", ["sh", "-c", script], limit_s=60))

    thread = threading.Thread(target=call)
    thread.start()
    try:
        [sleeper] = until_marked(f"sleep\0{mark}", 1)
        step = parent(parent(parent(sleeper)))
        assert b"slurmstepd" in Path(f"/proc/{step}/cmdline").read_bytes()
        slurm.daemons["n2"].kill()
        slurm.daemons["n2"].wait()
        os.kill(step, signal.SIGKILL)
        thread.join(60)
        assert left_after(mark, 20) == {}
    finally:
        slurm.start_node("n2")
        slurm.until_no_jobs(60)
    assert results[0].ok, results[0]
    assert results[1].state is State.UNREACHABLE, results[1]


def test_apptainer_is_put_before_the_command(slurm, tmp_path):
    """A stand-in for apptainer, which no package here offers: it says how it was called, and runs the rest."""
    stand_in = tmp_path / "apptainer"
    stand_in.write_text('#!/bin/sh\n[ "$1 $2" = "exec /i/torch.sif" ] || exit 9\nshift 2\nIN_CONTAINER=yes exec "$@"\n')
    stand_in.chmod(0o755)
    environ = {**slurm.env, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with cluster(slurm, tmp_path, environ=environ, container="/i/torch.sif", runtime="apptainer") as nodes:
        script = ("sh", "-c", "echo in=$IN_CONTAINER $RANK")
        ranks = nodes.run_ranks("n1", Command(argv=script, in_container=True), per_node=2, limit_s=20)
        [plain] = nodes.run("n1", Command(argv=script), limit_s=20)
    slurm.until_no_jobs()
    assert [r.stdout.text for r in ranks] == ["in=yes 0\n", "in=yes 1\n"]
    assert plain.stdout.text == "in=\n"
