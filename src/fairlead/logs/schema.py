"""What the store's tables are: the same columns wherever they are, on one machine or spread over a cluster.

On a cluster each table is a `ReplicatedMergeTree` on every server (`_here_NAME`), and the name itself a `Distributed`
over them. All records of a file are of one shard, so a block of a file is there whole or not at all there, too. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.text import named, quoted

LOGS = (
    ("TimeGenerated", "DateTime64(9, 'UTC')", "CODEC(Delta, ZSTD(1))"),
    ("RawData", "String", "CODEC(ZSTD(1))"),
    ("Computer", "LowCardinality(String)", ""),
    ("FilePath", "LowCardinality(String)", ""),
    ("Level", "LowCardinality(String)", ""),
    ("Component", "LowCardinality(String)", ""),
    ("Pid", "Nullable(Int64)", ""),
    ("JobId", "Nullable(Int64)", ""),
    ("Fields", "Map(LowCardinality(String), String)", "CODEC(ZSTD(1))"),
    ("TimeFrom", "LowCardinality(String)", ""),
    ("Cut", "Int64", "CODEC(ZSTD(1))"),
    ("IngestTime", "DateTime64(3, 'UTC')", "CODEC(Delta, ZSTD(1))"),
    ("SourceTable", "LowCardinality(String)", ""),
    ("FileId", "Int64", "CODEC(ZSTD(1))"),
    ("Offset", "Int64", "CODEC(Delta, ZSTD(1))"),
    ("End", "Int64", "CODEC(Delta, ZSTD(1))"),
)
_FILES = (
    "Computer String, Stem String, FileId Int64, Path String, Inode String, HeadLen Int64, Head String, End Int64, "
)
_SYNCED = "fsync_after_insert = 1, fsync_part_directory = 1"


class Table(NamedTuple):
    """One of them."""

    columns: str
    engine: str
    """The family of MergeTree, and what it is told."""
    rest: str
    shard: str
    """Which records stay together on a cluster."""


TABLES = {
    "Logs": Table(
        ", ".join(" ".join(column).strip() for column in LOGS), "MergeTree()",
        "PARTITION BY toDate(IngestTime) ORDER BY (SourceTable, TimeGenerated)", "cityHash64(FileId)",
    ),
    "_files": Table(
        _FILES + "Tail String, LastNs Int64, Version Int64", "ReplacingMergeTree(Version)",
        "ORDER BY (Computer, Stem, FileId)", "cityHash64(FileId)",
    ),
    "_reached": Table(
        "FileId Int64, End Int64, LastNs Int64", "ReplacingMergeTree(End)", "ORDER BY FileId", "cityHash64(FileId)"
    ),
    "_owner": Table(
        "Lock String, Name String, Number Int64, Gone UInt8, At DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')",
        "MergeTree()", "ORDER BY (Lock, Number) TTL toDateTime(At) + INTERVAL 1 DAY", "cityHash64(Lock)",
    ),
}  # fmt: skip


def local(name: str, shown: str = "", *, indexed: bool = True) -> str:
    """A table of the embedded engine; `shown`: under another name."""
    table = TABLES[name]
    columns = _columns(name, indexed=indexed)
    made = f"CREATE TABLE IF NOT EXISTS {named(shown or name)} ({columns}) ENGINE = {table.engine} {table.rest}"
    return f"{made} SETTINGS {_SYNCED}"


def index(database: str = "", cluster: str = "") -> list[str]:
    """What gives a table of before the index of words; the rows that are there get it by and by."""
    here, on = (f"{named(database)}." if database else "") + named("_here_Logs" if cluster else "Logs"), ""
    if cluster:
        on = f" ON CLUSTER {named(cluster)}"
    add = words.INDEX.replace("INDEX", "INDEX IF NOT EXISTS", 1)
    return [f"ALTER TABLE {here}{on} {what} INDEX {rest}" for what, rest in (
        ("ADD", add.removeprefix("INDEX ")), ("MATERIALIZE", f"{words.NAME} SETTINGS mutations_sync = 0"),
    )]  # fmt: skip


def _columns(name: str, *, indexed: bool) -> str:
    return TABLES[name].columns + (f", {words.INDEX}" if indexed and name == "Logs" else "")


def served(database: str, cluster: str = "", *, indexed: bool = False) -> list[str]:
    """The tables of a server, or of all servers of a cluster."""
    said = []
    for name, table in TABLES.items():
        if not cluster:
            # a block that is sent again after a lost answer is the same block
            said.append(f"{local(name, indexed=indexed)}, non_replicated_deduplication_window = 1000")
            continue
        here, on = f"{named(database)}.{named('_here_' + name)}", f"ON CLUSTER {named(cluster)}"
        family, _, told = table.engine.rstrip(")").partition("(")
        where = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'" + (f", {told}" if told else "")
        made = f"CREATE TABLE IF NOT EXISTS {here} {on} ({_columns(name, indexed=indexed)})"
        made += f" ENGINE = Replicated{family}({where})"
        said.append(f"{made} {table.rest} SETTINGS {_SYNCED}")
        over = f"{quoted(cluster)}, {quoted(database)}, {quoted('_here_' + name)}, {table.shard}"
        made = f"CREATE TABLE IF NOT EXISTS {named(database)}.{named(name)} {on} ({table.columns})"
        said.append(f"{made} ENGINE = Distributed({over})")
    return said


def view(table: str, database: str = "", cluster: str = "") -> str:
    """The table of a source."""
    here = f"{named(database)}." if database else ""
    on = f" ON CLUSTER {named(cluster)}" if cluster else ""
    source = f"SELECT * FROM {here}Logs WHERE SourceTable = {quoted(table)}"  # noqa: S608 - quoted
    return f"CREATE VIEW IF NOT EXISTS {here}{named(table)}{on} AS {source}"
