"""What the fabric sees of each kind of packet: bytes on the wire, class, whether a switch trims it. Pure.

For MRC the core is asked (`mrc/classes.py`). The reference simulator and RoCE have control packets of 64 bytes ahead
of data (ultraethernet/uet-htsim).
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.fabric.mrc.classes import dscp_of, header_bytes
from fairlead.fabric.mrc.headers import Dscp, Opcode
from fairlead.fabric.sim.engine import layout as at

OPCODES = {
    at.KIND_DATA: Opcode.WRITE_ONLY,
    at.KIND_SACK: Opcode.SACK,
    at.KIND_NACK: Opcode.NACK,
    at.KIND_ACK: Opcode.ACK,
    at.KIND_PROBE: Opcode.PROBE,
    at.KIND_EV_PROBE: Opcode.ENDPOINT_REQUEST,
    at.KIND_EV_REPLY: Opcode.ENDPOINT_RESPONSE,
    at.KIND_STATUS: Opcode.ENDPOINT_REQUEST,
    at.KIND_STATUS_REPLY: Opcode.ENDPOINT_RESPONSE,
}
OTHER_BYTES = 64
"""Of a control packet of the reference simulator and of RoCE; also the smallest frame of Ethernet."""
NETWORK_BYTES = 56
"""Around the UDP payload of MRC: IPv6, UDP, and 8 of what is below them."""
MRC_HEADER_BYTES = header_bytes(Opcode.WRITE_ONLY) + NETWORK_BYTES
"""Of a Write on the wire beyond its payload."""
_WITH_DATA = (at.KIND_DATA, at.KIND_PROBE, at.KIND_ROCE_DATA)


@dataclass(frozen=True)
class Kinds:
    """By kind of packet (engine/layout.py, KIND_*); data has sizes of its own."""

    sizes: tuple[int, ...]
    """Bytes on the wire."""
    control: int
    """Bit set of kinds that go ahead of data."""
    trimmable: int
    """Bit set of kinds that a switch cuts where they do not fit; the others are dropped."""


def _bits(kinds: tuple[int, ...] | list[int]) -> int:
    return sum(1 << kind for kind in kinds)


OTHERS = Kinds((OTHER_BYTES,) * 16, _bits([k for k in range(16) if k not in _WITH_DATA]), _bits(_WITH_DATA))
"""The reference simulator, and RoCE."""


def of_mrc(data_header_bytes: int) -> Kinds:
    """MRC where a Write of full size takes so many bytes on the wire beyond its payload."""
    network = data_header_bytes - header_bytes(Opcode.WRITE_ONLY)
    sizes = [header_bytes(OPCODES[kind]) + network if kind in OPCODES else OTHER_BYTES for kind in range(16)]
    classes = {kind: dscp_of(opcode, trims=True) for kind, opcode in OPCODES.items()}
    return Kinds(
        tuple(max(OTHER_BYTES, size) for size in sizes),
        _bits([k for k in range(16) if classes.get(k, Dscp.CONTROL) is Dscp.CONTROL]),
        _bits([k for k, dscp in classes.items() if dscp is Dscp.TRIMMABLE]),
    )
