"""Some faults of the matrix on a live lab: preflight names the culprit first, and nobody else. The whole is slow."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from support.injector import KINDS, World
from support.scorer import Trial
from support.trials import draw, trial, world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm")]

SEED = 4


@pytest.fixture(scope="module")
def small() -> Iterator[World]:
    """Four hosts with a GPU each on two planes, and a Slurm."""
    with world(gpus=1, planes=2) as made:
        yield made


@pytest.fixture(scope="module")
def whole() -> Iterator[World]:
    """The default lab."""
    with world() as made:
        yield made


def run(lab: World, *names: str) -> Trial:
    """A trial; again if, on a busy machine, the collective was over before its rank could be killed."""
    for _ in range(3):
        drawn = draw(lab, [KINDS[name] for name in names], random.Random(f"{SEED} {names}"))
        found = trial(lab, drawn, suite="test", name=" + ".join(names), seed=SEED)
        if all(t.was_done for t in found.truths):
            break
    return found


def is_named(found: Trial) -> bool:
    """Everything but the time, which is for the benchmark: here other tests may run beside it."""
    return found.verdict == "fail" and all(found.named) and found.is_first and not found.accused


@pytest.mark.parametrize(
    "names",
    [("rank hung inside",), ("MTU black hole", "version skew"), ("node dead",)],
    ids=" + ".join,
)
def test_the_culprit_is_named_first_and_nobody_else(small, names):
    found = run(small, *names)
    assert is_named(found), found


def test_a_rank_that_is_killed_leaves_nothing_in_slurm(small):
    """The step's other ranks hold the nodes for as long as nobody ends them; the next preflight would wait for them."""
    found = run(small, "rank killed before")
    assert is_named(found), found
    assert small.sh("head", "squeue -h") == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_fault(whole, name):
    found = run(whole, name)
    assert is_named(found), found


@pytest.mark.slow
def test_a_healthy_lab_passes(whole):
    found = run(whole)
    assert (found.verdict, found.first) == ("pass", "")
