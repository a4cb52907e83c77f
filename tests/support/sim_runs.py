"""Small simulations for tests: a scenario as text, run and handed back with its world."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from fairlead.fabric.sim import faults, rules, runner
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import memory
from fairlead.fabric.sim.model import Scenario
from fairlead.fabric.sim.results import Results, collect
from fairlead.fabric.sim.setup import Setup, prepare
from fairlead.spec.decode import decode_text

UEC_16 = """
[topology]
kind = "fat-tree"
pods = 4
t0 = 2
t1 = 2
cores = 4
hosts_per_t0 = 2
[transport]
kind = "uec"
[queues]
ecn_last_hop = true
"""
"""The reference simulator's default network of 16 nodes: three tiers, 100 Gb/s, 1 us a link."""

MRC_64 = """
[topology]
planes = 4
t0 = 8
t1 = 8
hosts_per_t0 = 8
"""


@dataclass(frozen=True)
class Played:
    """A run and the memory it left."""

    setup: Setup
    world: memory.World
    results: Results


def scenario(text: str, folder: Path = Path()) -> Scenario:
    """A scenario from TOML text; SpecError with every problem."""
    return decode_text(text, Scenario, file="scenario.toml", checks=rules.checks(folder)).value


def play_out(text: str, *, threads: int = 1) -> Played:
    """Run a scenario to the end of its time, or until nothing can happen any more."""
    return play(text, threads=threads, play_on=True)


def play(text: str, *, threads: int = 1, folder: Path = Path(), play_on: bool = False) -> Played:
    """Run a scenario."""
    read = scenario(text, folder)
    setup = prepare(replace(read, run=replace(read.run, threads=threads)), folder)
    world = memory.build(setup.shape, setup.workload, setup.profile, setup.queues, setup.options)
    runner.prepare(world, setup.options.seed * 7919)
    world.w[at.W_MESSAGES] += play_on  # one more than there are: the run goes on when all are complete
    played = runner.run(world, until_ps=round(read.run.until_us * 1e6), events=faults.timeline(read, setup.shape))
    return Played(setup, world, collect(setup, world, played))


def under_way(played: Played) -> int:
    """Packets on the wire, in queues, and being sent."""
    tables = played.world.tables
    on_wire = int(tables["threads"][:, at.TH_IN_FLIGHT].sum())
    ports = tables["ports"][: played.setup.shape.nic_port0]
    links = tables["links"]
    waiting = int((ports[:, at.PT_SERVING] >= 0).sum())
    for head in (at.PT_DATA_HEAD, at.PT_CONTROL_HEAD):
        for first in ports[ports[:, head] >= 0, head]:
            place = first
            while place >= 0:
                waiting += 1
                place = links[place, at.LINK_NEXT]
    return on_wire + waiting


def fingerprint(played: Played) -> tuple[bytes, ...]:
    """Everything that a run decides: message times, port counters, and the state of every queue pair."""
    tables = played.world.tables
    return (
        tables["messages"].tobytes(),
        tables["counts"].tobytes(),
        tables["ports"][:, at.PT_SENT].tobytes(),
        tables["memory"].tobytes(),
        tables["roce_tx"].tobytes(),
    )
