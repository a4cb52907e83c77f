"""The rail test by itself on a live lab, without the pair phase before it: a slow port is named by ranks alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import connect
from fairlead.preflight import gate
from fairlead.preflight.evidence import Evidence, book_from
from fairlead.preflight.pairs.paths import paths_of
from fairlead.records.verdict import Verdict
from fairlead.spec import load
from support.injector import FAIRLEAD, World
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "torch")]


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts with two ranks each on two planes: each rank's rail is a plane."""
    with world(gpus=2, planes=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _healed(lab) -> Iterator[None]:
    yield
    lab.heal()
    lab.calm()


def ranks_alone(lab: World, more: str = "", nodes: str = "n[0-3]") -> Evidence:
    """Probe, then ranks. That equal rails pass is seen where all is well: test_bringup.py."""
    file = lab.file.with_name("alone.toml")
    file.write_text(lab.file.read_text() + more)
    spec = load(file)
    with connect(spec) as cluster:
        seen = Evidence(spec, NodeSet(nodes))
        stages = gate._Stages(cluster, seen, None, lambda _: None)
        stages.look_at_nodes(lambda *_: None)
        seen.book = book_from(seen)
        seen.paths = paths_of(seen.book)
        stages.run_ranks(seen.nodes)
    return seen


def judged(seen: Evidence):
    return {f.code: f for f in seen.rank_findings() if f.verdict is not Verdict.SKIP}


def test_a_rail_at_a_twentieth_of_its_rate_is_found_and_named(lab):
    rate = f"mbps={lab.rate_mbps / 20:g}"
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, "rate", "p1/n2", rate], check=True, capture_output=True)
    seen = ranks_alone(lab)
    found = judged(seen)["preflight/slow-rail"]
    assert (found.verdict, str(found.subject)) == (Verdict.FAIL, "n2 rail 1 (eth2)"), seen.ranks.lines
    assert sum(f.verdict is Verdict.FAIL for f in judged(seen).values()) == 1


def test_where_gpus_are_asked_for_and_torch_has_no_cuda_nothing_passes(lab):
    """The lab's torch is built for CPUs: what gloo would have done does not count, and no node is to blame."""
    found = judged(ranks_alone(lab, '[preflight]\nranks_on = "gpus"\n', "n[1-2]"))
    assert list(found) == ["preflight/no-gpu"]
    assert (found["preflight/no-gpu"].verdict, found["preflight/no-gpu"].subject.nodes) == (Verdict.FAIL, ())
    assert "built without CUDA" in found["preflight/no-gpu"].message
