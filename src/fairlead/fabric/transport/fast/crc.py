"""CRC-32 of IEEE 802.3, which the iCRC is, by carry-less multiplication (compiled).

Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). Bytes are a
polynomial, their first bit its highest power. What has been read is kept in lanes of 128 bits, which are carried over
the bytes that follow by products with powers of x modulo P; at the end one lane is brought into 32 bits (Barrett).

A vector has as many lanes as the processor multiplies at once: LANES. Where it does not, LANES is 0, and a library is
called (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import binding, ir
from numba import types
from numba.core import config
from numba.core.datamodel import models
from numba.extending import intrinsic, register_jitable, register_model

P, DEGREE = 0x104C11DB7, 32
MASK: Final = 0xFFFFFFFF
LANE: Final = 16  # bytes
_WORD, _INDEX = ir.IntType(64), ir.IntType(32)


def lanes() -> int:
    """Lanes that this processor multiplies at once; 0: none, or numba is told to compile for another one."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return 0
    has = binding.get_host_cpu_features()
    if has.get("vpclmulqdq"):
        return 4 if has.get("avx512f") else 2
    return int(bool(has.get("pclmul")))


LANES: Final = lanes()


def reflected(value: int, num_bits: int) -> int:
    """Bits in the other order, as the CRC has them."""
    return int(f"{value:0{num_bits}b}"[::-1], 2)


def power(n: int) -> int:
    """x^n modulo P as a factor: the product of two reflected numbers of 64 bits is one bit short of 128."""
    rest = 1
    for _ in range(n):
        rest <<= 1
        rest ^= P if rest >> DEGREE else 0
    return reflected(rest, DEGREE) << 1


def reciprocal() -> int:
    """x^64 divided by P, reflected: 33 bits."""
    rest, out = 1 << 2 * DEGREE, 0
    for i in range(DEGREE, -1, -1):
        if rest >> DEGREE + i & 1:
            rest ^= P << i
            out |= 1 << i
    return reflected(out, DEGREE + 1)


X64, X96, MU, MODULUS = power(64), power(96), reciprocal(), reflected(P, DEGREE + 1)


class Vector(types.Type):  # type: ignore[misc]
    """Lanes in a register."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(f"crc_vector_{lanes}")


@register_model(Vector)
class _Register(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, _register(vector.lanes))


def _register(lanes: int) -> ir.VectorType:
    return ir.VectorType(_WORD, 2 * lanes)


def _multiply(builder: Any, lanes: int, a: Any, b: Any, *, high: bool) -> Any:
    """Products of the low (or high) halves of each lane."""
    kind = _register(lanes)
    name = "llvm.x86.pclmulqdq" + ("" if lanes == 1 else f".{128 * lanes}")
    function = ir.FunctionType(kind, [kind, kind, ir.IntType(8)])
    return builder.call(
        builder.module.declare_intrinsic(name, (), function), [a, b, ir.Constant(ir.IntType(8), 0x11 * high)]
    )


def _load(lanes: int) -> Any:
    """A function: the vector at an address."""

    def load(typing_context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], _register(lanes).as_pointer()), align=1)

        return Vector(lanes)(types.int64), build

    return intrinsic(load)


def _carry(lanes: int, num_bytes: int) -> Any:
    """A function: a vector carried over so many bytes, its own included, and added to the vector that ends there."""
    factors = [power(8 * num_bytes + DEGREE), power(8 * num_bytes - DEGREE)] * lanes

    def carry(typing_context: Any, vector: Any, then: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            by = ir.Constant(_register(lanes), factors)
            low, high = (_multiply(builder, lanes, args[0], by, high=high) for high in (False, True))
            return builder.xor(builder.xor(low, high), args[1])

        return Vector(lanes)(vector, then), build

    return intrinsic(carry)


def _part(second: int) -> Any:
    """A function: the first (or second) half of the lanes of a vector."""

    def half(typing_context: Any, vector: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            count = vector.lanes  # words of a half
            places = [count * second + i for i in range(count)]
            nothing = ir.Constant(_register(vector.lanes), ir.Undefined)
            return builder.shuffle_vector(args[0], nothing, ir.Constant(ir.VectorType(_INDEX, count), places))

        return Vector(vector.lanes // 2)(vector), build

    return intrinsic(half)


@intrinsic  # type: ignore[untyped-decorator]
def _begin(typing_context: Any, vector: Any, crc: Any) -> Any:
    """The vector as it is behind bytes of this CRC."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = builder.xor(builder.extract_element(args[0], _INDEX(0)), args[1])
        return builder.insert_element(args[0], first, _INDEX(0))

    return vector(vector, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _word(typing_context: Any, lane: Any, which: Any) -> Any:
    """The first or second half of a lane."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], args[1])

    return types.int64(lane, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _product(typing_context: Any, a: Any, b: Any) -> Any:
    """The product of two words: a lane."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(_register(1), [0, 0])
        a, b = (builder.insert_element(zero, word, _INDEX(0)) for word in args)
        return _multiply(builder, 1, a, b, high=False)

    return Vector(1)(types.int64, types.int64), build


def _bytes(num_bits: int) -> Any:
    """A function: so many bits at an address, the first byte lowest."""

    def load(typing_context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(num_bits)
            return builder.zext(builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1), _WORD)

        return types.int64(types.int64), build

    return intrinsic(load)


_load8, _load32, _lane, _over16 = _bytes(8), _bytes(32), _load(1), _carry(1, LANE)
_first, _second, _over32 = _part(0), _part(1), _carry(2, 2 * LANE)


@register_jitable  # type: ignore[untyped-decorator]
def _rest(low: int) -> int:
    """64 bits modulo P."""
    times = _word(_product(low & MASK, MU), 0) & MASK
    return (low ^ _word(_product(times, MODULUS), 0)) >> DEGREE & MASK


@register_jitable  # type: ignore[untyped-decorator]
def _end(lane: Any) -> int:
    """The CRC, before it is inverted, of bytes that end with this lane."""
    low, high = _product(_word(lane, 0), X96), _word(lane, 1)
    first, then = _word(low, 0) ^ high, _word(low, 1)
    return _rest((first >> DEGREE & MASK | then << DEGREE) ^ _word(_product(first & MASK, X64), 0))


@register_jitable  # type: ignore[untyped-decorator]
def _one_of_one(vector: Any) -> Any:
    return vector


@register_jitable  # type: ignore[untyped-decorator]
def _one_of_two(vector: Any) -> Any:
    return _over16(_first(vector), _second(vector))


@register_jitable  # type: ignore[untyped-decorator]
def _one_of_four(vector: Any) -> Any:
    return _one_of_two(_over32(_first(vector), _second(vector)))


def crc32_of(lanes: int) -> Callable[[int, int, int], int]:
    """The CRC of bytes at an address, behind bytes of a CRC, as zlib's; by vectors of so many lanes.

    Called as `crc32(crc, address, num_bytes)`, from compiled code alone.
    """
    wide = LANE * lanes
    load, over4, over1 = _load(lanes), _carry(lanes, 4 * wide), _carry(lanes, wide)
    one = {1: _one_of_one, 2: _one_of_two, 4: _one_of_four}[lanes]

    def crc32(crc: int, at: int, num_bytes: int) -> int:
        crc ^= MASK
        end = at + num_bytes
        if num_bytes >= LANE:
            if num_bytes >= 4 * wide:
                a, b, c, d = _begin(load(at), crc), load(at + wide), load(at + 2 * wide), load(at + 3 * wide)
                at += 4 * wide
                while at + 4 * wide <= end:
                    a, b = over4(a, load(at)), over4(b, load(at + wide))
                    c, d = over4(c, load(at + 2 * wide)), over4(d, load(at + 3 * wide))
                    at += 4 * wide
                lane = one(over1(over1(over1(a, b), c), d))
            else:
                lane = _begin(_lane(at), crc)
                at += LANE
            while at + LANE <= end:
                lane = _over16(lane, _lane(at))
                at += LANE
            crc = _end(lane)
        while at + 4 <= end:
            crc = _rest(crc ^ _load32(at))
            at += 4
        while at < end:
            crc = crc >> 8 ^ _rest((crc ^ _load8(at)) << 24 & MASK)
            at += 1
        return crc ^ MASK

    made: Callable[[int, int, int], int] = register_jitable(error_model="numpy", no_cfunc_wrapper=True)(crc32)
    return made
