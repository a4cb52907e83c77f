"""Law of path choice: which EV the next packet takes and what becomes of an EV when its packet fares well or badly.

The rule of the protocol is the life cycle of EVs (evs.py) and their rotation (rotation.py). A profile may ask for the
rule of another protocol, to be compared with it (comparators.py).
"""

from __future__ import annotations

from fairlead.fabric.mrc import comparators, evs, rotation
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Requestor


def choose(tx: Requestor, ports: int, avoid: int) -> int:
    """The EV slot for the next packet, or -1 when no free port in the bit set `ports` may be used."""
    if tx.profile.path_rule != at.PATH_MRC:
        return comparators.choose(tx, ports)
    return rotation.rotate(tx, ports, avoid)


def choose_aside(tx: Requestor, ports: int) -> int:
    """As `choose`, for a packet without payload. With turns of its own (own_turns) it leaves the data's alone.

    A few packets and a probe in turn would come to the same few planes again and again.
    """
    if not tx.profile.own_turns:
        return choose(tx, ports, -1)
    plane = tx.plane
    tx.plane = tx.aside_plane
    slot = choose(tx, ports, -1)
    tx.aside_plane = tx.plane
    tx.plane = plane
    return slot


def choose_in_run(tx: Requestor, ports: int) -> int:
    """As `choose`, for a new data packet: the EV of the one before, while its run lasts and it is in turn."""
    slot = tx.run_ev
    if tx.run_left > 0 and rotation.is_in_turn(tx, slot, ports):
        tx.run_left -= 1
        return slot
    slot = choose(tx, ports, -1)
    if slot >= 0:
        tx.run_ev = slot
        tx.run_left = tx.profile.ev_run - 1
    return slot


def feedback(tx: Requestor, now: int, slot: int, what: int) -> None:
    """Tell the rule how a packet on this EV fared (PATH_IS_*)."""
    if tx.profile.path_rule != at.PATH_MRC:
        comparators.feedback(tx, now, slot, what)
    elif what == at.PATH_IS_GOOD:
        evs.trust(tx, slot)
    elif what == at.PATH_IS_LOSSY:
        evs.assume_bad(tx, slot)
    elif what == at.PATH_IS_SUSPECT:
        evs.suspect(tx, slot)
    else:
        evs.skip(tx, slot)


def forgive(tx: Requestor, slot: int) -> None:
    """A packet on this EV that was thought lost has arrived. The other rules keep what they hold against an EV."""
    if tx.profile.path_rule == at.PATH_MRC:
        evs.forgive(tx, slot)
        evs.restore_plane(tx, slot)
