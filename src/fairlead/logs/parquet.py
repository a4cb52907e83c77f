"""The store as files of Parquet: one a day of events, and what was known of the files the records came from.

A record keeps its place (FileId, Offset, End), so it is added once, however often its file is imported; its time of
arrival becomes that of the import, from which limits count. What is read was written by anybody: its columns have the
types of the store, its values their ranges, and what it unpacks to has limits.

Must not know: which engine the store has.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from fairlead.base.files import disk_errors
from fairlead.base.trust import open_straight
from fairlead.logs.parse import MAX_LINE, MOST_CHARS
from fairlead.logs.reading import FREE, MAX_RATIO
from fairlead.logs.store import Known, Store, is_table
from fairlead.records.border import shown

MAGIC = b"PAR1"
FILES = "files.parquet"
"""Which files the records came from: with it, the files themselves are not read again after an import."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_BATCH_ROWS, _BATCH_BYTES = 16_384, 512 << 20
_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 2 << 30
_WRITTEN = (
    "SETTINGS output_format_parquet_row_group_size = 65536, output_format_parquet_row_group_size_bytes = 67108864, "
    "output_format_parquet_compression_method = 'zstd', output_format_parquet_string_as_string = 1"
)
_MAX_PLACE = 1 << 62
_EARLIEST_NS = int(dt.datetime(1900, 1, 1, tzinfo=dt.UTC).timestamp()) * 10**9


class Written(msgspec.Struct, frozen=True):
    """A file of an export."""

    path: str
    day: str
    """Empty for what is not of a day."""
    records: int
    bytes: int


class Taken(NamedTuple):
    """What an import of a file brought."""

    records: int
    """New ones."""
    known: int
    """Those that the store had already, or files of logs in the file that says which were read."""


class NotOurs(Exception):
    """A file that holds no records of a store, and why."""


# ---- out -------------------------------------------------------------------------------------------------------------


def export(store: Store, folder: Path, first: dt.date | None = None, last: dt.date | None = None) -> Iterator[Written]:
    """Write the days of events from `first` to `last`, each as one file that is there whole or not at all.

    Raises DiskFull or NotPermitted.
    """
    days = [
        (str(day), num)
        for day, num in store.engine.rows("SELECT toDate(TimeGenerated), count() FROM Logs GROUP BY 1 ORDER BY 1")
        if (first is None or str(day) >= first.isoformat()) and (last is None or str(day) <= last.isoformat())
    ]
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for day, num in days:
        sql = f"SELECT * FROM Logs WHERE toDate(TimeGenerated) = '{day}' ORDER BY SourceTable, TimeGenerated {_WRITTEN}"  # noqa: S608
        path = folder / f"logs-{day}.parquet"
        yield Written(str(path), day, num, _beside(path, lambda file, sql=sql: store.write(sql, file)))  # type: ignore[misc]
    if days:
        span = f"toDate(TimeGenerated) BETWEEN '{days[0][0]}' AND '{days[-1][0]}'"
        sql = f"FROM _files FINAL WHERE FileId IN (SELECT FileId FROM Logs WHERE {span})"  # noqa: S608 - the engine's days
        num = next(store.engine.rows(f"SELECT count() {sql}"))[0]
        sql = f"SELECT {', '.join(Known.__struct_fields__)} {sql} ORDER BY FileId {_WRITTEN}"
        path = folder / FILES
        yield Written(str(path), "", num, _beside(path, lambda file: store.write(sql, file)))


def _beside(path: Path, write: Callable[[IO[bytes]], None]) -> int:
    """Have a file written beside, synced and renamed; how long it is."""
    with disk_errors(path):
        coming = path.with_name(f".{path.name[:200]}.{os.urandom(8).hex()}")
        handle = os.open(coming, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "r+b") as file:
                write(file)
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            coming.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                coming.unlink()
            raise
    return size


# ---- in --------------------------------------------------------------------------------------------------------------


def take(store: Store, path: Path) -> Taken:
    """Add what a file holds and the store does not. Raises NotOurs, or OSError where it cannot be read."""
    new = old = 0
    for table in tables(path):
        if "Stem" in table.schema.names:
            old += len(table)
            _files(store, table)
            continue
        fresh = _records(store, table)
        new += fresh
        old += len(table) - fresh
    return Taken(new, old)


def tables(path: Path) -> Iterator[Any]:
    """What a file holds, a block of rows at a time. Raises NotOurs, or OSError where it cannot be read."""
    import pyarrow as pa
    from pyarrow import parquet

    with os.fdopen(open_straight(path), "rb") as plain:
        size = os.fstat(plain.fileno()).st_size
        try:
            file = parquet.ParquetFile(plain, arrow_extensions_enabled=False)
            schema = _schema(pa, files={"Stem", "HeadLen"} <= set(file.schema_arrow.names))
            _fits(file, schema, size)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=schema.names):
                table = pa.Table.from_batches([batch]).select(schema.names)
                if table.nbytes > _BATCH_BYTES:
                    raise NotOurs(f"{_BATCH_ROWS:,} of its records unpack to more than {_BATCH_BYTES >> 20} MiB")
                table = table.cast(schema)
                table.validate(full=True)
                if "Stem" not in schema.names:
                    _ranges(table)
                yield table
        except (pa.ArrowException, LookupError, ArithmeticError, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # of the disk, not of what was read
                raise
            raise NotOurs(f"it is no whole file of Parquet: {shown(str(error).partition(chr(10))[0], 200)}") from None


def _schema(pa: Any, *, files: bool) -> Any:
    text, number = pa.string(), pa.int64()
    if files:
        kinds = {"str": text, "int": number}
        return pa.schema([(name, kinds[str(kind)]) for name, kind in Known.__annotations__.items()])
    texts = dict.fromkeys(("RawData", "Computer", "FilePath", "Level", "Component", "TimeFrom", "SourceTable"), text)
    numbers = dict.fromkeys(("Pid", "JobId", "Cut", "FileId", "Offset", "End"), number)
    times = {"TimeGenerated": pa.timestamp("ns", "UTC"), "IngestTime": pa.timestamp("ms", "UTC")}
    return pa.schema(list((texts | numbers | times | {"Fields": pa.map_(text, text)}).items()))


def _fits(file: Any, schema: Any, size: int) -> None:
    """Whether a file has our columns, and unpacks to no more than any log does. Raises NotOurs."""
    said = {field.name: field.type for field in file.schema_arrow}
    for field in schema:
        if field.name not in said:
            raise NotOurs(f"it is no export of a store: it has no column {field.name}")
        if not _same(said[field.name], field.type):
            kind = shown(str(said[field.name]), 60)
            raise NotOurs(f"it is no export of a store: {field.name} is {kind}, not {field.type}")
    total = 0
    for at in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(at)
        total += group.total_byte_size
        if group.num_rows > _GROUP_ROWS or group.total_byte_size > _GROUP_BYTES:
            raise NotOurs(f"a group of its rows has more than {_GROUP_ROWS:,} rows or {_GROUP_BYTES >> 30} GiB")
    if total > FREE and total > MAX_RATIO * size:
        raise NotOurs(f"it unpacks to more than {MAX_RATIO:,} times its length")


def _same(said: Any, ours: Any) -> bool:
    """Whether a type is ours; the inner names of a map do not count."""
    if str(said).startswith("map<") and str(ours).startswith("map<"):
        return bool(said.key_type == ours.key_type and said.item_type == ours.item_type)
    return bool(said == ours)


def _records(store: Store, table: Any) -> int:
    """Add those that are not there, as one block; how many."""
    import pyarrow as pa
    from pyarrow import compute

    times = table["TimeGenerated"].cast(pa.int64())
    span = compute.min_max(times).as_py() if len(table) else None
    if span is None:
        return 0
    ids = compute.unique(table["FileId"]).to_pylist()
    there = store.places(span["min"], span["max"], ids)
    fresh = []
    for at, place in enumerate(zip(table["FileId"].to_pylist(), table["Offset"].to_pylist(), strict=True)):
        if place not in there:
            there.add(place)
            fresh.append(at)
    if not fresh:
        return 0
    table = table.take(fresh) if len(fresh) < len(table) else table
    for name in compute.unique(table["SourceTable"]).to_pylist():
        store.view(name)
    now = pa.array([time.time_ns() // 10**6] * len(table), pa.timestamp("ms", "UTC"))
    table = table.set_column(table.schema.get_field_index("IngestTime"), "IngestTime", now)
    packed = io.BytesIO()
    with pa.ipc.new_stream(packed, table.schema) as stream:
        stream.write_table(table)
    store.add_arrow(packed.getvalue(), table.schema.names)
    return len(fresh)


def _ranges(table: Any) -> None:
    """Whether all values are such as the store writes. Raises NotOurs."""
    import pyarrow as pa
    from pyarrow import compute

    for name in table.schema.names:
        if name not in {"Pid", "JobId"} and table[name].null_count:
            raise NotOurs(f"{name} is missing in a record")
    if not len(table):
        return
    for name, low, high in (
        ("TimeGenerated", _EARLIEST_NS, (1 << 63) - 1), ("FileId", 1, _MAX_PLACE), ("Offset", 0, _MAX_PLACE),
        ("End", 1, _MAX_PLACE), ("Cut", 0, _MAX_PLACE),
    ):  # fmt: skip
        said = compute.min_max(table[name].cast(pa.int64())).as_py()
        if said["min"] < low or said["max"] > high:
            raise NotOurs(f"{name} is out of its range in a record")
    if not compute.all(compute.less(table["Offset"], table["End"])).as_py():
        raise NotOurs("a record ends before it begins")
    if compute.max(compute.binary_length(table["RawData"])).as_py() > 4 * (MAX_LINE + MOST_CHARS):
        raise NotOurs("a record is longer than any that the store takes")
    for name in compute.unique(table["SourceTable"]).to_pylist():
        if not is_table(name):
            raise NotOurs(f"{shown(name)} is no name of a table")


def _files(store: Store, table: Any) -> int:
    """Remember the files that are not known; how many."""
    found = [Known(**row) for row in table.to_pylist()]
    if any(None in msgspec.structs.astuple(file) for file in found):
        raise NotOurs("a value is missing in a record")
    if any(not (1 <= file.FileId <= _MAX_PLACE and 0 <= file.End <= _MAX_PLACE and 0 <= file.HeadLen <= 1 << 20)
           for file in found):  # fmt: skip
        raise NotOurs("a number is out of its range in a record")
    known = {each.FileId: each.End for computer in {file.Computer for file in found} for each in store.known(computer)}
    fresh = [file for file in found if file.End > known.get(file.FileId, -1)]
    store.remember(fresh)
    return len(fresh)


def day_of(text: str) -> dt.date:
    """A day as people write it. Raises ValueError."""
    if not _DAY.fullmatch(text):
        raise ValueError(text)
    return dt.date.fromisoformat(text)


def is_parquet(path: Path, head: bytes) -> bool:
    """Whether a file is one of Parquet, or says so by its name."""
    return head.startswith(MAGIC) or path.suffix == ".parquet"


def parts(paths: Sequence[Path]) -> list[Path]:
    """The files in the order in which they are taken in: what was read before what was read from it."""
    return sorted(paths, key=lambda path: (path.name != FILES, path))
