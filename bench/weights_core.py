"""What one core moves between two nodes of a spread over loopback, by the connections of `weights/onnode/wire.py`: one
process gives, one takes each chunk, verifies it and passes it on to a third, as a node in the ring does.

Counted is processor time, so the machine need not be quiet: bytes by the seconds that a process was on a core, user and
system together. Ways follow each other in turns: every chunk verified by BLAKE3, by SHA-256, and by nothing, which
fairlead never does and which says what verifying costs. Disks are left out. Prints a table.

    pip install blake3
    timeout 300 python bench/weights_core.py [--mib 2048] [--rounds 3]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from fairlead.weights.onnode.place import has_blake3, hasher
from fairlead.weights.onnode.streams import TcpStream
from fairlead.weights.onnode.wire import CHUNK, Link, greet, greeted

KEY = bytes(range(32))
CHUNK_BYTES = 4 << 20
WAYS = ("blake3", "sha256", "nothing")


def main() -> None:
    """A line for each way, of the middle round."""
    said = argparse.ArgumentParser()
    said.add_argument("--mib", type=int, default=2048)
    said.add_argument("--rounds", type=int, default=3)
    asked = said.parse_args()
    ways = [way for way in WAYS if way != "blake3" or has_blake3()]
    num = asked.mib * (1 << 20) // CHUNK_BYTES
    costs: dict[str, dict[str, list[float]]] = {way: {"takes": [], "passes on": [], "wall": []} for way in ways}
    for number in range(asked.rounds):
        for way in ways[:: -1 if number % 2 else 1]:
            for what, seconds in once(way, num).items():
                costs[way][what].append(num * CHUNK_BYTES / seconds / 1e9)
    print(
        f"{num * CHUNK_BYTES / 1e9:.1f} GB in chunks of 4 MiB, GB for each second of one core; middle of {asked.rounds}"
    )
    print(f"{'digest':10}{'takes':>10}{'and passes on':>16}{'GB/s of wall clock':>21}")
    for way, told in costs.items():
        middle = {what: statistics.median(rates) for what, rates in told.items()}
        print(f"{way:10}{middle['takes']:10.2f}{middle['passes on']:16.2f}{middle['wall']:21.2f}")


def once(way: str, num: int) -> dict[str, float]:
    """Seconds: of the last node's processor (takes), of the middle one's (passes on), of the clock (wall)."""
    middle, last = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    began = time.monotonic()
    told = [
        started(give, middle.getsockname(), way, num),
        started(take, middle, last.getsockname(), way, num),
        started(take, last, None, way, num),
    ]
    found = [end.recv() for end in told]
    wall_s = time.monotonic() - began
    middle.close()
    last.close()
    return {"passes on": found[1], "takes": found[2], "wall": wall_s}


def started(work: Callable[..., None], *args: object) -> Connection:
    """A process of its own; its processor time comes when it is through."""
    mine, its = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        before = used_s()
        work(*args)
        its.send(used_s() - before)
        os._exit(0)

    multiprocessing.get_context("fork").Process(target=run, daemon=True).start()
    its.close()
    return mine


def used_s() -> float:
    """Processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def give(to: tuple[str, int], way: str, num: int) -> None:
    """The node that has everything: one chunk again and again, whose digest is known."""
    data = memoryview(os.urandom(CHUNK_BYTES))
    digest = hasher(way if way != "nothing" else "sha256")(data)
    link = greet(TcpStream(socket.create_connection(to)), KEY, {"me": 0})
    for chunk in range(num):
        link.send(CHUNK, data, chunk=chunk, digest=digest)
    link.receive()


def take(server: socket.socket, onward: tuple[str, int] | None, way: str, num: int) -> None:
    """Take each chunk, verify it, pass it on."""
    digest_of = hasher(way) if way != "nothing" else None
    link, _ = greeted(TcpStream(server.accept()[0]), KEY)
    nxt: Link | None = (
        greet(TcpStream(socket.create_connection(onward)), KEY, {"me": 1}) if onward is not None else None
    )
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for chunk in range(num):
        _, _, _, _, length, digest = link.receive()
        link.read(buffer[:length])
        if digest_of is not None:
            assert digest_of(buffer[:length]) == digest, "it is what was sent"
        if nxt is not None:
            nxt.send(CHUNK, buffer[:length], chunk=chunk, digest=digest)
    if nxt is not None:
        nxt.receive()
    link.send(CHUNK)


if __name__ == "__main__":
    main()
