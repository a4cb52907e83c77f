"""What ranks are, before what they do: each rule is met by a launch that breaks it alone."""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks.facts import Lie
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from support.rank_facts import add_rank, of, ranks


def judged(facts, rdma="none"):
    return judge_launch(facts, Wanted(rdma=rdma))


def only(facts, rdma="none"):
    (found,) = judged(facts, rdma)
    return found


def test_all_well_is_said_once():
    found = only(ranks())
    assert (found.code, found.verdict) == ("preflight/launch", Verdict.PASS)
    assert "8 ranks as processes, 2 on each of 4 nodes" in found.message
    assert "8 ranks as tasks of Slurm" in only(ranks(backend="tasks")).message


def test_a_rank_started_twice():
    facts = ranks()
    add_rank(facts, 3)
    found = only(facts)
    assert (found.code, found.subject.nodes) == ("preflight/rank-twice", ("n1",))
    assert "rank 3 was started 2 times" in found.message


def test_a_job_of_another_size():
    facts = ranks()
    facts.lines[:] = [s | {"world": 6} if s["say"] == "start" else s for s in facts.lines if s["rank"] < 6]
    found = judged(facts)
    assert [f.code for f in found] == ["preflight/rank-count"]
    assert "the job has 6 ranks; 4 nodes with 2 GPUs each need 8" in found[0].message


def test_gpus_that_no_rank_used_are_said():
    wanted = Wanted(device="gpu", gpus={"n0": 2, "n1": 8, "n2": 8, "n3": 2})
    passed, found = judge_launch(ranks(), wanted)
    assert (passed.code, passed.verdict) == ("preflight/launch", Verdict.PASS)
    assert (found.code, found.verdict, found.subject.nodes) == ("preflight/not-tested", Verdict.WARN, ("n1", "n2"))
    assert "12 GPUs of n[1-2]" in found.message
    assert [f.code for f in judge_launch(ranks(), Wanted(device="gpu", gpus=dict.fromkeys(("n0", "n1"), 2)))] == [
        "preflight/launch"
    ]


def test_local_ranks_count_from_zero():
    facts = ranks()
    of(facts, 2, "start")["local_rank"] = 1
    found = only(facts)
    assert (found.code, found.subject.nodes) == ("preflight/local-ranks", ("n1",))


def test_more_ranks_on_a_node_than_gpus():
    facts = ranks(backend="tasks")  # elsewhere the connection says where a rank is
    for rank, local in ((4, 2), (5, 3)):
        of(facts, rank, "start").update(node="n1", local_rank=local)
    found = judged(facts)
    assert [(f.code, f.subject.nodes) for f in found] == [("preflight/rank-count", ("n1",))]


def test_two_ranks_on_one_gpu_by_uuid():
    facts = ranks(on="cpus")
    of(facts, 5, "start")["gpu"] = dict(of(facts, 4, "start")["gpu"])
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/gpu-shared", "n2 GPU-n2-0")
    assert found.data["ranks"] == [4, 5]


def test_what_cuda_reports_outweighs_what_the_settings_promise():
    facts = ranks()
    for rank in (4, 5):
        of(facts, rank, "torch")["device"] = {"uuid": "", "pci": "0000:18:00.0"}
    assert only(facts).code == "preflight/gpu-shared"


def test_the_same_uuid_on_two_nodes_is_two_gpus():
    """A lab's hosts, and cards with a stub driver, may all show the same."""
    facts = ranks()
    of(facts, 2, "start")["gpu"] = dict(of(facts, 0, "start")["gpu"])
    of(facts, 2, "torch")["device"] = dict(of(facts, 0, "torch")["device"])
    assert only(facts).code == "preflight/launch"


def test_a_rank_without_a_gpu():
    facts = ranks(on="cpus")
    of(facts, 5, "start").update(gpu={"asked": ""}, env={"CUDA_VISIBLE_DEVICES": "0"})
    for rank in range(8):
        of(facts, rank, "start")["env"] = {"CUDA_VISIBLE_DEVICES": "0"}
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/gpu-missing", "n2 rank 5")


def test_cpus_far_from_the_gpu_are_a_warning():
    facts = ranks()
    of(facts, 1, "start")["cpus"] = "48-95"
    found = only(facts)
    assert (found.code, found.verdict) == ("preflight/affinity", Verdict.WARN)


@pytest.mark.parametrize(
    ("numa", "code"), [("1", "preflight/affinity"), ("0", "preflight/launch"), ("-1", "preflight/launch")]
)
def test_cpus_far_from_the_rdma_port_beside_the_gpu_are_a_warning(numa, code):
    facts = ranks()
    start = of(facts, 1, "start")
    start["gpu"] |= {"numa": numa, "cpus": ""}
    start["rdma"] = {"mlx5_0": {"numa": "0", "cpus": "0-47"}, "mlx5_4": {"numa": "1", "cpus": "48-95"}}
    assert only(facts).code == code


def test_settings_differ_on_one_node():
    facts = ranks()
    for rank in (2, 3):
        of(facts, rank, "start")["env"] = {"NCCL_ALGO": "Tree"}
    found = only(facts)
    assert (found.code, found.subject.nodes) == ("preflight/env-drift", ("n1",))
    assert "NCCL_ALGO is Tree; on most nodes it is not set" in found.message


@pytest.mark.parametrize("changed", [(4, 5, 6, 7), (2, 3, 4, 5)])
def test_two_halves_that_differ_are_one_finding_about_the_job_and_exclude_nobody(changed):
    facts = ranks()
    for rank in changed:
        of(facts, rank, "start")["env"] = {"NCCL_ALGO": "Tree"}
        of(facts, rank, "torch")["nccl"] = "9.9"
    found = [f for f in judged(facts) if f.code in ("preflight/env-drift", "preflight/version-drift")]
    assert [f.subject.kind for f in found] == ["job", "job"]
    assert all("no value has a majority" in f.message for f in found)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "OMPI_COMM_WORLD_RANK", "UCX_NET_ID", "NCCL_HOSTID"])
def test_settings_that_belong_to_a_rank_may_differ(name):
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "start")["env"] = {name: str(rank)}
    assert only(facts).code == "preflight/launch"


def test_nccl_conf_differs():
    facts = ranks()
    for rank in (6, 7):
        of(facts, rank, "start")["nccl_conf"] = "NCCL_DEBUG=INFO"
    assert only(facts).subject.nodes == ("n3",)


@pytest.mark.parametrize(("rdma", "code"), [("ib", "preflight/rdma-off"), ("none", "preflight/launch")])
def test_rdma_switched_off_matters_where_it_is_declared(rdma, code):
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "start")["env"] = {"NCCL_IB_DISABLE": "1"}
    assert only(facts, rdma).code == code


POOLS = Wanted(pools={"n0": "a100", "n1": "a100", "n2": "a100", "n3": "h100"})


def test_pools_have_images_and_settings_of_their_own():
    facts = ranks()
    for rank in (6, 7):
        of(facts, rank, "start").update(env={"NCCL_NVLS_ENABLE": "1"}, kernel="6.11.0", nccl_conf="NCCL_IB_TC=106")
        of(facts, rank, "torch")["nccl"] = "2.27.5"
    assert [f.code for f in judge_launch(facts, POOLS)] == ["preflight/launch"]
    of(facts, 2, "start")["env"] = {"NCCL_ALGO": "Tree"}
    assert [(f.code, f.subject.nodes) for f in judge_launch(facts, POOLS)] == [("preflight/env-drift", ("n1",))]


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"])
def test_a_node_with_devices_of_other_names_needs_another_setting(name):
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "start")["env"] = {name: "enp8s0" if rank < 2 else "eth0"}
    found = only(facts)
    assert (found.code, found.verdict, found.subject.nodes) == ("preflight/env-drift", Verdict.WARN, ("n0",))


def test_a_folder_named_after_its_node_is_the_same_setting():
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "start")["env"] = {"CUDA_CACHE_PATH": f"/scratch/n{rank // 2}/cuda"}
    assert only(facts).code == "preflight/launch"


@pytest.mark.parametrize(
    ("what", "verdict"),
    [("torch", "fail"), ("cuda", "fail"), ("nccl", "fail"), ("python", "warn"), ("kernel", "warn")],
)
def test_versions_differ_on_one_node(what, verdict):
    facts = ranks()
    for rank in (4, 5):
        of(facts, rank, "start" if what in ("python", "kernel") else "torch")[what] = "9.9"
    found = only(facts)
    assert (found.code, found.subject.nodes) == ("preflight/version-drift", ("n2",))
    assert found.verdict == verdict
    assert f"{what} is 9.9" in found.message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"interface": "ib7", "interface_facts": {}, "interface_by": "NCCL_SOCKET_IFNAME"}, "no such interface"),
        ({"interface": "docker0", "interface_by": "GLOO_SOCKET_IFNAME"}, "reaches no other node"),
        ({"interface_facts": {"state": "down"}}, "is down"),
    ],
)
def test_the_interface_must_exist_and_reach_others(changes, says):
    facts = ranks()
    for rank in (0, 1):
        of(facts, rank, "start").update(changes)
    found = only(facts)
    assert (found.code, found.subject.nodes) == ("preflight/interface", ("n0",))
    assert says in found.message


def test_an_interface_nobody_chose_is_the_librarys():
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "start").update(interface="", interface_by="", interface_facts={})
    assert only(facts).code == "preflight/launch"


@pytest.mark.parametrize(("late_s", "code"), [(9.0, "preflight/launch"), (12.0, "preflight/launch-skew")])
def test_a_node_that_comes_late(late_s, code):
    facts = ranks()
    for rank in (6, 7):
        of(facts, rank, "start")["at_s"] += late_s
    assert only(facts).code == code


def test_where_nobody_started_there_is_nothing_to_say():
    assert judged(ranks(0, 2)) == []


# ---- who bound the CPUs ----------------------------------------------------------------------------------------------


def far(backend="tasks", **slurm):
    facts = ranks(backend=backend)
    of(facts, 1, "start").update(cpus="48-95", slurm={"SLURM_JOB_ID": "7"} | slurm)
    return judged(facts)


def test_cpus_that_preflights_own_step_bound_are_not_blamed_on_the_job():
    skipped, well = far(SLURM_CPU_BIND_TYPE="mask_cpu:", SLURM_CPU_BIND="quiet,mask_cpu:0xffff")
    assert (skipped.code, skipped.verdict) == ("preflight/affinity", Verdict.SKIP)
    assert "bound by preflight's own step (mask_cpu:)" in skipped.message
    assert (well.code, well.verdict) == ("preflight/launch", Verdict.PASS)


@pytest.mark.parametrize("slurm", [{}, {"SLURM_CPU_BIND_TYPE": "none"}, {"SLURM_CPU_BIND": "quiet,none"}])
def test_cpus_that_the_job_was_given_are_the_jobs(slurm):
    (found,) = far(**slurm)
    assert (found.code, found.verdict, found.data["bound_by"]) == (
        "preflight/affinity", Verdict.WARN, "the allocation of the job")  # fmt: skip


def test_a_setting_of_the_users_is_named():
    facts = ranks()
    of(facts, 1, "start").update(cpus="48-95", env={"OMP_PLACES": "cores"})
    found = next(f for f in judged(facts) if f.code == "preflight/affinity")
    assert found.data["bound_by"] == "OMP_PLACES in its environment"


@pytest.mark.parametrize("name", ["n9", "n2 /shared/x.sbatch", "-oProxyCommand=x", 7, None])
@pytest.mark.parametrize("backend", ["processes", "tasks"])
def test_a_rank_is_on_a_node_of_the_job_whatever_it_says(backend, name):
    facts = ranks(backend=backend)
    for rank in (4, 5):
        of(facts, rank, "start").update(node=name, python="2.7.0")
    for finding in [*judged(facts), *judge_ranks(facts, {})]:
        assert set(finding.subject.nodes) <= set(facts.nodes)


def test_a_rank_that_names_another_node_accuses_nobody_there():
    facts = ranks(backend="processes")
    for rank in (4, 5):
        of(facts, rank, "start").update(node="n0", python="2.7.0")
    found = [f for f in [*judged(facts), *judge_ranks(facts, {})] if f.verdict is Verdict.FAIL]
    assert ("n0",) not in [f.subject.nodes for f in found]


def test_a_rank_that_sent_what_no_rank_sends_is_the_cause():
    facts = ranks()
    facts.lies = [Lie(rank=5, what="a message more than 12 levels deep", said="x"), Lie(rank=900, what="x", said="")]
    found = [f for f in judge_ranks(facts, {}) if f.verdict is Verdict.FAIL]
    assert [(f.code, f.subject.nodes) for f in found] == [("cluster/bad-answer", ("n2",))]
