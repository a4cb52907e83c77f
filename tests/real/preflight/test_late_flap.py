"""A port whose link goes away only after the pairs were tested: the last look at its counters names it."""

from __future__ import annotations

import subprocess

import pytest

from fairlead.cluster import connect
from fairlead.preflight.gate import run
from fairlead.records.verdict import Verdict
from fairlead.spec.loader import load
from support.injector import FAIRLEAD
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "torch", "slurm")]


def test_a_link_that_goes_and_comes_behind_the_pair_phase_is_named():
    with world(hosts=4, gpus=1, planes=2) as lab:

        def flap_before_ranks(text: str) -> None:
            if text.startswith("ranks"):
                for words in (["link-down", "p1/n1"], ["--heal", "all"]):
                    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, *words], capture_output=True, check=True)

        spec = load(lab.file)
        with connect(spec) as cluster:
            report = run(cluster, spec, note=flap_before_ranks)
    fails = [(f.code, str(f.subject)) for f in report.findings if f.verdict is Verdict.FAIL]
    assert fails == [("preflight/port-flap", "n1 plane 1")]
    assert report.pairs is not None
    assert min(report.pairs.watched_s.values()) > report.took_s["pairs"]
