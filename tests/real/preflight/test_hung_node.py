"""A node that hangs as a whole is known by its silence; one whose nvidia-smi is slow is waited for. On a live lab.

How long that takes is decided in nodes/patience.py, and tested there by a clock of the test's own: here the reason that
is said shows that it was that, and not the longest time a node has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import connect
from fairlead.lab.faults.apply import inject
from fairlead.preflight import gate
from fairlead.preflight.evidence import Evidence
from fairlead.records.verdict import Verdict
from fairlead.spec import load
from support.injector import World
from support.processes import until
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


def looked_at(lab: World) -> Evidence:
    """What the gate sees of the nodes."""
    spec = load(lab.file)
    with connect(spec) as cluster:
        seen = Evidence(spec, NodeSet(lab.nodes))
        gate._Stages(cluster, seen, None, lambda _: None).look_at_nodes(lambda *_: None)
    return seen


def freeze_while_it_is_probed(lab: World) -> None:
    """Once the probe waits for nvidia-smi there."""
    if until(lambda: lab.sh("n2", "pidof sleep || true")):
        inject(lab.name, "node-hung", "n2", {})


def named(seen: Evidence) -> list[tuple[str, str, Verdict]]:
    return [(f.code, str(f.subject), f.verdict) for f in seen.silent]


def test_a_node_that_hung_before_is_not_reached_while_others_are(lab):
    inject(lab.name, "node-hung", "n2", {})
    seen = looked_at(lab)
    assert named(seen) == [("probe/no-answer", "n2", Verdict.FAIL)]
    assert "not reached" in seen.silent[0].message


def test_a_node_that_hangs_while_it_is_probed_gives_no_sign_of_life(lab):
    lab.sh("n2", SLOW.format(s=40))
    freeze = threading.Thread(target=freeze_while_it_is_probed, args=(lab,))
    freeze.start()
    try:
        seen = looked_at(lab)
    finally:
        freeze.join()
        lab.heal()
        lab.sh("n2", USUAL)
    assert named(seen) == [("probe/no-answer", "n2", Verdict.FAIL)]
    assert "no sign of life" in seen.silent[0].message


def test_a_node_whose_nvidia_smi_takes_ten_seconds_is_waited_for(lab):
    lab.sh("n2", SLOW.format(s=10))
    try:
        began = time.monotonic()
        seen = looked_at(lab)
        took_s = time.monotonic() - began
    finally:
        lab.sh("n2", USUAL)
    assert named(seen) == []
    assert [record.node for record in seen.facts] == lab.nodes
    assert took_s > 10.0
