"""`fairlead audit`: what a guest's network really is, and the file that mends what manages its virtual functions."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from msgspec.structs import replace

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.table import table
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, spec_of_size
from fairlead.cli.output import Answer, session
from fairlead.cli.probe import from_nodes, from_trees
from fairlead.errors import UsageError
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, verdict_of
from fairlead.records.verdict import Verdict
from fairlead.report.text import counts_line, findings_text, paint_for

if TYPE_CHECKING:
    from fairlead.audit import Fix
    from fairlead.audit.apply import Ask
    from fairlead.cluster import Command
    from fairlead.records.runs import RunFolder
    from fairlead.spec.model import Spec


def audit(
    *,
    nodes: Nodes = None,
    exclude: Exclude = "",
    root: Path | None = None,
    size: str = "",
    kernel_log: Path | None = None,
    window: float = 0.0,
    before: Path | None = None,
    write: Annotated[bool, Parameter(negative=())] = False,
    all_: Annotated[bool, Parameter(name=("--all", "-a"), negative=())] = False,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """What the guest's network really is: data paths, virtual functions, RDMA, and who manages them.

    Reads nodes as `fairlead probe` does and judges more: what may be wrong although jobs run. Without a cluster file
    and without a lab it is this machine that is read, and judged as the VM size that the platform calls it. Where
    nothing keeps the running manager of networks off virtual functions, the right file for the distribution is shown as
    a diff; `--write` writes it. Exit codes: 0 all is well, or only warnings; 3 a node fails; 4 something could not be
    read.

    Parameters
    ----------
    root
        Read a captured tree, or a folder with one captured tree per node, instead of nodes. Trees may be partial. `/`
        is this machine.
    size
        Without a cluster file: the VM size to judge against, such as Standard_ND96isr_H100_v5.
    kernel_log
        Read a kernel log or a serial console's text instead: when virtual functions were away, and for how long.
    window
        Read the nodes twice, so many seconds apart, and judge what counters did in between.
    before
        With `--root`: trees that were captured earlier, under the same names, to judge what counters did in between.
    write
        Write the file that the diff shows, on each node or in the tree, as the user who reaches it (root).
    all_
        Show what passed and what was skipped, too.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, the lab, or this machine.
    """
    if root is None and kernel_log is None and nodes is None and _is_alone(spec):
        root = HERE
    _check(nodes=nodes, root=root, size=size, kernel_log=kernel_log, write=write)
    _check_window(window, before, root=root, kernel_log=kernel_log)
    read = (
        _from_log(kernel_log)
        if kernel_log is not None
        else _Read.of(root, size, spec, common, nodes=nodes, exclude=exclude)
    )
    earlier = _earlier(read, before, spec, common)
    if window:
        earlier, read = (
            read.facts,
            _again(read, window, spec, common, root=root, size=size, nodes=nodes, exclude=exclude),
        )
    from fairlead.audit.judge import judge_audit, judge_log, judge_pairs, tell
    from fairlead.checks import condensed
    from fairlead.records.runs import now_utc

    started = now_utc()
    if read.folder:
        read.folder.write_facts(read.facts)
    if kernel_log is not None:
        findings = judge_log(read.facts[0], read.spec)
    else:
        findings = read.silent + (judge_audit(read.facts, read.spec) if read.facts else [])
        findings += judge_pairs(earlier, read.facts, read.spec)
    told = tell(read.facts, read.spec)
    fixes, diffs, more = _fixes(read, write=write) if kernel_log is None else ([], {}, [])
    findings += more
    if read.folder:
        read.folder.write("findings.json", findings)
    return Answer(
        schema="fairlead.audit/1",
        verdict=verdict_of(findings),
        text=lambda: _page(findings, condensed(findings), told, diffs, show_all=all_),
        body={
            "started": started,
            "nodes": fold(f.node for f in read.facts),
            "silent": fold(n for f in read.silent for n in f.subject.nodes),
            "findings": findings,
            "paths": told,
            "fixes": [
                {"node": f.node, "path": f.path, "why": f.why, "then": f.then, "diff": diffs.get(f.node, "")}
                for f in fixes
                if f.is_needed
            ],
        },
        hints=_hints(findings, diffs, write=write),
    )


def _check(*, nodes: str | None, root: Path | None, size: str, kernel_log: Path | None, write: bool) -> None:
    hint = "fairlead audit --help"
    if size and root is None and kernel_log is None:
        raise UsageError("cli/usage", "--size goes with --root", hint=hint)
    if nodes is not None and root is not None:
        raise UsageError("cli/usage", "--root and --nodes exclude each other", hint=hint)
    if kernel_log is not None and (nodes is not None or root is not None or write):
        raise UsageError("cli/usage", "--kernel-log stands alone: a log tells of no file to write", hint=hint)


def _check_window(window: float, before: Path | None, *, root: Path | None, kernel_log: Path | None) -> None:
    hint = "fairlead audit --help"
    if before is not None and root is None:
        raise UsageError("cli/usage", "--before goes with --root", hint=hint)
    if window and (root not in (None, HERE) or kernel_log is not None):
        raise UsageError("cli/usage", "--window reads live nodes; of captured trees say --before", hint=hint)
    if not 0 <= window <= MAX_WINDOW_S:
        raise UsageError("cli/usage", f"--window is a number of seconds up to {MAX_WINDOW_S}", hint=hint)


MAX_WINDOW_S = 86_400


@dataclass
class _Read:
    """What is judged, and where it came from."""

    facts: list[NodeFacts]
    silent: list[Finding]
    spec: Spec
    folder: RunFolder | None = None
    roots: Mapping[str, str] = field(default_factory=dict)
    """Of captured trees: node -> its tree."""

    @classmethod
    def of(
        cls, root: Path | None, size: str, spec: Path | None, common: Common, *, nodes: str | None, exclude: str
    ) -> _Read:
        """Nodes, or captured trees."""
        if root is None:
            return cls(*from_nodes(nodes, exclude, None, spec, common, imds=False))
        from fairlead.cli.probe import trees

        facts, silent, spec_, _ = from_trees(root, size, spec, common)
        if root == HERE and not size and spec is None:
            spec_ = spec_of_size(_platforms_size(facts[0]), spec_.nodes)
        return cls(facts, silent, spec_, roots={node: str(place.resolve()) for node, place in trees(root).items()})


HERE = Path("/")


def _is_alone(spec: Path | None) -> bool:
    """Whether nobody named a cluster: no file, no lab that is up."""
    from fairlead.cluster.enter import running
    from fairlead.errors import FairleadError
    from fairlead.spec.loader import DEFAULT_FILE, read

    if spec is not None or os.environ.get("FAIRLEAD_SPEC") or Path(DEFAULT_FILE).exists():
        return False
    try:
        running(read(or_lab=True).spec.cluster.name)
    except FairleadError:
        return True
    return False


def _platforms_size(record: NodeFacts) -> str:
    """The VM size by the metadata service, where it is one that fairlead knows; empty for none."""
    from fairlead.records.facts import Facts, Unread
    from fairlead.spec import size as vm_size

    try:
        said = str(Facts(record).get("imds.compute.vmSize"))
    except Unread:
        return ""
    return said if vm_size(said) else ""


def _earlier(read: _Read, before: Path | None, spec: Path | None, common: Common) -> list[NodeFacts]:
    """Trees that were captured before those that are judged."""
    if before is None:
        return []
    facts, _, _, _ = from_trees(before, read.spec.pools[0].size, spec, common)
    # one tree against one tree: what their folders are called does not matter
    return [replace(facts[0], node=read.facts[0].node)] if len(facts) == len(read.facts) == 1 else facts


def _again(
    read: _Read,
    window: float,
    spec: Path | None,
    common: Common,
    *,
    root: Path | None,
    size: str,
    nodes: str | None,
    exclude: str,
) -> _Read:
    """The nodes' second reading, into the same run folder; the first is kept beside it."""
    if read.folder is not None:
        read.folder.write("earlier.json", read.facts)
    session().note(f"reading again in {window:g} s")
    time.sleep(window)
    if root is not None:
        return _Read.of(root, size, spec, common, nodes=nodes, exclude=exclude)
    facts, silent, spec_, folder = from_nodes(nodes, exclude, None, spec, common, imds=False, folder=read.folder)
    return _Read(facts, silent, spec_, folder)


def _from_log(path: Path) -> _Read:
    from fairlead.audit.logtext import MAX_LOG_BYTES, facts_of_log
    from fairlead.base.trust import TooLarge, read_file

    hint = "journalctl -k -b -o short-monotonic > FILE"
    try:
        data = read_file(path, MAX_LOG_BYTES)
    except TooLarge:
        raise UsageError("audit/no-log-lines", f"{path} is larger than {MAX_LOG_BYTES >> 20} MiB", hint=hint) from None
    except OSError as error:
        raise UsageError("audit/no-log-lines", f"cannot read {path}: {error.strerror or error}", hint=hint) from None
    node = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem).strip("._-") or "log"
    record = facts_of_log(data.decode("utf-8", "backslashreplace"), node[:60], str(path))
    return _Read([record], [], spec_of_size("", NodeSet(record.node)))


# ---- the file that mends ---------------------------------------------------------------------------------------------


def _fixes(read: _Read, *, write: bool) -> tuple[list[Fix], dict[str, str], list[Finding]]:
    """Each node's fix, the diffs, and what came of writing."""
    from fairlead.audit import plan
    from fairlead.audit.apply import diff, in_trees, none_right, show, told
    from fairlead.audit.apply import write as put

    fixes = [plan(record) for record in read.facts]
    right = [fix for fix in fixes if fix.path]
    python = _pythons(read, right)
    ask: Ask = in_trees if read.roots else _on_nodes(read)
    now = show(right, ask, python, read.roots)
    diffs = {fix.node: diff(fix, now[fix.node]) for fix in right if not now[fix.node].error}
    findings = [none_right(fix) for fix in fixes if fix.is_needed and not fix.path]
    if write:
        done = put(right, ask, python, read.roots, now)
        findings += [told(fix, done[fix.node]) for fix in right]
    return fixes, diffs, findings


def _pythons(read: _Read, fixes: Sequence[Fix]) -> dict[str, str]:
    """Node -> the Python that its pool names."""
    if read.roots:
        return {fix.node: sys.executable for fix in fixes}
    return {fix.node: next(p.python for p in read.spec.pools if fix.node in p.nodes) for fix in fixes}


def _on_nodes(read: _Read) -> Ask:
    def ask(commands: Mapping[str, Command]) -> Mapping[str, bytes | str]:
        from fairlead.audit.apply import LIMIT_S
        from fairlead.cluster import connect

        here = session()
        assert read.folder is not None
        with connect(read.spec, folder=read.folder.path, note=here.note) as cluster:
            results = cluster.run_each(dict(commands), limit_s=LIMIT_S, keep_bytes=1 << 18)
        return {r.node: r.stdout.data if r.ok else r.error or "no answer" for r in results}

    return ask


# ---- the page --------------------------------------------------------------------------------------------------------


def _page(
    findings: Sequence[Finding],
    shown: Sequence[Finding],
    told: Mapping[str, Mapping[str, Any]],
    diffs: Mapping[str, str],
    *,
    show_all: bool,
) -> str:
    from fairlead.audit.judge import revocation_rows

    paint = paint_for(session().stdout)
    rows = revocation_rows(told)
    windows = table(["NODE", "NIC", "VF AWAY FROM", "TO", "FOR"], rows) if rows else ""
    by_diff: dict[str, list[str]] = {}
    for node, text in diffs.items():
        by_diff.setdefault(text, []).append(node)
    files = [f"on {fold(names)}:\n{text}" for text, names in by_diff.items() if text]
    parts = [windows, findings_text(shown, paint, passes=show_all), *files, counts_line(findings)]
    return "\n\n".join(p for p in parts if p) + f"\nverdict  {verdict_of(findings)}"


def _hints(findings: Sequence[Finding], diffs: Mapping[str, str], *, write: bool) -> list[str]:
    first = next((f for f in findings if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN)), None)
    hints = [f"fairlead explain {first.code}"] if first else []
    return hints + (["fairlead audit --write writes the files above"] if any(diffs.values()) and not write else [])
