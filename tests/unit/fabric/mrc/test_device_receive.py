"""A device gives packets to queue pairs: only the peer's, endpoint packets to all with that peer."""

from __future__ import annotations

import itertools

from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.control_headers import Erth
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.headers import ENDPOINT_QP, Bth, EndpointOp, Opcode
from fairlead.fabric.mrc.packets import Path, Request, Response, decode, encode
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.qp import QueuePair
from fairlead.fabric.mrc.verbs import QpState

PATH = Path(ev=1, plane=0)


def joined(device: Device, num: int, peer: str, dest: int = 40) -> list[QueuePair]:
    cq = CompletionQueue(64)
    out = []
    for i in range(num):
        qp = device.create_qp(cq, cq)
        qp.modify(QpState.INIT)
        qp.modify(QpState.RTR, dest_qp_num=dest + i, rq_psn=0)
        qp.modify(QpState.RTS, sq_psn=0)
        device.join(qp, peer)
        out.append(qp)
    return out


def device() -> Device:
    return Device(Profile.mrc(planes=4), itertools.count(7))


def test_a_packet_reaches_the_queue_pair_it_names_if_its_peer_sent_it() -> None:
    here, there = device(), device()
    (mine,), (theirs,) = joined(here, 1, "b", dest=3), joined(there, 1, "a", dest=3)
    buffer = bytearray(100)
    region = there.domain.register(buffer)
    mine.post_write(b"x" * 100, wr_id=1, remote_addr=region.addr, rkey=region.rkey)
    (datagram,) = [d for d in mine.transmit(1_000_000) if d.payload]
    assert there.receive(datagram.data, datagram.path, "somebody", 1_000_100) == ()
    assert there.num_foreign_packets == 1
    assert bytes(buffer) == bytes(100)
    assert there.receive(datagram.data, datagram.path, "a", 1_000_200) == (theirs,)
    assert bytes(buffer) == b"x" * 100
    assert there.receive(datagram.data[:-1], datagram.path, "a", 1_000_300) == ()
    assert there.num_bad_packets == 1
    there.leave(theirs, "a")
    assert there.receive(datagram.data, datagram.path, "a", 1_000_400) == ()
    assert there.num_foreign_packets == 2


def test_a_queue_pair_number_of_another_peer_is_foreign() -> None:
    there = device()
    joined(there, 1, "a")
    (other,) = joined(there, 1, "c")
    probe = encode(Request(Bth(Opcode.ENDPOINT_REQUEST, other.qp_num, 2), Erth(EndpointOp.EV_PROBE, 0, 0)))
    assert there.receive(probe, PATH, "a", 1) == ()
    assert there.num_foreign_packets == 1


def test_a_peer_writes_through_its_own_queue_pairs_alone() -> None:
    """Also one that is known here, and knows number, PSN and key of what is another's."""
    here, there = device(), device()
    (mine,), (theirs,), _ = joined(here, 1, "b", dest=3), joined(there, 1, "a", dest=3), joined(there, 1, "c", dest=9)
    assert mine.dest_qp_num == theirs.qp_num
    buffer = bytearray(100)
    region = there.domain.register(buffer)
    mine.post_write(b"x" * 100, wr_id=1, remote_addr=region.addr, rkey=region.rkey)
    (datagram,) = [d for d in mine.transmit(1_000_000) if d.payload]
    assert there.receive(datagram.data, datagram.path, "c", 1_000_100) == ()
    assert there.num_foreign_packets == 1
    assert bytes(buffer) == bytes(100)
    assert there.receive(datagram.data, datagram.path, "a", 1_000_200) == (theirs,)
    assert bytes(buffer) == b"x" * 100


def test_an_ev_probe_is_answered_once_however_many_queue_pairs_the_peer_has() -> None:
    there = device()
    qps = joined(there, 3, "a")
    probe = encode(Request(Bth(Opcode.ENDPOINT_REQUEST, ENDPOINT_QP, 8), Erth(EndpointOp.EV_PROBE, 0, 77)))
    assert there.receive(probe, PATH, "a", 1_000) == (qps[0],)
    answers = [decode(d.data) for qp in qps for d in qp.transmit(2_000)]
    assert [type(a) for a in answers if isinstance(a, Response)] == [Response]


def test_news_of_the_peers_ports_reaches_all_queue_pairs_with_it_and_no_others() -> None:
    there = device()
    qps, (other,) = joined(there, 2, "a"), joined(there, 1, "c")
    status = encode(Request(Bth(Opcode.ENDPOINT_REQUEST, ENDPOINT_QP, 5), Erth(EndpointOp.PORT_STATUS, 0b0011, 0)))
    assert there.receive(status, PATH, "a", 1_000) == tuple(qps)
    masks = [qp.tx.peer_ports & 0xF for qp in (*qps, other)]
    assert masks == [0b0011, 0b0011, 0b1111]
    answers = [decode(d.data) for qp in qps for d in qp.transmit(2_000)]
    assert len([a for a in answers if isinstance(a, Response)]) == 1
