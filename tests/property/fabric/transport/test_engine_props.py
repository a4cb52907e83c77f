"""Between two engines lies a network that does its worst: no wrong byte arrives, and everything ends."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import RemoteProtocolError
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.transport.engine import Engine
from fairlead.fabric.transport.fast.engine import FastEngine
from support.depth import cases
from support.transport_net import Faults, Pair

MINUTE_NS = 60_000_000_000
SHARE = st.sampled_from([0.0, 0.01, 0.05, 0.2])
FAULTS = st.builds(
    Faults,
    loss=SHARE,
    double=SHARE,
    corrupt=SHARE,
    cut=SHARE,
    stranger=SHARE,
    full=st.sampled_from([0.0, 0.1]),
    jitter_ns=st.sampled_from([0, 400_000, 3_000_000]),
)


@settings(max_examples=cases(40), deadline=None)
@given(
    faults=FAULTS,
    seed=st.integers(0, 1 << 30),
    planes=st.integers(1, 4),
    sealed=st.booleans(),
    sizes=st.lists(st.integers(0, 9_000), min_size=1, max_size=6),
    dies=st.booleans(),
    kind=st.sampled_from([Engine, FastEngine]),
)
def test_every_byte_is_right_and_every_request_completes_once(
    *, faults, seed, planes, sealed, sizes, dies, kind
) -> None:
    if dies and planes > 1:
        faults.dead_from_ns[planes - 1] = 1_002_000_000  # one plane loses everything soon after the start
    pair = Pair(faults, seed=seed, planes=planes, sealed=sealed, kind=kind)
    chance = random.Random(seed)
    guard = b"\xa5" * 64
    room = bytearray(guard + bytes(sum(sizes)) + guard)
    region = pair.b.engine.device.domain.register(memoryview(room)[64:-64])
    wanted = bytearray(sum(sizes))
    offset = 0
    for i, size in enumerate(sizes):
        data = chance.randbytes(size)
        wanted[offset : offset + size] = data
        pair.b.line.qp.post_recv(wr_id=100 + i)
        where = {"remote_addr": region.addr + offset, "rkey": region.rkey}
        pair.a.line.qp.post_write(data, wr_id=i, imm=i, **where)
        offset += size
    pair.a.engine.wake(pair.a.line)
    ended = pair.run(
        lambda: len(pair.a.done) == len(pair.b.got) == len(sizes) or bool(pair.a.line.error), for_ns=MINUTE_NS
    )
    assert room[:64] == guard
    assert room[-64:] == guard
    if pair.a.line.error is not None:  # all retries in a row were lost: rare, and said
        assert pair.a.done[0].status is not Status.SUCCESS or len(pair.a.done) < len(sizes)
        assert faults.loss + faults.corrupt + faults.cut >= 0.2
        return
    assert ended
    assert bytes(room[64:-64]) == bytes(wanted)
    assert [(c.wr_id, c.status, c.num_bytes) for c in pair.a.done] == [
        (i, Status.SUCCESS, size) for i, size in enumerate(sizes)
    ]
    assert [(c.wr_id, c.imm, c.num_bytes) for c in pair.b.got] == [(100 + i, i, size) for i, size in enumerate(sizes)]
    if faults.stranger == 0:
        assert pair.b.engine.counts["foreign"] == 0
    if not sealed or faults.double == faults.corrupt == faults.cut == faults.jitter_ns == 0:
        assert pair.b.engine.counts["unauthentic"] == 0


@settings(max_examples=cases(6), deadline=None)
@given(seed=st.integers(0, 1 << 30), planes=st.integers(1, 3), after_ns=st.integers(0, 3_000_000))
def test_a_peer_that_dies_is_reported_in_bounded_time(seed, planes, after_ns) -> None:
    pair = Pair(Faults(), seed=seed, planes=planes)
    room = bytearray(200_000)
    region = pair.b.engine.device.domain.register(room)
    begin = pair.net.now
    pair.net.faults.dead_from_ns = dict.fromkeys(range(planes), begin + after_ns)
    for i in range(2):
        pair.a.line.qp.post_write(bytes(100_000), wr_id=i, remote_addr=region.addr, rkey=region.rkey)
    pair.a.engine.wake(pair.a.line)
    assert pair.run(lambda: len(pair.a.done) == 2, for_ns=MINUTE_NS)
    if pair.a.done[-1].status is Status.SUCCESS:
        assert after_ns > 0  # it was done before the peer died
        return
    assert isinstance(pair.a.line.error, RemoteProtocolError)
    assert pair.net.now - begin < 3_000_000_000
    assert pair.a.done[-1].status in (Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR)
