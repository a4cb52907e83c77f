"""Queue pairs: the way to RTS, what is placed and completed, what a stranger cannot do, how a queue pair ends."""

from __future__ import annotations

import gc
import mmap
import weakref
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from fairlead.errors import LocalProtocolError, PathsExhausted, RemoteProtocolError
from fairlead.fabric.mrc import evs, packets, state
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.completion import CompletionQueue, Status, WorkOpcode
from fairlead.fabric.mrc.control_headers import Erth, Seth
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.entropy import default_evs
from fairlead.fabric.mrc.headers import Bth, Dialect, Dscp, Meth, Opcode, Reth
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.packets import Datagram, Path, Write
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import EvState, QpHint, QpState, RetryCnt
from support.mrc_pair import End, Link, Pair, end, opcode_of

PROFILE = Profile.mrc(planes=4, evs_per_plane=8, evs_active=4, ev_min_active=2, mpr=256, rate_mbps=400_000)
STEPS = ((QpState.INIT, {}), (QpState.RTR, {"dest_qp_num": 5, "rq_psn": 0}), (QpState.RTS, {"sq_psn": 0}))


def fresh(**changes: object) -> End:
    return end(replace(PROFILE, **changes), 7, 1)


def lead(side: End, upto: QpState) -> None:
    for target, attributes in STEPS:
        side.qp.modify(target, **attributes)
        if target is upto:
            return


def pair(**options: object) -> Pair:
    return Pair(PROFILE, **options)


def crafted(p: Pair, payload: bytes = b"evil", psn: int = 0, op: Opcode = Opcode.WRITE_ONLY, **reth: int) -> Datagram:
    """A Write from nobody to b."""
    bth = Bth(op, p.b.qp.qp_num, psn, pad=packets.padding(len(payload)))
    full = Reth(**{"va": 0, "rkey": 0, "dma_len": len(payload), **reth})
    imm = 9 if op in packets.WITH_IMM else None
    return Datagram(packets.encode(Write(bth, Meth(0, 0), full, payload, imm=imm)), Path(ev=1))


# --- states --------------------------------------------------------------------------------------------------------


def test_the_way_to_rts() -> None:
    side = fresh()
    hint = QpHint(num_qps_per_peer=2)
    side.qp.modify(QpState.INIT, hint=hint)
    side.qp.modify(QpState.RTR, dest_qp_num=5, rq_psn=9, max_wimm_dest=3, mpr_dest=1)
    side.qp.modify(QpState.RTS, sq_psn=8, max_wimm=4, mpr=1, retry_cnt=RetryCnt(2, 3), timeout=8)
    qp, p = side.qp, side.qp.tx.profile
    assert [p.mpr, p.max_wimm, p.max_wimm_dest] == [128, 4, 3]
    assert [p.rto_ns, p.retry_linear, p.retry_exp] == [262_144, 2, 3]
    assert (qp.tx.mpr, qp.tx.una, qp.rx.next) == (128, 8, 9)


@pytest.mark.parametrize(
    ("upto", "target", "attributes", "text"),
    [
        (None, QpState.RTR, {"dest_qp_num": 5, "rq_psn": 0}, "from INIT"),
        (QpState.INIT, QpState.RTS, {"sq_psn": 0}, "from RTR"),
        (QpState.INIT, QpState.RTR, {"rq_psn": 0}, "needs dest_qp_num"),
        (QpState.INIT, QpState.RTR, {"dest_qp_num": 5, "rq_psn": 1 << 24}, "rq_psn must be 0 to"),
        (QpState.INIT, QpState.RTR, {"dest_qp_num": "5", "rq_psn": 0}, "dest_qp_num must be"),
        (QpState.INIT, QpState.RTR, {"dest_qp_num": 5, "rq_psn": 0, "rnr_retry": 7}, "does not use the attribute rnr"),
        (QpState.INIT, QpState.RTR, {"dest_qp_num": 5, "rq_psn": 0, "mpr": 7}, "mpr is no attribute"),
        (QpState.INIT, QpState.RTR, {"dest_qp_num": 5, "rq_psn": 0, "mpr_dest": 3}, "created for 256"),
        (QpState.RTR, QpState.RTS, {"sq_psn": 0, "timeout": 25}, "timeout must be 0 to 24"),
        (QpState.RTR, QpState.RTS, {"sq_psn": 0, "retry_cnt": 7}, "retry_cnt must be a RetryCnt"),
        (QpState.RTR, QpState.RTS, {"sq_psn": 0, "retry_cnt": RetryCnt(8, 0)}, "of at most 7 and 25"),
        (None, QpState.INIT, {"ev_profile_id": 1}, "no device to find profiles on"),
        (QpState.RTS, QpState.RESET, {}, "does not go to RESET; make a new one"),
    ],
)
def test_steps_that_are_refused(
    upto: QpState | None, target: QpState, attributes: dict[str, object], text: str
) -> None:
    side = fresh()
    if upto:
        lead(side, upto)
    with pytest.raises(LocalProtocolError, match=text) as caught:
        side.qp.modify(target, **attributes)
    assert caught.value.code == "fabric/bad-attribute"


def test_calls_in_the_wrong_state_are_refused_and_verbs_do_nothing() -> None:
    side = fresh()
    with pytest.raises(LocalProtocolError, match="needs RTS") as caught:
        side.qp.post_write(b"x", wr_id=1, remote_addr=0, rkey=0)
    assert caught.value.code == "fabric/wrong-state"
    with pytest.raises(LocalProtocolError, match="is in state RESET"):
        side.qp.post_recv(wr_id=1)
    side.qp.set_ports(0, 0)
    side.qp.on_timer(0)
    assert side.qp.next_timer_ns() is None
    assert list(side.qp.transmit(0)) == []
    side.qp.receive(packets.encode(packets.Probe(Bth(Opcode.PROBE, 7, 0), packets.Peth(1))), Path(1), 0)
    assert side.qp.num_bad_packets == 1
    assert side.qp.poll_event() is None


def test_a_receiver_answers_before_it_may_send() -> None:
    side = fresh()
    lead(side, QpState.RTR)
    buffer, region = side.region(16)
    write = crafted(Pair(PROFILE), b"abcd", va=region.addr, rkey=region.rkey)
    data = bytearray(write.data)
    data[5:8] = (7).to_bytes(3, "big")
    data[-4:] = packets.icrc.compute(Icrc.PACKET, bytes(data[:-4]))
    side.qp.receive(data, Path(1), 10)
    side.qp.set_ports(20, 0b0111)
    assert bytes(buffer[:4]) == b"abcd"
    kinds = [opcode_of(d) for d in side.qp.transmit(20)]
    assert kinds == [Opcode.ACK, Opcode.ENDPOINT_REQUEST, Opcode.ENDPOINT_REQUEST]
    assert side.qp.next_timer_ns() == 20 + PROFILE.rto_ns
    side.qp.on_timer(20 + PROFILE.rto_ns)
    assert [opcode_of(d) for d in side.qp.transmit(20 + PROFILE.rto_ns)] == [Opcode.ENDPOINT_REQUEST]
    side.qp.receive(packets.encode(packets.Ack(Bth(Opcode.ACK, 7, 0), packets.Aeth(0, 0))), Path(1), 30)
    status = packets.Request(Bth(Opcode.ENDPOINT_REQUEST, 2, 6), Erth(packets.EndpointOp.PORT_STATUS, 0b0011))
    side.qp.receive(packets.encode(status), Path(1), 30)
    assert evs.open_planes(side.qp.rx) == 0b0011
    reply = packets.Response(Bth(Opcode.ENDPOINT_RESPONSE, 2, 6), packets.Eeth(1))
    side.qp.receive(packets.encode(reply), Path(1), 30)


def test_a_trimmed_packet_is_answered_with_a_nack_and_sent_again_at_once() -> None:
    for last_hop, reason in ((0.0, at.NACK_TRIMMED), (1.0, at.NACK_TRIMMED_LASTHOP)):
        p = pair(there=Link(3, trim=0.5, last_hop=last_hop))
        reasons: set[int] = set()
        p.b.out.tap = lambda d, seen=reasons: seen.update(
            [packets.decode(d.data).neth.reason] if opcode_of(d) is Opcode.NACK else []
        )
        data, received = p.write(60_000)
        p.run(lambda q=p: bool(q.a.completions), for_ns=250_000)  # less than a timeout
        assert received == data
        assert reasons == {reason}


def test_a_write_without_timestamp_is_taken_and_its_echo_is_zero() -> None:
    p = pair()
    buffer, region = p.b.region(4)
    echoes: list[int] = []
    p.b.out.tap = lambda d: (
        echoes.append(packets.decode(d.data).cc.tx_timestamp) if opcode_of(d) is Opcode.SACK else None
    )
    p.inject(p.b, crafted(p, b"abcd", va=region.addr, rkey=region.rkey))
    p.b.qp.tx.profile.sack_bytes = 1
    p.run(for_ns=1_000)
    assert (bytes(buffer), echoes) == (b"abcd", [0])


def test_evs_must_be_distinct_and_as_many_as_the_profile_says() -> None:
    assert len(set(default_evs(Profile.mrc(), 3))) == 256
    for values in ([1, 2], [5] * 32, list(range(33)), [-1, *range(31)], [1 << 32, *range(31)]):
        with pytest.raises(LocalProtocolError) as caught:
            end(PROFILE, 7, 1, evs=values)
        assert caught.value.code == "fabric/bad-evs"


# --- writes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3, 4095, 4096, 4097, 65_536, 300_001])
def test_a_write_arrives_bit_for_bit_and_completes_once(size: int) -> None:
    p = pair()
    data, received = p.write(size, wr_id=77)
    p.run()
    assert received[:size] == data
    assert [(c.wr_id, c.status, c.num_bytes, c.opcode) for c in p.a.completions] == [
        (77, Status.SUCCESS, size, WorkOpcode.RDMA_WRITE)
    ]
    assert p.b.received == []


def test_immediates_are_delivered_in_message_order_with_the_size_of_their_message() -> None:
    p = pair(there=Link(3, jitter_ns=50_000))
    sizes = [9_000, 0, 70_000, 5, 4096]
    for number, size in enumerate(sizes):
        p.b.qp.post_recv(wr_id=50 + number)
        p.write(size, imm=number if number != 2 else None)
    p.run()
    assert [(c.wr_id, c.imm, c.num_bytes) for c in p.b.received] == [
        (50, 0, 9_000),
        (51, 1, 0),
        (52, 3, 5),
        (53, 4, 4096),
    ]
    assert all(c.opcode is WorkOpcode.RECV_RDMA_WITH_IMM for c in p.b.received)


def test_an_immediate_waits_for_a_receive_request() -> None:
    p = pair()
    p.write(10, imm=1)
    p.run(for_ns=400_000)
    assert p.b.received == []
    p.b.qp.post_recv(wr_id=8)
    p.run(lambda: bool(p.b.received))
    assert (p.b.received[0].wr_id, p.b.received[0].imm) == (8, 1)


def test_both_directions_at_once() -> None:
    p = pair(there=Link(3, loss=0.02), back=Link(4, loss=0.02))
    one, there = p.write(200_000)
    two = bytes(range(256)) * 800
    buffer, region = p.a.region(len(two))
    p.b.qp.post_write(two, wr_id=3, remote_addr=region.addr, rkey=region.rkey)
    p.run(lambda: bool(p.a.completions and p.b.completions))
    assert there == one
    assert buffer == two


def test_queues_are_bounded() -> None:
    p = Pair(replace(PROFILE, max_messages=2))
    p.write(1)
    p.write(1)
    with pytest.raises(LocalProtocolError, match="2 messages are posted") as caught:
        p.write(1)
    assert caught.value.code == "fabric/queue-full"
    p.run()
    p.write(1)  # neither the ring nor the completion queue kept a place
    p.a.send_cq.depth = 1
    with pytest.raises(LocalProtocolError, match="completion queue"):
        p.write(1)


def test_a_message_that_no_length_field_can_say_is_refused() -> None:
    p = pair()
    untouched = mmap.mmap(-1, (1 << 31) + 1)
    with pytest.raises(LocalProtocolError) as caught:
        p.a.qp.post_write(memoryview(untouched), wr_id=1, remote_addr=0, rkey=0)
    assert caught.value.code == "fabric/too-long"


@pytest.mark.parametrize(
    "fields",
    [
        {"remote_addr": -1},
        {"remote_addr": (1 << 64) - 1},
        {"rkey": 1 << 32},
        {"rkey": -1},
        {"imm": 1 << 32},
        {"imm": -1},
    ],
)
def test_what_no_header_can_say_is_refused_when_it_is_posted(fields: dict[str, int]) -> None:
    p = pair()
    with pytest.raises(LocalProtocolError, match=f"{next(iter(fields))} must be 0 to"):
        p.a.qp.post_write(b"ab", wr_id=1, **{"remote_addr": 0, "rkey": 0, **fields})
    p.a.qp.post_write(b"ab", wr_id=1, remote_addr=(1 << 64) - 2, rkey=(1 << 32) - 1, imm=(1 << 32) - 1)
    assert len(list(p.a.qp.transmit(p.now))) == 1


def test_what_goes_out_tells_class_plane_and_ev() -> None:
    p = pair(there=Link(1, drop_next=1))
    seen: list[Datagram] = []
    p.a.out.tap = seen.append
    p.write(40_000)
    p.run()
    data = [d for d in seen if opcode_of(d) <= Opcode.WRITE_ONLY_IMM]
    assert {d.path.dscp for d in data} == {Dscp.TRIMMABLE, Dscp.TRIMMABLE_RETX}
    assert all(p.a.qp.evs.index(d.path.ev) // 8 == d.path.plane for d in seen)
    answers: list[Datagram] = []
    p.b.out.tap = answers.append
    p.write(40_000)
    p.run()
    assert {d.path.dscp for d in answers if opcode_of(d) is Opcode.SACK} == {Dscp.CONTROL}
    untrimmed = Pair(replace(PROFILE, trim=False))
    untrimmed.write(1)
    assert [d.path.dscp for d in untrimmed.a.qp.transmit(5)] == [Dscp.NO_TRIM]


def test_transmit_uses_free_ports_only_and_can_be_stopped() -> None:
    p = pair()
    p.write(100_000)
    assert {d.path.plane for d in p.a.qp.transmit(5, ports=0b0101)} == {0, 2}
    q = pair()
    q.write(100_000)
    sending = q.a.qp.transmit(5)
    next(sending)
    sending.close()
    assert q.a.qp.tx.next == 1
    for datagram in q.a.qp.transmit(5):
        q.b.qp.receive(datagram.data, datagram.path, 6)
    assert list(q.b.qp.transmit(6, ports=0)) == []
    assert len(list(q.b.qp.transmit(6))) > 5


# --- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", ["forged", "stale", "below", "beyond", "overlong", "longer than its length", "over mtu"]
)
def test_a_write_outside_its_right_never_writes_a_byte_and_is_refused(case: str) -> None:
    p = pair()
    buffer, region = p.b.region(4096)
    payload = b"\xff" * 64
    va, rkey, dma_len = region.addr, region.rkey, 64
    match case:
        case "forged":
            rkey ^= 0x10000
        case "stale":
            p.b.domain.deregister(region)
        case "below":
            va -= 1
        case "beyond":
            va += 4096 - 63
        case "overlong":
            dma_len = 4097  # these 64 bytes would fit, their message does not
        case "longer than its length":
            dma_len = 63
        case "over mtu":
            payload = b"\xff" * 4097
            dma_len = 4096
    p.inject(p.b, crafted(p, payload, va=va, rkey=rkey, dma_len=dma_len))
    refused: list[Datagram] = []
    p.b.out.tap = refused.append
    p.run(for_ns=50_000)
    assert not any(buffer)
    nack = next(packets.decode(d.data) for d in refused if opcode_of(d) is Opcode.NACK)
    assert nack.neth.reason == at.NACK_UNEXP_EVENT  # type: ignore[union-attr]
    assert p.b.qp.state is QpState.RTS
    assert p.a.qp.state is QpState.RTS  # the refusal reached what looks like the sender, which sent nothing of the kind


def test_a_stale_key_in_a_duplicate_is_no_error() -> None:
    p = pair()
    seen: list[Datagram] = []
    p.a.out.tap = seen.append
    data = b"\x55" * 100
    buffer, region = p.b.region(100)
    p.a.qp.post_write(data, wr_id=1, remote_addr=region.addr, rkey=region.rkey)
    p.run()
    p.b.domain.deregister(region)
    buffer[:] = bytes(100)
    p.inject(p.b, seen[0])
    p.run()
    assert not any(buffer)
    assert p.a.qp.state is p.b.qp.state is QpState.RTS


def test_packets_for_others_and_broken_ones_are_counted_and_dropped() -> None:
    p = pair()
    before = list(p.b.qp.m)
    other = packets.encode(packets.Probe(Bth(Opcode.PROBE, 999, 0), packets.Peth(1)))
    broken = bytearray(crafted(p).data)
    broken[20] ^= 1
    for data in (other, bytes(broken), b"", b"\xdc" * 30):
        p.b.qp.receive(data, Path(1), p.now)
    assert p.b.qp.num_bad_packets == 4
    assert list(p.b.qp.m) == before


def test_another_dialect_is_not_understood() -> None:
    p = Pair(PROFILE, dialect=Dialect(icrc=Icrc.CRC32C))
    p.b.qp.dialect = Dialect()
    p.write(10)
    p.run(for_ns=100_000)
    assert p.b.qp.num_bad_packets > 0
    assert p.a.completions == []


def test_a_dialect_that_covers_addresses_is_refused_at_once() -> None:
    with pytest.raises(LocalProtocolError, match="does not see") as caught:
        end(PROFILE, 7, 1, dialect=Dialect(icrc=Icrc.ROCE))
    assert caught.value.code == "fabric/bad-attribute"


@pytest.mark.parametrize("seed", range(40))
def test_control_packets_full_of_nonsense_neither_raise_nor_complete_what_was_not_sent(seed: int) -> None:
    """SACKs, NACKs and answers of random content: at worst the queue pair ends by one of its reasons."""
    p = pair(there=Link(seed, drop_next=10**6))
    rng = p.a.out.random
    p.write(400_000)
    p.pump()
    for _ in range(150):
        bits = rng.getrandbits
        bth = Bth(Opcode.SACK, 17, 0, rtx=bool(bits(1)))
        seth = Seth(bits(24) if bits(2) else bits(5), bits(16) - 0x8000, bits(16) - 0x8000, bits(64), bits(32), bits(2))
        choices = (
            packets.Sack(bth, seth, packets.CcState(bits(16), bits(15), bits(24), bits(7), restore_cwnd=bool(bits(1)))),
            packets.Nack(replace(bth, opcode=Opcode.NACK), packets.Neth(bits(24) & 0xFF, bits(3), bits(32), bits(16))),
            packets.Response(replace(bth, opcode=Opcode.ENDPOINT_RESPONSE), packets.Eeth(bits(2), bits(2), bits(16))),
            packets.Ack(replace(bth, opcode=Opcode.ACK), packets.Aeth(bits(8), bits(24))),
        )
        p.a.qp.receive(packets.encode(rng.choice(choices)), Path(rng.choice(p.a.qp.evs)), p.now)
        p.now += bits(12)
        tx = p.a.qp.tx
        assert tx.una <= tx.next <= 98
        assert tx.done <= tx.posted == 1
        assert tx.cwnd >= tx.profile.min_cwnd
        p.pump()


# --- ports -----------------------------------------------------------------------------------------------------------


def test_a_port_that_goes_down_at_the_receiver_is_avoided_by_the_sender_at_once() -> None:
    p = pair()
    p.b.qp.set_ports(p.now, 0b1011)
    p.run(for_ns=30_000)
    assert evs.open_planes(p.a.qp.tx) == 0b1011
    planes = set()
    p.a.out.tap = lambda d: planes.add(d.path.plane)
    p.write(100_000)
    p.run()
    assert planes == {0, 1, 3}
    p.b.qp.set_ports(p.now, 0b1111)
    p.run(for_ns=30_000)
    p.write(100_000)
    p.run()
    assert planes == {0, 1, 2, 3}


def test_a_lost_port_status_is_sent_again() -> None:
    p = pair(back=Link(2, drop_next=1))
    p.b.qp.set_ports(p.now, 0b1011)
    p.run(for_ns=PROFILE.rto_ns + 30_000)
    assert evs.open_planes(p.a.qp.rx) == 0b1011
    assert p.b.qp.next_timer_ns() is None


@pytest.mark.parametrize("seed", range(12))
def test_port_updates_that_overtake_each_other_leave_the_newest(seed: int) -> None:
    p = pair(back=Link(seed, jitter_ns=40_000, double=0.3))
    for up in (0b0001, 0b0011, 0b0111, 0b1111, 0b1101):
        p.b.qp.set_ports(p.now, up)
        p.pump()
        p.now += 1_000
    p.run(for_ns=200_000)
    assert evs.open_planes(p.a.qp.tx) == evs.open_planes(p.a.qp.rx) == 0b1101


def test_ports_that_were_down_before_the_peer_was_known_are_avoided_and_announced() -> None:
    early, late = fresh(), fresh()
    early.qp.set_ports(0, 0b1110)
    lead(early, QpState.RTR)
    lead(late, QpState.RTR)
    late.qp.set_ports(0, 0b0111)
    for datagram in late.qp.transmit(0):
        early.qp.receive(datagram.data, datagram.path, 0)
    for side in (early, late):
        side.qp.modify(QpState.RTS, sq_psn=0)
        side.qp.post_write(bytes(200_000), wr_id=1, remote_addr=0, rkey=0)
    sent = list(early.qp.transmit(0))
    assert {d.path.plane for d in sent} == {1, 2}  # without its own plane 0 and the peer's plane 3
    assert Opcode.ENDPOINT_REQUEST in {opcode_of(d) for d in sent}
    assert {d.path.plane for d in late.qp.transmit(0)} == {0, 1, 2}


def test_a_queue_pair_without_any_port_ends_as_soon_as_it_is_led_on() -> None:
    side = fresh()
    side.qp.set_ports(0, 0)
    lead(side, QpState.RTR)
    assert side.qp.state is QpState.ERR
    failed = side.qp.poll_event()
    assert failed is not None
    assert isinstance(failed.error, PathsExhausted)


# --- what a controller and a host may ask ----------------------------------------------------------------------------


def test_a_denied_ev_is_not_used_until_it_is_allowed() -> None:
    p = pair()
    used: set[int] = set()
    p.a.out.tap = lambda d: used.add(d.path.ev)
    active = [ev for ev, state in p.a.qp.ev_states().items() if state is EvState.GOOD]
    assert len(active) == 16
    for ev in active[:8]:
        p.a.qp.deny_ev(ev)
    p.write(400_000)
    p.run()
    assert not used & set(active[:8])
    assert [p.a.qp.ev_states()[ev] for ev in active[:8]] == [EvState.DENIED] * 8
    p.a.qp.allow_ev(active[0])
    assert p.a.qp.ev_states()[active[0]] in {EvState.GOOD, EvState.STANDBY}


def test_what_is_no_ev_or_no_penalty_is_refused() -> None:
    p = pair()
    for call in (p.a.qp.deny_ev, p.a.qp.allow_ev):
        with pytest.raises(LocalProtocolError, match="has no EV 0x00000005"):
            call(5)
    for penalty in (-1, 128):
        with pytest.raises(LocalProtocolError, match="penalty must be 0 to 127"):
            p.a.qp.set_penalty(penalty)


def test_a_penalty_shrinks_the_peers_window_and_its_end_restores_it() -> None:
    p = pair()
    tx = p.a.qp.tx
    before = tx.cwnd
    p.b.qp.set_penalty(127)
    p.write(400_000)
    p.run()
    assert tx.cwnd < before - 300_000
    p.b.qp.set_penalty(0)
    p.write(1)
    p.run()
    assert tx.cwnd == min(before, tx.max_cwnd)


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_dead_peer_exhausts_the_retries() -> None:
    p = pair(there=Link(1, drop_next=10**9), rts={"retry_cnt": RetryCnt(1, 2), "timeout": 4})
    for number in range(3):
        p.write(5_000, wr_id=number)
    p.run()
    assert [c.status for c in p.a.completions] == [Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR, Status.WR_FLUSH_ERR]
    assert p.a.qp.state is QpState.ERR
    (event,) = p.a.events
    assert isinstance(event.error, RemoteProtocolError)
    assert event.error.code == "fabric/qp-failed"
    assert event.error.hint


def test_too_many_immediates_end_both_sides() -> None:
    p = pair(rts={"max_wimm": 9}, rtr={"max_wimm_dest": 1})
    for number in range(3):
        p.b.qp.post_recv(wr_id=number)
    p.a.out.drop_next = 1  # the first message stays open, so its followers' immediates pile up
    for number in range(3):
        p.write(5_000, imm=number, wr_id=number)
    p.run(for_ns=10**8)
    assert isinstance(p.b.events[0].error, RemoteProtocolError)
    assert [c.status for c in p.a.completions][:1] == [Status.REM_OP_ERR]
    assert [c.status for c in p.b.received] == [Status.WR_FLUSH_ERR] * 3


def test_without_ports_there_is_no_queue_pair() -> None:
    p = pair()
    p.write(5_000)
    p.a.qp.set_ports(p.now, 0)
    p.run()
    assert isinstance(p.a.events[0].error, PathsExhausted)
    assert [c.status for c in p.a.completions] == [Status.PORT_ERR]
    with pytest.raises(LocalProtocolError):
        p.write(1)


def test_closing_flushes_what_is_outstanding_once() -> None:
    p = pair()
    p.write(5_000, wr_id=4)
    p.a.qp.post_recv(wr_id=5)
    p.a.qp.close()
    p.a.qp.close()
    p.run()
    assert [(c.wr_id, c.status) for c in p.a.completions] == [(4, Status.WR_FLUSH_ERR)]
    assert [(c.wr_id, c.status) for c in p.a.received] == [(5, Status.WR_FLUSH_ERR)]
    assert p.a.qp.next_timer_ns() is None
    forced = pair()
    forced.a.qp.modify(QpState.ERR)
    assert forced.a.qp.state is QpState.ERR


# --- memory --------------------------------------------------------------------------------------------------------


def test_thousands_of_queue_pairs_come_and_go_in_the_memory_of_one() -> None:
    """What a queue pair holds goes with it: nothing keeps it, and nothing waits for the garbage collector."""
    device, cq = Device(PROFILE, count(1)), CompletionQueue(64)
    gc.disable()
    try:
        for _ in range(2_000):
            qp = device.create_qp(cq, cq)
            for target, attributes in STEPS:
                qp.modify(target, **attributes)
            device.join(qp, "peer")
            qp.close()
            device.leave(qp, "peer")
            held = weakref.ref(qp), weakref.ref(qp.rows.m.base)
            del qp
            assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()


def test_rows_of_a_queue_pair_end_where_its_memory_does() -> None:
    """Each has rows of its own length in memory of its own: no slip of an index reaches another's."""
    sides = [fresh(), fresh(mpr=128, evs_per_plane=4), fresh()]
    assert [len(side.qp.rows.m) for side in sides] == [state.num_words([side.qp.profile], 1, 1) for side in sides]
    for i, a in enumerate(sides):
        lead(a, QpState.RTS)
        assert not any(np.shares_memory(a.qp.rows.m, b.qp.rows.m) for b in sides[i + 1 :])
        with pytest.raises(IndexError):
            a.qp.m[len(a.qp.rows.m)] = 1
        with pytest.raises(IndexError):
            a.qp.rx.seen_bits[len(a.qp.rows.m)] = 1
