"""Where a socket address leads, in words, and whether that is outside. Pure.

Inside are the loopback, this host's own `0.0.0.0` and `::`, names in the abstract space of Unix sockets (which belong
to the network namespace, unix(7)) and Unix sockets that the server itself has made. All else would have left.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from enum import StrEnum
from typing import NamedTuple

AF_VSOCK, AF_PACKET = 40, 17
DNS_PORT = 53
_TYPES = {1: "tcp", 2: "udp", 3: "raw"}

OF_LIBRARIES = {
    "/var/run/nscd/socket": "the cache of names",
    "/run/nscd/socket": "the cache of names",
    "/run/systemd/userdb/io.systemd.DynamicUser": "the list of users",
    "/run/dbus/system_bus_socket": "the system bus",
    "/var/run/dbus/system_bus_socket": "the system bus",
    "/run/uuidd/request": "the maker of unique numbers",
    "/var/run/uuidd/request": "the maker of unique numbers",
}
"""What C libraries themselves ask for a user's name or a number of their own (nscd(8), nss-systemd(8), uuidd(8)). Where
nobody listens there, that is no call."""


class Leads(StrEnum):
    """Where an address leads."""

    INSIDE = "inside"
    DNS = "dns"
    """A resolver: the query itself says what was wanted."""
    UNIX = "unix"
    """A path: who listens there has to be looked at."""
    OUTSIDE = "outside"
    NOWHERE = "nowhere"
    """To the kernel, or no destination at all."""


class Destination(NamedTuple):
    """A socket address."""

    leads: Leads
    shown: str
    """`10.1.2.3:443/tcp`, `[2001:db8::1]:443/tcp`, `unix:/run/proxy.sock`."""
    path: str = ""
    """Of a Unix socket."""


def destination(address: bytes, kind: int) -> Destination:
    r"""What a struct sockaddr says; `kind` is the socket's type.

    >>> destination(struct.pack("=H2s4s8x", 2, b"\x01\xbb", bytes([10, 1, 2, 3])), 1).shown
    '10.1.2.3:443/tcp'
    """
    if len(address) < 2:
        return Destination(Leads.NOWHERE, "no address")
    (family,) = struct.unpack_from("=H", address)
    if family == socket.AF_INET and len(address) >= 8:
        return _internet(ipaddress.IPv4Address(address[4:8]), int.from_bytes(address[2:4], "big"), kind)
    if family == socket.AF_INET6 and len(address) >= 24:
        return _internet(ipaddress.IPv6Address(address[8:24]), int.from_bytes(address[2:4], "big"), kind)
    if family == socket.AF_UNIX:
        return _unix(address[2:])
    if family in (socket.AF_UNSPEC, socket.AF_NETLINK, getattr(socket, "AF_ALG", 38)):
        return Destination(Leads.NOWHERE, f"family {family}")
    if family == AF_VSOCK and len(address) >= 12:
        port, cid = struct.unpack_from("=II", address, 4)
        return Destination(Leads.OUTSIDE, f"vsock:{cid}:{port}")
    return Destination(Leads.OUTSIDE, "packet" if family == AF_PACKET else f"family {family}")


def _internet(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, kind: int) -> Destination:
    plain = (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
    host = f"[{plain}]" if plain.version == 6 else str(plain)
    shown = f"{host}:{port}/{_TYPES.get(kind, 'ip')}"
    if plain.is_loopback or plain.is_unspecified:
        return Destination(Leads.DNS if port == DNS_PORT else Leads.INSIDE, shown)
    return Destination(Leads.OUTSIDE, shown)


def _unix(name: bytes) -> Destination:
    if not name or name[0] == 0:
        return Destination(Leads.INSIDE, "unix:abstract")
    path = name.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
    return Destination(Leads.UNIX, f"unix:{path}", path)
