"""Two bodies for one query: the store's engine, and the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.logs.kql import Column, NoTables, Relation, answer
from fairlead.logs.kql.evaluate import Evaluator
from fairlead.logs.kql.parser import parse
from fairlead.logs.kql.sql.relation import Embedded, StoreTables

SCHEMA = """CREATE TABLE Syslog (TimeGenerated DateTime64(6, 'UTC'), RawData String, Computer LowCardinality(String),
JobId Nullable(Int64), Level Nullable(String), Took Float64, Ok Bool, Num UInt32)
ENGINE = MergeTree ORDER BY TimeGenerated"""
FILL = r"""INSERT INTO Syslog SELECT toDateTime64('2026-01-01 00:00:00.123456', 6, 'UTC') + number * 61,
multiIf(number % 5 = 0, 'NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus', number % 5 = 1,
'mlx5_core 0000:a1:00.0: Port: 1 Link DOWN carrier-lost', number % 5 = 2, concat('Größe ', toString(number), ' ÄÖ'),
number % 5 = 3, '', concat('line\n', toString(number), '\\x')),
concat('n', toString(number % 4)), if(number % 3 = 0, NULL, number), if(number % 7 = 0, NULL, toString(number % 2)),
number / 8, number % 2, number FROM numbers(400)"""


class Rows(NoTables):
    """The same table as rows, which every operator must look at here."""

    def __init__(self, columns: tuple[Column, ...], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self.held = columns, rows

    def names(self) -> list[str]:
        return ["Syslog"]

    def table(self, name: str) -> Relation | None:
        return Relation(self.columns, self.read, False, name) if name == "Syslog" else None

    def read(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.held)


class Both:
    """Asks both, and holds them to one answer."""

    def __init__(self) -> None:
        from chdb import session

        self.session = session.Session()
        self.session.query(SCHEMA)
        self.session.query(FILL)
        self.store = StoreTables(Embedded(self.session))
        table = self.store.table("Syslog")
        assert table is not None
        self.rows = Rows(table.columns, list(table.rows()))

    def close(self) -> None:
        self.session.close()

    def is_whole(self, query: str) -> bool:
        """Whether the engine alone answers it."""
        return Evaluator(self.store).run(parse(query)).pushed is not None

    def ask(self, query: str) -> tuple[list[tuple[Any, ...]], str]:
        """The common answer, and the last SQL."""
        self.store.asked.clear()
        far, near = answer(query, self.store), answer(query, self.rows)
        assert far.columns == near.columns
        is_sorted = "sort by" in query or "top " in query
        one, two = (list(map(repr, a.rows)) for a in (far, near))
        assert (one if is_sorted else sorted(one)) == (two if is_sorted else sorted(two))
        return far.rows, self.store.asked[-1] if self.store.asked else ""
