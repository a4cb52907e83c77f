"""The engine compiled, unit by unit, and kept on disk under a digest of every file it is made of.

A run needs the units its transport and switches use; the first run on a machine compiles them, which takes a while.

Knows: what is compiled together. Must not know: anything about a run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.fabric.mrc import compile as mrc_compile
from fairlead.fabric.mrc import law
from fairlead.fabric.mrc import units as law_units
from fairlead.fabric.sim.engine import law_calls, loop, paced, roce
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.endpoints import tell_ports
from fairlead.fabric.sim.engine.jit import engine, row32_of, row_of, words
from fairlead.fabric.sim.engine.line import rx_address, tx_address
from fairlead.fabric.sim.engine.lossless import sweep_lossless, uncount
from fairlead.fabric.sim.engine.nics import sweep_group
from fairlead.fabric.sim.engine.queues import free_place, pop
from fairlead.fabric.sim.engine.switches import sweep_switch

Kernel = Callable[..., Any]


def _sweep_group(w: int, thread: int, number: int, start: int, end: int) -> int:
    return sweep_group(words(w), thread, number, start, end)


def _sweep_switch(w: int, thread: int, number: int, start: int, end: int) -> int:
    return sweep_switch(words(w), thread, number, start, end)


def _sweep_lossless(w: int, thread: int, number: int, start: int, end: int) -> int:
    return sweep_lossless(words(w), thread, number, start, end)


def _roce_receive(w: int, thread: int, nic: int, r: int, now: int) -> int:
    paced.receive(words(w), thread, row_of(words(w), at.T_NICS, at.NIC_COLUMNS, nic), r, now)
    return 0


def _roce_send(w: int, thread: int, nic: int, flow: int, ports: int, now: int) -> int:
    return paced.send_one(words(w), thread, row_of(words(w), at.T_NICS, at.NIC_COLUMNS, nic), flow, ports, now)


def _roce_timers(w: int, nic: int, now: int) -> int:
    paced.run_timers(words(w), row_of(words(w), at.T_NICS, at.NIC_COLUMNS, nic), now)
    return 0


def _start_rows(address: int, profile: int, seed: int) -> int:
    """Set up the endpoints of every flow."""
    w = words(address)
    m = words(w[at.T_MEMORY])
    for flow in range(w[at.T_FLOWS + 1]):
        if w[at.W_TRANSPORT] == at.TRANSPORT_ROCE:
            roce.start_flow(w, flow)
            continue
        law.init_tx(m, tx_address(w, flow), profile, seed + 2 * flow, 0)
        law.init_rx(m, rx_address(w, flow), profile, seed + 2 * flow + 1, 0)
    return 0


def _cut(address: int, number: int, owner: int, now: int) -> int:
    """Take a port of a node down, losing what waits there, or bring it up. Returns how many packets were lost."""
    w = words(address)
    port, node = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, number), row_of(w, at.T_NODES, at.NODE_COLUMNS, owner)
    is_switch = node[at.ND_KIND] != at.NODE_GROUP
    counted = is_switch and w[at.W_XOFF] > 0
    port[at.PT_STATE] ^= at.PORT_DOWN
    port[at.PT_STATE] &= ~(at.PORT_PAUSED | at.PORT_ASKED_PAUSE)  # a link that comes up begins unpaused
    if counted:
        port[at.PT_STATE] |= at.PORT_TELLS
    node[at.ND_WAKE] = min(node[at.ND_WAKE], now)
    if not port[at.PT_STATE] & at.PORT_DOWN:
        w[at.W_DOWN] -= 1
        return 0
    w[at.W_DOWN] += 1
    lost = 0
    if port[at.PT_SERVING] >= 0:
        _lose(w, node, port[at.PT_SERVING], counted and not port[at.PT_STATE] & at.PORT_SERVES_CONTROL)
        port[at.PT_SERVING] = -1
        lost += 1
    while port[at.PT_DATA_HEAD] >= 0:
        _lose(w, node, pop(w, port, at.PT_DATA_HEAD), counted)
        lost += 1
    while port[at.PT_CONTROL_HEAD] >= 0:
        _lose(w, node, pop(w, port, at.PT_CONTROL_HEAD), False)
        lost += 1
    port[at.PT_DATA_BYTES] = 0
    port[at.PT_CONTROL_BYTES] = 0
    if not is_switch:
        return 0  # what waits at a NIC was never sent
    row32_of(w, at.T_COUNTS, at.COUNT_COLUMNS, number)[at.CN_DROPS] += lost
    return lost


@engine
def _lose(w: Any, node: Any, place: int, is_counted: bool) -> None:
    if is_counted:
        uncount(w, node, words(w[at.T_POOL])[place * at.RECORD_WORDS + at.META])
    free_place(w, 0, place)


def _change_ports(address: int, number: int, up: int, now: int) -> int:
    """A NIC has these ports (bit = plane) from now on: forget what waited at others and tell its endpoints."""
    w = words(address)
    nic = row_of(w, at.T_NICS, at.NIC_COLUMNS, number)
    nic[at.NC_PAUSED] &= ~(nic[at.NC_PORTS] ^ up)  # a link that comes up begins unpaused
    nic[at.NC_PORTS] = up
    nic[at.NC_CONTROL] = 0
    for plane in range(w[at.W_PLANES]):
        place = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, nic[at.NC_PORT0] + plane)[at.PT_CONTROL_HEAD]
        while place >= 0:
            nic[at.NC_CONTROL] += 1
            place = row32_of(w, at.T_LINKS, at.LINK_COLUMNS, place)[at.LINK_NEXT]
    if w[at.W_TRANSPORT] == at.TRANSPORT_MRC:
        tell_ports(w, nic, now)
    nic[at.NC_WAKE] = now
    group = row_of(w, at.T_NODES, at.NODE_COLUMNS, w[at.W_GROUP0] + number // w[at.W_HOSTS])
    group[at.ND_WAKE] = min(group[at.ND_WAKE], now)
    return 0


def sources() -> tuple[Path, ...]:
    """The files of the engine."""
    return tuple(sorted(Path(__file__).parent.glob("*.py")))


def _compiled(function: Kernel) -> Any:
    return mrc_compile.compiled(function, sources())


def play() -> Kernel:
    """`loop.play`, compiled."""
    return _compiled(loop.play)


def after() -> Kernel:
    """`loop.after`, compiled."""
    return _compiled(loop.after)


def start_rows() -> Kernel:
    """`_start_rows`, compiled."""
    return _compiled(_start_rows)


def _units(w: Any) -> dict[int, Kernel]:
    """The units that a run needs, and where their addresses belong in its world vector."""
    lossless = w[at.W_XOFF] > 0
    units: dict[int, Kernel] = {
        at.C_SWEEP_GROUP: _sweep_group,
        at.C_SWEEP_SWITCH: _sweep_lossless if lossless else _sweep_switch,
    }
    if w[at.W_TRANSPORT] == at.TRANSPORT_ROCE:
        units |= {
            at.C_ROCE_RECEIVE: _roce_receive,
            at.C_ROCE_SEND: _roce_send,
            at.C_ROCE_TIMERS: _roce_timers,
        }
    else:
        units |= law_calls.UNITS
    return units


def link(w: Any, note: Callable[[int, int], None] = lambda *_: None) -> None:
    """Compile the units a run needs, or load them, and enter their addresses in its world vector."""
    units = _units(w)
    total = len(units) + 3
    for done, (place, unit) in enumerate(units.items()):
        note(done, total)
        w[place] = law_units.address(unit) if place in law_calls.UNITS else mrc_compile.entry(_compiled(unit))
    for i, kernel in enumerate((play, after, start_rows)):
        note(total - 3 + i, total)
        kernel()
    note(total, total)


def cut(w: Any, port: int, node: int, now: int) -> int:
    """Take a port of a node down, or bring it up if it is down; how many packets that lost."""
    return int(_compiled(_cut)(int(w[at.W_SELF]), port, node, now))


def change_ports(w: Any, nic: int, up: int, now: int) -> None:
    """Tell a NIC which of its ports are up: bit = plane."""
    _compiled(_change_ports)(int(w[at.W_SELF]), nic, up, now)
