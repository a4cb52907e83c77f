"""The report: who is left out, what comes first, and the lines that tools look for."""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight import PreflightReport, lists, page_of, text_of
from fairlead.preflight.page import fabric_view
from fairlead.preflight.pairs.facts import PairFacts, Speed
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.paths import Paths
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.report import in_order
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.report import bad_nodes, headline
from fairlead.records.verdict import Verdict
from fairlead.report.html import page_html
from fairlead.spec.model import Access, Fabric, Pool, Spec
from support.rank_facts import ranks

NODES = NodeSet("n[0-3]")
SPEC = Spec(schema=1, access=Access(via="ssh"), pools=(Pool(name="p", size="other", nodes=NODES),))


def fail(subject, code="preflight/unreachable", verdict=Verdict.FAIL):
    return Finding(code=code, verdict=verdict, subject=subject, message="no packet arrives", remedy="look")


def pair(a, b):
    return fail(Subject(kind="pair", nodes=(a, b)))


PORT = fail(Subject(kind="port", nodes=("n2",), name="plane 1"))


def report(*findings, **more):
    return PreflightReport(spec=SPEC, nodes=NodeSet("n[0-3]"), findings=findings, **more)


def well():
    facts = ranks()
    return report(*judge_ranks(facts, {}), ranks=facts, took_s={"nodes": 0.5, "ranks": 8.0})


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
    assert lists(well())["exclude"] == "\n"


def test_the_rest_is_judged_without_the_bad_nodes():
    plane, good = fail(Subject(kind="plane", name="plane 2")), fail(node("n1"), verdict=Verdict.PASS)
    assert report(PORT, good).rest is Verdict.PASS
    assert report(PORT, pair("n0", "n2"), good).rest is Verdict.PASS
    assert report(PORT).rest is Verdict.UNKNOWN  # nothing is known of the others
    assert report(PORT, plane).rest is Verdict.FAIL
    assert report(pair("n0", "n2"), good).rest is Verdict.FAIL  # a job that takes both of them fails
    assert report(plane).rest is Verdict.FAIL
    assert report(PORT, fail(node("n1"), verdict=Verdict.UNKNOWN)).rest is Verdict.UNKNOWN
    assert report(PORT, good, ranks=ranks()).rest is Verdict.UNKNOWN  # no collective went through
    assert report(*(fail(node(n)) for n in NODES)).rest is Verdict.FAIL
    assert well().rest is Verdict.PASS


def test_the_headline_is_the_culprit():
    assert headline(report(PORT)) == "n2 plane 1: no packet arrives"
    assert headline(well()) == "4 of 4 nodes are ready"


@pytest.mark.parametrize("kind", ["node", "device", "port", "rank"])
def test_the_node_of_a_bad_part_is_left_out(kind):
    assert str(bad_nodes([fail(Subject(kind=kind, nodes=("n1",), name="x"))], NODES)) == "n1"


@pytest.mark.parametrize("kind", ["cluster", "job", "plane"])
def test_what_is_nobodys_fault_leaves_nobody_out(kind):
    assert not bad_nodes([fail(Subject(kind=kind, nodes=("n1", "n2"), name="x"))], NODES)


def test_of_bad_pairs_the_node_that_is_in_most_is_left_out():
    assert str(bad_nodes([pair("n0", "n3"), pair("n1", "n3")], NODES)) == "n3"


def test_a_pair_with_a_node_that_is_out_already_takes_nobody_along():
    assert str(bad_nodes([fail(node("n3")), pair("n0", "n3")], NODES)) == "n3"


@pytest.mark.parametrize("said", ["n2 /shared/x.sbatch", "--uid=0", "n2,n3", "n9"])
def test_a_name_that_nobody_asked_for_never_reaches_sbatch(said):
    """A rank says what it likes of itself: the line below was read from `"node":"n2 /shared/x.sbatch"`."""
    odd = fail(Subject(kind="rank", nodes=(said,), name="rank 5"), "preflight/rank-error")
    made = report(odd, pair(said, "n1"), PORT)
    assert made.exclude == "--exclude=n2"
    assert lists(made)["bad.nodes"] == "n2\n"
    assert odd in made.findings
    assert made.verdict is Verdict.FAIL
    assert said in text_of(made)


def test_warnings_leave_nobody_out():
    assert not bad_nodes([fail(node("n1"), verdict=Verdict.WARN)], NODES)


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
    html = page_html(page_of(report(PORT, ranks=ranks())))
    assert "no packet arrives" in html
    assert "http://" not in html.replace("http://www.w3.org", "")


def measured():
    """Three nodes on one plane; what was measured is not in order, and one pair showed nothing."""
    speeds = [Speed(2, 0, 1, 250_000_000, 90_000, 1), Speed(0, 1, 1, 0, 0, 0), Speed(0, 2, 1, 310_000_000, 80_000, 1)]
    return PairFacts(
        nodes=("n0", "n1", "n2"),
        paths=("fabric", "plane 0"),
        small=200,
        full=8,
        num_flows=8,
        again_small=400,
        members=(0, 1, 2),
        speeds=[*speeds, Speed(2, 1, 1, 240_000_000, 70_000, 1)],
    )


def test_pairs_are_in_order_and_a_dead_one_has_no_numbers():
    facts = measured()
    made = page_of(report(*judge_pairs(facts), pairs=facts))
    (shown,) = [s for s in made.sections if s.title == "Pairs"]
    table = shown.blocks[1]
    assert [row[:2] for row in table.rows] == [("n0", "n1"), ("n0", "n2"), ("n2", "n0"), ("n2", "n1")]
    assert table.rows[0][3:] == ("-", "-")
    assert "-" not in table.rows[1][3:]


def test_a_port_is_drawn_at_the_middle_of_its_pairs_rates():
    lab = Spec(
        schema=1,
        access=Access(via="lab"),
        fabric=Fabric(planes=1, t0=1, t1=1),
        pools=(Pool(name="p", size="lab", nodes=NodeSet("n[0-2]")),),
    )
    names = ("n0", "n1", "n2")
    paths = Paths(("fabric", "plane 0"), dict.fromkeys(names, ("fd::1", "fd::2")), dict.fromkeys(names, 0))
    seen = PreflightReport(spec=lab, nodes=NodeSet("n[0-2]"), findings=(), pairs=measured(), paths=paths)
    view = fabric_view(seen)
    assert view is not None
    assert {p.host: p.rate_bps for p in view.ports} == {"n0": 280e6, "n1": 240e6, "n2": 250e6}


def test_a_link_between_switches_and_a_t1_are_drawn_where_they_are():
    lab = Spec(
        schema=1,
        access=Access(via="lab"),
        fabric=Fabric(planes=2, t0=1, t1=2),
        pools=(Pool(name="p", size="lab", nodes=NodeSet("n[0-2]")),),
    )
    names = ("n0", "n1", "n2")
    paths = Paths(("fabric", "plane 0"), dict.fromkeys(names, ("fd::1", "fd::2")), dict.fromkeys(names, 0))
    bad = (
        fail(Subject(kind="link", name="p1/t0-0/t1-1"), "preflight/slow-link"),
        fail(Subject(kind="plane", name="p0/t1-1"), "preflight/unreachable"),
    )
    view = fabric_view(PreflightReport(spec=lab, nodes=NodeSet("n[0-2]"), findings=bad, paths=paths))
    assert view is not None
    assert [(t.plane, t.t0, t.t1, t.verdict) for t in view.trunks] == [(1, 0, 1, Verdict.FAIL)]
    assert [(s.plane, s.tier, s.index) for s in view.switches] == [(0, 1, 1)]
