"""`fairlead fabric perf`: what MRC over sockets carries between two nodes, watched while it runs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from fairlead.base.nodeset import is_name
from fairlead.base.program import Program
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.fabric_ends import Ends
from fairlead.cli.output import Answer
from fairlead.errors import FabricError, MissingTool, UsageError
from fairlead.records.verdict import Verdict

SLACK_S = 120.0
PARTS = ("fairlead.cluster.channel", "fairlead.cli.fabric_times", "fairlead.cli.fabric_onnode")
_MAX_BYTES = 1 << 28
MAX_SIZES = 64


def perf(
    source: str,
    target: str,
    /,
    *,
    duration: float = 10.0,
    interval: float = 1.0,
    message: int = 1 << 20,
    sizes: str = "",
    depth: int = 8,
    both: Annotated[bool, Parameter(negative=())] = False,
    sealed: Annotated[bool, Parameter(negative=())] = False,
    gso: Annotated[bool, Parameter(negative=())] = False,
    trim: Annotated[bool, Parameter(negative=())] = False,
    histogram: Annotated[bool, Parameter(negative=())] = False,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Write messages from one node into the memory of another over all planes, and show what arrives as it does.

    Each interval is a line: goodput, latency from post to completion, packets sent again. The tables have the columns
    of perftest; a latency is that of a whole Write, answer included, where ib_write_lat tells half a round trip of
    two. At the end what the target holds is compared. The nodes' Python must have fairlead[fabric] installed (`python`
    of the pool).

    Parameters
    ----------
    source
        The node that writes.
    target
        The node that is written to.
    duration
        Seconds; of several sizes all together.
    interval
        Seconds between lines.
    message
        Bytes of a message; 8, with --depth 1, for latency.
    sizes
        Several sizes instead, one after the other: `64,4096,65536`, or `all` for the powers of two from 2 to 8388608.
    depth
        Messages under way at once.
    both
        Both nodes write.
    sealed
        Authenticate every packet.
    gso
        Segmentation offload: spray by batches of packets, which the kernel takes as one. Not over steered paths.
    trim
        Let switches trim: a packet that finds too long a queue loses its payload, which is asked for again at once.
        For fabrics whose switches do (`trim_kib` of a lab): a silent loss then counts as a fault of the path.
    histogram
        Show how many messages took how long.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    from fairlead.cli.probe import from_nodes
    from fairlead.cluster import connect
    from fairlead.probe.addresses import book_of

    asked = sizes_of(sizes) or [message]
    check(source, target, duration, interval, asked, depth, sealed=sealed, trim=trim)
    facts, silent, cluster_file, folder = from_nodes(f"{source},{target}", "", None, spec, common, imds=False)
    if silent:
        raise FabricError("fabric/no-place", silent[0].message, hint=f"fairlead probe -w {source},{target}")
    wish = wish_of(
        duration=duration, interval=interval, sizes=asked, depth=depth, both=both, sealed=sealed, gso=gso, trim=trim
    )
    ends = Ends(source, target, book_of(facts), wish)
    program = Program.of("fairlead-perf", *PARTS, call="main()", needs_packages=True)
    limit_s = duration + SLACK_S
    with connect(cluster_file) as cluster, cluster.start(program, f"{source},{target}", limit_s=limit_s) as group:
        try:
            ends.run(group)
        except MissingTool as exc:  # the node cannot be judged: no fault of this program's
            body = {"missing": {"code": exc.code, "message": exc.message}}
            schema = "fairlead.fabric-perf/1"
            return Answer(schema=schema, verdict=Verdict.UNKNOWN, text=exc.message, body=body, hints=[exc.hint])
    assert folder is not None
    folder.write("intervals.jsonl", "".join(json.dumps(line) + "\n" for line in ends.lines))
    folder.write("metrics.prom", ends.metrics_text())
    return ends.answer(with_histogram=histogram)


def wish_of(
    *,
    duration: float,
    interval: float,
    sizes: Sequence[int],
    depth: int,
    both: bool = False,
    sealed: bool = False,
    gso: bool = False,
    trim: bool = False,
    tape: int = 0,
) -> dict[str, Any]:
    """What both ends are told; `tape` is how many datagrams each keeps."""
    work = {"duration_s": duration, "interval_s": interval, "sizes": list(sizes), "depth": depth, "both": both}
    return {**work, "sealed": sealed, "gso": gso, "trim": trim, "tape": tape, "token": secrets.token_hex(32)}


def sizes_of(text: str) -> list[int]:
    """The sizes in a list, smallest first.

    >>> sizes_of("4096,64")
    [64, 4096]
    >>> sizes_of("all")[-1]
    8388608
    """
    if text == "all":
        return [1 << i for i in range(1, 24)]
    try:
        return sorted({int(word) for word in text.split(",")} if text else ())
    except ValueError as exc:
        raise UsageError(
            "cli/usage", "--sizes must be numbers of bytes with commas between them, or `all`", hint="--sizes 64,4096"
        ) from exc


def check(  # noqa: PLR0917
    source: str,
    target: str,
    duration: float,
    interval: float,
    sizes: Sequence[int],
    depth: int,
    *,
    sealed: bool = False,
    trim: bool = False,
) -> None:
    """UsageError for what no measurement can be."""
    for ok, what in (
        (is_name(source) and is_name(target), "source and target are one node each"),
        (source != target, "source and target must be two nodes"),
        (0 < duration <= 86_400, "--duration must be above 0 and at most a day"),
        (0.05 <= interval <= 3600, "--interval must be 0.05 to 3600"),
        (sizes[0] >= 1, "a message has one byte or more: --message, --sizes"),
        (sizes[-1] * depth <= _MAX_BYTES, f"--message times --depth must be at most {_MAX_BYTES} bytes"),
        (len(sizes) <= MAX_SIZES, f"--sizes has at most {MAX_SIZES}"),
        (1 <= depth <= 64, "--depth must be 1 to 64"),
        (not (sealed and trim), "--sealed and --trim exclude each other: a trimmed packet has lost its authentication"),
    ):
        if not ok:
            raise UsageError("cli/usage", what, hint="fairlead fabric perf --help")
