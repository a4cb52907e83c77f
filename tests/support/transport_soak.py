"""A random fault case of the transport in virtual time, drawn from a seed: what happens, and that nothing is lost.

Every kind of fault can come alone and with others: loss, duplication, reordering, truncation, corruption, packets of
strangers, sockets without room, an end that stands still, paths and planes that die and come back.
"""

from __future__ import annotations

import random

from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.transport.engine import Engine
from fairlead.fabric.transport.fast.engine import FastEngine
from support.transport_net import Faults, Net, Pair

MINUTE_NS = 60_000_000_000
BEGIN_NS = 1_000_000_000
GUARD = b"\xa5" * 64
SHARES = {
    "loss": (0.001, 0.01, 0.1, 0.2),
    "double": (0.01, 0.2),
    "corrupt": (0.01, 0.1),
    "cut": (0.01, 0.1),
    "stranger": (0.05,),
    "full": (0.1,),
    "jitter_ns": (400_000, 3_000_000),
}
GRAVE = 0.2
"""Share of packets that may be lost before a queue pair is allowed to give up."""


class Quiet(Net):
    """A network that keeps no record of what it carried."""

    def carry(self, to, arrival) -> None:
        super().carry(to, arrival)
        self.log.clear()


def faults_of(chance: random.Random, planes: int) -> Faults:
    """One to four kinds of faults; never all planes at once."""
    faults = Faults()
    for name in chance.sample([*SHARES, "paths", "plane", "still"], chance.randint(1, 4)):
        begin = BEGIN_NS + chance.randrange(5_000_000)
        end = begin + chance.choice((1_000_000, 20_000_000, 300_000_000))
        if name in SHARES:
            setattr(faults, name, chance.choice(SHARES[name]))
        elif name == "paths":
            faults.dead.append((chance.randrange(planes), chance.randrange(1, 255), begin, end))
        elif name == "plane" and planes > 1:
            faults.dead.append((chance.randrange(planes), 255, begin, end))
        elif name == "still":
            faults.still.append((chance.choice("ab"), begin, begin + chance.choice((1_000_000, 50_000_000))))
    return faults


def play(seed: int) -> bool:
    """One case; False if the queue pair gave up, as it may under grave faults. Asserts all else."""
    chance = random.Random(seed)
    planes = chance.randint(1, 4)
    faults = faults_of(chance, planes)
    kind = FastEngine if chance.random() < 0.8 else Engine
    pair = Pair(
        faults, seed=seed, planes=planes, sealed=chance.random() < 0.1, kind=kind, mtu=chance.choice((256, 1500))
    )
    pair.net.__class__ = Quiet
    ends = (pair.a, pair.b)
    told = []
    for here, there in (ends, ends[::-1])[: chance.randint(1, 2)]:
        sizes = [chance.choice((0, 1, 255, chance.randrange(9_000))) for _ in range(chance.randint(1, 8))]
        room = bytearray(GUARD + bytes(sum(sizes)) + GUARD)
        region = there.engine.device.domain.register(memoryview(room)[len(GUARD) : -len(GUARD)])
        wanted = chance.randbytes(sum(sizes))
        offset = 0
        for i, size in enumerate(sizes):
            there.line.qp.post_recv(wr_id=100 + i)
            where = {"remote_addr": region.addr + offset, "rkey": region.rkey}
            here.line.qp.post_write(wanted[offset : offset + size], wr_id=i, imm=i, **where)
            offset += size
        here.engine.wake(here.line)
        told.append((here, there, sizes, room, wanted))

    def is_over() -> bool:
        complete = all(len(here.done) == len(there.got) == len(sizes) for here, there, sizes, _, _ in told)
        return complete or any(end.line.error for end in ends)

    ended = pair.run(is_over, for_ns=MINUTE_NS)
    has_failed = any(end.line.error for end in ends)
    assert ended, "nothing more happens, and not all is done"
    for here, there, sizes, room, wanted in told:
        assert room[: len(GUARD)] == room[-len(GUARD) :] == GUARD
        num = len(sizes) if not has_failed else sum(c.status is Status.SUCCESS for c in here.done)
        there.got += there.receives.poll(4096)
        assert [(c.wr_id, c.status, c.num_bytes) for c in here.done[:num]] == [
            (i, Status.SUCCESS, size) for i, size in enumerate(sizes[:num])
        ]
        got = [(c.wr_id, c.imm, c.num_bytes) for c in there.got if c.status is Status.SUCCESS]
        assert got == [(100 + i, i, size) for i, size in enumerate(sizes[: len(got)])]
        assert len(got) >= num
        assert room[len(GUARD) :][: sum(sizes[: len(got)])] == wanted[: sum(sizes[: len(got)])]
    if has_failed:
        may = faults.loss + faults.corrupt + faults.cut >= GRAVE or faults.dead or faults.still
        assert may, [str(end.line.error) for end in ends]
    return not has_failed
