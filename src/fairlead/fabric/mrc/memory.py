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

_SERIAL_BITS = 16
_SERIAL_MASK = (1 << _SERIAL_BITS) - 1
_PAGE_BITS = 40  # default addresses are so far apart, and RETH has 64 bits for them
_PAGE_MASK = (1 << 64 - _PAGE_BITS) - 1
MAX_REGIONS = 1 << 15  # half the serial numbers, so that a free key is always found


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
        self.num_changes = 0
        """Grows whenever a region comes or goes: for drivers that keep a table of their own."""

    @property
    def regions(self) -> tuple[MemoryRegion, ...]:
        """Those registered now."""
        return tuple(self._regions.values())

    def register(self, buffer: bytearray | memoryview, addr: int | None = None) -> MemoryRegion:
        """Open a writable buffer to the peers. Its virtual address is `addr`, by default one that no other region has.

        The key holds a serial number, so that 65,536 registrations pass before a key can come back, and 16 random bits;
        a key in use is never given again.
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
        rkey = self._new_key()
        while rkey in self._regions:
            rkey = self._new_key()
        region = MemoryRegion(view, (self._serial & _PAGE_MASK) << _PAGE_BITS if addr is None else addr, rkey)
        self._regions[rkey] = region
        self.num_changes += 1
        return region

    def _new_key(self) -> int:
        self._serial += 1
        return (self._serial & _SERIAL_MASK) << _SERIAL_BITS | next(self._randoms) & _SERIAL_MASK

    def deregister(self, region: MemoryRegion) -> None:
        """Close a region: from now on its key is stale."""
        if self._regions.get(region.rkey) is region:
            del self._regions[region.rkey]
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
