"""What the CRC of a packet of 4 KB costs: by carry-less multiplication, as compiled engines make it, and by libraries.

python bench/fabric_icrc.py [--bytes 4136]

Called a thousand times over 64 packets one behind the other, from compiled code; the least of 50 turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np

from fairlead.fabric.mrc.compile import call_address
from fairlead.fabric.transport.fast import crc, kernels

PACKETS, TURNS, CALLS = 64, 50, 1024
WORD = numba.int64


def cost_ns(one: Callable[[int, int, int], int], data: np.ndarray, size: int) -> float:
    """Of one call."""

    @numba.njit(WORD(WORD, WORD, WORD))
    def many(address: int, size: int, num: int) -> int:
        out = 0
        for i in range(num):
            out ^= one(0, address + i % PACKETS * size, size)
        return out

    first = zlib.crc32(data[:size])
    assert many(data.ctypes.data, size, 1) == first
    best = float("inf")
    for _ in range(TURNS):
        begin = time.perf_counter_ns()
        many(data.ctypes.data, size, CALLS)
        best = min(best, (time.perf_counter_ns() - begin) / CALLS)
    return best


def library(address: int) -> Callable[[int, int, int], int]:
    return numba.njit(lambda so_far, at, size: call_address(address, so_far, at, size) & 0xFFFFFFFF)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=4136)
    size = parser.parse_args().bytes
    data = np.frombuffer(random.Random(1).randbytes(PACKETS * size), np.uint8)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.release()}, load {os.getloadavg()[0]:.1f}\n")
    print("| | ns | GB/s |\n|---|---:|---:|")
    found = {f"made here, {128 * n} bits at once": crc.crc32_of(n) for n in (1, 2, 4) if n <= crc.LANES}
    for name, symbol in kernels._PLACES["crc32"]:  # noqa: SLF001
        address = kernels._address(name, symbol)  # noqa: SLF001
        if address:
            found[f"`{symbol}` of {Path(name).name}"] = library(address)
    for name, one in found.items():
        ns = cost_ns(one, data, size)
        print(f"| {name} | {ns:.0f} | {size / ns:.1f} |")


if __name__ == "__main__":
    main()
