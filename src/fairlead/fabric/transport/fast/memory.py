"""Bytes and words at addresses, inside compiled code. The one file of the compiled path that talks to numba's insides.

Addresses are integers; whoever made them keeps the memory alive. Multi-byte numbers are the network's, most significant
byte first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from fairlead.fabric.mrc import packets
from fairlead.fabric.mrc.compile import call_address, words_at
from fairlead.fabric.transport.fast import crc

F = TypeVar("F", bound=Callable[..., Any])
__all__ = [
    "copy",
    "crc32",
    "load8",
    "load16",
    "load32",
    "load64",
    "part",
    "store8",
    "store16",
    "store32",
    "store64",
    "words_at",
]


def part(function: F) -> F:
    """Mark a plain function as part of the compiled path."""
    marked: F = register_jitable(error_model="numpy", no_cfunc_wrapper=True)(function)
    return marked


timestamp = part(packets.timestamp)
time_of = part(packets.time_of)


def _load(num_bits: int) -> Any:
    def load(typing_context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(num_bits)
            value = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)
            if num_bits > 8:
                value = builder.bswap(value)
            return value if num_bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), build

    return intrinsic(load)


def _store(num_bits: int) -> Any:
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(num_bits)
            number = args[1] if num_bits == 64 else builder.trunc(args[1], kind)
            if num_bits > 8:
                number = builder.bswap(number)
            builder.store(number, builder.inttoptr(args[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), build

    return intrinsic(store)


load8, load16, load32, load64 = (_load(n) for n in (8, 16, 32, 64))
"""An unsigned number at an address; load64 wraps to a signed one."""
store8, store16, store32, store64 = (_store(n) for n in (8, 16, 32, 64))
"""Write the lowest bits of a number to an address."""


@intrinsic  # type: ignore[untyped-decorator]
def copy(typing_context: Any, to: Any, source: Any, num_bytes: Any) -> Any:
    """Copy bytes that do not overlap."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in args[:2])
        cgutils.raw_memcpy(builder, to, source, args[2], 1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), build


if crc.LANES:
    _crc32 = crc.crc32_of(crc.LANES)

    @part
    def crc32(function: int, so_far: int, address: int, num_bytes: int) -> int:
        """The CRC of bytes behind others, made here."""
        return _crc32(so_far, address, num_bytes)

else:

    @part
    def crc32(function: int, so_far: int, address: int, num_bytes: int) -> int:
        """The CRC of bytes behind others, by a crc32 of ISA-L, libdeflate or zlib called at its address."""
        return call_address(function, so_far, address, num_bytes)
