"""The owner's side of collecting: batches of many nodes become one block of the store, and then they are acknowledged.

One thread has the engine. What stands in its queue when it comes round is one INSERT, so a thousand nodes cost as many
parts as one. How far each source is in the store is known from the store alone; after a failure it is asked again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.logs import reading
from fairlead.logs.batch import Header, Part, Source, as_of, file_number, taken
from fairlead.logs.dcr import Rule
from fairlead.logs.eventtime import Clock
from fairlead.logs.parse import Record
from fairlead.logs.retention import Kept, trim
from fairlead.logs.store import Known, Progress, Store
from fairlead.logs.table import Logs
from fairlead.records.log import tell

_log = logging.getLogger("fairlead.logs")
WAITING_BYTES = 64 << 20
"""Batches that wait for the engine; a node that brings more is asked to come again."""
BLOCK_RECORDS, BLOCK_CHARS = 50_000, 16 << 20
MAX_SOURCES = 200_000
NEW_AT_ONCE, NEW_PER_S = 8192, 1.0
"""Sources that a node may bring that the store does not know: a job's files are hundreds, and a node that names others
without end would grow the store and this process. Twice what one batch holds; beyond it the node comes again.
"""
TRIM_S = 60.0
"""So often it is looked whether days have to go."""
FREE_BYTES = 256 << 20
"""So much room a disk must have for the store to take anything: merges write before they remove."""


class Busy(Exception):
    """Too much waits already, or the node names too many new sources."""


class Allowance:
    """How many sources that nobody knows a node may still bring: a bucket that fills up steadily."""

    def __init__(self, at_once: int, per_s: float) -> None:
        self.at_once, self.per_s = at_once, per_s
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, node: str, num: int, now_s: float) -> bool:
        """Whether it may bring so many now."""
        left, since = self._left.get(node, (float(self.at_once), now_s))
        left = min(self.at_once, left + (now_s - since) * self.per_s)
        self._left[node] = (left - num if num <= left else left, now_s)
        return num <= left


@dataclass(slots=True)
class NodeSaid:
    """A node, since the owner was started."""

    heard: float
    records: int = 0
    bytes: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Batch:
    header: Header
    parts: list[bytes]
    size: int
    central: bool
    done: Future[dict[str, Any]] = field(default_factory=Future)


@dataclass(slots=True)
class _Block:
    """Records for one INSERT, and what is true once it is done."""

    rows: list[tuple[Record, str, str, int]] = field(default_factory=list)
    chars: int = 0
    reached: dict[int, Progress] = field(default_factory=dict)
    fresh: list[Known] = field(default_factory=list)
    answers: list[tuple[_Batch, dict[str, Any], int]] = field(default_factory=list)


class Receiver:
    """Takes batches into a store, in a thread of its own."""

    def __init__(
        self, store: Store, *, clock: Clock | None = None, rules: tuple[Rule, ...] = (), keep: Logs | None = None
    ) -> None:
        self.store, self.clock, self.rules, self.keep = store, clock or Clock(), rules, keep or Logs()
        self.kept: Kept = trim(store, self.keep)
        """What the store held when it was last looked at."""
        self._trim_at = time.monotonic() + TRIM_S
        self.engine = threading.Lock()
        """Held by who talks to the store."""
        self.reached: dict[int, Progress] = store.progress()
        self.sources: OrderedDict[int, Source] = OrderedDict()
        self.nodes: dict[str, NodeSaid] = {}
        self.broken = ""
        self._new = Allowance(NEW_AT_ONCE, NEW_PER_S)
        self._queue: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._thread.start()

    def put(self, header: Header, parts: list[bytes], *, central: bool = False) -> Future[dict[str, Any]]:
        """Have a batch taken; what its node is answered. Raises Busy, or FairleadError where the engine is gone.

        `central`: it comes from a central log host, whose lines are of the hosts that they name.
        """
        if self.broken:
            raise FairleadError("logs/engine", self.broken, hint="start fairlead logs serve again")
        batch = _Batch(header, parts, sum(map(len, parts)), central)
        with self._lock:
            if self._waiting and self._waiting + batch.size > WAITING_BYTES:
                raise Busy
            self._waiting += batch.size
        self._queue.put(batch)
        return batch.done

    def close(self) -> None:
        """Finish what waits, and end."""
        self._queue.put(None)
        self._thread.join()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            block = _Block()
            self._trimmed()
            try:
                batch = self._queue.get(timeout=max(0.1, self._trim_at - time.monotonic()))
            except queue.Empty:
                continue
            while batch is not None:
                self._prepared(block, batch)
                if len(block.rows) >= BLOCK_RECORDS or block.chars >= BLOCK_CHARS:
                    break
                try:
                    batch = self._queue.get_nowait()
                except queue.Empty:
                    break
            going = batch is not None
            self._commit(block)

    def _trimmed(self) -> None:
        """Drop what the limits say, now and then; what cannot be dropped is tried again."""
        if time.monotonic() < self._trim_at:
            return
        self._trim_at = time.monotonic() + TRIM_S
        try:
            with self.engine:
                self.kept = trim(self.store, self.keep)
        except Exception as error:  # noqa: BLE001 - nodes are served on
            tell(_log, "days cannot be dropped", level=logging.ERROR, error=str(error))

    def _prepared(self, block: _Block, batch: _Batch) -> None:
        with self._lock:
            self._waiting -= batch.size
        ends: dict[str, int] = {}
        unknown: list[int] = []
        num = len(block.rows)
        if self.broken:  # how far sources are in the store is not known any more: nothing may be taken twice
            batch.done.set_exception(FairleadError("logs/engine", self.broken, hint="start fairlead logs serve again"))
            return
        node = batch.header.node
        new = [p for p in batch.header.sources if p.head and file_number(node, p.id) not in self.reached]
        if new and not self._new.take(node, len(new), time.monotonic()):
            batch.done.set_exception(Busy())
            return
        try:
            for part, data in zip(batch.header.sources, batch.parts, strict=True):
                self._part(block, (node, batch.central), (part, data), ends, unknown)
        except Exception as error:  # noqa: BLE001 - whatever one node sends, the others are served
            batch.done.set_exception(error)
            return
        block.answers.append((batch, {"ends": ends, "unknown": unknown}, len(block.rows) - num))

    def _part(
        self, block: _Block, by: tuple[str, bool], sent: tuple[Part, bytes], ends: dict[str, int], unknown: list[int]
    ) -> None:
        node, central = by
        part, data = sent
        number = file_number(node, part.id)
        source = self.sources.get(number)
        if source is None:
            if not part.head:
                unknown.append(part.id)
                return
            source = self.sources[number] = Source.of(part, self.rules)
            block.fresh.append(_known(node, number, part, source))
            while len(self.sources) > MAX_SOURCES:
                self.sources.popitem(last=False)
        self.sources.move_to_end(number)
        now_ns = time.time_ns()
        clock = replace(
            self.clock, written_ns=min(part.written_ns or now_ns, now_ns), now_ns=now_ns, boot_ns=part.boot_ns or None
        )
        before = block.reached.get(number) or self.reached.get(number) or Progress(0, 0)
        found = taken(part, data, source, (node, clock), before)
        if not central:
            as_of(node, found.records)
        last_ns = next((each.time_ns for each in reversed(found.records) if each.time_from != "file"), before.last_ns)
        block.reached[number] = Progress(max(found.end, before.end), last_ns)
        block.rows += [(record, source.path, source.table, number) for record in found.records]
        block.chars += sum(len(record.raw) + 100 for record in found.records)
        ends[str(part.id)] = found.end

    def _commit(self, block: _Block) -> None:
        try:
            if block.rows or block.fresh:
                with self.engine:
                    self._write(block)
        except Exception as error:  # noqa: BLE001 - each of them waits for an answer
            self._look_again(block)
            for batch, _, _ in block.answers:
                batch.done.set_exception(error)
            return
        self.reached.update(block.reached)
        now = time.time()
        for batch, answer, num in block.answers:
            said = self.nodes.setdefault(batch.header.node, NodeSaid(now))
            said.heard, said.lost = now, batch.header.lost
            said.records += num
            said.bytes += batch.size
            batch.done.set_result(answer)
        if block.rows:
            tell(_log, "block is in the store", level=logging.DEBUG, records=len(block.rows), nodes=len(block.answers))

    def _write(self, block: _Block) -> None:
        free = self.store.home.free_bytes()
        if free is not None and free < FREE_BYTES:
            raise FairleadError(
                "logs/engine", f"less than {FREE_BYTES >> 20} MiB are free for the store",
                hint="make room on the disk; nodes keep what they have until then",
            )  # fmt: skip
        for table in {table for _, _, table, _ in block.rows}:
            self.store.view(table)
        self.store.remember(block.fresh)
        self.store.add_all(block.rows)

    def _look_again(self, block: _Block) -> None:
        """Whether a block that failed is in the store after all: only the store knows."""
        for number in {number for _, _, _, number in block.rows}:
            self.sources.pop(number, None)  # and its node says again what it is
        try:
            with self.engine:
                found = self.store.progress(block.reached)
            for number in block.reached:
                if number in found and found[number].end > self.reached.get(number, Progress(0, 0)).end:
                    self.reached[number] = found[number]
        except Exception as error:  # noqa: BLE001 - what was kept nobody knows now: a new owner asks the store
            self.broken = f"the store's engine does not answer: {error}"
            tell(_log, "the engine does not answer", level=logging.ERROR, error=str(error))


def _known(node: str, number: int, part: Part, source: Source) -> Known:
    return Known(
        Computer=node, Stem=reading.stem(Path(part.path)), FileId=number, Path=part.path, Inode=f"0:{part.inode}",
        HeadLen=len(source.head), Head=reading.digest(source.head), End=0, Tail="", LastNs=0, Version=time.time_ns(),
    )  # fmt: skip
