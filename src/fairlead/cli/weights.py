"""`fairlead weights`: a model on every node for the price of one download."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from fairlead.base.files import check_place, write_atomic
from fairlead.base.nodeset import NodeSet
from fairlead.base.table import table
from fairlead.base.units import counted, duration, size
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen, spec_of_size
from fairlead.cli.output import Answer, session
from fairlead.errors import FairleadError, UsageError
from fairlead.records.verdict import Verdict, aggregate

if TYPE_CHECKING:
    from fairlead.cluster import Cluster
    from fairlead.spec.model import Spec
    from fairlead.weights.objects import Object
    from fairlead.weights.plan import Plan
    from fairlead.weights.report import SpreadReport
    from fairlead.weights.sources import Source

_WHAT = Group("What", sort_key=10)
_HOW = Group("How", sort_key=20)
_FILES = Group("More files", sort_key=40)
_Include = Annotated[tuple[str, ...], Parameter(name="--include", negative=(), group=_WHAT)]
_Leave = Annotated[tuple[str, ...], Parameter(name="--leave-out", negative=(), group=_WHAT)]
_First = Annotated[tuple[str, ...], Parameter(name="--ready-when", negative=(), group=_WHAT)]
_Compare = Annotated[Literal["record", "size", "filelist"], Parameter(group=_WHAT)]
_FileList = Annotated[Path | None, Parameter(group=_FILES)]
_Flag = Parameter(negative=())


def spread(
    source: str,
    dest: str,
    *,
    include: _Include = (),
    leave_out: _Leave = (),
    ready_when: _First = (),
    compare: _Compare = "record",
    filelist: _FileList = None,
    save_filelist: _FileList = None,
    max_bandwidth: Annotated[str, Parameter(group=_HOW)] = "",
    download_ranks: Annotated[int | None, Parameter(group=_HOW)] = None,
    dry_run: Annotated[bool, Parameter(group=_HOW, negative=())] = False,
    prom: Annotated[Path | None, Parameter(group=_FILES)] = None,
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Put every object below SOURCE into DEST on every node. Each byte leaves the source once, and is verified
    everywhere.

    What is there already is not fetched again; a run that was killed goes on where it was. Exit codes: 0 every node has
    everything; 3 a node is left out, or an object could not be had; 5 try again later.

    Parameters
    ----------
    source
        az://CONTAINER/PREFIX, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://OWNER/MODEL@REVISION, https://HOST/FILE, or
        a folder that the nodes see.
    dest
        A folder, the same path on every node.
    include
        Only objects that match this pattern, such as `*.safetensors`; again for each.
    leave_out
        Not those that match this one.
    ready_when
        Fetch what matches first, and publish each of these files as soon as it is whole: `*.json`. The others appear
        together, at the end.
    compare
        What counts as there already: what an earlier run published (record), also files of the right size (size), or
        those of the right size that stand unchanged in --filelist.
    filelist
        What an earlier run found at the source: lines of NAME, BYTES, TIME with tabs between.
    save_filelist
        Write what was found now in that form.
    max_bandwidth
        Of all nodes together from the source, in bits a second: 200G, 500M.
    download_ranks
        Let only so many nodes ask the source, spread over all.
    dry_run
        Only say what would be done.
    prom
        Write metrics for Prometheus's node exporter to this file.
    """
    for file in filter(None, (prom, save_filelist)):
        check_place(file)
    began = time.monotonic()
    plan_, from_ = _planned(source, include, leave_out, ready_when, compare, filelist)
    list_s = time.monotonic() - began
    if save_filelist is not None:
        from fairlead.weights.objects import tsv

        write_atomic(save_filelist, tsv(sorted(plan_.objects, key=lambda o: o.path)))
    with _reached(nodes, exclude, spec, common) as (cluster, wanted, spec_):
        report = _spread(
            cluster, spec_, wanted, plan_, from_, dest, max_bandwidth, download_ranks, list_s, dry_run=dry_run
        )
    if prom is not None:
        from fairlead.weights.report import metrics

        write_atomic(prom, metrics(report, spec_.cluster.name))
    return _answer(report, "weights-plan" if dry_run else "weights-spread")


def plan(
    source: str,
    dest: str,
    *,
    include: _Include = (),
    leave_out: _Leave = (),
    compare: _Compare = "record",
    filelist: _FileList = None,
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """What a spread would do: objects, bytes, who has what already, room on each node. Nothing is fetched.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    dest
        A folder on every node.
    include
        Only objects that match this pattern; again for each.
    leave_out
        Not those that match this one.
    compare
        What counts as there already, as for `spread`.
    filelist
        What an earlier run found at the source.
    """
    return spread(
        source, dest, include=include, leave_out=leave_out, compare=compare, filelist=filelist, dry_run=True,
        nodes=nodes, exclude=exclude, spec=spec, common=common,
    )  # fmt: skip


def pull(
    source: str,
    dest: Path,
    *,
    include: _Include = (),
    leave_out: _Leave = (),
    ready_when: _First = (),
    compare: _Compare = "record",
    filelist: _FileList = None,
    max_bandwidth: Annotated[str, Parameter(group=_HOW)] = "",
    common: Common = Common(),
) -> Answer:
    """Put every object below SOURCE into a folder of this machine: the same as `spread`, with one node.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    dest
        A folder here.
    include
        Only objects that match this pattern; again for each.
    leave_out
        Not those that match this one.
    ready_when
        Fetch what matches first, and publish each of these files as soon as it is whole.
    compare
        What counts as there already, as for `spread`.
    filelist
        What an earlier run found at the source.
    max_bandwidth
        In bits a second: 10G.
    """
    import sys

    import msgspec

    from fairlead.cluster import connect

    began = time.monotonic()
    plan_, from_ = _planned(source, include, leave_out, ready_when, compare, filelist)
    list_s = time.monotonic() - began
    here = spec_of_size("", NodeSet("localhost"))
    here = msgspec.structs.replace(
        here, pools=tuple(msgspec.structs.replace(p, python=sys.executable) for p in here.pools)
    )
    session().open_folder(common.runs)
    with connect(here, note=session().note) as cluster:
        target = str(dest.absolute())
        report = _spread(cluster, here, NodeSet("localhost"), plan_, from_, target, max_bandwidth, None, list_s)
    return _answer(report, "weights-pull")


def verify(
    dest: str,
    *,
    nodes: Nodes = None,
    exclude: Exclude = "",
    limit: float = 3600.0,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Read every published file on every node again and compare it with what was published.

    A file that differs is fetched anew by the next `spread`. Exit codes: 0 all are as published; 3 some are not.

    Parameters
    ----------
    dest
        The folder on the nodes.
    limit
        The longest a node may take, in seconds.
    """
    from fairlead.records.finding import worst_first
    from fairlead.weights.verify import verify as check

    with _reached(nodes, exclude, spec, common) as (cluster, wanted, spec_):
        pythons = {n: pool.python for pool in spec_.pools for n in pool.nodes}
        findings = worst_first(check(cluster, wanted, dest, pythons, limit_s=limit))
    roots = sorted({str(f.data["root"]) for f in findings if "root" in f.data})
    return Answer(
        schema="fairlead.weights-verify/1",
        verdict=aggregate(f.verdict for f in findings),
        text=lambda: "\n".join(str(f) for f in findings),
        body={"nodes": str(wanted), "dest": dest, "roots": roots, "findings": findings},
    )


def ls(source: str, *, include: _Include = (), leave_out: _Leave = (), common: Common = Common()) -> Answer:
    """What lies at a source.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    include
        Only objects that match this pattern; again for each.
    leave_out
        Not those that match this one.
    """
    from fairlead.weights.objects import wanted
    from fairlead.weights.sources import source_of

    found = wanted(source_of(source).listed(), include, leave_out)
    total = sum(o.size for o in found)
    rows = [[o.path, size(o.size), o.modified or "-", o.tag or "-"] for o in found]
    return Answer(
        schema="fairlead.weights-ls/1",
        text=lambda: "\n".join(
            [table(["NAME", "SIZE", "MODIFIED", "TAG"], rows), f"{counted(len(found), 'object')}, {size(total)}"]
        ),
        body={"source": source.partition("?")[0], "objects": found, "bytes": total},
    )


# ---- what they share -------------------------------------------------------------------------------------------------


def _planned(  # noqa: PLR0917 - as they stand on the command line
    source: str,
    include: tuple[str, ...],
    leave_out: tuple[str, ...],
    first: tuple[str, ...],
    compare: str,
    filelist: Path | None,
) -> tuple[Plan, Source]:
    """What is to be spread. Raises FairleadError: wrong credentials and names are known here, before any node is
    asked.
    """
    from fairlead.weights.objects import wanted
    from fairlead.weights.plan import plan_of
    from fairlead.weights.sources import source_of

    if (compare == "filelist") != (filelist is not None):
        raise UsageError(
            "cli/usage", "--compare filelist and --filelist go together", hint="fairlead weights spread --help"
        )
    from_ = source_of(source)
    objects = wanted(from_.listed(), include, leave_out)
    trusted = _trusted(objects, compare, filelist)
    return plan_of(objects, source=from_.name, first=first, trusted=trusted), from_


def _trusted(objects: list[Object], compare: str, filelist: Path | None) -> frozenset[str]:
    """Files that the right size is enough for."""
    from fairlead.weights.objects import read_tsv

    if compare == "size":
        return frozenset(o.path for o in objects)
    if filelist is None:
        return frozenset()
    before = {(o.path, o.size, o.modified) for o in read_tsv(filelist)}
    return frozenset(o.path for o in objects if o.modified and (o.path, o.size, o.modified) in before)


@contextmanager
def _reached(
    nodes: str | None, exclude: str, spec: Path | None, common: Common
) -> Iterator[tuple[Cluster, NodeSet, Spec]]:
    """(the cluster, the nodes asked for, the cluster file)."""
    from fairlead.cluster import connect
    from fairlead.records.codec import builtins
    from fairlead.spec.loader import read

    loaded = read(spec, flags={"runs.dir": common.runs}, or_lab=True)
    wanted = chosen(nodes, exclude, loaded.spec.nodes)
    here = session()
    folder = here.open_folder(common.runs, from_file=loaded.spec.runs.dir, keep=loaded.spec.runs.keep)
    folder.write("spec.toml", loaded.text)
    with connect(
        loaded.spec,
        folder=folder.path,
        recorder=lambda record: folder.append("commands.jsonl", builtins(record)),
        note=here.note,
    ) as cluster:
        yield cluster, wanted, loaded.spec


def _addresses(cluster: Cluster, spec: Spec, wanted: NodeSet) -> Mapping[str, str]:
    """Where the others reach each node. Raises FairleadError where one cannot be reached."""
    if len(wanted) == 1:
        return {wanted[0]: "127.0.0.1"}  # nobody takes from it
    from fairlead.weights.places import addresses

    return addresses(cluster, spec, wanted)


def _spread(  # noqa: PLR0917
    cluster: Cluster,
    spec: Spec,
    wanted: NodeSet,
    plan_: Plan,
    source: Source,
    dest: str,
    max_bandwidth: str,
    ranks: int | None,
    list_s: float,
    *,
    dry_run: bool = False,
) -> SpreadReport:
    from fairlead.weights.report import report_of
    from fairlead.weights.spread import Options, Spread
    from fairlead.weights.table import Weights

    if not dest.startswith("/"):
        raise UsageError(
            "cli/usage", f"`{dest}` is no absolute path: nodes have no current folder", hint="/mnt/nvme/model"
        )
    own = spec.table(Weights)
    options = Options(
        dest=dest,
        connections=own.connections,
        streams=own.streams,
        fetching=own.fetching if ranks is None else ranks,
        max_bandwidth=_bits(max_bandwidth) / 8,
        give_up_s=own.give_up_s,
        silent_s=own.silent_s,
        slow_share=own.slow_share,
        dry_run=dry_run,
    )
    out = Spread(cluster, plan_, source, options, _addresses(cluster, spec, wanted), progress=session().progress).run()
    out.took_s = {"list": list_s, **out.took_s}
    return report_of(out)


def _bits(text: str) -> float:
    """Bits a second of `200G`, `500M`, `1e9`; 0 for nothing."""
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1:], 1.0)
    number = text[:-1] if text[-1:] in "kMGT" else text
    try:
        value = float(number or 0) * factor
    except ValueError:
        value = -1.0
    if value < 0 or (text and not value):
        raise UsageError("cli/usage", f"`{text}` is no rate", hint="--max-bandwidth 200G: bits a second")
    return value


def _answer(report: SpreadReport, schema: str) -> Answer:
    from fairlead.weights.report import six_lines

    out = report.outcome
    if not report.findings and not out.is_dry:
        raise FairleadError("weights/node-lost", "no node could take part", hint="fairlead exec -- true")

    def page() -> str:
        shown = [str(f) for f in report.findings if f.verdict is not Verdict.PASS or f.code == "weights/spread"]
        rooms = []
        if out.is_dry:
            rows = [
                [n.name, f"{sum(n.has)} of {len(out.plan.chunks)}", size(n.need_bytes), size(n.free_bytes)]
                for n in out.nodes
            ]
            what = out.plan
            head = (
                f"{counted(len(what.objects), 'file')}, {size(what.total_bytes)}, in chunks of {size(what.chunk_bytes)}"
            )
            rooms = [head, table(["NODE", "CHUNKS THERE", "NEEDS", "FREE"], rows)]
        return "\n".join([*rooms, *shown, *([] if out.is_dry else [six_lines(out)])])

    took = report.took_s.get("spread")
    hints = [f"fairlead explain {report.culprit.code}"] if report.culprit else []
    return Answer(
        schema=f"fairlead.{schema}/1",
        verdict=report.verdict,
        text=page,
        body={**report.body(), "took": duration(took) if took else ""},
        hints=hints,
    )
