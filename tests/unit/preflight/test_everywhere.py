"""What every node has alike is nobody's own fault; what sets a node apart still is."""

from __future__ import annotations

import datetime as dt

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight import PreflightReport, judge_all, text_of
from fairlead.preflight.everywhere import none_answered, shared
from fairlead.preflight.evidence import Evidence
from fairlead.preflight.report import in_order
from fairlead.preflight.slurm.drain import DrainRules, plan_drain
from fairlead.preflight.slurm.scheduler import SlurmNode
from fairlead.records.finding import Evidence as Read
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.report import bad_nodes
from fairlead.records.verdict import Verdict, exit_of
from fairlead.spec.model import Access, Fabric, Pool, Spec
from support import trees
from support.judging import facts_of

NODES = NodeSet("n[0-3]")
SPEC = Spec(schema=1, access=Access(via="ssh"), pools=(Pool(name="p", size="other", nodes=NODES, gpus=2),))


def fail(name, code="gpu/driver", message="the driver is not loaded", **more):
    subject = more.pop("subject", node(name))
    return Finding(code=code, verdict=Verdict.FAIL, subject=subject, message=message, remedy="modprobe nvidia", **more)


def rank(name, number, message="there is no GPU for local rank {} among the 2 of the node"):
    subject = Subject(kind="rank", nodes=(name,), name=f"rank {number}")
    return fail(name, "preflight/gpu-missing", message.format(number % 2), subject=subject)


def test_what_all_nodes_have_alike_is_one_finding_about_all_and_leaves_nobody_out():
    found = shared([fail(n, evidence=(Read("lsmod", "empty"),)) for n in NODES], NODES)
    (one,) = found
    assert (one.code, one.verdict, str(one.subject)) == ("gpu/driver", Verdict.FAIL, "every node")
    assert one.remedy.startswith("alike on all 4 nodes, so look at what they share: the image")
    assert one.remedy.endswith("modprobe nvidia")
    assert one.evidence[0].source == "read on n0: lsmod"
    report = PreflightReport(spec=SPEC, nodes=NODES, findings=tuple(found))
    assert (report.exclude, str(report.good), report.verdict) == ("", "n[0-3]", Verdict.FAIL)
    assert report.rest is Verdict.FAIL
    assert text_of(report).endswith("verdict  fail   not one node's fault: 4 of 4 have none of their own")


def test_nobody_is_drained_for_it():
    slurm = {n: SlurmNode(name=n, states=("IDLE",)) for n in NODES}
    when = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
    found = [fail(n) for n in NODES]
    assert len(plan_drain(found, slurm, "r-1", when, DrainRules(max_share=1)).drain) == 4
    assert plan_drain(shared(found, NODES), slurm, "r-1", when, DrainRules(max_share=1)).is_empty


def test_a_node_with_a_fault_of_its_own_besides_is_left_out_and_stands_second():
    odd = fail("n2", "ib/count", "7 of 8 ports")
    found = shared([*(fail(n) for n in NODES), odd], NODES)
    assert str(bad_nodes(found, NODES)) == "n2"
    assert [f.code for f in in_order([("node", found)])] == ["gpu/driver", "ib/count"]


def test_where_one_node_is_well_the_others_are_not():
    found = [fail(n) for n in ("n0", "n1", "n2")]
    assert shared(found, NODES) == found
    assert str(bad_nodes(shared(found, NODES), NODES)) == "n[0-2]"


def test_one_node_alone_is_like_nobody():
    assert shared([fail("n0")], NodeSet("n0")) == [fail("n0")]


def test_different_words_are_different_faults():
    found = [fail("n0", message="no driver"), *(fail(n) for n in ("n1", "n2", "n3"))]
    assert shared(found, NODES) == found


def test_numbers_and_names_may_differ_and_a_warning_does_not_count():
    found = [fail(n, "host/disk", f"{n}: /tmp is {90 + i} % full") for i, n in enumerate(NODES)]
    assert len(shared(found, NODES)) == 1
    warn = [Finding(code="x/y", verdict=Verdict.WARN, subject=node(n), message="m") for n in NODES]
    assert shared(warn, NODES) == warn


def test_ranks_that_all_lack_a_gpu_are_the_jobs_fault():
    found = shared([rank(n, 2 * i + j) for i, n in enumerate(NODES) for j in range(2)], NODES, "job")
    (one,) = found
    assert one.subject.kind == "job"
    assert "the job's script" in one.remedy
    assert not bad_nodes(found, NODES)


def test_the_jobs_own_fault_comes_first():
    """A job without a task for every GPU is to be mended before anybody looks at a node."""
    shape = Finding(
        code="preflight/rank-count", verdict=Verdict.FAIL, subject=Subject(kind="job"), message="4 tasks, 8 GPUs"
    )
    died = fail("n1", "preflight/rank-died", subject=Subject(kind="rank", nodes=("n1",), name="rank 2"))
    broken = Finding(code="preflight/collective", verdict=Verdict.FAIL, subject=Subject(kind="job"), message="failed")
    found = in_order([("node", [fail("n3")]), ("launch", [shape]), ("ranks", [broken, died])])
    assert [f.code for f in found] == [
        "preflight/rank-count", "gpu/driver", "preflight/collective", "preflight/rank-died",
    ]  # fmt: skip


def test_where_no_node_answers_nothing_is_known_and_nobody_is_accused():
    silent = [fail(n, "probe/no-answer", "python3: not found") for n in NODES]
    (one,) = none_answered(silent, NODES)
    assert (one.verdict, one.code, str(one.subject)) == (Verdict.UNKNOWN, "probe/no-answer", "every node")
    assert "python3: not found" in one.message
    report = PreflightReport(spec=SPEC, nodes=NODES, findings=judge_all(Evidence(SPEC, NODES, silent=silent)))
    assert (report.exclude, exit_of(report.verdict)) == ("", 4)
    assert none_answered(silent[:3], NODES) == silent[:3]


def ports_down(*names_of):
    """Of four ports each, those named are down on n0, n1, ...: nothing says which ports there should be."""
    ib = Fabric(link="infiniband", rdma="ib")
    pool = Pool(name="p", size="other", nodes=NodeSet(f"n[0-{len(names_of) - 1}]"))
    spec = Spec(schema=1, access=Access(via="ssh"), pools=(pool,), fabric=ib)
    facts = []
    for i, down in enumerate(names_of):
        machine = trees.nd_h100_v5(f"n{i}", gpus=2, hcas=4)
        for k in down:
            machine.put(f"/sys/class/infiniband/mlx5_ib{k}/ports/1/state", "1: DOWN\n")
            machine.put(f"/sys/class/infiniband/mlx5_ib{k}/ports/1/phys_state", "2: Polling\n")
        facts.append(facts_of(machine, f"n{i}"))
    seen = Evidence(spec, pool.nodes, facts)
    found = judge_all(seen)
    assert all(
        len(hcas) == 4 - (len(d) % 4) for hcas, d in zip(seen.wanted(pool.nodes).hcas.values(), names_of, strict=True)
    )
    return [(f.verdict, str(f.subject)) for f in found if f.code == "ib/port-state" and f.verdict is not Verdict.PASS]


def test_a_port_more_that_one_node_has_and_nobody_uses_is_that_nodes_warning():
    facts = []
    for i in range(3):
        machine = trees.nd_h100_v5(f"n{i}", gpus=2, hcas=4)
        if i == 1:
            trees.hca(machine, "mlx5_ib9", address="0199:00:00.0", numa=0, rate="10 Gb/sec (4X SDR)")
            machine.put("/sys/class/infiniband/mlx5_ib9/ports/1/state", "1: DOWN\n")
            machine.put("/sys/class/infiniband/mlx5_ib9/ports/1/phys_state", "2: Polling\n")
        facts.append(facts_of(machine, f"n{i}"))
    pool = Pool(name="p", size="other", nodes=NodeSet("n[0-2]"))
    spec = Spec(schema=1, access=Access(via="ssh"), pools=(pool,), fabric=Fabric(link="infiniband", rdma="ib"))
    found = [f for f in judge_all(Evidence(spec, pool.nodes, facts)) if f.code == "ib/port-state"]
    wrong = [(f.verdict, str(f.subject)) for f in found if f.verdict is not Verdict.PASS]
    assert wrong == [(Verdict.WARN, "n1 mlx5_ib9/1")]


def test_ports_that_no_node_has_in_use_are_a_warning():
    """A node with two ports for storage that nobody connected (NVSentinel has called such ports fatal: issue 1361)."""
    assert ports_down((2, 3), (2, 3), (2, 3)) == [(Verdict.WARN, "every node")]


@pytest.mark.parametrize("down", [((2,), (2,), ()), ((0,), (1,), (2,)), ((0, 1, 2, 3),) * 3])
def test_a_port_that_some_node_has_in_use_or_all_ports_are_a_fault(down):
    assert {verdict for verdict, _ in ports_down(*down)} == {Verdict.FAIL}
