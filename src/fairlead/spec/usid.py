"""SRv6 micro-segment addresses: the destination address of a packet is its path.

Knows: how a path is written into one IPv6 address (NEXT-CSID flavour of RFC 9800 with a 32-bit block and 16-bit
micro-segments, F3216), what each switch does to it, and how to read it back. Must not know: sockets, routes, kernels.

    fcbb:bb02 : 1005 : 2001 : 1007 : e00c : 1007 : 0      as the sender writes it: plane 2, T0 5, T1 1, T0 7, port 12
    ----block   T0 up  T1     T0 dn  port   ----- identity and function, carried behind the path

Each plane has its own block. A switch owns block:uSID/48; when the first 48 bits of the destination are its own, it
moves everything behind the block 16 bits to the left, fills zeros in, and looks the new address up (RFC 9800, section
4.1). After the last T0 the address has become

    fcbb:bb02 : e00c : 1007 : 0 : 0 : 0 : 0               what the host at T0 7, port 12 owns in plane 2

Micro-segments of ports are local C-SIDs (RFC 9800, section 5): they mean something only at one T0, so that 256 of them
serve every T0. Alone they would give hosts at the same port of different T0s one and the same final address. Therefore
the T0's number follows the port once more, *behind* the path: it is never an active segment, it only travels along, and
makes the final address unique in its plane. The last word is a function of the host: 0 is the port's plain address,
DECAP takes off an outer header (End.DT6, RFC 8986, section 4.6).

Besides its port addresses every host owns one fabric address, outside all blocks, for programs that choose no paths.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import NamedTuple

from fairlead.spec.topology import MAX_PER_TIER, MAX_PLANES

BLOCK_BITS = 32
USID_BITS = 16
LOCATOR_BITS = BLOCK_BITS + USID_BITS
"""A switch's route: its block and its own micro-segment."""

BLOCK_BASE = 0xFCBB_BB00
"""The 32-bit block of plane 0; plane p adds p."""
T0_BASE = 0x1000
T1_BASE = 0x2000
PORT_BASE = 0xE000
"""Ports below a T0: the first of the local range."""
DECAP = 0xD6
"""Function word of the host: remove the outer header and look the inner destination up."""
FABRIC_PREFIX = 0xFDFA_B71C
"""The upper 32 bits (a unique local prefix) of the addresses that do not choose a path."""

_WORDS = (128 - BLOCK_BITS) // USID_BITS


class PortAddress(NamedTuple):
    """What a host's own address in a plane says."""

    plane: int
    t0: int
    port: int
    function: int = 0


class PathAddress(NamedTuple):
    """What an address on its way says: the switches still ahead, then the host it is for."""

    hops: tuple[int, ...]
    """Micro-segments of the switches still to come, the next first."""
    end: PortAddress


def block(plane: int) -> str:
    """A plane's prefix as routes name it.

    >>> block(2)
    'fcbb:bb02::/32'
    """
    return f"{IPv6Address(_block(plane) << 96)}/{BLOCK_BITS}"


def t0_usid(index: int) -> int:
    """The micro-segment of T0 number `index`, the same in every plane."""
    return T0_BASE + _in_range("T0", index)


def t1_usid(index: int) -> int:
    """The micro-segment of T1 number `index`, the same in every plane."""
    return T1_BASE + _in_range("T1", index)


def port_usid(port: int) -> int:
    """The micro-segment of a T0's host port, local to that T0."""
    return PORT_BASE + _in_range("port", port)


def locator(plane: int, usid: int) -> str:
    """The /48 on which a switch acts, or by which it is reached.

    >>> locator(2, t1_usid(1))
    'fcbb:bb02:2001::/48'
    """
    return f"{_compose(plane, [usid])}/{LOCATOR_BITS}"


def port_address(plane: int, t0: int, port: int, function: int = 0) -> IPv6Address:
    """The address a host owns in a plane; what is left of every path that leads to it.

    >>> port_address(2, 7, 12)
    IPv6Address('fcbb:bb02:e00c:1007::')
    """
    return _compose(plane, [port_usid(port), t0_usid(t0), function])


def path_address(  # noqa: PLR0917 - the order is the order of the words in the address
    plane: int, src_t0: int, t1: int | None, dst_t0: int, dst_port: int, function: int = 0
) -> IPv6Address:
    """The address to send to: the path up over `src_t0`, across `t1`, down by `dst_t0` to `dst_port`.

    `t1` is None exactly when both hosts sit below the same T0; otherwise ValueError.

    >>> path_address(2, 5, 1, 7, 12)
    IPv6Address('fcbb:bb02:1005:2001:1007:e00c:1007:0')
    >>> path_address(2, 7, None, 7, 12)
    IPv6Address('fcbb:bb02:1007:e00c:1007::')
    """
    if (t1 is None) != (src_t0 == dst_t0):
        raise ValueError(f"T0 {src_t0} to T0 {dst_t0} {'needs' if t1 is None else 'takes no'} T1")
    up = [t0_usid(src_t0)] if t1 is None else [t0_usid(src_t0), t1_usid(t1), t0_usid(dst_t0)]
    return _compose(plane, [*up, port_usid(dst_port), t0_usid(dst_t0), function])


def loop_address(plane: int, t0: int, t1: int, port: int) -> IPv6Address:
    """The address to send to for a way up over a T0 to one T1 and back down by the same T0.

    It needs the link between the two in both directions, and no other link between switches.

    >>> loop_address(2, 7, 1, 12)
    IPv6Address('fcbb:bb02:1007:2001:1007:e00c:1007:0')
    """
    return _compose(plane, [t0_usid(t0), t1_usid(t1), t0_usid(t0), port_usid(port), t0_usid(t0), 0])


def shift(address: IPv6Address) -> IPv6Address:
    """What the switch that owns the first micro-segment makes of an address (RFC 9800, section 4.1).

    >>> shift(IPv6Address("fcbb:bb02:1007:e00c:1007::"))
    IPv6Address('fcbb:bb02:e00c:1007::')
    """
    value = int(address)
    head = value >> 96 << 96
    return IPv6Address(head | ((value << USID_BITS) & ((1 << 96) - 1)))


def journey(address: IPv6Address) -> list[IPv6Address]:
    """The address as it leaves the sender and after each switch; the last one is the receiver's own."""
    steps = [address]
    while _is_switch(_words(steps[-1])[0]):
        steps.append(shift(steps[-1]))
    return steps


def parse(address: IPv6Address) -> PathAddress:
    """Read an address of a path, or a host's own (no hops left). Raises ValueError for anything else.

    >>> parse(IPv6Address("fcbb:bb02:1007:e00c:1007::"))
    PathAddress(hops=(4103,), end=PortAddress(plane=2, t0=7, port=12, function=0))
    """
    plane = (int(address) >> 96) - BLOCK_BASE
    if not 0 <= plane < MAX_PLANES:
        raise ValueError(f"{address} is in no plane's block")
    words = _words(address)
    num_hops = next((i for i, word in enumerate(words) if not _is_switch(word)), _WORDS)
    hops, rest = words[:num_hops], words[num_hops:]
    if len(rest) < 3 or not _in(rest[0], PORT_BASE) or not _in(rest[1], T0_BASE) or any(rest[3:]):
        raise ValueError(f"{address} does not end in a port, its T0 and a function")
    return PathAddress(tuple(hops), PortAddress(plane, rest[1] - T0_BASE, rest[0] - PORT_BASE, rest[2]))


def fabric_address(t0: int, port: int) -> IPv6Address:
    """The one address of a host for programs that choose no path.

    >>> fabric_address(7, 12)
    IPv6Address('fdfa:b71c:1007:e00c::1')
    """
    return IPv6Address(FABRIC_PREFIX << 96 | t0_usid(t0) << 80 | port_usid(port) << 64 | 1)


def _compose(plane: int, usids: list[int]) -> IPv6Address:
    value = _block(plane)
    for usid in usids:
        value = value << USID_BITS | usid
    return IPv6Address(value << USID_BITS * (_WORDS - len(usids)))


def _words(address: IPv6Address) -> list[int]:
    value = int(address)
    return [value >> USID_BITS * (_WORDS - 1 - i) & 0xFFFF for i in range(_WORDS)]


def _block(plane: int) -> int:
    if not 0 <= plane < MAX_PLANES:
        raise ValueError(f"no plane {plane}; blocks number 0 to {MAX_PLANES - 1}")
    return BLOCK_BASE + plane


def _in_range(what: str, index: int) -> int:
    if not 0 <= index < MAX_PER_TIER:
        raise ValueError(f"no {what} {index}; micro-segments number 0 to {MAX_PER_TIER - 1}")
    return index


def _in(usid: int, base: int) -> bool:
    return base <= usid < base + MAX_PER_TIER


def _is_switch(usid: int) -> bool:
    return _in(usid, T0_BASE) or _in(usid, T1_BASE)
