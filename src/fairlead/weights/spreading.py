"""A spread from the control side: starts the program on every node, hands the scheduler what they tell and them what it
orders, and ends when every node that lives has published, or cannot.

Nodes say first what they have. Where they sit in the network is asked only if something is to move.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.units import size
from fairlead.cluster import Program
from fairlead.cluster.channel import MAX_FRAME_BYTES
from fairlead.errors import FairleadError
from fairlead.records.border import shown
from fairlead.records.log import tell
from fairlead.weights.asking import Asking
from fairlead.weights.comparing import Comparison
from fairlead.weights.onnode.layout import REQUEST_BYTES, to_flags
from fairlead.weights.orders import setup_of, words_of
from fairlead.weights.outcome import NodeState, Options, SpreadOutcome, stalled
from fairlead.weights.places import Reach, also_at, meeting_places
from fairlead.weights.planned import Plan
from fairlead.weights.scheduler import Lease, Look, Order, Scheduler, Take
from fairlead.weights.sources import Source
from fairlead.weights.talking import START_S, Starter, Talk
from fairlead.weights.told import Told

log = logging.getLogger("fairlead.weights")
PROGRAM = (
    "fairlead.base.later",
    "fairlead.cluster.channel",
    "fairlead.base.trust",
    "fairlead.weights.onnode.layout",
    "fairlead.weights.onnode.stored",
    "fairlead.base.tensors",
    "fairlead.weights.onnode.buffers",
    "fairlead.weights.onnode.place",
    "fairlead.weights.onnode.journal",
    "fairlead.weights.onnode.disk",
    "fairlead.weights.onnode.present",
    "fairlead.weights.onnode.adopt",
    "fairlead.weights.onnode.gate",
    "fairlead.weights.onnode.node",
)
"""What looks at what is there, and publishes."""
MOVES = (
    "fairlead.weights.onnode.edges",
    "fairlead.weights.onnode.streams",
    "fairlead.weights.onnode.pieces",
    "fairlead.weights.onnode.mrc",
    "fairlead.weights.onnode.wire",
    "fairlead.weights.onnode.giving",
    "fairlead.weights.onnode.taking",
    "fairlead.weights.onnode.origin",
    "fairlead.weights.onnode.fetching",
    "fairlead.weights.onnode.reader",
)
"""What a node needs beside, if anything is to move."""
LIMIT_S = 86_400.0
MAX_FRESH = 8
"""How often the addresses of a file are made anew: a right that is missing stays missing."""


class Spread:
    """One spread under way."""

    def __init__(
        self,
        cluster: Starter,
        plan: Plan,
        source: Source,
        options: Options,
        *,
        nodes: NodeSet,
        where: Callable[[], Reach],
        progress: Callable[[str, int, int, str], None] = lambda *_: None,
    ) -> None:
        """`where` asks the nodes where they reach each other; it is called at most once."""
        self.cluster, self.plan, self.source, self.options, self.progress = cluster, plan, source, options, progress
        self.where, self.reach = where, Reach({}, {}, {})
        self.nodes = [NodeState(name, i) for i, name in enumerate(nodes)]
        self.out = SpreadOutcome(plan, source.name, options.dest, self.nodes, is_dry=options.dry_run)
        self.scheduler: Scheduler | None = None
        self.members: list[NodeState] = []
        """The scheduler's numbers -> nodes."""
        self.at: dict[str, int] = {}
        self.looks: dict[int, Look] = {}
        self.fresh: Counter[int] = Counter()
        self.said = {i: o.digest for i, o in enumerate(plan.objects) if o.digest}
        """File -> the digest that its store gives."""
        self.comparison: Comparison | None = None
        self.moves = True
        """Some node lacks something."""
        self.came_s = time.monotonic()
        """When a chunk last came from the origin, to whatever node."""
        # small files are asked for one by one: that takes round trips, and no request holds another up
        is_small = sum(len(chunk) > 1 for chunk in plan.chunks) * 2 > len(plan.chunks)
        num_asking = 1 if is_small else options.fetching or len(self.nodes)
        self.asking = Asking(options.connections, num_asking, len(plan.chunks))

    def run(self) -> SpreadOutcome:
        """To its end. Raises FairleadError where nothing can be spread at all."""
        began = time.monotonic()
        program = Program.of("fairlead-weights", *PROGRAM, call="main()", needs_packages=True, later=MOVES)
        names = NodeSet(n.name for n in self.nodes)
        with self.cluster.start(program, names, limit_s=LIMIT_S) as group:
            self.talk = Talk(group, self.nodes, len(self.plan.chunks), self._gone)
            self._greet()
            self.out.took_s["diff"] = time.monotonic() - began
            self.moves = any(n.failed is None and n.count < len(self.plan.chunks) for n in self.nodes)
            if self.moves:
                began = time.monotonic()
                self._meet()
                self.out.took_s["meet"] = time.monotonic() - began
            ready = [n for n in self.nodes if n.failed is None]
            if ready and not self.options.dry_run:
                began = time.monotonic()
                self._spread(ready)
                self.out.took_s["spread"] = time.monotonic() - began
            self.talk.say({"do": "end"})
            group.close(2.0)
        return self.out

    # ---- beginning ---------------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        """Who is there, what all can verify with; the files; what each has and has room for."""
        here: dict[str, bool] = {}
        self.talk.until(lambda n: n.name in here, lambda n, told: here.update({n.name: told.blake3}), "here")
        self.out.without_blake3 = [name for name, has in here.items() if not has]
        said = self.plan.manifest.algorithm if self.plan.manifest is not None else "blake3"
        self.out.algorithm = "sha256" if self.out.without_blake3 else said
        packed = self.plan.packed(self.out.algorithm)
        frames = [packed[at : at + MAX_FRAME_BYTES] for at in range(0, len(packed), MAX_FRAME_BYTES)]
        fetching = self.options.fetching or len(self.nodes)
        run = {
            "key": secrets.token_hex(32),
            "algorithm": self.out.algorithm,
            "at_once": self.asking.at_once,
            "rate": self.options.max_bandwidth / fetching,
            "num_frames": len(frames),
        }
        for node in self.nodes:
            if node.failed is None:
                self.talk.say({**setup_of(self.plan, self.source, self.options), **run, "me": node.number}, to=node)
        for frame in frames:
            self.talk.group.send(frame)
        self.talk.until(lambda n: n.looked, self._hello, "hello")
        for node in self.nodes:
            if node.failed is None and node.need_bytes > node.free_bytes:
                text = f"{size(node.need_bytes)} are needed below {self.options.dest}, {size(node.free_bytes)} are free"
                self.talk.lose(node, "weights/disk-full", text, f"df -h {self.options.dest}")

    def _hello(self, node: NodeState, told: Told) -> None:
        num = len(self.plan.chunks)
        node.has, node.skips = to_flags(str(told.has), num), to_flags(told.skips, num)
        node.looked, node.need_bytes, node.free_bytes = True, told.need_bytes, told.free_bytes
        node.count = sum(node.has) + sum(node.skips)

    def _meet(self) -> None:
        """Where the others reach each node; asked only where something is to go from node to node."""
        self.reach = found = self.where()
        is_tcp, addresses = self.options.transport == "tcp", found.addresses
        if self.options.transport == "mrc":
            addresses = meeting_places(found)
        for node in self.nodes:
            if node.failed is None:
                place = found.places.get(node.name)
                node.address, node.place = addresses[node.name], place if is_tcp else None
                here = msgspec.to_builtins(place) if place is not None and not is_tcp else {}
                also = also_at(node.place, node.address)
                self.talk.say({"do": "open", "address": node.address, "also": also, "place": here}, to=node)
        self.talk.until(lambda n: bool(n.port), lambda n, told: setattr(n, "port", told.port), "open")

    def _gone(self, node: NodeState) -> None:
        """Nobody can take from it any more."""
        if self.scheduler is not None and node.name in self.at:
            self._order(self.scheduler.ended(self.at[node.name]))

    # ---- the spread --------------------------------------------------------------------------------------------------

    def _spread(self, ready: Sequence[NodeState]) -> None:
        self.members, self.came_s = list(ready), time.monotonic()
        self.at = {n.name: i for i, n in enumerate(ready)}
        num = len(ready)
        fetching = min(num, self.options.fetching or num)
        may = {int(i * num / fetching) for i in range(fetching)}
        if self.source.node:
            may = {self.at.get(self.source.node, 0)}
        window = max(2, 2 * self.options.connections * max(1, REQUEST_BYTES // self.plan.chunk_bytes))
        if self.options.shard_bytes:
            window = max(2, self.options.shard_bytes // self.plan.chunk_bytes)
        self.scheduler = Scheduler(
            len(self.plan.chunks),
            [n.has for n in ready],
            fetching=may,
            window=window,
            slow_share=self.options.slow_share,
        )
        self._order(self.scheduler.start())
        for node, told in self.talk.early:
            if node.failed is None:
                self._hear(node, told)
        looked = time.monotonic()
        while any(n.failed is None and not n.root for n in self.members):
            for node, told in self.talk.read(0.25):
                self._hear(node, told)
            if self.options.verify and not self._compared():
                return
            now = time.monotonic()
            if now - looked >= 1.0:
                looked = now
                self._order(self.scheduler.look(self.looks))
                self.looks = {}
                for i, peer in enumerate(self.scheduler.peers):
                    if peer.slow and not self.members[i].slow:
                        tell(log, "node is slow", level=logging.WARNING, node=self.members[i].name)
                    self.members[i].slow = peer.slow
                self._ask(now)
                self._silent(now)
                self._stalled(now)
                self._show()
            if self.scheduler.lost and self._is_settled():
                self._give_up()
                return
        self._show()

    def _hear(self, node: NodeState, told: Told) -> None:
        assert self.scheduler is not None
        i = self.at[node.name]
        if told.do == "fetched":
            self.said.update({f: d for f, d in told.digests.items() if f < len(self.plan.objects)})
            if told.chunks:
                self.came_s = time.monotonic()
            self._order(self.scheduler.fetched(i, told.chunks))
        elif told.do == "whole":
            node.whole = True
        elif told.do == "compared" and self.comparison is not None:
            self.comparison.compared(i, told.file, told.found)
        elif told.do == "refused":
            self._refused(node, told)
        elif told.do == "returned":
            self._order(self.scheduler.returned(i, told.chunks))
        elif told.do == "survey":
            self._order(self.scheduler.surveyed(i, to_flags(str(told.has), len(self.plan.chunks))))
        elif told.do == "look":
            numbers = {n.number: self.at[n.name] for n in self.members}
            backlog = {numbers[p]: c for p, c in told.backlog.items() if p in numbers}
            sent = {numbers[p]: c for p, c in told.sent.items() if p in numbers}
            if (told.came, told.has) != (node.came, node.count):
                node.moved_s = time.monotonic()
            node.count, node.counts, node.busy = int(told.has or 0), told.counts, told.busy
            node.came = told.came
            node.rss_bytes, node.cpu_s = told.rss_bytes, told.cpu_s
            self.looks[i] = Look(told.came, backlog, sent)
        elif told.do == "bad" and told.peer < len(self.nodes):
            self._bad(self.nodes[told.peer], node)
        elif told.do == "lost":
            tell(log, "lost its source", node=node.name, source=told.peer, why=told.why)
        elif told.do == "ready" and told.file < len(self.plan.objects):
            tell(log, "file is ready", node=node.name, file=self.plan.objects[told.file].path)
        elif told.do == "done":
            node.root, node.done_s, node.count = told.root, time.monotonic(), len(self.plan.chunks)
            tell(log, "node is done", node=node.name)
            for file, why in told.odd:
                if file < len(self.plan.objects):
                    self.out.odd[self.plan.objects[file].path] = shown(why)
        elif told.do == "reader":
            node.reader = shown(told.text)
            tell(log, "its reader failed", level=logging.WARNING, node=node.name, why=node.reader)
        elif told.do == "failed":
            self.talk.lose(node, told.code, told.text, told.hint)

    def _compared(self) -> bool:
        """Once every living node has everything: each file is read by one of them, then all publish. False where a file
        is not what its store says, so that nobody does.
        """
        waits = {self.at[n.name]: n for n in self.members if n.failed is None and not n.root}
        if not waits or not all(n.whole for n in waits.values()):
            return True
        if self.comparison is None:
            self.said |= self._kept()
            self.comparison = Comparison([o.size for o in self.plan.objects], self.said)
            self.out.num_compared = len(self.comparison.said)
        for number, files in self.comparison.assign(waits.keys()).items():
            what = {"do": "compare", "files": {f: self.said[f] for f in files}}
            self.talk.say(what, to=self.members[number])
        if not self.comparison.is_over:
            return True
        self.out.num_unread = len(self.comparison.unread)
        self.out.num_compared -= self.out.num_unread
        for file, found in self.comparison.bad.items():
            self.out.wrong[self.plan.objects[file].path] = f"the store says {self.said[file]}, its bytes have {found}"
        order = {"do": "drop", "files": sorted(self.comparison.bad)} if self.out.wrong else {"do": "publish"}
        for node in waits.values():
            self.talk.say(order, to=node)
            node.whole = False
        if self.out.wrong:
            self._dropped()
        return not self.out.wrong

    def _kept(self) -> dict[int, str]:
        """File -> what its store keeps of it and tells only who asks for it, where nothing else is known."""
        numbers = {o.path: i for i, o in enumerate(self.plan.objects) if i not in self.said}
        kept = self.source.digests([self.plan.objects[i] for i in numbers.values()])
        return {numbers[path]: digest for path, digest in kept.items()}

    def _dropped(self) -> None:
        """Wait until nodes have noted which files to fetch anew, as long as that may take."""
        left, deadline = {n.name for n in self.members if n.failed is None}, time.monotonic() + START_S
        while left and time.monotonic() < deadline:
            left -= {node.name for node, told in self.talk.read(0.25) if told.do == "dropped"}
            left -= {n.name for n in self.members if n.failed is not None}

    def _bad(self, giver: NodeState, taker: NodeState) -> None:
        """A chunk did not verify. Whom the evidence singles out takes no further part."""
        assert self.scheduler is not None
        self.out.bad[giver.name, taker.name] += 1
        if giver.name not in self.at:
            return
        self._order(self.scheduler.did_not_verify(self.at[giver.name], self.at[taker.name]))
        for number, others in self.scheduler.culprits.items():
            node, names = self.members[number], fold(self.members[n].name for n in others)
            if len(others) > 1:
                self.talk.lose(node, "weights/bad-node", f"chunks between it and each of {names} did not verify", "")
            else:
                text = f"chunks from {names} go on not to verify here: one of the two changes them"
                self.talk.lose(node, "weights/bad-chunk", text, f"fairlead preflight -w {names},{node.name}")

    def _is_read(self, node: NodeState) -> bool:
        """Whether it has everything, and only its reader is not done."""
        return bool(self.options.stream_to) and node.count == len(self.plan.chunks)

    def _stalled(self, now: float) -> None:
        """Everything is on some node, and only this one gets no further: its disk or its way does not move."""
        assert self.scheduler is not None
        waits = [n for n in self.members if n.failed is None and not n.root and not self._is_read(n)]
        leased = any(p.leased for p in self.scheduler.peers if p.alive)
        if self.comparison is not None or self.scheduler.to_fetch or leased:
            for node in waits:
                node.moved_s = now
        found = stalled(waits, now, self.options.give_up_s)
        if found is not None:
            self.talk.lose(found[0], "weights/stalled", found[1], "")
            for other in waits:
                other.moved_s = now

    def _refused(self, node: NodeState, told: Told) -> None:
        """The origin did not give a node some chunks. An address that ran out is made anew; others may try."""
        assert self.scheduler is not None
        i = self.at[node.name]
        tell(log, "the origin refuses", level=logging.WARNING, node=node.name, why=told.why)
        files = {file for c in told.chunks for file, _, _ in self.plan.chunks[c]}
        if told.stale and files and max(self.fresh[f] for f in files) < MAX_FRESH:
            self.fresh.update(files)
            again = [c for c in told.chunks if c in self.scheduler.peers[i].leased]
            try:
                self._order([Lease(i, tuple(again))])
            except FairleadError:
                pass
            else:
                return
        before = set(self.scheduler.lost)
        self._order(self.scheduler.refused(i, told.chunks, final=told.final or told.stale))
        if not told.final and time.monotonic() - self.came_s > self.options.give_up_s:
            self.scheduler.given_up()  # each chunk by each node would take days
        for chunk in self.scheduler.lost - before:
            paths = {file: self.plan.objects[file].path for file, _, _ in self.plan.chunks[chunk]}
            culprit = paths.get(-1 if told.of is None or chunk not in told.chunks else told.of)
            for path in [culprit] if culprit else paths.values():
                self.out.missing[path] = told.why
                self.out.kinds[told.why] = told.kind
            self.out.beside |= {path: culprit for path in paths.values() if culprit and path != culprit}

    def _ask(self, now: float) -> None:
        """Have the nodes ask the origin for more at a time, or for less."""
        num_bytes = sum(n.counts.get("origin_bytes", 0) for n in self.members)
        if (at_once := self.asking.look(num_bytes, now)) is not None:
            self.talk.say({"do": "ask", "at_once": at_once})

    def _order(self, orders: Sequence[Order]) -> None:
        """Carry the scheduler's orders to the nodes."""
        for order in orders:
            if self.moves or not isinstance(order, Take):  # nobody says where it is where nobody lacks anything
                what = words_of(order, self.members, self.plan, self.source, self.asking.at_once)
                self.talk.say(what, to=self.members[order.node])

    def _silent(self, now: float) -> None:
        """Who says nothing while others do is lost."""
        heard = [n.heard_s for n in self.members if n.failed is None]
        latest = max(heard, default=now)
        for node in self.members:
            if node.failed is None and not node.root and latest - node.heard_s > self.options.silent_s:
                self.talk.lose(node, "weights/node-lost", f"it said nothing for {self.options.silent_s:g} s", "")

    def _is_settled(self) -> bool:
        """Everything that can be had is on every node, and only that is missing which cannot be had."""
        assert self.scheduler is not None
        left = len(self.plan.chunks) - len(self.scheduler.lost)
        alive = [n for n in self.members if n.failed is None]
        leased = any(peer.leased for peer in self.scheduler.peers if peer.alive)
        return not leased and not self.scheduler.to_fetch and all(n.count >= left for n in alive)

    def _give_up(self) -> None:
        """What came is kept for the next run; nothing half is published."""
        tell(log, "gives up", level=logging.WARNING, missing=len(self.out.missing))

    def _show(self) -> None:
        alive = [n for n in self.members if n.failed is None]
        if not alive:
            return
        behind = min(alive, key=lambda n: n.count)
        busy = ", the origin is busy" if any(n.busy for n in alive) else ""
        total = len(self.plan.chunks) * len(alive)
        self.progress("chunks", sum(n.count for n in alive), total, f"{behind.name} has {behind.count}{busy}")
