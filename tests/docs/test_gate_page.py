"""The page about real clusters: every test it names is there, every row names one, and its numbers are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.checks.messages import xids
from fairlead.launch.patience import Patience
from fairlead.preflight.nodes import patience as nodes
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.schedule import log_degree
from fairlead.preflight.ranks.limits import numbers, reduce_limit
from fairlead.preflight.ranks.onnode import device, perftest, rails, rank
from fairlead.preflight.table import Preflight
from fairlead.probe.readers.nvidia import SMI_LIMIT_S
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import size

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/explain/gate-on-real-clusters.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_it_is_there(file, name):
    assert (ROOT / file).is_file()
    assert not name or f"def {name}(" in (ROOT / file).read_text()


def test_every_row_names_a_test():
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and set(line) - set("|-")]
    rows = [row for row in rows if not row.startswith(("| step |", "| cluster |"))]
    assert len(rows) > 25
    assert [row for row in rows if "tests/" not in row] == []


H200, GB300, MI300X = (
    size(f"Standard_{name}") for name in ("ND96isr_H200_v5", "ND128isr_GB300_v6", "ND96isr_MI300X_v5")
)
RANKS, CONTAINED = Patience(ranks=128), Patience(ranks=0, in_container=True)
NODES, NUM = nodes.rows(), numbers()
H2D, GEMM = (H200.expected[name].fail_below for name in ("gpu_h2d_gbs", "gpu_gemm_tflops"))


def busbw(of, num_nodes, *, over_nvlink=False):
    return reduce_limit(of, nodes=num_nodes, message_bytes=16 << 30, over_nvlink=over_nvlink)


def percent(name):
    return f"{NUM[name].value:.0%}".replace("%", " %")


SAID = {
    "nodes": f"{H200.gpus} GPUs, {H200.hca_ports} InfiniBand ports at {H200.hca_rates_gbps[0]:g} Gb/s, "
    f"{H200.nvlinks_per_gpu} NVLinks a GPU",
    "limit": f"`node_limit_s` ({Preflight().node_limit_s:g} s) at most",
    "reached": f"reached no more than {NODES['probe_reach_s'].in_slurm:g} s after the quickest, as srun may wait "
    f"({NODES['probe_reach_s'].value:g} s by ssh)",
    "silent": f"no sign of life for {NODES['probe_silent_s'].value:g} s",
    "probe": f"{NODES['probe_s'].value:g} s more than the quickest probe, as nvidia-smi may take {SMI_LIMIT_S:g} s",
    "loss": f"from {DEFAULT.loss:.2%} of 8,008".replace("%", " %"),
    "sample": f"hears {DEFAULT.sample:,} small packets",
    "start": f"{RANKS['start']:.0f} s for the first word ({CONTAINED['start']:.0f} s and more in a container), "
    f"import {RANKS['import']:.0f} s, meeting {RANKS['rendezvous']:.0f} s, NCCL's start {RANKS['join']:.0f} s",
    "pending": f"{RANKS['pending']:.0f} s (`pending_s` in [launch])",
    "products": f"{percent('gpu_matmul_warn_share')} / {percent('gpu_matmul_fail_share')} (products) and "
    f"{percent('gpu_copy_warn_share')} / {percent('gpu_copy_fail_share')} (copies)",
    "deviations": f"{NUM['outlier_mads'].value:g} deviations away",
    "floor": f"{percent('size_floor_share')} of the VM size's least: of {H2D:g} GB/s for copies to and from the host, "
    f"of {GEMM:g} Tflop/s",
    "card": f"{device.CARD_S:g} s, the all-reduce on top",
    "node sum": f"an all-reduce of {device.GPU_NODE >> 20} MiB within the node",
    "rails": f"up to {rails.MOST_BYTES >> 20} MiB",
    "dead": f"nothing after {rails.DEAD_S:g} s ({2 * rails.DEAD_S:g} s on CPUs",
    "shifts": f"{len(log_degree(16))} shifts; no new one after {rails.RAILS_S:g} s, no repetition after "
    f"{2 * rails.RAILS_S:g} s",
    "perftest": f"{percent('perftest_share')} of the port",
    "perftest time": f"a program {perftest.READY_S + perftest.RUN_S:g} s at most",
    "between": f"between nodes {busbw(H200, 16).warn_below:g} / {busbw(H200, 16).fail_below:g} GB/s from 16 GiB on",
    "within": f"within one node {busbw(H200, 1).fail_below:g} GB/s from 16 GiB on",
    "turns": f"up to {rank.WARMUPS} warm-ups and {rank.TURNS} timed iterations",
    "rack": f"within a rack {busbw(GB300, 18, over_nvlink=True).warn_below:g} / "
    f"{busbw(GB300, 18, over_nvlink=True).fail_below:g} GB/s, by InfiniBand {busbw(GB300, 16).warn_below:g} / "
    f"{busbw(GB300, 16).fail_below:g} GB/s",
    "gb300": f"{GB300.gpus} GPUs, {GB300.hca_ports} InfiniBand functions without an interface, "
    f"{GB300.nvlinks_per_gpu} NVLinks a GPU",
    "mi300x": f"within a node {busbw(MI300X, 1).fail_below:g} GB/s from 16 GiB on",
}


@pytest.mark.parametrize("what", SAID)
def test_its_numbers_are_the_codes(what):
    assert SAID[what] in TEXT


def test_what_it_says_of_xids_and_of_what_nobody_knows():
    row = next(line for line in TEXT.splitlines() if "Xids in the kernel's log" in line)
    warn, well = (
        {int(n) for n in re.findall(r"\d+", re.search(words, row)[1])}
        for words in (r"support fails; (.*?) warn", r"warn; (.*?) are the application's")
    )
    old = {number: x.verdict for number, x in xids().items() if number < 109}
    assert warn == {n for n, verdict in old.items() if verdict is Verdict.WARN}
    assert well == {n for n, verdict in old.items() if verdict is Verdict.PASS}
    assert busbw(MI300X, 16) is None
    assert "between nodes no source has a number" in TEXT
