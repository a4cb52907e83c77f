"""Pacing, in virtual time: no burst is larger than was said, and the window is used all the same."""

from __future__ import annotations

import itertools

import pytest

from fairlead.fabric.mrc import law
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.packets import Datagram
from fairlead.fabric.mrc.profile import Profile
from support.mrc_pair import Link, Pair
from support.mrc_rows import Requestor

MS = 1_000_000
RTT_NS = 10 * MS
RATE_MBPS = 1_000
BURST_NS = MS


def sent(
    pace_percent: int, num_bytes: int, *, idle_ns: int = 0, **options: object
) -> tuple[Pair, list[tuple[int, int]]]:
    """When how many bytes left for two messages with a silence between them; a link of 10 ms, whatever the rate."""
    profile = Profile.software(RTT_NS, planes=2, rate_mbps=RATE_MBPS, pace_percent=pace_percent, pace_burst_ns=BURST_NS)
    there = Link(delay_ns=RTT_NS // 2)
    pair = Pair(profile, there=there, back=Link(delay_ns=RTT_NS // 2))
    left: list[tuple[int, int]] = []

    def tap(datagram: Datagram) -> None:
        left.append((pair.now, len(datagram.data)))

    there.tap = tap
    for number in (1, 2):
        data, received = pair.write(num_bytes)
        pair.run(lambda number=number: len(pair.a.completions) == number, for_ns=10**10)
        assert bytes(received[: len(data)]) == data
        pair.run(for_ns=idle_ns)
    return pair, left


def largest_burst(left: list[tuple[int, int]], within_ns: int) -> int:
    """The most bytes that left in any such time."""
    most = total = first = 0
    for time, size in left:
        total += size
        while left[first][0] < time - within_ns:
            total -= left[first][1]
            first += 1
        most = max(most, total)
    return most


@pytest.mark.parametrize("idle_ns", [0, 500 * MS])
def test_no_more_leaves_at_once_than_a_burst_makes_up_for(idle_ns: int) -> None:
    pair, left = sent(125, 3_000_000, idle_ns=idle_ns)
    window = Profile.software(RTT_NS, rate_mbps=RATE_MBPS).parameters()["first_cwnd"]
    assert pair.a.qp.tx.cwnd <= window
    packet = max(size for _, size in left)
    # a window and a quarter each round trip, for the time of a burst and the time it is counted in
    allowed = 1.25 * window * (BURST_NS + BURST_NS) / RTT_NS + 2 * packet
    assert largest_burst(left, BURST_NS) <= allowed
    assert allowed < 0.3 * window


def test_without_a_pace_a_whole_window_leaves_at_once() -> None:
    _, left = sent(0, 3_000_000)
    window = Profile.software(RTT_NS, rate_mbps=RATE_MBPS).parameters()["first_cwnd"]
    assert largest_burst(left, BURST_NS) > 0.9 * window


def test_a_pace_costs_no_round_trip() -> None:
    """Ten windows of data take ten round trips, and what the last window's pace adds."""
    paced, plain = (sent(percent, 15_000_000)[0].now for percent in (125, 0))
    assert paced <= plain * 1.1


def test_the_longer_of_two_reasons_to_hold_counts() -> None:
    row = Requestor(Profile.mrc(pace_percent=100, pace_burst_ns=0))
    row.post(1_000_000)
    row.send(1)
    paced = row.state.hold_at
    assert 0 < paced < row.p.network_rtt_ns
    row.nack(0, at.NACK_NO_RESOURCE, now=1)
    assert row.state.hold_at == 1 + 2 * row.p.network_rtt_ns  # after one retry


def test_between_paced_packets_the_gaps_are_those_of_the_pace() -> None:
    _, left = sent(125, 3_000_000)
    times = sorted({time for time, _ in left})
    gaps = [b - a for a, b in itertools.pairwise(times[: len(times) // 2])]
    assert max(gaps) <= RTT_NS
    assert len(times) > len(left) // 4  # not in windows: they leave one by one


def test_what_sends_without_a_pace_is_the_same_to_the_word_but_for_it() -> None:
    rows = [Requestor(Profile.mrc(pace_percent=percent, pace_burst_ns=0)) for percent in (0, 0, 125)]
    for row in rows:
        row.post(1_000_000)
    assert rows[0].next(now=7) == at.SEND_DATA
    for row in rows[1:]:
        assert law.next_unpaced(row.state, 7, 0xFF, row.out) == at.SEND_DATA
        assert row.out == rows[0].out
        assert row.state.hold_at == at.FOREVER
    assert rows[1].snapshot() == rows[0].snapshot()
