"""Which RDMA ports count: the chain of choices, from the most explicit to the strictest."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead.checks import judge_node, rdma_devices
from fairlead.checks.hcas import choose, nccl_takes
from fairlead.checks.node import Node
from fairlead.records.facts import Facts, Unread
from fairlead.records.verdict import Verdict
from support.judging import SMALL, expect, facts_of, judged, of, small
from support.trees import Machine, hca


def chosen(m: Machine, **values: object) -> tuple[list[str], str]:
    ports = choose(Node(Facts(facts_of(m)), dataclasses.replace(SMALL, values={**SMALL.values, **values})))
    return ports.chosen, ports.by


def test_names_in_the_cluster_file_go_first() -> None:
    m = small()
    m.put("/etc/nccl.conf", "NCCL_IB_HCA=mlx5_ib1\n")
    assert chosen(m, hcas=("mlx5_ib0",)) == (["mlx5_ib0/1"], "the names in the cluster file")


def test_a_named_device_that_is_not_there_is_missing() -> None:
    found = of(judged(small(), expect("Standard_ND96isr_H100_v5", hcas=("mlx5_ib0", "mlx5_ib7"))), "ib/count")
    assert [(f.verdict, f.message) for f in found] == [(Verdict.FAIL, "not there: mlx5_ib7")]


def test_nccl_goes_next_and_the_environment_before_the_file() -> None:
    m = small()
    m.put("/etc/nccl.conf", "NCCL_IB_HCA=mlx5_ib1\n")
    assert chosen(m) == (["mlx5_ib1/1"], "NCCL_IB_HCA=mlx5_ib1")
    m.put("/proc/self/environ", "NCCL_IB_HCA==mlx5_ib0:1\0")
    assert chosen(m) == (["mlx5_ib0/1"], "NCCL_IB_HCA==mlx5_ib0:1")


def test_a_prefix_of_nccl_does_not_bring_in_the_accelerated_port() -> None:
    m = small()
    m.put("/etc/nccl.conf", "NCCL_IB_HCA=mlx5\n")
    assert chosen(m)[0] == ["mlx5_ib0/1", "mlx5_ib1/1"]


def test_an_empty_choice_fails() -> None:
    m = small()
    m.put("/etc/nccl.conf", "NCCL_IB_HCA=bnxt\n")
    found = of(judged(m), "ib/count")
    assert (found[0].verdict, found[0].message) == (
        Verdict.FAIL,
        "no RDMA port counts, by NCCL_IB_HCA=bnxt; expected 2",
    )


@pytest.mark.parametrize("phys_state", ["3: Disabled", "1: Sleep"])
def test_ports_switched_off_are_left_out_while_enough_remain(phys_state: str) -> None:
    m = small()
    hca(m, "mlx5_ib2", address="0103:00:00.0", numa=0, rate="10 Gb/sec (4X SDR)")
    m.put("/sys/class/infiniband/mlx5_ib2/ports/1/phys_state", f"{phys_state}\n")
    assert chosen(m)[0] == ["mlx5_ib0/1", "mlx5_ib1/1"]
    assert chosen(m, hca_ports=3)[0] == ["mlx5_ib0/1", "mlx5_ib1/1", "mlx5_ib2/1"]


def test_a_polling_port_is_not_switched_off() -> None:
    m = small()
    hca(m, "mlx5_ib2", address="0103:00:00.0", numa=0, rate="10 Gb/sec (4X SDR)")
    m.put("/sys/class/infiniband/mlx5_ib2/ports/1/phys_state", "2: Polling\n")
    assert "mlx5_ib2/1" in chosen(m)[0]


def test_on_ethernet_the_accelerated_port_is_left_out() -> None:
    m = small()
    hca(m, "rocep1s0", address="0003:00:00.0", numa=0, rate="100 Gb/sec (4X EDR)", link="Ethernet")
    roce = dataclasses.replace(SMALL, link="ethernet", rdma="roce", values={**SMALL.values, "hca_ports": 1})
    assert choose(Node(Facts(facts_of(m)), roce)).chosen == ["rocep1s0/1"]


@pytest.mark.parametrize(
    ("rule", "port", "takes"),
    [
        ("mlx5", "mlx5_0/1", True),
        ("mlx5_1", "mlx5_10/1", True),  # a prefix, as NCCL reads it
        ("=mlx5_1", "mlx5_10/1", False),
        ("=mlx5_1", "mlx5_1/1", True),
        ("=mlx5_0,mlx5_1", "mlx5_1/1", True),
        ("mlx5_0:2", "mlx5_0/1", False),
        ("mlx5_0:2", "mlx5_0/2", True),
        ("^mlx5_0", "mlx5_0/1", False),
        ("^mlx5_0", "mlx5_3/1", True),
        ("^=mlx5_1", "mlx5_10/1", True),
    ],
)
def test_nccl_ib_hca(rule: str, port: str, takes: bool) -> None:
    assert nccl_takes(rule, port) is takes


@pytest.mark.parametrize("number", [1 << 10, 10**12])
def test_a_strange_numa_node_is_unread_and_costs_no_time(number: int) -> None:
    record = facts_of(small())
    for device in record.facts["pci"]["devices"].values():
        device["numa_node"] = number
    found = judge_node(Node(Facts(record), SMALL))
    assert {f.verdict for f in found if f.code in ("ib/numa", "gpu/numa")} == {Verdict.UNKNOWN}


def with_others(rate: str = "200 Gb/sec (4X HDR)") -> Machine:
    """Two rails, and two ports of another rate for storage."""
    m = small()
    for number in (8, 9):
        hca(m, f"mlx5_ib{number}", address=f"010{number}:00:00.0", numa=0, rate=rate)
    return m


def test_ports_of_another_rate_are_for_something_else_where_enough_are_right() -> None:
    assert chosen(with_others())[0] == ["mlx5_ib0/1", "mlx5_ib1/1"]
    told = [f.code for f in judged(with_others()) if f.verdict in (Verdict.FAIL, Verdict.WARN)]
    assert [code for code in told if code != "ib/numa"] == []


def test_a_slow_rail_does_not_pass_for_one_of_them() -> None:
    m = with_others()
    m.put("/sys/class/infiniband/mlx5_ib1/ports/1/rate", "200 Gb/sec (2X NDR)\n")
    assert chosen(m)[0] == ["mlx5_ib0/1", "mlx5_ib1/1", "mlx5_ib8/1", "mlx5_ib9/1"]
    assert "mlx5_ib1/1" in {f.subject.name for f in of(judged(m), "ib/port-rate") if f.verdict is Verdict.FAIL}


def test_more_ports_of_the_right_rate_are_all_counted() -> None:
    found = of(judged(with_others("400 Gb/sec (4X NDR)")), "ib/count")
    assert [(f.verdict, f.message) for f in found] == [(Verdict.WARN, "4 RDMA ports, expected 2")]


def test_who_looks_at_the_library_from_outside_knows_the_same_ports() -> None:
    """DGX-like nodes: rails and ports of the same kind for storage, which /etc/nccl.conf leaves out."""
    m = with_others("400 Gb/sec (4X NDR)")
    m.put("/etc/nccl.conf", "NCCL_IB_HCA==mlx5_ib0,mlx5_ib1\n")
    rails = frozenset({"mlx5_ib0", "mlx5_ib1"})
    for expected in (SMALL, expect("other")):
        assert rdma_devices(facts_of(m), expected) == rails
    assert rdma_devices(facts_of(with_others()), SMALL) == rails


def test_a_setting_that_leaves_out_a_rail_is_no_choice() -> None:
    m = small()
    m.put("/etc/nccl.conf", "NCCL_IB_HCA=mlx5_ib1\n")
    assert rdma_devices(facts_of(m), SMALL) == {"mlx5_ib0", "mlx5_ib1"}


def test_of_a_port_that_nobody_could_read_it_is_not_said_that_it_does_not_count() -> None:
    record = facts_of(small())
    del record.facts["ib"]["devices"]["mlx5_ib1"]["ports"]["1"]["link_layer"]
    with pytest.raises(Unread):
        rdma_devices(record, SMALL)
