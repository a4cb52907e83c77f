"""Which traffic class a packet rides in, and how large it is on the wire. Sockets and simulator both ask here.

Control (SACK, NACK, ACK, endpoint responses) goes ahead of data and is never trimmed. Writes, probes and endpoint
requests ride with data, so that they meet what data meets; a switch trims Writes alone, which have a payload to lose.
[MRC] names the classes and puts writes, retransmissions and reliability probes with data, answers into control; a
request of an EV probe may use any. `docs/explain/mrc-wire.md` has the numbers and what no public source confirms.
"""

from __future__ import annotations

from fairlead.fabric.mrc import icrc
from fairlead.fabric.mrc.headers import Bth, Dscp, Meth, Opcode, Reth, Tseth
from fairlead.fabric.mrc.packets import CONTROL_LENGTHS, WRITES

UDP_BYTES = 8
IPV6_BYTES = 40
CONTROL = frozenset({Opcode.SACK, Opcode.NACK, Opcode.ACK, Opcode.ENDPOINT_RESPONSE})


def dscp_of(opcode: Opcode, *, trims: bool, is_rtx: bool = False) -> Dscp:
    """The class of a packet; `trims`: the fabric's switches trim."""
    if opcode in CONTROL:
        return Dscp.CONTROL
    if opcode not in WRITES or not trims:
        return Dscp.NO_TRIM
    return Dscp.TRIMMABLE_RETX if is_rtx else Dscp.TRIMMABLE


def header_bytes(opcode: Opcode) -> int:
    """Bytes of a packet's UDP payload beyond the application's: headers with a timestamp where there is one, iCRC."""
    if opcode in WRITES:
        return Bth.SIZE + Meth.SIZE + Tseth.SIZE + Reth.SIZE + icrc.SIZE_BYTES
    return Bth.SIZE + CONTROL_LENGTHS[opcode] + icrc.SIZE_BYTES
