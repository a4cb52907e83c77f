"""`fairlead train`: full-precision training of models far larger than the device's memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from fairlead.base.units import clock
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen
from fairlead.cli.output import Answer, session
from fairlead.cli.stop import Stop
from fairlead.errors import UsageError
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.train.session import Session

_SEVERAL = Group("On several nodes", sort_key=20)
_Inside = Annotated[bool, Parameter(group=_SEVERAL, negative=())]
_Threads = Annotated[int, Parameter(group=_SEVERAL)]


def estimate(
    config: Path,
    /,
    *,
    schedule: Annotated[bool, Parameter(negative=())] = False,
    time: Annotated[bool, Parameter(negative=())] = False,
    picture: Path | None = None,
    ranks: Annotated[int, Parameter(group=_SEVERAL)] = 1,
    nodes: Annotated[int, Parameter(name="--on", group=_SEVERAL)] = 1,
    common: Common = Common(),
) -> Answer:
    """What a run would take: memory term by term, disk, what a step reads, writes and computes. Nothing is begun.

    Exit code 3 where it does not fit, with the shortfall.

    Parameters
    ----------
    config
        The run's configuration.
    schedule
        Also print the order of one step: every copy, compute and update.
    time
        Also measure this machine for some seconds (its disk, too), and say how long a step takes and what binds it.
    picture
        Also draw one step: which slot holds which layer when, as an SVG file.
    ranks
        For a run of so many ranks: what one takes of those that need most.
    nodes
        Nodes like this one that the ranks are on; those of one node share its memory, processors and disk.
    """
    import safetensors  # noqa: F401 - no other extra brings it: where it is missing, that one is named

    from fairlead.base.table import table
    from fairlead.base.units import size
    from fairlead.train.config import load
    from fairlead.train.planning import estimate as plan_of

    plan = plan_of(load(config), config.parent, timed=time, ranks=ranks, nodes=nodes)
    need = plan.need
    rows = [
        [term.tier, f"{term.what} (a guess)" if term.is_guess else term.what, size(term.bytes)]
        for term in need.terms
        if term.bytes
    ]
    for tier, limit in plan.limits.items():
        rows.append([tier, f"in all, at the peak; {size(limit)} may be used", size(need.total(tier))])
    step = [
        ["tokens", f"{plan.tokens:,}"],
        ["read from the store", size(need.read_bytes)],
        ["written to it", size(need.written_bytes)],
        ["computed", f"{need.work_flop / 1e12:,.3g} TFLOP, the second forward included"],
    ]
    if need.wire_bytes:
        step.append(["between ranks, of each", f"{size(need.wire_bytes)}; not in the seconds below"])
    if plan.pace is not None:
        step += [[f"busy in a step: {name}", f"{taken:,.2f} s"] for name, taken in plan.pace.bounds.items()]
        bound = (
            f"{plan.pace.seconds:,.2f} s, {plan.tokens / plan.pace.seconds:,.0f} tokens/s, bound by {plan.pace.binding}"
        )
        step.append(["takes, as measured here", bound])
    streamed = f"{plan.schedule.num_blocks} {'pieces of layers' if plan.most else 'layers'}"
    head = f"{plan.params:,} parameters, {streamed}, slots for {plan.schedule.num_slots}"
    if ranks > 1:
        head += f"\nof {ranks} ranks, {-(-ranks // nodes)} on a node, one of those that need most"
    if plan.why:
        place = "on disk" if plan.settings.store is not None else "in memory"
        head += f"\nthe state is kept {place}: {plan.why}"
    if plan.cut:
        head += f"\n{plan.cut}"
    parts = [head, table(["WHERE", "WHAT", "SIZE"], rows), table(["A STEP", ""], step)]
    if need.guessed:
        parts.append(
            f"guesses are made from the widths of matrices, as the model could not be played "
            f"({need.guessed}); they are generous"
        )
    short = plan.shortfall
    if short is not None:
        parts.append(f"it does not fit: {short.message}")
    if picture is not None:
        from fairlead.base.files import write_atomic
        from fairlead.train.pictures import planned

        write_atomic(picture, planned(plan.schedule, " ".join(["fairlead", *session().argv])).svg())
    if schedule:
        parts.append(str(plan.schedule))
    return Answer(
        schema="fairlead.train-estimate/1",
        verdict=Verdict.FAIL if short is not None else Verdict.PASS,
        text="\n\n".join(parts),
        body={
            "params": plan.params,
            "tokens": plan.tokens,
            "slots": plan.schedule.num_slots,
            "terms": [
                {"tier": term.tier, "what": term.what, "bytes": term.bytes, "guessed": term.is_guess}
                for term in need.terms
            ],
            "guessed": need.guessed,
            "keep": "disk" if plan.settings.store is not None else "memory",
            "why": plan.why,
            "cut": plan.cut,
            "on_device": len(plan.settings.on_device),
            "limits": plan.limits,
            "read_bytes": need.read_bytes,
            "written_bytes": need.written_bytes,
            "wire_bytes": need.wire_bytes,
            "work_flop": need.work_flop,
            "step_s": None if plan.pace is None else plan.pace.seconds,
            "binding": "" if plan.pace is None else plan.pace.binding,
            "busy_s": {} if plan.pace is None else dict(plan.pace.bounds),
        },
        hints=[short.hint if short is not None else f"fairlead train run {config}"],
    )


def run(
    config: Path,
    /,
    *,
    steps: int | None = None,
    trace: Path | None = None,
    nodes: Nodes = None,
    exclude: Exclude = "",
    inside: _Inside = False,
    threads: _Threads = 0,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Begin a training run, and train to its end.

    It can be stopped or killed at any time: every finished step is in the store. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1
    end it after the step under way, with exit code 130; a second one at once.

    With a cluster file (`-f`) or nodes (`-w`) it runs on several nodes, a rank a GPU: they share each step's
    micro-batches and the state, and give the bits of one host. A node that is lost ends the run with its name.

    Parameters
    ----------
    config
        The run's configuration, a TOML file; docs/howto/train.md tells how to write one.
    steps
        Stop after so many steps; `resume` goes on.
    trace
        Also write when each layer came in, was computed and updated, for a few steps: a file for
        ui.perfetto.dev, or a picture where its name ends with .svg.
    inside
        Run inside the Slurm job this command is in, on its nodes.
    threads
        Of each rank that computes on CPUs; 0: its node's processors. Bits depend on it, there.
    spec
        The cluster file of the nodes to train on; without it, and without `-w`, this machine trains alone.
    """
    where = _Where(nodes, exclude, spec, threads, inside)
    return _trained(config, steps, resume=False, trace=trace, where=where, common=common)


def resume(
    config: Path,
    /,
    *,
    steps: int | None = None,
    trace: Path | None = None,
    nodes: Nodes = None,
    exclude: Exclude = "",
    inside: _Inside = False,
    threads: _Threads = 0,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Go on with a run after its last finished step, to the bit as if it had not been stopped.

    On as many nodes as there are now, or on one: the store is the same.

    Parameters
    ----------
    config
        The configuration it was begun with.
    steps
        Stop after so many steps.
    trace
        As with `run`.
    inside
        As with `run`.
    threads
        As with `run`.
    spec
        As with `run`.
    """
    where = _Where(nodes, exclude, spec, threads, inside)
    return _trained(config, steps, resume=True, trace=trace, where=where, common=common)


def show(config: Path, out: Path, /, *, common: Common = Common()) -> Answer:
    """Draw a run, also while it goes on: loss, norm of gradients, tokens a second, memory over time.

    Parameters
    ----------
    config
        The run's configuration.
    out
        The page to write.
    """
    from fairlead.base.files import write_atomic
    from fairlead.report.html import page_html
    from fairlead.train.config import load
    from fairlead.train.metrics import told
    from fairlead.train.pictures import page

    metrics = config.parent / load(config).run.metrics
    lines = told(metrics)
    made = page(config.parent.absolute().name, lines, " ".join(["fairlead", *session().argv]))
    write_atomic(out, page_html(made))
    return Answer(
        schema="fairlead.train-show/1",
        text=f"{made.headline} {out}",
        body={"steps": len(lines), "page": str(out)},
    )


def export(
    config: Path, folder: Path, /, *, dtype: Literal["fp32", "bf16"] = "fp32", common: Common = Common()
) -> Answer:
    """Write what a run has trained so far as a Hugging Face model directory.

    Parameters
    ----------
    config
        The configuration of the run.
    folder
        Where the model goes; files of the same names are replaced.
    dtype
        What the weights are rounded to.
    """
    with _opened(config, resume=True) as opened:
        files = opened.export(folder, dtype)
        done = opened.done
    size = sum(path.stat().st_size for path in files)
    return Answer(
        schema="fairlead.train-export/1",
        text=f"{folder}: {len(files)} files, {size / 1e9:.2f} GB, after step {done}",
        body={"folder": str(folder), "files": [path.name for path in files], "size_bytes": size, "steps": done},
    )


def _opened(config: Path, *, resume: bool) -> Session:
    import safetensors  # noqa: F401 - no other extra brings it: where it is missing, that one is named

    from fairlead.train.config import load
    from fairlead.train.session import Session

    loaded = load(config)
    return Session.open(loaded, config.parent, resume=resume)


@dataclass(frozen=True, slots=True)
class _Where:
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


def _trained(
    config: Path, steps: int | None, *, resume: bool, trace: Path | None, where: _Where, common: Common
) -> Answer:
    if steps is not None and steps < 1:
        raise UsageError("cli/usage", f"--steps {steps}: at least 1", hint="fairlead train run --help")
    if not where.is_here:
        if trace is not None:
            raise UsageError("cli/usage", "--trace is for one machine", hint="fairlead train run --help")
        return _on_nodes(config, steps, where, common, resume=resume)
    with Stop(session().note) as stop, _opened(config, resume=resume) as opened, opened.traced(trace):
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


def _on_nodes(config: Path, steps: int | None, where: _Where, common: Common, *, resume: bool) -> Answer:
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
