"""`fairlead train`: full-precision training of models far larger than the device's memory."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from fairlead.cli.common import Common
from fairlead.cli.output import Answer, session
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.train.session import Session


def estimate(
    config: Path,
    /,
    *,
    schedule: Annotated[bool, Parameter(negative=())] = False,
    time: Annotated[bool, Parameter(negative=())] = False,
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
    """
    import safetensors  # noqa: F401 - no other extra brings it: where it is missing, that one is named

    from fairlead.base.table import table
    from fairlead.base.units import size
    from fairlead.train.config import load
    from fairlead.train.session import estimate as plan_of

    plan = plan_of(load(config), config.parent, timed=time)
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
    if plan.pace is not None:
        step += [[f"busy in a step: {name}", f"{taken:,.2f} s"] for name, taken in plan.pace.bounds.items()]
        bound = (
            f"{plan.pace.seconds:,.2f} s, {plan.tokens / plan.pace.seconds:,.0f} tokens/s, bound by {plan.pace.binding}"
        )
        step.append(["takes, as measured here", bound])
    head = f"{plan.params:,} parameters, {plan.schedule.num_blocks} layers, slots for {plan.schedule.num_slots}"
    parts = [head, table(["WHERE", "WHAT", "SIZE"], rows), table(["A STEP", ""], step)]
    if need.guessed:
        parts.append(
            f"guesses are made from the widths of matrices, as the model could not be played "
            f"({need.guessed}); they are generous"
        )
    short = plan.shortfall
    if short is not None:
        parts.append(f"it does not fit: {short.message}")
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
            "limits": plan.limits,
            "read_bytes": need.read_bytes,
            "written_bytes": need.written_bytes,
            "work_flop": need.work_flop,
            "step_s": None if plan.pace is None else plan.pace.seconds,
            "binding": "" if plan.pace is None else plan.pace.binding,
            "busy_s": {} if plan.pace is None else dict(plan.pace.bounds),
        },
        hints=[short.hint if short is not None else f"fairlead train run {config}"],
    )


def run(config: Path, /, *, steps: int | None = None, trace: Path | None = None, common: Common = Common()) -> Answer:
    """Begin a training run, and train to its end.

    It can be stopped or killed at any time: every finished step is in the store.

    Parameters
    ----------
    config
        The run's configuration, a TOML file; docs/howto/train.md tells how to write one.
    steps
        Stop after so many steps; `resume` goes on.
    trace
        Also write when each layer came in, was computed and updated: a file for ui.perfetto.dev. For a few steps.
    """
    return _trained(config, steps, resume=False, trace=trace)


def resume(
    config: Path, /, *, steps: int | None = None, trace: Path | None = None, common: Common = Common()
) -> Answer:
    """Go on with a run after its last finished step, to the bit as if it had not been stopped.

    Parameters
    ----------
    config
        The configuration it was begun with.
    steps
        Stop after so many steps.
    trace
        As with `run`.
    """
    return _trained(config, steps, resume=True, trace=trace)


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


def _trained(config: Path, steps: int | None, *, resume: bool, trace: Path | None) -> Answer:
    with _opened(config, resume=resume) as opened, opened.traced(trace):
        end, last = opened.config.run.steps, None
        begin, first = monotonic(), opened.done
        for last in opened.train(steps):
            done = opened.done
            left_s = (monotonic() - begin) / (done - first) * (end - done)
            waited = last.result.seconds["waited"] / last.seconds
            bound = f", waits for weights {waited:.0%} of the time" if waited > 0.05 else ""
            detail = (
                f"loss {last.result.loss:.4f}, {last.tokens / last.seconds:,.0f} tokens/s, {left_s:,.0f} s left{bound}"
            )
            session().progress("steps", done, end, detail)
        body: dict[str, Any] = {"steps": opened.done, "of": end, "metrics": str(opened.metrics)}
        text = f"{opened.done} of {end} steps"
        if last is not None:
            body["last"] = last.line()
            text += f", loss {last.result.loss:.4f}, {last.model_tflops:.3g} TFLOP/s of the model; {opened.metrics}"
    hints = [f"fairlead train resume {config}"] if body["steps"] < end else [f"fairlead train export {config} FOLDER"]
    return Answer(schema="fairlead.train-run/1", text=text, body=body, hints=hints)
