"""The invariant CRC at the end of each packet, in the variants that may be meant.

No public MRC packet with its iCRC is known, so which bytes it covers is open. The variants are switchable:

    ROCE     as RoCEv2 (IBTA annex A17): Ethernet CRC-32 over 8 bytes of ones, the IP and UDP headers and the packet,
             with every field ones that changes on the way (traffic class, flow label, hop limit or their IPv4 equals;
             UDP checksum; BTH byte 4). Stored least significant byte first, as RoCE NICs do.
    PACKET   the same over the packet from the BTH on, no addresses: on a fabric of micro-segments the destination
             address that arrives is not the one that was sent. The default.
    CRC32C   CRC-32C (Castagnoli) over the packet from the BTH on, nothing masked, most significant byte first: one
             public emulator's reading.
    NONE     four zero bytes, never checked: for a driver or a NIC that adds and checks one of its own.

All cover the BTH up to the end of the padded payload.
"""

from __future__ import annotations

import enum
import functools
import zlib
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview
SIZE_BYTES = 4
_BTH_VARIANT_BYTE = 4  # BTH @4: resv8a, "variant"
_CASTAGNOLI = 0x82F63B78  # 0x1EDC6F41 reflected
_UDP_BYTES = 8


class Icrc(enum.Enum):
    """Which invariant CRC a packet ends in."""

    PACKET = "packet"
    ROCE = "roce"
    CRC32C = "crc32c"
    NONE = "none"


def compute(variant: Icrc, packet: Buffer, network: bytes = b"", more: Sequence[Buffer] = ()) -> bytes:
    """The four bytes that follow `packet` (BTH to padded payload) and what is `more` of it, lying elsewhere.

    ROCE needs `network`: the IP and UDP headers.
    """
    if variant is Icrc.NONE:
        return bytes(SIZE_BYTES)
    if variant is Icrc.CRC32C:
        return _crc32c(b"".join((packet, *more))).to_bytes(SIZE_BYTES, "big")
    head = bytearray(packet[: _BTH_VARIANT_BYTE + 1])
    head[_BTH_VARIANT_BYTE] = 0xFF
    crc = zlib.crc32(b"\xff" * 8 + _masked(network)) if variant is Icrc.ROCE else 0
    crc = zlib.crc32(packet[_BTH_VARIANT_BYTE + 1 :], zlib.crc32(head, crc))
    for part in more:
        crc = zlib.crc32(part, crc)
    return crc.to_bytes(SIZE_BYTES, "little")


def udp_offset(network: bytes) -> int:
    """Where the UDP header begins in IP and UDP headers; 0 if they are not whole."""
    version = network[0] >> 4 if network else 0
    offset = 40 if version == 6 else (network[0] & 0x0F) * 4 if version == 4 else 0
    return offset if offset >= 20 and len(network) >= offset + _UDP_BYTES else 0


def _masked(network: bytes) -> bytes:
    """IP and UDP headers with every field that may change on the way set to ones."""
    udp = udp_offset(network)
    assert udp, "the iCRC variant ROCE covers whole IP and UDP headers"
    header = bytearray(network[: udp + _UDP_BYTES])
    if header[0] >> 4 == 6:
        ones = (1, 2, 3, 7)  # rest of the traffic class, flow label, hop limit
        header[0] |= 0x0F
    else:
        ones = (1, 8, 10, 11)  # TOS, TTL, header checksum
    for i in (*ones, udp + 6, udp + 7):
        header[i] = 0xFF
    return bytes(header)


@functools.cache
def _castagnoli_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def _crc32c(data: bytes | memoryview) -> int:
    table = _castagnoli_table()
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
