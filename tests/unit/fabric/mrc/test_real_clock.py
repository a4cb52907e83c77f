"""What only real clocks, real peers and bad luck show: beliefs that must fade, and words that must not be believed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from fairlead.fabric.mrc import evs, law, losses, responder
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.mrc.control_headers import Erth, Neth
from fairlead.fabric.mrc.headers import ENDPOINT_QP, Bth, Dscp, EndpointOp, Opcode
from fairlead.fabric.mrc.packets import WRITES, Datagram, Nack, Path, Request, encode, timestamp
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState
from support.mrc_pair import Link, Pair
from support.mrc_rows import ALL, Requestor, Responder

MTU = 4096
US, MS = 1_000, 1_000_000
BASE = 12 * US  # network RTT of the profile
RTO = 262_144
ROOM_REASONS = (at.NACK_NO_BITMAP, at.NACK_NO_PKT_BUFFER, at.NACK_NO_RESOURCE, at.NACK_PSN_OOR_WINDOW, 0x77)


def profile(**changes: object) -> Profile:
    base = {
        "planes": 4, "evs_per_plane": 8, "evs_active": 4, "ev_min_active": 2, "mpr": 128, "max_messages": 64,
        "probe_ns": 0, "reorder_ns": 0, "ev_probe_ns": 0, "rto_ns": RTO,
    }  # fmt: skip
    return Profile.mrc(**{**base, **changes})


def make(**changes: object) -> Requestor:
    return Requestor(profile(**changes))


def round_trip(row: Requestor, sent: int, rtt: int, slot: int = at.INFO_EV_MASK) -> None:
    """One packet there and its SACK back."""
    row.post(1)
    psn, _, _ = row.send(1, now=sent)[0]
    row.sack(now=sent + rtt, cack=psn, psn=psn, echo=sent, slot=slot)


# --- the base round trip ---------------------------------------------------------------------------------------------


def test_a_clock_that_has_not_moved_measures_nothing() -> None:
    row = make()
    for i in range(3):
        round_trip(row, sent=5 + i, rtt=0)
    assert row.state.base_rtt == BASE
    row.post(1)
    row.send(1, now=9)
    row.nack(3, now=9)
    assert row.state.base_rtt == BASE


@pytest.mark.parametrize(("changes", "floor"), [({}, BASE // 8), ({"base_rtt_floor_ns": 5 * US}, 5 * US)])
def test_no_sample_leads_below_the_floor(changes: dict[str, int], floor: int) -> None:
    row = make(**changes)
    round_trip(row, sent=0, rtt=1)
    assert floor == row.state.base_rtt
    assert floor * 100 * 3 // 2 == row.state.max_cwnd  # 800 Gb/s are 100 bytes a nanosecond


def test_two_ends_in_one_process_keep_a_window_worth_its_name() -> None:
    """The loop of the room's page: packets are delivered at the very time they are sent, on a clock of whole us."""
    pair = Pair(Profile.mrc(), there=Link(0, delay_ns=0), back=Link(0, delay_ns=0))
    for _ in range(20):
        pair.write(100_000)
        pair.run(lambda: not pair.a.qp.tx.posted > pair.a.qp.tx.done)
        pair.now += 1_000
    assert pair.a.qp.tx.cwnd > 10 * (MTU + 88)


def test_one_short_sample_is_forgotten_within_two_ages() -> None:
    row = make(base_rtt_age_ns=10 * MS)
    round_trip(row, sent=0, rtt=3 * US)
    seen = []
    for now in range(MS, 30 * MS, MS):
        round_trip(row, sent=now, rtt=8 * US)
        seen.append((now, row.state.base_rtt))
    assert [rtt for now, rtt in seen if now < 10 * MS] == [3 * US] * 9
    assert all(rtt == 8 * US for now, rtt in seen if now > 20 * MS)


def test_a_queue_that_stands_for_long_is_not_taken_for_distance() -> None:
    row = make(base_rtt_age_ns=MS)
    for now in range(0, 20 * MS, 100 * US):
        round_trip(row, sent=now, rtt=90 * US)
    assert row.state.base_rtt == BASE


def test_without_an_age_the_shortest_sample_stays() -> None:
    row = make(base_rtt_age_ns=0)
    round_trip(row, sent=0, rtt=3 * US)
    round_trip(row, sent=10**12, rtt=8 * US)
    assert row.state.base_rtt == 3 * US


# --- the reorder window ----------------------------------------------------------------------------------------------


def lose_and_recover(row: Requestor, now: int, *, late: bool) -> None:
    """Two packets, the first overtaken so far that it is declared lost; then it comes late, or comes again."""
    row.post(2 * MTU)
    (first, slot, _), (second, _, _) = row.send(1, now=now) + row.send(1, now=now + 200 * US)
    row.sack(now=now + 210 * US, cack=first - 1, psn=second, base=first, bitmap=0b10, echo=now + 200 * US)
    assert row.state.lost == 1
    if late:
        row.sack(now=now + 211 * US, cack=second, psn=first, echo=now, slot=slot)
    else:
        row.send(1, now=now + 211 * US)
        row.sack(now=now + 221 * US, cack=second, psn=first, echo=now + 211 * US, slot=slot, info=at.INFO_RTX)


def test_the_reorder_window_is_narrow_again_after_sixteen_recoveries_without_a_mistake() -> None:
    row = make(reorder_ns=4 * US)
    times = itertools.count(0, MS)
    for _ in range(3):
        lose_and_recover(row, next(times), late=True)
    assert losses.reorder_window(row.state) == 7 * US
    for _ in range(15):
        lose_and_recover(row, next(times), late=False)
    assert losses.reorder_window(row.state) == 7 * US
    lose_and_recover(row, next(times), late=False)
    assert losses.reorder_window(row.state) == 4 * US
    assert row.state.num_spurious == 3  # the count itself is for people


def test_a_mistake_in_between_begins_the_count_again() -> None:
    row = make(reorder_ns=4 * US)
    times = itertools.count(0, MS)
    for late in [True] + 15 * [False] + [True] + 15 * [False]:
        lose_and_recover(row, next(times), late=late)
    assert losses.reorder_window(row.state) == 6 * US


# --- suspicion and proof ---------------------------------------------------------------------------------------------


def overtaken(row: Requestor, now: int) -> tuple[int, int]:
    """Send two packets of which the first is declared lost: its PSN and EV."""
    row.post(2 * MTU)
    (first, slot, _), (second, _, _) = row.send(1, now=now) + row.send(1, now=now + 200 * US)
    row.sack(now=now + 210 * US, cack=first - 1, psn=second, base=first, bitmap=0b10, echo=now + 200 * US)
    return first, slot


def test_one_loss_that_is_only_suspected_leaves_the_ev_in_rotation() -> None:
    row = make(reorder_ns=4 * US)
    _, slot = overtaken(row, 0)
    assert row.state.num_lost == 1
    assert evs.ev_state(row.state, slot) == at.STATE_GOOD


def test_a_timeout_is_proof() -> None:
    row = make(reorder_ns=4 * US)
    row.post(1)
    _, slot, _ = row.send(1)[0]
    row.timer(RTO)
    assert evs.ev_state(row.state, slot) == at.STATE_ASSUMED_BAD


def test_suspicions_that_nothing_answers_add_up_and_answers_take_them_away() -> None:
    row = make()
    evs.suspect(row.state, 3)
    for _ in range(evs.SUSPICION):
        evs.trust(row.state, 3)
    evs.suspect(row.state, 3)
    assert evs.ev_state(row.state, 3) != at.STATE_ASSUMED_BAD
    evs.suspect(row.state, 3)
    assert evs.ev_state(row.state, 3) == at.STATE_ASSUMED_BAD


@pytest.mark.parametrize("resent", [False, True])
def test_a_packet_that_comes_after_all_gives_its_ev_back(resent: bool) -> None:
    row = make(reorder_ns=4 * US)
    first, slot = overtaken(row, 0)
    evs.suspect(row.state, slot)
    assert evs.ev_state(row.state, slot) == at.STATE_ASSUMED_BAD
    if resent:
        row.send(1, now=211 * US)
    row.sack(now=212 * US, cack=first + 1, psn=first, echo=0, slot=slot)
    assert evs.ev_state(row.state, slot) == at.STATE_STANDBY  # a replacement has its place
    assert (row.state.ev_bad, evs.nibble(row.state, slot)) == (0, 0)


@pytest.mark.parametrize("seed", range(10))
def test_a_path_that_loses_a_fifth_is_out_within_a_few_dozen_packets_and_one_that_loses_a_thousandth_stays(
    seed: int,
) -> None:
    chance = Link(seed).random.random
    row = make()

    def packets_until_bad(slot: int, loss: float, limit: int) -> int:
        for n in range(limit):
            evs.suspect(row.state, slot) if chance() < loss else evs.trust(row.state, slot)
            if evs.ev_state(row.state, slot) == at.STATE_ASSUMED_BAD:
                return n + 1
        return limit

    assert packets_until_bad(0, 1.0, 99) == 2
    assert packets_until_bad(8, 0.2, 99) < 64
    assert packets_until_bad(16, 0.001, 2_000) == 2_000


def test_reordering_alone_evicts_no_ev_for_long() -> None:
    """Packets up to 30 us late, never lost: every EV must end up where it began."""
    options = {"planes": 2, "evs_per_plane": 8, "evs_active": 8, "ev_probe_ns": 0, "reorder_ns": 4 * US}
    pair = Pair(Profile.mrc(**options), there=Link(3, jitter_ns=30 * US))
    for _ in range(10):
        pair.write(400_000)
    pair.run(lambda: len(pair.a.completions) == 10)
    tx = pair.a.qp.tx
    assert tx.num_spurious > 0
    assert (tx.ev_bad, tx.ev_active) == (0, 16)


# --- words that are not believed -------------------------------------------------------------------------------------


def test_a_fatal_nack_is_believed_of_a_packet_in_flight_on_its_own_ev_only() -> None:
    row = make()
    row.post(3 * MTU)
    sent = row.send(2)
    row.sack(cack=0)
    for psn, slot in ((0, sent[0][1]), (2, sent[1][1]), (99, 0), (1, sent[1][1] ^ 1), (1, at.INFO_EV_MASK)):
        assert row.nack(psn, at.NACK_UNEXP_EVENT, slot=slot) == at.DID_NOTHING
    assert row.state.error == at.ERROR_NONE
    assert row.nack(1, at.NACK_UNEXP_EVENT, slot=sent[1][1]) == at.DID_FAIL


@pytest.mark.parametrize("psn", [0, 3, 100, 0xFFFFFF])
def test_a_guessed_fatal_nack_on_the_wire_kills_no_queue_pair(psn: int) -> None:
    pair = Pair(profile(cwnd=1 << 20))
    data, received = pair.write(10 * MTU)
    stamp = timestamp(pair.now)  # even one that knows when the packet was sent
    pair.pump()
    forged = Nack(Bth(Opcode.NACK, pair.a.qp.qp_num, 0), Neth(psn, at.NACK_UNEXP_EVENT, 0xDEADBEEF, tx_timestamp=stamp))
    pair.inject(pair.a, Datagram(encode(forged), Path(ev=1, plane=0, dscp=Dscp.CONTROL)))
    pair.run(lambda: bool(pair.a.completions))
    assert received == data
    assert [c.status for c in pair.a.completions] == [Status.SUCCESS]


@pytest.mark.parametrize(("up", "plane"), [(0, 0), (0b1110, 0), (0b10000, 4)])
@pytest.mark.parametrize("make_row", [make, lambda: Responder(profile())])
def test_a_port_status_that_could_not_have_come_is_no_news(up: int, plane: int, make_row: type[Requestor]) -> None:
    row = make_row()
    before = row.snapshot()
    assert law.on_peer_ports(row.state, up, 1, plane) == at.DID_NOTHING
    assert row.snapshot() == before


@pytest.mark.parametrize("mask", [0, 0b1110])
def test_an_empty_port_status_on_the_wire_is_answered_and_kills_no_queue_pair(mask: int) -> None:
    pair = Pair(profile(cwnd=1 << 20))
    data, received = pair.write(10 * MTU)
    forged = Request(Bth(Opcode.ENDPOINT_REQUEST, ENDPOINT_QP, 7), Erth(EndpointOp.PORT_STATUS, mask))
    for end in (pair.a, pair.b):
        pair.inject(end, Datagram(encode(forged), Path(ev=1, plane=0, dscp=Dscp.NO_TRIM)))
    pair.run(lambda: bool(pair.a.completions))
    assert received == data
    assert pair.a.qp.state is pair.b.qp.state is QpState.RTS
    assert all(evs.open_planes(row) == 0b1111 for end in (pair.a, pair.b) for row in (end.qp.tx, end.qp.rx))


# --- a receiver without room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ROOM_REASONS)
def test_a_receiver_without_room_is_no_congestion_and_is_given_time(reason: int) -> None:
    row = make(cwnd=400_000)
    row.post(8 * MTU)
    row.send(3, now=0)
    before = (row.state.cwnd, row.state.avg_delay, row.state.qa_armed)
    row.nack(1, reason, now=10 * US)
    assert before == (row.state.cwnd, row.state.avg_delay, row.state.qa_armed)
    assert (row.next(10 * US), law.ready(row.state)) == (at.SEND_NOTHING, 0)
    resume = row.state.deadline
    assert resume == 10 * US + BASE
    row.timer(resume)
    assert law.ready(row.state) == 1
    assert row.send(1, now=resume)[0][0] == 1


def test_each_refusal_of_the_oldest_packet_doubles_the_pause_up_to_the_timeout() -> None:
    row = make()
    row.post(1)
    now, pauses = 0, []
    for _ in range(8):
        row.send(1, now=now)
        now += 10 * US
        row.nack(0, at.NACK_NO_RESOURCE, now=now)
        pauses.append(row.state.hold_at - now)
        now = row.state.hold_at
        row.timer(now)
    assert pauses == [min(2 * BASE << i, RTO) for i in range(8)]


def test_an_immediate_nobody_waits_for_is_not_sent_every_round_trip() -> None:
    pair = Pair(Profile.mrc())
    pair.write(8, imm=5)
    times: list[int] = []
    pair.a.out.tap = lambda d: times.append(pair.now) if d.data[0] in WRITES else None
    pair.run(for_ns=4 * MS)
    assert 4 < len(times) < 30
    pair.b.qp.post_recv(wr_id=1)
    pair.run(lambda: bool(pair.a.completions))
    assert [c.imm for c in pair.b.received] == [5]


@pytest.mark.parametrize("num_bytes", [8, 50_000])
def test_a_peer_without_a_receive_is_waited_for_as_long_as_a_silent_one_and_asked_all_the_while(num_bytes: int) -> None:
    """What verbs call receiver not ready. It answers: that it does not would be false."""
    silent = Pair(Profile.software(MS), there=Link(1, loss=1.0))
    silent.write(num_bytes)
    silent.run(lambda: bool(silent.a.completions), for_ns=10**10)
    pair = Pair(Profile.software(MS))
    pair.write(num_bytes, imm=5)
    asked: list[int] = []
    pair.b.out.tap = lambda _: asked.append(pair.now)
    begin = pair.now
    pair.run(lambda: bool(pair.a.completions), for_ns=10**10)
    assert [c.status for c in pair.a.completions] == [Status.RNR_RETRY_EXC_ERR]
    assert [event.error.code for event in pair.a.events] == ["fabric/qp-failed"]
    assert "posted no receive" in str(pair.a.events[0].error)
    assert "post_recv" in pair.a.events[0].error.hint
    assert 0.95 * silent.now < pair.now - begin < 1.2 * silent.now
    assert max(b - a for a, b in itertools.pairwise(asked)) < 2 * pair.a.qp.profile.rto_ns


def test_a_receive_that_is_posted_a_second_late_is_soon_found() -> None:
    pair = Pair(Profile.software(MS))
    data, received = pair.write(8, imm=5)
    pair.run(for_ns=10**9)
    assert not pair.a.completions
    posted = pair.now
    pair.b.qp.post_recv(wr_id=1)
    pair.run(lambda: bool(pair.a.completions), for_ns=10**10)
    assert [c.status for c in pair.a.completions] == [Status.SUCCESS]
    assert received == data
    assert pair.now - posted < 2 * pair.a.qp.profile.rto_ns


# --- answers ---------------------------------------------------------------------------------------------------------


def test_no_answer_leaves_on_a_denied_ev() -> None:
    row = Responder(profile(reverse_probe_ns=US))
    for slot in range(7):
        responder.deny(row.state, slot)
    now = 0
    for _ in range(40):
        now += 2 * US
        row.data(0, now=now)
        assert law.control_slot(row.state, 0, 0b0001) == 7
        if law.next_control(row.state, now, 0b0001, row.out) == at.SEND_EV_PROBE:
            assert row.out[at.D_EV] == 7
            law.on_reverse_reply(row.state, now, row.out[at.D_PSN], at.M_NONE)
    responder.set_reverse(row.state, now, 3)  # a SACK that was sent before the controller spoke
    assert law.control_slot(row.state, 0, ALL) == 7
    responder.deny(row.state, 7)
    assert law.control_slot(row.state, 0, ALL) >> 3 != 0
    assert law.control_slot(row.state, 0, 0b0001) == -1
    assert law.next_control(row.state, now + US, 0b0001, row.out) == at.SEND_NOTHING
    responder.allow(row.state, 5)
    assert law.control_slot(row.state, 0, ALL) == 5


def test_a_queue_pair_that_is_denied_an_ev_answers_on_others() -> None:
    pair = Pair(Profile.mrc(planes=1, evs_per_plane=4, evs_active=4, mpr=128))
    denied = set(pair.b.qp.evs[:3])
    for ev in denied:
        pair.b.qp.deny_ev(ev)
    used: set[int] = set()
    pair.b.out.tap = lambda d: used.add(d.path.ev)
    data, received = pair.write(400_000)
    pair.run(lambda: bool(pair.a.completions))
    assert received == data
    assert used == {pair.b.qp.evs[3]}


def test_restore_survives_the_loss_of_a_sack() -> None:
    row = Responder(profile(sack_bytes=1))
    law.on_pressure(row.state, 64)
    row.data(0)
    law.on_pressure(row.state, 0)
    said = []
    for psn in range(1, 30):
        row.data(psn)
        said.append(bool(row.block[at.S_INFO] & at.INFO_RESTORE))
    assert said == [True] * 16 + [False] * 13


def test_a_new_penalty_ends_an_old_restoration() -> None:
    row = Responder(profile(sack_bytes=1))
    law.on_pressure(row.state, 64)
    law.on_pressure(row.state, 0)
    law.on_pressure(row.state, 9)
    row.data(0)
    assert not row.block[at.S_INFO] & at.INFO_RESTORE
    assert row.block[at.S_INFO] >> at.INFO_PEN_SHIFT & 0x7F == 9


def test_a_window_is_restored_once_however_often_that_is_said() -> None:
    row = make(cwnd=75_776, rate_mbps=400_000)
    row.state.last_adjust = 10**9
    row.sack(now=10**9, cack=-1, rcvd=16, info=64 << at.INFO_PEN_SHIFT)
    for _ in range(5):
        row.sack(now=10**9, cack=-1, rcvd=16, info=at.INFO_RESTORE)
    assert row.state.cwnd == 75_776
    row.state.cwnd = 50_000
    row.sack(now=10**9, cack=-1, rcvd=16, info=at.INFO_RESTORE)
    assert row.state.cwnd == 50_000


# --- the pace of probes ----------------------------------------------------------------------------------------------


def silent_probes(row: Requestor, start: int, until: int) -> list[int]:
    """When EV probes leave while nothing answers."""
    times = []
    while until >= row.state.deadline:
        now = max(row.state.deadline, start)
        row.timer(now)
        if row.next(now) == at.SEND_EV_PROBE:
            times.append(now)
    return times


def drop_ev(row: Requestor, now: int) -> int:
    row.post(1)
    psn, slot, _ = row.send(1, now=now)[0]
    row.sack(now=now, cack=psn, slot=slot, mark=at.M_ALWAYS_SKIP)
    return slot


def test_a_bad_ev_of_an_idle_pair_is_probed_ever_more_rarely() -> None:
    row = make(ev_probe_ns=100 * US)
    drop_ev(row, 0)
    times = silent_probes(row, 0, 1_000 * MS)
    gaps = [b - a for a, b in itertools.pairwise([0, *times])]
    assert gaps[:4] == [100 * US, 100 * US, 200 * US, 400 * US]
    assert max(gaps) == gaps[-1] == 100 * US << 9
    assert len(times) < 40


def test_an_answer_or_a_newly_bad_ev_quickens_the_probes_again() -> None:
    row = make(ev_probe_ns=100 * US)
    first = drop_ev(row, 0)
    now = silent_probes(row, 0, 500 * MS)[-1]
    law.on_ev_reply(row.state, now, row.state.evp_id, at.M_NONE)
    assert now + 100 * US == row.state.deadline
    assert evs.nibble(row.state, first) == 1
    now = silent_probes(row, now, now + 500 * MS)[-1] + US
    drop_ev(row, now)
    assert now + 100 * US == row.state.deadline


def test_a_round_of_all_bad_evs_counts_once_for_the_pace() -> None:
    row = make(ev_probe_ns=100 * US, ev_min_active=0)
    for slot in range(8):
        evs.assume_bad(row.state, slot)
    drop_ev(row, 0)
    times = silent_probes(row, 0, 4 * MS)
    assert [b - a for a, b in itertools.pairwise(times)][:12] == [100 * US] * 9 + [200 * US] * 3


@pytest.mark.parametrize("rtt_ns", [12 * US, 200 * US, MS])
def test_however_long_a_path_was_gone_one_probe_in_52_ms_looks_for_it(rtt_ns: int) -> None:
    """Twice as long from a period of 8 ms, nine times over, would be four seconds."""
    row = make(ev_probe_ns=Profile.software(rtt_ns).ev_probe_ns, ev_min_active=0)
    for slot in range(7):
        evs.assume_bad(row.state, slot)
    drop_ev(row, 0)
    times = silent_probes(row, 0, 5_000 * MS)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert max(gaps) == gaps[-1] == 51_200 * US
    assert len(times) < 120


def asked_of(row: Requestor, answers: Iterable[bool]) -> list[int]:
    """The EVs probed, one for each answer that comes or does not."""
    asked = []
    for is_answered in answers:
        while row.next(row.state.deadline) != at.SEND_EV_PROBE:
            row.timer(row.state.deadline)
        asked.append(row.out[at.D_EV])
        if is_answered:
            law.on_ev_reply(row.state, 0, row.out[at.D_PSN], at.M_NONE)
    return asked


def test_an_ev_that_answers_is_asked_until_it_is_back_and_the_others_wait() -> None:
    row = make(ev_probe_ns=100 * US, ev_min_active=0, ev_probe_ok=3)
    bad = {drop_ev(row, 0) for _ in range(4)}
    asked = asked_of(row, [True] * 3 * len(bad))
    assert asked == [slot for slot in asked[::3] for _ in range(3)]
    assert set(asked) == bad
    assert row.state.ev_bad == 0


def test_an_ev_that_stops_answering_gives_its_turn_to_the_next() -> None:
    row = make(ev_probe_ns=100 * US, ev_min_active=0, ev_probe_ok=3)
    first, second = (drop_ev(row, 0) for _ in range(2))
    assert asked_of(row, [True, False, False, False]) in (
        [first, first, second, first],
        [second, second, first, second],
    )


def test_a_silent_peer_is_probed_ever_more_rarely() -> None:
    pair = Pair(Profile.mrc(), there=Link(1, loss=1.0))
    pair.write(4 * MTU)
    times: list[int] = []
    pair.a.out.tap = lambda d: times.append(pair.now) if d.data[0] == Opcode.PROBE else None
    pair.run(for_ns=2_000 * MS)
    assert 5 < len(times) < 150


# --- programs --------------------------------------------------------------------------------------------------------


def test_a_scheduler_that_lets_packets_wait_for_a_millisecond_causes_no_timeout_and_few_mistakes() -> None:
    profile = Profile.software(100 * US, planes=4, evs_per_plane=8, evs_active=8, rate_mbps=10_000)
    slow = [Link(seed, delay_ns=50 * US, jitter_ns=MS) for seed in (1, 2)]
    pair = Pair(profile, there=slow[0], back=slow[1])
    for _ in range(8):
        pair.write(400_000)
    pair.run(lambda: len(pair.a.completions) == 8)
    assert [c.status for c in pair.a.completions] == [Status.SUCCESS] * 8
    tx = pair.a.qp.tx
    assert tx.num_timeouts == 0
    assert tx.num_rtx < 0.05 * tx.num_new


def test_a_peer_that_has_died_is_reported_in_about_a_second() -> None:
    pair = Pair(Profile.software(100 * US), there=Link(1, loss=1.0))
    pair.write(40_000)
    begin = pair.now
    pair.run(lambda: bool(pair.a.completions), for_ns=10**10)
    assert [c.status for c in pair.a.completions] == [Status.RETRY_EXC_ERR]
    assert [event.error.code for event in pair.a.events] == ["fabric/qp-failed"]
    assert pair.now - begin < 2 * 10**9


@pytest.mark.parametrize("planes", [1, 4])
def test_a_way_that_lets_only_small_packets_pass_is_reported_in_seconds(planes: int) -> None:
    """RFC 2923: what is larger than an MTU on the way vanishes; probes and their answers go on."""
    pair = Pair(Profile.software(MS, planes=planes), there=Link(1, delay_ns=500 * US, largest=1500))
    pair.write(100_000)
    begin = pair.now
    pair.run(lambda: bool(pair.a.completions), for_ns=2 * 10**10)
    assert [c.status for c in pair.a.completions] == [Status.RETRY_EXC_ERR]
    assert ["MTU" in str(event.error) for event in pair.a.events] == [True]
    assert pair.now - begin < 5 * 10**9


@pytest.mark.parametrize("seed", range(4))
def test_three_packets_of_ten_lost_both_ways_for_long_are_no_small_mtu(seed: int) -> None:
    pair = Pair(Profile.software(MS, planes=4), there=Link(seed, loss=0.3), back=Link(seed + 9, loss=0.3))
    for _ in range(20):
        pair.write(100_000)
    pair.run(lambda: len(pair.a.completions) == 20, for_ns=6 * 10**10)
    assert [c.status for c in pair.a.completions] == [Status.SUCCESS] * 20


# --- a way back that dies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_flow_goes_on_when_three_quarters_of_a_single_plane_die_and_the_reverse_ev_with_them(seed: int) -> None:
    profile = Profile.mrc(planes=1, evs_per_plane=64, evs_active=32, max_messages=64, rate_mbps=100_000)
    pair = Pair(profile, seed=seed)
    for _ in range(60):
        pair.write(100_000)
    pair.run(for_ns=100 * US)
    b = pair.b.qp
    reverse = b.rx.reverse[0]
    for link, qp in ((pair.a.out, pair.a.qp), (pair.b.out, b)):
        link.dead_evs |= {ev for slot, ev in enumerate(qp.evs) if slot & 3 != (reverse + 1) & 3}
    pair.run(lambda: len(pair.a.completions) == 60, for_ns=10 * MS)
    assert [c.status for c in pair.a.completions] == [Status.SUCCESS] * 60


def test_a_reliability_probe_moves_the_reverse_ev_and_asks_for_a_better_one() -> None:
    row = Responder(profile(reverse_probe_ns=12 * US, evs_per_plane=64, evs_active=32))
    used = set()
    for number in range(20):
        did = law.on_probe(row.state, number, 0, 70, -1, row.block)
        assert did == at.DO_SACK | at.DO_CONTROL
        used.add(law.control_slot(row.state, 70, ALL))
        assert law.next_control(row.state, number, ALL, row.out) == at.SEND_EV_PROBE
    assert len(used) > 10
    assert {slot >> 6 for slot in used} == {1}


def test_a_reverse_ev_that_was_found_good_is_not_given_up_for_the_first_two_probes() -> None:
    row = Responder(profile(reverse_probe_ns=12 * US, evs_per_plane=64, evs_active=32))
    responder.set_reverse(row.state, 0, 99)
    used = []
    for number in range(3):
        law.on_probe(row.state, number, 0, 70, -1, row.block)
        used.append(law.control_slot(row.state, 70, ALL))
    assert used[:2] == [99, 99]
    assert used[2] != 99


def test_a_requestor_answers_the_peers_probe_on_its_own_rotation() -> None:
    row = make()
    slot = row.state.plane << 3
    assert len({law.reply_slot(row.state, ALL) for _ in range(40)}) == 16
    for number in range(8):
        evs.deny(row.state, slot | number)
    assert not {law.reply_slot(row.state, ALL) >> 3 for _ in range(40)} & {slot >> 3}
    assert law.reply_slot(row.state, 0) == -1


def test_what_a_queue_pair_sends_refreshes_the_evs_on_which_it_answers() -> None:
    """Without probes: good SACKs tell the sender which of its EVs work, and its own answers then take those."""
    pair = Pair(profile(reverse_probe_ns=0))

    def reverse(end: object) -> list[int]:
        qp = end.qp
        return [qp.rx.reverse[plane] for plane in range(qp.profile.planes)]

    before = [reverse(end) for end in (pair.a, pair.b)]
    for _ in range(4):
        pair.write(100_000)
    pair.run(lambda: len(pair.a.completions) == 4)
    after = [reverse(end) for end in (pair.a, pair.b)]
    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize(("shape", "mark"), [(profile(), at.M_NONE), (Profile.uec(mpr=128), at.M_SKIP_ONCE)])
def test_a_nack_says_of_ecn_what_its_header_has_room_for(shape: Profile, mark: int) -> None:
    row = Responder(shape)
    assert row.data(0, at.F_TRIMMED | at.F_LAST_HOP | at.F_ECN) & at.DO_NACK
    assert row.block[at.S_INFO] >> at.INFO_M_SHIFT & 3 == mark


# --- queues that differ from plane to plane --------------------------------------------------------------------------


@pytest.mark.parametrize(("own_turns", "planes"), [(True, 4), (False, 2)])
def test_probes_between_packets_leave_each_plane_its_share_of_them(own_turns: bool, planes: int) -> None:
    """A probe after each packet, as in a small window behind long queues: taking turns, data saw every other plane."""
    row = make(own_turns=own_turns, probe_ns=US)
    row.post(12 * MTU)
    data, probes = [], []
    for _ in range(12):
        data.append(row.send(1)[0][1] >> 3)
        row.state.probe_due = 1
        assert row.next() == at.SEND_PROBE
        probes.append(row.out[at.D_PLANE])
    assert [data.count(plane) for plane in sorted(set(data))] == [12 // planes] * planes
    if own_turns:
        assert set(probes) == {0, 1, 2, 3}  # the next one tries another plane


def test_a_packet_overtaken_by_those_of_emptier_planes_is_not_lost_before_its_time() -> None:
    wide = {"cc_rule": at.CC_CONSTANT, "cwnd": 1 << 20}
    row = make(reorder_ns=MS, reorder_timer=True, rto_ns=100 * MS, rto_most_ns=800 * MS, **wide)
    now = 0
    for i in range(40):  # one plane in four takes 9 ms, the others 1
        row.post(MTU)
        row.send(1, now=now)
        row.sack(now=now + (9 if i % 4 == 0 else 1) * MS, cack=i, psn=i, echo=now)
        now += 10 * MS
    row.post(4 * MTU)
    for i in range(4):
        row.send(1, now=now + 2 * MS * i)
    row.sack(now=now + 7 * MS, cack=39, psn=43, base=40, bitmap=0b1110, echo=now + 6 * MS)
    assert row.state.num_lost == 0  # was sent 6 ms before one that is here, and is 7 ms old
    assert now + 10 * MS < row.state.loss_at < now + 16 * MS
    row.timer(row.state.loss_at)
    assert row.state.num_lost == 1


def test_silence_of_less_than_a_round_trip_is_not_asked_about() -> None:
    for most, wait in ((800 * MS, 20 * MS), (0, 3 * MS)):
        row = make(probe_ns=3 * MS, rto_ns=100 * MS, rto_most_ns=most, cc_rule=at.CC_CONSTANT, cwnd=1 << 20)
        for i in range(60):
            round_trip(row, sent=100 * MS * i, rtt=20 * MS)
        now = 6_000 * MS
        row.post(2 * MTU)
        row.send(2, now=now)
        assert pytest.approx(now + wait, abs=MS / 10) == row.state.probe_at


@pytest.mark.parametrize("seed", range(3))
def test_a_peer_that_tells_of_trimmed_packets_is_not_dead(seed: int) -> None:
    """A link that trims nine of ten: retries are for silence."""
    p = Pair(Profile.software(1_000_000, trim=True), seed=seed, there=Link(seed, trim=0.9))
    sent, buffer = p.write(100_000)
    p.run(lambda: bool(p.a.completions))
    assert [c.status for c in p.a.completions] == [Status.SUCCESS]
    assert bytes(buffer) == sent
    assert p.a.qp.tx.num_nacks > 13  # the retries of this profile are 12


def test_a_window_of_one_packet_that_is_trimmed_waits_a_round_trip() -> None:
    """It cannot get smaller: what is left is to send it less often."""
    p = Pair(Profile.software(1_000_000, trim=True), there=Link(trim=1.0))
    p.write(100_000)
    tx = p.a.qp.tx
    smallest = tx.profile.min_cwnd
    p.run(lambda: tx.num_nacks > 0)
    p.run(lambda: tx.cwnd <= smallest)
    before, begin = tx.num_nacks, p.now
    p.run(for_ns=20_000_000)
    assert tx.cwnd <= smallest
    assert tx.num_nacks - before <= 2 * (p.now - begin) / 1_000_000
