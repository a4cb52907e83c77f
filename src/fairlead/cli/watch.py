"""`fairlead watch`: the auditor on every node: what it sees, live or once; begin it, end it, follow its records."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fairlead.base.shown import shown
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.cli.service import answer_about, reached
from fairlead.errors import UsageError
from fairlead.records.finding import Finding, Subject, verdict_of
from fairlead.report.text import findings_text, paint_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.watch.control import Look


def watch(
    what: Literal["show", "start", "stop", "verify"] = "show",
    folder: Path | None = None,
    *,
    top: Annotated[bool, Parameter(negative=())] = False,
    seconds: float = 86_400.0,
    head: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """See who uses the ports of nodes, and what becomes of them, by the auditor that runs on each node.

    It reads counters, links and the kernel's list of RDMA objects every few seconds, says which user, container or
    Slurm job holds which port, and tells of ports that go down or slow, of virtual functions that leave, of traffic
    that takes the slow path, and of bytes that move for nobody. What it saw is kept on the node as a chain of records.
    Exit codes: 0 all is well, or only warnings; 3 a node tells of a fault, or a chain is broken; 4 no watch runs there.

    Parameters
    ----------
    what
        show: what nodes see now. start, stop: have it run on nodes, or end it; its records stay. verify: follow the
        chain of records and name where it breaks.
    folder
        With verify: a folder of records here, such as a copy of a node's, instead of nodes.
    top
        Stay, and draw it again as it changes, until Ctrl-C.
    seconds
        With --top: end by itself after so long.
    head
        With verify and a folder: NUMBER:HASH, a record noted earlier, as `show --json` has it; again for each.
    """
    _check(what, folder, head, top=top)
    if what == "verify" and folder is not None:
        return _verify_here(folder, head)
    from fairlead.watch import control

    with reached(nodes, exclude, spec, common) as (cluster, wanted, pythons, cluster_spec):
        if what == "start":
            states = control.start(cluster, wanted, cluster_spec, python=pythons)
            return answer_about("watch-start", states, wanted, "fairlead watch --top")
        if what == "stop":
            return answer_about("watch-stop", control.stop(cluster, wanted, python=pythons), wanted)
        if what == "verify":
            chains = control.followed(cluster, wanted, cluster_spec, python=pythons)
            found = [
                control.chain_finding(chain.folder or node, chain, Subject(kind="node", nodes=(node,)))
                for node, chain in chains.items()
            ]
            return _about_chains(found, {"nodes": str(wanted), "chains": chains})
        if top:
            looks = control.follow(cluster, wanted, cluster_spec, _draw, limit_s=seconds)
        else:
            looks = control.looked(cluster, wanted, cluster_spec, python=pythons)
    from fairlead.watch.top import page

    findings = control.findings_of(looks)
    return Answer(
        schema="fairlead.watch/1",
        verdict=verdict_of(findings),
        text=lambda: page(looks, paint_for(session().stdout)),
        body={"nodes": str(wanted), "looks": looks, "findings": findings},
        hints=[f"fairlead explain {f.code}" for f in findings if f.verdict == "fail"][:1],
    )


def _check(what: str, folder: Path | None, head: tuple[str, ...], *, top: bool) -> None:
    """Words that do not go together. Raises UsageError."""
    wrong = ""
    if top and what != "show":
        wrong = f"--top shows; it does not go with {what}"
    elif folder is not None and what != "verify":
        wrong = f"a folder goes with verify, not with {what}"
    elif head and folder is None:
        wrong = "--head goes with verify and a folder"
    if wrong:
        raise UsageError("cli/usage", wrong, hint="fairlead watch --help")


def _verify_here(folder: Path, head: tuple[str, ...]) -> Answer:
    """A chain in a folder of this machine."""
    import msgspec

    from fairlead.watch.control import Verified, chain_finding
    from fairlead.watch.onnode.chain import check

    heads = {}
    for word in head:
        number, _, value = word.partition(":")
        if not number.isdigit() or len(value) != 64:
            raise UsageError("cli/usage", f"--head takes NUMBER:HASH, not `{word}`", hint="fairlead watch show --json")
        heads[int(number)] = value
    try:
        found = msgspec.convert({**check(str(folder), heads), "folder": str(folder)}, Verified)
    except OSError as error:
        text = f"{folder}: {error.strerror}"
        raise UsageError("watch/no-records", text, hint="fairlead watch verify -w NODE") from None
    finding = chain_finding(str(folder), found, Subject(kind="cluster", name=str(folder)))
    return _about_chains([finding], {"chains": {str(folder): found}})


def _about_chains(findings: list[Finding], body: Mapping[str, object]) -> Answer:
    paint = paint_for(session().stdout)
    return Answer(
        schema="fairlead.watch-verify/1",
        verdict=verdict_of(findings),
        text=lambda: findings_text(findings, paint, passes=True),
        body={**body, "findings": findings},
    )


def _draw(looks: Mapping[str, Look]) -> None:
    """One picture: over the last one on a terminal, below it elsewhere."""
    from fairlead.watch.top import screen

    stream = session().stdout
    columns, rows = shutil.get_terminal_size((120, 40))
    text = shown(screen(looks, paint_for(stream), rows=rows, columns=columns, clock=time.strftime("%H:%M:%S")))
    if session().json:
        return
    stream.write(("\x1b[H\x1b[2J" if stream.isatty() else "") + text + "\n")
    stream.flush()
