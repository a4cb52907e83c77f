"""What pods send: every packet that arrives at the node from one of them, by a packet socket (packet(7)).

What the kernel of a pod sends by itself is left out: ARP is no IP, and the neighbours, routers and groups of IPv6
(RFC 4861, RFC 3810) are asked for by ICMPv6.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.processes import DIES_WITH_US, until

_SNIFF = """
import json, socket, struct, sys
seen = set()
out = open(sys.argv[1], "w", buffering=1)
sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(3))  # ETH_P_ALL
out.write('"begun"\\n')
while True:
    data, (name, kind, direction, *_) = sock.recvfrom(65536)
    if name == "lo" or direction == 4:  # PACKET_OUTGOING
        continue
    if kind == 0x0800:
        proto, to, rest = data[9], socket.inet_ntop(socket.AF_INET, data[16:20]), data[(data[0] & 15) * 4:]
    elif kind == 0x86DD:
        proto, to, rest = data[6], socket.inet_ntop(socket.AF_INET6, data[24:40]), data[40:]
        if proto == 0:  # hop by hop
            proto, rest = rest[0], rest[8:]
        if proto == 58 and rest[0] in (133, 134, 135, 136, 143):
            continue
    else:
        continue
    port = struct.unpack(">H", rest[2:4])[0] if proto in (6, 17) and len(rest) >= 4 else 0
    row = (to, proto, port if to not in sys.argv[2:] else 0)
    if row not in seen:
        seen.add(row)
        out.write(json.dumps(row) + "\\n")
"""


class Packets:
    """Of pods, as they come by."""

    def __init__(self, path: Path, own: Sequence[str]) -> None:
        self._path, self._own = path, own

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        """(address, protocol of IP, port), each once."""
        lines = self._path.read_text().splitlines()[1:]
        return [(to, proto, port) for to, proto, port in map(json.loads, lines)]

    @property
    def outside(self) -> set[tuple[str, int, int]]:
        """Those that went to nobody of the node."""
        return {row for row in self.rows if row[0] not in self._own}

    @property
    def inside(self) -> set[tuple[str, int, int]]:
        """Those to the node itself: answers to its questions."""
        return set(self.rows) - self.outside


@contextmanager
def watched(enter: Sequence[str], path: Path, own: Sequence[str]) -> Iterator[Packets]:
    """Watch in the network of `enter`, whose own addresses pods may answer."""
    words = [*DIES_WITH_US, *enter, sys.executable, "-I", "-S", "-c", _SNIFF, str(path), *own]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as sniffer:
        try:
            assert until(lambda: path.exists() and path.read_text().startswith('"begun"\n'), 30)
            yield Packets(path, own)
        finally:
            sniffer.kill()
