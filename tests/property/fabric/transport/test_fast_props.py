"""The compiled engine against the plain one: the same conversation through both, every datagram and event compared."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from fairlead.fabric.mrc import packets
from fairlead.fabric.transport.engine import Engine
from fairlead.fabric.transport.fast.engine import FastEngine
from fairlead.fabric.transport.fast.seals import FastSeal
from fairlead.fabric.transport.ports import Arrival
from fairlead.fabric.transport.seal import WINDOW, Seal
from support.depth import cases
from support.transport_net import End, Faults, Pair

MINUTE_NS = 60_000_000_000
LATE_NS = 5_000_000
SHARE = st.sampled_from([0.0, 0.01, 0.05, 0.2])
FAULTS = st.builds(
    Faults, loss=SHARE, double=SHARE, corrupt=SHARE, cut=SHARE, stranger=SHARE, jitter_ns=st.sampled_from([0, 400_000])
)


def talk(
    *,
    kind: type[Engine],
    faults: Faults,
    seed: int,
    planes: int,
    sizes: list[int],
    options: dict[str, Any],
    late: bool = False,
    sealed: bool = False,
    rounds: bool = False,
    icrc: bool = True,
    qps: int = 1,
) -> Any:
    """Both ends write to each other with and without immediates, by all queue pairs; all that can be seen of it.

    With `late` the receive requests come some round trips after the immediates, which are refused until then.
    """
    pair = Pair(
        replace(faults),
        seed=seed,
        planes=planes,
        sealed=sealed,
        kind=kind,
        burst=16,
        rounds=rounds,
        icrc=icrc,
        qps=qps,
        **options,
    )
    chance = random.Random(seed)
    rooms = []
    for here, there in ((pair.a, pair.b), (pair.b, pair.a)):
        room = bytearray(sum(sizes))
        rooms.append(room)
        region = there.engine.device.domain.register(room)
        offset = 0
        for i, size in enumerate(sizes):
            if (qps > 1 or i % 3 != 2) and not late:  # a receive request lacks now and then
                there.lines[i % qps].qp.post_recv(wr_id=100 + i)
            where = {"remote_addr": region.addr + offset, "rkey": region.rkey}
            line = here.lines[i % qps]
            line.qp.post_write(chance.randbytes(size), wr_id=i, imm=i if i % 2 else None, **where)
            here.engine.wake(line)
            offset += size

    def is_over() -> bool:
        ends = (pair.a, pair.b)
        return all(len(e.done) == len(sizes) for e in ends) or any(
            line.error is not None for e in ends for line in e.lines
        )

    if late:
        pair.run(is_over, for_ns=LATE_NS)
        for end in (pair.a, pair.b):
            for i in range(len(sizes)):
                end.lines[i % qps].qp.post_recv(wr_id=100 + i)
    pair.run(is_over, for_ns=MINUTE_NS)
    return pair.net.log, rooms, [seen(end) for end in (pair.a, pair.b)]


def seen(end: End) -> tuple[Any, ...]:
    """What an end has to show: completions, every word of its state, counters."""
    engine, device = end.engine, end.engine.device
    counts = (+engine.counts, device.num_bad_packets, device.num_foreign_packets)
    num_left = engine.num_left if isinstance(engine, Counting) else 0
    lines = [(engine.sent(line), line.qp.m.tolist(), repr(line.error)) for line in end.lines]
    return end.done, end.got, lines, counts, num_left


@settings(max_examples=cases(12), deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    faults=FAULTS,
    seed=st.integers(0, 1 << 30),
    planes=st.integers(1, 4),
    sizes=st.lists(st.integers(0, 30_000), min_size=1, max_size=8),
    options=st.fixed_dictionaries(
        {}, optional={"mtu": st.sampled_from([256, 1500]), "trim": st.booleans(), "ev_run": st.integers(2, 20)}
    ),
    dies=st.booleans(),
    late=st.booleans(),
    sealed=st.booleans(),
    rounds=st.booleans(),
    icrc=st.booleans(),
    qps=st.integers(1, 3),
)
@example(  # what is refused for want of a receive request is answered by NACKs
    faults=Faults(),
    seed=1,
    planes=2,
    sizes=[5_000, 5_000],
    options={},
    dies=False,
    late=True,
    sealed=True,
    rounds=False,
    icrc=True,
    qps=1,
)
@example(  # rounds alone, with more than one turn of each queue pair in them
    faults=Faults(),
    seed=1,
    planes=2,
    sizes=[30_000] * 8,
    options={"mtu": 256},
    dies=False,
    late=False,
    sealed=False,
    rounds=True,
    icrc=False,
    qps=1,
)
@example(  # several queue pairs of one peer, of which each hears the answers to all probes
    faults=Faults(loss=0.05, jitter_ns=400_000),
    seed=2,
    planes=2,
    sizes=[30_000] * 8,
    options={"mtu": 256},
    dies=False,
    late=False,
    sealed=False,
    rounds=True,
    icrc=True,
    qps=2,
)
def test_both_engines_say_the_same_byte_by_byte(
    *, faults, seed, planes, sizes, options, dies, late, sealed, rounds, icrc, qps
) -> None:
    if not icrc and not sealed:  # nobody notices damage
        faults = replace(faults, corrupt=0.0, cut=0.0)
    if dies:
        faults.dead_from_ns[planes - 1] = 1_002_000_000
    fast, plain = (
        talk(
            kind=kind,
            faults=faults,
            seed=seed,
            planes=planes,
            sizes=sizes,
            options=options,
            late=late,
            sealed=sealed,
            rounds=rounds,
            icrc=icrc,
            qps=qps,
        )
        for kind in (FastEngine, Engine)
    )
    for number, (a, b) in enumerate(zip(fast[0], plain[0], strict=False)):
        assert a == b, number
    assert fast == plain


class Counting(FastEngine):
    """Counts the datagrams that are left to Python."""

    num_left = 0

    def _take(self, arrival: Arrival, now: int, *, is_open: bool = False) -> None:
        self.num_left += 1
        super()._take(arrival, now, is_open=is_open)


@pytest.mark.parametrize("qps", [1, 2])
@pytest.mark.parametrize("sealed", [False, True])
def test_python_takes_hardly_a_packet(*, sealed: bool, qps: int) -> None:
    """Those of the first moments and reliability probes, not the probe of an entropy value each round trip."""
    options = {"mtu": 256}
    _, _, (a, b) = talk(
        kind=Counting,
        faults=Faults(),
        seed=3,
        planes=2,
        sizes=[30_000] * 12,
        options=options,
        sealed=sealed,
        qps=qps,
    )
    for counts, num_left in ((end[3][0], end[4]) for end in (a, b)):
        assert counts["received"] > 1000
        assert num_left <= 2


def test_timers_are_never_told_a_time_before_that_of_the_rounds_before_them() -> None:
    """A packet that went after `now` looks as if it had gone four minutes before it."""
    pair = Pair(Faults(), planes=1, kind=FastEngine, rounds=True)
    region = pair.b.engine.device.domain.register(bytearray(5_000))
    pair.a.line.qp.post_write(bytes(5_000), wr_id=1, remote_addr=region.addr, rkey=region.rkey)
    pair.a.engine.wake(pair.a.line)
    begin = pair.net.now
    go = pair.a.ports.go

    def later(*args: Any) -> int:
        pair.net.now += 700_000
        return go(*args)

    pair.a.ports.go = later
    has_more, now = pair.a.engine.read_all([0], begin)
    assert (has_more, now) == (False, begin + 700_000)
    assert len(pair.net.log) > 5


RUN = 15


@pytest.mark.parametrize("kind", [FastEngine, Engine])
def test_packets_share_an_entropy_value_by_batches_and_what_is_lost_of_one_is_sent_again_alone(kind: Any) -> None:
    pair = Pair(Faults(), planes=2, mtu=512, kind=kind, ev_run=RUN)
    wanted, lost, again = {7, 22, 23, 44}, set(), []
    carry, seen = pair.net.carry, []

    def losing(to: str, arrival: Arrival) -> None:
        packet = packets.decode(bytes(arrival.data))
        if isinstance(packet, packets.Write):
            if packet.bth.rtx:
                again.append(packet.bth.psn)
            else:
                seen.append((packet.bth.psn, arrival.path.ev))
                if len(seen) - 1 in wanted:
                    lost.add(packet.bth.psn)
                    return
        carry(to, arrival)

    pair.net.carry = losing
    data = random.Random(1).randbytes(512 * 8 * RUN)
    room = bytearray(len(data))
    region = pair.b.engine.device.domain.register(room)
    pair.a.line.qp.post_write(data, wr_id=1, remote_addr=region.addr, rkey=region.rkey)
    pair.a.engine.wake(pair.a.line)
    assert pair.run(lambda: bool(pair.a.done), for_ns=MINUTE_NS)
    assert bytes(room) == data
    lengths = [len(list(group)) for _, group in groupby(ev for _, ev in seen)]
    assert lengths == [RUN] * 8
    batches_hit = {psn for psn, _ in seen[: 3 * RUN]}
    assert sorted(batches_hit.intersection(again)) == sorted(lost)
    assert len(lost) == len(wanted)


@settings(max_examples=cases(20), deadline=None)
@given(steps=st.lists(st.integers(-2 * WINDOW, 2 * WINDOW) | st.integers(-40, 40), max_size=16))
def test_both_windows_of_counters_say_the_same(*, steps: list[int]) -> None:
    plain, fast = (kind(b"t" * 32, b"a" * 16, b"b" * 16) for kind in (Seal, FastSeal))
    highest = 0
    for step in steps:
        number = max(highest + step, 0)
        highest = max(highest, number)
        assert plain._is_new(number) == fast._is_new(number), number
