"""Nodes side by side: the odd one is named against the majority, a tie names both sides, a hole is unknown."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import msgspec
import pytest

from fairlead.checks import judge
from fairlead.checks.skews import AUDIT_SKEWS
from fairlead.checks.skews import SKEWS as GATE_SKEWS
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import facts_of, of, spec_of, troubles

SKEWS = (*GATE_SKEWS, *AUDIT_SKEWS)

SPEC = spec_of("other", nodes="n[0-9]")
"""No VM size, no numbers: everything that can be compared is compared."""


@functools.cache
def _base() -> NodeFacts:
    m = trees.nd_h100_v5(gpus=2, hcas=2)
    m.put("/http/169.254.169.254_metadata", '{"vmSize": "Standard_ND96isr_H100_v5", "placementGroupId": "pg-1"}')
    return facts_of(m)


def nodes(num: int) -> list[NodeFacts]:
    """Equal nodes, each with its own name and its own GPUs."""
    out = []
    for index in range(num):
        facts = copy.deepcopy(_base().facts)
        for gpu in facts["nvidia"]["smi"]["gpus"].values():
            gpu["uuid"] = f"GPU-{index:04d}-{gpu['uuid'][4:]}"
        out.append(msgspec.structs.replace(_base(), node=f"n{index}", facts=facts))
    return out


def put(record: NodeFacts, path: list[str], value: object) -> None:
    place = record.facts
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value


def skews(records: list[NodeFacts], spec: object = SPEC) -> list[Finding]:
    return [f for f in judge(records, spec, skews=SKEWS) if f.code.startswith("skew/")]  # type: ignore[arg-type]


PORT = ["ib", "devices", "mlx5_ib0", "ports", "1"]
GPU = ["nvidia", "smi", "gpus", "0001:00:00.0"]
ODD: dict[str, Callable[[NodeFacts], None]] = {
    "skew/kernel": lambda r: put(r, ["host", "os", "kernel"], "5.15.0-1101-azure"),
    "skew/os": lambda r: put(r, ["host", "os", "version_id"], "20.04"),
    "skew/python": lambda r: put(r, ["versions", "python"], "3.9.18"),
    "skew/torch": lambda r: put(r, ["versions", "packages", "torch"], ""),
    "skew/gpu-driver": lambda r: put(r, ["nvidia", "driver", "version"], "535.129.03"),
    "skew/cuda": lambda r: put(r, ["versions", "cuda"], "12.8.1"),
    "skew/nccl": lambda r: put(r, ["versions", "packages", "nccl"], "2.26.2"),
    "skew/nccl-system": lambda r: put(r, ["versions", "nccl_system"], "2.26.2"),
    "skew/vbios": lambda r: put(r, [*GPU, "vbios_version"], "96.00.30.00.01"),
    "skew/pcie-width": lambda r: put(r, [*GPU, "pci", "pci_gpu_link_info", "link_widths", "current_link_width"], "8x"),
    "skew/hca-firmware": lambda r: put(r, ["ib", "devices", "mlx5_ib1", "fw_ver"], "28.39.1002"),
    "skew/ofed": lambda r: put(r, ["versions", "ofed"], "MLNX_OFED_LINUX-23.10-0.5.5.0"),
    "skew/rdma-driver": lambda r: put(r, ["versions", "rdma_modules", "mlx5_core"], "23.10-0.5.5"),
    "skew/rdma-core": lambda r: put(r, ["versions", "rdma_core"], "39.0"),
    "skew/environment": lambda r: put(r, ["host", "environment", "NCCL_DEBUG"], "INFO"),
    "skew/nccl-conf": lambda r: r.facts["host"]["nccl_conf"].pop("NCCL_IGNORE_CPU_AFFINITY"),
    "skew/mtu": lambda r: put(r, ["net", "links", "eth0", "mtu"], 9000),
    "skew/pkey": lambda r: put(r, [*PORT, "pkeys", "0"], "0x8002"),
    "skew/subnet-prefix": lambda r: put(r, [*PORT, "gids", "0"], "fec0:0000:0000:0001:0015:5dff:fe33:ff00"),
    "skew/subnet-manager": lambda r: put(r, [*PORT, "sm_lid"], "0x7"),
    "skew/port-rate": lambda r: put(r, [*PORT, "rate"], "200 Gb/sec (2X NDR)"),
    "skew/placement": lambda r: put(r, ["imds", "compute", "placementGroupId"], "pg-2"),
    "skew/interconnect-group": lambda r: put(r, ["imds", "compute", "interconnectGroupId"], "ig-2"),
    "skew/interconnect-subgroup": lambda r: put(r, ["imds", "compute", "interconnectSubgroupId"], "is-2"),
    "skew/slurm-conf": lambda r: put(r, ["slurm", "digest"], "0f5b0d4c1f5e4bd6"),
    "skew/gpu-count": lambda r: r.facts["pci"]["devices"].pop("0001:00:00.0"),
    "skew/port-count": lambda r: r.facts["ib"]["devices"].pop("mlx5_ib1"),
    "skew/cpu-count": lambda r: put(r, ["host", "cpu", "online"], "0-94"),
    "skew/memory": lambda r: put(r, ["host", "memory", "MemTotal"], 1_500_000_000),
}


def test_equal_nodes_have_no_skew() -> None:
    findings = skews(nodes(3))
    assert troubles(findings) == []
    assert {f.code for f in findings} == {s.code for s in SKEWS}


def test_every_skew_has_a_case() -> None:
    assert set(ODD) == {s.code for s in SKEWS}


@pytest.mark.parametrize("code", list(ODD))
def test_the_odd_node_is_named(code: str) -> None:
    records = nodes(4)
    ODD[code](records[2])
    found = [f for f in of(skews(records), code) if f.verdict is not Verdict.PASS]
    assert [f.subject.nodes for f in found] == [("n2",)]
    assert found[0].verdict is next(s.severity for s in SKEWS if s.code == code)
    assert "on 3 nodes" in found[0].message
    assert "n2" in found[0].remedy
    assert found[0].evidence[0].source == "n[0-1,3]"
    assert [f.code for f in skews(records) if f.verdict in (Verdict.FAIL, Verdict.WARN)] == [code]


@pytest.mark.parametrize("code", list(ODD))
def test_a_tie_names_both_sides_and_only_warns_but_where_no_side_reaches_the_other(code: str) -> None:
    records = nodes(4)
    for record in records[2:]:
        ODD[code](record)
    found = [f for f in of(skews(records), code) if f.verdict is not Verdict.PASS]
    apart = code in ("skew/placement", "skew/interconnect-group")
    assert [f.verdict for f in found] == [Verdict.FAIL if apart else Verdict.WARN]
    assert set(found[0].subject.nodes) == {"n0", "n1", "n2", "n3"}
    assert "no value has a majority" in found[0].message
    assert "n[0-1]" in found[0].message
    assert "n[2-3]" in found[0].message


def test_two_kinds_of_odd_are_two_findings() -> None:
    records = nodes(7)
    for index, kernel in ((4, "6.8.0-1"), (5, "6.8.0-1"), (6, "6.5.0-9")):
        put(records[index], ["host", "os", "kernel"], kernel)
    found = [f for f in of(skews(records), "skew/kernel") if f.verdict is Verdict.WARN]
    assert [(f.subject.nodes, f.message) for f in found] == [
        (("n4", "n5"), "kernel is 6.8.0-1, but 5.15.0-1110-azure on 4 nodes"),
        (("n6",), "kernel is 6.5.0-9, but 5.15.0-1110-azure on 4 nodes"),
    ]


def test_a_hole_is_unknown_and_the_others_are_still_compared() -> None:
    records = nodes(5)
    put(
        records[0],
        ["nvidia", "driver", "version"],
        {"unread": "permission denied", "source": "/proc/driver/nvidia/version"},
    )
    put(
        records[1],
        ["nvidia", "driver", "version"],
        {"unread": "permission denied", "source": "/proc/driver/nvidia/version"},
    )
    put(records[4], ["nvidia", "driver", "version"], "535.129.03")
    found = [(f.verdict, f.subject.nodes) for f in of(skews(records), "skew/gpu-driver")]
    assert found == [(Verdict.FAIL, ("n4",)), (Verdict.UNKNOWN, ("n0",)), (Verdict.UNKNOWN, ("n1",))]


def test_numbers_of_the_vm_size_are_not_compared_as_well() -> None:
    records = nodes(3)
    ODD["skew/cpu-count"](records[1])
    with_size = spec_of("Standard_ND96isr_H100_v5", nodes="n[0-9]")
    assert of(skews(records, with_size), "skew/cpu-count") == []
    assert [f.subject.nodes for f in of(judge(records, with_size), "host/cpus") if f.verdict is Verdict.FAIL] == [
        ("n1",)
    ]


def test_pools_are_compared_apart() -> None:
    """An H100 pool and a CPU pool have different everything, and that is right."""
    spec = msgspec.structs.replace(
        SPEC,
        pools=(
            spec_of("other", nodes="n[0-1]").pools[0],
            msgspec.structs.replace(spec_of("other", nodes="n[2-3]").pools[0], name="q"),
        ),
    )
    records = nodes(4)
    for record in records[2:]:
        put(record, ["host", "os", "kernel"], "6.8.0-1")
    assert [f.verdict for f in of(skews(records, spec), "skew/kernel")] == [Verdict.PASS, Verdict.PASS]


def test_one_node_is_compared_with_nobody() -> None:
    assert skews(nodes(1)) == []


def test_variables_that_differ_by_nature() -> None:
    records = nodes(3)
    for index, record in enumerate(records):
        put(record, ["host", "environment", "CUDA_VISIBLE_DEVICES"], str(index))
    assert [f.verdict for f in of(skews(records), "skew/environment")] == [Verdict.PASS]


def test_a_setting_that_names_own_devices_may_have_to_differ() -> None:
    records = nodes(3)
    for index, record in enumerate(records):
        put(record, ["host", "environment", "NCCL_SOCKET_IFNAME"], "eth0" if index else "enp8s0")
        put(record, ["host", "environment", "CUDA_CACHE_PATH"], f"/scratch/n{index}/cuda")
    assert [(f.verdict, f.subject.nodes) for f in of(skews(records), "skew/environment")] == [(Verdict.WARN, ("n0",))]


def test_the_same_gpu_under_two_names() -> None:
    records = nodes(3)
    records[2] = msgspec.structs.replace(records[1], node="n2")
    found = of(judge(records, SPEC), "gpu/shared")
    assert [(f.verdict, f.subject.nodes) for f in found] == [(Verdict.FAIL, ("n1", "n2"))]


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0, Verdict.PASS), (200, Verdict.PASS), (400, Verdict.FAIL), (-86_400, Verdict.FAIL)]
)
def test_a_clock_that_jumped(seconds: int, verdict: Verdict) -> None:
    records = nodes(3)
    records[1] = msgspec.structs.replace(records[1], taken_at_ns=records[1].taken_at_ns + seconds * 10**9)
    found = of(judge(records, SPEC), "host/clock-skew")
    assert [f.verdict for f in found] == [verdict]
    if verdict is Verdict.FAIL:
        assert found[0].subject.nodes == ("n1",)
        assert ("ahead of" if seconds > 0 else "behind") in found[0].message


@pytest.mark.parametrize("ahead", [(1,), (2, 3)], ids=["one of two", "two of four"])
def test_of_clocks_without_a_majority_nobody_is_wrong(ahead: tuple[int, ...]) -> None:
    records = nodes(2 * len(ahead))
    for i in ahead:
        records[i] = msgspec.structs.replace(records[i], taken_at_ns=records[i].taken_at_ns + 3600 * 10**9)
    (found,) = of(judge(records, SPEC), "host/clock-skew")
    assert (found.verdict, found.subject.kind) == (Verdict.FAIL, "cluster")
    assert "3600 s apart, and no majority" in found.message


def test_a_clock_at_zero_is_unknown_and_says_nothing_of_the_other() -> None:
    records = nodes(2)
    records[1] = msgspec.structs.replace(records[1], taken_at_ns=0)
    found = of(judge(records, SPEC), "host/clock-skew")
    assert [(f.verdict, f.subject.nodes) for f in found] == [(Verdict.UNKNOWN, ("n1",))]


def test_a_clock_at_zero_is_unknown() -> None:
    records = nodes(3)
    records[1] = msgspec.structs.replace(records[1], taken_at_ns=0)
    assert [(f.verdict, f.subject.nodes) for f in of(judge(records, SPEC), "host/clock-skew")] == [
        (Verdict.UNKNOWN, ("n1",))
    ]


def test_a_comparison_with_a_bug_is_unknown_and_the_others_go_on() -> None:
    import dataclasses

    def broken(n: object) -> dict[str, str]:
        raise ZeroDivisionError

    table = tuple(dataclasses.replace(s, values=broken) if s.code == "skew/kernel" else s for s in SKEWS)
    findings = judge(nodes(2), SPEC, skews=table)
    assert [(f.verdict, f.subject.nodes) for f in of(findings, "skew/kernel")] == [
        (Verdict.UNKNOWN, ("n0",)),
        (Verdict.UNKNOWN, ("n1",)),
    ]
    assert "broken has a bug: ZeroDivisionError" in of(findings, "skew/kernel")[0].message
    assert of(findings, "skew/os")[0].verdict is Verdict.PASS
