"""Faults and repairs: what a [[fault]] table does to the ports of the fabric, and when.

A link that goes down loses what waits at both its ends and what is on the wire. A NIC sees its own port go down at once
and tells its queue pairs (`law.on_ports`); what they tell their peers, and how anyone learns of a dead path further in,
is the protocol's business: nothing in a statically routed fabric announces it.

Knows: ports and times. Must not know: how protocols answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from fairlead.fabric.sim.engine import kernels
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.memory import World
from fairlead.fabric.sim.model import Fault, Scenario
from fairlead.fabric.sim.runner import Event
from fairlead.fabric.sim.shape import Shape

PS_PER_US = 1_000_000
PER_MILLION = 1_000_000


@dataclass(frozen=True)
class Link:
    """The two ports of a link: the upward one (from the NIC, or from T0) and the downward one."""

    up: int
    down: int
    nic: int = -1
    plane: int = -1
    t0: int = -1
    t1: int = -1


def timeline(scenario: Scenario, shape: Shape) -> list[Event]:
    """Everything that happens to the fabric, in order of time."""
    events: list[Event] = []
    for fault in (one for several in scenario.fault for one in each(several)):
        for begin, end in _spans(fault, round(scenario.run.until_us)):
            events.append((round(begin * PS_PER_US), _Change(shape, fault, begins=True)))
            if end > 0:
                events.append((round(end * PS_PER_US), _Change(shape, fault, begins=False)))
            if fault.reroute_us > 0:
                events.append((round((begin + fault.reroute_us) * PS_PER_US), _Reroute(shape, fault, dead=True)))
                if end > 0:
                    events.append((round((end + fault.reroute_us) * PS_PER_US), _Reroute(shape, fault, dead=False)))
    return sorted(events, key=lambda e: e[0])


def each(fault: Fault) -> list[Fault]:
    """A fault of several parts, part by part."""
    if fault.kind == "paths":
        return [fault]
    parts, later = [fault], fault.apart_us
    for key, several in (("nic", fault.nics), ("t1", fault.t1s), ("plane", fault.planes)):
        # a NIC hears of all its ports that change at one time at once
        if not several.is_all and (key != "plane" or later):
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


@dataclass(frozen=True)
class _Change:
    """A fault begins or ends."""

    shape: Shape
    fault: Fault
    begins: bool

    def __call__(self, world: World, now: int) -> None:
        if self.fault.kind == "paths":
            self._corrupt(world)
            return
        touched = links(self.shape, self.fault)
        if self.fault.kind in ("loss", "slow"):
            ways = {"up": ("up",), "down": ("down",), "both": ("up", "down")}[self.fault.direction]
            ports = [getattr(link, way) for link in touched for way in ways]
            self._weaken(world, ports)
            return
        for link in touched:
            for port in (link.up, link.down):
                kernels.cut(world.w, port, down=self.begins)
        by_nic: dict[int, int] = {}
        for link in touched:
            if link.nic >= 0:
                by_nic[link.nic] = by_nic.get(link.nic, 0) | 1 << link.plane
        for nic, planes in by_nic.items():
            kernels.change_ports(world.w, nic, planes, now, up=not self.begins)

    def _weaken(self, world: World, ports: list[int]) -> None:
        rows = world.tables["ports"]
        if self.fault.kind == "loss":
            rows[ports, at.PT_LOSS] = round(self.fault.loss * PER_MILLION) if self.begins else 0
            return
        # of several that touch a port the last to begin counts, as with losses
        state = rows[ports, at.PT_STATE]
        was = state >> at.PORT_SCALE_SHIFT
        full = rows[ports, at.PT_FS_PER_BYTE].astype(np.int64)
        full = np.where(was > 0, np.round(full * was / 100).astype(np.int64), full)
        percent = round(self.fault.rate * 100)
        rows[ports, at.PT_FS_PER_BYTE] = full * 100 // percent if self.begins else full
        scale = percent << at.PORT_SCALE_SHIFT if self.begins else 0
        rows[ports, at.PT_STATE] = state & ((1 << at.PORT_SCALE_SHIFT) - 1) | scale

    def _corrupt(self, world: World) -> None:
        """Mark the paths over these T1 switches, and the NICs that lose packets there."""
        for plane in planes_of(self.shape, self.fault):
            for t1 in self.fault.t1s.numbers(self.shape.pod_t1):
                first = plane * self.shape.up0 + int(t1) * self.shape.bundle1
                world.tables["ev_loss"][first : first + self.shape.bundle1] = self.begins
        loss = round(self.fault.loss * PER_MILLION) if self.begins else 0
        world.tables["nics"][self.fault.nics.numbers(self.shape.num_nics), at.NC_EV_LOSS] = loss


@dataclass(frozen=True)
class _Reroute:
    """Hashing switches have learnt that links are dead, or alive again."""

    shape: Shape
    fault: Fault
    dead: bool

    def __call__(self, world: World, now: int) -> None:
        table = world.tables["dead_links"].reshape(self.shape.planes, self.shape.t1, self.shape.t0)
        for link in links(self.shape, self.fault):
            if link.t1 >= 0:
                table[link.plane, link.t1, link.t0] = self.dead
        world.w[at.W_REROUTED] = bool(table.any())
