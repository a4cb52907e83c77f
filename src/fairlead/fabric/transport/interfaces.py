"""The interfaces behind a host's ports: which one has an address, its MTU, and news of links that go up and down.

The kernel tells of carriers by rtnetlink (linux/rtnetlink.h, RTMGRP_LINK); a port that is down is known at once, where
a link that loses packets in silence is found by the protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Callable, Sequence

from fairlead.errors import LocalProtocolError
from fairlead.fabric.transport import routes

_SIOCGIFFLAGS, _SIOCGIFMTU = 0x8913, 0x8921
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_RTMGRP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_LINK = struct.Struct("=BxHiII")  # ifinfomsg
_NAME = 16
_READ_BYTES = 1 << 16
DEFAULT_MTU = 1500


def interface_of(address: str) -> str:
    """The interface that has an address, be it its first or another one; empty if none is found."""
    with contextlib.suppress(OSError):
        return socket.if_indextoname(routes.device_of(address))
    return ""


def mtu_of(interface: str) -> int:
    """Its MTU in bytes; Ethernet's where it cannot be asked."""
    found = _ask(_SIOCGIFMTU, interface)
    return struct.unpack_from("=i", found, _NAME)[0] if found else DEFAULT_MTU


def is_up(interface: str) -> bool:
    """Whether it is up and has a carrier; yes where it cannot be asked."""
    found = _ask(_SIOCGIFFLAGS, interface)
    return found is None or _runs(struct.unpack_from("=H", found, _NAME)[0])


def _runs(flags: int) -> bool:
    return flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING


def _ask(request: int, interface: str) -> bytes | None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack(f"{_NAME}s24x", interface.encode()))
    return None


class LinkWatch:
    """News of some interfaces."""

    def __init__(self, interfaces: Sequence[str], came_back: Callable[[int], object] = lambda _rail: None) -> None:
        """By rail; an empty name is a port that is not watched, and always up.

        `came_back` is told of ports whose interface was removed, and is there again under another number.
        """
        self._came_back = came_back
        self._sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        self._sock.bind((0, _RTMGRP_LINK))
        self._rails: dict[int, list[int]] = {}  # by number of the interface
        self._names: dict[str, list[int]] = {}
        self.up = 0
        for rail, name in enumerate(interfaces):
            self.up |= (1 << rail) * (not name or is_up(name))
            if name:
                self._names.setdefault(name, []).append(rail)
        for name, rails in self._names.items():
            try:
                self._rails[socket.if_nametoindex(name)] = rails
            except OSError as exc:
                self.close()
                raise LocalProtocolError(
                    "fabric/no-port",
                    f"this host has no interface {name}",
                    hint="see `ip link`; the place of another host, or an old one, has other names",
                ) from exc

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._sock.fileno()

    def read(self) -> int:
        """Ports that are up now, as a bit set by rail."""
        while True:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                return self.up
            except OSError:  # ENOBUFS: some news was lost; ask anew
                self._ask_all()
                continue
            self.note(data)

    def note(self, data: bytes) -> None:
        """Take in messages of the kernel."""
        while len(data) >= _HEADER.size:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind in (_RTM_NEWLINK, _RTM_DELLINK) and _HEADER.size + _LINK.size <= length <= len(data):
                _, _, index, flags, _ = _LINK.unpack_from(data, _HEADER.size)
                if kind == _RTM_NEWLINK and index not in self._rails:
                    self._know(index)
                self._set(index, is_up=kind == _RTM_NEWLINK and _runs(flags))
            if length < _HEADER.size:
                return
            data = data[length + 3 & ~3 :]

    def _know(self, index: int) -> None:
        """One that was removed comes back under another number, as when a driver is loaded anew."""
        with contextlib.suppress(OSError):
            if rails := self._names.get(socket.if_indextoname(index)):
                self._rails = {i: own for i, own in self._rails.items() if own is not rails} | {index: rails}
                for rail in rails:
                    self._came_back(rail)

    def _set(self, index: int, *, is_up: bool) -> None:
        for rail in self._rails.get(index, ()):
            self.up = self.up & ~(1 << rail) | is_up << rail

    def _ask_all(self) -> None:
        for name in self._names:
            with contextlib.suppress(OSError):
                index = socket.if_nametoindex(name)
                self._know(index)
                self._set(index, is_up=is_up(name))

    def close(self) -> None:
        """Hear no more."""
        self._sock.close()
