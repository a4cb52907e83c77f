"""Starts a group of ranks, listens to it, passes on where rank 0 is, and stops it when it hangs: a stream of events.

    with launch(cluster, job) as ranks:
        for event in ranks:              # the last is Over
            ...

Real tasks where there is a scheduler; elsewhere processes of our own. Judges nothing: who is to blame is for the stage.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import Any, Self, cast

from fairlead.cluster import Cluster, Line, Result
from fairlead.cluster.heard import Key
from fairlead.cluster.live import Live
from fairlead.launch.cut import cut
from fairlead.launch.ears import Ears
from fairlead.launch.job import RankJob
from fairlead.launch.messages import STOPPED, Beat, CannotStart, CutOff, Ended, Event, Held, Lied, Over, Said, Wrote
from fairlead.launch.pending import heard, question
from fairlead.launch.watch import Watch
from fairlead.records.border import Breach

STOP_S = 3.0
"""How long ranks that are told to stop may take before they are killed."""
READ_S, LOOK_S = 0.25, 0.1
"""The longest wait for a line, and how often, at most, the watch is asked: it looks at every rank."""
DEAF_S = 1.0
"""This side was late itself where it listens again only after so long: what it did not hear is nobody's silence."""
MAX_REASON = 500
_ASK_S = 10.0
_ASK_EVERY_S = 3.0


def launch(cluster: Cluster, job: RankJob) -> Ranks:
    """Start the ranks. Raises what the cluster raises where nothing can be run at all."""
    group = cluster.start(
        job.program(),
        job.nodes,
        limit_s=job.total_s,
        first=_text(job.config()),
        per_node=job.per_node,
        in_container=job.in_container,
        as_tasks=True,
        options=job.options,
    )

    if group.kind == "processes":
        for node in job.nodes:
            group.send(_text(job.own(node)), to=node)
    else:  # one step has one input for all its tasks: they find out for themselves
        group.send(_text(job.own("")))

    host = job.host if group.kind == "processes" else ""

    def ask(number: str) -> str:
        said = cluster.control(question(number), limit_s=_ASK_S)
        return said.out if said is not None and said.rc == 0 else ""

    return Ranks(
        group, Watch(job.patience, job.limit_s, len(job.nodes)), job.wanted, backend=group.kind, host=host, ask=ask
    )


class Ranks:
    """A group that runs. Leaving the `with` stops it."""

    def __init__(
        self,
        group: Live,
        watch: Watch,
        wanted: int,
        *,
        backend: str = "processes",
        host: str = "",
        ask: Callable[[str], str] = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` says why a job of the scheduler waits; `host` is where rank 0 must listen, where that is known."""
        self.backend = backend
        """`tasks` of a scheduler, or `processes`."""
        self._group, self._watch, self._wanted, self._ask, self._clock = group, watch, wanted, ask, clock
        self._ears = Ears(host)
        self._lied: set[int] = set()
        """Who is heard no more."""
        self._began = clock()
        self._num_ended = 0
        self._held: Held | None = None
        self._asked = 0.0
        self._beaten: dict[int, float] = {}
        """When each rank last gave a sign of life, by time.monotonic()."""

    def __enter__(self) -> Self:
        self._group.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._group.__exit__(kind, error, at)

    def send(self, message: Mapping[str, Any]) -> None:
        """One message to every rank; its `do` says what it is. Never waits."""
        self._group.send(_text(message))

    @property
    def now(self) -> float:
        """Seconds since the launch."""
        return self._clock() - self._began

    def __iter__(self) -> Iterator[Event]:
        """Everything, until all have ended and their last words are read, or until the watch says it is over."""
        over, looked, caught_up, listened = None, 0.0, 0.0, self.now
        while over is None and (self._num_ended < self._wanted or self._group.has_unread):
            lines = self._group.read_all(READ_S)
            for event in self._events(lines):
                self._watch.hear(event)
                yield event
            now = self.now
            if now - listened > READ_S + DEAF_S:
                self._watch.resumed = now
            listened = now
            if self._group.has_unread and now - caught_up < self._watch.patience["behind"]:
                continue  # on a busy machine one may hear of an end long before the words that explain it
            caught_up = now
            if now - looked >= LOOK_S:
                for beat in self._beats():
                    self._watch.hear(beat)
                    yield beat
                looked, over = now, self._watch.over(now)
        over = over or Over(at_s=self.now)
        if over.why:
            self.send({"do": "stop"})  # those that can still hear it end by themselves, and a scheduler sees a step end
        known = set(islice(self._group.ended, self._num_ended))
        for result in self._group.close(STOP_S):
            if result.rank is not None and (result.node, result.rank) not in known:
                end = self._end(result)
                yield replace(end, state=STOPPED) if over.why else end
        yield over

    def _beats(self) -> Iterator[Beat]:
        """The last sign of life of each rank, where it is a new one."""
        for (node, rank), beat in self._group.beats.items():
            if rank is not None and beat.at_s > self._beaten.get(rank, 0.0):
                self._beaten[rank] = beat.at_s
                yield Beat(rank=rank, node=node, at_s=round(beat.at_s - self._began, 3), state=beat.text)

    def _events(self, lines: Sequence[Line]) -> Iterator[Event]:
        """What lines mean; then who has ended since."""
        for line in lines:
            if line.stream == "stderr" and (found := cut(line.text)):
                yield CutOff(at_s=round(self.now, 3), why=found.why, nodes=found.nodes, said=line.text)
            if line.rank is not None:
                yield from self._of_rank(line, line.rank)
            elif self._held is None and not self._watch.ranks and (job := heard(line.text)):
                self._held, self._asked = Held(at_s=self.now, job=job, said=line.text), self.now
                yield self._held
        if self._held and not self._watch.ranks and self.now - self._asked > _ASK_EVERY_S:
            self._held, self._asked = replace(self._held, squeue=self._ask(self._held.job)), self.now
            yield self._held
        new: deque[Result] = deque()
        ended = cast("dict[Key, Result]", self._group.ended)
        for key in reversed(ended):  # the newest first; those that are known are not looked at again
            if len(new) == len(ended) - self._num_ended:
                break
            new.appendleft(ended[key])
        self._num_ended += len(new)
        for result in new:
            if result.rank is not None:
                yield self._end(result)

    def _of_rank(self, line: Line, rank: int) -> Iterator[Event]:
        own: dict[str, Any] = {"rank": rank, "node": line.node, "at_s": round(self.now, 3)}
        is_out = line.stream == "stdout"
        if rank in self._lied:
            return
        try:
            text, said = self._ears.message(rank, line.text, is_out=is_out)
        except Breach as breach:
            self._lied.add(rank)
            yield Lied(**own, what=breach.what, said=breach.said)
            return
        if said is None:
            if text.strip():
                yield Wrote(**own, stream=line.stream, text=text)
            return
        what = said.pop("say")
        theirs = said.pop("node", "")
        if not self._group.knows_places and isinstance(theirs, str) and theirs:
            own["node"] = theirs  # the scheduler does not say, and may number its nodes in another order: nodes_by_rank
        said.pop("rank", None)
        if what == "failed":
            why, kind, text = (str(said.get(key, ""))[:MAX_REASON] for key in ("why", "kind", "text"))
            yield CannotStart(**own, why=why, kind=kind, text=text)
        else:
            if what == "store":
                self.send({"do": "store", "host": said.get("host"), "port": said.get("port")})
            yield Said(**own, what=what, fields=said)

    def _end(self, result: Result) -> Ended:
        assert result.rank is not None
        error = "" if result.ok else result.error
        at_s = round(self.now, 3)
        return Ended(rank=result.rank, node=result.node, at_s=at_s, state=str(result.state), rc=result.rc, error=error)


def _text(message: Mapping[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"))
