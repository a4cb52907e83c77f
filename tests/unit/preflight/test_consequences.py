"""What follows from a dead plane or a wrong job is nobody's fault; what does not follow from it stays."""

from __future__ import annotations

import pytest

from fairlead.preflight.consequences import without_consequences
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.verdict import Verdict


def fail(code: str, subject: Subject, verdict: Verdict = Verdict.FAIL) -> Finding:
    return Finding(code=code, verdict=verdict, subject=subject, message="")


def rank(code: str) -> Finding:
    return fail(code, Subject(kind="rank", nodes=("n1",), name="rank 3"))


PLANE = fail("preflight/unreachable", Subject(kind="plane", name="plane 0"))
JOB = fail("preflight/rank-count", Subject(kind="job"))


def test_with_a_dead_plane_nobody_is_late():
    kept = rank("preflight/rank-died")
    found = without_consequences([rank("preflight/rank-late"), kept, rank("preflight/collective-failed")], [PLANE])
    assert found[0] == kept
    assert [(f.code, f.verdict) for f in found[1:]] == [("preflight/collective", Verdict.SKIP)]
    assert "preflight/unreachable, plane 0" in found[1].message


@pytest.mark.parametrize("code", ["preflight/slow-rail", "preflight/dead-rail"])
def test_a_rail_of_a_sick_plane_is_not_accused_again(code):
    port = fail(code, Subject(kind="port", nodes=("n1",), name="rail 0 (eth1)"))
    assert [f.verdict for f in without_consequences([port], [PLANE])] == [Verdict.SKIP]


@pytest.mark.parametrize(
    "larger",
    [
        [],
        [fail("preflight/unreachable", Subject(kind="pair", nodes=("n0", "n1")))],
        [fail("preflight/slow-link", Subject(kind="port", nodes=("n0",), name="plane 0"))],
        [fail("preflight/late-link", Subject(kind="plane", name="plane 0"), Verdict.WARN)],
        [fail("preflight/clock-skew", Subject(kind="cluster", nodes=("n0", "n1")))],
    ],
)
def test_anything_less_excuses_nobody(larger):
    """Nodes with such faults run no ranks, so what ranks show has another cause."""
    ranks = [rank("preflight/rank-late")]
    assert without_consequences(ranks, larger) == ranks


def test_a_slow_network_of_the_hosts_kills_no_rail():
    slow = fail("preflight/slow-link", Subject(kind="cluster", name="the fabric"))
    dead = fail("preflight/dead-rail", Subject(kind="port", nodes=("n1",), name="rail 3 (mlx5_ib3)"))
    assert without_consequences([dead], [slow]) == [dead]
    late = without_consequences([rank("preflight/rank-late")], [slow])
    assert [f.verdict for f in late] == [Verdict.SKIP]


def test_a_job_of_a_wrong_shape_has_no_place_for_ranks():
    late = rank("preflight/rank-late")
    found = without_consequences([fail("preflight/no-ranks", node("n0")), late], [JOB])
    assert found[0] == late
    assert found[1].verdict is Verdict.SKIP


def test_where_nothing_follows_nothing_is_added():
    passed = fail("preflight/collective", Subject(kind="job"), Verdict.PASS)
    assert without_consequences([passed], [PLANE]) == [passed]
