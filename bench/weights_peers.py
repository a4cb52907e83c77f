"""What the peers of `fairlead weights spread` run on each host of bench/weights_spread.py.

    weights_peers.py mpi ORIGIN LIST DEST                every rank downloads a share, then each object is broadcast
    weights_peers.py torrent TORRENT DEST OWN OTHER...   libtorrent at its own address, the others' known; says `done`,
                                                         and gives until its standard input ends

LIST is JSON: `[[name, bytes], ...]`. Both write to the disk for good (fsync). Neither needs fairlead on the host.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import socket
import struct
import sys
import time
import urllib.parse
from pathlib import Path

PIECE = 16 << 20
"""Bytes of a broadcast: large enough for Open MPI's pipelined algorithms."""


def by_mpi(origin: str, listed: str, dest: str) -> None:
    """In the manner of the published tool: shares of about equal bytes, then one broadcast after the other."""
    import numpy as np
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD
    pieces = [
        (name, size, at, min(PIECE, size - at))
        for name, size in json.loads(Path(listed).read_text())
        for at in range(0, max(size, 1), PIECE)
    ]
    given, owner = [0] * ranks.size, []
    for piece in pieces:
        owner.append(given.index(min(given)))
        given[owner[-1]] += piece[3] + 1
    way = http.client.HTTPConnection(urllib.parse.urlsplit(origin).netloc)
    mine: dict[int, bytes] = {}
    ranks.Barrier()
    began = time.monotonic()
    for i, (name, _, at, length) in enumerate(pieces):
        if owner[i] == ranks.rank and length:
            way.request("GET", f"/{name}", headers={"Range": f"bytes={at}-{at + length - 1}"})
            mine[i] = way.getresponse().read()
    files: dict[str, int] = {}
    for i, (name, size, at, length) in enumerate(pieces):
        buffer = np.frombuffer(mine.pop(i), np.uint8) if i in mine else np.empty(length, np.uint8)
        if length:
            ranks.Bcast(buffer, owner[i])
        if name not in files:
            path = Path(dest, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            files[name] = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        os.pwrite(files[name], buffer, at)
        if at + length == size:
            os.fsync(files[name])
            os.close(files[name])
    ranks.Barrier()
    if ranks.rank == 0:
        print(json.dumps({"seconds": time.monotonic() - began}))


def by_torrent(file: str, dest: str, own: str, hosts: list[str]) -> None:
    """Every host knows every other; no tracker, no DHT."""
    import libtorrent as lt

    of_any_device()
    quiet = {"enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False}
    many = {"connections_limit": 500, "unchoke_slots_limit": -1, "min_reconnect_time": 1, "max_failcount": 200}
    tcp = {"enable_outgoing_utp": False, "enable_incoming_utp": False}  # uTP finds no way over the fabric's address
    session = lt.session({**quiet, **many, **tcp, "listen_interfaces": f"[{own}]:6881"})
    params = lt.load_torrent_file(file)
    params.save_path = dest
    handle = session.add_torrent(params)
    turn = 0
    while not handle.status().is_seeding:
        if turn % 50 == 0:  # a peer that did not listen yet is forgotten
            for host in hosts:
                handle.connect_peer((host, 6881))
        time.sleep(0.02)
        turn += 1
    handle.flush_cache()
    os.sync()
    print("done", flush=True)
    sys.stdin.read()


def of_any_device() -> None:
    """From now on nothing binds a socket to a device, though it is told that it did.

    libtorrent does that with whatever has its address; packets for a fabric address of the lab come in by all planes.
    """
    allow, no_error, load, equal, end = 0x7FFF0000, 0x00050000, 0x20, 0x15, 0x06
    setsockopt, args = 54, (24, 32)  # x86-64; where seccomp_data has level and option
    program = [
        (load, 0, 0, 0), (equal, 0, 5, setsockopt),
        (load, 0, 0, args[0]), (equal, 0, 3, socket.SOL_SOCKET),
        (load, 0, 0, args[1]), (equal, 0, 1, socket.SO_BINDTODEVICE),
        (end, 0, 0, no_error), (end, 0, 0, allow),
    ]  # fmt: skip
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    held = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter_, 0, 0):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "no filter of system calls")


if __name__ == "__main__":
    {"mpi": by_mpi, "torrent": lambda file, dest, own, *hosts: by_torrent(file, dest, own, list(hosts))}[sys.argv[1]](
        *sys.argv[2:]
    )
