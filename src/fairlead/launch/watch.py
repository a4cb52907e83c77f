"""Decides when a group of ranks is over: pure, fed with what ranks say and how they end; time is an argument.

A group that hangs never ends by itself. Who holds the others up is the rank that has made the fewest steps, and how
long it may do so depends on the phase it is in. Quicker than any patience: a rank that ended badly, that is stopped,
that cannot start, or whose task is silent while others beat.

What a rank says of itself may be false. That it is behind costs itself alone; that it is ahead, or that the group
stands, counts when ranks of two nodes say so, where there are three nodes or more: one alone accuses nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from fairlead.base.units import counted, duration
from fairlead.launch.messages import Beat, CannotStart, CutOff, Ended, Event, Held, Lied, Over, Said
from fairlead.launch.patience import Patience

_NUMBERS = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?){0,9999}")
LAST_WORDS_S = 1.0
"""How long the others may still complain once one rank has ended badly: their words tell who missed whom."""


@dataclass(slots=True)
class Rank:
    """How far one rank is."""

    number: int
    node: str = ""
    phase: str = ""
    since: float = 0.0
    """When it entered that phase."""
    steps: int = 0
    last_word: float = 0.0
    last_beat: float = 0.0
    unwell: str = ""
    """T or D, as its task saw its body."""
    unwell_since: float = 0.0


@dataclass
class Watch:
    """A group of `ranks` by what it says."""

    patience: Patience
    limit_s: float
    """How long the body may take once the group stands."""
    num_nodes: int = 0
    """Of the group; 0: as many as have spoken."""
    ranks: dict[int, Rank] = field(default_factory=dict)
    """Those that have spoken."""
    done: set[int] = field(default_factory=set)
    held: Held | None = None
    """The scheduler holds the step back."""
    failed_at: float | None = None
    cannot_start: bool = False
    """At least one rank said so."""
    joined_at: float | None = None
    last_step: float = 0.0
    resumed: float = 0.0
    """When this side last listened again after it had not for a while: silence before that is nobody's."""
    missing: str = ""
    """Who is not at the rendezvous, in rank 0's words."""
    here: set[int] = field(default_factory=set)
    """Who says of itself that it is there."""
    _through: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Phase -> node -> (when its first rank came through it, how long that one had been in it)."""
    _joined: set[str] = field(default_factory=set)
    """Nodes with a rank for which the group stands."""
    _longest_s: float = 0.0
    """Of the phases that any rank came through."""

    def hear(self, event: Event) -> None:
        """Something happened."""
        if isinstance(event, Held):
            self.held = event
            return
        self.held = None
        if isinstance(event, Ended):
            self.done.add(event.rank)
            self.last_step = event.at_s
            if not event.is_well:
                self._fail(event.at_s)
            return
        if isinstance(event, CutOff):
            self._fail(event.at_s)
            return
        if isinstance(event, Over):
            return
        if isinstance(event, Lied):
            self.done.add(event.rank)
            self._fail(event.at_s)
            return
        rank = self.ranks.setdefault(event.rank, Rank(event.rank, event.node, since=event.at_s))
        rank.last_word = event.at_s
        if isinstance(event, Beat):
            rank.last_beat = event.at_s
            if event.state != rank.unwell:
                rank.unwell, rank.unwell_since = event.state, event.at_s
        elif isinstance(event, CannotStart):
            self.done.add(event.rank)
            self.cannot_start = True
            self._fail(event.at_s)
        elif isinstance(event, Said):
            self._said(rank, event)

    def _fail(self, at_s: float) -> None:
        if self.failed_at is None:
            self.failed_at = at_s

    def _said(self, rank: Rank, said: Said) -> None:
        if said.what == "missing":
            self.missing = str(said.fields.get("ranks", "")) if rank.number == 0 else self.missing
            return
        if said.what == "here":
            self.here.add(rank.number)
        self.last_step = said.at_s
        if said.what == "joined" and self.joined_at is None:
            self._joined.add(said.node)
            if len(self._joined) >= self._witnesses:
                self.joined_at = said.at_s
        if said.what == "phase":
            if rank.phase:
                self._longest_s = max(self._longest_s, said.at_s - rank.since)
                through = self._through.setdefault(rank.phase, {})
                through.setdefault(said.node, (said.at_s, said.at_s - rank.since))
            rank.phase, rank.since, rank.steps = said.phase, said.at_s, rank.steps + 1
            if said.phase == "done":
                self.done.add(rank.number)

    @property
    def _witnesses(self) -> int:
        """How many nodes must say what others are measured by."""
        return 2 if (self.num_nodes or len({rank.node for rank in self.ranks.values()})) > 2 else 1

    def _left(self, phase: str) -> tuple[float, float] | None:
        """When ranks came through a phase, and how long they had been in it; None where too few have."""
        through = list(self._through.get(phase, {}).values())  # in the order in which they did
        return through[self._witnesses - 1] if len(through) >= self._witnesses else None

    def over(self, now: float) -> Over | None:
        """Why the group should be stopped now; None while it should not."""
        patience = self.patience
        if self.failed_at is not None:
            # what one cannot begin, others may not either: hear from all, as that tells the node's fault from the job's
            waits = self.cannot_start or len(self.ranks.keys() | self.done) < patience.ranks
            wait_s = patience["behind"] if waits else LAST_WORDS_S
            if self.cannot_start and any(rank.phase == "import" for rank in self._running()):
                wait_s = patience[
                    "import"
                ]  # a module that is missing shows at once, and one that is there after minutes
            return Over(at_s=now, kind="ended", why="a rank ended") if now - self.failed_at > wait_s else None
        if self.held is not None:
            late = now - self.held.at_s > patience["pending"]
            why = f"the scheduler did not begin the step within {duration(patience['pending'])}"
            return Over(at_s=now, kind="held", why=why) if late else None
        return self._unwell(now) or self._silent(now) or self._late(now)

    def _running(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.number not in self.done]

    def _unwell(self, now: float) -> Over | None:
        """Bodies that were found stopped, or stuck in the kernel, at every look for a while."""
        for states, row, what in (("Tt", "stopped", "stopped"), ("D", "stuck", "stuck in the kernel")):
            found = [r for r in self._running() if r.unwell and r.unwell in states]
            # who reads torch from a file system that is slow waits for it in the kernel
            slow_s = self.patience["import"] if row == "stuck" else 0.0
            limits_s = {r.number: max(self.patience[row], slow_s if r.phase == "import" else 0.0) for r in found}
            found = [r for r in found if r.last_beat - r.unwell_since >= limits_s[r.number]]
            if found:
                numbers = [r.number for r in found]
                why = f"{_ranks(numbers)} is {what} for {duration(limits_s[numbers[0]])}"
                return Over(at_s=now, kind=row, why=why, ranks=tuple(numbers))
        return None

    def _silent(self, now: float) -> Over | None:
        """Tasks that say nothing while others do. Where all are silent, the machine is busy and nobody is named."""
        limit_s = self.patience.silent_s
        running = self._running()
        silent = tuple(r.number for r in running if now - max(r.last_word, self.resumed) > limit_s)
        talking = any(now - r.last_word < limit_s / 2 for r in running)
        if silent and talking:
            why = f"{_ranks(silent)} said nothing for {duration(limit_s)}"
            return Over(at_s=now, kind="silent", why=why, ranks=silent)
        return None

    def _late(self, now: float) -> Over | None:
        """The ranks that hold the others up, if they have done so for too long."""
        patience = self.patience
        if self.joined_at is not None and now - self.joined_at > self.limit_s:
            why = f"the ranks were not through within {duration(self.limit_s)}"
            return Over(at_s=now, kind="limit", why=why)
        absent = tuple(n for n in range(patience.ranks) if n not in self.ranks and n not in self.done)
        if absent:
            if now - self.last_step <= patience["start"]:
                return None
            why = f"{_ranks(absent)} did not start within {duration(patience['start'])}"
            return Over(at_s=now, kind="absent", why=why, ranks=absent)
        running = self._running()
        if not running:
            return None
        fewest = min(rank.steps for rank in running)
        hindmost = [rank for rank in running if rank.steps == fewest]
        phase = Counter(rank.phase for rank in hindmost).most_common(1)[0][0]
        ahead = {rank.node for rank in running if rank.steps > fewest}
        limit_s, since = self._limit_s(phase, running, now), self.last_step
        if patience.is_together(phase) and len(ahead) >= self._witnesses and (left := self._left(phase)):
            left_at, took_s = left
            limit_s, since = min(limit_s, max(patience["behind"], took_s)), max(left_at, hindmost[-1].since)
        if now - max(since, self.resumed) <= limit_s:
            return None
        who = tuple(rank.number for rank in hindmost)
        # who says that it is there contradicts rank 0: one of the two is wrong, and nobody knows which
        missing = tuple(number for number in _numbers(self.missing, patience.ranks) if number not in self.here)
        if phase == "rendezvous" and missing:
            why = f"{_ranks(missing)} did not come to the rendezvous within {duration(limit_s)}"
            return Over(at_s=now, kind="rendezvous", why=why, ranks=missing)
        if len(ahead) < self._witnesses:
            why = f"no rank made a step for {duration(limit_s)} ({phase or 'start'})"
            return Over(at_s=now, kind="hang", why=why)
        why = f"{_ranks(who)} made no step for {duration(limit_s)} ({phase or 'start'}), and the others wait"
        return Over(at_s=now, kind="behind", why=why, ranks=who)

    def _limit_s(self, phase: str, running: list[Rank], now: float) -> float:
        """How long a phase may take, by what this group took so far.

        Where no rank gives a sign of life the machine is busy, and what was quick before says nothing.
        """
        if now - max(rank.last_word for rank in running) > self.patience.silent_s / 2:
            return self.patience[phase]
        return self.patience.after(phase, self._longest_s)


def _ranks(numbers: list[int] | tuple[int, ...]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else counted(len(numbers), "rank")


def _numbers(text: str, most: int) -> tuple[int, ...]:
    """Numbers of `0-3,8`, as far as they are below `most`; none where it is anything else."""
    if not _NUMBERS.fullmatch(text):
        return ()
    out: list[int] = []
    for piece in filter(None, text.split(",")):
        low, _, high = piece.partition("-")
        out += range(int(low), min(int(high or low) + 1, most))
    return tuple(out)
