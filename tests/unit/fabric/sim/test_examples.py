"""The examples: each can be read and would fit, and the published experiments come out as published."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fairlead.fabric import sim
from fairlead.fabric.sim.setup import prepare

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "examples" / "fabric").glob("*.toml"))


@pytest.fixture(scope="module")
def paper():
    spec = importlib.util.spec_from_file_location("fabric_paper", ROOT / "bench" / "fabric_paper.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_there_is_an_example_of_every_published_experiment():
    assert {path.stem for path in EXAMPLES} >= {
        "t0-down", "t1-down", "nic-links-flap", "t0-t1-links", "ev-loss", "loss-0.1-percent", "loss-1-percent",
        "incast-victim", "incast-victim-dcqcn", "incast-victim-pfc", "all-reduce-64", "all-reduce-64-roce",
        "all-to-all-64", "all-to-all-64-roce", "send-recv-42k",
    }  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_reads_and_fits(path):
    scenario = sim.load(path)
    assert scenario.title
    assert sum(prepare(scenario, path.parent).estimate.values()) < 12 * 2**30


@pytest.mark.parametrize("experiments", ["switches", "links", "incast"])
def test_experiments_end_as_published(paper, experiments):
    for row in getattr(paper, experiments)():
        assert row.holds, row


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("experiments", ["loss", "collectives"])
def test_larger_experiments_end_as_published(paper, experiments):
    # 16 QPs of RoCE are not behind one in an all-to-all here, but level with MRC: docs/benchmarks/fabric-paper.md
    missed = [row for row in getattr(paper, experiments)() if not row.holds]
    assert [row.experiment for row in missed] == (
        ["64-way all-to-all, 1 MB a pair: MRC, 1 QP", "64-way all-to-all, 1 MB a pair: RoCE, 16 QPs"]
        if experiments == "collectives"
        else []
    )
