"""What the verbs of `fairlead weights` share: the nodes, words of the command line as numbers, the answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fairlead.base.nodeset import NodeSet
from fairlead.base.table import table
from fairlead.base.units import counted, duration, size
from fairlead.cli.common import Common, chosen, spec_of_size
from fairlead.cli.output import Answer, session
from fairlead.errors import FairleadError, UsageError
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.cluster import Cluster
    from fairlead.records.finding import Finding
    from fairlead.spec.model import Spec
    from fairlead.weights import How
    from fairlead.weights.mpi.control import Ranks
    from fairlead.weights.report import SpreadReport


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


def is_control() -> bool:
    """Whether a rank of an MPI job started this command, as the control side."""
    from fairlead.weights.mpi.rank import FD

    return FD in os.environ


@contextmanager
def by_ranks(
    nodes: str | None, exclude: str, spec: Path | None, common: Common
) -> Iterator[tuple[Ranks, NodeSet, Spec]]:
    """The same as `reached`, where the nodes are ranks of an MPI job; of a cluster file only [weights] counts."""
    from fairlead.spec.loader import read
    from fairlead.weights.mpi.control import Ranks

    if nodes is not None or exclude:
        raise UsageError("cli/usage", "with --transport mpi the ranks are the nodes", hint="leave -w and -x out")
    ranks = Ranks()
    names = NodeSet(ranks.names)
    loaded = read(spec) if spec is not None else None
    session().open_folder(common.runs)
    yield ranks, names, loaded.spec if loaded is not None else spec_of_size("", names)


def how_of(
    max_bandwidth: str = "",
    download_ranks: int | None = None,
    shard_size: str = "",
    file_shards: int = 0,
    transport: Literal["tcp", "mrc", "mpi"] | None = None,
    *,
    verify: bool = False,
    stream_to: str = "",
) -> How:
    """What the command line says of the way. Raises UsageError."""
    from fairlead.weights import How

    return How(
        max_bandwidth_bps=_amount(max_bandwidth, 1000, "--max-bandwidth 200G: bits a second"),
        fetching=download_ranks,
        shard_bytes=int(_amount(shard_size, 1024, "--shard-size 2G: bytes, K, M, G, T of 1024")),
        file_shards=file_shards,
        transport=transport,
        verify=verify,
        stream_to=stream_to,
    )


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


def to_do(findings: Sequence[Finding]) -> list[str]:
    """What to do next about what failed, each thing once; then where more is told."""
    bad = [f for f in findings if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN)]
    remedies = list(dict.fromkeys(f.remedy for f in bad if f.remedy))[:3]
    return [*remedies, *(f"fairlead explain {code}" for code in [f.code for f in bad][:1])]


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
    hints = to_do(report.findings)
    return Answer(
        schema=f"fairlead.{schema}/1",
        verdict=report.verdict,
        text=page,
        body={**report.body(), "took": duration(took) if took else ""},
        hints=hints,
    )
