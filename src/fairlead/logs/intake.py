"""Files into the store, each record once.

A file is known again by its node, its name without the marks of rotation, its first bytes, and the bytes before the
place where reading stopped; so a rotated or compressed file is the one that was read, and a new file of an old name is
not. Reading goes on behind the last record that the store has of it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from fairlead.logs import bulk, parquet, reading
from fairlead.logs.dcr import Rule, table_of
from fairlead.logs.eventtime import Clock, event_ns
from fairlead.logs.format import Format, format_of, formats
from fairlead.logs.parse import Context, Record, records
from fairlead.logs.reading import HEAD, Found, Member
from fairlead.logs.store import Known, Progress, Store
from fairlead.records.log import tell

_log = logging.getLogger("fairlead.logs")
BLOCK_RECORDS = 50_000
BLOCK_CHARS = 16 << 20
BLOCK_BYTES = 16 << 20
"""Of plain lines that are one INSERT: of the shortest there are, fewer rows than the engine puts into one part."""
SETTLED_S = 60
"""A file that nobody wrote to for so long is whole: its last line is taken though it has no end."""
_SHORT = 1024
"""Fewer bytes than this say little about which file it is."""


class Done(msgspec.Struct):
    """What became of a file."""

    path: str
    table: str
    records: int
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """How to read files."""

    computer: str
    form: str = ""
    rules: tuple[Rule, ...] = ()
    clock: Clock = field(default_factory=Clock)


class _Job(NamedTuple):
    found: Found
    known: Known
    start: int
    last_ns: int


@dataclass(slots=True)
class _Matcher:
    """Which file that was read before this is. Each of them is found once."""

    known: list[Known]
    progress: dict[int, Progress]
    taken: set[int] = field(default_factory=set)

    def find(self, found: Found, *, by_inode: bool) -> Known | None:
        name = _stem(found.path)
        fits = [
            each
            for each in self.known
            if each.Stem == name
            and each.FileId not in self.taken
            and (each.Inode == found.inode or not by_inode)
            and (by_inode or reading.is_rotated(found.path) or each.HeadLen >= _SHORT)
            and _is(each, found)
        ]
        best = max(fits, key=lambda each: (each.End, each.HeadLen), default=None)
        if best is not None:
            self.taken.add(best.FileId)
        return best


def _stem(path: Path) -> str:
    return reading.stem(Path(reading.text_of(path)))


def _is(known: Known, found: Found) -> bool:
    """Whether a file holds at both ends what was read from it."""
    if len(found.head) < known.HeadLen or reading.digest(found.head[: known.HeadLen]) != known.Head:
        return False
    return not known.End or reading.digest(reading.tail(found.at, known.End)) == known.Tail


def take_in(store: Store, paths: Sequence[Path | Member], wish: Wish) -> Iterator[Done]:
    """Read files into the store; one that cannot be read says so and keeps no other from it."""
    looked: list[Found] = []
    exported: list[Path] = []
    for path in paths:
        try:
            found = reading.look(path if isinstance(path, Member) else path.absolute())
        except (OSError, *reading.BROKEN) as error:
            name = path.path if isinstance(path, Member) else path
            yield Done(reading.text_of(name), "", 0, 0, f"cannot be read: {error}")
            continue
        if parquet.is_parquet(found.path, found.head):
            exported.append(found.at)
        else:
            looked.append(found)
    for path in parquet.parts(exported):
        yield _parquet(store, path)
    jobs = _jobs(store, looked, wish)
    store.remember(job.known for job in jobs)  # before their first record, so that a kill leaves none nameless
    for job in jobs:
        yield _one(store, job, wish)


def _parquet(store: Store, path: Path) -> Done:
    """Records that a store exported."""
    done = Done(reading.text_of(path), "Logs", 0, 0)
    try:
        done.records, _ = parquet.take(store, path)
        done.bytes = path.stat().st_size if done.records else 0
    except (OSError, parquet.NotOurs) as error:
        done.table, done.note = "", f"cannot be read: {error}"
    return done


def _jobs(store: Store, looked: list[Found], wish: Wish) -> list[_Job]:
    matcher = _Matcher(store.known(wish.computer), store.progress())
    matched: dict[Path, Known] = {}
    for by_inode in (True, False):
        for found in looked:
            if found.path not in matched and found.head and (known := matcher.find(found, by_inode=by_inode)):
                matched[found.path] = known
    made = []
    for found in {found.path: found for found in looked if found.head}.values():
        head_len = min(len(found.head), HEAD)
        known = Known(
            Computer=wish.computer, Stem=_stem(found.path), FileId=secrets.randbits(62),
            Path=reading.text_of(found.path), Inode=found.inode, HeadLen=head_len,
            Head=reading.digest(found.head), End=0, Tail="", LastNs=0,
            Version=time.time_ns(),
        )  # fmt: skip
        if old := matched.get(found.path):
            known = msgspec.structs.replace(known, FileId=old.FileId, End=old.End, Tail=old.Tail, LastNs=old.LastNs)
        reach = matcher.progress.get(known.FileId, Progress(0, 0))
        start, last_ns = max((known.End, known.LastNs), reach)
        made.append(_Job(found, known, start, last_ns))
    return made


def _one(store: Store, job: _Job, wish: Wish) -> Done:
    found = job.found
    first = found.head.split(b"\n")
    heads = [line.decode("utf-8", "replace") for line in first[:50]]
    form = formats()[wish.form] if wish.form else format_of(found.path, [line for line in heads if line.strip()])
    table = table_of(found.path, wish.rules) or form.table
    store.view(table)
    done = Done(reading.text_of(found.path), table, 0, 0)
    settled = (
        reading.is_packed(found) or found.at != found.path or time.time_ns() - found.written_ns > SETTLED_S * 10**9
    )
    clock = replace(wish.clock, written_ns=found.written_ns, now_ns=wish.clock.now_ns or time.time_ns())
    context = Context(clock, wish.computer, heads[0] if heads else "", job.last_ns)
    end, last_ns = job.start, job.last_ns
    problems: list[str] = []
    try:
        with reading.opened(found.at) as file:
            while True:
                if plain := _plain(store, file, end, (form, context.clock), (job, table)):
                    read, last_ns, number = plain
                    done.records += number
                    end += read
                    continue
                began, context = end, replace(context, last_ns=last_ns)
                rest = records(reading.lines(file, end, problems, whole=settled), form, context)
                for block in _blocks(_until(rest, end + BLOCK_BYTES)):
                    store.add(block, done.path, table, job.known.FileId)
                    done.records += len(block)
                    end = block[-1].end
                    last_ns = block[-1].time_ns if block[-1].time_from != "file" else last_ns
                if end == began or problems:
                    break
        known = msgspec.structs.replace(
            job.known,
            End=end,
            Tail=reading.digest(reading.tail(found.at, end)),
            LastNs=last_ns,
            Version=time.time_ns(),
        )
        if end != job.known.End:
            store.remember([known])
    except (OSError, *reading.BROKEN) as error:
        problems.append(str(error))
    if problems:
        done.note = f"read up to byte {end}: {problems[0]}"
    done.bytes = end - job.start
    tell(_log, "file is in the store", path=done.path, table=table, records=done.records, bytes=done.bytes)
    return done


def _plain(
    store: Store, file: IO[bytes], start: int, how: tuple[Format, Clock], whose: tuple[_Job, str]
) -> tuple[int, int, int] | None:
    """The next lines as one block that the engine parses: bytes, time of the last line, how many; None: it cannot."""
    form, clock = how
    job, table = whose
    if reading.is_packed(job.found) or not bulk.can(form, clock) or reading.is_bomb(file):
        return None
    file.seek(start)
    data = file.read(BLOCK_BYTES)
    # the last line may go on in what follows
    block = data[: data.rfind(b"\n", 0, max(0, data.rfind(b"\n"))) + 1]
    number = bulk.form_of(block, form) if block else None
    if number is None:
        return None
    path = reading.text_of(job.found.path)
    place = bulk.Place(path, table, job.known.FileId, job.known.Computer, start, f"{time.time():.3f}")
    if not store.add_plain(block, form, number, clock, place):
        return None
    last = block[block.rfind(b"\n", 0, -1) + 1 : -1]
    pattern, kind = form.compiled.lines[number]
    said = pattern.match(last.decode())
    when = event_ns(kind, said["time"], clock) if said else None
    return len(block), when or 0, block.count(b"\n")


def _until(found: Iterator[Record], end: int) -> Iterator[Record]:
    for record in found:
        yield record
        if record.end >= end:
            return


def _blocks(found: Iterator[Record]) -> Iterator[list[Record]]:
    block: list[Record] = []
    size = 0
    for record in found:
        block.append(record)
        size += len(record.raw) + 100
        if len(block) >= BLOCK_RECORDS or size >= BLOCK_CHARS:
            yield block
            block, size = [], 0
    if block:
        yield block
