"""Compiled bodies of the law, by numba; and a cache of them that can never be stale.

`register` makes every plain function of the law callable from compiled code. `kernel` compiles a driver loop that
calls them. Such a loop takes arrays and begins with `m = words(array)`: the law then runs over a bare pointer. Passed
as an array, each of the dozens of nested calls would count references up and down, atomically; measured, that costs
five times the law itself.

numba keys its cache by the source file of the kernel alone, so an edit to a rule in another file would go unnoticed;
therefore the cache lives in a folder named by a digest of all law sources, this file, the caller's own sources, numba
and the processor.

This is the one file that imports numba. It does not know what any rule says.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
import numba.extending
from llvmlite import binding, ir
from numba.core import cgutils

from fairlead.base.trust import own_folder
from fairlead.fabric.mrc import (
    bits,
    comparators,
    congestion,
    evs,
    hearing,
    law,
    layout,
    losses,
    paths,
    responder,
    rotation,
    rows,
    sending,
    timers,
    ways,
    window,
)

LAW_MODULES: tuple[ModuleType, ...] = (
    layout,
    bits,
    evs,
    rotation,
    comparators,
    paths,
    congestion,
    window,
    losses,
    timers,
    sending,
    responder,
    hearing,
    law,
    ways,
)
KEPT_FOLDERS = 8  # digests whose kernels are kept; older ones are removed


def law_sources() -> tuple[Path, ...]:
    """The files that together are the law."""
    return tuple(Path(inspect.getfile(module)) for module in (rows, *LAW_MODULES))


def digest(sources: Iterable[Path] = ()) -> str:
    """Name of the cache folder for kernels made of the law, compiled as this file says, and these further files."""
    state = hashlib.sha256()
    for path in (Path(__file__), *law_sources(), *sources):
        state.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    versions = (numba.__version__, sys.version, platform.machine(), binding.get_host_cpu_name())
    state.update("\0".join(versions).encode())
    return state.hexdigest()[:24]


def cache_folder() -> Path:
    """Where compiled kernels are kept. Without a home directory root has one of its own; nobody else has any."""
    said, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if said.startswith("/"):
        return Path(said) / "fairlead" / "kernels"
    if home.startswith("/") and home != "/":
        return Path(home) / ".cache" / "fairlead" / "kernels"
    return Path("/var/cache/fairlead/kernels") if os.geteuid() == 0 else Path("/nonexistent")


def law_functions() -> list[FunctionType]:
    """Every function of the law."""
    return [
        function
        for module in LAW_MODULES
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
    ]


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def words(typing_context: Any, array: Any) -> Any:
    """In compiled code: a pointer to the words of an int64 array, which the caller keeps alive."""

    def point(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return numba.types.CPointer(numba.types.int64)(array), point


def pointer_at(element: Any) -> Any:
    """A function for compiled code: from an address, a pointer to elements of this type."""

    def from_address(typing_context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(element)(address), build

    return numba.extending.intrinsic(from_address)


words_at = pointer_at(numba.types.int64)
"""In compiled code: the words at an address."""


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def call_address(typing_context: Any, address: Any, *args: Any) -> Any:
    """In compiled code: call a C function by its address. Arguments and result are 64-bit integers."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(64)
        packed = cgutils.unpack_tuple(builder, given[1], len(args))
        values = [context.cast(builder, v, kind, numba.types.int64) for v, kind in zip(packed, args, strict=True)]
        unit = builder.inttoptr(given[0], ir.FunctionType(word, [word] * len(args)).as_pointer())
        return builder.call(unit, values)

    return numba.types.int64(address, numba.types.StarArgTuple.from_types(args)), build


class RowType(numba.types.Type):  # type: ignore[misc]
    """A row in compiled code: the memory and the address, from which `tx.una` is one load."""

    def __init__(self, row: type[rows.Row]) -> None:
        self.words = {name: number for number, name in enumerate(rows.kinds(row, "int"))}
        self.areas = {name: rows.AREA_OFFSETS[name] for name in rows.kinds(row, "Words")}
        super().__init__(name=f"Row({row.__name__})")


WORDS = numba.types.CPointer(numba.types.int64)
ROW_TYPES = {row: RowType(row) for row in (rows.Parameters, rows.Endpoint, rows.Requestor, rows.Responder)}


@numba.extending.register_model(RowType)
class _RowModel(numba.extending.models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("m", WORDS), ("address", numba.types.int64)])


@numba.extending.infer_getattr
class _RowAttributes(numba.core.typing.templates.AttributeTemplate):  # type: ignore[misc]
    key = RowType

    def generic_resolve(self, kind: RowType, name: str) -> Any:
        if name == "m" or name in kind.areas:
            return WORDS
        if name == "profile":
            return ROW_TYPES[rows.Parameters]
        return numba.types.int64 if name == "address" or name in kind.words else None


def _word(builder: Any, m: Any, address: Any, offset: int) -> Any:
    """A pointer to the word so far behind an address."""
    return builder.gep(m, [builder.add(address, ir.Constant(ir.IntType(64), offset))])


@numba.extending.lower_getattr_generic(RowType)  # type: ignore[untyped-decorator]
def _get(context: Any, builder: Any, kind: RowType, value: Any, name: str) -> Any:
    row = cgutils.create_struct_proxy(kind)(context, builder, value)
    if name in {"m", "address"}:
        return getattr(row, name)
    if name in kind.words:
        return builder.load(_word(builder, row.m, row.address, kind.words[name]))
    profile = builder.load(_word(builder, row.m, row.address, rows.PROFILE_AT))
    if name in kind.areas:
        offset = builder.load(_word(builder, row.m, profile, kind.areas[name]))
        return builder.gep(row.m, [builder.add(row.address, offset)])
    return _make(context, builder, ROW_TYPES[rows.Parameters], row.m, profile)


@numba.extending.lower_setattr_generic(RowType)  # type: ignore[untyped-decorator]
def _set(context: Any, builder: Any, signature: Any, args: Any, name: str) -> None:
    kind = signature.args[0]
    row = cgutils.create_struct_proxy(kind)(context, builder, args[0])
    builder.store(args[1], _word(builder, row.m, row.address, kind.words[name]))


def _make(context: Any, builder: Any, kind: RowType, m: Any, address: Any) -> Any:
    row = cgutils.create_struct_proxy(kind)(context, builder)
    row.m = m
    row.address = address
    return row._getvalue()  # noqa: SLF001 - numba has no other name for it


def _offer(function: Callable[..., rows.Row], kind: RowType) -> Any:
    """Compiled code makes a row by the name that plain Python makes it by."""

    def make(typing_context: Any, m: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _make(context, builder, kind, *args)

        return kind(WORDS, numba.types.int64), build

    made = numba.extending.intrinsic(make)

    @numba.extending.overload(function)  # type: ignore[untyped-decorator]
    def typed(m: Any, address: Any) -> Any:
        def row(m: Any, address: Any) -> Any:
            return made(m, address)

        return row

    return made


@functools.cache
def register() -> None:
    """Let compiled code call the functions of the law. The functions themselves stay plain."""
    _offer(rows.profile_row, ROW_TYPES[rows.Parameters])
    _offer(rows.endpoint_row, ROW_TYPES[rows.Endpoint])
    _offer(rows.requestor_row, ROW_TYPES[rows.Requestor])
    responder_row = _offer(rows.responder_row, ROW_TYPES[rows.Responder])

    @numba.extending.overload(rows.responder_of)  # type: ignore[untyped-decorator]
    def typed(tx: Any) -> Any:
        def row(tx: Any) -> Any:
            return responder_row(tx.m, tx.responder_address)

        return row

    for function in law_functions():
        numba.extending.register_jitable(error_model="numpy")(function)  # no exceptions: the law divides by no zero


def kernel(function: Callable[..., Any], *, sources: Iterable[Path] = (), **options: Any) -> Callable[..., Any]:
    """Compile a function that calls the law, on its first call, or take it from the cache.

    `sources` are the files, besides the law, that the kernel is made of. Without a cache of one's own it is compiled in
    each process.
    """
    register()
    folder = cache_folder() / digest(sources)
    if not _prepare(folder):
        return numba.njit(error_model="numpy", **options)(function)  # type: ignore[no-any-return]
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)  # read when the decorator is applied
    try:
        return numba.njit(cache=True, error_model="numpy", **options)(function)  # type: ignore[no-any-return]
    finally:
        numba.config.CACHE_DIR = before


@functools.cache
def compiled(function: Callable[..., int], sources: tuple[Path, ...] = ()) -> Any:
    """A kernel that takes 64-bit integers alone, compiled now or taken from the cache. It runs without Python's lock.

    `sources` are the files that it is made of, besides the law and its own.
    """
    made: Any = kernel(function, sources=(Path(inspect.getfile(function)), *sources), nogil=True)
    made.compile((numba.int64,) * len(inspect.signature(function).parameters))
    return made


def entry(made: Any) -> int:
    """Where the code of such a kernel begins, for `call_address`."""
    (result,) = made.overloads.values()
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))


def _prepare(folder: Path) -> bool:
    """Make the folder and remove the oldest of the others; False if that is not possible.

    Nor is it where somebody else could put something: what lies there is run.
    """
    try:
        own_folder(folder)
        os.utime(folder)
        others = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return False
    for path in others[KEPT_FOLDERS:]:
        shutil.rmtree(path, ignore_errors=True)
    return os.access(folder, os.W_OK)
