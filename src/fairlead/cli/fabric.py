"""`fairlead fabric`: the multi-plane fabric, simulated."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fairlead.base.trust import read_file
from fairlead.cli.common import Common
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError

if TYPE_CHECKING:
    from fairlead.fabric.sim.model import Scenario
    from fairlead.fabric.sim.runner import Progress

_MAX_SCENARIO = 1 << 20
log = logging.getLogger("fairlead.fabric")


def sim(
    scenario: Path,
    /,
    *,
    html: Path | None = None,
    svg: Path | None = None,
    seed: int | None = None,
    threads: int | None = None,
    until_us: float | None = None,
    estimate: Annotated[bool, Parameter(negative=())] = False,
    common: Common = Common(),
) -> Answer:
    """Simulate a scenario file packet by packet; docs/howto/fabric-sim.md tells how to write one.

    Ctrl-C ends the run early and shows what was played. The same file and seed give the same run.

    Parameters
    ----------
    scenario
        The scenario, a TOML file; `examples/fabric` holds one of each published MRC experiment.
    html
        Write a page with pictures to this file.
    svg
        Write each picture into this folder.
    seed
        Another seed than the file's.
    threads
        Threads that play; the result does not depend on them.
    until_us
        End of the run, in microseconds of the fabric.
    estimate
        Only say how large the run would be; nothing is played.
    """
    from fairlead.fabric import sim as simulator

    loaded = _changed(simulator.load(scenario), seed, threads, until_us)
    if estimate:
        return _estimate(loaded, scenario)
    from fairlead.fabric.sim import summary
    from fairlead.fabric.sim.events import events
    from fairlead.fabric.sim.pictures import verdict
    from fairlead.fabric.sim.runner import Ended
    from fairlead.records.fabricevent import line
    from fairlead.records.log import doing

    folder = session().open_folder(common.runs)
    with contextlib.suppress(OSError):  # a pipe is read by now, and has nothing more to say
        folder.write("scenario.toml", read_file(scenario, _MAX_SCENARIO))
    with doing(log, "simulation", scenario=str(scenario), seed=loaded.run.seed) as told:
        results = simulator.simulate(loaded, scenario.parent, compiling=_compiling, progress=_progress)
        told |= {"ended": str(results.end.ended), "hops": results.end.hops}
    folder.write("summary.txt", summary.text(results) + "\n")
    folder.write("events.jsonl", "".join(map(line, events(results))))
    command = " ".join(["fairlead", *session().argv])
    _draw(results, html, svg, command)
    ended = results.end.ended
    return Answer(
        schema="fairlead.fabric-sim/1",
        verdict=verdict(results),
        text=lambda: summary.text(results),
        body=summary.body(results),
        hints=[] if html else [f"fairlead fabric sim {scenario} --html {scenario.stem}.html"],
        exit=130 if ended is Ended.INTERRUPTED else None,
    )


def _changed(loaded: Scenario, seed: int | None, threads: int | None, until_us: float | None) -> Scenario:
    """The scenario with what the command line says instead, within the bounds of the file."""
    import msgspec

    given = {k: v for k, v in {"seed": seed, "threads": threads, "until_us": until_us}.items() if v is not None}
    run = msgspec.structs.replace(loaded.run, **given)
    for key, value in given.items():
        try:
            msgspec.convert({key: value}, type(run))
        except msgspec.ValidationError as exc:
            flag, bound = f"--{key.replace('_', '-')}", str(exc).partition(" - at ")[0].partition("` ")[2]
            raise UsageError("cli/usage", f"{flag} is {value}; it must be {bound}", hint=f"correct {flag}") from exc
    return msgspec.structs.replace(loaded, run=run)


def _estimate(loaded: Scenario, scenario: Path) -> Answer:
    from fairlead.base.table import table
    from fairlead.base.units import size
    from fairlead.fabric.sim.setup import prepare

    setup = prepare(loaded, scenario.parent)
    parts = setup.estimate
    rows = [[name, size(num)] for name, num in [*parts.items(), ("in all, at most", sum(parts.values()))]]
    shape = setup.shape
    fabric = f"{shape.num_nics:,} NICs, {shape.num_switches:,} switches, {shape.num_ports:,} queues"
    head = f"{fabric}, {setup.workload.num_flows:,} flows, {setup.workload.num_messages:,} messages"
    return Answer(
        schema="fairlead.fabric-estimate/1",
        text=f"{head}\n\n{table(['MEMORY', 'SIZE'], rows)}",
        body={"nics": shape.num_nics, "flows": setup.workload.num_flows, "memory_bytes": parts},
    )


def _compiling(done: int, total: int) -> None:
    """The first run on a machine compiles the engine; later runs find it on disk and are past this in a second."""
    session().progress("compiling kernels (once)", done, total)


def _progress(now: Progress) -> None:
    from fairlead.base.units import rate

    pace = now.hops / max(now.wall_s, 1e-9) / 1e6
    goodput = f", {rate(now.goodput_bits_per_s)}" if now.goodput_bits_per_s else ""
    detail = f"{now.time_ps / 1e6:,.1f} us of the fabric, {now.hops:,} hops, {pace:.2f} M/s{goodput}"
    session().progress("messages", now.messages_done, now.messages, detail)


def _draw(results: object, html: Path | None, svg: Path | None, command: str) -> None:
    from fairlead import __version__
    from fairlead.base.files import write_atomic
    from fairlead.fabric.sim import pictures
    from fairlead.fabric.sim.results import Results
    from fairlead.records.runs import now_utc

    assert isinstance(results, Results)
    if html:
        write_atomic(html, pictures.page(results, command=command, version=__version__, written=now_utc()))
        session().note(f"wrote    {html}")
    if svg:
        for name, figure in pictures.figures(results, command).items():
            write_atomic(svg / f"{name}.svg", figure.svg())
        session().note(f"drew     {svg}")
