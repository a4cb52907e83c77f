"""`fairlead probe`: what nodes are and whether each is well, read from the nodes or from captured trees."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fairlead.base.nodeset import MAX_NAME, NodeSet, fold, is_name
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen, spec_of_size
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, verdict_of
from fairlead.report.inventory import inventory
from fairlead.report.text import counts_line, findings_text, paint_for

if TYPE_CHECKING:
    from fairlead.probe import NodeAnswer
    from fairlead.records.runs import RunFolder
    from fairlead.spec.model import Spec


def probe(
    *,
    nodes: Nodes = None,
    exclude: Exclude = "",
    root: Path | None = None,
    size: str = "",
    capture: Path | None = None,
    imds: Annotated[bool, Parameter(negative=())] = False,
    dcgm: Annotated[bool, Parameter(negative=())] = False,
    all_: Annotated[bool, Parameter(name=("--all", "-a"), negative=())] = False,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Read nodes' facts and judge each node by itself and all of them side by side.

    Nothing is installed on a node and nothing is written there: a small program is piped to its Python and prints what
    it read. Exit codes: 0 all is well, or only warnings; 3 a node fails; 4 something could not be read, or a node gave
    no answer.

    Parameters
    ----------
    root
        Read a captured tree, or a folder with one captured tree per node, instead of nodes.
    size
        With `--root` and no cluster file: the VM size to judge against, such as Standard_ND96isr_H100_v5.
    capture
        Also keep what was read, as it was, in a folder per node below this one. `--root` reads it again.
    imds
        Ask Azure's metadata service also where nothing shows that the node is a VM of Azure's.
    dcgm
        Ask DCGM, too: `dcgmi diag -r 1`, its quick checks. They take seconds, and nv-hostengine must run.
    all_
        Show what passed and what was skipped, too.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    if size and root is None:
        raise UsageError("cli/usage", "--size goes with --root", hint="fairlead probe --help")
    live = {"--nodes": nodes is not None, "--exclude": bool(exclude), "--capture": capture is not None}
    live |= {"--imds": imds, "--dcgm": dcgm}
    for flag in (f for f, given in live.items() if given and root is not None):
        raise UsageError("cli/usage", f"--root and {flag} exclude each other", hint="fairlead probe --help")
    from fairlead.checks import condensed, judge
    from fairlead.records.runs import now_utc

    started = now_utc()
    if root is not None:
        facts, silent, spec_, folder = from_trees(root, size, spec, common)
    else:
        facts, silent, spec_, folder = from_nodes(nodes, exclude, capture, spec, common, imds=imds, dcgm=dcgm)
    if folder:
        folder.write_facts(facts)
    findings = silent + (judge(facts, spec_) if facts else [])
    if folder:
        folder.write("findings.json", findings)
    body = {
        "started": started,
        "nodes": fold(f.node for f in facts),
        "silent": fold(n for f in silent for n in f.subject.nodes),
        "findings": findings,
    }
    return Answer(
        schema="fairlead.probe/1",
        verdict=verdict_of(findings),
        text=lambda: _page(facts, findings, condensed(findings), show_all=all_),
        body=body,
        hints=_hints(findings),
    )


# ---- where the facts come from -------------------------------------------------------------------------------------

_Read = tuple[list[NodeFacts], list[Finding], "Spec", "RunFolder | None"]


def from_nodes(
    nodes: str | None,
    exclude: str,
    capture: Path | None,
    path: Path | None,
    common: Common,
    *,
    imds: bool,
    dcgm: bool = False,
    folder: RunFolder | None = None,
) -> _Read:
    """Facts of live nodes, findings about silent ones, the cluster file, and the run folder: a new one or the given."""
    from fairlead.cluster import Command, connect
    from fairlead.probe import GRACE_S, KEEP_BYTES, LIMIT_S, NodeAnswer, arguments, program, sort_answers
    from fairlead.records.codec import builtins
    from fairlead.spec.loader import read

    here = session()
    loaded = read(path, flags={"runs.dir": common.runs}, or_lab=True)
    spec = loaded.spec
    wanted = chosen(nodes, exclude, spec.nodes)
    folder = folder or here.open_folder(common.runs, from_file=spec.runs.dir, keep=spec.runs.keep)
    folder.write("spec.toml", loaded.text)
    # the probe must end by itself before the node's time is over, or what it has read is lost
    limit_s = min(LIMIT_S, max(2.0, spec.access.timeout_s - GRACE_S))
    probe, words = program(), arguments(imds=imds, dcgm=dcgm, capture=capture is not None, limit_s=limit_s)
    commands: dict[str, Command] = {}
    for pool in spec.pools:
        sent = Command(argv=probe.words(pool.python, words), stdin=probe.stdin)
        commands |= {node: sent for node in pool.nodes if node in wanted}
    with connect(
        spec,
        folder=folder.path,
        recorder=lambda record: folder.append("commands.jsonl", builtins(record)),
        watch=lambda done, total, out: here.progress("nodes", done, total, f"waiting for {out}" if out else ""),
        note=here.note,
    ) as cluster:
        results = cluster.run_each(commands, limit_s=spec.access.timeout_s, keep_bytes=KEEP_BYTES)
    answers = [NodeAnswer(r.node, r.stdout.data if r.ok else None, r.error, r.hint, r.code) for r in results]
    if capture is not None:
        answers = [_kept(answer, capture / answer.node) for answer in answers]
        here.note(f"kept what was read below {capture}")
    facts, silent = sort_answers(answers)
    return facts, silent, spec, folder


def _kept(answer: NodeAnswer, place: Path) -> NodeAnswer:
    """An answer without the tree it carries, which goes to its place. Half an answer is left to be judged as one."""
    from fairlead.errors import ClusterError
    from fairlead.probe import split_capture, write_tree

    if answer.document is None:
        return answer
    try:
        document, tree = split_capture(answer.document)
    except ClusterError:
        return answer
    write_tree(tree, place)
    return answer._replace(document=document)


def from_trees(root: Path, size: str, path: Path | None, common: Common) -> _Read:
    """Captured trees: no node is touched, so no run folder is opened."""
    from fairlead.probe import local, parse
    from fairlead.spec.loader import read

    places = trees(root)
    spec = read(path).spec if path else spec_of_size(size, NodeSet(places))
    here = session()
    facts = []
    for number, (node, place) in enumerate(places.items()):
        here.progress("trees", number, len(places), place.name)
        facts.append(parse(local(place, node=node), node))
    here.progress("trees", len(places), len(places))
    return facts, [], spec, None


def trees(root: Path) -> dict[str, Path]:
    """Node -> its tree: the folder itself, or the folders in it."""
    if not root.is_dir():
        raise UsageError(
            "probe/no-tree", f"no captured tree at {root}", hint="fairlead probe --capture DIR makes one for each node"
        )
    if _is_tree(root):
        return {_name_of(root): root}
    found: dict[str, Path] = {}
    for place in (p for p in sorted(root.iterdir()) if _is_tree(p)):
        name = _name_of(place)
        found[name if name not in found else f"{name}-{len(found)}"] = place
    if not found:
        raise UsageError(
            "probe/no-tree",
            f"{root} holds neither sys and proc nor folders that do",
            hint="name what --capture made",
        )
    return found


def _name_of(place: Path) -> str:
    """A tree's node: its folder's name; where no node can have that, as of `/`, the host name in it; else `tree`."""
    from fairlead.base.trust import read_file

    names = [place.resolve().name]
    for path in ("proc/sys/kernel/hostname", "etc/hostname"):
        with contextlib.suppress(OSError):
            names.append(read_file(place / path, MAX_NAME).decode("ascii", "replace").strip().split(".")[0])
    return next((name for name in names if is_name(name)), "tree")


_MARKS = ("self.json", "proc", "sys", "cmd", "dev", "var/log", "etc")
"""What a captured tree has at least one of; those that others took may be partial."""


def _is_tree(place: Path) -> bool:
    return any((place / mark).exists() for mark in _MARKS)


# ---- the page ------------------------------------------------------------------------------------------------------


_COLUMNS = ("OS", "KERNEL", "CPUS", "MEMORY", "GPUS", "DRIVER", "RDMA PORTS")


def _page(facts: Sequence[NodeFacts], findings: Sequence[Finding], shown: Sequence[Finding], *, show_all: bool) -> str:
    paint = paint_for(session().stdout)
    parts = [inventory(facts, _COLUMNS), findings_text(shown, paint, passes=show_all), counts_line(findings)]
    return "\n\n".join(p for p in parts if p) + f"\nverdict  {verdict_of(findings)}"


def _hints(findings: Sequence[Finding]) -> list[str]:
    first = next((f for f in findings if f.verdict in ("fail", "unknown")), None)
    return [f"fairlead explain {first.code}"] if first else []
