"""Arrays rebuilt from addresses inside compiled code: the only file of the engine that talks to numba's insides.

Knows: how a table is found again from the world vector (`layout.py`).
Must not know: what stands in a table.

Why addresses. Every array that crosses a call in compiled code costs an atomic count up and one down, and with two
threads that cache line bounces between the cores: measured 390 ns for a call with 30 arrays, 10 ns for one with two
views rebuilt from addresses. So the engine passes one int64 vector that holds addresses, lengths and constants, the
way C passes a pointer to a struct, and each function rebuilds the views it needs. A view of this kind is only an
address: whoever built the world keeps the arrays alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

F = TypeVar("F", bound=Callable[..., Any])


def engine(function: F) -> F:
    """Mark a plain function as part of the engine: it is compiled into the kernels that call it."""
    marked: F = register_jitable(no_cfunc_wrapper=True, error_model="numpy")(function)
    return marked


def engine_inline(function: F) -> F:
    """The same, for short functions that every packet passes: their calls vanish."""
    marked: F = register_jitable(forceinline=True, no_cfunc_wrapper=True, error_model="numpy")(function)
    return marked


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typingctx: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), build


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typingctx: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.none(address), build


@engine
def prefetch(w: Any, at: int, num_bytes: int) -> None:
    """Ask for the cache line `num_bytes` into a table, which is needed soon."""
    _prefetch(w[at] + num_bytes)


@engine
def table(w: Any, at: int, columns: int) -> Any:
    """The int64 table whose address and number of rows stand at `w[at]` and `w[at + 1]`."""
    return numba.carray(_pointer(w[at]), (w[at + 1], columns), np.int64)


@engine
def table32(w: Any, at: int, columns: int) -> Any:
    """The int32 table whose address and number of rows stand at `w[at]` and `w[at + 1]`."""
    return numba.carray(_pointer(w[at]), (w[at + 1], columns), np.int32)


@engine
def world(address: int, num_words: int) -> Any:
    """The world vector itself, as a view that is never counted."""
    return numba.carray(_pointer(address), (num_words,), np.int64)


@engine
def vector(w: Any, at: int) -> Any:
    """The int64 vector at `w[at]`."""
    return numba.carray(_pointer(w[at]), (w[at + 1],), np.int64)


@engine
def vector32(w: Any, at: int) -> Any:
    """The int32 vector at `w[at]`."""
    return numba.carray(_pointer(w[at]), (w[at + 1],), np.int32)
