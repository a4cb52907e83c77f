"""Ports whose sockets leave by the interface that has their address, whatever other interfaces are in its subnet.

`routes.py` says what a peer asks for; here it is done to sockets. Two ways of the kernel are used (socket(7), ip(7)):

- SO_BINDTODEVICE, for anybody since Linux 5.7 and before for CAP_NET_RAW; once set only CAP_NET_RAW changes it.
- IP_UNICAST_IF for the IPv4 socket that receives. It binds only what is sent: where ARP is left at its defaults, peers
  send to whichever NIC of the subnet answered first, and a socket bound to another one would not hear them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import sys
from collections.abc import Sequence

from fairlead.errors import LocalProtocolError
from fairlead.fabric.transport import routes
from fairlead.fabric.transport.routes import Leave
from fairlead.records.log import tell

IP_UNICAST_IF = 50  # linux/in.h; takes the index in network order
_INDEX = struct.Struct("!I")
log = logging.getLogger("fairlead.fabric")


class Bound:
    """Which interface each port of a host is bound to."""

    def __init__(self, addresses: Sequence[str], rails: Sequence[Sequence[socket.socket]]) -> None:
        """`rails` are the sockets of each port, of which the first receives too."""
        self._addresses = addresses
        self._rails = rails
        self._names: dict[int, str] = {}  # by port: the interface it is bound to
        self._across: set[int] = set()
        self._told: set[int] = set()

    def lead(self, rail: int, to: str) -> None:
        """Have a port leave by the interface of its address, if a peer is reached so; say where it cannot be had.

        Raises LocalProtocolError where the peer is on this host, at another interface, and the port stays bound to its.
        """
        how, own, now = routes.leave_of(to, self._addresses[rail])
        if how is Leave.ACROSS:
            self._across.add(rail)
            self._release(rail, to)
        elif how is Leave.ASTRAY:
            self._warn(rail, to, now, "which has no route there", via=" via GATEWAY")
        elif how is Leave.BOUND and rail in self._across:
            if now != own:
                self._warn(rail, to, now, "which it is not bound to, as it also serves a peer on this host")
        elif how is Leave.BOUND and not self._bind(rail, _name(own)) and now != own:
            self._warn(rail, to, now, "which the kernel does not let this program bind to")

    def apply(self, rail: int, sock: socket.socket) -> None:
        """Bind one more socket of a port, which sends alone, as its others are."""
        if name := self._names.get(rail):
            _bind(sock, name, receives=False)

    def again(self, rail: int) -> None:
        """The interface has come back under another number: bind to that."""
        if name := self._names.get(rail):
            self._bind(rail, name)

    def _bind(self, rail: int, name: str) -> bool:
        if name:
            self._names[rail] = name
        try:
            for number, sock in enumerate(self._rails[rail]):
                _bind(sock, name, receives=number == 0)
        except PermissionError:
            return False
        except OSError:  # it has gone meanwhile: no packet leaves by it, and its news say so
            pass
        return True

    def _release(self, rail: int, to: str) -> None:
        if rail not in self._names:
            return
        if not self._bind(rail, ""):
            raise LocalProtocolError(
                "fabric/no-route",
                f"{to} is on this host, at another interface than {self._addresses[rail]}, which is bound to "
                f"{self._names[rail]}",
                hint="give the processes of a host the same addresses in the same order, or CAP_NET_RAW",
            )
        del self._names[rail]

    def _warn(self, rail: int, to: str, now: int, why: str, *, via: str = "") -> None:
        """Once a port: it goes on, by the wrong interface."""
        if rail in self._told:
            return
        self._told.add(rail)
        here = self._addresses[rail]
        own, other = _name(routes.device_of(here)), _name(now)
        text = (
            f"packets from {here} to {to} leave by {other}, not by {own}, {why}; route by source: "
            f"ip rule add from {here} table 100{rail}; ip route add {to}{via} dev {own} table 100{rail}"
        )
        tell(log, text, level=logging.WARNING, address=here, interface=other)
        sys.stderr.write(f"fairlead: {text}\n")
        sys.stderr.flush()


def _bind(sock: socket.socket, name: str, *, receives: bool) -> None:
    """Leave by an interface; an empty name: by whichever the kernel chooses."""
    if sock.family == socket.AF_INET and receives:
        index = socket.if_nametoindex(name) if name else 0
        sock.setsockopt(socket.IPPROTO_IP, IP_UNICAST_IF, _INDEX.pack(index))
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())


def _name(index: int) -> str:
    with contextlib.suppress(OSError):
        return socket.if_indextoname(index)
    return ""
