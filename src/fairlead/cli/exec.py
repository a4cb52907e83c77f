"""`fairlead exec`: a command on nodes, equal answers folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.units import counted
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen
from fairlead.cli.output import Answer, session
from fairlead.errors import Exit, UsageError
from fairlead.records.verdict import Verdict, aggregate
from fairlead.report.text import Paint, paint_for

if TYPE_CHECKING:
    from fairlead.cluster import Line, Result


def exec_(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    nodes: Nodes = None,
    exclude: Exclude = "",
    timeout: float | None = None,
    fanout: int | None = None,
    live: Annotated[bool, Parameter(negative=())] = False,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Run a command on nodes; nodes that answer alike are one block.

    Exit codes: 0 every command ended with status 0; 3 one did not, or ran into the time limit; 4 the others were fine,
    but a node was out of reach; 130 after an interrupt, with the answers that had come.

    Parameters
    ----------
    command
        The command and its arguments, after `--`. No shell is involved: write `-- sh -c "..."` for one.
    timeout
        Seconds the command has on each node, once reached; else `access.timeout_s`.
    fanout
        Nodes talked to at the same time; else `access.fanout`.
    live
        Print each line as it comes, behind its node's name.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    from fairlead.cluster import Interrupted, connect
    from fairlead.records.codec import builtins
    from fairlead.spec.loader import read

    here = session()
    if not command:
        raise UsageError("cli/usage", "no command to run", hint="fairlead exec -w NODES -- COMMAND")
    if command[0].startswith("-"):
        raise UsageError("cli/usage", f"no option `{command[0]}`", hint="fairlead exec --help")
    if live and common.json:
        raise UsageError("cli/usage", "--live and --json exclude each other", hint="fairlead exec --help")
    loaded = read(
        spec, flags={"access.timeout_s": timeout, "access.fanout": fanout, "runs.dir": common.runs}, or_lab=True
    )
    wanted = chosen(nodes, exclude, loaded.spec.nodes)
    folder = here.open_folder(common.runs, from_file=loaded.spec.runs.dir, keep=loaded.spec.runs.keep)
    folder.write("spec.toml", loaded.text)
    with connect(
        loaded.spec,
        folder=folder.path,
        recorder=lambda record: folder.append("commands.jsonl", builtins(record)),
        watch=lambda done, total, out: here.progress("nodes", done, total, _waiting(out)),
        note=here.note,
    ) as cluster:
        limit_s, on_line = loaded.spec.access.timeout_s, _print_line if live else None
        stop = None
        try:
            results = cluster.run(wanted, command, limit_s=limit_s, on_line=on_line)
        except Interrupted as stopped:  # who ended before still has an answer
            results, stop = list(stopped.results), stopped
    blocks = _blocks(results)
    here.note(str(stop) if stop else _counts(results))
    return Answer(
        schema="fairlead.exec/1",
        verdict=aggregate(_VERDICTS[str(r.state)] for r in results),
        text=lambda: _page(blocks, paint_for(here.stdout), with_output=not live),
        body={"command": list(command), "nodes": str(wanted), "results": [_row(r) for r in results]},
        hints=_hints(blocks, command),
        exit=Exit.INTERRUPTED if stop else None,
    )


_VERDICTS = {
    "done": Verdict.PASS,
    "failed": Verdict.FAIL,
    "timeout": Verdict.FAIL,
    "unreachable": Verdict.UNKNOWN,
    "cancelled": Verdict.UNKNOWN,
}


def _waiting(out: NodeSet) -> str:
    """Who is still out, as far as it fits on a line."""
    said = f"waiting for {out}"
    return said if out and len(said) <= 60 else ""


def _print_line(line: Line) -> None:
    here = session()
    here.say(f"{line.node}: {line.text}", here.stdout if line.stream == "stdout" else here.stderr)


def _blocks(results: Iterable[Result]) -> list[list[Result]]:
    """Results that say the same, in the order of their first node; those that are fine come first."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for r in results:
        groups.setdefault((r.state, r.rc, r.error, r.stdout.data, r.stderr.data), []).append(r)
    return sorted(groups.values(), key=lambda group: not group[0].ok)


def _page(blocks: Iterable[Sequence[Result]], paint: Paint, *, with_output: bool) -> str:
    parts = []
    for block in blocks:
        one = block[0]
        if not with_output and one.ok:
            continue
        names = paint.bold(f"{fold(r.node for r in block)} ({len(block)})")
        state = paint.verdict(_VERDICTS[str(one.state)], str(one.state))
        lines = [f"{names}  {state}" + (f"  {one.error}" if one.error else "")]
        if with_output:
            lines += _lines(one.stdout.text)
            lines += [f"stderr  {line}" for line in _lines(one.stderr.text)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _lines(text: str) -> list[str]:
    """The lines a command wrote; other characters that break a line elsewhere break none here."""
    return text.removesuffix("\n").split("\n") if text else []


def _counts(results: Sequence[Result]) -> str:
    states = [str(r.state) for r in results]
    said = ", ".join(f"{states.count(s)} {s}" for s in _VERDICTS if s in states)
    return f"{counted(len(results), 'node')}: {said}"


def _hints(blocks: Iterable[Sequence[Result]], command: Sequence[str]) -> list[str]:
    hints = [block[0].hint for block in blocks if block[0].hint]
    if len(command) == 1 and " " in command[0] and any(block[0].rc == 127 for block in blocks):
        hints.append(f"fairlead exec ... -- sh -c '{command[0]}'")
    return list(dict.fromkeys(hints))


def _row(r: Result) -> dict[str, Any]:
    return {
        "node": r.node,
        "state": str(r.state),
        "rc": r.rc,
        "stdout": r.stdout.text,
        "stderr": r.stderr.text,
        "is_truncated": r.stdout.is_truncated or r.stderr.is_truncated,
        "duration_s": round(r.duration_s, 3),
        "error": r.error,
        "hint": r.hint,
    }
