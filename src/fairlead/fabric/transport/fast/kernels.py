"""The compiled path, compiled: six calls, kept on disk under a digest of every file they are made of.

Knows: what is compiled together. Must not know: anything about a queue pair.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.fabric.mrc import compile as mrc_compile
from fairlead.fabric.mrc import packets
from fairlead.fabric.transport import batches, ports
from fairlead.fabric.transport.fast import packing, parsing, rounds, wire
from fairlead.fabric.transport.fast.memory import words_at

Kernel = Callable[..., int]
CRC_SAID, CRC_CHECK = b"123456789", 0xCBF43926


def _fill(desk: int, card: int, now: int, planes: int, budget: int) -> int:
    return packing.fill(words_at(desk), words_at(card), now, planes, budget)


def _take(desk: int, first: int, count: int, now: int) -> int:
    return parsing.take(words_at(desk), first, count, now)


def _post(desk: int, post: int) -> int:
    return wire.post(words_at(desk), words_at(post))


def _collect(desk: int, post: int, fd: int, rail: int, count: int, is_steered: int) -> int:
    return wire.collect(words_at(desk), words_at(post), fd, rail, count, is_steered)


def _sort(desk: int, post: int, count: int, rail: int, is_steered: int) -> int:
    return wire.sort(words_at(desk), words_at(post), count, rail, is_steered)


def _go(desk: int, post: int, budget: int, most_out: int, until: int) -> int:
    return rounds.go(words_at(desk), words_at(post), budget, most_out, until)


def _sources() -> tuple[Path, ...]:
    beside = (Path(module.__file__ or "") for module in (packets, ports, batches))
    return tuple(sorted((*Path(__file__).parent.glob("*.py"), *beside)))


def _compiled(function: Kernel) -> Any:
    return mrc_compile.compiled(function, _sources())


def folder() -> Path:
    """Where the kernels are kept."""
    return mrc_compile.cache_folder() / mrc_compile.digest((Path(__file__), *_sources()))


@functools.cache
def fill() -> Kernel:
    """`packing.fill`."""
    return _compiled(_fill)


@functools.cache
def take() -> Kernel:
    """`parsing.take`."""
    return _compiled(_take)


@functools.cache
def post() -> Kernel:
    """`wire.post`."""
    return _compiled(_post)


@functools.cache
def collect() -> Kernel:
    """`wire.collect`."""
    return _compiled(_collect)


@functools.cache
def sort() -> Kernel:
    """`wire.sort`."""
    return _compiled(_sort)


@functools.cache
def go() -> Kernel:
    """`rounds.go`."""
    return _compiled(_go)


@functools.cache
def c_functions() -> dict[str, int] | None:
    """Addresses of the C functions that kernels call; None where they are not to be had, or on a big-endian machine."""
    if sys.byteorder != "little" or sys.maxsize < 1 << 40 or not sys.platform.startswith("linux"):
        return None
    found = {}
    for name, places in _PLACES.items():
        addresses = (_address(library, symbol) for library, symbol in places)
        found[name] = next((a for a in addresses if a and (name != "crc32" or _reckons_crc32(a))), 0)
    return found if all(found.values()) else None


def _address(library: str | None, symbol: str) -> int:
    try:
        return ctypes.cast(getattr(ctypes.CDLL(library), symbol), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def _reckons_crc32(address: int) -> bool:
    """Whether what stands there is the CRC of IEEE 802.3, also from where another call ended: its check value."""
    crc32 = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)(address)
    return crc32(0, CRC_SAID, 9) == crc32(crc32(0, CRC_SAID, 4), CRC_SAID[4:], 5) == CRC_CHECK


@functools.cache
def gcm_functions() -> dict[str, Any]:
    """OpenSSL's functions of AES-GCM (openssl/evp.h); none where it is not a shared library."""
    p, n = ctypes.c_void_p, ctypes.c_int
    types = {
        "EVP_CIPHER_CTX_new": (p, []),
        "EVP_CIPHER_CTX_free": (None, [p]),
        "EVP_aes_256_gcm": (p, []),
        "EVP_EncryptInit_ex": (n, [p, p, p, ctypes.c_char_p, ctypes.c_char_p]),
        "EVP_EncryptUpdate": (n, [p, p, p, p, n]),
        "EVP_EncryptFinal_ex": (n, [p, p, p]),
        "EVP_CIPHER_CTX_ctrl": (n, [p, n, n, p]),
    }
    try:
        library = ctypes.CDLL("libcrypto.so.3")
        found = {name: getattr(library, name) for name in types}
    except (OSError, AttributeError):
        return {}
    for name, (result, arguments) in types.items():
        found[name].restype, found[name].argtypes = result, arguments
    return found


_PLACES: dict[str, tuple[tuple[str | None, str], ...]] = {
    # all take the same arguments; libdeflate's a tenth of zlib's time on processors with carry-less multiplication, and
    # ISA-L's a quarter of that where it is wide (AVX-512)
    "crc32": (
        ("libisal.so.2", "crc32_gzip_refl"),
        ("libdeflate.so.0", "libdeflate_crc32"),
        (getattr(zlib, "__file__", None), "crc32"),
    ),
    "sendmmsg": ((None, "sendmmsg"),),
    "recvmmsg": ((None, "recvmmsg"),),
    "clock_gettime": ((None, "clock_gettime"),),
    "__errno_location": ((None, "__errno_location"),),
}
"""Libraries (None: the C library) and names of the C functions that kernels call, the best first."""
