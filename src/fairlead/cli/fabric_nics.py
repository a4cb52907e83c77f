"""The NIC of this node that has an address, and where the kernel's routes lead from there. Standard library alone.

Asked of the kernel by rtnetlink, as `ip address` and `ip route get` do: SIOCGIFADDR knows the first address of an
interface alone. Whatever the kernel does not tell is None.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# linux/rtnetlink.h, linux/netlink.h, linux/if_addr.h, linux/if.h, linux/sockios.h
RTM_NEWROUTE, RTM_GETADDR, RTM_GETROUTE, NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 24, 22, 26, 1, 0x300, 2, 3
RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_VIA, IFA_ADDRESS, IFA_LOCAL = 1, 2, 4, 5, 18, 1, 2
SIOCGIFFLAGS, SIOCGIFMTU, IFF_LOOPBACK, IFF_NOARP = 0x8913, 0x8921, 0x8, 0x80
HEADER, ROUTE, ADDRESS, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=8BI"), struct.Struct("=4BI"), "=HH"
HEADERS_BYTES: dict[int, int] = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""IP and UDP, without options."""
MAX_PAYLOAD = 65_507


class Nic:
    """An interface that has an address."""

    def __init__(self, index: int, family: int, network: bytes, prefix: int) -> None:
        self.index, self.family, self.network, self.prefix = index, family, network, prefix
        self.name = socket.if_indextoname(index)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            self.mtu = self._ask(sock, SIOCGIFMTU)
            flags = self._ask(sock, SIOCGIFFLAGS) & 0xFFFF
        self.is_port = not flags & (IFF_LOOPBACK | IFF_NOARP)
        """Whether packets may be made to leave by it: an address may also stand at lo or at a dummy."""

    def _ask(self, sock: socket.socket, what: int) -> int:
        said = fcntl.ioctl(sock, what, struct.pack("16sI12x", self.name.encode(), 0))
        return int(struct.unpack("16sI12x", said)[1])

    @property
    def payload(self) -> int:
        """Bytes of the largest UDP packet that leaves it whole."""
        return max(0, min(self.mtu - HEADERS_BYTES[self.family], MAX_PAYLOAD))

    def reaches(self, other: bytes) -> bool:
        """Whether an address, packed, is in its subnet."""
        shift = 8 * len(other) - self.prefix
        return len(other) == len(self.network) and not (
            (int.from_bytes(other, "big") ^ int.from_bytes(self.network, "big")) >> shift
        )

    @property
    def is_strict(self) -> bool:
        """Whether the kernel drops what comes in here and would be answered by another NIC (RFC 3704, strict)."""
        values = []
        for name in ("all", self.name):
            with contextlib.suppress(OSError, ValueError):
                values.append(int(Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").read_text("ascii")))
        return self.family == socket.AF_INET and max(values, default=0) == 1


def nic_of(address: bytes) -> Nic | None:
    """The interface that has an address, packed; None: none has."""
    family = socket.AF_INET6 if len(address) == 16 else socket.AF_INET
    try:
        for kind, body in _asked(RTM_GETADDR, NLM_F_DUMP, ADDRESS.pack(family, 0, 0, 0, 0)):
            fields = dict(_attributes(body[ADDRESS.size :]))
            if kind and address in (fields.get(IFA_LOCAL), fields.get(IFA_LOCAL) or fields.get(IFA_ADDRESS)):
                _, prefix, _, _, index = ADDRESS.unpack_from(body)
                return Nic(index, family, address, prefix)
    except (OSError, struct.error):
        pass
    return None


def route(source: bytes, target: bytes, by: int = 0) -> tuple[int, bool] | None:
    """The interface that packets from an address of ours to another leave by, and whether over a gateway; `by`: where
    only that interface is asked.
    """
    family = socket.AF_INET6 if len(target) == 16 else socket.AF_INET
    bits = 8 * len(target)
    body = ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0) + _attribute(RTA_DST, target) + _attribute(RTA_SRC, source)
    if by:
        body += _attribute(RTA_OIF, struct.pack("=I", by))
    try:
        for kind, answer in _asked(RTM_GETROUTE, 0, body):
            fields = dict(_attributes(answer[ROUTE.size :]))
            if kind == RTM_NEWROUTE and RTA_OIF in fields:
                return struct.unpack("=I", fields[RTA_OIF])[0], bool({RTA_GATEWAY, RTA_VIA} & fields.keys())
    except (OSError, struct.error):
        pass
    return None


def _asked(kind: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """The kernel's answers to one question: kind and body of each."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(2.0)
        sock.send(HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | flags, 1, 0) + body)
        while True:
            data = sock.recv(1 << 17)
            while len(data) >= HEADER.size:
                size, what, _, _, _ = HEADER.unpack_from(data)
                if what in (NLMSG_ERROR, NLMSG_DONE) or size < HEADER.size:
                    return
                yield what, data[HEADER.size : size]
                data = data[-(-size // 4) * 4 :]
            if not flags:
                return


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack(ATTRIBUTE, 4 + len(value), kind) + value


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from(ATTRIBUTE, data)
        if size < 4:
            return
        yield kind, data[4:size]
        data = data[-(-size // 4) * 4 :]
