"""The scorer of the fault matrix: it must not take a lucky word for a hit."""

from __future__ import annotations

import pytest

from support.scorer import LIMIT_S, Trial, Truth, append, counts, read, score, table

LOSS = Truth(kind="loss", target="p1/n2", codes=("preflight/packet-loss",), nodes=("n2",), part=("plane 1",), way="out")
PAIR = Truth(kind="pair", target="n0:n3", codes=("preflight/unreachable",), nodes=("n0", "n3"))


def finding(code="preflight/packet-loss", nodes=("n2",), name="plane 1", *, way="out", verdict="fail", kind="port"):
    subject = {"kind": kind, "nodes": list(nodes), "name": name}
    return {"code": code, "verdict": verdict, "subject": subject, "data": {"way": way}}


def trial(*truths: Truth, wall_s=12.0, name="one-way loss") -> Trial:
    return Trial(
        suite="single", name=name, seed=1, hosts=4, gpus=2, rate_mbps=250, truths=list(truths), wall_s=wall_s,
        verdict="", first="", named=[], is_first=False, accused=[],
    )  # fmt: skip


def judged(truths, *findings, verdict="fail", wall_s=12.0) -> Trial:
    return score(trial(*truths, wall_s=wall_s), {"verdict": verdict, "findings": list(findings)})


def test_the_right_words_first_and_in_time_are_a_hit():
    found = judged([LOSS], finding(), finding("preflight/pairs", (), "", verdict="pass"))
    assert found.is_hit
    assert found.first == "preflight/packet-loss n2 plane 1"
    assert found.accused == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"code": "preflight/unreachable"},
        {"nodes": ("n3",)},
        {"nodes": ("n2", "n3")},
        {"name": "plane 10"},
        {"name": ""},
        {"way": "in"},
        {"verdict": "warn"},
    ],
    ids=str,
)
def test_nearly_right_is_a_miss(wrong):
    assert not judged([LOSS], finding(**wrong)).is_hit


def test_a_part_of_a_part_counts():
    port = Truth(kind="hca", target="n2 mlx5_1", codes=("ib/port-rate",), nodes=("n2",), part=("mlx5_1",))
    assert judged([port], finding("ib/port-rate", name="mlx5_1/1")).is_hit
    assert not judged([port], finding("ib/port-rate", name="mlx5_10/1")).is_hit


def test_too_late_or_the_wrong_verdict_is_a_miss():
    assert not judged([LOSS], finding(), wall_s=LIMIT_S + 0.1).is_hit
    assert not judged([LOSS], finding(), verdict="unknown").is_hit


def test_something_else_said_first_is_a_miss():
    other = finding("host/shm", ("n0",), "", kind="node")
    found = judged([LOSS], other, finding())
    assert found.named == [True]
    assert not found.is_first
    assert found.accused == ["host/shm n0"]


def test_more_about_a_guilty_node_and_the_job_is_no_accusation():
    more = finding("ib/port-state", name="mlx5_1/1")
    job = finding("preflight/collective-failed", (), "", kind="job")
    assert judged([LOSS], finding(), more, job).accused == []
    assert judged([LOSS], finding(), finding(nodes=("n0",))).accused == ["preflight/packet-loss n0 plane 1"]


def test_a_pair_is_its_two_ends_in_any_order_and_one_end_is_an_accusation():
    ends = finding("preflight/unreachable", ("n3", "n0"), "", way="both", kind="pair")
    assert judged([PAIR], ends).is_hit
    assert not judged([PAIR], finding("preflight/unreachable", ("n3",), "")).is_hit


def test_of_two_faults_both_must_be_named_and_one_of_them_first():
    ends = finding("preflight/unreachable", ("n0", "n3"), "", way="both", kind="pair")
    assert judged([LOSS, PAIR], ends, finding()).is_hit
    assert judged([LOSS, PAIR], ends).named == [False, True]
    assert not judged([LOSS, PAIR], ends).is_hit


def test_a_healthy_cluster_must_pass_without_a_warning():
    assert judged([], verdict="pass").is_hit
    assert not judged([], finding(verdict="warn"), verdict="warn").is_hit


def test_no_document_is_a_miss():
    assert not score(trial(LOSS), {"error": {"message": "no cluster"}}).is_hit


def test_of_a_trial_that_was_run_again_the_last_counts(tmp_path):
    file = tmp_path / "results.jsonl"
    for wall_s in (30.0, 9.0):
        append(file, judged([LOSS], finding(), wall_s=wall_s))
    [kept] = read(file)
    assert kept.wall_s == 9.0
    assert read(tmp_path / "none") == []


def test_the_table_says_why_a_trial_is_no_hit():
    late, missed = judged([LOSS], finding(), wall_s=25.0), judged([LOSS, PAIR], finding())
    assert "| **no**: later than 20 s | 25.0 |" in table([late])
    assert "**no**: pair not named" in table([missed])
    said = counts([late, missed])
    assert said.startswith(
        "0 of 2 hits: all faults named in 1, one of them first in 2, in time (20 s, unless the row says another) in 1;"
    )


def test_a_line_cut_short_by_a_kill_costs_only_itself(tmp_path):
    file = tmp_path / "results.jsonl"
    append(file, judged([LOSS], finding(), wall_s=8.0))
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert [t.wall_s for t in read(file)] == [8.0]
    other = judged([PAIR], finding(), wall_s=9.0)
    other.name = "other"
    append(file, other)
    assert [t.wall_s for t in read(file)] == [8.0, 9.0]
    assert file.read_bytes().count(b"\n") == 2


def test_what_must_pass_is_a_hit_only_where_it_passes_in_its_own_time():
    slow = Truth(kind="slow start", target="n1", codes=(), verdict="pass", limit_s=150.0)
    assert judged([slow], verdict="pass", wall_s=80.0).is_hit
    assert not judged([slow], verdict="warn", wall_s=80.0).is_hit
    assert not judged([slow], verdict="pass", wall_s=151.0).is_hit
    assert judged([slow], finding(), wall_s=80.0).accused == ["preflight/packet-loss n2 plane 1"]


def test_what_nobody_can_know_is_a_hit_where_it_is_said_first_as_unknown():
    nothing = Truth(kind="no torch", target="all", codes=("preflight/no-torch",), verdict="unknown")
    said = finding("preflight/no-torch", (), "", verdict="unknown")
    assert judged([nothing], said, verdict="unknown").is_hit
    assert not judged([nothing], said, verdict="fail").is_hit
    assert not judged([nothing], finding("preflight/no-torch", (), ""), verdict="unknown").is_hit
