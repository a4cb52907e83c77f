"""What ranks did: of many that complain the one that caused it; wrong values, slow ranks, and the proof of RDMA."""

from __future__ import annotations

import pytest

from fairlead.preflight.pairs.limits import table
from fairlead.preflight.ranks import limits
from fairlead.preflight.ranks.judge import bandwidth, judge_ranks
from fairlead.preflight.ranks.wanted import Wanted, sizes_to_try
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import Expected, VmSize
from fairlead.spec.vmsize import size as vm_size
from support.rank_facts import of, ranks, replace_end, say, stop_at

ADDRESSES = {f"n{i}": f"fd00::{i}" for i in range(4)}


H100 = "Standard_ND96isr_H100_v5"


def vm(quantity, **limit):
    """A VM size of which one number is known."""
    row = Expected(source="test", **limit)
    return VmSize(name="x", expected={quantity: row}, reached={quantity: (row,)})


def judged(facts, rdma="none", **wanted):
    return judge_ranks(facts, ADDRESSES, Wanted(rdma=rdma, **wanted))


def only(facts, rdma="none", **wanted):
    (found,) = judged(facts, rdma, **wanted)
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
        replace_end(facts, rank, rc=127, stderr="bash: /opt/venv/bin/python: No such file or directory")
    found = only(facts)
    assert found.code == "preflight/no-ranks"
    assert "No such file or directory" in found.message


def test_where_no_rank_spoke_in_time_nobody_is_accused():
    facts = ranks()
    facts.lines.clear()
    facts.broken = "8 ranks did not start within 1 m 00 s"
    for rank in range(8):
        replace_end(facts, rank, rc=75, state="stopped", error="stopped" if rank % 3 else "exit status 75")
    found = only(facts)
    assert (found.code, found.verdict, found.subject.kind) == ("preflight/no-ranks", Verdict.UNKNOWN, "job")
    assert "did not start within 1 m 00 s" in found.message
    assert "start_s" in found.remedy


def test_a_rank_that_fell_silent():
    facts = failing(but=5, phase="reduce", text="timed out")
    stop_at(facts, 5, "reduce", state="stopped")
    facts.beats = {r: {"rank": r, "node": f"n{r // 2}", "say": "beat", "at_s": 9.4} for r in range(8)}
    facts.beats[5]["at_s"] = 5.9
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


def test_what_came_back_wrong_on_several_nodes_may_have_come_from_any():
    facts = ranks()
    for rank in (3, 4, 5):
        of(facts, rank, "reduced").update(wrong=17, first=4, got=3.0, want=5.0)
    found = only(facts)
    assert (found.code, found.subject.kind, found.subject.nodes) == ("preflight/wrong-sum", "job", ("n1", "n2"))
    assert "on 3 ranks of 2 nodes" in found.message


def test_a_wrong_sum_is_said_also_where_a_rank_died_later():
    facts = ranks()
    of(facts, 3, "reduced").update(wrong=17, first=4, got=3.0, want=5.0)
    stop_at(facts, 6, "rounds", rc=-9, error="killed by SIGKILL")
    codes = [f.code for f in judged(facts)]
    assert codes == ["preflight/rank-died", "preflight/wrong-sum"]


def test_a_gradient_that_is_not_the_mean():
    facts = ranks()
    of(facts, 3, "ddp")["gradient_is_mean"] = False
    assert only(facts).code == "preflight/wrong-gradient"


@pytest.mark.parametrize(("compute_s", "is_slow"), [([0.006, 0.0059], True), ([0.006, 0.002], False)])
def test_a_rank_for_which_the_others_wait(compute_s, is_slow):
    """By its best round: one that was held up once is no straggler."""
    facts = ranks()
    of(facts, 3, "rounds").update(compute_s=compute_s, wait_s=[0.0001, 0.0001])
    codes = [f.code for f in judged(facts)]
    assert codes == (["preflight/straggler"] if is_slow else []) + ["preflight/collective"]


def test_gpus_of_another_pool_are_slower_and_no_stragglers():
    """Two nodes of older GPUs in a job with six of newer ones: a slow one of them is still found."""
    facts = ranks(8, 2)
    for rank in range(12, 16):
        of(facts, rank, "rounds").update(compute_s=[0.006, 0.006], wait_s=[0.0001, 0.0001])
    pools = {f"n{i}": "old" if i > 5 else "new" for i in range(8)}
    codes = [f.code for f in judged(facts, pools=pools)]
    assert codes == ["preflight/collective"]
    of(facts, 15, "rounds").update(compute_s=[0.02, 0.02], wait_s=[0.00001, 0.00001])
    assert [str(f.subject) for f in judged(facts, pools=pools) if f.code == "preflight/straggler"] == ["n7 rank 15"]


@pytest.mark.parametrize(("busbw_gbs", "verdict"), [(400, Verdict.FAIL), (450, Verdict.WARN), (480, None)])
def test_the_all_reduce_of_one_node_against_its_vm_size(busbw_gbs, verdict):
    facts = ranks(1, 8)
    num_bytes = 1 << 34
    took_s = num_bytes / (busbw_gbs * 1e9) * 2 * 7 / 8
    for rank in range(8):
        of(facts, rank, "reduced").update(bytes=num_bytes, s=[took_s])
    size = vm("node_allreduce_busbw_gbs", fail_below=440, warn_below=460, nodes=(1, 1), message_bytes=num_bytes)
    found = [f for f in judged(facts, size=size) if f.code == "preflight/busbw"]
    assert [f.verdict for f in found] == ([verdict] if verdict else [])


@pytest.mark.parametrize(("rdma", "codes"), [("ib", ["preflight/busbw"]), ("none", [])])
def test_numbers_between_nodes_hold_where_rdma_is_declared(rdma, codes):
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "reduced").update(bytes=1 << 28, s=[1.0])
    size = vm("job_allreduce_busbw_gbs", warn_below=460, nodes=(2, 16), message_bytes=1 << 28)
    found = judged(facts, rdma, size=size)
    assert [f.code for f in found if f.verdict is Verdict.WARN] == codes


@pytest.mark.parametrize("on", ["gpus", "cpus"])
def test_a_message_size_for_which_no_limit_is_known_is_reported_and_not_judged(on):
    """64 MiB at 3 GB/s: published limits are for 16 GiB."""
    facts = ranks(2, 8, on=on)
    for rank in range(16):
        of(facts, rank, "reduced").update(bytes=1 << 26, s=[0.04])
    assert limits.judged_messages(vm_size(H100), nodes=2) == {1 << 34}
    found = judged(facts, "ib", size=vm_size(H100))
    assert "preflight/busbw" not in [f.code for f in found]
    done = next(f for f in found if f.code == "preflight/collective")
    assert "busbw" in done.message
    assert ("not judged" in done.message) is (on == "gpus")


@pytest.mark.parametrize(("per_node", "codes"), [(8, ["preflight/busbw"]), (2, [])])
def test_what_a_vm_size_reaches_it_reaches_with_all_its_gpus(per_node, codes):
    """A job of two of the eight GPUs, and so of two of the eight ports, gets a part of 300 GB/s."""
    facts = ranks(2, per_node)
    for rank in range(2 * per_node):
        of(facts, rank, "reduced").update(bytes=1 << 34, s=[0.3])
    found = judged(facts, "ib", size=vm_size(H100))
    assert [f.code for f in found if f.code == "preflight/busbw"] == codes


def test_limits_hold_for_a_size_a_number_of_nodes_and_messages_from_a_size_on():
    def limit(size, nodes, num_bytes, nvlink=False):
        found = limits.reduce_limit(vm_size(size), nodes=nodes, message_bytes=num_bytes, over_nvlink=nvlink)
        return found.fail_below if found else None

    assert limit(H100, 1, 1 << 34) == 460
    assert limit(H100, 1, 1 << 33) is None
    assert limit(H100, 16, 1 << 34) == 300
    assert limit("Standard_ND128isr_GB300_v6", 18, 1 << 34, nvlink=True) == 600
    assert limit("Standard_ND128isr_GB300_v6", 18, 1 << 34, nvlink=False) == 150
    assert limit("other", 2, 1 << 34) is None


def test_on_gpus_the_sizes_that_are_judged_are_tried_too():
    on_gpus = Wanted(device="gpu", size=vm_size(H100))
    assert sizes_to_try(on_gpus, (8, 1 << 26), 16) == (8, 1 << 26, 1 << 34)
    assert sizes_to_try(Wanted(device="cpu", size=vm_size(H100)), (8,), 16) == (8,)


def test_a_number_of_the_cluster_file_holds_for_ranks_and_those_of_pairs_are_none_of_theirs():
    ours = limits.Numbers({"straggler_ratio": 3.0, "slow_ratio": 0.4})
    assert (ours["straggler_ratio"], ours.source("straggler_ratio")) == (3.0, "the cluster file")
    assert ours.own == {"straggler_ratio": 3.0}
    assert not set(limits.numbers()) & set(table()), "one table of the cluster file names both"


def test_ranks_that_were_only_to_start():
    facts = ranks(launch_only="plane 1 is dead")
    kept = ("start", "torch"), ("import", "done")
    facts.lines[:] = [s for s in facts.lines if s["say"] in kept[0] or s.get("phase") in kept[1]]
    found = only(facts)
    assert (found.code, found.verdict) == ("preflight/collective", Verdict.SKIP)
    assert "plane 1 is dead" in found.message


# ---- requests that got no answer -------------------------------------------------------------------------------------

GONE = ("n0:5:6 [5] transport/net_ib.cc:2470 NCCL WARN NET/IB: Got completion from peer {}<40000> with status=12 "
        "opcode=129 len=0 vendor err 129 (Recv) hca {}")  # fmt: skip


def cut_off(*complaints, **died):
    """Ranks that were aborted by torch after the library's words, as (rank, peer, HCA); the others were stopped."""
    facts = ranks(4, 2, broken="a rank ended", took_s=9.0)
    for rank in range(8):
        stop_at(facts, rank, "reduce", state="stopped", rc=75)
        facts.beats[rank] = {"rank": rank, "node": facts.nodes[rank // 2], "say": "beat", "at_s": 8.9}
    for rank, peer, hca in complaints:
        facts.words.setdefault(rank, []).append(GONE.format(peer, hca))
        replace_end(facts, rank, rc=-6, error="killed by SIGABRT", at_s=8.0)
    for rank in died.get("killed", ()):
        replace_end(facts, rank, rc=-9, error="killed by SIGKILL", at_s=7.0)
    return facts


def test_a_port_whose_requests_fail_with_two_peers_is_named_and_no_rank_is_said_to_have_died():
    found = only(
        cut_off((3, "fd00::0", "mlx5_1"), (3, "fd00::2", "mlx5_1"), (1, "fd00::1", "mlx5_1"), (5, "fd00::1", "mlx5_1"))
    )
    assert (found.code, str(found.subject)) == ("preflight/dead-rail", "n1 mlx5_1")
    assert "with 2 peers" in found.message


def test_with_one_peer_the_pair_is_all_that_is_known():
    found = only(cut_off((3, "fd00::2", "mlx5_1"), (5, "fd00::1", "mlx5_1")))
    assert (found.code, str(found.subject)) == ("preflight/dead-rail", "n1 <-> n2 mlx5_1")


def test_where_a_rank_was_killed_the_requests_to_it_fail_as_a_consequence():
    found = only(cut_off((3, "fd00::2", "mlx5_1"), killed=(5,)))
    assert (found.code, str(found.subject)) == ("preflight/rank-died", "n2 rank 5")


def test_thousands_of_ranks_give_signs_of_life_less_often():
    """At 8,192 ranks a beat comes every 2.1 s, and is passed on once a second: 4 s are no silence."""
    facts = ranks(num_nodes=1024, per_node=8)
    for rank in range(8):
        stop_at(facts, rank, "reduce", state="failed", rc=1, error="exit status 1")
        say(facts, {"rank": rank, "node": "n0"}, "error", 9.0, kind="DistBackendError", text="NCCL", phase="reduce")
    stop_at(facts, 16, "reduce", state="stopped")
    facts.beats = {16: {"rank": 16, "node": "n2", "say": "beat", "at_s": 5.0}}
    assert "preflight/rank-stopped" not in {f.code for f in judge_ranks(facts, {})}


def test_a_rank_that_fell_silent_is_the_cause_of_messages_that_did_not_come():
    """A rank that stands still in the rail test is not a dead rail."""
    facts = failing(but=5, phase="rails", text="Timed out waiting 4000ms for recv operation to complete")
    stop_at(facts, 5, "rails", state="stopped")
    facts.beats[5] = {"rank": 5, "node": "n2", "say": "beat", "at_s": 3.9, "phase": "rails"}
    say(facts, {"rank": 7, "node": "n3"}, "rail", 8.5, src=5, rail=1, bytes=1 << 20, s=None, error="timed out")
    found = only(facts)
    assert (found.code, str(found.subject)) == ("preflight/rank-stopped", "n2 rank 5")
