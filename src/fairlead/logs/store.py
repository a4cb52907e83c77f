"""The store of logs: ClickHouse in this process (`home.py`) or on a server (`server.py`), with one owner at a time.

`Logs` holds every record; each table of a format (`slurmctld_raw_CL`, ...) is a view of it, with the four columns of
the published rules first. `_files` holds which file was read how far, `_reached` the same of what was dropped. Names
with `_` are not for queries.

A block of records is one INSERT, of one time of arrival, into a table that is parted by the day of arrival; so it is
one part, and the engine keeps all of it or nothing. How far a file was read is therefore a question to `Logs` itself,
and a kill between any two steps loses and repeats nothing. Days are dropped whole (`retention.py`).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from fairlead.errors import FairleadError
from fairlead.logs import bulk, schema
from fairlead.logs.eventtime import Clock
from fairlead.logs.format import Format, formats
from fairlead.logs.home import Folder, Home
from fairlead.logs.kql.relation import Relation
from fairlead.logs.kql.sql.relation import Engine, StoreTables
from fairlead.logs.kql.sql.text import named, quoted
from fairlead.logs.parse import Record
from fairlead.logs.server import Owning, Server, reading
from fairlead.logs.table import Logs, is_url
from fairlead.records.journal import state_place

_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_REACH = "argMaxIf(toUnixTimestamp64Nano(TimeGenerated), End, TimeFrom != 'file')"
_ONE_PART = "SETTINGS input_format_parallel_parsing = 0, max_insert_block_size = 1048576, max_insert_threads = 1"
_ONE_BLOCK = (
    "SETTINGS max_threads = 1, max_insert_threads = 1, max_insert_block_size = 1048576, max_block_size = 1048576"
)
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


def is_store(place: Path | Server) -> bool:
    """Whether a store was made there; of a server that is seen when it is asked."""
    return not isinstance(place, Path) or (place / "owner.lock").is_file()


def place_of(store: Path | None, keep: Logs) -> Path | Server:
    """Where the store is: the folder that is named, or what the cluster file says. Raises UsageError."""
    if store is None and is_url(keep.store):
        return Server.of(keep.store, keep.password_file, keep.cluster)
    return (store or (Path(keep.store).expanduser() if keep.store else default_place())).absolute()


class Store:
    """An open store. One process has it; `close` gives it back."""

    def __init__(self, place: Path | Server) -> None:
        """Raises FairleadError: `logs/busy` where another process has it, `logs/server` where no server answers."""
        try:
            self.home: Home = Folder(place) if isinstance(place, Path) else Owning(place)
            self.session, self.engine = self.home.session, self.home.engine
            self._made = set(self.engine.tables())
            for form in formats().values():
                self.view(form.table)
        except RuntimeError as error:
            self.close()
            raise _failed(error) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Another process may have it."""
        if hasattr(self, "home"):
            self.home.close()

    def view(self, table: str) -> None:
        """A table of a source, made where it is not there. Raises FairleadError where that is no name."""
        if not is_table(table):
            raise FairleadError("logs/rules", f"{table[:120]!r} is no name of a table", hint="letters, digits and _")
        if table not in self._made:
            self.home.view(table)
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
        what = "partition, partition_id, sum(rows), sum(bytes_on_disk)"
        sql = f"SELECT {what} FROM {self.home.parts()} WHERE active GROUP BY ALL ORDER BY ALL"  # noqa: S608 - our own
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
            self.session.query(self.home.drop(day.part))
        except RuntimeError as error:
            raise _failed(error) from None

    def remember(self, files: Iterable[Known]) -> None:
        """Files, for `known`."""
        self._insert("_files", (msgspec.to_builtins(file) for file in files))

    def add(self, records: Iterable[Record], path: str, table: str, file_id: int) -> None:
        """A block of records: all of them, or none where this does not return."""
        self.add_all((record, path, table, file_id) for record in records)

    def add_plain(self, block: bytes, form: Format, number: int, clock: Clock, place: bulk.Place) -> bool:
        """A block of lines of one form, parsed by the engine: all of it, or nothing where it is not plain after all."""
        once = self.home.once(f"{place.file_id}:{place.offset}:{place.offset + len(block)}")
        try:
            with self.home.block(block, "RawBLOB", "s String") as (source, behind, data):
                sql = (
                    f"INSERT INTO Logs {bulk.statement(form, number, clock, place, source)} {_ONE_BLOCK}{once}{behind}"
                )
                self.session.query(sql.encode() + data if data else sql)
        except RuntimeError as error:
            if bulk.NOT_PLAIN in str(error):
                return False
            raise _failed(error) from None
        return True

    def add_arrow(self, block: bytes, names: Sequence[str]) -> None:
        """A block of records as a stream of Arrow with these columns: all of them, or none."""
        columns, types = ", ".join(map(named, names)), {name: kind for name, kind, _ in schema.LOGS}
        told = ", ".join(f"{named(name)} {types[name]}" for name in names)
        once = self.home.once(hashlib.sha256(block).hexdigest())
        with self.home.block(block, "ArrowStream", told) as (source, behind, data):
            sql = f"INSERT INTO Logs ({columns}) SELECT {columns} FROM {source} {_ONE_BLOCK}{once}{behind}"  # noqa: S608
            self._do(sql.encode() + data if data else sql)

    def write(self, sql: str, file: IO[bytes]) -> None:
        """The rows of a SELECT into an open file, as Parquet."""
        try:
            self.home.write(sql, file)
        except RuntimeError as error:
            raise _failed(error) from None

    def _do(self, sql: str | bytes) -> None:
        try:
            self.session.query(sql)
        except RuntimeError as error:
            raise _failed(error) from None

    def add_all(self, rows: Iterable[tuple[Record, str, str, int]]) -> None:
        """A block of records of many files: (record, path, table, file) each. All of them, or none."""
        now, said = f"{time.time():.3f}", hashlib.sha256()

        def made() -> Iterator[dict[str, Any]]:
            for row in rows:
                said.update(b"%d:%d:%d " % (row[3], row[0].offset, row[0].end))
                yield _row(*row, now)

        self._insert("Logs", made(), said)

    def _insert(self, table: str, rows: Iterable[Mapping[str, Any]], once: Any = None) -> None:
        encode = msgspec.json.Encoder().encode
        data = b"\n".join(encode(row) for row in rows).decode()
        if not data:
            return
        settings = _ONE_PART + (self.home.once(once.hexdigest()) if once else "")
        self._do(f"INSERT INTO {named(table)} {settings} FORMAT JSONEachRow\n{data}\n")


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


class LazyTables:
    """The tables of a store that is opened by the first query that names one."""

    def __init__(self, place: Path | Server) -> None:
        self.place = place
        self.store: Store | None = None
        self._tables: StoreTables | None = None

    @property
    def engine(self) -> Engine:
        """What answers."""
        return self._opened().engine

    def _opened(self) -> StoreTables:
        if self._tables is None:
            if isinstance(self.place, Path):
                self.store = Store(self.place)
                self._tables = StoreTables(self.store.engine)
            else:
                self._tables = StoreTables(reading(self.place))
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
