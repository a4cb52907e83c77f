"""Loss of three packets in a thousand at one port of a live lab; a healthy lab is in test_gate.py."""

from __future__ import annotations

import subprocess

import pytest

from fairlead.records.verdict import Verdict
from support.gating import without_ranks
from support.injector import FAIRLEAD
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm")]


def test_a_port_that_loses_3_packets_in_1000_outward_is_named_and_nobody_else():
    with world(hosts=4, gpus=1, planes=2) as lab:
        words = ["loss", "p1/n2", "percent=0.3", "side=up"]
        subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, *words], capture_output=True, check=True)
        report = without_ranks(lab)
    fails = [f for f in report.findings if f.verdict is Verdict.FAIL]
    assert [(f.code, str(f.subject), f.data["way"]) for f in fails] == [("preflight/packet-loss", "n2 plane 1", "out")]
    assert fails[0].data["loss_ratio"] == pytest.approx(0.003, rel=0.5)
