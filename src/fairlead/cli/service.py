"""`fairlead service`: programs on nodes that outlive the command that started them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.table import table
from fairlead.base.units import counted, duration
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError
from fairlead.records.verdict import Verdict, aggregate

if TYPE_CHECKING:
    from fairlead.cluster import Cluster
    from fairlead.launch.service import ServiceState
    from fairlead.spec.model import Spec


def ls(
    name: str = "", *, nodes: Nodes = None, exclude: Exclude = "", spec: SpecFile = None, common: Common = Common()
) -> Answer:
    """What runs where: every service of yours on the nodes, and how it is. Nodes that answer alike are one line.

    Exit codes: 0 all run, or there is none; 3 one has ended and nobody will start it again; 4 a node did not answer.

    Parameters
    ----------
    name
        This service alone.
    """
    from fairlead.launch.service import status

    with reached(nodes, exclude, spec, common) as (cluster, wanted, pythons, _):
        states = status(cluster, wanted, name, python=pythons)
    return answer_about("service-ls", states, wanted)


def deploy(
    file: Path,
    *args: Annotated[str, Parameter(allow_leading_hyphen=True)],
    name: str,
    nodes: Nodes = None,
    exclude: Exclude = "",
    env: Annotated[tuple[str, ...], Parameter(name="--env", negative=())] = (),
    lease: float | None = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Have a program of one Python file run on nodes from now on. What runs as asked already is left alone.

    systemd keeps it where there is one; elsewhere a supervisor of ours, until its lease ends. Another file, other
    arguments or another environment replace it.

    Parameters
    ----------
    file
        The program: one file of Python, with the standard library of the nodes' Python.
    args
        Its arguments, after `--`.
    name
        What it is called: up to 32 lower-case letters, digits and dashes.
    env
        NAME=VALUE, again for each.
    lease
        Seconds a supervisor keeps it without being asked for it again; a day, if left out.
    """
    from fairlead.launch.service import LEASE_S, Service
    from fairlead.launch.service import deploy as begin

    if bad := [word for word in env if "=" not in word]:
        raise UsageError("cli/usage", f"--env takes NAME=VALUE, not `{bad[0]}`", hint="fairlead service deploy --help")
    try:
        source = file.read_text("utf-8")
        compile(source, str(file), "exec")
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise UsageError(
            "cli/usage", f"{file} is no Python program: {error}", hint="python3 -m py_compile FILE"
        ) from None
    settings = dict(word.split("=", 1) for word in env)
    with reached(nodes, exclude, spec, common) as (cluster, wanted, pythons, _):
        service = Service(name=name, source=source, args=args, env=settings, lease_s=lease or LEASE_S)
        states = begin(cluster, wanted, service, python=pythons)
    return answer_about("service-deploy", states, wanted, f"fairlead service ls {name}")


def stop(
    name: str, *, nodes: Nodes = None, exclude: Exclude = "", spec: SpecFile = None, common: Common = Common()
) -> Answer:
    """End a service on nodes, with everything it started, and remove its files there.

    Parameters
    ----------
    name
        The service, as `fairlead service ls` names it.
    """
    from fairlead.launch.service import stop as end

    with reached(nodes, exclude, spec, common) as (cluster, wanted, pythons, _):
        states = end(cluster, wanted, name, python=pythons)
    return answer_about("service-stop", states, wanted)


@contextmanager
def reached(
    nodes: str | None, exclude: str, spec: Path | None, common: Common
) -> Iterator[tuple[Cluster, NodeSet, dict[str, str], Spec]]:
    """(the cluster, the nodes asked for, the Python of each, the cluster file): for verbs about services."""
    from fairlead.cluster import connect
    from fairlead.records.codec import builtins
    from fairlead.spec.loader import read

    loaded = read(spec, flags={"runs.dir": common.runs}, or_lab=True)
    wanted = chosen(nodes, exclude, loaded.spec.nodes)
    here = session()
    folder = here.open_folder(common.runs, from_file=loaded.spec.runs.dir, keep=loaded.spec.runs.keep)
    folder.write("spec.toml", loaded.text)
    pythons = {node: pool.python for pool in loaded.spec.pools for node in pool.nodes}
    with connect(
        loaded.spec,
        folder=folder.path,
        recorder=lambda record: folder.append("commands.jsonl", builtins(record)),
        note=here.note,
    ) as cluster:
        yield cluster, wanted, pythons, loaded.spec


_VERDICTS = {
    "running": Verdict.PASS,
    "waiting": Verdict.WARN,
    "dead": Verdict.FAIL,
    "absent": Verdict.PASS,
    "unknown": Verdict.UNKNOWN,
}


def answer_about(schema: str, states: Sequence[ServiceState], wanted: NodeSet, *hints: str) -> Answer:
    """How a service is on nodes."""
    own = list(dict.fromkeys(s.hint for s in states if s.hint))
    return Answer(
        schema=f"fairlead.{schema}/1",
        verdict=aggregate(_VERDICTS[s.state] for s in states) if states else Verdict.PASS,
        text=lambda: _page(states, wanted),
        body={"nodes": str(wanted), "services": states},
        hints=[*own, *hints],
    )


def _page(states: Sequence[ServiceState], wanted: NodeSet) -> str:
    if not states:
        return f"no service on {counted(len(wanted), 'node')}"
    rows = []
    for group in _alike(states):
        one = group[0]
        up = sorted(s.up_s for s in group)
        rows.append([
            one.name,
            f"{fold(s.node for s in group)} ({len(group)})",
            " ".join(filter(None, (one.state, f"({one.did})" if one.did else ""))),
            one.manager or "-",
            duration(up[len(up) // 2]) if up[-1] else "-",
            str(sum(s.restarts for s in group)),
            duration(min(s.lease_s for s in group)) if one.lease_s > 0 else "-",
            one.error or one.last_exit or "-",
        ])  # fmt: skip
    return table(["SERVICE", "NODES", "STATE", "BY", "UP", "RESTARTS", "LEASE", "LAST END"], rows)


def _alike(states: Iterable[ServiceState]) -> list[list[ServiceState]]:
    """Those that differ in times alone, in the order of their first node."""
    groups: dict[tuple[str, ...], list[ServiceState]] = {}
    for s in states:
        groups.setdefault((s.name, s.state, s.did, s.manager, s.digest, s.last_exit, s.error), []).append(s)
    return list(groups.values())
