"""`fairlead train`: full-precision training of models far larger than the device's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from fairlead.cli.common import Common, Exclude, Nodes, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.cli.train_run import Where, open_run, trained
from fairlead.records.verdict import Verdict

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
    where = Where(nodes, exclude, spec, threads, inside)
    return trained(config, steps, resume=False, trace=trace, where=where, common=common)


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
    where = Where(nodes, exclude, spec, threads, inside)
    return trained(config, steps, resume=True, trace=trace, where=where, common=common)


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
    with open_run(config, resume=True) as opened:
        files = opened.export(folder, dtype)
        done = opened.done
    size = sum(path.stat().st_size for path in files)
    return Answer(
        schema="fairlead.train-export/1",
        text=f"{folder}: {len(files)} files, {size / 1e9:.2f} GB, after step {done}",
        body={"folder": str(folder), "files": [path.name for path in files], "size_bytes": size, "steps": done},
    )
