"""From two offers to a queue pair: what the ends agree on, and by what they know each other. Pure.

Both ends reckon from the same two offers, so both come to the same planes, entropy values and packet size.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from fairlead.errors import RemoteProtocolError
from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState
from fairlead.fabric.transport import lanes as ways
from fairlead.fabric.transport.engine import Engine, Line, Peer, Source
from fairlead.fabric.transport.exchange import Offer
from fairlead.fabric.transport.lanes import Lane


@dataclass(frozen=True, slots=True)
class Met:
    """Two offers that fit together."""

    mine: Offer
    theirs: Offer
    lanes: tuple[Lane, ...]
    rails: tuple[int, ...]
    """Port here of each lane."""
    mtu: int
    """Payload of a packet."""


def meet(mine: Offer, theirs: Offer) -> Met:
    """What two ends have in common. FabricError where they do not fit together."""
    if mine.sealed != theirs.sealed:
        raise _unfit("one end wants every packet authenticated, the other does not")
    if mine.icrc != theirs.icrc:
        raise _unfit("one end wants an iCRC in every packet, the other does not")
    if len(theirs.ports) != len(theirs.place.ports):
        raise _unfit("the other end names more or fewer sockets than it has ports")
    found = ways.lanes(mine.place, theirs.place)
    at = {port.address: rail for rail, port in enumerate(mine.place.ports)}
    return Met(mine, theirs, found, tuple(at[lane.here] for lane in found), min(mine.mtu, theirs.mtu))


def line_of(  # noqa: PLR0917 - who met, what was agreed, where it goes
    engine: Engine, met: Met, profile: Profile, token: bytes, send_cq: CompletionQueue, recv_cq: CompletionQueue
) -> Line:
    """The queue pair at this end, led to RTS. The engine does not know it yet."""
    mine, theirs = met.mine, met.theirs
    evs, routes = ways.routes(met.lanes, mine.ports, met.rails, seed=mine.psn)
    theirs_at = {port.address: ports for port, ports in zip(theirs.place.ports, theirs.ports, strict=True)}
    here, there = bytes.fromhex(mine.context), bytes.fromhex(theirs.context)
    sources = {
        Source(rail, str(ip_address(lane.there)), number): plane
        for plane, (lane, rail) in enumerate(zip(met.lanes, met.rails, strict=True))
        for number in theirs_at[lane.there]
    }
    seals = engine.seals.of(token, here, there) if mine.sealed else None
    peer = Peer(
        id=theirs.context,
        planes=sources,
        rails=dict(enumerate(met.rails)),
        sending=seals.sending if seals else None,
        receiving=seals.receiving if seals else None,
    )
    qp = engine.create_qp(peer, send_cq, recv_cq, qp_num=mine.qp_num, profile=profile, ev_values=evs)
    qp.modify(QpState.INIT)
    qp.modify(QpState.RTR, dest_qp_num=theirs.qp_num, rq_psn=theirs.psn, max_wimm_dest=mine.wimm)
    qp.modify(QpState.RTS, sq_psn=mine.psn, max_wimm=theirs.wimm, mpr=theirs.mpr)
    return Line(qp, engine.peer(peer), routes, tuple(theirs_at[lane.there][0] for lane in met.lanes))


def _unfit(message: str) -> RemoteProtocolError:
    return RemoteProtocolError("fabric/exchange", message, hint="start both ends with the same options")
