# ruff: noqa: E501 - one line a node, as scontrol prints it
"""What scontrol and sinfo print of nodes on published clusters: states, GRES and reasons, from the text to the verdict.

Written from SchedMD/slurm (src/api/node_info.c, slurm_sprint_node_table(); src/common/slurm_protocol_defs.c,
node_state_string(); src/slurmctld/node_mgr.c and read_config.c, the reasons; doc/man/man1/{sinfo,scontrol}.1, man5/gres.conf.5),
states of cloud nodes from aws/aws-parallelcluster-node pull request 350 and its tests, aws-parallelcluster issue 7577,
Azure/cyclecloud-slurm issues 51 and 230; reasons of LBNL Node Health Check (mej/nhc, README).
"""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.scheduler import judge_nodes
from fairlead.preflight.slurm.reason import bare, set_at, set_by
from fairlead.preflight.slurm.scheduler import judge_scheduler, parse
from fairlead.records.verdict import Verdict
from support.slurm_lines import VERSIONS, line

FAIL = [("preflight/node-state", Verdict.FAIL)]
GRES = [("preflight/gres", Verdict.FAIL)]

CLOUD = (
    "NodeName=ccw-gpu-7 Arch=x86_64 CoresPerSocket=96 CPUAlloc=0 CPUEfctv=94 CPUTot=96 CPULoad=0.31 AvailableFeatures=cloud "
    "ActiveFeatures=cloud Gres={gres} NodeAddr=10.1.0.9 NodeHostName=ccw-gpu-7 Version=24.05.4 "
    "OS=Linux 5.15.0-1087-azure #96~20.04.1-Ubuntu SMP Wed Mar 26 14:01:09 UTC 2025 RealMemory=1795850 AllocMem=0 FreeMem=1853211 "
    "Sockets=1 Boards=1 CoreSpecCount=2 CPUSpecList=94-95 MemSpecLimit=2048 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions=gpu,all BootTime=2026-11-01T08:00:00 SlurmdStartTime=2026-11-01T08:01:00 "
    "LastBusyTime=2026-11-19T21:15:03 ResumeAfterTime=None CfgTRES=cpu=94,mem=1795850M,billing=94,gres/gpu=8 AllocTRES= "
    "CurrentWatts=0 AveWatts=0 {rest}"
)


def cloud(state: str, *, gres: str = "gpu:8(S:0)", rest: str = "") -> list[tuple[str, Verdict]]:
    nodes = parse(CLOUD.format(state=state, gres=gres, rest=rest))
    assert list(nodes) == ["ccw-gpu-7"]
    return [(f.code, f.verdict) for f in judge_scheduler(nodes, ["ccw-gpu-7"], {"ccw-gpu-7": 8})]


# ---- states ----------------------------------------------------------------------------------------------------------

STATES: list[tuple[str, list[tuple[str, Verdict]]]] = [
    ("IDLE+CLOUD", []),
    ("MIXED+CLOUD+PLANNED", []),
    ("ALLOCATED+CLOUD+COMPLETING", []),
    ("IDLE+CLOUD+RESERVED", []),
    ("MIXED+CLOUD+MAINTENANCE+RESERVED", []),
    # Slurm gives a node that it starts work, and says that it does not respond until slurmd does
    ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", []),
    ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", []),
    ("ALLOCATED#+CLOUD", []),
    ("IDLE+DYNAMIC_NORM+CLOUD", []),
    ("IDLE+CLOUD+POWERED_DOWN", FAIL),
    ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", FAIL),
    ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", FAIL),
    ("DOWN*+CLOUD+POWER", FAIL),
    ("IDLE+CLOUD+POWERING_DOWN", FAIL),
    ("DOWN+CLOUD+NOT_RESPONDING+POWERING_UP", FAIL),
    ("IDLE+CLOUD+DRAIN", FAIL),
    ("MIXED+CLOUD+DRAIN+REBOOT_ISSUED", FAIL),
    ("IDLE+DRAIN+DYNAMIC_NORM+CLOUD+RESERVED", FAIL),
    ("DOWN+CLOUD+DRAIN+INVALID_REG", FAIL),
    ("COMPLETING+DRAIN", FAIL),
]


@pytest.mark.parametrize(("state", "label"), STATES)
def test_states_of_cloud_nodes(state: str, label: list[tuple[str, Verdict]]) -> None:
    assert cloud(state) == label


def test_sinfo_marks_of_the_same_states() -> None:
    """`mixed#` is what `%T` prints of MIXED+CLOUD+NOT_RESPONDING+POWERING_UP; `-` is planned."""
    said = "c1|mixed#|none\nc2|idle-|none\nc3|allocated|none\nc4|mixed$|none\nc5|down#|ResumeTimeout reached\nc6|draining|fan\nc7|mixed*|Not responding\nc8|inval|gres/gpu count reported lower than configured (7 < 8)\nc9|idle@|reboot ASAP"
    assert set(judge_nodes(NodeSet("c[1-9]"), said, in_job=False)) == {"c5", "c6", "c7", "c8"}


# ---- generic resources (gres.conf.5: name, type, count, sockets) --------------------------------------------------------


@pytest.mark.parametrize(
    ("gres", "label"),
    [
        ("gpu:8(S:0-1)", []),
        ("gpu:h100:8(S:0-1)", []),
        ("gpu:nvidia_h100_80gb_hbm3:8(S:0-1)", []),
        ("gpu:h100:4(S:0),gpu:h100:4(S:1)", []),
        ("gpu:h100:8(S:0-1),nvme:8,shard:h100:32(S:0-1)", []),
        ("gpu:h100:8,mps:h100:800(S:0-1)", []),
        ("craynetwork:4,gpu:a100:8(S:0-3)", []),
        ("(null)", []),
        ("gpu:h100:7(S:0-1)", GRES),
        ("gpu:h100:4(S:0)", GRES),
        ("shard:h100:32(S:0-1),gpu:h100:6(S:0-1)", GRES),
    ],
)
def test_gpus_that_slurm_knows_of(gres: str, label: list[tuple[str, Verdict]]) -> None:
    assert cloud("IDLE+CLOUD", gres=gres) == label


# ---- reasons ---------------------------------------------------------------------------------------------------------

REASONS = [
    "Not responding",
    "Kill task failed",
    "Epilog error",
    "Low RealMemory (reported:1031000 < 100.00% of configured:1031523)",
    "gres/gpu count reported lower than configured (7 < 8)",
    "NHC: check_hw_ib:  No IB port mlx5_0:1 is ACTIVE (LinkUp 400 Gb/sec).",
    "State=drained by ops; was Reason=none, Comment=(null)",
    "NodeName=n8 State=IDLE Gres=gpu:h100:8",
    "ResumeTimeout reached",
    "(Code:InsufficientInstanceCapacity)Failure when resuming nodes",
    "fan 7 [rack 12] replaced; asked for a part [RMA 4711]",
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reason", REASONS)
def test_whatever_a_reason_holds_it_is_the_reason(version: str, reason: str) -> None:
    found = parse(line(version, "DOWN", reason=reason, comment="spare Gres=none State=IDLE"))
    assert list(found) == ["n7"]
    node = found["n7"]
    assert (node.states, node.gpus) == (("DOWN",), 8)
    assert (bare(node.reason), set_by(node.reason), set_at(node.reason)) == (reason, "root", "2026-11-20T10:00:00")
    (told,) = judge_scheduler(found, ["n7"], {"n7": 8})
    assert (told.code, told.verdict) == FAIL[0]
    assert reason[:40] in told.message


@pytest.mark.parametrize(
    "rest", ["Comment=spare, was State=DOWN", "Extra=State=DOWN,Reason=x", "Comment=Gres=gpu:7 Reason=see State=DRAIN"]
)
def test_free_words_of_a_good_node_make_it_no_bad_one(rest: str) -> None:
    assert cloud("IDLE+CLOUD", rest=rest) == []
