from __future__ import annotations

from fairlead.base.shown import shown
from fairlead.records.finding import Evidence, Finding, Subject, WaiverNote, node
from fairlead.records.verdict import Verdict
from fairlead.report.folding import folded, one_line
from fairlead.report.text import Paint, counts_line, findings_text


def finding(verdict=Verdict.FAIL, name="n1", message="is bad", **more):
    return Finding(code="x/y", verdict=verdict, subject=node(name), message=message, **more)


def test_equal_findings_are_one_block_with_a_node_set_and_its_size():
    text = findings_text([finding(name=f"h200-{i:03}", remedy="mend it") for i in (17, 101, 18)])
    assert text.splitlines() == [
        "FAIL    h200-[017-018,101] (3)  x/y                     is bad",
        "        do        mend it",
    ]


def test_findings_that_say_something_else_stay_apart():
    apart = [
        finding(),
        finding(message="is worse"),
        finding(verdict=Verdict.WARN),
        Finding(code="x/z", verdict=Verdict.FAIL, subject=node("n1"), message="is bad"),
        Finding(
            code="x/y", verdict=Verdict.FAIL, subject=Subject(kind="port", nodes=("n1",), name="p1"), message="is bad"
        ),
        finding(waived=WaiverNote(reason="known", expires="2026-12-01", was=Verdict.FAIL)),
    ]
    assert len(folded(apart)) == len(apart)


def test_pairs_are_never_folded_into_a_node_set():
    pairs = [
        Finding(code="x/y", verdict=Verdict.FAIL, subject=Subject(kind="pair", nodes=(a, b)), message="is bad")
        for a, b in (("n1", "n2"), ("n3", "n4"))
    ]
    assert [g.subject for g in folded(pairs)] == ["n1 <-> n2", "n3 <-> n4"]


def test_the_part_inside_the_nodes_is_kept():
    ports = [
        Finding(
            code="x/y", verdict=Verdict.WARN, subject=Subject(kind="port", nodes=(n,), name="mlx5_0/1"), message="m"
        )
        for n in ("n1", "n2")
    ]
    assert [g.subject for g in folded(ports)] == ["n[1-2] (2) mlx5_0/1"]


def test_the_worst_first_and_passes_only_when_asked_for():
    some = [
        finding(Verdict.PASS),
        finding(Verdict.WARN),
        finding(Verdict.UNKNOWN),
        finding(Verdict.FAIL),
        finding(Verdict.SKIP),
    ]
    words = [line.split()[0] for line in findings_text(some).splitlines()]
    assert words == ["FAIL", "UNKNOWN", "WARN"]
    words = [line.split()[0] for line in findings_text(some, passes=True).splitlines()]
    assert words == ["FAIL", "UNKNOWN", "WARN", "PASS", "SKIP"]


def test_evidence_waiver_and_remedy_stand_below():
    full = finding(
        Verdict.WARN,
        evidence=tuple(Evidence(f"/sys/{i}", f"value {i}") for i in range(5)),
        waived=WaiverNote(reason="known", expires="2026-12-01", was=Verdict.FAIL),
        remedy="mend it",
    )
    assert [line.split()[0] for line in findings_text([full]).splitlines()] == [
        "WARN",
        "read",
        "read",
        "read",
        "waived",
        "do",
    ]
    assert "was fail; known (until 2026-12-01)" in findings_text([full])


def test_what_nodes_say_cannot_drive_the_terminal():
    evil = "\x1b[2J\x1b]0;x\x07\nFAIL    n9  \u202e"
    text = findings_text(
        [
            Finding(
                code="x/y",
                verdict=Verdict.FAIL,
                subject=Subject(kind="port", nodes=("n1",), name=evil),
                message=evil,
                evidence=(Evidence(evil, evil),),
                remedy=evil,
            )
        ]
    )
    assert len(text.splitlines()) == 3
    assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_long_evidence_is_cut():
    assert one_line("x" * 500) == "x" * 117 + "..."
    assert one_line("a\n  b\tc") == "a b c"


def test_counts_name_only_what_there_is():
    waived = WaiverNote(reason="known", expires="2026-12-01", was=Verdict.FAIL)
    some = [finding(Verdict.PASS), finding(Verdict.PASS), finding(Verdict.WARN, waived=waived)]
    assert counts_line(some) == "3 findings: 2 pass, 1 warn (1 waived)"
    assert counts_line([]) == "0 findings: none"


def test_colour_adds_nothing_but_colour():
    some = [finding(), finding(Verdict.WARN)]
    plain, colourful = findings_text(some), shown(findings_text(some, Paint(on=True)))
    assert "\x1b[31m" in colourful
    for code in ("\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"):
        colourful = colourful.replace(code, "")
    assert colourful == plain
