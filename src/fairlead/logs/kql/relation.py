"""A table while a query runs: its columns, and rows that are read when somebody asks for them.

Must not know: syntax, functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.logs.kql.kinds import Column
from fairlead.logs.kql.problems import too_much

Row = tuple[Any, ...]
Rows = Callable[[], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Relation:
    """Columns and rows."""

    columns: tuple[Column, ...]
    rows: Rows
    ordered: bool = False
    """Whether its order means something: window functions may look at neighbours."""
    name: str = ""
    """The table it is, for `withsource`."""
    pushed: Any = None
    """The same as SQL of the store's engine, as long as all of it can be said so (`sql.py`)."""

    def place(self, name: str) -> int | None:
        """Where a column stands."""
        return next((i for i, column in enumerate(self.columns) if column.name == name), None)

    def with_rows(self, columns: Iterable[Column], rows: Rows, *, ordered: bool | None = None) -> Relation:
        """Another table made from this one, no longer SQL."""
        keep = self.ordered if ordered is None else ordered
        return Relation(tuple(columns), rows, keep, self.name)

    def named(self, name: str) -> Relation:
        """The same under a name."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may take of this machine."""

    rows: int = 20_000_000
    """Rows that an operator holds at a time."""
    memory_bytes: int = 0
    """Memory of this process; 0: half of what the machine has free when the query starts."""
    answer_rows: int = 500_000
    """Rows of an answer, as Kusto's own default."""


class Meter:
    """Counts what an operator holds, and stops a query before it eats the memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.most = limits.memory_bytes or _free() // 2 + _resident()
        self.held = 0

    def hold(self, rows: Iterable[Row]) -> list[Row]:
        """All rows, in memory. Raises Refused."""
        return list(self.watched(rows))

    def watched(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows, counted."""
        for num, row in enumerate(rows, 1):
            if not num % 4096:
                self.check(num)
            yield row

    def check(self, num: int) -> None:
        """Raises Refused where a limit is broken."""
        if num > self.limits.rows:
            raise too_much(f"this query holds more than {self.limits.rows:,} rows in memory", _LESS)
        if _resident() > self.most:
            raise too_much(f"this query takes more than {self.most >> 20:,} MiB of memory", _LESS)


_LESS = "put `where`, `summarize` or `take` first, or raise --memory"


def _resident() -> int:
    try:
        with Path("/proc/self/statm").open(encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _free() -> int:
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 4 << 30
