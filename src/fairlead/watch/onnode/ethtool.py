"""Statistics of a link by the SIOCETHTOOL ioctl: what Hyper-V's synthetic NIC counts of its virtual function.

Layout: linux include/uapi/linux/ethtool.h. Needs no rights. Only names that begin with `vf_` are kept.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import struct

SIOCETHTOOL = 0x8946
ETHTOOL_GSTRINGS, ETHTOOL_GSTATS, ETHTOOL_GSSET_INFO = 0x1B, 0x1D, 0x37
ETH_SS_STATS, NAME_BYTES, MAX_STATS = 1, 32, 65_536
SLACK = 1 << 16


class LinkStatistics:
    """Statistics of links; names are asked for once a link, numbers each time."""

    def __init__(self, keep: str = "vf_") -> None:
        self.keep = keep
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.names: dict[str, list[str]] = {}

    def close(self) -> None:
        """Let go of the socket."""
        self.socket.close()

    def read(self, link: str) -> dict[str, int]:
        """Name -> value. Raises OSError: no such link, or a driver that has none."""
        num = self._count(link)
        names = self.names.get(link, [])
        if len(names) != num:  # another driver, or another number of queues
            names = self.names[link] = self._names(link, num)
        if not any(name.startswith(self.keep) for name in names):
            return {}
        answer = self._ask(link, struct.pack("=II", ETHTOOL_GSTATS, num), 8 * num)
        values = struct.unpack_from("=%dQ" % num, answer, 8)
        return {name: value for name, value in zip(names, values) if name.startswith(self.keep)}  # noqa: B905

    def forget(self, link: str) -> None:
        """The link is gone; another may take its name."""
        with contextlib.suppress(KeyError):
            del self.names[link]

    def _count(self, link: str) -> int:
        answer = self._ask(link, struct.pack("=IIQI", ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0), 0)
        _, _, mask, num = struct.unpack_from("=IIQI", answer)
        return num if mask and num <= MAX_STATS else 0

    def _names(self, link: str, num: int) -> list[str]:
        answer = self._ask(link, struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_STATS, num), NAME_BYTES * num)
        raw = [answer[12 + NAME_BYTES * i : 12 + NAME_BYTES * (i + 1)] for i in range(num)]
        return [name.split(b"\0")[0].decode("utf-8", "backslashreplace") for name in raw]

    def _ask(self, link: str, head: bytes, room: int) -> bytes:
        # the kernel writes as much as the driver has by now, not as much as it was asked for: leave room for more
        buffer = array.array("B", head + bytes(room + SLACK))
        asked = struct.pack("16sP", link.encode()[:15], buffer.buffer_info()[0])
        fcntl.ioctl(self.socket.fileno(), SIOCETHTOOL, asked)
        return buffer.tobytes()
