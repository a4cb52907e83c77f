"""What a VM size reaches: the row that holds for so many nodes and such a message, and what no number judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import SpecError
from fairlead.spec.contract import contract_of
from fairlead.spec.limits import COMPARED, least_message, limit_for, not_judged
from fairlead.spec.loader import read
from fairlead.spec.reference import vm_sizes
from fairlead.spec.vmsize import EXPECTED, VmSize, size, sizes

GIB, MIB = 1 << 30, 1 << 20
H100, H200 = "Standard_ND96isr_H100_v5", "Standard_ND96isr_H200_v5"

FILE = """
schema = 1
[[pool]]
name = "h"
size = "Standard_ND96isr_H100_v5"
nodes = "h[0-31]"
[fabric]
link = "infiniband"
rdma = "ib"
[access]
via = "ssh"
"""


@pytest.mark.parametrize(
    ("name", "nodes", "message_bytes", "fail_below", "typical"),
    [
        ("node_allreduce_busbw_gbs", 1, 16 * GIB, 460, None),
        ("node_allreduce_busbw_gbs", 1, 64 * GIB, 460, None),
        ("node_allreduce_busbw_gbs", 1, 8 * GIB, None, 478.9),
        ("node_allreduce_busbw_gbs", 1, 200 * MIB, None, 400.6),
        ("node_allreduce_busbw_gbs", 1, 64 * MIB, None, 361.8),
        ("job_allreduce_busbw_gbs", 2, 16 * GIB, 300, 450),
        ("job_allreduce_busbw_gbs", 512, 16 * GIB, 300, 450),
    ],
)
def test_the_row_that_holds(
    name: str, nodes: int, message_bytes: int, fail_below: float | None, typical: float | None
) -> None:
    found = limit_for(H100, name, nodes=nodes, message_bytes=message_bytes)
    assert found is not None
    assert (found.fail_below, found.typical, found.unit) == (fail_below, typical, "GB/s")
    assert found.value == (400 if fail_below is None and found.warn_below else fail_below)
    assert found.source
    assert H100 in found.holds_for


@pytest.mark.parametrize(
    ("name", "nodes", "message_bytes"),
    [
        ("job_allreduce_busbw_gbs", 16, 1 * GIB),  # a limit for 16 GiB says nothing of a smaller message
        ("job_allreduce_busbw_gbs", 1, 16 * GIB),
        ("node_allreduce_busbw_gbs", 2, 16 * GIB),
        ("node_allreduce_busbw_gbs", 1, 8),
        ("hca_pair_gbps", 2, 0),
    ],
)
def test_where_no_number_holds_nothing_is_judged(name: str, nodes: int, message_bytes: int) -> None:
    assert limit_for(H100, name, nodes=nodes, message_bytes=message_bytes) is None


def test_a_size_keeps_what_it_does_not_say_itself() -> None:
    """H200 names its own limit within a node; that between nodes is H100's, which has the same HCAs, and says so."""
    own, taken = (
        limit_for(H200, name, nodes=nodes, message_bytes=16 * GIB)
        for name, nodes in (("node_allreduce_busbw_gbs", 1), ("job_allreduce_busbw_gbs", 8))
    )
    assert own is not None
    assert taken is not None
    assert (own.fail_below, taken.fail_below, taken.warn_below) == (431, 300, 400)
    assert f"found on {H100}" in taken.source
    assert "found on" not in own.source


def test_two_nodes_of_a100_are_not_twenty() -> None:
    a100 = "Standard_ND96asr_v4"
    assert limit_for(a100, "job_allreduce_busbw_gbs", nodes=2, message_bytes=16 * GIB) is not None
    assert limit_for(a100, "job_allreduce_busbw_gbs", nodes=20, message_bytes=16 * GIB) is None


def test_each_gpu_has_numbers_both_ways() -> None:
    found = {
        name: limit_for(H100, name) for name in ("gpu_h2d_gbs", "gpu_d2h_gbs", "gpu_gemm_tflops", "gpu_memory_gbs")
    }
    assert {name: (at.value, at.typical) for name, at in found.items() if at} == {
        "gpu_h2d_gbs": (48, 51),
        "gpu_d2h_gbs": (48, 52),
        "gpu_gemm_tflops": (715, 769),
        "gpu_memory_gbs": (None, 2970),
    }


def test_the_smallest_message_that_is_judged() -> None:
    assert least_message(H100, "node_allreduce_busbw_gbs") == 16 * GIB
    assert least_message("Standard_ND96asr_v4", "node_allreduce_busbw_gbs") == 8 * GIB
    assert least_message("Standard_ND128isr_NDR_GB200_v6", "node_allreduce_busbw_gbs") is None
    assert least_message("other", "node_allreduce_busbw_gbs") is None


# ---- the cluster file ----------------------------------------------------------------------------------------------


def contract(tmp_path: Path, more: str) -> VmSize:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE + more)
    spec = read(path, environ={}).spec
    return contract_of(spec, spec.pools[0])


def test_a_site_says_what_holds_for_which_jobs(tmp_path: Path) -> None:
    found = contract(
        tmp_path,
        """
[[expect]]
fact = "job_allreduce_busbw_gbs"
value = 380
why = "measured in May"
max_nodes = 16
message_bytes = 1_073_741_824
[[expect]]
fact = "job_allreduce_busbw_gbs"
value = 340
why = "measured in May, over two islands"
min_nodes = 17
""",
    )
    small = limit_for(found, "job_allreduce_busbw_gbs", nodes=16, message_bytes=1 * GIB)
    large = limit_for(found, "job_allreduce_busbw_gbs", nodes=32, message_bytes=16 * GIB)
    assert small is not None
    assert large is not None
    assert (small.fail_below, small.source) == (380, "the cluster file: measured in May")
    assert (large.fail_below, large.warn_below) == (340, None)
    # a number without a message size holds for the messages that the table's number held for
    assert limit_for(found, "job_allreduce_busbw_gbs", nodes=32, message_bytes=1 * GIB) is None


@pytest.mark.parametrize(
    "more",
    [
        '[[expect]]\nfact = "memlock_gib"\nvalue = 1\nwhy = "x"\nmessage_bytes = 8\n',
        '[[expect]]\nfact = "gpus"\nvalue = 8\nwhy = "x"\nmin_nodes = 2\n',
        '[[expect]]\nfact = "job_allreduce_busbw_gbs"\nvalue = 1\nwhy = "x"\nmin_nodes = 9\nmax_nodes = 2\n',
    ],
)
def test_what_cannot_hold_for_jobs_is_refused(tmp_path: Path, more: str) -> None:
    with pytest.raises(SpecError) as caught:
        contract(tmp_path, more)
    assert {p.code for p in caught.value.problems} == {"spec/expect-holds"}


def test_what_a_lab_host_lacks_is_said_by_its_contract(tmp_path: Path) -> None:
    """The lab's hosts lock no memory: a number of their own, which rules compare as they do anybody's."""
    path = tmp_path / "cluster.toml"
    path.write_text('schema = 1\n[access]\nvia = "lab"\n')
    spec = read(path, environ={}).spec
    found = contract_of(spec, spec.pools[0])
    assert (found.memlock_gib, found.shm_gib, found.nvlinks_per_gpu) == (0, 0, 0)
    source = found.source("memlock_gib")
    assert source is not None
    assert "lab hosts" in source.where


# ---- what is not judged --------------------------------------------------------------------------------------------


def test_what_has_no_number_is_listed() -> None:
    whole, gb300, hb = (size(name) for name in (H100, "Standard_ND128isr_GB300_v6", "Standard_HB176rs_v4"))
    assert whole is not None
    assert gb300 is not None
    assert hb is not None
    assert "hca_pair_gbps" in not_judged(whole)
    assert "node_allreduce_busbw_gbs" not in not_judged(whole)
    assert "gpu_memory_gbs" in not_judged(whole)  # what is usual is known, and no limit
    assert {"node_allreduce_busbw_gbs", "gpu_h2d_gbs"} <= set(not_judged(gb300))
    assert not [name for name in not_judged(hb) if name.startswith(("gpu", "node_", "rack_"))]


def test_the_page_lists_it_for_every_size() -> None:
    page = vm_sizes().partition("## What is not judged for lack of a number")[2].partition("\n## ")[0]
    for found in sizes().values():
        if found.family != "none":
            row = next(line for line in page.split("\n") if f"`{found.name}`" in line)
            assert [name for name in (*COMPARED, *EXPECTED) if f"`{name}`" in row] == not_judged(found)


def test_what_checks_compare_is_what_may_lack_a_number() -> None:
    from fairlead.checks import CATALOG

    assert {fact for check in CATALOG for fact in check.needs} <= set(COMPARED)
