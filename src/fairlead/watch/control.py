"""The watch from where fairlead runs: begin it on nodes, look at it, follow its chain, end it.

What a node says of itself is typed and bounded here, once. It is kept running by the floor of services (launch).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Cluster, Command, Result
from fairlead.launch.service import Service, ServiceState, deploy
from fairlead.launch.service import stop as end_service
from fairlead.records.border import Border, Breach, Count, Text, Word, shown
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec
from fairlead.watch.program import look_program, watch_source
from fairlead.watch.settings import settings_for

NAME = "watch"
LIMIT_S = 60.0
STALE_PERIODS = 3.0
Rate = Annotated[float, Meta(ge=0, le=1e15)] | None
Name = Annotated[str, Meta(max_length=128)]
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class PortNow(msgspec.Struct, frozen=True, kw_only=True):
    """An RDMA port: bytes and packets a second; null where a counter does not tell."""

    state: Word = ""
    rate: Word = ""
    link_layer: Word = ""
    rx_bps: Rate = None
    tx_bps: Rate = None
    rx_pps: Rate = None
    tx_pps: Rate = None
    owners: Annotated[list[Name], Meta(max_length=64)] = []
    use: Word = ""
    """quiet, owned, unowned, not-allowed or unknown."""


class LinkNow(msgspec.Struct, frozen=True, kw_only=True):
    """A network link."""

    operstate: Word = ""
    rx_bps: Rate = None
    tx_bps: Rate = None
    rx_pps: Rate = None
    tx_pps: Rate = None
    vf_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    path: Word = ""
    """vf or synthetic, by the kernel's last word."""


class Talker(msgspec.Struct, frozen=True, kw_only=True):
    """Who moves bytes: on ports that are theirs alone, and on ports they share."""

    who: Name
    ports: Annotated[list[Name], Meta(max_length=256)] = []
    alone_bps: Annotated[float, Meta(ge=0)] = 0.0
    shared_bps: Annotated[float, Meta(ge=0)] = 0.0


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that rdma_cm made, as this end has it."""

    dev: Name
    src: Name
    dst: Name
    who: Name
    user: Name = ""
    job: Name = ""
    """The Slurm job, empty where the owner is in none."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A finding as the node tells it."""

    code: Annotated[str, Meta(pattern="^watch/[a-z-]{1,40}$")]
    verdict: Literal["warn", "fail", "unknown"]
    part: Name
    message: Text
    evidence: Annotated[list[tuple[Text, Text]], Meta(max_length=16)] = []
    remedy: Text = ""
    data: dict[Word, Annotated[str, Meta(max_length=256)] | int | float] = {}
    since_ns: Count = 0


class Self(msgspec.Struct, frozen=True, kw_only=True):
    """What the watch itself uses."""

    cpu_s: Annotated[float, Meta(ge=0)] = 0.0
    rss_bytes: Count = 0
    pid: Count = 0


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's watch saw at its last look; with `error`, why there is none."""

    t: Count = 0
    """When, by the node's clock: nanoseconds since 1970."""
    age_s: float = 0.0
    """How long ago that is, by the same clock."""
    folder: Text = ""
    seconds: float = 0.0
    period_s: float = 10.0
    ports: Annotated[dict[Name, PortNow], Meta(max_length=256)] = {}
    links: Annotated[dict[Name, LinkNow], Meta(max_length=1024)] = {}
    talkers: Annotated[list[Talker], Meta(max_length=64)] = []
    num_qps: Count | None = None
    connections: Annotated[list[Connection], Meta(max_length=256)] = []
    findings: Annotated[list[Told], Meta(max_length=4096)] = []
    head: tuple[Annotated[int, Meta(ge=-1)], Hash] = (-1, "0" * 64)
    """Number and hash of the last audit record: note it, and nobody can shorten the chain unseen."""
    lost: Count = 0
    """Audit records that no disk took."""
    self: Self = Self()
    error: Text = ""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """Where a chain breaks."""

    file: Name
    line: Count
    n: int
    why: Text


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of audit records, followed from its first record to its last."""

    num: Count = 0
    first: int = -1
    last: int = -1
    head: Hash = "0" * 64
    torn: Count = 0
    """Bytes of a last record that is being written, or that a kill left."""
    broken: Broken | None = None
    folder: Text = ""
    error: Text = ""


LOOK = Border(Look, "a look at a watch")
VERIFIED = Border(Verified, "a chain that was followed")


def start(
    cluster: Cluster, nodes: NodeSet | str, spec: Spec, *, python: str | Mapping[str, str] = "python3"
) -> list[ServiceState]:
    """Have the watch run on nodes, with the cluster file's settings; what runs so already is left alone."""
    service = Service(name=NAME, source=watch_source(), args=(json.dumps(settings_for(spec), sort_keys=True),))
    return deploy(cluster, nodes, service, python=python)


def stop(cluster: Cluster, nodes: NodeSet | str, *, python: str | Mapping[str, str] = "python3") -> list[ServiceState]:
    """End it. Its audit records stay."""
    return end_service(cluster, nodes, NAME, python=python)


def looked(
    cluster: Cluster, nodes: NodeSet, spec: Spec, *, python: Mapping[str, str], limit_s: float = LIMIT_S
) -> dict[str, Look]:
    """What every node's watch saw last."""
    asked = {"do": "now", "folder": settings_for(spec)["folder"]}
    return {r.node: _answer(r, LOOK, Look) for r in _asked(cluster, nodes, asked, python, limit_s)}


def followed(
    cluster: Cluster, nodes: NodeSet, spec: Spec, *, python: Mapping[str, str], limit_s: float = LIMIT_S
) -> dict[str, Verified]:
    """Every node's chain."""
    asked = {"do": "verify", "folder": settings_for(spec)["folder"]}
    return {r.node: _answer(r, VERIFIED, Verified) for r in _asked(cluster, nodes, asked, python, limit_s)}


def _asked(
    cluster: Cluster, nodes: NodeSet, asked: Mapping[str, Any], python: Mapping[str, str], limit_s: float
) -> list[Result]:
    program, told = look_program(), json.dumps(asked).encode() + b"\n"
    commands = {
        node: Command(argv=program.words(python.get(node, "python3")), stdin=program.stdin + told) for node in nodes
    }
    return cluster.run_each(commands, limit_s=limit_s, keep_bytes=2 << 20)


def _answer(result: Result, border: Border[Any], kind: type[Any]) -> Any:
    if not result.ok:
        words = result.stderr.text.strip().splitlines()
        return kind(error=result.error + (f": {shown(words[-1])}" if words else ""))
    try:
        return border(result.stdout.text)
    except Breach as breach:
        return kind(error=f"it answered with {breach}")


def follow(
    cluster: Cluster, nodes: NodeSet, spec: Spec, draw: Callable[[Mapping[str, Look]], object], *, limit_s: float,
    every_s: float = 1.0,
) -> dict[str, Look]:  # fmt: skip
    """Look on while it changes: `draw` is given what is known, once in `every_s`. Returns the last of it."""
    known: dict[str, Look] = {node: Look(error="waiting for its first answer") for node in nodes}
    first = json.dumps({"do": "follow", "folder": settings_for(spec)["folder"]})
    deadline = time.monotonic() + limit_s
    with cluster.start(look_program(), nodes, limit_s=limit_s, first=first) as group:
        while (left_s := deadline - time.monotonic()) > 0:
            for line in group.read_all(min(every_s, left_s)):
                try:
                    known[line.node] = LOOK(line.text)
                except Breach as breach:
                    known[line.node] = Look(error=f"it answered with {breach}")
            for (node, _), result in group.ended.items():
                if not result.ok:
                    known[node] = Look(error=result.error or "its connection ended")
            draw(known)
            if len(group.ended) == len(nodes):
                break
    return known


# ---- findings --------------------------------------------------------------------------------------------------------


def findings_of(looks: Mapping[str, Look]) -> list[Finding]:
    """What nodes tell, and a finding for each that tells nothing."""
    found = [finding for node, look in looks.items() for finding in _of_node(node, look)]
    return [*found, *_strangers(looks)]


def _strangers(looks: Mapping[str, Look]) -> Iterator[Finding]:
    """Connections between a job and somebody who is not of it, where both ends were seen. An end on a node that is not
    watched is nobody's here: storage, or a node of the same job that was not asked. Two ends of one user are not
    strangers: parts of a heterogeneous job, and jobs that work together, have job numbers of their own.
    """
    fresh = {node: look for node, look in sorted(looks.items()) if abs(look.age_s) <= STALE_PERIODS * look.period_s}
    ends = {(c.src, c.dst): (node, c) for node, look in fresh.items() for c in look.connections}
    for (src, dst), (node, ours) in ends.items():
        there, theirs = ends.get((dst, src), ("", ours))
        if ours.job == theirs.job or (ours.user and ours.user == theirs.user) or (node, src) > (there, dst):
            continue
        yield Finding(
            code="watch/peer-of-another-job",
            verdict=Verdict.WARN,
            subject=Subject(kind="pair", nodes=(node, there), name=f"{src}-{dst}"),
            message=f"{ours.who} on {node} is connected with {theirs.who} on {there}",
            evidence=(Evidence(f"{node}: rdma resource show cm_id", f"{ours.dev} {src} {dst} {ours.who}"),
                      Evidence(f"{there}: rdma resource show cm_id", f"{theirs.dev} {dst} {src} {theirs.who}")),
            remedy=f"squeue -j {ours.job or theirs.job}; on {node}: rdma resource show cm_id",
            data={"jobs": [ours.job, theirs.job]},
        )  # fmt: skip


def _of_node(node: str, look: Look) -> Iterator[Finding]:
    whole = Subject(kind="node", nodes=(node,))
    if look.error:
        yield Finding(
            code="watch/no-look", verdict=Verdict.UNKNOWN, subject=whole, message=look.error,
            remedy=f"fairlead watch start -w {node}",
        )  # fmt: skip
        return
    if look.age_s > STALE_PERIODS * look.period_s or look.age_s < -look.period_s:
        yield Finding(
            code="watch/no-look", verdict=Verdict.UNKNOWN, subject=whole,
            message=f"its last look is {look.age_s:.0f} s old, at a period of {look.period_s:g} s",
            remedy=f"fairlead service ls watch -w {node}",
        )  # fmt: skip
    for told in look.findings:
        yield Finding(
            code=told.code,
            verdict=Verdict(told.verdict),
            subject=Subject(kind="port" if "/" in told.part else "device", nodes=(node,), name=told.part),
            message=told.message,
            evidence=tuple(Evidence(where, value) for where, value in told.evidence),
            remedy=told.remedy,
            data=dict(told.data),
        )
    yield Finding(
        code="watch/runs", verdict=Verdict.PASS, subject=whole,
        message=f"{len(look.ports)} ports watched, {look.head[0] + 1} audit records",
    )  # fmt: skip


def chain_finding(where: str, found: Verified, subject: Subject) -> Finding:
    """How a chain is."""
    if found.error:
        return Finding(code="watch/no-look", verdict=Verdict.UNKNOWN, subject=subject, message=found.error,
                       remedy="fairlead watch start")  # fmt: skip
    if found.broken:
        at = f"{found.broken.file}, line {found.broken.line}"
        return Finding(
            code="watch/chain-broken", verdict=Verdict.FAIL, subject=subject,
            message=f"the chain breaks at record {found.broken.n} ({at}): {found.broken.why}",
            evidence=(Evidence(where, at),), remedy=f"compare {where} with a copy of it; records before that line hold",
            data={"n": found.broken.n, "file": found.broken.file, "line": found.broken.line},
        )  # fmt: skip
    if not found.num:
        return Finding(code="watch/no-look", verdict=Verdict.UNKNOWN, subject=subject, message="no audit record there",
                       remedy="fairlead watch start")  # fmt: skip
    text = f"records {found.first} to {found.last} hold together"
    return Finding(code="watch/chain-whole", verdict=Verdict.PASS, subject=subject, message=text,
                   data={"last": found.last, "head": found.head})  # fmt: skip


def known_looks(looks: Mapping[str, Look]) -> Sequence[tuple[str, Look]]:
    """Those that say something."""
    return [(node, look) for node, look in looks.items() if not look.error]
