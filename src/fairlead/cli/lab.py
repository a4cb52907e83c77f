"""`fairlead lab`: a whole cluster inside this machine, entered, broken and mended at will."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead.base.table import table
from fairlead.base.units import counted, duration, size
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import FairleadError, UsageError

Flag = Annotated[bool, Parameter(negative=())]
Name = Annotated[str | None, Parameter(name=("--name", "-n"), help="The lab; else the one the cluster file names.")]


def up(*, name: Name = None, spec: SpecFile = None, common: Common = Common()) -> Answer:
    """Build the lab a cluster file describes; without a file, 4 hosts on 4 planes. A lab that is up stays as it is.

    Parameters
    ----------
    name
        Name the lab otherwise than the cluster file does.
    """
    import msgspec

    from fairlead.lab.shape import LabShape
    from fairlead.lab.up import up as build
    from fairlead.spec import read

    shape = LabShape.from_spec(read(spec, or_lab=True).spec)
    if name is not None:
        shape = msgspec.structs.replace(shape, name=name)
    began = time.monotonic()
    state = build(shape)
    took_s = time.monotonic() - began
    topo = shape.topology
    parts = ", ".join(
        counted(num, what)
        for num, what in (
            (topo.num_hosts, "host"),
            (topo.planes, "plane"),
            (topo.num_switches, "switch"),
            (len(state.links), "link"),
        )
    )
    lines = [f"the lab `{state.name}` is up: {parts}   {duration(took_s)}"]
    if state.ssh:
        lines.append(f"ssh      ssh -F {state.ssh.config} {shape.nodes[0]}")
    if state.slurm:
        lines.append(f"slurm    PATH={state.slurm.bin}:$PATH srun -N{topo.num_hosts} hostname")
    return Answer(
        schema="fairlead.lab-up/1",
        text="\n".join(lines),
        body={"lab": state, "took_s": round(took_s, 3), "memory_estimate": size(shape.memory_kib * 1024)},
        hints=[_again("status", state.name), f"{_again('exec', state.name)} {shape.nodes[0]} -- ip -6 route"],
    )


def down(*, name: Name = None, spec: SpecFile = None, all_: Annotated[Flag, Parameter(name="--all")] = False,
         common: Common = Common()) -> Answer:  # fmt: skip
    """Take a lab down. Nothing of it is left, whatever state it was in.

    Parameters
    ----------
    all_
        Every lab of this user.
    """
    from fairlead.cluster.enter import names
    from fairlead.lab.up import down as remove

    wanted = names() if all_ else [_name(name, spec)]
    gone = [each for each in wanted if remove(each)]
    none = "there was no lab" if all_ else f"there was no lab `{wanted[0]}`"
    text = f"took down {', '.join(gone)}" if gone else none
    return Answer(schema="fairlead.lab-down/1", text=text, body={"labs": gone})


def status(
    *,
    name: Name = None,
    spec: SpecFile = None,
    links: Flag = False,
    svg: Path | None = None,
    common: Common = Common(),
) -> Answer:
    """Draw the fabric: planes, switches, hosts, links with their state, rate and counters, and the faults in force.

    Parameters
    ----------
    links
        Every link with its counters, not only those that differ from how they were built.
    svg
        Write the fabric as a picture to this file.
    """
    from fairlead.base.files import write_atomic
    from fairlead.cluster.enter import running
    from fairlead.lab import drawing
    from fairlead.lab.status import read
    from fairlead.report.fabric_picture import fabric_figure

    state = running(_name(name, spec))
    now = read(state)
    if svg:
        command = " ".join(session().argv)
        write_atomic(svg, fabric_figure(drawing.picture(state, now), command=f"fairlead {command}").svg())
        session().note(f"drew {svg}")
    return Answer(
        schema="fairlead.lab-status/1",
        text=lambda: drawing.text(state, now, every_link=links),
        body={"lab": state, "status": now},
    )


def exec_(
    node: str,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    name: Name = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Run a command on a lab host, or in the network namespace of a switch, with this terminal.

    Parameters
    ----------
    node
        A host such as `n0`, or a switch such as `p0/t0-1`.
    command
        The command and its arguments, after `--`. Without one, a shell.
    """
    from fairlead.lab.inside import words_into

    argv = words_into(_name(name, spec), node, list(command) or ["sh"])
    # the command has the terminal: an interrupt is for it, and its answer is ours
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # with --json stdout is one document, so what the command says goes into it
        stdout = subprocess.PIPE if common.json else None
        done = subprocess.run(argv, check=False, preexec_fn=_default_interrupt, stdout=stdout)
    finally:
        signal.signal(signal.SIGINT, before)
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    body = {"node": node, "rc": status, "stdout": (done.stdout or b"").decode("utf-8", "replace")}
    return Answer(schema="fairlead.lab-exec/1", text="", body=body, exit=status)


def fault(
    *words: str,
    heal: str | None = None,
    script: Path | None = None,
    kinds: Flag = False,
    name: Name = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Inject a fault, heal one, play a script of them, or list the kinds.

    Parameters
    ----------
    words
        KIND TARGET [NAME=VALUE ...], for example: silent-drop p2/n3, or: loss 'p*/n1' percent=5.
    heal
        What to heal instead: all, a fault's number, a kind, or a target.
    script
        A file of lines `SECONDS KIND TARGET [NAME=VALUE ...]` and `SECONDS heal WHICH`, checked whole, then played.
    kinds
        List every kind, its target and its settings.
    """
    from fairlead.lab.faults import apply
    from fairlead.lab.faults import script as scripts

    if sum((bool(words), heal is not None, script is not None, kinds)) != 1:
        raise UsageError(
            "lab/bad-fault", "give one of: KIND TARGET, --heal, --script, --kinds", hint="fairlead lab fault --help"
        )
    if kinds:
        return _kinds()
    lab = _name(name, spec)
    if heal is not None:
        healed = apply.heal(lab, heal)
        text = "\n".join(f"healed   {f.id}  {f.kind} {f.target}" for f in healed) or "no fault was in force"
        return Answer(schema="fairlead.lab-fault/1", text=text, body={"healed": healed})
    if script is not None:
        scripts.play_file(lab, script, session().note)
        from fairlead.cluster.enter import running

        left = running(lab).faults
        text = f"played {script}; {counted(len(left), 'fault')} in force"
        return Answer(schema="fairlead.lab-fault/1", text=text, body={"faults": left})
    if len(words) < 2:
        raise UsageError("lab/bad-fault", f"`{words[0]}` needs a target", hint="fairlead lab fault --kinds")
    injected = apply.inject(lab, words[0], words[1], scripts.pairs(list(words[2:])))
    return Answer(
        schema="fairlead.lab-fault/1",
        text=f"injected {injected.id}  {injected.kind} {injected.target}",
        body={"injected": injected},
        hints=[f"{_again('fault', lab)} --heal {injected.id}"],
    )


def _kinds() -> Answer:
    from fairlead.lab.faults.catalog import KINDS

    rows = [
        (
            kind.name,
            kind.on,
            " ".join(n if s.default is None else f"{n}={s.default}" for n, s in kind.settings.items()),
            kind.help,
        )
        for kind in KINDS.values()
    ]
    body = [
        {"kind": kind.name, "on": kind.on, "help": kind.help, "how": kind.how,
         "settings": {n: {"default": s.default, "help": s.help} for n, s in kind.settings.items()}}
        for kind in KINDS.values()
    ]  # fmt: skip
    return Answer(
        schema="fairlead.lab-faults/1",
        text=table(["KIND", "ON", "SETTINGS", "WHAT"], rows)
        + "\n\ntargets: link p2/n3 or p2/t0-1/t1-0, switch p2/t0-1, host n3, pair n0:n3; `*` stands for any one part",
        body={"kinds": body},
    )


def _name(name: str | None, spec: Path | None) -> str:
    """The lab a command is about: the flag, the cluster file, or the only lab there is."""
    from fairlead.cluster.enter import standing
    from fairlead.spec import read

    if name is not None:  # also an empty one: in a script it is a variable that was not set, not the default lab
        return name
    described = read(spec, or_lab=True).spec
    wanted = described.table("lab").name or described.cluster.name
    up = standing()
    return up[0] if spec is None and wanted not in up and len(up) == 1 else wanted


def _again(verb: str, name: str) -> str:
    """A command about this lab, as short as it can be."""
    plain = ""
    with contextlib.suppress(FairleadError):
        plain = _name(None, None)
    return f"fairlead lab {verb}" + ("" if plain == name else f" -n {name}")


def _default_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
