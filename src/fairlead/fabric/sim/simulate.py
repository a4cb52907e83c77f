"""From a scenario file to results: read, check, estimate, build, play, collect.

Knows: the order of these steps. Must not know: what any of them does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairlead.base.units import size
from fairlead.errors import FabricError
from fairlead.fabric.sim import faults, rules, runner
from fairlead.fabric.sim.engine import memory
from fairlead.fabric.sim.model import Scenario
from fairlead.fabric.sim.results import Results, collect
from fairlead.fabric.sim.setup import Setup, prepare
from fairlead.spec.decode import decode_file

_RESERVE = 0.9  # of what is free, a run may take so much


def load(path: Path) -> Scenario:
    """Read a scenario file. Raises SpecError with every problem it has, each with its line."""
    return decode_file(path, Scenario, checks=rules.checks(path.parent)).value


def free_memory_bytes() -> int:
    """What the machine could give without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def check_memory(setup: Setup) -> None:
    """Raises FabricError (`sim/memory`) where the run would not fit; nothing has been allocated yet."""
    need = sum(setup.estimate.values())
    limit = setup.scenario.run.memory_gib * 2**30 or free_memory_bytes() * _RESERVE
    if need > limit:
        worst = sorted(setup.estimate.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{name} {size(num)}" for name, num in worst)
        raise FabricError(
            "sim/memory",
            f"the run would take up to {size(need)} ({parts}); {size(limit)} may be used",
            hint="use fewer NICs or flows, smaller messages, or a smaller transport.window_packets",
        )


def simulate(
    scenario: Scenario,
    folder: Path = Path(),
    *,
    compiling: Callable[[int, int], None] = lambda *_: None,
    progress: Callable[[runner.Progress], None] = lambda *_: None,
) -> Results:
    """Run a scenario. Files it names are looked for in `folder`.

    `compiling` hears how many of the engine's parts are compiled (the first run on a machine takes a while), `progress`
    how far the run is. Ctrl-C ends the run early; the results then cover what was played (`end.ended`).
    """
    setup = prepare(scenario, folder)
    check_memory(setup)
    world = memory.build(setup.shape, setup.workload, setup.profile, setup.queues, setup.options)
    runner.prepare(world, setup.options.seed * 7919, compiling)
    played = runner.run(
        world,
        until_ps=round(scenario.run.until_us * 1e6),
        events=faults.timeline(scenario, setup.shape),
        report=progress,
    )
    return collect(setup, world, played)
