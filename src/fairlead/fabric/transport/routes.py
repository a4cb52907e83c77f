"""By which interface packets leave: whose an address is, which way the kernel would take, and which one a port needs.

Linux routes by destination: where several NICs are in one subnet, all packets leave by the first of them, whatever
source address they carry. A port that is to be a plane of its own has to say by which interface it sends. The kernel
is asked by rtnetlink (rtnetlink(7), linux/rtnetlink.h, linux/if_addr.h); `leave` is the rule, and pure.
"""

from __future__ import annotations

import enum
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg
_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg
_ATTRIBUTE = struct.Struct("=HH")  # rtattr
_INDEX = struct.Struct("=I")
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_RTM_NEWADDR, _RTM_GETADDR, _RTM_NEWROUTE, _RTM_GETROUTE = 20, 22, 24, 26
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_SRC, _RTA_OIF = 1, 2, 4
_RTM_F_FIB_MATCH = 0x2000
"""Tell of routes that stand in a table: asked for a device, IPv4 otherwise takes anything to be on its link."""
_RTN_LOCAL = 2
_READ_BYTES = 1 << 16
_LIMIT_S = 5.0  # the kernel answers within the call
LOOPBACK = 1
"""Index of `lo` in every network namespace."""


class Hop(NamedTuple):
    """Where the kernel sends packets of one destination."""

    device: int
    """Index of the interface; 0 where the route has several."""
    is_local: bool = False


class Leave(enum.Enum):
    """How the sockets of a port come to leave by its own interface."""

    AS_ROUTED = enum.auto()
    """They do, or that is not the question: the peer is on this host, or the address is not that of a NIC."""
    BOUND = enum.auto()
    """Once they are bound to it: it has a route to the peer."""
    ACROSS = enum.auto()
    """They must not be bound: the peer is on this host, at an address of another interface or of none."""
    ASTRAY = enum.auto()
    """They do not, and the interface has no route to the peer."""


def leave(own: int, theirs: int, free: Hop | None, bound: Hop | None) -> Leave:
    """What a port needs to reach a peer by its own interface.

    `own` and `theirs` are the indexes of the interfaces here that have the two addresses (0: none has), `free` is the
    way that the kernel takes, `bound` the one it would take by `own`; None: there is none.
    """
    if own in (0, LOOPBACK) or free is None:
        return Leave.AS_ROUTED
    if free.is_local:
        return Leave.ACROSS if theirs != own else Leave.AS_ROUTED
    if bound is not None:
        return Leave.BOUND
    return Leave.AS_ROUTED if free.device in (0, own) else Leave.ASTRAY


def device_of(address: str) -> int:
    """Index of the interface that has an address, be it its first or another one; 0 if none has."""
    wanted = ip_address(address)
    family = socket.AF_INET6 if wanted.version == 6 else socket.AF_INET
    request = _ADDRESS.pack(family, 0, 0, 0, 0)
    found = 0
    for kind, data in _ask(_RTM_GETADDR, _NLM_F_DUMP, request):
        if kind == _RTM_NEWADDR and len(data) >= _ADDRESS.size:
            said = dict(_attributes(data[_ADDRESS.size :]))
            if (
                said.get(_IFA_LOCAL, said.get(_IFA_ADDRESS)) == wanted.packed
            ):  # on a link of two ends ADDRESS is the other
                found = found or _ADDRESS.unpack_from(data)[4]
    return found


def hop(to: str, source: str, device: int = 0) -> Hop | None:
    """The way to an address from one of this host's, out of one interface only if one is named; None: there is none."""
    there, here = ip_address(to), ip_address(source)
    v6 = there.version == 6
    bits = len(there.packed) * 8
    # IPv6 takes an interface for a wish where a source is named, too
    known = 0 if v6 and device else bits
    flags = _RTM_F_FIB_MATCH if device and not v6 else 0
    family = socket.AF_INET6 if v6 else socket.AF_INET
    request = _ROUTE.pack(family, bits, known, 0, 0, 0, 0, 0, flags) + _attribute(_RTA_DST, there.packed)
    if known:
        request += _attribute(_RTA_SRC, here.packed)
    if device:
        request += _attribute(_RTA_OIF, _INDEX.pack(device))
    for kind, data in _ask(_RTM_GETROUTE, 0, request):
        if kind == _RTM_NEWROUTE and len(data) >= _ROUTE.size:
            said = dict(_attributes(data[_ROUTE.size :]))
            index = _INDEX.unpack(said[_RTA_OIF])[0] if len(said.get(_RTA_OIF, b"")) == _INDEX.size else 0
            if device and index not in (0, device):
                return None
            return Hop(index, is_local=_ROUTE.unpack_from(data)[7] == _RTN_LOCAL)
    return None


def leave_of(to: str, source: str) -> tuple[Leave, int, int]:
    """What a port with an address needs to reach another, its interface, and that by which the kernel sends now."""
    own = device_of(source)
    free = hop(to, source)
    bound = hop(to, source, own) if own and free is not None and not free.is_local else None
    return leave(own, device_of(to), free, bound), own, free.device if free else 0


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value.ljust(len(value) + 3 & ~3, b"\0")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            return
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[length + 3 & ~3 :]


def _ask(kind: int, flags: int, request: bytes) -> list[tuple[int, bytes]]:
    """Kind and content of the kernel's answers; none where it refuses, as where there is no route."""
    out: list[tuple[int, bytes]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(_LIMIT_S)
        sock.bind((0, 0))
        sock.send(_HEADER.pack(_HEADER.size + len(request), kind, _NLM_F_REQUEST | flags, 1, 0) + request)
        while True:
            data = sock.recv(_READ_BYTES)
            while len(data) >= _HEADER.size:
                length, said, *_ = _HEADER.unpack_from(data)
                if said in (_NLMSG_DONE, _NLMSG_ERROR) or not _HEADER.size <= length <= len(data):
                    return out
                out.append((said, data[_HEADER.size : length]))
                data = data[length + 3 & ~3 :]
            if not flags:
                return out
