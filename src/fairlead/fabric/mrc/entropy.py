"""The entropy values of a queue pair: which numbers stand for its slots.

An EV is 32 bits: the UDP source port and the low 16 bits of the flow label. A queue pair has one for each slot, plane
by plane. Which of them a packet takes is the law's affair (evs.py, paths.py); how one becomes an address, the driver's.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import bits
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.rows import Endpoint

DYNAMIC_PORTS = 0xC000  # RFC 6335: 49,152 and above


def default_evs(profile: Profile, seed: int) -> tuple[int, ...]:
    """An entropy value for each slot: a source port of the dynamic range that tells the slot, a random flow label."""
    row = Endpoint(stream=bits.scramble(seed))
    return tuple(
        (DYNAMIC_PORTS | slot) << 16 | bits.random32(row) & 0xFFFF  # slot < 256
        for slot in range(profile.num_evs)
    )


def slots_of(evs: Sequence[int], profile: Profile) -> dict[int, int]:
    """The slot of each entropy value; LocalProtocolError unless there is a distinct one of 32 bits for every slot."""
    slots = {ev: slot for slot, ev in enumerate(evs)}
    if not len(slots) == len(evs) == profile.num_evs or not all(0 <= ev <= bits.LOW32 for ev in evs):
        raise LocalProtocolError(
            "fabric/bad-evs",
            f"{profile.num_evs} distinct EVs of 32 bits are needed",
            hint="give one EV for each slot",
        )
    return slots
