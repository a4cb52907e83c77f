"""What `fairlead.weights` offers to programs, and what the verbs call: choose, plan, spread, pull, verify, ls.

It knows sources, clusters and the numbers of a spread; nothing of a command line, a terminal or a run folder. Bytes are
bytes, rates bits a second, times seconds. What is wrong from the start is raised as a FairleadError, with a code and
what to do; what becomes of a node is a finding in what is returned.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Cluster, connect
from fairlead.errors import UsageError
from fairlead.records.finding import Finding, worst_first
from fairlead.spec.model import Access, Fabric, Pool, Spec
from fairlead.weights import checked
from fairlead.weights.forecast import forecast
from fairlead.weights.held import SCHEME, held_by, is_node
from fairlead.weights.manifest import MAX_BYTES, NAME, Manifest, read_manifest
from fairlead.weights.mpi.control import Ranks
from fairlead.weights.objects import Object, read_tsv, wanted
from fairlead.weights.outcome import Options
from fairlead.weights.places import Reach, reach
from fairlead.weights.planned import Plan, plan_of
from fairlead.weights.report import SpreadReport, report_of
from fairlead.weights.sources import Source, read_whole, source_of
from fairlead.weights.spreading import Spread
from fairlead.weights.table import Weights

Progress = Callable[[str, int, int, str], None]
Transport = Literal["tcp", "mrc", "mpi"]
Compare = Literal["record", "size", "filelist", "none"]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The objects that are wanted from a source, in their order."""

    plan: Plan
    source: Source
    list_s: float
    """Seconds that listing took."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How to spread; all else stands in `[weights]` of the cluster file."""

    max_bandwidth_bps: float = 0.0
    """Bits a second from the source, of all nodes together; 0: as many as there are."""
    fetching: int | None = None
    """Nodes that ask the source; None: what the cluster file says, 0: all."""
    shard_bytes: int = 0
    """Bytes that one node is given to fetch at a time; 0: twice what its requests ask for."""
    file_shards: int = 0
    """The same as a number of parts of the largest file; 0: not said so."""
    transport: Transport | None = None
    """By what chunks go from node to node; None: what the cluster file says."""
    stream_to: str = ""
    """A command on each node that gets the files as a tar archive on its standard input, while they still come."""
    verify: bool = False
    """Before anything is published, compare every file with what the store itself says of it."""


def choose(
    source: str,
    *,
    include: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    ready_when: Sequence[str] = (),
    compare: Compare = "record",
    filelist: Path | None = None,
    cluster: Cluster | Ranks | None = None,
    spec: Spec | None = None,
) -> Chosen:
    """List a source and say what of it is wanted; patterns are the shell's. No node is asked, but for a source
    node://NODE/FOLDER, which takes `cluster` and `spec`.

    FairleadError within seconds for wrong credentials, a source that is not there, nothing that matches, and names that
    cannot become files.
    """
    if (compare == "filelist") != (filelist is not None):
        raise UsageError(
            "cli/usage", "--compare filelist and --filelist go together", hint="fairlead weights spread --help"
        )
    began = time.monotonic()
    if is_node(source) and isinstance(cluster, Cluster) and spec is not None:
        if compare == "none":
            text = "what is taken from a node must count as there on that node"
            raise UsageError("cli/usage", text, hint="without --compare none")
        manifest: Manifest | None
        from_, listed, manifest = held_by(cluster, spec, source)
    else:
        from_ = source_of(source)
        listed = from_.listed()
        has_manifest = any(o.path == NAME for o in wanted(listed, (), leave_out))
        manifest = read_manifest(read_whole(from_, NAME, MAX_BYTES), from_.name) if has_manifest else None
    objects = wanted(listed, include, leave_out)
    trusted = _trusted(objects, compare, filelist)
    made = plan_of(
        objects, source=from_.name, first=ready_when, trusted=trusted, manifest=manifest, again=compare == "none"
    )
    if len(made.chunks) > 1:
        from_.ranged()
    return Chosen(plan=made, source=from_, list_s=time.monotonic() - began)


def ls(source: str, *, include: Sequence[str] = (), leave_out: Sequence[str] = ()) -> list[Object]:
    """What lies at a source, by name, with sizes in bytes. FairleadError as for `choose`."""
    return wanted(source_of(source).listed(), include, leave_out)


def plan(
    cluster: Cluster | Ranks,
    spec: Spec,
    source: str | Chosen,
    dest: str,
    *,
    nodes: NodeSet | None = None,
    how: How = How(),
    progress: Progress = lambda *_: None,
) -> SpreadReport:
    """What `spread` would do: `.outcome.nodes` with what each has, needs and has free, `.outcome.forecast` in seconds.

    Every node is asked, nothing is fetched or written. FairleadError as for `spread`.
    """
    return _run(cluster, spec, source, dest, nodes, how, progress, is_dry=True)


def spread(
    cluster: Cluster | Ranks,
    spec: Spec,
    source: str | Chosen,
    dest: str,
    *,
    nodes: NodeSet | None = None,
    how: How = How(),
    progress: Progress = lambda *_: None,
) -> SpreadReport:
    """Put every object below `source` into `dest`, an absolute path, on every node (or on `nodes`).

    Each byte leaves the source once and is verified everywhere. Returns when every node that lives has published all of
    it, or cannot: `.verdict`, `.findings` (each node that is left out, each file that could not be had), `.totals`.
    `progress` is told what is counted, how far it is, of how much, and who is behind. FairleadError as for `choose`,
    and where a node has no address that the others reach.
    """
    return _run(cluster, spec, source, dest, nodes, how, progress, is_dry=False)


def pull(source: str | Chosen, dest: Path, *, how: How = How(), progress: Progress = lambda *_: None) -> SpreadReport:
    """The same for a folder of this machine alone, in this program's Python. FairleadError as for `choose`."""
    pool = Pool(name="all", size="other", nodes=NodeSet("localhost"), python=sys.executable)
    here = Spec(schema=1, pools=(pool,), fabric=Fabric(link="ethernet", rdma="none"), access=Access(via="local"))
    chosen = source if isinstance(source, Chosen) else choose(source)
    with connect(here) as cluster:
        return _run(cluster, here, chosen, str(dest.absolute()), None, how, progress, is_dry=False)


def verify(
    cluster: Cluster, spec: Spec, dest: str, *, nodes: NodeSet | None = None, limit_s: float = 3600.0
) -> list[Finding]:
    """Read every file that was published in `dest` again, on every node: a finding for each, worst first.

    A node that does not answer within `limit_s` is a finding of verdict unknown.
    """
    pythons = {n: pool.python for pool in spec.pools for n in pool.nodes}
    return worst_first(checked.verify(cluster, nodes or spec.nodes, dest, pythons, limit_s=limit_s))


def _run(  # noqa: PLR0917
    cluster: Cluster | Ranks,
    spec: Spec,
    source: str | Chosen,
    dest: str,
    nodes: NodeSet | None,
    how: How,
    progress: Progress,
    *,
    is_dry: bool,
) -> SpreadReport:
    if not dest.startswith("/"):
        text = f"`{dest}` is no absolute path: nodes have no current folder"
        raise UsageError("cli/usage", text, hint="/mnt/nvme/model")
    chosen = source if isinstance(source, Chosen) else choose(source, cluster=cluster, spec=spec)
    own, wanted_ = spec.table(Weights), nodes or spec.nodes
    if (at := chosen.source.node) and (at not in wanted_ or chosen.source.name != f"{SCHEME}{at}{dest.rstrip('/')}"):
        text = f"{at} gives what it has in a folder to the same folder of others, and takes part itself"
        raise UsageError("weights/source", text, hint=f"fairlead weights spread {chosen.source.name} FOLDER")
    options = _options(own, dest, how, chosen.plan, is_dry=is_dry)

    def where() -> Reach:
        if isinstance(cluster, Ranks):
            return Reach({n: str(rank) for rank, n in enumerate(cluster.names)}, {}, {})
        return _places(cluster, spec, wanted_)

    run = Spread(cluster, chosen.plan, chosen.source, options, nodes=wanted_, where=where, progress=progress)
    out = run.run()
    out.took_s = {"list": chosen.list_s, **out.took_s}
    if is_dry:
        left, from_origin = out.left_bytes
        out.forecast = forecast(
            chosen.plan, num_nodes=len(wanted_), left_bytes=left, from_origin_bytes=from_origin, said=own,
            max_bandwidth=options.max_bandwidth, links=run.reach.links,
        )  # fmt: skip
    return report_of(out)


def _options(own: Weights, dest: str, how: How, plan_: Plan, *, is_dry: bool) -> Options:
    """What the table of the cluster file says, and what was asked for."""
    if how.shard_bytes and how.file_shards:
        raise UsageError("cli/usage", "--shard-size and --file-shards exclude each other", hint="--shard-size 2G")
    if min(how.fetching or 0, how.file_shards, how.shard_bytes) < 0:
        text = "a number of nodes, of parts or of bytes is not negative"
        raise UsageError("cli/usage", text, hint="--download-ranks 8, --file-shards 4, --shard-size 2G")
    largest = max(o.size for o in plan_.objects)
    return Options(
        dest=dest,
        connections=own.connections,
        streams=own.streams,
        transport=how.transport or own.transport,
        fetching=own.fetching if how.fetching is None else how.fetching,
        max_bandwidth=how.max_bandwidth_bps / 8,
        give_up_s=own.give_up_s,
        silent_s=own.silent_s,
        slow_share=own.slow_share,
        dry_run=is_dry,
        verify=how.verify,
        stream_to=how.stream_to,
        shard_bytes=-(-largest // how.file_shards) if how.file_shards else how.shard_bytes,
    )


def _trusted(objects: list[Object], compare: str, filelist: Path | None) -> frozenset[str]:
    """Files that the right size is enough for."""
    if compare == "size":
        return frozenset(o.path for o in objects)
    if filelist is None:
        return frozenset()
    before = {(o.path, o.size, o.modified) for o in read_tsv(filelist)}
    return frozenset(o.path for o in objects if o.modified and (o.path, o.size, o.modified) in before)


def _places(cluster: Cluster, spec: Spec, nodes: NodeSet) -> Reach:
    """Where the others reach each node. Raises FairleadError where one cannot be reached."""
    if len(nodes) == 1:
        return Reach({nodes[0]: "127.0.0.1"}, {}, {})  # nobody takes from it
    return reach(cluster, spec, nodes)
