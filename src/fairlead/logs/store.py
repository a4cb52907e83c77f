"""The store of logs: an embedded ClickHouse (chdb) in one folder, with one owner at a time.

`Logs` holds every record; each table of a format (`slurmctld_raw_CL`, ...) is a view of it, with the four columns of
the published rules first. `_files` holds which file was read how far, `_reached` the same of what was dropped. Names
with `_` are not for queries.

A block of records is one INSERT, of one time of arrival, into a table that is parted by the day of arrival; so it is
one part, and the engine keeps all of it or nothing. How far a file was read is therefore a question to `Logs` itself,
and a kill between any two steps loses and repeats nothing. Days are dropped whole (`retention.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from fairlead.base.files import own_place
from fairlead.errors import FairleadError
from fairlead.logs import bulk
from fairlead.logs.eventtime import Clock
from fairlead.logs.format import Format, formats
from fairlead.logs.kql.relation import Relation
from fairlead.logs.kql.sql.relation import Embedded, StoreTables
from fairlead.logs.kql.sql.text import named, quoted
from fairlead.logs.parse import Record
from fairlead.records.journal import state_place

_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_LOGS = """CREATE TABLE IF NOT EXISTS {} (
TimeGenerated DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)), RawData String CODEC(ZSTD(1)),
Computer LowCardinality(String), FilePath LowCardinality(String), Level LowCardinality(String),
Component LowCardinality(String), Pid Nullable(Int64), JobId Nullable(Int64),
Fields Map(LowCardinality(String), String) CODEC(ZSTD(1)), TimeFrom LowCardinality(String), Cut Int64 CODEC(ZSTD(1)),
IngestTime DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)), SourceTable LowCardinality(String),
FileId Int64 CODEC(ZSTD(1)), Offset Int64 CODEC(Delta, ZSTD(1)), End Int64 CODEC(Delta, ZSTD(1)))
ENGINE = MergeTree PARTITION BY toDate(IngestTime) ORDER BY (SourceTable, TimeGenerated)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"""
_FILES = """CREATE TABLE IF NOT EXISTS _files (
Computer String, Stem String, FileId Int64, Path String, Inode String, HeadLen Int64, Head String, End Int64,
Tail String, LastNs Int64, Version Int64)
ENGINE = ReplacingMergeTree(Version) ORDER BY (Computer, Stem, FileId)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"""
_REACHED = """CREATE TABLE IF NOT EXISTS _reached (FileId Int64, End Int64, LastNs Int64)
ENGINE = ReplacingMergeTree(End) ORDER BY FileId SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"""
_REACH = "argMaxIf(toUnixTimestamp64Nano(TimeGenerated), End, TimeFrom != 'file')"
_ONE_PART = "SETTINGS input_format_parallel_parsing = 0, max_insert_block_size = 1048576, max_insert_threads = 1"
_ONE_BLOCK = (
    "SETTINGS max_threads = 1, max_insert_threads = 1, max_insert_block_size = 1048576, max_block_size = 1048576"
)
_BUSY_S = 10.0
_MANY = 1000


class Known(msgspec.Struct, frozen=True):
    """A file that was read: how it is known again, and how far it was read when all was well."""

    Computer: str
    Stem: str
    FileId: int
    Path: str
    Inode: str
    HeadLen: int
    Head: str
    End: int
    Tail: str
    LastNs: int
    Version: int


class Day(NamedTuple):
    """What the store took in on a day (UTC), and has."""

    date: str
    part: str
    """The engine's own name of it."""
    records: int
    bytes: int


class Progress(NamedTuple):
    """How far the records of a file reach."""

    end: int
    last_ns: int


def is_table(name: str) -> bool:
    """Whether a table of a source may be called so."""
    return bool(_TABLE.fullmatch(name)) and name != "Logs"


def default_place() -> Path:
    """Where the store is, unless somebody says otherwise."""
    return state_place() / "logs"


def is_store(place: Path) -> bool:
    """Whether a store was made there."""
    return (place / "owner.lock").is_file()


@contextlib.contextmanager
def owned(place: Path) -> Iterator[int]:
    """The right to be the one process that has the store open. Raises FairleadError (`logs/busy`)."""
    own_place(place, elsewhere="--store FOLDER")
    fd = os.open(place / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        until = time.monotonic() + _BUSY_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    pid = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
                    text = f"another process has the store {place} open: {pid or 'unknown'}"
                    raise FairleadError("logs/busy", text, hint="wait until it ends, or name another --store") from None
                time.sleep(0.1)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield fd
    finally:
        os.close(fd)


class Store:
    """An open store. One process has it; `close` gives it back."""

    def __init__(self, place: Path) -> None:
        from chdb import session

        self.place = place
        self._held = contextlib.ExitStack()
        self._held.enter_context(owned(place))
        try:
            self.session = session.Session(str(place / "engine"))
            self._held.callback(self.session.close)
            self._made: set[str] = set()
            for statement in (_LOGS.format("Logs"), _FILES, _REACHED):
                self.session.query(statement)
            self._part_by_day()
            for form in formats().values():
                self.view(form.table)
        except RuntimeError as error:
            self._held.close()
            raise _failed(error) from None
        except BaseException:
            self._held.close()
            raise
        self.engine = _Engine(self.session)

    def close(self) -> None:
        """Another process may have it."""
        self._held.close()

    def view(self, table: str) -> None:
        """A table of a source, made where it is not there. Raises FairleadError where that is no name."""
        if not is_table(table):
            raise FairleadError("logs/rules", f"{table[:120]!r} is no name of a table", hint="letters, digits and _")
        if table not in self._made:
            source = f"SELECT * FROM Logs WHERE SourceTable = {quoted(table)}"  # noqa: S608 - quoted
            self.session.query(f"CREATE VIEW IF NOT EXISTS {named(table)} AS {source}")
            self._made.add(table)

    def known(self, computer: str) -> list[Known]:
        """The files of a node that were read before."""
        sql = f"SELECT {', '.join(Known.__struct_fields__)} FROM _files FINAL WHERE Computer = {quoted(computer)}"  # noqa: S608
        return [Known(*row) for row in self.engine.rows(sql)]

    def progress(self, numbers: Iterable[int] | None = None) -> dict[int, Progress]:
        """By file, how far its records reach; of all files, or of some."""
        where = "" if numbers is None else f"WHERE FileId IN ({', '.join(map(str, numbers)) or 'NULL'})"
        sql = (
            f"SELECT FileId, max(e), argMaxIf(n, e, n != 0) FROM (SELECT FileId, max(End) AS e, {_REACH} AS n "  # noqa: S608
            f"FROM Logs {where} GROUP BY FileId UNION ALL SELECT FileId, End, LastNs FROM _reached {where}) "
            "GROUP BY FileId"
        )
        return {row[0]: Progress(row[1], row[2]) for row in self.engine.rows(sql)}

    def days(self) -> list[Day]:
        """What is there by the day on which it was taken in, the oldest first."""
        sql = (
            "SELECT partition, partition_id, sum(rows), sum(bytes_on_disk) FROM system.parts "
            "WHERE active AND database = currentDatabase() AND table = 'Logs' GROUP BY ALL ORDER BY ALL"
        )
        return [Day(*row) for row in self.engine.rows(sql)]

    def has(self, file_id: int, offset: int) -> bool:
        """Whether a record is there."""
        sql = f"SELECT count() FROM Logs WHERE FileId = {int(file_id)} AND Offset = {int(offset)}"  # noqa: S608
        return bool(next(self.engine.rows(sql))[0])

    def places(self, first_ns: int, last_ns: int, files: Sequence[int]) -> set[tuple[int, int]]:
        """Of the records of some files with times in between: file and offset."""
        first, last = (f"fromUnixTimestamp64Nano(toInt64({int(ns)}), 'UTC')" for ns in (first_ns, last_ns))
        sql = f"SELECT FileId, Offset FROM Logs WHERE TimeGenerated BETWEEN {first} AND {last}"  # noqa: S608 - numbers
        if len(files) <= _MANY:
            sql += f" AND FileId IN ({', '.join(str(int(each)) for each in files) or 'NULL'})"
        return {(row[0], row[1]) for row in self.engine.rows(sql)}

    def drop_day(self, day: Day, say: Callable[[], None]) -> None:
        """Drop all that was taken in on a day; `say` it before. Each step may be done again after a kill."""
        try:
            self.session.query(
                f"INSERT INTO _reached SELECT FileId, max(End), {_REACH} FROM Logs "  # noqa: S608
                f"WHERE toDate(IngestTime) = {quoted(day.date)} GROUP BY FileId"
            )
            say()
            self.session.query(f"ALTER TABLE Logs DROP PARTITION ID {quoted(day.part)}")
        except RuntimeError as error:
            raise _failed(error) from None

    def _part_by_day(self) -> None:
        """A table that was made before days could be dropped is copied once; a kill leaves the old one."""
        asked = "SELECT partition_key FROM system.tables WHERE database = currentDatabase() AND name = 'Logs'"
        if next(_Engine(self.session).rows(asked))[0]:
            return
        for statement in (
            "DROP TABLE IF EXISTS _parted", _LOGS.format("_parted"),
            "INSERT INTO _parted SELECT * FROM Logs SETTINGS max_partitions_per_insert_block = 0",
            "EXCHANGE TABLES Logs AND _parted", "DROP TABLE _parted",
        ):  # fmt: skip
            self.session.query(statement)

    def remember(self, files: Iterable[Known]) -> None:
        """Files, for `known`."""
        self._insert("_files", (msgspec.to_builtins(file) for file in files))

    def add(self, records: Iterable[Record], path: str, table: str, file_id: int) -> None:
        """A block of records: all of them, or none where this does not return."""
        now = f"{time.time():.3f}"
        self._insert("Logs", (_row(record, path, table, file_id, now) for record in records))

    def add_plain(self, block: bytes, form: Format, number: int, clock: Clock, place: bulk.Place) -> bool:
        """A block of lines of one form, parsed by the engine: all of it, or nothing where it is not plain after all."""
        with os.fdopen(os.memfd_create("block"), "wb") as file:
            file.write(block)
            file.flush()
            source = f"file('/proc/self/fd/{file.fileno()}', 'RawBLOB', 's String')"
            try:
                sql = bulk.statement(form, number, clock, place, source)
                self.session.query(f"INSERT INTO Logs {sql} {_ONE_BLOCK}")
            except RuntimeError as error:
                if bulk.NOT_PLAIN in str(error):
                    return False
                raise _failed(error) from None
        return True

    def add_arrow(self, block: bytes, names: Sequence[str]) -> None:
        """A block of records as a stream of Arrow with these columns: all of them, or none."""
        columns = ", ".join(map(named, names))
        with os.fdopen(os.memfd_create("block"), "wb") as file:
            file.write(block)
            file.flush()
            source = f"file('/proc/self/fd/{file.fileno()}', 'ArrowStream')"
            self._do(f"INSERT INTO Logs ({columns}) SELECT {columns} FROM {source} {_ONE_BLOCK}")  # noqa: S608

    def write(self, sql: str, file: IO[bytes]) -> None:
        """The rows of a SELECT into an open file, as Parquet."""
        self._do(f"INSERT INTO FUNCTION file('/proc/self/fd/{file.fileno()}', 'Parquet') {sql}")

    def _do(self, sql: str) -> None:
        try:
            self.session.query(sql)
        except RuntimeError as error:
            raise _failed(error) from None

    def add_all(self, rows: Iterable[tuple[Record, str, str, int]]) -> None:
        """A block of records of many files: (record, path, table, file) each. All of them, or none."""
        now = f"{time.time():.3f}"
        self._insert("Logs", (_row(*row, now) for row in rows))

    def _insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        encode = msgspec.json.Encoder().encode
        data = b"\n".join(encode(row) for row in rows).decode()
        if not data:
            return
        try:
            self.session.query(f"INSERT INTO {named(table)} {_ONE_PART} FORMAT JSONEachRow\n{data}\n")
        except RuntimeError as error:
            raise _failed(error) from None


def _failed(error: RuntimeError) -> FairleadError:
    said = str(error).partition("\n")[0][:300]
    hint = "make room on the disk" if "NOT_ENOUGH_SPACE" in said else "what was added before is kept; import again"
    return FairleadError("logs/engine", f"the store's engine refused: {said}", hint=hint)


def _row(record: Record, path: str, table: str, file_id: int, now: str) -> dict[str, Any]:
    return {
        "TimeGenerated": f"{record.time_ns // 10**9}.{record.time_ns % 10**9:09d}",
        "RawData": record.raw,
        "Computer": record.node,
        "FilePath": path,
        "Level": record.level,
        "Component": record.component,
        "Pid": record.pid,
        "JobId": record.job,
        "Fields": record.fields,
        "TimeFrom": record.time_from,
        "Cut": record.cut,
        "IngestTime": now,
        "SourceTable": table,
        "FileId": file_id,
        "Offset": record.offset,
        "End": record.end,
    }


class _Engine(Embedded):
    """The engine, as queries see it."""

    def tables(self) -> Iterable[str]:
        return [name for name in super().tables() if not name.startswith("_")]


class LazyTables:
    """The tables of a store that is opened by the first query that names one."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store: Store | None = None
        self._tables: StoreTables | None = None

    def _opened(self) -> StoreTables:
        if self._tables is None:
            self.store = Store(self.place)
            self._tables = StoreTables(self.store.engine)
        return self._tables

    def names(self) -> list[str]:
        """Of all tables."""
        return self._opened().names()

    def table(self, name: str) -> Relation | None:
        """One of them; None where there is none."""
        return self._opened().table(name)

    def close(self) -> None:
        """Another process may have the store."""
        if self.store is not None:
            self.store.close()
            self.store = self._tables = None
