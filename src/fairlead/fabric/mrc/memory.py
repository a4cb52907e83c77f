"""Memory regions: what a peer may write, checked on every packet.

A region is a local buffer with a virtual address and a remote key. A Write lands only if its key is registered now
and every byte from its address to the end of its *message* (RETH: each packet's va and the length from there on) lies
inside the region. So a forged key, the key of a region since deregistered, an address outside and a message too long
are refused with their first packet, before a byte is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.errors import LocalProtocolError

_KEY_MASK = (1 << 32) - 1
RESTING_KEYS = 65_536
"""So many deregistered keys are remembered, not to be given again: what was sent to an old region finds no new one."""
_PAGE_BITS = 40  # default addresses are so far apart, and RETH has 64 bits for them
_PAGE_MASK = (1 << 64 - _PAGE_BITS) - 1
MAX_REGIONS = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRegion:
    """A registered buffer. `addr` and `rkey` go to the peer, out of band."""

    buffer: memoryview
    addr: int
    rkey: int

    @property
    def length(self) -> int:
        """Size in bytes."""
        return len(self.buffer)


NOWHERE = MemoryRegion(memoryview(bytearray()), 0, 0)


class ProtectionDomain:
    """The regions that queue pairs of one domain may be asked to write."""

    def __init__(self, randoms: Iterator[int]) -> None:
        """`randoms` is the injected stream of 32-bit numbers that makes keys hard to guess."""
        self._randoms = randoms
        self._serial = 0
        self._regions: dict[int, MemoryRegion] = {}
        self._resting: dict[int, None] = {}  # keys given back, oldest first
        self.num_changes = 0
        """Grows whenever a region comes or goes: for drivers that keep a table of their own."""

    @property
    def regions(self) -> tuple[MemoryRegion, ...]:
        """Those registered now."""
        return tuple(self._regions.values())

    def register(self, buffer: bytearray | memoryview, addr: int | None = None) -> MemoryRegion:
        """Open a writable buffer to the peers. Its virtual address is `addr`, by default one that no other region has.

        All 32 bits of the key are random: who knows other keys knows nothing of this one. A key in use, or among the
        last RESTING_KEYS given back, is not given again.
        """
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise LocalProtocolError(
                "fabric/read-only-region", "a memory region must be writable", hint="register a bytearray or a mapping"
            )
        if len(self._regions) >= MAX_REGIONS:
            raise LocalProtocolError(
                "fabric/too-many-regions",
                f"{MAX_REGIONS} memory regions are registered",
                hint="deregister those not in use",
            )
        rkey = next(self._randoms) & _KEY_MASK
        while rkey in self._regions or rkey in self._resting:
            rkey = next(self._randoms) & _KEY_MASK
        self._serial += 1
        region = MemoryRegion(view, (self._serial & _PAGE_MASK) << _PAGE_BITS if addr is None else addr, rkey)
        self._regions[rkey] = region
        self.num_changes += 1
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """Close a region: from now on its key is stale."""
        if self._regions.get(region.rkey) is region:
            del self._regions[region.rkey]
            self._resting[region.rkey] = None
            if len(self._resting) > RESTING_KEYS:
                del self._resting[next(iter(self._resting))]
            self.num_changes += 1

    def admit(self, rkey: int, va: int, dma_len: int, num_bytes: int) -> MemoryRegion | None:
        """The region that a packet of so many bytes may write, with the rest of its message; None: it may not.

        A message of no bytes touches nothing and needs no key.
        """
        if num_bytes > dma_len:
            return None
        return self.find(rkey, va, dma_len) if dma_len else NOWHERE

    def find(self, rkey: int, va: int, length: int) -> MemoryRegion | None:
        """The region that holds [va, va + length) under this key."""
        region = self._regions.get(rkey)
        if region is None or va < region.addr or va + length > region.addr + region.length:
            return None
        return region
