"""Whatever the network does, each message is placed bit for bit, completes once, and immediates come in order."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc import packets
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.mrc.packets import WRITES, Datagram
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState
from support.depth import cases
from support.mrc_pair import Link, Pair

PATHS = (at.PATH_MRC, at.PATH_OBLIVIOUS, at.PATH_BITMAP, at.PATH_REPS, at.PATH_MIXED)


def random_profile(rng: random.Random) -> Profile:
    """Small windows and few EVs, so that every limit is met."""
    planes = rng.choice((1, 2, 3, 4))
    per_plane = rng.choice((2, 4, 8))
    reorder_ns = rng.choice((0, 2_000, 20_000))
    return Profile.mrc(
        mtu=rng.choice((16, 64, 256)),
        mpr=rng.choice((128, 256)),
        max_messages=rng.choice((2, 4, 16)),
        max_wimm=rng.choice((1, 2, 64)),
        planes=planes,
        evs_per_plane=per_plane,
        evs_active=rng.randint(1, per_plane),
        ev_min_active=rng.randint(0, 4),
        path_rule=rng.choice(PATHS),
        reverse_rule=rng.choice((at.REVERSE_ECHO, at.REVERSE_SET)),
        reverse_probe_ns=rng.choice((0, 5_000)),
        ev_probe_ns=rng.choice((0, 15_000)),
        probe_ns=rng.choice((0, 30_000)) if reorder_ns else 0,  # their answers are of use for inference alone
        reorder_ns=reorder_ns,
        rto_ns=rng.choice((40_000, 262_144)),
        trim=rng.random() < 0.7,
        sack_rule=rng.choice((at.SACK_MRC, at.SACK_UEC)),
        sack_bytes=rng.choice((1, 4096, 16_384)),
        message_ack=rng.random() < 0.5,
        dynamic_mpr=rng.random() < 0.5,
        cc_rule=rng.choice((at.CC_NSCC, at.CC_CONSTANT)),
        whole_packet=rng.random() < 0.5,
        cwnd=rng.choice((0, 400, 5_000)),
        rate_mbps=rng.choice((100, 10_000)),
    )


def random_link(rng: random.Random) -> Link:
    """From perfect to hopeless."""

    def chance(top: float) -> float:
        return rng.choice((0.0, 0.0, top / 10, top))

    return Link(
        seed=rng.getrandbits(32),
        delay_ns=rng.choice((100, 5_000)),
        jitter_ns=rng.choice((0, 1_000, 60_000)),
        loss=chance(0.3),
        double=chance(0.3),
        mark=chance(0.8),
        trim=chance(0.4),
        last_hop=chance(1.0),
    )


def play(seed: int) -> None:
    """One random case: random parameters, links, messages; planes and EVs that die and come back."""
    rng = random.Random(seed)
    profile = random_profile(rng)
    pair = Pair(
        profile,
        seed=seed,
        there=random_link(rng),
        back=random_link(rng),
        psn=(rng.getrandbits(24), rng.getrandbits(24)),
    )
    placed: dict[int, int] = {}
    deliver = pair.deliver

    def watch(to: object, datagram: Datagram) -> None:
        """Count how often the bytes of each PSN are written."""
        before = pair.b.qp.rx.rcvd
        deliver(to, datagram)  # type: ignore[arg-type]
        if to is pair.b and pair.b.qp.rx.rcvd != before:
            psn = packets.decode(datagram.data).bth.psn
            placed[psn] = placed.get(psn, 0) + 1

    pair.deliver = watch  # type: ignore[method-assign]
    messages: list[tuple[bytes, bytearray, int | None]] = []
    num = rng.choice((1, 3, 20))

    def post() -> None:
        while len(messages) < num and len(messages) - len(pair.a.completions) < profile.max_messages:
            imm = rng.getrandbits(32) if rng.random() < 0.4 else None
            if imm is not None:
                pair.b.qp.post_recv(wr_id=len(messages))
            size = rng.choice((0, 1, profile.mtu, rng.randrange(40 * profile.mtu)))
            messages.append((*pair.write(size, imm=imm, wr_id=len(messages)), imm))

    def done() -> bool:
        post()
        trouble(rng, pair)
        return len(pair.a.completions) == num

    pair.run(done, for_ns=20_000_000_000_000, steps=2_000_000)
    context = f"seed {seed}: {profile} {pair.a.out} {pair.b.out}"
    assert [c.wr_id for c in pair.a.completions] == list(range(num)), context
    assert all(c.status is Status.SUCCESS for c in pair.a.completions), context
    assert all(buffer[: len(data)] == data for data, buffer, _ in messages), context
    assert [c.imm for c in pair.b.received] == [imm for _, _, imm in messages if imm is not None], context
    assert [c.num_bytes for c in pair.b.received] == [len(d) for d, _, imm in messages if imm is not None], context
    assert set(placed.values()) == {1}, context
    assert len(placed) == pair.a.qp.tx.num_new, context
    assert pair.a.qp.num_bad_packets == pair.b.qp.num_bad_packets == 0, context


def trouble(rng: random.Random, pair: Pair) -> None:
    """Now and then kill or revive a plane or an EV, silence a link, take a port down or up; one plane always works."""
    link = rng.choice((pair.a.out, pair.b.out))
    profile = pair.a.qp.profile
    plane = rng.randrange(profile.planes)
    match rng.randrange(400):
        case 0:
            link.dead_planes ^= {plane}
            if not working_planes(pair):
                link.dead_planes ^= {plane}
        case 1:
            if profile.reverse_rule != at.REVERSE_SET or not profile.reverse_probe_ns:
                link = pair.a.out  # nothing would ever replace a dead reverse EV
            link.dead_evs ^= {rng.choice(pair.a.qp.evs + pair.b.qp.evs)}
            if len(link.dead_evs) > profile.num_evs // 2:
                link.dead_evs.clear()
        case 2:
            link.drop_next = rng.choice((1, 4, 10))  # of a backed-off sender each of these takes twice as long
        case 3:
            qp = rng.choice((pair.a, pair.b)).qp
            up = qp.tx.ports ^ 1 << plane
            if working_planes(pair) & up and up & qp.tx.peer_ports:
                qp.set_ports(pair.now, up)


def working_planes(pair: Pair) -> int:
    """Planes on which packets pass both ways, as a bit set."""
    dead = sum(1 << plane for plane in pair.a.out.dead_planes | pair.b.out.dead_planes)
    ends = (pair.a.qp, pair.b.qp)
    return ends[0].tx.ports & ends[1].tx.ports & ~dead


@pytest.mark.parametrize("block", range(4))
def test_random_cases(block: int) -> None:
    for seed in range(block, cases(500), 4):
        play(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_twenty_thousand_random_cases(block: int) -> None:
    for seed in range((block + 5) * 2_000, (block + 6) * 2_000):
        play(seed)


@given(seed=st.integers(1 << 32, 1 << 62))
@settings(max_examples=cases(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_seed(seed: int) -> None:
    play(seed)


@given(data=st.data())
@settings(max_examples=cases(100), deadline=None)
def test_forged_writes_never_touch_memory(data: st.DataObject) -> None:
    """Packets from a stranger who knows the queue pair number but no key, mixed into real traffic."""
    pair = Pair(Profile.mrc(planes=2, evs_per_plane=4, evs_active=4, mpr=128))
    secret, _ = pair.b.region(4096)
    sent, received = pair.write(20_000)
    real: list[Datagram] = []
    pair.a.out.tap = real.append
    pair.pump()
    for datagram in real:
        if datagram.data[0] not in WRITES or not data.draw(st.booleans()):
            continue
        forged = bytearray(datagram.data)
        forged[24:28] = data.draw(st.binary(min_size=4, max_size=4))  # va, rkey or length of RETH
        place = data.draw(st.sampled_from((20, 28, 32)))
        forged[place : place + 4] = data.draw(st.binary(min_size=4, max_size=4))
        forged[-4:] = packets.icrc.compute(pair.b.qp.dialect.icrc, bytes(forged[:-4]))
        pair.inject(pair.b, Datagram(bytes(forged), datagram.path), delay_ns=data.draw(st.integers(0, 12_000)))
    pair.run(for_ns=10_000_000)
    assert not any(secret)
    if pair.a.qp.state is QpState.RTS:
        assert received == sent
