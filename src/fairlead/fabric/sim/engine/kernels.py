"""The engine compiled: two entry points, kept on disk under a digest of every file they are made of.

Knows: what is compiled together. Must not know: anything about a run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from fairlead.fabric.mrc import compile as mrc_compile
from fairlead.fabric.mrc import law
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import loop
from fairlead.fabric.sim.engine.jit import table, vector, world
from fairlead.fabric.sim.engine.line import rx_address, tx_address

Kernel = Callable[..., Any]


def sources() -> tuple[Path, ...]:
    """The files of the engine."""
    return tuple(sorted(Path(__file__).parent.glob("*.py")))


@functools.cache
def play() -> Kernel:
    """`loop.play`, compiled."""
    return mrc_compile.kernel(loop.play, sources=sources(), nogil=True)


@functools.cache
def start_rows() -> Kernel:
    """`_start_rows`, compiled."""
    return mrc_compile.kernel(_start_rows, sources=sources(), nogil=True)


def load() -> None:
    """Compile both kernels, or take them from disk."""
    play().compile((numba.int64,) * 5)  # type: ignore[attr-defined]
    start_rows().compile((numba.int64,) * 3)  # type: ignore[attr-defined]


def _start_rows(address: int, profile: int, seed: int) -> None:
    """Set up the endpoints of every flow."""
    w = world(address, at.WORLD_WORDS)
    m = vector(w, at.T_MEMORY)
    for flow in range(len(table(w, at.T_FLOWS, at.FLOW_COLUMNS))):
        law.init_tx(m, tx_address(w, flow), profile, seed + 2 * flow, 0)
        law.init_rx(m, rx_address(w, flow), profile, seed + 2 * flow + 1, 0)
