"""Where a store is: in a folder of this machine, with its engine inside of this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from fairlead.base.files import own_place
from fairlead.errors import FairleadError
from fairlead.logs import schema
from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.relation import Embedded, Engine
from fairlead.logs.kql.sql.text import quoted

_BUSY_S = 10.0


class Home(Protocol):
    """What a store needs of the place where it is."""

    session: Any
    """`query(sql)` of it runs a statement; RuntimeError says what the engine has against it."""
    engine: Engine
    """What answers queries."""

    def close(self) -> None:
        """Another process may have it."""

    def view(self, table: str) -> None:
        """Make the table of a source."""

    def block(self, data: bytes, form: str, columns: str) -> contextlib.AbstractContextManager[tuple[str, str, bytes]]:
        """Some bytes as a table of these columns: its name, and what stands behind the statement that reads it."""

    def once(self, what: str) -> str:
        """What a statement's settings say, so that a block that is sent twice is kept once."""

    def write(self, sql: str, file: IO[bytes]) -> None:
        """The rows of a SELECT into an open file, as Parquet."""

    def parts(self) -> str:
        """The table of parts of `Logs`."""

    def drop(self, part: str) -> str:
        """The statement that drops a day of `Logs`."""

    def free_bytes(self) -> int | None:
        """How much room its disk has; None: its server knows."""


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


class Visible(Embedded):
    """The engine, as queries see it."""

    def tables(self) -> Iterable[str]:
        """All but those that the store keeps for itself."""
        return [name for name in super().tables() if not name.startswith("_")]


class Folder:
    """A store in a folder: ClickHouse inside of this process (chdb), with one owner at a time by a lock."""

    def __init__(self, place: Path) -> None:
        from chdb import session

        self.place = place
        self._held = contextlib.ExitStack()
        self._held.enter_context(owned(place))
        try:
            self.session = session.Session(str(place / "engine"))
            self._held.callback(self.session.close)
            for name in ("Logs", "_files", "_reached"):
                self.session.query(schema.local(name))
            self._part_by_day()
            self._index_words()
        except BaseException:
            self._held.close()
            raise
        self.engine: Engine = Visible(self.session)

    def close(self) -> None:
        """Another process may have it."""
        self._held.close()

    def view(self, table: str) -> None:
        """Make the table of a source."""
        self.session.query(schema.view(table))

    @contextlib.contextmanager
    def block(self, data: bytes, form: str, columns: str) -> Iterator[tuple[str, str, bytes]]:
        """Some bytes as a table: a file in memory."""
        with os.fdopen(os.memfd_create("block"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"file('/proc/self/fd/{file.fileno()}', {quoted(form)}, {quoted(columns)})", "", b""

    def once(self, what: str) -> str:
        """A statement in this process has an end that is known."""
        return ""

    def write(self, sql: str, file: IO[bytes]) -> None:
        """The rows of a SELECT into an open file, as Parquet."""
        self.session.query(f"INSERT INTO FUNCTION file('/proc/self/fd/{file.fileno()}', 'Parquet') {sql}")

    def parts(self) -> str:
        """The table of parts of `Logs`."""
        return "(SELECT * FROM system.parts WHERE database = currentDatabase() AND table = 'Logs')"

    def drop(self, part: str) -> str:
        """The statement that drops a day of `Logs`."""
        return f"ALTER TABLE Logs DROP PARTITION ID {quoted(part)}"

    def free_bytes(self) -> int | None:
        """How much room its disk has."""
        return shutil.disk_usage(self.place).free

    def _index_words(self) -> None:
        """A table that was made before there was an index of words gets one."""
        if not next(Embedded(self.session).rows(words.MADE))[0]:
            for statement in schema.index():
                self.session.query(statement)

    def _part_by_day(self) -> None:
        """A table that was made before days could be dropped is copied once; a kill leaves the old one."""
        asked = "SELECT partition_key FROM system.tables WHERE database = currentDatabase() AND name = 'Logs'"
        if next(Embedded(self.session).rows(asked))[0]:
            return
        for statement in (
            "DROP TABLE IF EXISTS _parted", schema.local("Logs", "_parted"),
            "INSERT INTO _parted SELECT * FROM Logs SETTINGS max_partitions_per_insert_block = 0",
            "EXCHANGE TABLES Logs AND _parted", "DROP TABLE _parted",
        ):  # fmt: skip
            self.session.query(statement)
