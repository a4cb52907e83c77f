"""Ends that are replaced, lose a port, find a socket full or are hostile: both engines, in virtual time, alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead.errors import FabricError
from fairlead.fabric.mrc import icrc, packets
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.mrc.control_headers import Eeth, Erth
from fairlead.fabric.mrc.headers import ENDPOINT_QP, EndpointOp
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.layout import M_NONE, M_SKIP_ONCE
from fairlead.fabric.mrc.memory import MemoryRegion
from fairlead.fabric.mrc.packets import Path, Request, Response, Write
from fairlead.fabric.mrc.verbs import QpState
from fairlead.fabric.transport.engine import COUNTED, Engine
from fairlead.fabric.transport.fast.engine import FastEngine
from fairlead.fabric.transport.ports import Arrival
from support.transport_net import RTT_NS, End, Faults, Pair

pytestmark = pytest.mark.parametrize("kind", [Engine, FastEngine])
MTU = 512
SECOND_NS = 1_000_000_000


def post(end: End, region: MemoryRegion, data: bytes, wr_id: int = 1) -> None:
    end.line.qp.post_write(data, wr_id=wr_id, remote_addr=region.addr, rkey=region.rkey)
    end.engine.wake(end.line)


def region_of(end: End, size: int) -> tuple[bytearray, MemoryRegion]:
    room = bytearray(size)
    return room, end.engine.device.domain.register(room)


def sent_by(pair: Pair, end: End, first: int = 0) -> list[tuple[Any, bytes]]:
    """Path and bytes of each datagram that an end has sent, from entry `first` of the log on."""
    return [(path, data) for _, host, _, path, data in pair.net.log[first:] if host in end.addresses]


def test_every_counter_is_there_before_anything_is_counted(kind: type[Engine]) -> None:
    pair = Pair(Faults(), kind=kind)
    assert set(pair.a.engine.counts) == set(COUNTED)
    assert not any(pair.a.engine.counts.values())


# --- a full socket -----------------------------------------------------------------------------------------------


def test_when_a_port_has_room_again_what_waited_goes_and_more_with_no_news_from_the_peer(kind: type[Engine]) -> None:
    pair = Pair(Faults(full=1.0), planes=1, mtu=MTU, kind=kind)
    _, region = region_of(pair.b, 40 * MTU)
    post(pair.a, region, bytes(40 * MTU))
    engine = pair.a.engine
    engine.send(pair.net.now)
    held = engine.counts["held"]
    assert engine.blocked == {0: engine.blocked[0]}
    assert held >= 1
    assert sent_by(pair, pair.a) == []
    pair.net.faults.full = 0.0
    engine.writable(0)
    assert len(sent_by(pair, pair.a)) == held == engine.counts["sent"]
    while engine.send(pair.net.now):
        pass
    assert len(sent_by(pair, pair.a)) >= 40
    assert engine.blocked == {}


# --- a packet that is whole and cannot be --------------------------------------------------------------------------


def test_a_write_that_is_no_multiple_of_four_bytes_long_is_bad_and_placed_nowhere(kind: type[Engine]) -> None:
    pair = Pair(Faults(), planes=1, mtu=MTU, kind=kind)
    room, region = region_of(pair.b, MTU)
    post(pair.a, region, b"x" * MTU)
    while pair.a.engine.send(pair.net.now):
        pass
    pair.net.queue.clear()
    ((path, data),) = [(path, data) for path, data in sent_by(pair, pair.a) if len(data) > MTU]
    for num_bad, short in ((1, 1), (2, 2), (3, 3), (3, 0)):
        body = data[: len(data) - icrc.SIZE_BYTES - short]
        packet = body + icrc.compute(Icrc.PACKET, body)
        pair.b.ports.come[0].append(Arrival(memoryview(bytearray(packet)), pair.a.addresses[0], path))
        pair.b.engine.read(0, pair.net.now)
        assert pair.b.engine.device.num_bad_packets == num_bad
        assert room == (bytes(MTU) if short else b"x" * MTU)


# --- another process at the place of an old one ------------------------------------------------------------------


def test_a_new_process_at_the_place_of_an_old_one_takes_it_over(kind: type[Engine]) -> None:
    """Same address, same sockets: what waits for the old one ends, and what that still says counts for nothing."""
    pair = Pair(Faults(), planes=2, mtu=MTU, kind=kind)
    room, region = region_of(pair.b, 40 * MTU)
    back, back_region = region_of(pair.a, MTU)
    post(pair.b, back_region, b"old".ljust(MTU), wr_id=9)
    while pair.b.engine.send(pair.net.now):
        pass
    late = [(path, data) for path, data in sent_by(pair, pair.b) if packets.decode(data).bth.dest_qp != ENDPOINT_QP]
    pair.net.queue.clear()  # these are still under way
    post(pair.a, region, bytes(40 * MTU))
    old = pair.a.line
    pair.b = End(pair.net, 2, 2, MTU, sealed=False, icrc=True, kind=kind, burst=0, rounds=False)
    pair.b.offer = msgspec.structs.replace(pair.b.offer, context=f"{3:032x}")
    pair.a.offer = msgspec.structs.replace(pair.a.offer, qp_num=pair.a.engine.device.new_qp_num())
    pair.a.join(pair.b, pair.net.now)
    pair.b.join(pair.a, pair.net.now)
    assert old.qp.state is QpState.ERR
    assert old.error is not None
    assert old.error.code == "fabric/peer-gone"
    assert [(c.wr_id, c.status) for c in pair.a.sends.poll(8)] == [(1, Status.WR_FLUSH_ERR)]

    before = pair.a.engine.counts["foreign"] + pair.a.engine.device.num_foreign_packets
    for path, data in late:
        pair.a.ports.come[path.plane].append(Arrival(memoryview(bytearray(data)), pair.b.addresses[path.plane], path))
    for rail in range(2):
        pair.a.engine.read(rail, pair.net.now)
    assert pair.a.engine.counts["foreign"] + pair.a.engine.device.num_foreign_packets == before + len(late) > before
    assert not any(back)

    room, region = region_of(pair.b, 40 * MTU)
    data = bytes(i % 251 for i in range(40 * MTU))
    post(pair.a, region, data, wr_id=2)
    assert pair.run(lambda: bool(pair.a.done), for_ns=SECOND_NS)
    assert [(c.wr_id, c.status) for c in pair.a.done] == [(2, Status.SUCCESS)]
    assert bytes(room) == data


# --- a port goes down --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_early", [True, False], ids=["before they meet", "later"])
def test_the_peer_is_told_that_a_port_is_down_and_loses_nothing_on_its_plane(
    kind: type[Engine], *, is_early: bool
) -> None:
    pair = Pair(Faults(), planes=2, mtu=MTU, kind=kind)
    engine, line = pair.a.engine, pair.a.line
    if is_early:
        engine.lines.pop(line, None)
        engine.set_ports(0b10, pair.net.now)
        engine.add(line, pair.net.now)
    _, region = region_of(pair.a, 400 * MTU)
    post(pair.b, region, bytes(400 * MTU))
    assert pair.run(lambda: len(sent_by(pair, pair.b)) > 100, for_ns=SECOND_NS)
    if not is_early:
        assert {path.plane for path, _ in sent_by(pair, pair.b)} == {0, 1}
        engine.set_ports(0b10, pair.net.now)
    told_by = pair.net.now + 2 * RTT_NS
    pair.run(lambda: pair.net.now > told_by, for_ns=SECOND_NS)
    first = len(pair.net.log)
    post(pair.b, region, bytes(400 * MTU), wr_id=2)
    assert pair.run(lambda: len(pair.b.done) == 2, for_ns=SECOND_NS)
    requests = [packets.decode(data) for _, data in sent_by(pair, pair.a)]
    masks = {one.erth.port_status_mask for one in requests if isinstance(one, Request)}
    assert 0b10 in masks
    assert {path.plane for path, _ in sent_by(pair, pair.b, first)} == {1}


# --- probes of entropy values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("psn", [6, 7], ids=["a requestor asks", "a responder asks"])
def test_an_ev_probe_is_answered_by_how_it_fared(kind: type[Engine], psn: int, *, marked: bool) -> None:
    pair = Pair(Faults(), planes=2, mtu=MTU, kind=kind)
    probe = Request(
        packets.Bth(packets.Opcode.ENDPOINT_REQUEST, ENDPOINT_QP, psn), Erth(EndpointOp.EV_PROBE, tx_timestamp=777)
    )
    path = Path(pair.a.ports.numbers[1][3] << 16, 1, 0, is_marked=marked)
    pair.b.ports.come[1].append(Arrival(memoryview(bytearray(packets.encode(probe))), pair.a.addresses[1], path))
    pair.b.engine.read(1, pair.net.now)
    pair.b.engine.send(pair.net.now)
    ((back, data),) = sent_by(pair, pair.b)
    answer = packets.decode(data)
    assert isinstance(answer, packets.Response)
    assert (answer.bth.psn, answer.eeth.op, answer.eeth.tx_timestamp) == (psn, EndpointOp.EV_PROBE, 777)
    assert answer.eeth.m == (M_SKIP_ONCE if marked else M_NONE)
    assert back.plane == 1 or psn == 7  # a responder's comes back on the sender's own turns


def test_a_probe_is_answered_once_by_a_queue_pair_that_stands_and_all_of_those_hear_the_answer(
    kind: type[Engine],
) -> None:
    pair = Pair(Faults(), planes=2, mtu=MTU, kind=kind, qps=3)
    engine = pair.b.engine
    engine.fail(pair.b.lines[0], FabricError("fabric/closed", "gone", hint="none"))
    while any(end.engine.send(pair.net.now) for end in (pair.a, pair.b)):
        pass
    first = len(pair.net.log)
    probe = Request(packets.Bth(packets.Opcode.ENDPOINT_REQUEST, ENDPOINT_QP, 6), Erth(EndpointOp.EV_PROBE))
    said = Response(packets.Bth(packets.Opcode.ENDPOINT_RESPONSE, ENDPOINT_QP, 6), Eeth(EndpointOp.EV_PROBE))
    path = Path(pair.a.ports.numbers[1][3] << 16, 1, 0)
    for packet, hear in ((probe, pair.b.lines[1:2]), (said, pair.b.lines[1:])):
        arrival = Arrival(memoryview(bytearray(packets.encode(packet))), pair.a.addresses[1], path)
        pair.b.ports.come[1].append(arrival)
        engine.read(1, pair.net.now)
        assert list(engine._ready) == hear
        engine.send(pair.net.now)
    answers = [packets.decode(data) for _, data in sent_by(pair, pair.b, first)]
    assert [type(one) for one in answers] == [Response]


# --- a hostile peer ----------------------------------------------------------------------------------------------


def spoilt(data: bytes, change: Callable[[Write], Write]) -> bytes:
    packet = packets.decode(data)
    assert isinstance(packet, Write)
    return packets.encode(change(packet))


def without_its_padding(data: bytes) -> bytes:
    """A packet without payload that says that three bytes of it are padding."""
    body = bytearray(data[:-4])
    body[1] = 3 << 4
    return bytes(body) + icrc.compute(Icrc.PACKET, bytes(body))


def hostile(pair: Pair, change: Callable[[bytes], bytes]) -> tuple[bytearray, list[bytes]]:
    """The peer's first packet, of a Write of several MTUs, changed by it; the region, and what is answered."""
    room, region = region_of(pair.b, 8 * MTU)
    post(pair.a, region, b"\xff" * (8 * MTU))
    pair.a.engine.send(pair.net.now)
    first, path = next((data, path) for path, data in sent_by(pair, pair.a) if data[0] == packets.Opcode.WRITE_FIRST)
    pair.net.queue.clear()
    num = len(pair.net.log)
    came = Arrival(memoryview(bytearray(change(first))), pair.a.addresses[path.plane], path)
    pair.b.ports.come[path.plane].append(came)
    pair.b.engine.read(path.plane, pair.net.now)
    pair.b.engine.send(pair.net.now)
    return room, [data for _, data in sent_by(pair, pair.b, num)]


def test_a_payload_of_more_than_the_mtu_is_refused_and_not_placed(kind: type[Engine]) -> None:
    """Within the region and with the right key: only the MTU that both agreed on is exceeded."""
    answers = {}
    for size in (MTU, MTU + 4):
        pair = Pair(Faults(), planes=1, mtu=MTU, kind=kind)
        room, answers[size] = hostile(
            pair,
            lambda data: spoilt(data, lambda one: replace(one, payload=b"\xee" * size)),  # noqa: B023
        )
        assert sum(room) == (0xEE * MTU if size == MTU else 0)
    assert any(data[0] == packets.Opcode.NACK for data in answers[MTU + 4])
    assert not any(data[0] == packets.Opcode.NACK for data in answers[MTU])


@pytest.mark.parametrize(
    "change",
    [
        lambda data: without_its_padding(spoilt(data, lambda one: replace(one, payload=b""))),
        lambda data: spoilt(data, lambda one: replace(one, payload=one.payload[:-2])),
        lambda data: spoilt(data, lambda one: replace(one, bth=replace(one.bth, pad=3))),
    ],
    ids=["more than there is", "too little", "too much"],
)
def test_padding_that_cannot_be_is_no_packet(kind: type[Engine], change: Callable[[bytes], bytes]) -> None:
    pair = Pair(Faults(), planes=1, mtu=MTU, kind=kind)
    room, answers = hostile(pair, change)
    assert pair.b.engine.device.num_bad_packets == 1
    assert not any(room)
    assert answers == []
    assert pair.b.line.error is None
