"""The network of each rank and each rail: who is on TCP, who takes the wrong port, who goes without GPUDirect."""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from support.rank_facts import nccl_lines, of, ranks

IB = Wanted(rdma="ib", link="infiniband", device="gpu", num_hcas=8)


def said(facts, rank, *lines, without=""):
    """Another word of NCCL on this rank; lines that hold `without` go."""
    old = of(facts, rank, "nccl")
    old["lines"] = {k: v for k, v in old["lines"].items() if not (without and without in k)} | dict.fromkeys(lines, 1)


def judged(facts, wanted=IB):
    return [f for f in judge_ranks(facts, {}, wanted) if f.code == "preflight/transport"]


def only(facts, wanted=IB):
    (found,) = judged(facts, wanted)
    return found


def test_all_on_infiniband_with_gpudirect_is_one_line_and_the_unused_ethernet_port_is_no_fault():
    """An ND H100 v5 node lists mlx5_an0 behind its HCAs and reaches its full rate over the HCAs."""
    found = only(ranks(4, 8))
    assert found.verdict is Verdict.PASS
    assert "NCCL uses IB on 32 ranks, GPUDirect RDMA on all 32" in found.message
    assert "mlx5_an0 is not used" in found.message


@pytest.mark.parametrize("rdma", ["none", "mrc"])
def test_where_no_rdma_of_the_library_is_declared_nothing_is_judged(rdma):
    assert judged(ranks(), Wanted(rdma=rdma)) == []


def socket(facts, *which):
    for rank in which:
        of(facts, rank, "nccl")["lines"] = dict.fromkeys(
            ("NET/IB : No device found.", "Using network Socket", "[send] via NET/Socket/0"), 1
        )


def test_one_rank_on_tcp_while_the_others_use_infiniband_is_named():
    facts = ranks(4, 8)
    socket(facts, 21)
    found = only(facts)
    assert (found.verdict, found.subject.nodes) == (Verdict.FAIL, ("n2",))
    assert "TCP sockets on rank 21, where the other 31 use IB" in found.message
    assert any("No device found" in e.value for e in found.evidence)


def test_all_on_tcp_is_one_finding_that_excludes_nobody():
    facts = ranks(4, 8)
    socket(facts, *range(32))
    found = only(facts)
    assert (found.verdict, found.subject.kind, found.subject.nodes) == (Verdict.FAIL, "job", ())


def test_libfabric_over_tcp_is_tcp():
    facts = ranks(2, 2)
    for rank in range(4):
        of(facts, rank, "nccl")["lines"] = {
            "NET/OFI Selected Provider is tcp (found 2 nics)": 1,
            "Using network AWS Libfabric": 1,
        }
    assert only(facts).verdict is Verdict.FAIL


def test_multi_node_nvlink_alone_over_a_network_that_would_be_tcp_is_a_warning():
    facts = ranks(4, 4)
    for rank in range(16):
        of(facts, rank, "nccl")["lines"] = {"Using network Socket": 1, "via P2P/MNNVL": 8}
    found = only(facts)
    assert found.verdict is Verdict.WARN
    assert "multi-node NVLink" in found.message


def test_multi_node_nvlink_with_infiniband_ready_is_well():
    facts = ranks(4, 4)
    for rank in range(16):
        lines = [w for w in nccl_lines(rank % 4) if "via NET" not in w]
        of(facts, rank, "nccl")["lines"] = dict.fromkeys([*lines, "via P2P/MNNVL"], 1)
    found = only(facts)
    assert found.verdict is Verdict.PASS
    assert "16 ranks talk to other nodes over NVLink alone" in found.message


@pytest.mark.parametrize("which", [[5], [4, 5, 6, 7]])
def test_gpudirect_on_one_rank_does_not_count_for_the_others(which):
    facts = ranks(4, 8)
    for rank in which:
        said(facts, rank, f"[send] via NET/IB/{rank % 8}", f"[receive] via NET/IB/{rank % 8}", without="via NET")
    found = only(facts)
    assert (found.verdict, found.subject.nodes) == (Verdict.FAIL, ("n0",))
    assert found.data["ranks"] == which
    assert f"which {32 - len(which)} others use" in found.message


def test_gpus_that_no_node_has_a_port_near_are_a_warning_about_the_job():
    """Four GPUs on each socket and the ports on one of them: NCCL takes no GPUDirect RDMA across (PXB is its limit)."""
    facts = ranks(4, 8)
    for rank in range(32):
        if rank % 8 > 3:
            said(facts, rank, f"[send] via NET/IB/{rank % 8}", without="via NET")
    found = only(facts)
    assert (found.verdict, found.subject.nodes) == (Verdict.WARN, ())
    assert "local ranks 4, 5, 6, 7" in found.message
    said(facts, 1, "[send] via NET/IB/1", without="via NET")
    found = judged(facts)
    assert [(f.verdict, f.subject.nodes) for f in found] == [(Verdict.WARN, ()), (Verdict.FAIL, ("n0",))]
    assert found[1].data["ranks"] == [1]


def test_no_gpudirect_anywhere_is_a_warning_about_the_job():
    facts = ranks()
    for rank in range(8):
        said(facts, rank, f"[send] via NET/IB/{rank % 2}", without="via NET")
    found = only(facts)
    assert (found.verdict, found.subject.nodes) == (Verdict.WARN, ())


def test_a_channel_over_the_accelerated_ethernet_port_is_the_wrong_port():
    facts = ranks(4, 8)
    said(facts, 13, "[send] via NET/IB/8/GDRDMA", without="via NET")
    found = judged(facts)
    assert [(f.verdict, str(f.subject)) for f in found if f.verdict is Verdict.FAIL] == [
        (Verdict.FAIL, "n1 mlx5_an0 (RoCE)")
    ]
    assert "rank 13" in found[0].message


def test_a_node_that_takes_one_wrong_port_alone():
    """NCCL_IB_HCA left over from a test, on one node."""
    facts = ranks(4, 8)
    for rank in range(8, 16):
        said(facts, rank, "NCCL_IB_HCA set to mlx5_an0", "NET/IB : Using [0]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.5<0>",
             "[send] via NET/IB/0", without="NET/IB")  # fmt: skip
    found = judged(facts)
    assert {n for f in found for n in f.subject.nodes} == {"n1"}
    assert any("mlx5_an0" in str(f.subject) for f in found)
    missing = next(f for f in found if "leaves out" in f.message)
    assert "mlx5_ib0, mlx5_ib1" in missing.message
    assert any("NCCL_IB_HCA set to mlx5_an0" in e.value for e in missing.evidence)


@pytest.mark.parametrize(
    "wanted",
    [IB, Wanted(rdma="ib", hcas={f"n{i}": frozenset(f"mlx5_ib{k}" for k in range(8)) for i in range(4)})],
    ids=["by the other nodes", "by the probe"],
)
def test_a_rail_that_is_left_out_on_one_node_is_named(wanted):
    facts = ranks(4, 8)
    for rank in range(16, 24):
        listed = " ".join(f"[{i}]mlx5_ib{k}:1/IB" for i, k in enumerate(k for k in range(8) if k != 3))
        index = (rank % 8) - (rank % 8 > 3) if rank % 8 != 3 else 2
        said(facts, rank, f"NET/IB : Using {listed} [RO]; OOB eth0:10.0.0.4<0>",
             f"[send] via NET/IB/{index}/GDRDMA", without="NET/IB")  # fmt: skip
    found = [f for f in judged(facts, wanted) if f.verdict is Verdict.FAIL]
    assert [f.subject.nodes for f in found] == [("n2",)]
    assert "leaves out mlx5_ib3: it lists 7 of the 8" in found[0].message


def test_a_rail_that_is_left_out_everywhere_is_told_by_the_vm_size():
    facts = ranks(2, 4)
    for rank in range(8):
        said(facts, rank, "NET/IB : Using [0]mlx5_ib0:1/IB [RO]; OOB eth0:10.0.0.4<0>", "[send] via NET/IB/0/GDRDMA",
             without="NET/IB")  # fmt: skip
    found = judged(facts)
    assert [f.subject.nodes for f in found] == [("n0",), ("n1",)]
    assert "7 of 8 ports" in found[0].message


def test_a_rank_that_crosses_rails_is_a_warning():
    facts = ranks(4, 8)
    said(facts, 11, "[send] via NET/IB/6/GDRDMA", without="via NET")
    found = only(facts)
    assert (found.verdict, str(found.subject)) == (Verdict.WARN, "n1 rank 11")
    assert "take mlx5_ib3" in found.message


def test_where_the_library_says_nothing_it_is_unknown():
    facts = ranks()
    for rank in range(8):
        of(facts, rank, "nccl")["lines"] = {}
    assert only(facts).verdict is Verdict.UNKNOWN


def test_roce_counts_where_roce_is_declared():
    facts = ranks(4, 2)
    roce = Wanted(rdma="roce", link="ethernet", num_hcas=8)
    for rank in range(8):
        of(facts, rank, "nccl")["lines"] = dict.fromkeys(nccl_lines(rank % 2, layer="RoCE"), 1)
    assert only(facts, roce).verdict is Verdict.PASS


@pytest.mark.parametrize("is_known", [True, False])
def test_a_node_that_calls_its_ports_otherwise_crosses_no_rails(is_known):
    """Names that udev makes from the slot (rdma-core, rdma_rename) on one of 16 nodes, after another image."""
    facts = ranks(16, 8)
    for rank in range(8, 16):
        old = of(facts, rank, "nccl")
        old["lines"] = {line.replace("mlx5_ib", "ibp7s"): num for line, num in old["lines"].items()}
    hcas = {n: frozenset(f"{'ibp7s' if n == 'n1' else 'mlx5_ib'}{i}" for i in range(8)) for n in facts.nodes}
    found = only(facts, Wanted(rdma="ib", link="infiniband", device="gpu", num_hcas=8, hcas=hcas if is_known else {}))
    assert found.verdict is Verdict.PASS, found
