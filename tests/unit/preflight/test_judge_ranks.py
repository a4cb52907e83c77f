"""What ranks did: of many that complain the one that caused it; wrong values, slow ranks, and the proof of RDMA."""

from __future__ import annotations

import pytest

from fairlead.preflight.judge_ranks import bandwidth, judge_ranks
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import Expected
from support.rank_facts import of, ranks, replace_end, say, stop_at

ADDRESSES = {f"n{i}": f"fd00::{i}" for i in range(4)}


def judged(facts, rdma="none", **expected):
    return judge_ranks(facts, ADDRESSES, rdma=rdma, expected=expected)


def only(facts, rdma="none", **expected):
    (found,) = judged(facts, rdma, **expected)
    return found


def failing(*, but: int, phase: str, text: str):
    """Seven ranks wait for one in a phase, and complain when they are stopped."""
    facts = ranks(took_s=9.0, broken="a rank ended")
    for rank in range(8):
        if rank != but:
            stop_at(facts, rank, phase, rc=1)
            own = {"rank": rank, "node": facts.nodes[rank // 2]}
            say(facts, own, "error", 8.0, phase=phase, kind="RuntimeError", text=text, at="all_reduce:1")
            facts.beats[rank] = own | {"say": "beat", "at_s": 8.9, "phase": phase}
    return facts


def test_success_is_one_line_with_the_bandwidth():
    found = only(ranks())
    assert (found.code, found.verdict) == ("preflight/collective", Verdict.PASS)
    assert "8 ranks: a DDP step and all-reduces up to 1 MiB, every value exact" in found.message


def test_sizes_that_would_take_too_long_are_said_to_be_left_out():
    facts = ranks()
    say(facts, {"rank": 0, "node": "n0"}, "left_out", 5.6, bytes=[1 << 26])
    assert "64 MiB left out: longer than `reduce_s`" in only(facts).message


def test_busbw_is_defined_as_nccl_tests_define_it():
    """Size / time x 2 (n-1) / n: of 1 MiB in 20 ms with 8 ranks."""
    ((num_bytes, (took_s, busbw)),) = bandwidth(ranks()).items()
    assert (num_bytes, took_s) == (1 << 20, pytest.approx(0.02))
    assert busbw == pytest.approx((1 << 20) / 0.02 * 2 * 7 / 8)


@pytest.mark.parametrize(("phase", "says"), [("import", "before any collective"), ("reduce", "inside the collective")])
def test_a_rank_that_was_killed_is_named_and_the_others_are_its_evidence(phase, says):
    facts = failing(but=3, phase="reduce", text="Connection closed by peer [fd00::1]:4711")
    stop_at(facts, 3, phase, rc=-9, error="killed by SIGKILL", at_s=7.0)
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/rank-died", "n1 rank 3")
    assert "killed by SIGKILL" in found.message
    assert says in found.message
    assert found.evidence[0].value.startswith("Connection closed by peer")


def test_ranks_that_never_started_are_named_by_node():
    facts = failing(but=99, phase="rendezvous", text="timed out")
    facts.lines[:] = [s for s in facts.lines if s["rank"] not in (4, 5)]
    for rank in (4, 5):
        replace_end(facts, rank, rc=127, error="exit 127", stderr="python3: not found")
    found = only(facts)
    assert (found.code, found.subject.nodes) == ("preflight/rank-missing", ("n2",))
    assert found.evidence[0].value == "python3: not found"


def test_where_no_rank_came_up_the_commonest_reason_is_said():
    facts = ranks()
    facts.lines.clear()
    for rank in range(8):
        replace_end(facts, rank, rc=1, stderr="ModuleNotFoundError: No module named 'torch'")
    found = only(facts)
    assert found.code == "preflight/no-ranks"
    assert "No module named 'torch'" in found.message


def test_a_rank_that_fell_silent():
    facts = failing(but=5, phase="reduce", text="timed out")
    stop_at(facts, 5, "reduce", state="stopped")
    facts.beats[5] = {"rank": 5, "node": "n2", "say": "beat", "at_s": 5.9, "phase": "reduce"}
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/rank-stopped", "n2 rank 5")
    assert "inside the collective: reduce of 1 MiB" in found.message


def test_a_rank_that_came_late_and_is_alive():
    facts = failing(but=6, phase="reduce", text="timed out")
    stop_at(facts, 6, "ddp", state="stopped")
    facts.beats[6] = {"rank": 6, "node": "n3", "say": "beat", "at_s": 8.9, "phase": "ddp"}
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/rank-late", "n3 rank 6")
    assert "came no further than ddp" in found.message


def test_an_error_of_its_own_outweighs_complaints_about_peers():
    facts = failing(but=2, phase="reduce", text="Connection reset by peer")
    stop_at(facts, 2, "reduce", rc=1)
    say(facts, {"rank": 2, "node": "n1"}, "error", 7.5, phase="reduce", kind="OutOfMemoryError",
        text="CUDA out of memory", at="all_reduce:1")  # fmt: skip
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/rank-error", "n1 rank 2")
    assert "OutOfMemoryError: CUDA out of memory" in found.message


def test_where_all_came_equally_far_the_peer_most_complain_of_is_as_far_as_it_goes():
    facts = failing(but=99, phase="reduce", text="Timed out waiting for peer [fd00::2]:4711")
    found = only(facts)
    assert (found.code, found.subject.nodes) == ("preflight/collective-failed", ("n2",))
    facts = failing(but=99, phase="reduce", text="Timed out")
    assert only(facts).subject.nodes == ()


def test_a_sum_that_is_not_exact():
    facts = ranks()
    of(facts, 3, "reduced").update(wrong=17, first=4, got=3.0, want=5.0)
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/wrong-sum", "n1 rank 3")
    assert "wrong in 17 elements" in found.message


def test_a_gradient_that_is_not_the_mean():
    facts = ranks()
    of(facts, 3, "ddp")["gradient_is_mean"] = False
    assert only(facts).code == "preflight/wrong-gradient"


@pytest.mark.parametrize(("compute_s", "is_slow"), [([0.006, 0.0059], True), ([0.006, 0.002], False)])
def test_a_rank_for_which_the_others_wait(compute_s, is_slow):
    """By its best round: one that was held up once is no straggler."""
    facts = ranks()
    of(facts, 3, "split").update(compute_s=compute_s, wait_s=[0.0001, 0.0001])
    codes = [f.code for f in judged(facts)]
    assert codes == (["preflight/straggler"] if is_slow else []) + ["preflight/collective"]


def nccl(network: str):
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "torch")["nccl"] = "2.26.2"
        facts.nccl[rank] = [f"Using network {network}"] if network else []
    return facts


@pytest.mark.parametrize(
    ("network", "verdict"), [("IB", Verdict.PASS), ("Socket", Verdict.FAIL), ("", Verdict.UNKNOWN)]
)
def test_nccl_itself_must_say_that_it_uses_rdma(network, verdict):
    found = judged(nccl(network), "ib")[0]
    assert (found.code, found.verdict) == ("preflight/transport", verdict)


def test_where_no_rdma_is_declared_sockets_are_fine():
    assert [f.code for f in judged(nccl("Socket"))] == ["preflight/collective"]


@pytest.mark.parametrize(("busbw_gbs", "verdict"), [(400, Verdict.FAIL), (450, Verdict.WARN), (480, None)])
def test_the_all_reduce_of_one_node_against_its_vm_size(busbw_gbs, verdict):
    facts = ranks(1, 8)
    num_bytes = 1 << 28
    took_s = num_bytes / (busbw_gbs * 1e9) * 2 * 7 / 8
    for rank in range(8):
        of(facts, rank, "reduced").update(bytes=num_bytes, s=[took_s])
    limit = Expected(fail_below=440, warn_below=460, source="test")
    found = [f for f in judged(facts, node_allreduce_busbw_gbs=limit) if f.code == "preflight/busbw"]
    assert [f.verdict for f in found] == ([verdict] if verdict else [])


@pytest.mark.parametrize(("rdma", "codes"), [("ib", ["preflight/busbw"]), ("none", [])])
def test_numbers_between_nodes_hold_where_rdma_is_declared(rdma, codes):
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "reduced").update(bytes=1 << 28, s=[1.0])
    limit = Expected(warn_below=460, source="test")
    found = judged(facts, rdma, job_allreduce_busbw_gbs=limit)
    assert [f.code for f in found if f.verdict is Verdict.WARN] == codes


def test_ranks_that_were_only_to_start():
    facts = ranks(launch_only="plane 1 is dead")
    kept = ("start", "torch"), ("import", "done")
    facts.lines[:] = [s for s in facts.lines if s["say"] in kept[0] or s.get("phase") in kept[1]]
    found = only(facts)
    assert (found.code, found.verdict) == ("preflight/collective", Verdict.SKIP)
    assert "plane 1 is dead" in found.message
