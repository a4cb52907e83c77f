"""EV profiles of the published control API: fields with masks, expanded byte for byte into what a packet carries.

A controller describes paths to a device by two profiles. The *format* says how the bits of an expanded EV are divided
on the wire: STEV over UDP source port and flow label (32 bits), UDP in the source port alone (16), SRV6 in the
destination address and the one segment of a routing header behind it (2 x 128). The *fields* say which of those bits
are fixed and which come from the EV: a field begins with `init`, and each bit that `mask` sets is replaced by the next
bit of the EV, both from the most significant on. What a format has more than a field stays zero, on the left. A field
wider than its place is refused here; the API is silent about it.

In mode EXPLICIT the controller lists EVs; in mode GENERATED the device makes them, every field within `min` to `max`.

Source: OCP MRC control API 1.0, mrc_ctl.h, "EV Profile attributes", and its example ev_expansion.c.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from itertools import islice

from fairlead.errors import LocalProtocolError

EV_BYTES = 32
"""Of an EV and of an expanded one, whatever its format: what is not used is zero."""
MAX_FIELD_BITS = 32


class EvFormat(enum.Enum):
    """Where an expanded EV stands in a packet; the value is how many bits it may have."""

    STEV = 32
    UDP = 16
    SRV6 = 256


@dataclass(frozen=True, slots=True)
class EvField:
    """One field of an EV profile, all in bits or as numbers of `width` bits; `max` belongs to the bits of `mask`."""

    width: int
    init: int = 0
    min: int = 0
    max: int = 0
    mask: int = 0

    @property
    def num_bits(self) -> int:
        """How many bits an EV brings for it."""
        return self.mask.bit_count()

    def value(self, bits: int) -> int:
        """The field with `bits` of an EV laid over its mask.

        >>> hex(EvField(16, init=0x1000, mask=0x0F0F).value(0xAB))
        '0x1a0b'
        """
        value, left = self.init & ~self.mask, self.num_bits
        for place in reversed(range(self.width)):
            if self.mask >> place & 1:
                left -= 1
                value |= (bits >> left & 1) << place
        return value


@dataclass(frozen=True, slots=True)
class EvProfile:
    """How EVs become what packets carry. Raises LocalProtocolError for what the API refuses with EINVAL or E2BIG."""

    format: EvFormat
    widths: tuple[int, ...]
    """Of the format's fields, in bits, from the first byte on."""
    fields: tuple[EvField, ...]

    def __post_init__(self) -> None:
        for number, (problem, field) in enumerate((_problem(f), f) for f in self.fields):
            if problem:
                raise _bad(f"field {number} ({field}): {problem}")
        if not self.fields or len(self.fields) > len(self.widths):
            raise _bad(f"{len(self.fields)} fields in a format of {len(self.widths)}")
        if min(self.widths) < 1 or sum(self.widths) > self.format.value:
            raise _bad(f"a format of {sum(self.widths)} bits where {self.format.name} has {self.format.value}")
        for number, (field, width) in enumerate(zip(self.fields, self.widths, strict=False)):
            if field.width > width:
                raise _bad(f"field {number} is wider than the {width} bits that the format has for it")

    @property
    def num_bits(self) -> int:
        """How many bits of an EV are used."""
        return sum(field.num_bits for field in self.fields)

    @property
    def num_generated(self) -> int:
        """How many EVs there are when they are generated."""
        return math.prod(field.max - field.min + 1 for field in self.fields if field.mask)

    def expand(self, ev: bytes) -> bytes:
        """The EV, at most 32 bytes, as a packet carries it: 32 bytes. LocalProtocolError for bits that nobody uses."""
        left = 8 * EV_BYTES
        bits = int.from_bytes(ev.ljust(EV_BYTES, b"\0"), "big")
        if len(ev) > EV_BYTES or bits & (1 << left - self.num_bits) - 1:
            raise _bad(f"the EV {ev.hex()} has more than the {self.num_bits} bits that the fields take")
        out = at = 0
        for field, width in zip(self.fields, self.widths, strict=False):
            left -= field.num_bits
            at += width
            out |= field.value(bits >> left & (1 << field.num_bits) - 1) << 8 * EV_BYTES - at
        return out.to_bytes(EV_BYTES, "big")

    def generated(self) -> Iterator[bytes]:
        """Every EV of mode GENERATED, 32 bytes each; the last field changes first.

        The API leaves the order to the device.
        """
        ranges = [(f.num_bits, f.min, f.max) for f in self.fields if f.mask]
        shift = 8 * EV_BYTES - self.num_bits
        for number in range(self.num_generated):
            rest, bits, at = number, 0, 0
            for num_bits, low, high in reversed(ranges):
                rest, digit = divmod(rest, high - low + 1)
                bits |= low + digit << at
                at += num_bits
            yield (bits << shift).to_bytes(EV_BYTES, "big")

    def numbers(self, count: int) -> tuple[int, ...]:
        """The first `count` generated EVs as a queue pair takes them: UDP source port << 16 | flow label.

        Raises LocalProtocolError for fewer, and for SRV6, whose EVs are addresses: see `addresses`.
        """
        if self.format is EvFormat.SRV6:
            raise _bad("EVs of SRV6 are addresses, not numbers")
        if count > self.num_generated:
            raise _bad(f"{count} EVs are needed, and the fields generate {self.num_generated}")
        return tuple(int.from_bytes(self.expand(ev)[:4], "big") for ev in islice(self.generated(), count))


def addresses(expanded: bytes) -> tuple[IPv6Address, IPv6Address | None]:
    """(destination, segment of the routing header; None: there is none) of an expanded EV of format SRV6."""
    segment = expanded[16:32]
    return IPv6Address(expanded[:16]), IPv6Address(segment) if any(segment) else None


def usid_profile(usids: Sequence[int | range], block: int) -> EvProfile:
    """The profile of paths that are steered by micro-segments of 16 bits behind a block of 32 (F3216, RFC 9800).

    A micro-segment is a number, or a range of which each path takes one; a range starts at a multiple of the power of
    two that holds it, as its low bits are what the device generates.
    """
    fields = [EvField(32, init=block)]
    for usid in usids:
        if isinstance(usid, int):
            fields.append(EvField(16, init=usid))
            continue
        mask = (1 << (len(usid) - 1).bit_length()) - 1
        if not usid or usid.step != 1 or usid.start & mask:
            raise _bad(f"the micro-segments {usid} are no low bits of one number")
        fields.append(EvField(16, init=usid.start, max=len(usid) - 1, mask=mask))
    return EvProfile(EvFormat.SRV6, tuple(f.width for f in fields), tuple(fields))


def _problem(field: EvField) -> str:
    most = (1 << field.width) - 1
    if not 1 <= field.width <= MAX_FIELD_BITS:
        return f"a field has 1 to {MAX_FIELD_BITS} bits"
    if not 0 <= field.init <= most:
        return "its first value is wider than the field"
    if not 0 <= field.mask <= most:
        return "its mask has bits outside of the field"
    if not 0 <= field.min <= field.max:
        return "its least value is above its largest"
    if field.max >> field.num_bits:
        return "its largest value is wider than its mask has bits"
    return ""


def _bad(text: str) -> LocalProtocolError:
    return LocalProtocolError("fabric/bad-ev-profile", text, hint="fairlead explain fabric/bad-ev-profile")
