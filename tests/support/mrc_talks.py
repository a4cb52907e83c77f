"""Conversations of two queue pairs that together exercise every rule of the law, and their summaries.

Each is deterministic: virtual time, seeded misfortune. A summary holds what a protocol engineer would compare, and a
digest of every packet in order, so that any change of any rule shows. Run as a program it writes the summaries anew:

    PYTHONPATH=tests python -m support.mrc_talks > tests/golden/mrc_talks.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc import packets
from fairlead.fabric.mrc.packets import Datagram
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import RetryCnt
from support.mrc_pair import Link, Pair

GOLDEN = FilePath(__file__).parent.parent / "golden" / "mrc_talks.json"
PLANES = 4
MRC = Profile.mrc(
    planes=PLANES, evs_per_plane=8, evs_active=4, ev_min_active=2, mpr=256, rate_mbps=400_000, max_messages=16
)
UEC = Profile.uec(mpr=256, evs_per_plane=16, evs_active=16, ring_size=8, rto_ns=60_000, freeze_ns=200_000)


@dataclass(frozen=True)
class Talk:
    """Messages from a to b (a second number is an immediate) and what the network does to them."""

    profile: Profile = MRC
    there: Mapping[str, object] = field(default_factory=dict)
    back: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[tuple[int, int | None], ...] = ((300_000, None),)
    silence_at: int = -1  # after so many datagrams from a ...
    silence: int = 0  # ... so many are lost in a row
    rts: Mapping[str, object] = field(default_factory=dict)


TALKS: dict[str, Talk] = {
    "quiet": Talk(messages=((300_000, None), (1, 7), (0, 8), (200_000, None))),
    "mixed trouble": Talk(
        there={"loss": 0.05, "jitter_ns": 9_000, "trim": 0.05, "mark": 0.1, "double": 0.02, "last_hop": 0.3},
        back={"loss": 0.05, "jitter_ns": 4_000},
        messages=((300_000, None), (70_000, 3), (5, None), (150_001, 4)),
    ),
    "incast": Talk(there={"trim": 0.6, "last_hop": 0.5, "mark": 0.6, "jitter_ns": 40_000}, messages=((900_000, None),)),
    "congestion": Talk(there={"mark": 0.7, "jitter_ns": 60_000, "delay_ns": 20_000}, messages=((2_000_000, None),)),
    "all marked": Talk(  # every EV in rotation: one changes places with a standby now and then
        profile=replace(MRC, evs_active=1), there={"mark": 0.9, "jitter_ns": 20_000}, messages=((2_000_000, None),)
    ),
    "silence": Talk(
        messages=((400_000, None),), silence_at=20, silence=330, rts={"timeout": 6, "retry_cnt": RetryCnt(linear=1)}
    ),
    "few immediates": Talk(messages=tuple((9_000, n) for n in range(12)), rts={"max_wimm": 2}),
    "paced": Talk(
        profile=replace(MRC, pace_percent=125, pace_burst_ns=3_000), there={"loss": 0.02}, messages=((900_000, None),)
    ),
    "dynamic window": Talk(profile=Profile.mrc(planes=1, evs_per_plane=8, evs_active=8, mpr=128, dynamic_mpr=True)),
    "bitmap": Talk(
        profile=Profile.uec(mpr=256, evs_per_plane=16, evs_active=16, path_rule=at.PATH_BITMAP, rto_ns=60_000),
        there={"mark": 0.2, "trim": 0.1, "loss": 0.02, "jitter_ns": 3_000},
        messages=((800_000, None),),
    ),
    "reps": Talk(
        profile=Profile.uec(
            mpr=256,
            evs_per_plane=16,
            evs_active=16,
            path_rule=at.PATH_REPS,
            ring_size=8,
            rto_ns=60_000,
            freeze_ns=60_000,
        ),
        there={"mark": 0.2, "loss": 0.03, "jitter_ns": 3_000},
        messages=((3_000_000, None),),
    ),
    "mixed": Talk(profile=UEC, there={"mark": 0.3, "trim": 0.1}, messages=((800_000, None),)),
    "oblivious": Talk(
        profile=Profile.uec(mpr=256, evs_per_plane=16, evs_active=16, path_rule=at.PATH_OBLIVIOUS),
        messages=((800_000, None),),
    ),
}

COUNTERS = {
    "new": "num_new",
    "again": "num_rtx",
    "sacks": "num_sacks",
    "nacks": "num_nacks",
    "timeouts": "num_timeouts",
    "inferred losses": "num_lost",
    "cwnd": "cwnd",
    "base rtt": "base_rtt",
    "delay average": "avg_delay",
    "bad evs": "ev_bad",
    "retries": "retries",
}


def hold(talk: Talk, make: Callable[..., Pair] = Pair) -> dict[str, object]:
    """Hold a conversation, check that every byte arrived once and in place, and sum it up."""
    seen = hashlib.sha256()
    kinds: Counter[str] = Counter()
    there = Link(11, **talk.there)  # type: ignore[arg-type]
    back = Link(12, **talk.back)  # type: ignore[arg-type]
    pair = make(talk.profile, seed=5, there=there, back=back, rts=dict(talk.rts), psn=(0xFFFFF0, 0xFFFF00))
    sent = 0

    def watch(side: int, evs: tuple[int, ...]) -> Callable[[Datagram], None]:
        slots = {ev: slot for slot, ev in enumerate(evs)}

        def tap(datagram: Datagram) -> None:
            nonlocal sent
            packet = packets.decode(datagram.data)
            kinds[packet.bth.opcode.name] += 1
            if side == 0:
                sent += 1
                if sent == talk.silence_at:
                    there.drop_next = talk.silence
            text = repr((side, slots[datagram.path.ev], int(datagram.path.dscp), _fields(packet)))
            seen.update(text.encode())

        return tap

    there.tap = watch(0, pair.a.qp.evs)
    back.tap = watch(1, pair.b.qp.evs)
    pairs = []
    for number, (num_bytes, imm) in enumerate(talk.messages):
        pair.b.qp.post_recv(wr_id=100 + number)
        pairs.append(pair.write(num_bytes, imm=imm, wr_id=number))
    begin = pair.now
    pair.run(lambda: len(pair.a.completions) == len(talk.messages), for_ns=400_000_000)
    assert [c.wr_id for c in pair.a.completions] == list(range(len(talk.messages))), pair.a.events
    assert all(received[: len(data)] == data for data, received in pairs)
    assert [c.imm for c in pair.b.received] == [imm for _, imm in talk.messages if imm is not None]
    return {
        "time ns": pair.now - begin,
        "packets": dict(sorted(kinds.items())),
        **{name: getattr(pair.a.qp.tx, field) for name, field in COUNTERS.items()},
        "digest": seen.hexdigest()[:16],
    }


def _fields(packet: packets.Packet) -> object:
    """What counts of a packet: all but the payload, the EV a SACK echoes, and the place in memory."""
    match packet:
        case packets.Write(bth, meth, reth, payload, tseth, imm):
            return (bth, meth, reth.dma_len, len(payload), tseth, imm)
        case packets.Sack(bth, seth, cc):
            return (bth, seth.cack_psn, seth.ack_psn_offset, seth.sack_offset, seth.sack_bitmap, seth.m, seth.mpr, cc)
        case packets.Nack(bth, neth):
            return (bth, neth.nack_psn, neth.reason, neth.tx_timestamp)
        case _:
            return packet


if __name__ == "__main__":
    json.dump({name: hold(talk) for name, talk in TALKS.items()}, sys.stdout, indent=1)
    print()
