"""What an application gives to a Context, looked at before anything is opened. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from ipaddress import ip_address

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.transport.exchange import MIN_MTU
from fairlead.fabric.transport.ports import UDP_BYTES
from fairlead.fabric.transport.seal import SIZE_BYTES
from fairlead.records.addressbook import Port

HEADER_BYTES = 48  # of a Write: BTH 12, METH 4, TSETH 4, RETH 16, ImmDt 4, iCRC 4, padding to 4
IPV6_BYTES = 40
MAX_MTU = 4096
_FIELDS = frozenset(field.name for field in fields(Profile))


def check(ports: Sequence[Port], port: int, rate_mbps: int, changes: Mapping[str, object], *, sealed: bool) -> None:
    """Raise LocalProtocolError for what no context can be made of."""
    for one in ports:
        _check_address(one.address)
    if not 0 <= port <= 0xFFFF:
        raise LocalProtocolError("fabric/no-port", f"there is no UDP port {port}", hint="give 1 to 65535, or 0")
    if rate_mbps < 0:
        raise LocalProtocolError("fabric/bad-profile", f"rate_mbps is {rate_mbps}", hint="0 is: nobody knows")
    if foreign := sorted(changes.keys() - _FIELDS):
        raise LocalProtocolError(
            "fabric/bad-profile", f"{foreign[0]} is no field of a Profile", hint="help(Profile) has them all"
        )
    if sealed and changes.get("trim"):
        raise LocalProtocolError(
            "fabric/sealed-trim",
            "what a switch trims has lost the tag that authenticates it: `sealed` and `trim` exclude each other",
            hint="leave `trim` or `sealed` out",
        )


def payload_of(mtu: int, *, sealed: bool = False) -> int:
    """Bytes of payload of a packet that fits an MTU, whatever the version of IP; 0 and less: none.

    >>> payload_of(2044), payload_of(9000)
    (1948, 4096)
    """
    room = mtu - IPV6_BYTES - UDP_BYTES - HEADER_BYTES - (SIZE_BYTES if sealed else 0)
    return min(room & ~3, MAX_MTU)


def check_payload(num_bytes: int, interfaces: Sequence[str]) -> int:
    """The payload of packets, where there is room for any. LocalProtocolError where an interface's MTU is too small."""
    if num_bytes < MIN_MTU:
        raise LocalProtocolError(
            "fabric/mtu-mismatch",
            f"the smallest MTU of {', '.join(interfaces)} leaves {max(num_bytes, 0)} bytes of a packet for payload; "
            f"it takes {MIN_MTU}",
            hint="give these interfaces a larger MTU: ip link set NAME mtu 9000",
        )
    return num_bytes


def _check_address(address: str) -> None:
    try:
        found = ip_address(address)
    except ValueError as exc:
        said = f"{address!r} is no IP address" if address else "a context takes one address of this host at least"
        raise LocalProtocolError("fabric/no-port", said, hint="see `ip addr`") from exc
    if found.version == 6 and found.is_link_local:
        raise LocalProtocolError(
            "fabric/no-port",
            f"{address} is an address of one link, which says nothing without the interface's name",
            hint="give the port a global or a unique local address (fd00::/8)",
        )
