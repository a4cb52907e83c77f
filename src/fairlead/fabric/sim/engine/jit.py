"""Memory inside compiled code: pointers made from addresses. The only file of the engine that talks to numba's insides.

Knows: how a row of a table is found from the world vector (`layout.py`). Must not know: what stands in it.

Why pointers. An array that crosses a call in compiled code is seven words and an atomic count up and down, and with
two threads that count bounces between the cores: measured 390 ns for a call with 30 arrays. A pointer is one word. So
the engine passes one pointer, to the world vector that holds addresses, lengths and constants, the way C passes a
pointer to a struct, and each function finds the rows it needs. Whoever built the world keeps its arrays alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from fairlead.fabric.mrc.compile import call_address, pointer_at, words_at

F = TypeVar("F", bound=Callable[..., Any])


def engine(function: F) -> F:
    """Mark a plain function as part of the engine: it is compiled into the kernels that call it."""
    marked: F = register_jitable(error_model="numpy", no_cfunc_wrapper=True)(function)
    return marked


def engine_inline(function: F) -> F:
    """The same, for functions that every packet passes: their calls vanish."""
    marked: F = register_jitable(error_model="numpy", no_cfunc_wrapper=True, forceinline=True)(function)
    return marked


words = words_at
"""int64 words at an address."""
halves = pointer_at(types.int32)
"""int32 halves at an address."""


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.none(address), build


call = call_address


@engine_inline
def prefetch(w: Any, table: int, num_bytes: int) -> None:
    """Ask for the cache line `num_bytes` into a table, which is needed soon."""
    _prefetch(w[table] + num_bytes)


@engine_inline
def row_of(w: Any, table: int, columns: int, index: int) -> Any:
    """A row of an int64 table."""
    return words(w[table] + index * columns * 8)


@engine_inline
def row32_of(w: Any, table: int, columns: int, index: int) -> Any:
    """A row of an int32 table."""
    return halves(w[table] + index * columns * 4)
