"""A port whose link goes away only after the pairs were tested: the last look at its counters names it."""

from __future__ import annotations

import subprocess

import pytest

from fairlead.preflight.evidence import Evidence
from fairlead.records.verdict import Verdict
from support.gating import without_ranks
from support.injector import FAIRLEAD
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "slurm")]


def test_a_link_that_goes_and_comes_behind_the_pair_phase_is_named():
    with world(hosts=4, gpus=1, planes=2) as lab:
        told: list[dict[int, float]] = []

        def flap(seen: Evidence) -> None:
            assert seen.pairs is not None
            told.append(dict(seen.pairs.watched_s))
            for words in (["link-down", "p1/n1"], ["--heal", "all"]):
                subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, *words], capture_output=True, check=True)

        report = without_ranks(lab, flap)
    fails = [(f.code, str(f.subject)) for f in report.findings if f.verdict is Verdict.FAIL]
    assert fails == [("preflight/port-flap", "n1 plane 1")]
    assert report.pairs is not None
    assert min(report.pairs.watched_s.values()) > max(told[0].values())
