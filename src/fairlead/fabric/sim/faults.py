"""Faults and repairs: what a [[fault]] table does to the ports of the fabric, and when.

A link that goes down loses what waits at both its ends and what is on the wire. A NIC sees its own port go down at once
and tells its queue pairs (`law.on_ports`); what they tell their peers, and how anyone learns of a dead path further in,
is the protocol's business: nothing in a statically routed fabric announces it.

Knows: ports and times. Must not know: how protocols answer, or how faults that overlap combine (`holds.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from fairlead.fabric.sim.engine import kernels
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.memory import World, window_ps
from fairlead.fabric.sim.holds import Hold, Holds, Ints, Values, What
from fairlead.fabric.sim.model import Fault, Scenario
from fairlead.fabric.sim.runner import Change
from fairlead.fabric.sim.shape import Shape

PS_PER_US = 1_000_000
PER_MILLION = 1_000_000
BROKEN = ("link", "port", "t0", "t1")


@dataclass(frozen=True)
class Link:
    """The two ports of a link: the upward one (from the NIC, or from T0) and the downward one."""

    up: int
    down: int
    nic: int = -1
    plane: int = -1
    t0: int = -1
    t1: int = -1


def timeline(scenario: Scenario, shape: Shape) -> list[Change]:
    """Everything that happens to the fabric in one run, in order of time: at each boundary between windows the faults
    that end and those that begin, at once. A fault lasts a window at least.
    """
    window = window_ps(shape)
    ends: dict[int, list[int]] = defaultdict(list)
    begins: dict[int, dict[int, Hold]] = defaultdict(dict)
    several = [part for fault in scenario.fault for part in each(fault)]
    numbers = iter(range(2 * len(several)))
    for fault, (hold, known) in zip(several, _all_holds(several, shape), strict=True):
        for one, late_us in ((hold, 0.0), (known, fault.reroute_us)):
            number = next(numbers)
            if one is None:
                continue
            for begin, end in _windows(fault, late_us, round(scenario.run.until_us), window):
                begins[begin][number] = one
                if end < at.NEVER:
                    ends[end].append(number)
    change = _Changes(shape, [fault for fault in several if fault.kind == "paths"])
    return [(time, change.at(ends.get(time, []), begins.get(time, {}))) for time in sorted({*ends, *begins})]


def _windows(fault: Fault, late_us: float, until_us: float, window: int) -> list[tuple[int, int]]:
    """When the fault holds, ps, in whole windows: one at least, and no end where it begins again."""
    found: list[tuple[int, int]] = []
    for span in _spans(fault, until_us):
        begin, end = (-(-round((time + late_us) * PS_PER_US) // window) * window for time in span)
        end = max(end, begin + window) if span[1] > 0 else at.NEVER
        if found and begin <= found[-1][1]:
            begin, end = found[-1][0], max(found.pop()[1], end)
        found.append((begin, end))
    return found


def _all_holds(several: list[Fault], shape: Shape) -> Iterator[tuple[Hold, Hold | None]]:
    """What each does while it holds, and what routing makes of it once it is known there."""
    num_paths = 0
    for fault in several:
        if fault.kind == "paths":
            yield Hold(What.PATHS, fault.nics.numbers(shape.num_nics), 1 << num_paths), None
            num_paths += 1
            continue
        touched = links(shape, fault)
        if fault.kind in BROKEN:
            dead = [(link.plane * shape.t1 + link.t1) * shape.t0 + link.t0 for link in touched if link.t1 >= 0]
            known = Hold(What.DEAD, np.unique(np.array(dead, dtype=np.int64))) if fault.reroute_us and dead else None
            yield Hold(What.DOWN, _ports(touched, "both")), known
        elif fault.kind == "loss":
            yield Hold(What.LOSS, _ports(touched, fault.direction), 1 - fault.loss), None
        else:
            yield Hold(What.SLOW, _ports(touched, fault.direction), fault.rate), None


def _ports(touched: list[Link], direction: str) -> Ints:
    ways = ("up", "down") if direction == "both" else (direction,)
    return np.unique(np.array([getattr(link, way) for link in touched for way in ways], dtype=np.int64))


def each(fault: Fault) -> list[Fault]:
    """A fault of several parts, part by part."""
    if fault.kind == "paths":
        return [fault]
    parts, later = [fault], fault.apart_us
    for key, several in (("nic", fault.nics), ("t1", fault.t1s), ("plane", fault.planes)):
        if not several.is_all and (key != "plane" or later):  # planes at one time are one part
            parts = [replace(part, **{key: int(number)}) for part in parts for number in several.every]
    return [replace(part, at_us=part.at_us + i * later) for i, part in enumerate(parts)] if later else parts


def planes_of(shape: Shape, fault: Fault) -> list[int]:
    """The planes a fault (one part of it) touches."""
    if fault.plane >= 0:
        return [fault.plane]
    return [int(plane) for plane in fault.planes.numbers(shape.planes)]


def _spans(fault: Fault, until_us: float) -> Iterator[tuple[float, float]]:
    """When the fault holds: (from, to) in microseconds; to is 0 where it stays."""
    if not fault.flap_us:
        yield fault.at_us, fault.until_us
        return
    begin, end = fault.at_us, fault.until_us or until_us
    while begin < end:
        yield begin, min(begin + fault.flap_us, end)
        begin += 2 * fault.flap_us


def links(shape: Shape, fault: Fault) -> list[Link]:
    """The links a fault touches."""
    found: list[Link] = []
    for plane in planes_of(shape, fault):
        if fault.core >= 0:
            found.append(_core_link(shape, plane, fault.t1, fault.core))
        elif fault.nic >= 0:
            found.append(_host_link(shape, plane, fault.nic))
        elif fault.t0 >= 0 and fault.t1 >= 0:
            found += _fabric_links(shape, plane, fault.t0, fault.t1)
        elif fault.t0 >= 0:
            found += _t0_links(shape, plane, fault.t0)
        elif fault.t1 >= 0:
            found += _t1_links(shape, plane, fault.t1)
        else:
            for t0 in range(shape.t0):
                found += _t0_links(shape, plane, t0)
    return found


def _host_link(shape: Shape, plane: int, nic: int) -> Link:
    return Link(shape.nic_port(plane, nic), shape.host_port(plane, nic), nic=nic, plane=plane)


def _fabric_links(shape: Shape, plane: int, t0: int, t1: int) -> list[Link]:
    in_pod = t1 % shape.pod_t1
    return [
        Link(
            shape.uplink_port(plane, t0, in_pod * shape.bundle1 + b), shape.downlink_port(plane, t1, t0, b),
            plane=plane, t0=t0, t1=t1,
        )
        for b in range(shape.bundle1)
    ]  # fmt: skip


def _core_link(shape: Shape, plane: int, t1: int, core: int) -> Link:
    up = core // shape.pod_t1 * shape.bundle2
    first = plane * shape.plane_ports + shape.t0 * shape.t0_radix + t1 * shape.t1_radix + shape.pod_t0 * shape.bundle1
    return Link(first + up, shape.core_port(plane, core, t1), plane=plane)


def _t0_links(shape: Shape, plane: int, t0: int) -> list[Link]:
    hosts = [_host_link(shape, plane, t0 * shape.hosts + h) for h in range(shape.hosts)]
    first = t0 // shape.pod_t0 * shape.pod_t1
    return hosts + [link for t1 in range(first, first + shape.pod_t1) for link in _fabric_links(shape, plane, t0, t1)]


def _t1_links(shape: Shape, plane: int, t1: int) -> list[Link]:
    first = t1 // shape.pod_t1 * shape.pod_t0
    below = [link for t0 in range(first, first + shape.pod_t0) for link in _fabric_links(shape, plane, t0, t1)]
    cores = range(t1 % shape.pod_t1, shape.cores, shape.pod_t1) if shape.cores else []
    return below + [_core_link(shape, plane, t1, core) for core in cores]


@dataclass
class _Changes:
    """The faults that hold in one run, and their marks in its world."""

    shape: Shape
    paths: list[Fault]
    holds: Holds = field(default_factory=Holds)
    rates: Ints | None = None
    """Femtoseconds a byte at each port, before any was slow."""

    def at(self, ends: list[int], begins: dict[int, Hold]) -> Callable[[World, int], None]:
        """What happens at one time."""

        def happen(world: World, now: int) -> None:
            for what, places in self.holds.change(ends, begins).items():
                self._mark(world, what, places, self.holds.of(what, places), now)

        return happen

    def _mark(self, world: World, what: What, places: Ints, values: Values, now: int) -> None:
        tables = world.tables
        if what is What.DOWN:
            self._cut(world, places, values, now)
        elif what is What.LOSS:
            tables["ports"][places, at.PT_LOSS] = np.round((1 - values) * PER_MILLION)
        elif what is What.SLOW:
            self._slow(world, places, values)
        elif what is What.PATHS:
            self._spoil(world)
            tables["nics"][places, at.NC_EV_LOSS] = values
        else:
            tables["dead_links"][places] = values
            world.w[at.W_REROUTED] = tables["dead_links"].any()

    def _cut(self, world: World, ports: Ints, down: Values, now: int) -> None:
        nodes, states = world.tables["nodes"], world.tables["ports"][:, at.PT_STATE]
        changed = ports[(states[ports] & at.PORT_DOWN != 0) != (down > 0)]
        for port, node in zip(changed, np.searchsorted(nodes[:, at.ND_PORT0], changed, side="right") - 1, strict=True):
            kernels.cut(world.w, int(port), int(node), now)
        first, num = self.shape.nic_port0, self.shape.planes
        for nic in np.unique((changed[changed >= first] - first) // num):
            own = states[first + nic * num : first + (nic + 1) * num]
            kernels.change_ports(world.w, int(nic), sum(1 << p for p in range(num) if not own[p] & at.PORT_DOWN), now)

    def _slow(self, world: World, ports: Ints, rates: Values) -> None:
        rows = world.tables["ports"]
        if self.rates is None:
            self.rates = rows[:, at.PT_FS_PER_BYTE].astype(np.int64)
        percent = np.round(rates * 100).astype(np.int64)
        rows[ports, at.PT_FS_PER_BYTE] = self.rates[ports] * 100 // percent
        scale = np.where(percent < 100, percent, 0) << at.PORT_SCALE_SHIFT
        rows[ports, at.PT_STATE] = rows[ports, at.PT_STATE] & ((1 << at.PORT_SCALE_SHIFT) - 1) | scale

    def _spoil(self, world: World) -> None:
        """Write what each fault of paths takes from packets over these T1 switches; whose, the NICs are told."""
        for row, fault in zip(world.tables["ev_loss"], self.paths, strict=True):
            for plane in planes_of(self.shape, fault):
                for t1 in fault.t1s.numbers(self.shape.pod_t1):
                    first = plane * self.shape.up0 + int(t1) * self.shape.bundle1
                    row[first : first + self.shape.bundle1] = round(fault.loss * PER_MILLION)
