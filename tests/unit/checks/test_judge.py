"""The engine around the rules: waivers, bugs, folding, what a finding carries."""

from __future__ import annotations

import datetime as dt
import functools
import time

import msgspec
import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.checks import CATALOG, DEFAULTS, SKEWS, Check, Expect, expect_of, judge, judge_node
from fairlead.checks.node import Node, Outcome, bad, skip
from fairlead.checks.waive import apply_waivers
from fairlead.records.codes import explanations
from fairlead.records.facts import Facts, NodeFacts
from fairlead.records.finding import Finding, Subject, verdict_of
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Expect as ExpectLine
from fairlead.spec.model import Waiver
from support import trees
from support.judging import SMALL, facts_of, of, small, spec_of, verdict

DAY = dt.date(2026, 11, 18)
LATER, PAST = dt.date(2027, 1, 31), dt.date(2026, 11, 17)


@functools.cache
def _slow_ports() -> NodeFacts:
    m = trees.nd_h100_v5(gpus=8, hcas=8)
    m.put("/sys/class/infiniband/mlx5_ib3/ports/1/rate", "200 Gb/sec (2X NDR)\n")
    return facts_of(m)


def fleet(*names: str) -> list[NodeFacts]:
    return [msgspec.structs.replace(_slow_ports(), node=name) for name in names]


def spec(*waivers: Waiver) -> object:
    return spec_of("Standard_ND96isr_H100_v5", nodes="n[0-3]", waivers=waivers)


def waiver(code: str = "ib/port-rate", nodes: str = "n0", expires: dt.date = LATER) -> Waiver:
    return Waiver(code=code, nodes=NodeSet(nodes), reason="cable ordered, ticket 4711", expires=expires)


# ---- waivers -------------------------------------------------------------------------------------------------------


def test_a_waived_finding_is_shown_and_does_not_count() -> None:
    findings = judge(fleet("n0"), spec(waiver()))  # type: ignore[arg-type]
    waived = [f for f in of(findings, "ib/port-rate") if f.waived]
    assert [
        (f.verdict, f.subject.name, f.waived.was, f.waived.reason, f.waived.expires) for f in waived if f.waived
    ] == [(Verdict.SKIP, "mlx5_ib3/1", Verdict.FAIL, "cable ordered, ticket 4711", "2027-01-31")]
    assert verdict_of(findings) is Verdict.PASS


def test_a_waiver_only_covers_its_nodes() -> None:
    findings = judge(fleet("n0", "n1"), spec(waiver()))  # type: ignore[arg-type]
    assert [f.subject.nodes for f in of(findings, "ib/port-rate") if f.verdict is Verdict.FAIL] == [("n1",)]


def test_a_waiver_for_all_nodes_switches_a_check_off() -> None:
    findings = judge(fleet("n0", "n1"), spec(waiver(nodes="all")))  # type: ignore[arg-type]
    assert verdict(findings, "ib/port-rate") in (Verdict.PASS, Verdict.SKIP)
    assert len([f for f in of(findings, "ib/port-rate") if f.waived]) == 2


def test_an_expired_waiver_is_a_warning_and_does_not_apply() -> None:
    findings = judge(fleet("n0"), spec(waiver(expires=PAST)))  # type: ignore[arg-type]
    assert verdict(findings, "ib/port-rate") is Verdict.FAIL
    expired = of(findings, "waiver/expired")
    assert [f.verdict for f in expired] == [Verdict.WARN]
    assert "expired on 2026-11-17" in expired[0].message
    assert "ticket 4711" in expired[0].message


def test_a_waiver_applies_on_its_last_day_by_the_clock_of_the_facts() -> None:
    assert (DAY - dt.date(1970, 1, 1)).days == trees.TAKEN_AT_NS // 10**9 // 86_400
    assert verdict(judge(fleet("n0"), spec(waiver(expires=DAY))), "ib/port-rate") is Verdict.PASS  # type: ignore[arg-type]
    tomorrow = judge(fleet("n0"), spec(waiver(expires=DAY)), today=DAY + dt.timedelta(days=1))  # type: ignore[arg-type]
    assert verdict(tomorrow, "ib/port-rate") is Verdict.FAIL


def test_one_clock_that_jumped_does_not_expire_a_waiver() -> None:
    records = fleet("n0", "n1", "n2")
    records[2] = msgspec.structs.replace(records[2], taken_at_ns=records[2].taken_at_ns * 2)
    assert of(judge(records, spec(waiver(nodes="all", expires=DAY))), "waiver/expired") == []  # type: ignore[arg-type]


def test_a_waiver_for_all_nodes_covers_what_is_about_none_of_them() -> None:
    about_all = Finding(code="host/clock-skew", verdict=Verdict.FAIL, subject=Subject(kind="cluster"), message="x")
    for nodes, expected in (("all", Verdict.SKIP), ("n0", Verdict.FAIL)):
        (found,) = apply_waivers([about_all], [waiver("host/clock-skew", nodes)], DAY)
        assert found.verdict is expected


def test_a_waiver_of_a_code_that_does_not_exist() -> None:
    found = of(judge(fleet("n0"), spec(waiver(code="ib/port-rates"))), "waiver/unknown-code")  # type: ignore[arg-type]
    assert "did you mean `ib/port-rate`?" in found[0].message
    assert found[0].verdict is Verdict.WARN


def test_a_finding_about_several_nodes_is_split() -> None:
    records = fleet("n0", "n1", "n2")
    records[1] = msgspec.structs.replace(records[1], taken_at_ns=1)
    shared = of(judge(records, spec(waiver("gpu/shared", "n1"))), "gpu/shared")  # type: ignore[arg-type]
    assert {(f.verdict, f.subject.nodes) for f in shared} == {(Verdict.FAIL, ("n0", "n2")), (Verdict.SKIP, ("n1",))}


def test_unknown_can_be_waived_and_pass_is_left_alone() -> None:
    m = small()
    m.remove("/dev/kmsg")
    findings = judge([facts_of(m)], spec(waiver("gpu/xid"), waiver("gpu/ecc")))  # type: ignore[arg-type]
    assert of(findings, "gpu/xid")[0].waived is not None
    assert of(findings, "gpu/ecc")[0].waived is None


# ---- bugs, folding, expectations -------------------------------------------------------------------------------------


def _broken(n: Node, part: str) -> Outcome:
    n.get("host.os.kernel")
    raise KeyError("no such thing")


def test_parts_that_were_not_asked_are_not_told_beside_one_that_is_bad() -> None:
    def rule(n: Node, part: str) -> Outcome:
        return bad("broken") if part == "mlx5_ib0/1" else skip("not asked")

    check = Check("ib/port-state", rule, ("ib",), "", scope="RDMA port")
    found = judge_node(Node(Facts(facts_of(small())), SMALL), [check])
    assert [(f.verdict, f.subject.name) for f in found] == [(Verdict.FAIL, "mlx5_ib0/1")]


def test_a_rule_with_a_bug_is_unknown_and_named() -> None:
    check = Check("host/arch", _broken, ("host",), "", severity=Verdict.FAIL)
    node = Node(Facts(facts_of(small())), SMALL)
    found = judge_node(node, [check, *CATALOG])
    assert found[0].verdict is Verdict.UNKNOWN
    assert "_broken has a bug: KeyError" in found[0].message
    assert found[0].remedy == "report it with these facts; until it is mended, waive host/arch"
    assert {f.verdict for f in found[1:]} == {Verdict.PASS, Verdict.SKIP}


def test_what_could_not_be_read_says_where_and_why() -> None:
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/rate", b"\xff\xfe\x00\x01")
    found = of(judge_node(Node(Facts(facts_of(m)), SMALL)), "ib/port-rate")
    assert [(f.verdict, f.subject.name) for f in found] == [(Verdict.UNKNOWN, "mlx5_ib0/1"), (Verdict.PASS, "")]
    path = "/sys/class/infiniband/mlx5_ib0/ports/1/rate"
    assert found[0].message == "could not read ib.devices.mlx5_ib0.ports.1.rate: holds bytes that are not text"
    assert found[0].evidence[0].source == path
    assert found[0].remedy == f"on n0: ls -l {path}; cat {path}"


def test_a_hole_for_want_of_rights_says_so() -> None:
    record = facts_of(small())
    record.facts["kernel_log"] = {"unread": "operation not permitted", "source": "/dev/kmsg"}
    found = of(judge_node(Node(Facts(record), SMALL)), "gpu/xid")[0]
    assert found.remedy == "run the probe as root on n0, or waive what it leaves open there"


def test_a_message_never_names_its_node() -> None:
    """Equal findings of many nodes are folded by their text."""
    m = small("a-very-special-name")
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/rate", "200 Gb/sec (2X NDR)\n")
    findings = judge(
        [facts_of(m, "a-very-special-name")], spec_of("Standard_ND96isr_H100_v5", nodes="a-very-special-name")
    )
    assert not [f for f in findings if "a-very-special-name" in f.message]


def test_expectations_come_from_the_size_the_pool_and_the_file() -> None:
    line = ExpectLine(fact="hca_rates_gbps", value=(200.0,), why="site runs at half rate until January")
    spec_ = spec_of(
        "Standard_ND96isr_H100_v5", expects=(line, ExpectLine(fact="memlock_gib", value=64.0, why="MPI manual"))
    )
    found = expect_of(spec_, spec_.pools[0])
    assert found.get("gpus") == 8
    assert found.origin("gpus") == "Azure documentation, ND-H100-v5 series, 2025-09-02"
    assert found.get("hca_rates_gbps") == (200.0,)
    assert found.origin("hca_rates_gbps") == "the cluster file: site runs at half rate until January"
    assert found.get("memlock_gib") == 64.0
    assert found.get("shm_gib") == DEFAULTS["shm_gib"].value
    assert found.get("nobody_knows") is None


def test_a_site_limit_is_judged_and_named() -> None:
    line = ExpectLine(fact="hca_rates_gbps", value=(200.0,), why="half rate until January")
    findings = judge(fleet("n0"), spec_of("Standard_ND96isr_H100_v5", expects=(line,)))
    assert [f.subject.name for f in of(findings, "ib/port-rate") if f.verdict is Verdict.PASS] == [""]
    assert len([f for f in of(findings, "ib/port-rate") if f.verdict is Verdict.FAIL]) == 7


def test_a_node_of_no_pool_is_judged_without_numbers() -> None:
    findings = judge(fleet("stranger"), spec())  # type: ignore[arg-type]
    assert verdict(findings, "host/cpus") is Verdict.SKIP
    assert verdict(findings, "gpu/ecc") is Verdict.PASS


# ---- the catalogue -------------------------------------------------------------------------------------------------


def test_every_code_is_explained() -> None:
    known = explanations()
    for entry in (*CATALOG, *SKEWS):
        assert known[entry.code].id, entry.code
    assert len({c.code for c in (*CATALOG, *SKEWS)}) == len(CATALOG) + len(SKEWS)


@pytest.mark.parametrize("check", CATALOG, ids=lambda c: c.code)
def test_a_rule_reads_what_the_catalogue_says(check: Check) -> None:
    from fairlead.checks.engine import read_by

    scope = {
        "mount": "mounts.local",
        "remote mount": "mounts.remote",
        "InfiniBand function": "pci.devices",
        "GPU": "nvidia.smi",
    }
    allowed = (*check.reads, scope.get(check.scope, ""), "ib.devices", "host.environment", "host.nccl_conf")
    node = Node(Facts(facts_of(small())), SMALL)
    for keys in read_by(check, node):
        assert any(r and ".".join(keys).startswith(r) for r in allowed), (check.code, keys)


def test_no_rule_is_worse_than_its_severity() -> None:
    """A check of severity warn never fails a node, whatever the facts are."""
    record = facts_of(trees.Machine())
    for finding in judge_node(Node(Facts(record), Expect())):
        assert finding.verdict is not Verdict.FAIL


def test_judging_is_quick() -> None:
    """The promise is 1,000 nodes in 5 s; bench/checks_judge.py measures it. Here: nothing is quadratic."""
    few, many = fleet(*(f"n{i}" for i in range(4))), fleet(*(f"n{i}" for i in range(64)))
    spec_ = spec_of("Standard_ND96isr_H100_v5", nodes="n[0-63]")
    started = time.process_time()
    judge(few, spec_)
    one = (time.process_time() - started) / len(few)
    started = time.process_time()
    judge(many, spec_)
    assert (time.process_time() - started) / len(many) < 4 * one + 0.01


@pytest.mark.parametrize(("held", "failed"), [("1", False), ("2", True), ("", True)])
def test_where_slurm_constrains_devices_nvidia_smi_shows_what_the_job_holds(held: str, failed: bool) -> None:
    """A job of one of two GPUs; one that holds both and sees one has lost one."""
    m = small()
    m.put(trees.SMI, trees.drop_gpu(m.text(trees.SMI), 1))
    m.put("/proc/self/environ", f"SLURM_JOB_ID=7\0SLURM_GPUS_ON_NODE={held}\0")
    found = of(judge_node(Node(Facts(facts_of(m)), SMALL)), "gpu/count")
    assert any(f.verdict is Verdict.FAIL for f in found) is failed
