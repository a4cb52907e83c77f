"""What the protocol promises about failures, seen from outside: a network that breaks, virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from fairlead.fabric.mrc import evs
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.headers import Opcode
from fairlead.fabric.mrc.packets import WRITES, Datagram
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState
from support.mrc_pair import Link, Pair, opcode_of

RTT = 10_000
PROFILE = Profile.mrc(
    planes=8, evs_per_plane=8, evs_active=4, mpr=512, max_messages=256, ev_probe_ns=20_000, reorder_ns=6_000
)


class Stream:
    """A pair that keeps a steady flow of 16 KB messages from a to b: one each microsecond."""

    def __init__(self, **options: object) -> None:
        self.pair = Pair(PROFILE, **options)  # type: ignore[arg-type]
        self.sent: list[tuple[bytes, bytearray]] = []
        self.used: Counter[int] = Counter()
        self.pair.a.out.tap = self._note

    def _note(self, datagram: Datagram) -> None:
        if datagram.data[0] in WRITES:
            self.used[self.slot(datagram)] += 1

    def slot(self, datagram: Datagram) -> int:
        return self.pair.a.qp.evs.index(datagram.path.ev)

    def run(self, for_ns: int) -> Counter[int]:
        """Go on for a while; packets by plane."""
        self.used.clear()
        end = self.pair.now + for_ns
        while self.pair.now < end:
            self.sent.append(self.pair.write(16_384))
            stop = self.pair.now + 1_000
            self.pair.pump()
            while self.pair.next_time() < stop:
                self.pair.step()
            self.pair.now = stop
        return Counter({plane: sum(n for slot, n in self.used.items() if slot >> 3 == plane) for plane in range(8)})

    def finish(self) -> None:
        """All that was sent must be there."""
        self.pair.run(lambda: len(self.pair.a.completions) == len(self.sent), for_ns=10**10)
        assert all(received == data for data, received in self.sent)
        assert self.pair.a.qp.state is self.pair.b.qp.state is QpState.RTS

    def value(self, field: str) -> int:
        return getattr(self.pair.a.qp.tx, field)

    def state(self, slot: int) -> int:
        return evs.ev_state(self.pair.a.qp.tx, slot)


def test_a_lost_packet_is_sent_again_within_a_round_trip_and_the_reorder_window() -> None:
    flow = Stream()
    flow.run(50_000)
    times: list[int] = []
    flow.pair.a.out.drop_next = 1
    lost_at = flow.pair.now
    flow.pair.a.out.tap = lambda d: times.append(flow.pair.now) if d.data[0] in WRITES and d.data[8] & 0x20 else None
    flow.run(60_000)
    assert len(times) == 1
    assert times[0] - lost_at <= RTT + PROFILE.reorder_ns + 2_000
    flow.finish()
    assert flow.value("num_timeouts") == 0


@pytest.mark.parametrize("num_lost", [1, 3, 20])
def test_a_lost_tail_is_recovered_by_a_probe_without_a_timeout(num_lost: int) -> None:
    pair = Pair(PROFILE)
    data, received = pair.write(num_lost * 4096)
    pair.a.out.drop_next = num_lost
    kinds: Counter[Opcode] = Counter()
    pair.a.out.tap = lambda d: kinds.update([opcode_of(d)])
    begin = pair.now
    pair.run(lambda: bool(pair.a.completions))
    assert received == data
    assert kinds[Opcode.PROBE] == 1
    assert pair.a.qp.tx.num_timeouts == 0
    assert pair.now - begin < PROFILE.probe_ns + 3 * RTT < PROFILE.rto_ns


def test_a_path_that_dies_is_left_within_tens_of_microseconds_for_one_of_its_own_plane() -> None:
    flow = Stream()
    flow.run(50_000)
    slot = flow.used.most_common(1)[0][0]
    before = {s for s in range(64) if flow.state(s) == at.STATE_GOOD and s >> 3 == slot >> 3}
    flow.pair.a.out.dead_evs.add(flow.pair.a.qp.evs[slot])
    flow.run(60_000)  # its second packet leaves after 16 us, and is missed 16 us later
    assert flow.state(slot) == at.STATE_ASSUMED_BAD
    planes = flow.run(100_000)
    assert flow.used[slot] == 0
    assert max(planes.values()) - min(planes.values()) <= 0.1 * max(
        planes.values()
    )  # its plane carries as much as ever
    after = {s for s in range(64) if flow.state(s) == at.STATE_GOOD and s >> 3 == slot >> 3}
    assert len(after) == len(before)
    assert after - before
    flow.finish()


def test_a_lossy_path_is_left_too() -> None:
    flow = Stream(there=Link(5))
    flow.run(50_000)
    slot = flow.used.most_common(1)[0][0]
    chance = flow.pair.a.out.random
    ev = flow.pair.a.qp.evs[slot]
    link = flow.pair.a.out
    carry = link.carry
    link.carry = lambda d: [] if d.path.ev == ev and chance.random() < 0.2 else carry(d)  # type: ignore[method-assign]
    flow.run(100_000)
    flow.run(600_000)
    others = [n for s, n in flow.used.items() if s != slot]
    assert flow.used[slot] < 0.5 * sum(others) / len(others)  # probes let it back in now and then
    flow.finish()


def test_a_dead_plane_costs_an_eighth_and_comes_back_when_it_is_repaired() -> None:
    flow = Stream()
    flow.run(50_000)
    for link in (flow.pair.a.out, flow.pair.b.out):
        link.dead_planes.add(3)
    flow.run(80_000)  # each EV of the plane is convicted by its second packet
    planes = flow.run(200_000)
    assert planes[3] == 0
    assert all(n > 0 for plane, n in planes.items() if plane != 3)
    for link in (flow.pair.a.out, flow.pair.b.out):
        link.dead_planes.clear()
    flow.run(8 * PROFILE.ev_probe_ok * PROFILE.ev_probe_ns)  # eight EVs, each probed three times
    planes = flow.run(200_000)
    assert planes[3] > 0.5 * planes[0]
    flow.finish()


def test_answers_survive_a_dead_way_back() -> None:
    """Only the reverse direction of a plane's reverse EV is broken: the responder finds another by probing."""
    flow = Stream()
    flow.run(50_000)
    qp = flow.pair.b.qp
    reverse = [qp.rx.reverse[plane] for plane in range(8)]
    flow.pair.b.out.dead_evs |= {qp.evs[slot] for slot in reverse}
    flow.run(500_000)
    now = [qp.rx.reverse[plane] for plane in range(8)]
    assert all(old != new for old, new in zip(reverse, now, strict=True))
    flow.finish()


def test_random_loss_on_all_planes_does_not_starve_the_queue_pair_of_paths() -> None:
    flow = Stream(there=Link(7, loss=0.01), back=Link(8, loss=0.01))
    flow.run(1_000_000)
    assert flow.value("ev_active") >= PROFILE.ev_min_active
    flow.finish()
    assert flow.value("num_timeouts") < 0.01 * flow.value("num_new")


def test_reordering_alone_soon_causes_no_retransmissions() -> None:
    flow = Stream(there=Link(9, jitter_ns=20_000))
    flow.run(200_000)
    first = flow.value("num_rtx")
    flow.run(400_000)
    assert flow.value("num_spurious") > 0
    assert flow.value("num_rtx") - first <= first / 4
    flow.finish()
