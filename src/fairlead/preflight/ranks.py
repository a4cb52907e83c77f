"""Starts the ranks, listens to them, and stops them when they hang: returns what they said, judges nothing.

A group that hangs never ends by itself, so somebody must decide when it is over. `Watch` does, from the ranks' own
lines: a rank that says nothing at all while the others go on, or no step by anybody for a while, or one that has ended
badly.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from fairlead.base.units import duration
from fairlead.cluster import Cluster, Command, NodeSet, Result, State
from fairlead.cluster.live import Live
from fairlead.preflight.facts import RankEnd, RankFacts
from fairlead.preflight.pipe import RANK, boot, program
from fairlead.preflight.waiting import PENDING_S, heard, question

STALL_S = 6.0
"""No step by any rank for this long means that the group hangs."""
SILENT_S = 3.0
"""A rank that says nothing for this long, while others do, stands still."""
LAST_WORDS_S = 1.0
"""How long the others may still complain once one rank has ended badly: their words tell who missed whom."""
STOPPED = "stopped"
"""State of a rank that was ended from here: how it then ended says nothing."""
STOP_S = 3.0
"""How long ranks that are told to stop may take before they are killed."""
_ASK_S = 10.0
_ASK_EVERY_S = 3.0
_MAX_LINES_PER_RANK = 400
_NCCL = re.compile(r"Using network \S+|NET/\w+ : Using .*|via NET/\w+\S*|via P2P\S*|via SHM\S*|NCCL version \S+")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the ranks are told."""

    nodes: tuple[str, ...]
    per_node: int
    python: str
    host: str
    """The rendezvous: an address of the first node, and a port that is free there."""
    port: int
    addresses: Mapping[str, str]
    """Node -> the address whose interface gloo and NCCL shall use."""
    sizes: tuple[int, ...]
    reduce_s: float = 1.0
    """All-reduce sizes grow as long as they fit into this time."""
    split_rounds: int = 5
    import_s: float = 120.0
    """How long importing torch may take before the first rank is through with it."""
    limit_s: float = 120.0
    launch_only: str = ""
    """Why ranks shall only start: a collective over a fabric that is known to be dead says nothing more, slowly."""
    in_container: bool = False
    options: tuple[str, ...] = ()
    """More options for the scheduler's step."""

    @property
    def wanted(self) -> int:
        """How many ranks there should be."""
        return len(self.nodes) * self.per_node


@dataclass
class Watch:
    """Decides when a group of ranks is over. Fed with lines and ends; time is an argument."""

    wanted: int
    import_s: float
    past_import_at: dict[int, float] = field(default_factory=dict)
    waiting_since: float | None = None
    """Since when the scheduler is known to hold the step back."""
    last_word: dict[int, float] = field(default_factory=dict)
    last_step: float = 0.0
    failed_at: float | None = None
    done: set[int] = field(default_factory=set)

    def line(self, rank: int, said: Mapping[str, Any], now: float) -> None:
        """A rank said something."""
        self.last_word[rank] = now
        self.waiting_since = None
        if said["say"] == "beat":
            return
        self.last_step = now
        if said["say"] == "phase" and said.get("phase") not in ("start", "import"):
            self.past_import_at.setdefault(rank, now)
        if said["say"] == "phase" and said.get("phase") == "done":
            self.done.add(rank)

    def end(self, rank: int, *, is_well: bool, now: float) -> None:
        """A rank's process ended."""
        self.done.add(rank)
        self.last_step = now
        if not is_well and self.failed_at is None:
            self.failed_at = now

    def over(self, now: float) -> str:
        """Why the group should be stopped now; empty while it should not."""
        if self.failed_at is not None:
            return "a rank ended" if now - self.failed_at > LAST_WORDS_S else ""
        if self.waiting_since is not None:
            late = now - self.waiting_since > PENDING_S
            return f"the scheduler did not begin the step within {duration(PENDING_S)}" if late else ""
        if not self.past_import_at:
            return f"no rank came past its start within {duration(self.import_s)}" if now > self.import_s else ""
        # ranks that share a busy machine come past their imports one after the other
        patience = STALL_S
        if len(self.past_import_at) < self.wanted:
            patience = max(STALL_S, min(self.past_import_at.values()))
        if now - self.last_step > patience:
            return f"no rank made a step for {duration(patience)}"
        if now - self.last_step > SILENT_S and self.silent(now):
            return f"a rank said nothing for {duration(SILENT_S)}"
        return ""

    def silent(self, now: float) -> list[int]:
        """Ranks past their import that stand still while others speak."""
        talking = [t for r, t in self.last_word.items() if r not in self.done and now - t < SILENT_S / 2]
        late = [r for r in self.past_import_at if r not in self.done and now - self.last_word[r] > SILENT_S]
        return late if talking else []


def run_ranks(cluster: Cluster, launch: Launch, note: Callable[[str], object] = lambda _: None) -> RankFacts:
    """Launch, listen, stop. Real tasks where there is a scheduler; elsewhere processes of our own."""
    source = program(RANK)
    command = Command(
        argv=(launch.python, *boot(source, "fairlead-rank", isolated=False)),
        stdin=source,
        env={"FAIRLEAD_RANKS": json.dumps(_config(launch), separators=(",", ":"))},
        in_container=launch.in_container,
    )
    nodes = NodeSet(launch.nodes)
    facts = RankFacts(
        nodes=tuple(nodes),
        per_node=launch.per_node,
        wanted=launch.wanted,
        limit_s=launch.limit_s,
        backend="processes",
        launch_only=launch.launch_only,
    )
    limits = {"limit_s": launch.limit_s, "per_node": launch.per_node}
    group = cluster.live_tasks(nodes, command, options=launch.options, **limits)  # type: ignore[arg-type]
    if group is not None:
        facts.backend = "tasks"
    else:
        group = cluster.live(nodes, command, **limits)  # type: ignore[arg-type]
    with group:
        listen(group, facts, Watch(launch.wanted, launch.import_s), note, partial(_asked, cluster))
    return facts


def _asked(cluster: Cluster, job: str) -> str:
    """What the scheduler says of a job that waits; empty where it does not answer."""
    said = cluster.control(question(job), limit_s=_ASK_S)
    return said.out if said is not None and said.rc == 0 else ""


def listen(
    group: Live, facts: RankFacts, watch: Watch, note: Callable[[str], object], ask: Callable[[str], str] = lambda _: ""
) -> None:
    """Hear everything until all have ended and their last words are read, or until `watch` says it is over.

    `ask` says why a job waits.
    """
    started = time.monotonic()
    num_lines: dict[int, int] = {}
    known: set[int] = set()
    pieces = _Pieces()
    phase, caught_up, asked = "", 0.0, 0.0
    while len(known) < facts.wanted or group.has_unread:
        line = group.read(0.25)
        now = time.monotonic() - started
        if line is not None and line.rank is not None:
            num_lines[line.rank] = num_lines.get(line.rank, 0) + 1
            text = pieces.whole(line.rank, line.text) if line.stream == "stdout" else ""
            said = _parse(text)
            if said is not None:
                watch.line(line.rank, said, now)
                if said["say"] == "phase" and said["phase"] != phase and line.rank == 0:
                    phase = said["phase"]
                    note(f"ranks: {phase}")
                _keep(facts, line.rank, line.node, said, now)
            elif proof := _NCCL.search(line.text):
                facts.nccl.setdefault(line.rank, [])
                if proof[0] not in facts.nccl[line.rank]:
                    facts.nccl[line.rank].append(proof[0])
            elif num_lines[line.rank] < _MAX_LINES_PER_RANK and line.text.strip() and not line.text.startswith("~"):
                facts.words.setdefault(line.rank, []).append(line.text[:500])
        elif line is not None and watch.waiting_since is None and not facts.lines and (found := heard(line.text)):
            watch.waiting_since, facts.waiting, asked = now, found, now
            note("ranks: the scheduler holds the step back")
        for (_, rank), result in list(group.ended.items()):
            if rank is not None and rank not in known:
                known.add(rank)
                watch.end(rank, is_well=result.ok, now=now)
                facts.ends.append(_end(result, facts, now))
        if facts.waiting and watch.waiting_since is not None and now - asked > _ASK_EVERY_S:
            asked, facts.waiting = now, msgspec.structs.replace(facts.waiting, squeue=ask(facts.waiting.job))
        if group.has_unread and now - caught_up < STALL_S:
            continue  # on a busy machine one may hear of an end long before the words that explain it
        caught_up = now
        facts.broken = watch.over(now)
        if facts.broken:
            break
    facts.took_s = time.monotonic() - started
    if facts.lines:
        facts.waiting = None
    if facts.broken:
        group.send("stop")  # ranks that can still hear it end by themselves, and their scheduler sees a step end
    for result in group.close(STOP_S):
        if result.rank is not None and result.rank not in known:
            end = _end(result, facts, facts.took_s)
            facts.ends.append(msgspec.structs.replace(end, state=STOPPED) if facts.broken else end)


class _Pieces:
    """Puts lines together again that came in pieces."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], dict[int, str]] = {}

    def whole(self, rank: int, text: str) -> str:
        """The line, or the whole of which this was the last piece, or nothing yet."""
        if not text.startswith("~"):
            return text
        number, at, num, rest = [*text[1:].split(" ", 3), "", "", ""][:4]
        if not (at.isdigit() and num.isdigit()):
            return text
        held = self._open.setdefault((rank, number), {})
        held[int(at)] = rest
        if len(held) < int(num):
            return ""
        del self._open[rank, number]
        return "".join(held[i] for i in sorted(held))


def _keep(facts: RankFacts, rank: int, node: str, said: dict[str, Any], now: float) -> None:
    """Beats are many: of each rank only the last is kept."""
    said["at_s"], said["rank"] = round(now, 3), rank
    said.setdefault("node", node)
    if said["say"] == "beat":
        facts.beats[rank] = said
    else:
        facts.lines.append(said)


def _end(result: Result, facts: RankFacts, now: float) -> RankEnd:
    assert result.rank is not None
    words = facts.words.get(result.rank, [])[-8:]
    return RankEnd(
        node=result.node,
        rank=result.rank,
        state=str(result.state),
        rc=result.rc,
        error=result.error if result.state is not State.DONE else "",
        stderr="\n".join(words),
        at_s=round(now, 3),
    )


def _parse(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        said = json.loads(text)
    except ValueError:
        return None
    return said if isinstance(said, dict) and isinstance(said.get("say"), str) else None


def _config(launch: Launch) -> dict[str, Any]:
    return {
        "run": secrets.token_hex(8),
        "host": launch.host,
        "port": launch.port,
        "limit_s": launch.limit_s,
        "per_node": launch.per_node,
        "addresses": dict(launch.addresses) if len(launch.addresses) <= MAX_LISTED else {},
        "sizes": list(launch.sizes),
        "reduce_s": launch.reduce_s,
        "split_rounds": launch.split_rounds,
        "launch_only": bool(launch.launch_only),
    }


MAX_LISTED = 1024
"""Addresses of more nodes would not fit into an environment; ranks then look their own node's name up."""
