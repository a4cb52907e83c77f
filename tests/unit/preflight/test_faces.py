"""The report: who is left out, what comes first, and the lines that tools look for."""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight import Report, headline, lists, page, text_of
from fairlead.preflight.judge_ranks import judge_ranks
from fairlead.preflight.report import bad_nodes, in_order
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.verdict import Verdict
from fairlead.report.html import page_html
from fairlead.spec.model import Access, Pool, Spec
from support.rank_facts import ranks

SPEC = Spec(schema=1, access=Access(via="ssh"), pools=(Pool(name="p", size="other", nodes=NodeSet("n[0-3]")),))


def fail(subject, code="preflight/unreachable", verdict=Verdict.FAIL):
    return Finding(code=code, verdict=verdict, subject=subject, message="no packet arrives", remedy="look")


def pair(a, b):
    return fail(Subject(kind="pair", nodes=(a, b)))


PORT = fail(Subject(kind="port", nodes=("n2",), name="plane 1"))


def report(*findings, **more):
    return Report(spec=SPEC, nodes=NodeSet("n[0-3]"), findings=findings, **more)


def well():
    facts = ranks()
    return report(*judge_ranks(facts, {}, rdma="none"), ranks=facts, took_s={"nodes": 0.5, "ranks": 8.0})


def test_success_is_said_with_the_two_stable_lines():
    lines = text_of(well()).splitlines()
    assert "Total Execution Ranks: 8" in lines
    assert "SUCCESS: DDP Multi-Node AllReduce Ring Complete!" in lines
    assert lines[-1] == "verdict  pass   4 of 4 nodes usable"


def test_ranks_that_came_up_and_failed_are_no_success():
    text = text_of(report(PORT, ranks=ranks()))
    assert "Total Execution Ranks: 8" in text
    assert "SUCCESS" not in text


def test_without_ranks_neither_line_stands_there():
    assert "Execution" not in text_of(report(PORT))


def test_details_name_gpu_cpus_interface_and_versions():
    text = text_of(well(), details=True)
    assert "GPU-n1-0" in text
    assert "fab0" in text
    assert "BUSBW GB/S" in text


def test_files_and_the_line_to_paste():
    found = report(PORT)
    assert found.exclude == "--exclude=n2"
    assert lists(found) == {"good.nodes": "n0\nn1\nn3\n", "bad.nodes": "n2\n", "exclude": "--exclude=n2\n"}
    assert "exclude  --exclude=n2" in text_of(found)
    assert lists(well())["exclude"] == ""


def test_the_headline_is_the_culprit():
    assert headline(report(PORT)) == "n2 plane 1: no packet arrives"
    assert headline(well()) == "4 of 4 nodes are ready"


@pytest.mark.parametrize("kind", ["node", "device", "port", "rank"])
def test_the_node_of_a_bad_part_is_left_out(kind):
    assert str(bad_nodes([fail(Subject(kind=kind, nodes=("n1",), name="x"))])) == "n1"


@pytest.mark.parametrize("kind", ["cluster", "job", "plane"])
def test_what_is_nobodys_fault_leaves_nobody_out(kind):
    assert not bad_nodes([fail(Subject(kind=kind, nodes=("n1", "n2"), name="x"))])


def test_of_bad_pairs_the_node_that_is_in_most_is_left_out():
    assert str(bad_nodes([pair("n0", "n3"), pair("n1", "n3"), pair("n0", "n2")])) == "n[2-3]"


def test_a_pair_with_a_node_that_is_out_already_takes_nobody_along():
    assert str(bad_nodes([fail(node("n3")), pair("n0", "n3")])) == "n3"


def test_warnings_leave_nobody_out():
    assert not bad_nodes([fail(node("n1"), verdict=Verdict.WARN)])


def test_the_worst_first_and_among_equals_what_explains_the_others():
    late = fail(Subject(kind="rank", nodes=("n1",), name="rank 2"), "preflight/rank-late")
    warn = fail(node("n0"), "host/x", Verdict.WARN)
    found = in_order([("node", [warn]), ("pairs", [PORT]), ("ranks", [late])])
    assert list(found) == [PORT, late, warn]


def test_a_fault_of_one_node_comes_before_one_of_many():
    many = fail(Subject(kind="cluster", nodes=("n0", "n1")), "skew/kernel")
    one = fail(node("n3"), "gpu/count")
    assert in_order([("node", [many, one])])[0] == one


def test_the_document_has_what_a_script_needs():
    body = report(PORT).body()
    assert (body["good"], body["bad"], body["exclude"]) == ("n[0-1,3]", "n2", "--exclude=n2")
    assert body["culprit"] == PORT
    assert body["success"] is False


def test_the_page_stands_alone():
    html = page_html(page(report(PORT, ranks=ranks())))
    assert "no packet arrives" in html
    assert "http://" not in html.replace("http://www.w3.org", "")
