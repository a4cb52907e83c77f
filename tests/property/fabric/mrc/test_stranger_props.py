"""Whatever a stranger sends: nothing raises, no byte is written without the right, only the four errors end a QP."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc import packets
from fairlead.fabric.mrc.completion import FAILURES, HINTS
from fairlead.fabric.mrc.control_headers import CcState, Eeth, Erth, Neth, Peth, Seth
from fairlead.fabric.mrc.headers import ENDPOINT_QP, Aeth, Bth, Dscp, EndpointOp, Meth, Opcode, Reth, Tseth
from fairlead.fabric.mrc.memory import MemoryRegion
from fairlead.fabric.mrc.packets import Datagram, Path, Write
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState
from support.depth import cases
from support.mrc_pair import Pair

PROFILES = (
    Profile.mrc(planes=2, evs_per_plane=4, evs_active=4, mpr=128, mtu=256, retry_exp=3),
    Profile.mrc(planes=1, evs_per_plane=4, evs_active=2, mpr=256, dynamic_mpr=True, cc_rule=at.CC_CONSTANT),
    Profile.uec(evs_per_plane=8, evs_active=8, mpr=128, max_messages=8),
)


# --- any packet ------------------------------------------------------------------------------------------------------


def nonsense(rng: random.Random, near: int) -> packets.Packet:
    """A well-formed packet of any kind whose fields are anybody's guess; half the PSNs lie near the window."""
    bits = rng.getrandbits
    psn = (near + rng.randrange(-200, 300)) & 0xFFFFFF if bits(1) else bits(24)
    opcode = rng.choice(list(Opcode))
    qp = ENDPOINT_QP if opcode in {Opcode.ENDPOINT_REQUEST, Opcode.ENDPOINT_RESPONSE} else 29
    payload = rng.randbytes(rng.choice((0, 1, 64, 4200)))
    bth = Bth(opcode, qp, psn, ack_request=bool(bits(1)), rtx=bool(bits(1)), has_timestamp=bool(bits(1)))
    match opcode:
        case Opcode.SACK:
            seth = Seth(psn, bits(16) - 0x8000, bits(16) - 0x8000, bits(64), bits(32), bits(2), bool(bits(1)), bits(8))
            return packets.Sack(bth, seth, CcState(bits(16), bits(15), bits(24), bits(7), bool(bits(1))))
        case Opcode.NACK:
            return packets.Nack(
                bth, Neth(psn, rng.choice((0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x19, bits(8))), bits(32), bits(16))
            )
        case Opcode.ACK:
            return packets.Ack(bth, Aeth(bits(8), bits(24)))
        case Opcode.PROBE:
            return packets.Probe(bth, Peth(bits(16), bits(16)))
        case Opcode.ENDPOINT_REQUEST:
            mask = bits(32) if bits(3) == 0 else 0xFFFFFFFF
            return packets.Request(bth, Erth(rng.choice(list(EndpointOp)), mask, bits(16)))
        case Opcode.ENDPOINT_RESPONSE:
            return packets.Response(bth, Eeth(bits(2), bits(2), bits(16)))
    return Write(
        bth=Bth(opcode, qp, psn, bth.ack_request, bth.rtx, bth.has_timestamp, pad=packets.padding(len(payload))),
        meth=Meth(bits(16), bits(16)),
        tseth=Tseth(bits(16)) if bth.has_timestamp else None,
        reth=Reth(bits(64), bits(32), rng.choice((0, len(payload), bits(32)))),
        payload=payload,
        imm=bits(32) if opcode in packets.WITH_IMM else None,
    )


def pester(seed: int) -> int:
    """A queue pair in use meets a hundred packets of nonsense; the reason it ended by, 0 if it lives."""
    rng = random.Random(seed)
    profile = rng.choice(PROFILES)
    pair = Pair(profile, seed=seed, psn=(rng.getrandbits(24), rng.getrandbits(24)))
    qp = pair.b.qp
    secret, _ = pair.b.region(8192)
    pair.write(6_000)
    qp.post_recv(wr_id=1)
    for _ in range(100):
        near = rng.choice((qp.rx.next, qp.tx.una))
        data = packets.encode(nonsense(rng, near))
        dscp = rng.choice((Dscp.NO_TRIM, Dscp.NO_TRIM, Dscp.TRIMMED, Dscp.TRIMMED_LASTHOP))
        path = Path(ev=rng.getrandbits(32), plane=rng.randrange(9), dscp=dscp, is_marked=rng.random() < 0.5)
        qp.receive(data[: rng.choice((len(data), rng.randrange(len(data) + 1)))], path, pair.now)
        pair.now += rng.choice((0, 100, 30_000))
        pair.pump()
    assert not any(secret)
    if qp.state is QpState.RTS:
        return 0
    reason = qp.tx.error or qp.rx.error
    assert qp.state is QpState.ERR
    assert reason in FAILURES
    return reason


def test_no_stranger_ends_a_queue_pair_with_a_hundred_guesses() -> None:
    """EVs are 32 bits and PSNs 24: nonsense near the window is answered, counted or ignored, never fatal."""
    assert Counter(pester(seed) for seed in range(300)) == {0: 300}


def test_each_reason_has_its_words() -> None:
    reasons = {value for name, value in vars(at).items() if name.startswith("ERROR_") and value != at.ERROR_NONE}
    assert set(FAILURES) == reasons
    assert len({words for *_, words in FAILURES.values()}) == len(reasons)
    assert set(HINTS) == {status for _, status, _ in FAILURES.values()}


# --- the right to write ----------------------------------------------------------------------------------------------


@dataclass
class Shelf:
    """A registered buffer and what a model that knows the rules says must stand in it."""

    buffer: bytearray
    region: MemoryRegion
    model: bytearray
    is_open: bool = True


def allowed(shelf: Shelf | None, va: int, num_bytes: int, dma_len: int, mtu: int) -> bool:
    """The rules, said once more: an open key, the whole message inside, no packet longer than message or MTU."""
    if num_bytes > dma_len or num_bytes > mtu:
        return False
    if dma_len == 0:
        return True
    return (
        shelf is not None
        and shelf.is_open
        and shelf.region.addr <= va
        and va + dma_len <= shelf.region.addr + len(shelf.buffer)
    )


@given(data=st.data())
@settings(max_examples=cases(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_memory_changes_exactly_where_a_right_was_given(data: st.DataObject) -> None:
    """Keys forged, stale, of another region; places round both ends; lengths too long for the message or the region."""
    pair = Pair(PROFILES[0])
    qp, domain, mtu = pair.b.qp, pair.b.domain, PROFILES[0].mtu
    shelves: list[Shelf] = []
    for size in (1, 64, 300, 300):
        buffer = bytearray(size)
        shelves.append(Shelf(buffer, domain.register(buffer), bytearray(size)))
    twin = domain.register(bytearray(300), addr=shelves[3].region.addr)  # the same place under another key
    domain.deregister(twin)
    for psn in range(data.draw(st.integers(1, 40))):
        target = data.draw(st.sampled_from(shelves))
        if data.draw(st.integers(0, 9)) == 0:
            domain.deregister(target.region)
            target.is_open = False
        size = len(target.buffer)
        keys = [s.region.rkey for s in shelves] + [twin.rkey, target.region.rkey ^ 1 << data.draw(st.integers(0, 31))]
        rkey = data.draw(st.sampled_from([target.region.rkey] * 6 + keys))
        edge = data.draw(st.sampled_from((0, 0, size // 2, size)))
        va = max(target.region.addr + edge + data.draw(st.integers(-3, 3)), 0)
        payload = data.draw(st.binary(max_size=mtu + 4))
        left = target.region.addr + size - va
        dma_len = max(data.draw(st.sampled_from((len(payload), len(payload), left, left + 1, len(payload) - 1, 0))), 0)
        opcode = data.draw(
            st.sampled_from((Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST, Opcode.WRITE_ONLY))
        )
        bth = Bth(opcode, qp.qp_num, psn, pad=packets.padding(len(payload)))
        write = packets.encode(Write(bth, Meth(0, psn), Reth(va, rkey, dma_len), payload))
        before = qp.rx.next
        for _ in range(data.draw(st.sampled_from((1, 1, 2)))):  # a double is never placed again
            qp.receive(write, Path(1), pair.now)
            owner = next((s for s in shelves if s.region.rkey == rkey), None)
            if qp.rx.next == before + 1 and before == psn:
                assert allowed(owner, va, len(payload), dma_len, mtu)
                if owner is not None and dma_len:
                    owner.model[va - owner.region.addr : va - owner.region.addr + len(payload)] = payload
                before = -1
            elif before == psn:
                assert not allowed(owner, va, len(payload), dma_len, mtu)
            assert all(s.buffer == s.model for s in shelves)
        if qp.rx.next == psn:  # refused: let the window move on with an empty write
            empty = Bth(Opcode.WRITE_ONLY, qp.qp_num, psn)
            qp.receive(packets.encode(Write(empty, Meth(0, psn), Reth(0, 0, 0), b"")), Path(1), pair.now)
        assert qp.rx.next == psn + 1
        assert qp.state is QpState.RTS


def test_a_key_that_goes_stale_in_mid_message_stops_its_remaining_packets() -> None:
    pair = Pair(PROFILES[0])
    real: list[Datagram] = []
    pair.a.out.tap = real.append
    buffer, region = pair.b.region(1024)
    pair.a.qp.post_write(b"\xaa" * 1024, wr_id=1, remote_addr=region.addr, rkey=region.rkey)
    sent = [d for d in pair.a.qp.transmit(pair.now) if d.data[0] in packets.WRITES]
    for datagram in sent[:2]:
        pair.b.qp.receive(datagram.data, datagram.path, pair.now)
    pair.b.domain.deregister(region)
    for datagram in sent[2:]:
        pair.b.qp.receive(datagram.data, datagram.path, pair.now)
    assert buffer == b"\xaa" * 512 + bytes(512)
    answers = [packets.decode(d.data) for d in pair.b.qp.transmit(pair.now)]
    reasons = {a.neth.reason for a in answers if isinstance(a, packets.Nack)}
    assert reasons == {at.NACK_UNEXP_EVENT}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_duplicate_from_long_ago_is_acknowledged(profile: Profile) -> None:
    """Older than the signed 16 bits of SETH can say."""
    pair = Pair(profile, psn=(1_000_000, 0))
    old = Write(Bth(Opcode.WRITE_ONLY, 29, 900_000), Meth(0, 0), Reth(0, 0, 0), b"")
    pair.b.qp.receive(packets.encode(old), Path(1, is_marked=True), pair.now)
    answers = [packets.decode(d.data) for d in pair.b.qp.transmit(pair.now)]
    (answer,) = [a for a in answers if isinstance(a, packets.Sack)]
    assert answer.seth.cack_psn == 999_999
    assert (answer.seth.sack_offset >= -0x8000, answer.seth.ack_psn_offset) == (True, -0x8000)
