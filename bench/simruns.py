"""One simulation in a fresh interpreter, measured: for the benchmarks of the simulator.

`measured(scenario)` runs a scenario (TOML text) in a process of its own, so that its peak memory is its own, and
returns what that cost and what came out.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PERMUTATION = """
[topology]
planes = 8
t0 = {t0}
t1 = 256
hosts_per_t0 = 256
[[traffic]]
kind = "permutation"
size_bytes = 1_000_000
[run]
threads = {threads}
"""
"""The scenario of the cost curve: 256 NICs a T0 and 256 T1 a plane, `t0` of them, 1 MB from each NIC to another."""


@dataclass(frozen=True)
class Measured:
    """Cost and result of one run."""

    nics: int
    planes: int
    build_s: float
    """Working out the scenario, allocating and filling tables, setting up the queue pairs."""
    play_s: float
    """The run itself."""
    process_s: float
    """All of it, with interpreter, imports and loading compiled kernels from disk."""
    peak_mib: int
    estimate_mib: int
    hops: int
    ended: str
    time_us: float
    done: int
    messages: int
    first_us: float
    median_us: float
    tail_us: float
    slowdown: float
    """Of the slowest message, against the time it would take alone."""
    packets: dict[str, int]


def measured(scenario: str, *, verbose: bool = False) -> Measured:
    """Run a scenario in a fresh process."""
    begun = time.monotonic()
    command = [sys.executable, __file__, *(["--verbose"] if verbose else [])]
    done = subprocess.run(command, input=scenario, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    return Measured(**{**found, "process_s": round(time.monotonic() - begun, 3)})


def machine() -> str:
    """Date, machine and load, for the head of a table."""
    cpu = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    load = " ".join(_lines("/proc/loadavg")[0].split()[:3])
    cores = len(os.sched_getaffinity(0))
    versions = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{time.strftime('%Y-%m-%d %H:%M')} UTC, {cores} cores {(*cpu, '?')[0]}, {versions}, load {load}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="ascii").splitlines()


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _child(verbose: bool) -> None:
    import resource

    import numpy as np

    from fairlead.fabric.sim import faults, runner
    from fairlead.fabric.sim.engine import memory
    from fairlead.fabric.sim.results import collect
    from fairlead.fabric.sim.setup import prepare
    from fairlead.fabric.sim.simulate import check_memory, load

    scenario = load(Path("/dev/stdin"))
    begun = time.monotonic()
    setup = prepare(scenario)
    check_memory(setup)
    world = memory.build(setup.shape, setup.workload, setup.profile, setup.queues, setup.options)
    built = time.monotonic() - begun
    runner.prepare(world, setup.options.seed * 7919)

    def show(now: runner.Progress) -> None:
        if verbose:
            print(
                f"\r{now.wall_s:6.1f} s  {now.time_ps / 1e6:8.1f} us  {now.messages_done:,}/{now.messages:,}"
                f"  {now.hops / max(now.wall_s, 1e-9) / 1e6:.2f} M hops/s ",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip

    played = runner.run(
        world, until_ps=round(scenario.run.until_us * 1e6), events=faults.timeline(scenario, setup.shape), report=show
    )
    r = collect(setup, world, played)
    fct = np.concatenate([p.fct_us for p in r.parts])
    ideal = np.concatenate([p.ideal_us for p in r.parts])
    found = Measured(
        nics=setup.shape.num_nics, planes=setup.shape.planes, build_s=round(built, 3), play_s=round(played.wall_s, 3),
        process_s=0.0, peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        estimate_mib=sum(setup.estimate.values()) >> 20, hops=played.hops, ended=str(played.ended),
        time_us=played.time_ps / 1e6, done=sum(p.done for p in r.parts), messages=sum(p.messages for p in r.parts),
        first_us=float(fct.min()), median_us=float(np.median(fct)), tail_us=float(fct.max()),
        slowdown=float((fct / ideal).max()), packets=asdict(r.counters),
    )  # fmt: skip
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    _child("--verbose" in sys.argv)
