"""A store on a server or a cluster of ClickHouse, over HTTP: the same tables, the same statements.

What is sent is sent again where the connection breaks before an answer: a block carries a token, by which the server
keeps it once (`insert_deduplication_token`); all other statements may be done twice. One process at a time writes: it
says so in `_owner`, by the server's clock, every LEASE_S / 3 seconds, and stops where it could not.

Must not know: records, files.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import re
import secrets
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

from fairlead.base.trust import read_file
from fairlead.errors import FairleadError, UsageError
from fairlead.logs import schema
from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.relation import Engine
from fairlead.logs.kql.sql.text import named, quoted
from fairlead.logs.table import PASSWORD_ENV, wrong
from fairlead.records.border import shown

OLDEST = (24, 8)
"""The oldest release of ClickHouse whose documentation has all that is asked of it."""
LEASE_S = 30.0
_RETRY_S, _BUSY_S, _CONNECT_S, _LIMIT_S = 60.0, 40.0, 10.0, 900.0
_NO_CONNECTION = (OSError, http.client.HTTPException)
_CODE = re.compile(r"(?:Code: )?([0-9]{1,9})(?![0-9])")
"""Of the header, and at the beginning of the text."""
_PAGE = 1 << 20
_ROW_BYTES = 256 << 20
"""More than any row: a record has 1 MiB, and what one asks for of many is bounded by memory."""
_CLUSTER = {"select_sequential_consistency": "1", "insert_quorum": "auto", "insert_quorum_parallel": "0",
            "insert_quorum_timeout": "20000", "distributed_foreground_insert": "1",
            "distributed_product_mode": "global"}  # fmt: skip
"""On a cluster: what was acknowledged is on most replicas, and what is asked of the tables holds all of it."""
_UNKNOWN, _EARLIER, _TOO_FEW = 319, 286, 285
"""Of a block: it is on too few replicas yet, an earlier one is, or too few replicas are up and nothing was kept."""
_REFUSED = {
    192: "there is no such user, or the password is another", 193: "the password is another",
    194: "it wants a password", 516: "there is no such user, or the password is another",
    497: "the user may not do this", 81: "there is no such database",
}  # fmt: skip


class Server(NamedTuple):
    """Whom to ask, and as whom."""

    url: str
    """Without a user."""
    database: str
    user: str
    password: str
    cluster: str

    @classmethod
    def of(cls, url: str, password_file: str = "", cluster: str = "", env: Mapping[str, str] = os.environ) -> Server:
        """From `[logs]`. Raises UsageError."""
        found = urllib.parse.urlsplit(url)
        if problem := wrong(url):
            raise UsageError("cli/usage", problem, hint='store = "http://user@host:8123/logs"')
        password = env.get(PASSWORD_ENV, "")
        if password_file:
            try:
                password = read_file(password_file, 4096, ours=True).decode().strip("\r\n")
            except (OSError, ValueError) as error:
                text = f"{password_file}: {getattr(error, 'strerror', '') or error}"
                raise UsageError("cli/usage", text, hint="password_file in [logs]") from None
        host = f"[{found.hostname}]" if ":" in str(found.hostname) else found.hostname
        port = found.port or (8443 if found.scheme == "https" else 8123)
        database = urllib.parse.unquote(found.path.strip("/")) or "default"
        user = urllib.parse.unquote(found.username or "") or "default"
        return cls(f"{found.scheme}://{host}:{port}", database, user, password, cluster)

    def __str__(self) -> str:
        return f"{self.url}/{self.database}"


class Refused(RuntimeError):
    """What the engine has against a statement."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Said:
    """An answer as the embedded engine gives it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def bytes(self) -> bytes:
        """All of it."""
        return self._data


class Session:
    """Statements to a server, each over a connection of its own; threads may share it."""

    def __init__(self, server: Server, settings: Mapping[str, str], guard: Callable[[], None] = lambda: None) -> None:
        """`guard` is asked before anything is sent. Raises UsageError."""
        self.server, self.guard = server, guard
        found = urllib.parse.urlsplit(server.url)
        self._secure = ssl.create_default_context() if found.scheme == "https" else None
        self._host, self._port = str(found.hostname), found.port or 0
        asked = {"database": server.database, "wait_end_of_query": "1", **settings}
        self._path = "/?" + urllib.parse.urlencode(asked)
        self._headers = {"X-ClickHouse-User": server.user, "X-ClickHouse-Key": server.password}
        self._heard, self._lost = False, ""
        if any(not word.isprintable() or not word.isascii() for word in self._headers.values()):
            raise UsageError("cli/usage", "the user or the password is no plain ASCII", hint="password_file in [logs]")

    def query(self, sql: str | bytes, form: str = "") -> Said:
        """Run a statement, however often it has to be sent. Raises Refused or FairleadError.

        A block that is on too few replicas is not seen by questions, and will be once they are back: it goes again, as
        the same block, until it is on enough. Where that lasts too long, nothing more is asked over this session.
        """
        body = sql.encode() if isinstance(sql, str) else sql
        if form:
            body += f" FORMAT {form}".encode()
        until = time.monotonic() + _RETRY_S
        is_unsettled = False
        while True:
            try:
                with self._asked(body) as answer:
                    return Said(answer.read())
            except _NO_CONNECTION as error:
                if not self._heard or time.monotonic() > until:  # who was never there is not waited for
                    raise self._away(error) from None
                time.sleep(0.5)
            except Refused as error:
                is_first, is_unsettled = not is_unsettled, is_unsettled or error.code in {_UNKNOWN, _EARLIER}
                if not is_unsettled or error.code not in {_UNKNOWN, _EARLIER, _TOO_FEW}:
                    raise
                if time.monotonic() > until or (is_first and error.code == _EARLIER):  # an earlier one is another's
                    self._lost = (
                        f"too few replicas of {self.server} are up to keep a block, or to say whether it is kept"
                    )
                    self._check()
                time.sleep(0.5)

    def _check(self) -> None:
        if self._lost:
            raise FairleadError("logs/server", self._lost, hint="once they are up, start it again")
        self.guard()

    def lines(self, sql: str) -> Iterator[bytes]:
        """The lines of an answer, as they come. Raises Refused or FairleadError."""
        for line in self._pieces(sql, lambda answer: answer.readline(_ROW_BYTES)):
            if len(line) == _ROW_BYTES:
                raise self._away(http.client.HTTPException(f"a row of its answer has {_ROW_BYTES:,} bytes and no end"))
            yield line.rstrip(b"\n")

    def into(self, sql: str, file: IO[bytes]) -> None:
        """An answer into a file. Raises Refused or FairleadError; OSError is of the file alone."""
        for chunk in self._pieces(sql, lambda answer: answer.read(_PAGE)):
            file.write(chunk)
        file.flush()

    def _pieces(self, sql: str, more: Callable[[http.client.HTTPResponse], bytes]) -> Iterator[bytes]:
        try:
            with self._asked(sql.encode()) as answer:
                while piece := more(answer):
                    yield piece
                if answer.length:  # http.client says nothing of an answer that ends early and is read by pieces
                    raise http.client.HTTPException(f"its answer ended {answer.length:,} bytes too early")
        except _NO_CONNECTION as error:
            raise self._away(error) from None

    @contextlib.contextmanager
    def _asked(self, body: bytes) -> Iterator[http.client.HTTPResponse]:
        self._check()
        made: http.client.HTTPConnection
        if self._secure:
            made = http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_S, context=self._secure)
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_S)
        try:
            made.connect()
            made.sock.settimeout(_LIMIT_S)
            made.request("POST", self._path, body, self._headers)
            answer = made.getresponse()
            if answer.status != 200:
                self._refused(answer)
            self._heard = True
            yield answer
        finally:
            made.close()

    def _refused(self, answer: http.client.HTTPResponse) -> None:
        text = answer.read(_PAGE).decode("utf-8", "replace").strip()
        found = _CODE.fullmatch(answer.headers.get("X-ClickHouse-Exception-Code", "")) or (
            _CODE.match(text) if text.startswith("Code: ") else None
        )
        code = int(found[1]) if found else 0
        if code in _REFUSED:
            said = f"{self.server} refuses the user {shown(self.server.user, 60)}: {_REFUSED[code]}"
            if code == 81:
                said = f"{self.server.url} has no database {shown(self.server.database, 60)}"
            raise FairleadError("logs/server", said, hint=f"store and password_file in [logs], or {PASSWORD_ENV}")
        if not code:
            said = f"{self.server.url} is no ClickHouse server: {answer.status} {shown(text, 100)}"
            raise FairleadError("logs/server", said, hint="store in [logs] names its HTTP port, 8123 or 8443")
        raise Refused(text, code)

    def _away(self, error: Exception) -> FairleadError:
        text = f"the ClickHouse server {self.server.url} does not answer: {error}"
        return FairleadError("logs/server", text, hint="store in [logs] names its HTTP port, 8123 or 8443")


class Serving:
    """The engine of a server, as queries see it."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def rows(self, sql: str) -> Iterator[list[Any]]:
        """The rows of a SELECT, as they come."""
        told = "SETTINGS output_format_json_quote_64bit_integers = 0, output_format_json_quote_denormals = 1"
        for line in self.session.lines(f"{sql} {told} FORMAT JSONCompactEachRow"):
            if line:
                if not line.startswith(b"["):
                    raise RuntimeError(line.decode("utf-8", "replace"))
                yield json.loads(line.decode("utf-8", "replace"))

    def names(self) -> list[str]:
        """The tables of the database."""
        return [row[0] for row in self.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")]

    def tables(self) -> Iterable[str]:
        """All but those that the store keeps for itself."""
        return [name for name in self.names() if not name.startswith(("_", "."))]

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Names and types."""
        sql = f"SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {quoted(table)}"  # noqa: S608
        return [(row[0], row[1]) for row in self.rows(f"{sql} ORDER BY position")]


def reading(server: Server) -> Serving:
    """A store of a server for questions alone. Raises FairleadError (`logs/server`)."""
    engine = Serving(Session(server, {"readonly": "2", "distributed_product_mode": "global"}))
    _checked(engine, server)
    if not engine.columns("Logs"):
        raise FairleadError("logs/server", f"{server} holds no store of logs", hint="fairlead logs import /var/log")
    return engine


def _checked(engine: Serving, server: Server) -> None:
    """Whether a server is one that can have the store, and has no other table of its name."""
    said = next(engine.session.lines("SELECT version() FORMAT TabSeparated"), b"")[:40].decode("ascii", "replace")
    numbers = re.match(r"(\d+)\.(\d+)", said)
    if not numbers:
        text = f"{server.url} is no ClickHouse server: it says {shown(said)}"
        raise FairleadError("logs/server", text, hint="store in [logs] names its HTTP port, 8123 or 8443")
    if (int(numbers[1]), int(numbers[2])) < OLDEST:
        text = f"{server.url} is ClickHouse {shown(said)}, which is too old"
        raise FairleadError("logs/server", text, hint=f"{'.'.join(map(str, OLDEST))} or newer")
    if server.cluster:
        known = sorted({row[0] for row in engine.rows("SELECT cluster FROM system.clusters")})
        if server.cluster not in known:
            text = f"{server.url} knows no cluster {shown(server.cluster, 60)}"
            hint = f"cluster in [logs]: {shown(', '.join(known), 200) or 'the server has none'}"
            raise FairleadError("logs/server", text, hint=hint)
    there = dict(engine.columns("Logs"))
    for name, kind, _ in schema.LOGS if there else ():
        if there.get(name) != kind:
            has = f"{name} {shown(there[name], 60)}" if name in there else f"no {name}"
            text = f"the table Logs of {server} is another's: it has {has}, not {name} {kind}"
            raise FairleadError("logs/server", text, hint="name a database of its own in store of [logs]")


def is_unsettled(session: Session, path: str) -> bool:
    """Whether the last block of a replicated table is on too few replicas; its path is the keeper's."""
    sql = f"SELECT count() FROM system.zookeeper WHERE path = {quoted(path + '/quorum')} AND name = 'status'"  # noqa: S608
    return next(session.lines(f"{sql} FORMAT TabSeparated"), b"0") != b"0"


class Owning:
    """A store of a server, for the one process that writes."""

    def __init__(self, server: Server) -> None:
        """Raises FairleadError: `logs/server`, or `logs/busy` where another process writes."""
        self.server = server
        settings = _CLUSTER if server.cluster else {}
        self.session = Session(server, settings)
        engine = Serving(self.session)
        self.engine: Engine = engine
        _checked(engine, server)
        there = set(engine.names())
        indexed = bool(next(engine.rows(words.KNOWN))[0])
        if not set(schema.TABLES) <= there:
            for statement in schema.served(server.database, server.cluster, indexed=indexed):
                self.session.query(statement)
            _checked(engine, server)
        elif indexed and not next(engine.rows(words.MADE))[0]:
            for statement in schema.index(server.database, server.cluster):
                self.session.query(statement)
        self._lease = Lease(Session(server, settings))
        self.session.guard = self._lease.check
        try:
            if server.cluster:
                self._settled()
        except BaseException:
            self.close()
            raise

    def _settled(self) -> None:
        """Wait until the last block of whoever wrote before is seen by questions, so that it is not taken twice."""
        here = f"cluster({quoted(self.server.cluster)}, system.replicas)"
        where = f"database = {quoted(self.server.database)} AND table = '_here_Logs'"
        paths = [row[0] for row in self.engine.rows(f"SELECT DISTINCT zookeeper_path FROM {here} WHERE {where}")]  # noqa: S608
        until = time.monotonic() + _BUSY_S
        while any(is_unsettled(self.session, path) for path in paths):
            if time.monotonic() > until:
                text = f"the last block of {self.server} is on too few replicas yet"
                raise FairleadError("logs/server", text, hint="once they are up, start it again")
            time.sleep(1.0)

    def close(self) -> None:
        """Another process may have it."""
        self._lease.close()

    def view(self, table: str) -> None:
        """Make the table of a source."""
        self.session.query(schema.view(table, self.server.database, self.server.cluster))

    @contextlib.contextmanager
    def block(self, data: bytes, form: str, columns: str) -> Iterator[tuple[str, str, bytes]]:
        """Some bytes as a table: what follows the statement."""
        yield f"input({quoted(columns)})", f" FORMAT {form}\n", data

    def once(self, what: str) -> str:
        """A block that is sent again is the same one."""
        return f", insert_deduplicate = 1, insert_deduplication_token = {quoted(what)}"

    def write(self, sql: str, file: IO[bytes]) -> None:
        """The rows of a SELECT into an open file, as Parquet."""
        self.session.into(f"{sql} FORMAT Parquet", file)

    def parts(self) -> str:
        """The table of parts of `Logs`; of a cluster, one replica of each shard."""
        table, at = "Logs", "system.parts"
        if self.server.cluster:
            table, at = "_here_Logs", f"cluster({quoted(self.server.cluster)}, system.parts)"
        return f"(SELECT * FROM {at} WHERE database = {quoted(self.server.database)} AND table = {quoted(table)})"  # noqa: S608

    def drop(self, part: str) -> str:
        """The statement that drops a day of `Logs`."""
        table, on = "Logs", ""
        if self.server.cluster:
            table, on = "_here_Logs", f" ON CLUSTER {named(self.server.cluster)}"
        return f"ALTER TABLE {named(self.server.database)}.{named(table)}{on} DROP PARTITION ID {quoted(part)}"

    def free_bytes(self) -> int | None:
        """The server knows, and refuses."""
        return None


class Lease:
    """The right to be the one process that writes: a claim in `_owner` that is renewed until it is given back."""

    def __init__(self, session: Session) -> None:
        self._session, self._engine = session, Serving(session)
        self._name = f"process {os.getpid()} on {platform.node()}"
        self._ended = threading.Event()
        until = time.monotonic() + _BUSY_S
        while other := self._claimed():
            if time.monotonic() > until:
                text = f"another process writes to {session.server}: {shown(other, 200)}"
                raise FairleadError("logs/busy", text, hint="wait until it ends; after a kill, half a minute")
            time.sleep(0.5 + secrets.randbelow(1000) / 1000)
        self._thread = threading.Thread(target=self._renewed, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises FairleadError where another process may write by now."""
        if time.monotonic() - self._since > LEASE_S - 5.0:
            text = "the server was not heard for so long that another process may write by now"
            raise FairleadError("logs/server", text, hint="start it again; what was acknowledged is kept")

    def close(self) -> None:
        """Give it back."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(FairleadError, RuntimeError):
            self._say(gone=1)

    def _claimed(self) -> str:
        """Say so, and look whether anybody else does: of two at the same time at least one sees the other."""
        self._number = secrets.randbits(62)
        asked = time.monotonic()
        if other := self._other():
            return other
        self._say()
        if other := self._other():
            self._say(gone=1)
            return other
        self._since = asked
        return ""

    def _other(self) -> str:
        live = (
            f"SELECT any(Name) FROM _owner WHERE Number != {self._number} GROUP BY Number HAVING max(Gone) = 0 "  # noqa: S608
            f"AND max(At) > now64(3, 'UTC') - INTERVAL {int(LEASE_S)} SECOND LIMIT 1"
        )
        return str(next(self._engine.rows(live), [""])[0])

    def _say(self, gone: int = 0) -> None:
        values = f"('owner', {quoted(self._name)}, {self._number}, {gone})"
        self._session.query(f"INSERT INTO _owner (Lock, Name, Number, Gone) VALUES {values}")  # noqa: S608 - quoted

    def _renewed(self) -> None:
        while not self._ended.wait(LEASE_S / 3):
            asked = time.monotonic()
            with contextlib.suppress(FairleadError, RuntimeError):
                self._say()
                self._since = asked
