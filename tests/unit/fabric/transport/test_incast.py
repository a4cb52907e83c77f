"""Several hosts write to one over shaped links that mark nothing: equal shares, full planes, nothing sent in vain."""

from __future__ import annotations

import pytest

from support.transport_links import PAYLOAD, Flows, counted, jain

SETTLING_NS, LONG_NS = 300_000_000, 600_000_000
MOST_RESENT = 0.02
"""Of what arrived: nothing is lost but by a full queue, and none stays full."""


@pytest.mark.parametrize(("senders", "planes", "rate_mbps"), [(3, 2, 20), (7, 4, 20), (7, 2, 100), (15, 4, 20)])
def test_senders_get_equal_shares_of_all_planes(senders: int, planes: int, rate_mbps: int) -> None:
    world = Flows([(i, 100) for i in range(senders)], planes=planes, rate_mbps=rate_mbps, within_ns=100_000_000)
    world.run(SETTLING_NS)
    before = counted(world.flows, "num_rtx")
    rates = world.run(LONG_NS)
    assert jain(rates) >= 0.98, rates
    assert sum(rates) >= 0.92 * planes * rate_mbps
    resent = counted(world.flows, "num_rtx") - before
    assert resent * 8e3 * PAYLOAD <= MOST_RESENT * sum(rates) * LONG_NS


@pytest.mark.parametrize(("senders", "rate_mbps"), [(3, 20), (7, 20), (7, 100)])
def test_with_switches_that_trim_little_is_sent_again_but_what_they_trimmed(senders: int, rate_mbps: int) -> None:
    wanted = {"planes": 4, "rate_mbps": rate_mbps, "within_ns": 100_000_000, "trim": 32 << 10}
    world = Flows([(i, 100) for i in range(senders)], **wanted)
    rates = world.run(SETTLING_NS + LONG_NS)
    trimmed = sum(port.trimmed for port in world.hosts[100].into)
    resent = counted(world.flows, "num_rtx")
    assert abs(resent - trimmed) <= 3 + trimmed // 50
    assert counted(world.flows, "num_lost") <= 3
    assert sum(rates) >= 0.85 * 4 * rate_mbps


def test_who_comes_late_gets_what_the_others_have() -> None:
    world = Flows([(i, 100) for i in range(3)], planes=2, rate_mbps=20, within_ns=500_000_000, seed=4)
    world.run(800_000_000)
    assert jain(world.run(500_000_000)) >= 0.98


def test_a_flow_alone_fills_its_planes() -> None:
    world = Flows([(0, 1)], planes=4, rate_mbps=50, within_ns=1)
    world.run(100_000_000)
    (rate,) = world.run(300_000_000)
    assert rate >= 0.95 * 4 * 50
    assert counted(world.flows, "num_rtx") == 0
