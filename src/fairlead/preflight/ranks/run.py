"""Preflight's ranks: what they are told, and everything they say kept as facts. Judges nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairlead.cluster import Cluster, NodeSet
from fairlead.launch import (
    Beat,
    CannotStart,
    CutOff,
    Ended,
    Event,
    Held,
    Lied,
    Over,
    Patience,
    RankJob,
    Said,
    Wrote,
    launch,
)
from fairlead.preflight.ranks.facts import CutByScheduler, Lie, RankEnd, RankFacts, Waiting
from fairlead.preflight.ranks.onnode.perftest import READY_S, RUN_S
from fairlead.preflight.ranks.wanted import Device

PARTS = (
    "fairlead.preflight.pairs.schedule",
    *(f"fairlead.preflight.ranks.onnode.{part}" for part in ("nccllog", "device", "rails", "perftest", "rank")),
)
_MAX_LINES_PER_RANK = 400
_MAX_PROOFS = 64
_LAST_WORDS = 8
_NCCL = re.compile(r"Using network \S+|NET/\w+ : Using .*|via NET/\w+\S*|via P2P\S*|via SHM\S*|NCCL version \S+")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the ranks are told."""

    nodes: tuple[str, ...]
    per_node: int
    host: str
    """The rendezvous: an address of the first node."""
    addresses: Mapping[str, str]
    """Node -> the address whose interface gloo and NCCL shall use."""
    sizes: tuple[int, ...]
    reduce_s: float = 1.0
    """All-reduce sizes grow as long as they fit into this time."""
    rounds: int = 5
    """Rounds of the straggler test, at least."""
    device: Device = "any"
    """What ranks are to use: with gpu, one that reaches none cannot start."""
    rails: tuple[Mapping[str, str], ...] = ()
    """For ranks on CPUs: how a node finds its interface of each rail."""
    perftest: tuple[str, ...] = ()
    """RDMA devices, one a local rank, to measure with ib_write_bw as well; empty: not at all."""
    rail_bytes: int = 128 << 20
    """Largest message of the rail test."""
    limit_s: float = 120.0
    """How long all of it may take once the group stands."""
    patience: Mapping[str, float] | None = None
    """Seconds that the cluster file gives instead of the launcher's own."""
    backend: Literal["auto", "nccl", "rccl", "gloo", "mrc"] = "auto"
    """How ranks communicate."""
    launch_only: str = ""
    """Why ranks shall only start: a collective over a fabric that is known to be dead says nothing more, slowly."""
    in_container: bool = False
    options: tuple[str, ...] = ()
    """More options for the scheduler's step."""

    @property
    def wanted(self) -> int:
        """How many ranks there should be."""
        return len(self.nodes) * self.per_node

    def job(self) -> RankJob:
        """The same for the launcher."""
        return RankJob(
            nodes=NodeSet(self.nodes),
            per_node=self.per_node,
            parts=PARTS,
            settings={
                "sizes": list(self.sizes),
                "reduce_s": self.reduce_s,
                "rounds": self.rounds,
                "rails": list(self.rails),
                "rail_bytes": self.rail_bytes,
                "perftest": list(self.perftest),
                "addresses": sorted(set(self.addresses.values())) if self.perftest else [],
                "launch_only": bool(self.launch_only),
            },
            host=self.host,
            addresses=self.addresses,
            limit_s=self.limit_s,
            patience=Patience(
                ranks=self.wanted,
                in_container=self.in_container,
                own=self.patience or {},
                planned_s=max(self.reduce_s, READY_S + RUN_S if self.perftest else 0.0),
            ),
            device=self.device,
            backend=self.backend,
            # a dead port must show within seconds: 0.27 s a try and 7 tries, where the default is 4.3 s a try
            # (InfiniBand specification: the timeout is 4.096 us times 2 to this power)
            defaults={"OMP_NUM_THREADS": "1", "NCCL_IB_TIMEOUT": "16"},
            # torch ends a process whose communicator failed, before it can say what it was doing: here the launcher
            # decides when a group is over (0: no handling, torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp)
            env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
            in_container=self.in_container,
            options=self.options,
        )


def run_ranks(cluster: Cluster, asked: Launch, note: Callable[[str], object] = lambda _: None) -> RankFacts:
    """Launch, listen, keep."""
    facts = RankFacts(
        nodes=tuple(NodeSet(asked.nodes)),
        per_node=asked.per_node,
        wanted=asked.wanted,
        limit_s=asked.limit_s,
        backend="",
        launch_only=asked.launch_only,
    )
    with launch(cluster, asked.job()) as ranks:
        facts.backend = ranks.backend
        keep(facts, ranks, note)
    return facts


def keep(facts: RankFacts, events: Iterable[Event], note: Callable[[str], object] = lambda _: None) -> None:
    """Everything that happens, as facts; `note` hears how far it is."""
    num_words: dict[int, int] = {}
    for event in events:
        match event:
            case Said():
                if event.rank == 0 and event.phase not in ("", _place(facts)):
                    note(f"ranks: {event.phase}")
                if event.what == "missing":
                    note(f"ranks: {event.fields.get('num')} not yet at the rendezvous: {event.fields.get('ranks')}")
                if event.what != "over":  # the launcher's own word
                    facts.lines.append(_line(event.what, event, **event.fields))
                facts.waiting = None
            case Beat():
                facts.beats[event.rank] = _line("beat", event, **({"state": event.state} if event.state else {}))
            case CannotStart():
                facts.lines.append(_line("failed", event, why=event.why, kind=event.kind, text=event.text))
            case Wrote():
                _keep_words(facts, event, num_words)
            case Lied():
                facts.lies.append(Lie(rank=event.rank, what=event.what, said=event.said))
            case Ended():
                facts.ends.append(_end(facts, event))
            case CutOff():
                facts.cut.append(CutByScheduler(why=event.why, said=event.said[:500], nodes=event.nodes))
            case Held():
                if facts.waiting is None:
                    note("ranks: the scheduler holds the step back")
                facts.waiting = Waiting(job=event.job, said=event.said, squeue=event.squeue)
            case Over():
                facts.took_s, facts.broken = event.at_s, event.why
                facts.lines += [
                    {"say": "over", "kind": event.kind, "rank": rank, "node": _node(facts, rank), "at_s": event.at_s}
                    for rank in event.ranks
                ]


def _line(what: str, event: Said | Beat | CannotStart, **fields: Any) -> dict[str, Any]:
    return {"say": what, **fields, "rank": event.rank, "node": event.node, "at_s": event.at_s}


def _place(facts: RankFacts) -> str:
    """The phase rank 0 is in."""
    said = next((s for s in reversed(facts.lines) if s["rank"] == 0 and s["say"] == "phase"), None)
    return str(said.get("phase", "")) if said else ""


def _node(facts: RankFacts, rank: int) -> str:
    return facts.nodes[min(rank // facts.per_node, len(facts.nodes) - 1)]


def _keep_words(facts: RankFacts, event: Wrote, num: dict[int, int]) -> None:
    """A library's words: its proof of the network it chose, else as they are, of each rank so many."""
    if proof := _NCCL.search(event.text):
        known = facts.nccl.setdefault(event.rank, [])
        if proof[0] not in known and len(known) < _MAX_PROOFS:
            known.append(proof[0])
        return
    num[event.rank] = num.get(event.rank, 0) + 1
    if num[event.rank] < _MAX_LINES_PER_RANK:
        facts.words.setdefault(event.rank, []).append(event.text[:500])


def _end(facts: RankFacts, event: Ended) -> RankEnd:
    words = facts.words.get(event.rank, [])[-_LAST_WORDS:]
    return RankEnd(
        node=event.node,
        rank=event.rank,
        state=event.state,
        rc=event.rc,
        error=event.error,
        stderr="\n".join(words),
        at_s=event.at_s,
    )
