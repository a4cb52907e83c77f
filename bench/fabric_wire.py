"""What benches of the fabric see on the wire: Writes of MRC as tcpdump wrote them down. Measures nothing itself."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fabric_transport import on

SLL2, IPV6, UDP, WRITES = 20, 40, 17, range(0xC6, 0xCC)
_SNIFF = "tcpdump -i any --time-stamp-precision=nano -s 100 -B 32768 -U -Z root -w - udp"


class Write(NamedTuple):
    """A data packet at one place; the label tells its entropy value, the address its way where it is the sender's."""

    time_ns: int
    device: int
    source: bytes
    to: bytes
    label: int
    psn: int


def writes(data: bytes) -> Iterator[Write]:
    """The Writes of a capture of all devices (LINUX_SLL2, nanoseconds)."""
    magic, linktype = struct.unpack_from("<I", data)[0], struct.unpack_from("<I", data, 20)[0]
    assert magic == 0xA1B23C4D, "a capture with nanoseconds"
    assert linktype == 276, "a capture of all devices (LINUX_SLL2)"
    at = 24
    while at + 16 <= len(data):
        seconds, nanos, kept, _length = struct.unpack_from("<IIII", data, at)
        body, at = at + 16, at + 16 + kept
        ip = body + SLL2
        if data[body : body + 2] != b"\x86\xdd" or data[ip + 6] != UDP or kept < SLL2 + IPV6 + 8 + 12:
            continue
        bth = ip + IPV6 + 8
        if at <= len(data) and data[bth] in WRITES:
            yield Write(
                seconds * 10**9 + nanos,
                int.from_bytes(data[body + 4 : body + 8], "big"),
                data[ip + 8 : ip + 24],
                data[ip + 24 : ip + 40],
                int.from_bytes(data[ip + 1 : ip + 4], "big") & 0xFFFFF,
                int.from_bytes(data[bth + 9 : bth + 12], "big"),
            )


@contextmanager
def sniffed(lab: str, host: str, file: Path, way: str = "in") -> Iterator[Callable[[], bytes]]:
    """Capture what a host gets (or sends, "out"); calling the result ends the capture and reads it."""
    with (
        file.open("wb") as out,
        subprocess.Popen(on(lab, host, *_SNIFF.split(), "-Q", way), stdout=out, stderr=subprocess.DEVNULL) as tcpdump,
    ):

        def result() -> bytes:
            subprocess.run(["pkill", "-INT", "-P", str(tcpdump.pid)], check=False)
            tcpdump.terminate()
            tcpdump.wait(10)
            return file.read_bytes()

        try:
            yield result
        finally:
            tcpdump.kill()
