"""A training run on several nodes: ranks are started as any stage's are, listened to, and who ends the run is named.

    outcome = train_on(cluster, spec, nodes, Asked(config=Path("train.toml").absolute(), resume=False))

Must not know: torch; it runs where fairlead is typed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base.nodeset import NodeSet, fold
from fairlead.checks import gpus_of
from fairlead.cluster import Cluster, Command
from fairlead.cluster.table import Slurm
from fairlead.errors import ClusterError, Exit, TrainError
from fairlead.launch import CannotStart, CutOff, Ended, Event, Lied, Over, Patience, RankJob, Said, launch
from fairlead.launch.starts import explained
from fairlead.launch.table import Launch, own_patience
from fairlead.probe import KEEP_BYTES, LIMIT_S, NodeAnswer, arguments, program, sort_answers
from fairlead.probe.addresses import book_of
from fairlead.records.facts import NodeFacts
from fairlead.spec.model import Spec

PLANNED_S = 600.0
"""What a step, a snapshot or the reading of first weights may take without a word; twice that is a hang. `[launch]
step_s` says otherwise. A rank that dies is noticed at once."""
RUN_S = 30 * 86_400.0
"""A run may take a month at a time: what a rank may say in all is enough for two."""
_CODE = re.compile(r"[a-z]+/[a-z-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the ranks shall do."""

    config: Path
    """Absolute, and the same on every node."""
    resume: bool
    steps: int | None = None
    cpus: bool = False
    """Ranks compute on CPUs: one a node."""
    threads: int = 0
    """Of a rank on CPUs; 0: the node's processors."""
    host: str = ""
    """Where rank 0 listens; empty: the address that the probe finds."""


@dataclass(slots=True)
class TrainRun:
    """What came of it."""

    begun: int = 0
    """Steps done before."""
    of: int = 0
    done: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)
    """What rank 0 said last of a step: `steps`, `loss`, `tokens_per_s`."""
    is_whole: bool = False
    """Rank 0 came to the end."""


def train_on(
    cluster: Cluster,
    spec: Spec,
    nodes: NodeSet,
    asked: Asked,
    progress: Callable[[TrainRun], object] = lambda _: None,
    heard: Callable[[Event], object] = lambda _: None,
) -> TrainRun:
    """Start a rank a GPU (or a node) and follow it to the end. Raises TrainError where a rank is lost or refuses."""
    facts = [] if asked.host and asked.cpus else probed(cluster, spec, nodes)
    job = job_of(spec, nodes, asked, facts)
    outcome, events = TrainRun(), []
    with launch(cluster, job) as ranks:
        for event in ranks:
            heard(event)
            if isinstance(event, Said) and event.what in _FOLLOWED:
                follow(outcome, event)
                progress(outcome)
            elif not isinstance(event, Said) or event.what in ("refused", "error", "start"):
                events.append(event)
    if not outcome.is_whole:
        raise why_ended(events, outcome, nodes, job.per_node)
    return outcome


_FOLLOWED = ("opened", "stepped", "finished")


def follow(outcome: TrainRun, said: Said) -> None:
    """What rank 0 says of the run; others do not speak of it."""
    if said.rank:
        return
    fields = said.fields
    if said.what == "opened":
        outcome.begun = outcome.done = _number(fields.get("steps"))
        outcome.of = _number(fields.get("of"))
    elif said.what == "stepped":
        outcome.last, outcome.done = fields, _number(fields.get("steps"))
    elif said.what == "finished":
        outcome.is_whole = True


def why_ended(events: Iterable[Event], outcome: TrainRun, nodes: NodeSet, per_node: int) -> TrainError:
    """The error that names who ended the run: who could not begin, refused, or died first; not who missed them."""
    ends: list[Ended] = []
    refused: list[Said] = []
    errors: dict[int, Said] = {}
    cannot: list[CannotStart] = []
    last: Over | None = None
    cut = ""
    names: dict[int, str] = {}
    for event in events:
        match event:
            case Said(what="refused"):
                refused.append(event)
            case Said(what="error"):
                errors.setdefault(event.rank, event)
            case Said():
                names[event.rank] = event.node
            case CannotStart():
                cannot.append(event)
            case Ended() if not event.is_well and event.state != "stopped":
                ends.append(event)
            case CutOff():
                cut = cut or f"the scheduler ended the step: {event.why} {event.nodes}".strip()
            case Lied():
                cut = cut or f"rank {event.rank} on {event.node} sent {event.what}"
            case Over():
                last = event

    def at(rank: int) -> str:
        return f"rank {rank} on {names.get(rank) or nodes[min(rank // per_node, len(nodes) - 1)]}"

    if cannot:
        first = cannot[0]
        where = fold({event.node for event in cannot})
        known = explained(first.why, python="python3", nodes=where)
        code = "train/no-package" if first.why == "no-fairlead" else "train/rank-lost"
        return TrainError(code, f"{known.means} on {where}: {first.text}", hint=known.remedy)
    if refused:
        fields = refused[0].fields
        code = str(fields.get("code", ""))
        code = code if _CODE.fullmatch(code) else "train/rank-lost"
        text = f"{at(refused[0].rank)}: {str(fields.get('text', ''))[:500]}"
        return TrainError(code, text, hint=str(fields.get("hint", ""))[:500])
    missed = errors.keys()
    died = min((end for end in ends if end.rank not in missed), key=lambda end: end.at_s, default=None)
    if died is not None:
        who, what = died.node, f"{at(died.rank)} ended: {died.error or died.state}"
    elif cut:
        who, what = "", cut
    elif last is not None and last.ranks:
        who, what = names.get(last.ranks[0], ""), f"{at(last.ranks[0])}: {last.why}"
    elif errors:
        said = min(errors.values(), key=lambda one: one.at_s)
        who, what = said.node, f"{at(said.rank)}: {str(said.fields.get('text', ''))[:500]}"
    else:
        who, what = "", (last.why if last is not None else "") or "the ranks ended before the run did"
    left_out = f" -x {who}" if who and len(nodes) > 1 else ""
    return TrainError(
        "train/rank-lost",
        f"{what}; {outcome.done} of {outcome.of or '?'} steps are known to be done",
        hint=f"fairlead train resume CONFIG{left_out}: it goes on from what was kept last",
        exit=Exit.RETRY,
    )


def probed(cluster: Cluster, spec: Spec, nodes: NodeSet) -> list[NodeFacts]:
    """What the nodes say of themselves: their addresses and GPUs are wanted."""
    probe, words = program(), arguments(imds=False, limit_s=LIMIT_S)
    pythons = {node: pool.python for pool in spec.pools for node in pool.nodes}
    commands = {n: Command(argv=probe.words(pythons.get(n, "python3"), words), stdin=probe.stdin) for n in nodes}
    results = cluster.run_each(commands, limit_s=max(spec.access.timeout_s, LIMIT_S), keep_bytes=KEEP_BYTES)
    facts, _ = sort_answers([
        NodeAnswer(r.node, r.stdout.data if r.ok else None, r.error, r.hint, r.code) for r in results
    ])  # fmt: skip
    return facts


def job_of(spec: Spec, nodes: NodeSet, asked: Asked, facts: Sequence[NodeFacts]) -> RankJob:
    """The ranks to start. Raises ClusterError for a node without address, TrainError for one without its GPUs."""
    each = 0 if asked.cpus else gpus_each(gpus_of(spec, nodes, facts))
    addresses = {} if asked.host else addresses_of(nodes, facts)
    in_container = spec.table(Slurm).container_runtime != "none"
    return RankJob(
        nodes=nodes,
        per_node=each or 1,
        parts=("fairlead.train.onnode.rank",),
        settings={
            "config": str(asked.config),
            "resume": asked.resume,
            "steps": asked.steps,
            "threads": asked.threads,
            "version": __version__,
        },
        host=asked.host or addresses[nodes[0]],
        addresses=addresses,
        backend=spec.table(Launch).backend,
        device="gpu" if each else "cpu",
        limit_s=RUN_S,
        patience=Patience(
            ranks=len(nodes) * (each or 1), own=own_patience(spec), planned_s=PLANNED_S, in_container=in_container
        ),
        env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
        in_container=in_container,
    )


def gpus_each(counts: Mapping[str, int | None]) -> int:
    """Ranks of each node: as many as the node with the fewest GPUs has; 0 where no node has any.

    Raises TrainError where some nodes have GPUs and others show none: a run would compute on the CPUs of all.
    """
    without = [node for node, num in counts.items() if not num]
    if without and len(without) < len(counts):
        raise TrainError(
            "train/device",
            f"no GPU could be counted on {fold(without)}, and the other nodes have some",
            hint=f"fairlead probe -w {fold(without)}; or leave it out: -x {fold(without)}",
        )
    return min((num or 0 for num in counts.values()), default=0)


def addresses_of(nodes: NodeSet, facts: Sequence[NodeFacts]) -> dict[str, str]:
    """By which address the others reach each node: the probe's address book. Raises ClusterError."""
    found = {place.node: place.address for place in book_of(facts).places}
    without = [node for node in nodes if not found.get(node)]
    if without:
        raise ClusterError(
            "train/no-address",
            f"{fold(without)} has no address by which the others could reach it",
            nodes=fold(without),
            hint=f"fairlead probe -w {fold(without)}; or leave it out: -x {fold(without)}",
        )
    return found


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else 0
