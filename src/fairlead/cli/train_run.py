"""`fairlead train run` and `resume`: the steps of a run, on this machine or by ranks of a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fairlead.base.units import clock
from fairlead.cli.common import Common, chosen
from fairlead.cli.output import Answer, session
from fairlead.cli.stop import Stop
from fairlead.errors import UsageError

if TYPE_CHECKING:
    from fairlead.train.session import Session


def open_run(config: Path, *, resume: bool) -> Session:
    """A run of a configuration, begun or gone on with."""
    import safetensors  # noqa: F401 - no other extra brings it: where it is missing, that one is named

    from fairlead.train.config import load
    from fairlead.train.session import Session

    loaded = load(config)
    return Session.open(loaded, config.parent, resume=resume)


@dataclass(frozen=True, slots=True)
class Where:
    """The nodes that were asked for."""

    nodes: str | None
    exclude: str
    spec: Path | None
    threads: int
    inside: bool

    @property
    def is_here(self) -> bool:
        """This machine alone."""
        return self.nodes is None and self.spec is None and not self.exclude and not self.inside


def trained(
    config: Path, steps: int | None, *, resume: bool, trace: Path | None, where: Where, common: Common
) -> Answer:
    """Steps until the run's end, or so many; a signal ends it after the step under way."""
    if steps is not None and steps < 1:
        raise UsageError("cli/usage", f"--steps {steps}: at least 1", hint="fairlead train run --help")
    if not where.is_here:
        if trace is not None:
            raise UsageError("cli/usage", "--trace is for one machine", hint="fairlead train run --help")
        return _on_nodes(config, steps, where, common, resume=resume)
    with Stop(session().note) as stop, open_run(config, resume=resume) as opened, opened.traced(trace):
        end, last = opened.config.run.steps, None
        begin, first = monotonic(), opened.done
        stop.waits_for = "the step under way"
        try:
            for last in opened.train(steps, lambda: bool(stop.by)):
                done = opened.done
                left_s = (monotonic() - begin) / (done - first) * (end - done)
                session().progress(
                    "steps", done, end, *_told(last.result.loss, last.bound, left_s, last.tokens / last.seconds)
                )
        except KeyboardInterrupt as at_once:
            lost = opened.in_memory_alone
            raise KeyboardInterrupt(
                f"{at_once}{f': {lost} steps since the last snapshot are lost' * bool(lost)}"
            ) from None
        stop.waits_for = ""
        if stop.by and opened.done < end:
            kept = f"{opened.done} of {end} steps, all of them kept"
            raise KeyboardInterrupt(f"{stop.by} after {kept}; fairlead train resume {config} goes on")
        body: dict[str, Any] = {"steps": opened.done, "of": end, "metrics": str(opened.metrics)}
        text = f"{opened.done} of {end} steps"
        if opened.done > end:
            text = f"nothing to do: {opened.done} steps are done, and `run.steps` is {end}"
        if last is not None:
            body["last"] = last.line()
            text += f", loss {last.result.loss:.4f}, {last.model_tflops:.3g} TFLOP/s of the model; {opened.metrics}"
    hints = [f"fairlead train resume {config}"] if body["steps"] < end else [f"fairlead train export {config} FOLDER"]
    return Answer(schema="fairlead.train-run/1", text=text, body=body, hints=hints)


def _on_nodes(config: Path, steps: int | None, where: Where, common: Common, *, resume: bool) -> Answer:
    """The same by ranks of a cluster."""
    from fairlead.cluster import connect
    from fairlead.cluster.table import Slurm
    from fairlead.records.codec import builtins
    from fairlead.spec.loader import read
    from fairlead.train.config import load
    from fairlead.train.spread import Asked, TrainRun, train_on

    here, loaded = session(), load(config)
    if where.inside and where.spec is None:
        from fairlead.preflight.slurm.inside import spec_of_job

        text, spec = spec_of_job(os.environ)
    else:
        found = read(where.spec, flags={"runs.dir": common.runs}, or_lab=True)
        text, spec = found.text, found.spec
    nodes = chosen(where.nodes, where.exclude, spec.nodes)
    if spec.access.via == "slurm" and "SLURM_JOB_ID" not in os.environ:
        held = f"Slurm gives the nodes for {spec.table(Slurm).time_limit_min} minutes (slurm.time_limit_min)"
        here.note(f"{held}; `train resume` goes on in a job of its own")
    folder = here.open_folder(common.runs, from_file=spec.runs.dir, keep=spec.runs.keep)
    folder.write("spec.toml", text)
    begin = monotonic()

    def progress(outcome: TrainRun) -> None:
        if outcome.done > outcome.begun:
            left_s = (monotonic() - begin) / (outcome.done - outcome.begun) * (outcome.of - outcome.done)
            loss, rate = (outcome.last.get(key) for key in ("loss", "tokens_per_s"))
            here.progress("steps", outcome.done, outcome.of, *_told(loss, None, left_s, rate))

    asked = Asked(
        config=config.absolute(),
        resume=resume,
        steps=steps,
        cpus=loaded.memory.device == "cpu",
        threads=where.threads,
    )
    with connect(
        spec, folder=folder.path, recorder=lambda one: folder.append("commands.jsonl", builtins(one)), note=here.note
    ) as cluster:
        outcome = train_on(cluster, spec, nodes, asked, progress)
    body: dict[str, Any] = {
        "steps": outcome.done,
        "of": outcome.of,
        "metrics": str(config.parent / loaded.run.metrics),
        "nodes": str(nodes),
    }
    if outcome.last:
        body["last"] = dict(outcome.last)
    text = f"{outcome.done} of {outcome.of} steps on {len(nodes)} nodes; {body['metrics']}"
    file = f" -f {where.spec}" if where.spec else ""
    on = f"{file}{' --inside' if where.inside else ''} -w '{nodes}'"
    hints = [
        f"fairlead train resume {config}{on}" if outcome.done < outcome.of else f"fairlead train export {config} FOLDER"
    ]
    return Answer(schema="fairlead.train-run/1", text=text, body=body, hints=hints)


_BOUND = {"the disk": "disk-bound", "updates": "update-bound", "computing": "compute-bound"}
"""Short words for the resources of `pace.reached`."""


def _told(loss: object, bound: tuple[str, float] | None, left_s: float, rate: object) -> list[str]:
    """What a step's line says beside its number, the most important first. A rank may say anything of its own."""
    return [
        *([f"loss {loss:.4g}"] if isinstance(loss, float) else []),
        *([f"{_BOUND[bound[0]]} {bound[1]:.0%}"] if bound is not None else []),
        f"{clock(left_s)} left",
        *([f"{min(rate, 1e12):,.0f} tokens/s"] if isinstance(rate, float) else []),
    ]
