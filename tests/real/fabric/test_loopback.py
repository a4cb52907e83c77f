"""Two queue pairs over real UDP sockets on ::1: EVs in ports and flow labels, ECN and classes in the traffic class."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc import packets
from fairlead.fabric.mrc.packets import Datagram
from fairlead.fabric.mrc.profile import Profile
from support.mrc_loopback import LoopbackPair, RealTimePair
from support.mrc_pair import Link
from support.mrc_talks import GOLDEN, TALKS, hold

pytestmark = pytest.mark.real

REAL_TIME = Profile.mrc(
    planes=4,
    evs_per_plane=8,
    evs_active=4,
    mpr=256,
    ev_min_active=2,
    rate_mbps=1_000,
    network_rtt_ns=2_000_000,
    reorder_ns=4_000_000,
    probe_ns=6_000_000,
    probe_retry_ns=10_000_000,
    rto_ns=30_000_000,
    ev_probe_ns=5_000_000,
    reverse_probe_ns=2_000_000,
)


@pytest.fixture
def loopback() -> Any:
    pairs: list[LoopbackPair] = []

    def make(profile: Profile, *, kind: Callable[..., LoopbackPair] = LoopbackPair, **options: Any) -> LoopbackPair:
        pairs.append(kind(profile, **options))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


@pytest.mark.parametrize("name", TALKS)
def test_each_conversation_goes_as_it_did_when_it_was_last_judged(loopback: Any, name: str) -> None:
    """The golden file is the judgement of a person: after a change of the law, read its diff, then write it anew."""
    summary = hold(TALKS[name], loopback)
    assert summary == json.loads(GOLDEN.read_text())[name]


def test_two_megabytes_arrive_in_real_time_through_loss_reordering_trimming_and_doubles(loopback: Any) -> None:
    there = Link(3, loss=0.03, trim=0.05, mark=0.05, double=0.02)
    pair = loopback(REAL_TIME, kind=RealTimePair, there=there, back=Link(4, loss=0.03))
    data, received = pair.write(2_000_000, imm=42)
    pair.b.qp.post_recv(wr_id=1)
    pair.run_real(lambda: bool(pair.a.completions and pair.b.received), for_s=30)
    assert received == data
    assert [(c.imm, c.num_bytes) for c in pair.b.received] == [(42, 2_000_000)]
    assert pair.a.qp.num_bad_packets == pair.b.qp.num_bad_packets == 0
    assert pair.a.qp.tx.num_rtx > 0


def test_packets_spread_evenly_over_planes_and_marks_come_back_through_the_kernel(loopback: Any) -> None:
    pair = loopback(Profile.mrc(planes=4, evs_per_plane=8, evs_active=4, mpr=256), there=Link(3, mark=0.2))
    planes: Counter[int] = Counter()
    marks: Counter[int] = Counter()

    def note_sack(datagram: Datagram) -> None:
        packet = packets.decode(datagram.data)
        if isinstance(packet, packets.Sack):
            assert packet.seth.entropy in pair.a.qp.evs
            marks[packet.seth.m] += 1

    pair.a.out.tap = lambda datagram: planes.update([datagram.path.plane])
    pair.b.out.tap = note_sack
    pair.write(800_000)
    pair.run(lambda: bool(pair.a.completions))
    assert max(planes.values()) - min(planes.values()) <= 2
    assert marks[at.M_SKIP_ONCE] > 0
    assert marks[at.M_NONE] > 0
    assert pair.a.qp.num_bad_packets == pair.b.qp.num_bad_packets == 0
