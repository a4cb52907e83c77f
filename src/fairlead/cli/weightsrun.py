"""What the verbs of `fairlead weights` share: the objects that are wanted, the nodes, one spread, its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.base.nodeset import NodeSet
from fairlead.base.table import table
from fairlead.base.units import counted, duration, size
from fairlead.cli.common import Common, chosen
from fairlead.cli.output import Answer, session
from fairlead.errors import FairleadError, UsageError
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.cluster import Cluster
    from fairlead.spec.model import Spec
    from fairlead.weights.objects import Object
    from fairlead.weights.plan import Plan
    from fairlead.weights.report import SpreadReport
    from fairlead.weights.sources import Source


def planned(  # noqa: PLR0917 - as they stand on the command line
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
    from fairlead.weights.manifest import MAX_BYTES, NAME, read_manifest
    from fairlead.weights.objects import wanted
    from fairlead.weights.plan import plan_of
    from fairlead.weights.sources import read_whole, source_of

    if (compare == "filelist") != (filelist is not None):
        raise UsageError(
            "cli/usage", "--compare filelist and --filelist go together", hint="fairlead weights spread --help"
        )
    from_ = source_of(source)
    listed = from_.listed()
    objects = wanted(listed, include, leave_out)
    trusted = _trusted(objects, compare, filelist)
    has_manifest = any(o.path == NAME for o in wanted(listed, (), leave_out))
    manifest = read_manifest(read_whole(from_, NAME, MAX_BYTES), from_.name) if has_manifest else None
    return plan_of(objects, source=from_.name, first=first, trusted=trusted, manifest=manifest,
                   again=compare == "none"), from_  # fmt: skip


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
def reached(
    nodes: str | None, exclude: str, spec: Path | None, common: Common
) -> Iterator[tuple[Cluster, NodeSet, Spec]]:
    """(the cluster, the nodes asked for, the cluster file)."""
    from fairlead.cluster import connect
    from fairlead.records.codec import builtins
    from fairlead.spec.loader import read

    loaded = read(spec, flags={"runs.dir": common.runs}, or_lab=True)
    nodes_ = chosen(nodes, exclude, loaded.spec.nodes)
    here = session()
    folder = here.open_folder(common.runs, from_file=loaded.spec.runs.dir, keep=loaded.spec.runs.keep)
    folder.write("spec.toml", loaded.text)
    with connect(
        loaded.spec,
        folder=folder.path,
        recorder=lambda record: folder.append("commands.jsonl", builtins(record)),
        note=here.note,
    ) as cluster:
        yield cluster, nodes_, loaded.spec


@dataclass(frozen=True, kw_only=True)
class How:
    """What the command line says of the way."""

    max_bandwidth: str = ""
    download_ranks: int | None = None
    shard_size: str = ""
    file_shards: int = 0
    verify: bool = False
    dry_run: bool = False


def spread_over(  # noqa: PLR0917
    cluster: Cluster, spec: Spec, nodes: NodeSet, plan_: Plan, source: Source, dest: str, list_s: float, how: How
) -> SpreadReport:
    """One spread, or a dry run of one."""
    from fairlead.weights.outcome import Options
    from fairlead.weights.report import report_of
    from fairlead.weights.spread import Spread
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
        fetching=own.fetching if how.download_ranks is None else how.download_ranks,
        max_bandwidth=_bits(how.max_bandwidth) / 8,
        give_up_s=own.give_up_s,
        silent_s=own.silent_s,
        slow_share=own.slow_share,
        dry_run=how.dry_run,
        verify=how.verify,
        shard_bytes=_shard_bytes(plan_, how),
    )
    addresses, links = _places(cluster, spec, nodes)
    out = Spread(cluster, plan_, source, options, addresses, progress=session().progress).run()
    out.took_s = {"list": list_s, **out.took_s}
    if how.dry_run:
        from fairlead.weights.forecast import forecast

        left, from_origin = out.left_bytes
        out.forecast = forecast(
            plan_, num_nodes=len(nodes), left_bytes=left, from_origin_bytes=from_origin, said=own,
            max_bandwidth=options.max_bandwidth, links=links,
        )  # fmt: skip
    return report_of(out)


def _places(cluster: Cluster, spec: Spec, nodes: NodeSet) -> tuple[Mapping[str, str], Mapping[str, tuple[float, str]]]:
    """(where the others reach each node, how fast that is). Raises FairleadError where one cannot be reached."""
    if len(nodes) == 1:
        return {nodes[0]: "127.0.0.1"}, {}  # nobody takes from it
    from fairlead.weights.places import reach

    found = reach(cluster, spec, nodes)
    return found.addresses, found.links


def _shard_bytes(plan_: Plan, how: How) -> int:
    """What a node is given to fetch at a time: what was asked for, in whole chunks."""
    if how.shard_size and how.file_shards:
        raise UsageError("cli/usage", "--shard-size and --file-shards exclude each other", hint="--shard-size 2G")
    if how.file_shards:
        return -(-max(o.size for o in plan_.objects) // how.file_shards)
    return int(_amount(how.shard_size, 1024, "--shard-size 2G: bytes, K, M, G, T of 1024"))


def _bits(text: str) -> float:
    """Bits a second of `200G`, `500M`, `1e9`; 0 for nothing."""
    return _amount(text, 1000, "--max-bandwidth 200G: bits a second")


def _amount(text: str, step: int, hint: str) -> float:
    """A number with or without k, M, G, T behind it; 0 for nothing. Raises UsageError."""
    power = "kMGT".find({"K": "k"}.get(text[-1:], text[-1:])) + 1 if text else 0
    try:
        value: float = float((text[:-1] if power else text) or 0) * float(step) ** power
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e18 or (text and not value):
        raise UsageError("cli/usage", f"`{text}` is no such amount", hint=hint)
    return value


def answer(report: SpreadReport, schema: str) -> Answer:
    """A report as the answer of a verb."""
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
            told = [out.forecast.text()] if out.forecast is not None else []
            rooms = [head, table(["NODE", "CHUNKS THERE", "NEEDS", "FREE"], rows), *told]
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
