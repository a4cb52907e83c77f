"""What Slurm is told, and what its answers mean."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import scheduler
from fairlead.cluster.child import Captured
from fairlead.cluster.protocol import Command, State
from fairlead.cluster.scheduler import judge_nodes
from fairlead.cluster.slurm import Ask, SlurmBackend, script_text
from fairlead.errors import MissingTool

IN_JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_CONF": "/etc/x",
    "HOME": "/",
}


PLAIN = Ask()


def backend(ask: Ask = PLAIN, environ=IN_JOB) -> SlurmBackend:
    made = SlurmBackend(ask, folder=Path("/nowhere"), environ=environ)
    made._job_of = {"n1": "17"}
    return made


def words_after_dashes(argv: list[str]) -> list[str]:
    return argv[argv.index("--") + 1 :]


def test_a_step_is_one_task_on_one_node_beside_others():
    argv = backend().wrap("n1", ["python3", "-c", "x y"])
    assert {"--jobid=17", "--nodelist=n1", "--nodes=1", "--ntasks=1", "--overlap"} <= set(argv)
    assert words_after_dashes(argv) == ["python3", "-c", "x y"]
    assert "-u" not in argv, "srun -u would put a terminal between, which changes bytes"


def test_the_shape_of_an_enclosing_job_does_not_leak_into_a_step():
    assert backend().environ() == {"SLURM_CONF": "/etc/x", "HOME": "/"}


def test_pyxis_is_an_option_of_srun():
    argv = backend(Ask(container="nvcr.io#nvidia/pytorch:25.01", runtime="pyxis")).wrap_contained("n1", ["python3"])
    assert "--container-image=nvcr.io#nvidia/pytorch:25.01" in argv
    assert words_after_dashes(argv) == ["python3"]


def test_apptainer_is_a_program_before_the_command():
    argv = backend(Ask(container="/shared/t.sif", runtime="apptainer")).wrap_contained("n1", ["python3"])
    assert words_after_dashes(argv) == ["apptainer", "exec", "/shared/t.sif", "python3"]


def test_each_node_has_the_image_of_its_pool_and_sees_what_is_mounted():
    ask = Ask(container="all.sif", containers={"n1": "own.sif"}, mounts=("/a:/b", "/c:/c"), runtime="apptainer")
    made = backend(ask)
    assert (made.container_of("n1"), made.container_of("n2")) == ("own.sif", "all.sif")
    words = ["apptainer", "exec", "--bind", "/a:/b", "--bind", "/c:/c", "own.sif", "python3"]
    assert words_after_dashes(made.wrap_contained("n1", ["python3"])) == words
    pyxis = backend(replace(ask, runtime="pyxis")).wrap_contained("n1", ["python3"])
    assert {"--container-image=own.sif", "--container-mounts=/a:/b,/c:/c"} <= set(pyxis)
    assert backend(replace(ask, runtime="none")).container_of("n1") == ""


def test_options_that_only_have_an_effect_on_a_step_reach_every_step():
    ask = Ask(options=("--exclusive", "--mem=0", "--network=x", "--container-mounts=/a:/b"), step_options=("--own=1",))
    made = backend(ask)
    made._gpus = {"n1": 8}
    step = made.wrap("n1", ["x"])
    tasks = made.wrap_tasks(NodeSet("n1"), 8, Command(argv=("x",)), ["--gres=gpu:16", "--exact"])
    assert tasks is not None
    for argv in (step, tasks):
        assert {"--network=x", "--container-mounts=/a:/b", "--own=1", "--gres=gpu:8", "--cpu-bind=none"} <= set(argv)
        assert not {"--exclusive", "--mem=0", "--gres=gpu:16"} & set(argv)
    assert "--exact" in tasks


def test_a_step_asks_for_no_gpus_where_the_job_holds_none():
    made = backend()
    made._gpus = {"n2": 8}
    tasks = made.wrap_tasks(NodeSet("n1"), 1, Command(argv=("x",)), ["--gres=gpu:1"])
    assert not [w for w in (*made.wrap("n1", ["x"]), *(tasks or ())) if w.startswith("--gres")]


def test_what_every_step_complains_of_is_no_reason():
    noise = "srun: cluster configuration lacks support for cpu binding"
    assert backend().explain("n1", 1, f"srun: error: it broke\n{noise}").error == "it broke"


def test_without_a_container_contained_is_plain():
    made = backend()
    assert made.wrap_contained("n1", ["x"]) == made.wrap("n1", ["x"])


def test_the_batch_script_reads_like_one_written_by_hand(tmp_path):
    ask = Ask(partition="gpu", reservation="maint", minutes=30, options=("--exclusive",))
    text = script_text(ask, NodeSet("h200-[000-003]"), "fairlead-1a2b", tmp_path / "hold-1.sbatch")
    settings = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert {"--nodelist=h200-[000-003]", "--nodes=4", "--partition=gpu", "--reservation=maint", "--time=30"} <= set(
        settings
    )
    assert not [s for s in settings if s.startswith("--account")]
    assert text.startswith("#!/bin/sh\n")
    assert text.splitlines()[-1] == "exec sleep 1800"


LISTING = """n1|idle|none
n2|drained|Kill task failed : bad | pipe
n3|down*|Not responding
n4|idle*|none
n5|mixed-|none
n6|draining|IB port down
n7|allocated|none
n2|drained|Kill task failed : bad | pipe"""


def test_nodes_slurm_cannot_use_say_why():
    found = judge_nodes(NodeSet("n[1-8]"), LISTING, in_job=False)
    assert {node: r.error for node, r in found.items()} == {
        "n2": "Slurm has it drained: Kill task failed : bad | pipe",
        "n3": "Slurm has it down and its slurmd does not answer: Not responding",
        "n4": "Slurm has it idle and its slurmd does not answer",
        "n6": "Slurm has it draining: IB port down",
        "n8": "Slurm knows no node of that name",
    }
    assert {r.state for r in found.values()} == {State.UNREACHABLE}


def test_inside_a_job_a_node_may_drain():
    found = judge_nodes(NodeSet("n[1-3,6]"), LISTING, in_job=True)
    assert set(found) == {"n3"}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("srun: error: Unable to create step for job 17: Requested node configuration is not available",
         "cannot start a step there: Requested node configuration is not available"),
        ("srun: error: Unable to confirm allocation for job 17: Invalid job id specified", "job 17 has ended"),
        ("srun: error: Node failure on n1", "the node failed"),
        ("srun: error: Task launch for StepId=17.3 failed on node n1: Communication connection failure",
         "could not start a task: Communication connection failure"),
        ("srun: error: Unable to contact slurm controller (connect failure)", "controller does not answer"),
        ("srun: error: something new", "something new"),
        ("", "srun ended with status 1 and said nothing"),
    ],
)  # fmt: skip
def test_what_srun_says_becomes_one_sentence(said, error):
    refusal = backend().explain("n1", 1, said)
    assert refusal.state is State.UNREACHABLE
    assert error in refusal.error
    assert "n1" not in refusal.error
    assert "srun: error" not in refusal.error


def test_a_node_without_python_was_reached():
    refusal = backend().explain("n1", 2, "slurmstepd: error: execve(): python3: No such file or directory")
    assert refusal.state is State.FAILED
    assert "no Python" in refusal.error


def test_without_slurm_nothing_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool) as caught:
        asyncio.run(backend().ready(NodeSet("n1")))
    assert caught.value.code == "cluster/no-slurm"
    assert "srun" in caught.value.message
    assert caught.value.hint


def test_nodes_outside_the_job_are_refused_before_slurm_is_asked(monkeypatch):
    monkeypatch.setattr("fairlead.cluster.slurm.shutil.which", lambda tool: tool)
    found = asyncio.run(backend().ready(NodeSet("x[1-2]")))
    assert {r.error for r in found.values()} == {"it is not part of job 17"}


def test_where_slurm_hides_its_nodes_from_a_user_nobody_is_refused(monkeypatch):
    """PrivateData=nodes (slurm.conf): sinfo of an ordinary user ends with `Access/permission denied`."""

    async def ask(*_):
        return Captured(1, "", "slurm_load_node: Access/permission denied\n")

    monkeypatch.setattr(scheduler, "ask", ask)
    assert asyncio.run(scheduler.refusals(NodeSet("n[1-2]"), {}, in_job=True)) == {}


def test_a_node_that_fails_does_not_take_the_step_along():
    argv = backend().wrap_tasks(NodeSet("n1"), 8, Command(argv=("x",)), ())
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= set(argv)
