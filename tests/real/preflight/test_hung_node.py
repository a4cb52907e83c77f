"""A node that hangs as a whole is known within seconds; one whose nvidia-smi is slow is waited for. On a live lab."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import connect
from fairlead.lab.faults.apply import inject
from fairlead.preflight import gate
from fairlead.records.verdict import Verdict
from fairlead.spec import load
from support.injector import World
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf")]

SLOW = "p=$(command -v nvidia-smi); cp $p $p.usual; printf '#!/bin/sh\nsleep %s\nexec %s.usual \"$@\"\n' {s} $p >$p"
USUAL = "p=$(command -v nvidia-smi); mv $p.usual $p"


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts with a GPU each; nobody runs ranks."""
    with world(gpus=1, planes=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _healed(lab) -> Iterator[None]:
    yield
    lab.heal()


def looked_at(lab: World, freeze_after_s: float | None = None) -> tuple[gate.Evidence, float]:
    """What the gate sees of the nodes, and how long it looks; n2 may freeze meanwhile."""
    spec = load(lab.file)
    freeze = threading.Timer(freeze_after_s or 0.0, lambda: inject(lab.name, "node-hung", "n2", {}))
    with connect(spec) as cluster:
        seen = gate.Evidence(spec, NodeSet(lab.nodes))
        if freeze_after_s is not None:
            freeze.start()
        began = time.monotonic()
        gate._Stages(cluster, seen, None, lambda _: None).look_at_nodes(lambda *_: None)
        took_s = time.monotonic() - began
    if freeze_after_s is not None:
        freeze.join()
    return seen, took_s


def named(seen: gate.Evidence) -> list[tuple[str, str, Verdict]]:
    return [(f.code, str(f.subject), f.verdict) for f in seen.silent]


def test_a_node_that_hung_before_is_found_in_eight_seconds(lab):
    inject(lab.name, "node-hung", "n2", {})
    seen, took_s = looked_at(lab)
    assert named(seen) == [("probe/no-answer", "n2", Verdict.FAIL)]
    assert "not reached" in seen.silent[0].message
    assert took_s <= 8.0 + slowest(seen), took_s


def test_a_node_that_hangs_while_it_is_probed_is_found_in_eight_seconds(lab):
    lab.sh("n2", SLOW.format(s=10))
    try:
        seen, took_s = looked_at(lab, freeze_after_s=2.0)
    finally:
        lab.heal()
        lab.sh("n2", USUAL)
    assert named(seen) == [("probe/no-answer", "n2", Verdict.FAIL)]
    assert "no sign of life" in seen.silent[0].message
    assert took_s <= 2.0 + 8.0 + slowest(seen), took_s


def test_a_node_whose_nvidia_smi_takes_ten_seconds_is_waited_for(lab):
    lab.sh("n2", SLOW.format(s=10))
    try:
        seen, took_s = looked_at(lab)
    finally:
        lab.sh("n2", USUAL)
    assert named(seen) == []
    assert [record.node for record in seen.facts] == lab.nodes
    assert took_s > 10.0


def slowest(seen: gate.Evidence) -> float:
    """On a busy machine healthy nodes take their time, too, and the others' time follows theirs."""
    return max(max(record.took_ms.values()) for record in seen.facts) / 1000
