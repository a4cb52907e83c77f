"""Ranks of a group find each other: through torch's Store, then each pair over the transport's exchange.

One context and one event loop serve all groups of a process. The Store is trusted as torch trusts it: who can read it
has the token of the group.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from fairlead.errors import FabricError
from fairlead.fabric.mrc.layout import RETRY_EXP_INFINITE
from fairlead.fabric.mrc.memory import MemoryRegion
from fairlead.fabric.torch.peers import BOX_BYTES, NUM_RECVS, Hello, Peer
from fairlead.fabric.transport.context import Context
from fairlead.fabric.transport.exchange import Remote
from fairlead.fabric.transport.queues import CompletionQueue
from fairlead.records.addressbook import PLACE, Place, Port

ADDRESSES = "FAIRLEAD_MRC_ADDRESSES"
MAX_PLACE = 1 << 20
PATIENT: dict[str, Any] = {"retry_linear": 1 << 30, "retry_exp": RETRY_EXP_INFINITE}
"""A queue pair asks for ever, and at one pace, so that a rank that was paused is soon there again. How long one may be
silent its group says, by its timeout."""


class Process:
    """What all groups of this process share."""

    def __init__(self) -> None:
        place = own_place()
        self.context = Context(place, **PATIENT)
        first = next((p.address for p in self.context.place.ports if p.address), "")
        self.address = place.management or place.address or first
        self.loop = asyncio.new_event_loop()
        self.groups: list[Any] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="fairlead-torch", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Say goodbye for all groups, and end."""
        for group in list(self.groups):
            group.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self.context.close()


_shared: list[Process] = []
_lock = threading.Lock()


def process() -> Process:
    """The one of this process, made as the first group is."""
    with _lock:
        if not _shared:
            _shared.append(Process())
        return _shared[0]


def own_place() -> Place:
    """Where this host sits: FAIRLEAD_MRC_ADDRESSES, the file of the fabric, or the address its name stands for."""
    if said := os.environ.get(ADDRESSES):
        return _of(said.split(","))
    try:
        with Path(PLACE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_PLACE), type=Place)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError) as exc:
        raise FabricError("fabric/no-port", f"{PLACE} cannot be read: {exc}", hint=f"set {ADDRESSES}") from exc
    try:
        return _of([str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_DGRAM)[0][4][0])])
    except OSError as exc:
        raise FabricError(
            "fabric/no-port", "this host's name stands for no address", hint=f"set {ADDRESSES} to those of its ports"
        ) from exc


def _of(addresses: list[str]) -> Place:
    return Place(ports=tuple(Port(rail=f"rail {i}", address=a.strip()) for i, a in enumerate(addresses)))


def meet(store: Any, rank: int, size: int, limit_s: float) -> tuple[dict[int, Peer], CompletionQueue]:
    """A peer for every other rank. FabricError within limit_s, or torch's own where the Store has no answer."""
    shared = process()
    queue = CompletionQueue(max(4 * NUM_RECVS * size, 1))
    if size == 1:
        return {}, queue
    end = time.monotonic() + limit_s
    if rank == 0:
        store.set("mrc/token", secrets.token_hex(32))
    token = bytes.fromhex(store.get("mrc/token").decode())
    peers: dict[int, Peer] = {}
    with shared.context.listen(shared.address, token) as listener:
        store.set(f"mrc/{rank}", json.dumps([shared.address, listener.port]))
        for other in range(rank):
            address, port = json.loads(store.get(f"mrc/{other}"))
            box, hello = _box(shared.context, rank)
            left = max(end - time.monotonic(), 1.0)
            qp = shared.context.connect(address, port, token, queue, queue, private=hello, limit_s=left)
            peers[other] = Peer(qp, *box, rank=other)
        while len(peers) < size - 1:
            box, hello = _box(shared.context, rank)
            left = max(end - time.monotonic(), 1.0)
            peer = Peer(listener.accept(queue, queue, private=hello, limit_s=left), *box)
            peers[peer.rank] = peer
    # nobody writes before all are ready to receive
    store.set(f"mrc/ready/{rank}", "1")
    store.wait([f"mrc/ready/{r}" for r in range(size)])
    return peers, queue


def _box(context: Context, rank: int) -> tuple[tuple[Any, MemoryRegion], str]:
    box = torch.empty(BOX_BYTES, dtype=torch.uint8)
    region = context.register(box)
    remote = Remote(addr=region.addr, rkey=region.rkey, length=region.length)
    return (box, region), msgspec.json.encode(Hello(rank=rank, box=remote)).decode()
