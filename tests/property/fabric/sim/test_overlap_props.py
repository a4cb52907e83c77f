"""Faults that overlap, in any order: ports stand as the set of faults that hold says, and whole after the last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fabric.sim.engine import kernels, memory
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.faults import links, timeline
from fairlead.fabric.sim.model import Fault
from fairlead.fabric.sim.setup import prepare
from fairlead.fabric.sim.shape import Shape
from support.depth import cases
from support.sim_runs import scenario

WINDOW_US = 1
FABRIC = "[topology]\nplanes = 2\nt0 = 2\nt1 = 2\nhosts_per_t0 = 2\n"
LOAD = '[[traffic]]\nkind = "permutation"\nsize_bytes = 10_000\n[run]\nuntil_us = 1000\n'

PLACES = st.sampled_from([
    'kind = "link"\nt0 = 0\nt1 = 1',
    'kind = "port"\nnic = 1',
    'kind = "t0"\nt0 = 0\nplane = 1',
    'kind = "t1"\nt1 = 1\nplane = 0',
    'kind = "loss"\nloss = 0.25\nplane = 0',
    'kind = "loss"\nloss = 0.5\nt0 = 0\nt1 = 1\ndirection = "up"',
    'kind = "loss"\nloss = 1.0\nnic = 1',
    'kind = "slow"\nrate = 0.1\nplane = 1',
    'kind = "slow"\nrate = 0.37\nnic = 1',
    'kind = "slow"\nrate = 0.5\nt0 = 0\nt1 = 1',
    'kind = "paths"\nnics = "0-1"\nt1s = "0"\nloss = 0.2',
    'kind = "paths"\nnics = "1-2"\nt1s = "0-1"\nloss = 0.6',
])  # fmt: skip


@st.composite
def troubles(draw: st.DrawFn) -> list[str]:
    found = []
    for place in draw(st.lists(PLACES, min_size=1, max_size=6)):
        begin, length = draw(st.integers(0, 12)), draw(st.integers(1, 12))
        flap = draw(st.sampled_from([0, 0, 1, 2, 3])) if place.split('"')[1] in ("link", "port", "t0", "t1") else 0
        found.append(f"[[fault]]\n{place}\nat_us = {begin}\nuntil_us = {begin + length}\nflap_us = {flap}\n")
        if not flap:
            found[-1] = found[-1].replace("flap_us = 0\n", "")
    return found


def holds_at(fault: Fault, time_us: int) -> bool:
    """Whether a fault holds in the window that begins then; what is expected is written down anew here."""
    if not fault.at_us <= time_us < fault.until_us:
        return False
    return not fault.flap_us or (time_us - fault.at_us) // fault.flap_us % 2 == 0


@dataclass
class Expected:
    """Every port as the set of faults that hold makes it."""

    down: np.ndarray
    passed: np.ndarray
    rate: np.ndarray
    bits: np.ndarray

    @classmethod
    def of(cls, faults: tuple[Fault, ...], shape: Shape, time_us: int) -> Expected:
        ports, nics = shape.num_ports, shape.num_nics
        self = cls(np.zeros(ports, bool), np.ones(ports), np.ones(ports), np.zeros(nics, np.int64))
        paths = 0
        for fault in faults:
            if fault.kind == "paths":
                if holds_at(fault, time_us):
                    self.bits[fault.nics.numbers(nics)] |= 1 << paths
                paths += 1
            elif holds_at(fault, time_us):
                for link in links(shape, fault):
                    for port in [
                        p for p, way in ((link.up, "up"), (link.down, "down")) if fault.direction in ("both", way)
                    ]:
                        if fault.kind == "loss":
                            self.passed[port] *= 1 - fault.loss
                        elif fault.kind == "slow":
                            self.rate[port] = min(self.rate[port], fault.rate)
                        else:
                            self.down[port] = True
        return self


@given(text=troubles())
@settings(max_examples=cases(150), deadline=None)
def test_ports_stand_as_the_faults_that_hold_say(text: list[str]) -> None:
    read = scenario(FABRIC + LOAD + "".join(text))
    setup = prepare(read)
    shape = setup.shape
    world = memory.build(shape, setup.workload, setup.profile, setup.queues, setup.options)
    kernels.link(world.w)
    kernels.start_rows()(world.address, world.state.profiles[0], 1)
    rows, nics = world.tables["ports"], world.tables["nics"]
    whole = rows[:, [at.PT_STATE, at.PT_LOSS, at.PT_FS_PER_BYTE]].copy()
    events = timeline(read, shape)
    for now in range(40):
        while events and events[0][0] == now * WINDOW_US * 1_000_000:
            events.pop(0)[1](world, now * 1_000_000)
        due = Expected.of(read.fault, shape, now)
        state = rows[:, at.PT_STATE]
        assert ((state & at.PORT_DOWN != 0) == due.down).all()
        assert world.w[at.W_DOWN] == due.down.sum()
        assert np.abs(rows[:, at.PT_LOSS] - 1e6 * (1 - due.passed)).max() <= 1
        percent = np.round(due.rate * 100).astype(np.int64)
        assert (rows[:, at.PT_FS_PER_BYTE] == whole[:, 2].astype(np.int64) * 100 // percent).all()
        assert (state >> at.PORT_SCALE_SHIFT == np.where(percent < 100, percent, 0)).all()
        up = (~due.down[shape.nic_port0 :]).reshape(shape.num_nics, shape.planes) @ (1 << np.arange(shape.planes))
        assert (nics[:, at.NC_PORTS] == up).all()
        assert (nics[:, at.NC_EV_LOSS] == due.bits).all()
    assert not events
    assert (rows[:, [at.PT_STATE, at.PT_LOSS, at.PT_FS_PER_BYTE]] == whole).all()
