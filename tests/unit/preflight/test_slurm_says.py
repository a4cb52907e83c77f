"""What Slurm says of nodes and of the job one is in, read and judged."""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.slurm.inside import judge_job, spec_of_job
from fairlead.preflight.slurm.scheduler import judge_scheduler, parse
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Access, Pool, Spec

LINE = "NodeName=n{} Arch=x86_64 CPUTot=8 Gres=gpu:h100:{} NodeAddr=10.0.0.{} State={} Partitions=hpc{}"


def said(i=1, *, gpus=8, state="IDLE", reason=""):
    return parse(LINE.format(i, gpus, i, state, f" Reason={reason}" if reason else ""))


def judged(nodes, gpus=8):
    return list(judge_scheduler(nodes, ["n1"], {"n1": gpus}))


def test_a_node_is_read_whole():
    node = said(state="IDLE+DRAIN", reason="bad cable [root@2026-11-20T10:00:00]")["n1"]
    assert (node.states, node.gpus, node.cpus) == (("IDLE", "DRAIN"), 8, 8)
    assert node.reason == "bad cable [root@2026-11-20T10:00:00]"


def test_lines_that_are_no_node_are_left_out():
    assert parse("slurm_load_node error: Unable to contact slurm controller\n\n") == {}


@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED", "MIXED+PLANNED"])
def test_a_node_at_work_is_well(state):
    assert judged(said(state=state)) == []


@pytest.mark.parametrize("state", ["DOWN*", "IDLE+DRAIN", "MIXED+DRAIN", "DOWN+INVALID_REG", "IDLE*", "FAIL"])
def test_a_node_that_gets_no_work_is_a_fail_with_slurms_reason(state):
    (found,) = judged(said(state=state, reason="Not responding [slurm@2026-11-20T10:00:00]"))
    assert (found.code, found.verdict, found.subject.nodes) == ("preflight/node-state", Verdict.FAIL, ("n1",))
    assert "Not responding" in found.message
    assert "State=" in found.evidence[0].value


def test_a_node_that_fairlead_drained_is_only_a_warning():
    """Else it could never be found well again."""
    reason = (
        "fairlead node: 2026-11-01 gpu/count: 7 of 8 (run 20261101-000000-preflight-0001) [root@2026-11-01T00:00:00]"
    )
    (found,) = judged(said(state="IDLE+DRAIN", reason=reason))
    assert found.verdict is Verdict.WARN


def test_a_node_slurm_does_not_know():
    (found,) = judge_scheduler(said(2), ["n1", "n2"], {})
    assert (found.code, found.subject.nodes) == ("preflight/not-in-slurm", ("n1",))


def test_a_slurm_that_knows_none_of_them_is_another_clusters():
    """Reached by ssh from a login node of another cluster."""
    assert judged(said(2)) == []


def test_a_name_with_a_domain_is_the_same_node():
    (found,) = judge_scheduler(said(state="DOWN*"), ["n1.example.org"], {})
    assert found.code == "preflight/node-state"


@pytest.mark.parametrize(("gpus", "codes"), [(7, ["preflight/gres"]), (8, [])])
def test_gpus_slurm_believes_in(gpus, codes):
    assert [f.code for f in judged(said(gpus=gpus))] == codes


def test_where_slurm_knows_of_no_gpus_at_all_none_are_missing():
    text = LINE.format(1, 0, 1, "IDLE", "").replace("Gres=gpu:h100:0", "Gres=(null)")
    assert judged(parse(text)) == []


# ---- in a job --------------------------------------------------------------------------------------------------------

JOB = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS": "16"}
SPEC = Spec(
    schema=1,
    access=Access(via="slurm"),
    pools=(Pool(name="p", size="other", nodes=NodeSet("n[1-4]"), gpus=8),),
)


def test_without_a_file_the_job_says_what_it_has():
    text, spec = spec_of_job(JOB)
    assert (str(spec.nodes), spec.pools[0].gpus, spec.access.via) == ("n[1-2]", 8, "slurm")
    assert 'nodes = "n[1-2]"' in text


@pytest.mark.parametrize(
    ("tasks", "codes"), [("16", []), ("8", ["preflight/rank-count"]), ("1", ["preflight/rank-count"]), ("", [])]
)
def test_a_job_needs_a_task_for_every_gpu(tasks, codes):
    found = list(judge_job(JOB | {"SLURM_NTASKS": tasks}, SPEC))
    assert [f.code for f in found] == codes
    if found:
        assert found[0].remedy == "#SBATCH --nodes=2 --ntasks-per-node=8"


def test_one_task_a_node_is_a_launchers():
    """`#SBATCH --ntasks-per-node=1 --gpus-per-node=8`, then `srun torchrun --nproc-per-node=8`."""
    assert list(judge_job(JOB | {"SLURM_NTASKS": "2"}, SPEC)) == []


def test_of_a_heterogeneous_job_the_other_components_are_not_known():
    """`sbatch -N2 : -N2`: variables as slurm.schedmd.com/heterogeneous_jobs.html has them."""
    het = JOB | {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n[3-4]",
    }
    (found,) = judge_job(het, SPEC)
    assert (found.code, found.verdict, found.subject.nodes) == ("preflight/het-job", Verdict.UNKNOWN, ("n3", "n4"))
    assert "-w 'n[1-2],n[3-4]'" in found.remedy
    assert list(judge_job(JOB | {"SLURM_HET_SIZE": "1", "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]"}, SPEC)) == []


def test_a_job_of_two_of_the_eight_gpus_needs_two_tasks_a_node():
    assert list(judge_job(JOB | {"SLURM_GPUS_ON_NODE": "2", "SLURM_NTASKS": "4"}, SPEC)) == []


def test_a_file_made_for_a_job_of_some_gpus_is_no_wrong_gres():
    """It says two, Slurm has eight, and eight are there."""
    assert list(judge_scheduler(said(), ["n1"], {"n1": 2}, {"n1": 8})) == []
    assert [f.code for f in judge_scheduler(said(gpus=7), ["n1"], {"n1": 8}, {"n1": 8})] == ["preflight/gres"]


def test_slices_of_gpus_are_not_counted_as_gpus():
    """gres.conf(5): a node whose GPUs are cut by MIG has a type and a count for each kind of slice."""
    text = LINE.format(1, 8, 1, "IDLE", "").replace("gpu:h100:8", "gpu:h100_1g.10gb:42,gpu:h100_2g.20gb:7,gpu:h100:1")
    assert judged(parse(text)) == []
