"""`fairlead logs query`: questions in KQL, answered as a table, a document or a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairlead.base.files import write_atomic
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import Exit, FairleadError, QueryError, UsageError
from fairlead.logs.kql.evaluate import Answer as Found
from fairlead.logs.kql.evaluate import NoTables, Tables, answer
from fairlead.logs.kql.faces import csv_text, document, svg, text, write_parquet
from fairlead.logs.kql.relation import Limits
from fairlead.logs.kql.script import queries_of

if TYPE_CHECKING:
    from fairlead.logs.remote import Answered, Remote
    from fairlead.logs.server import Server
    from fairlead.logs.table import Logs


def query(
    kql: str = "",
    /,
    *,
    file: Path | None = None,
    param: list[str] | None = None,
    format: Literal["table", "csv", "svg", "parquet"] = "table",
    out: Path | None = None,
    memory: int = 0,
    rows: int = 500_000,
    store: Path | None = None,
    server: str = "",
    token_file: Path | None = None,
    authority: Path | None = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Ask in KQL, the language of Azure Monitor. `print`, `range` and `datatable` need no store.

    Parameters
    ----------
    kql
        The query, such as 'print now()'; at a terminal, none of it asks for query after query.
    file
        A file of queries, instead: parted by blank lines, or one JSON text (or {"query": ...}) a line.
    param
        name=value for a query that begins with `declare query_parameters(...)`; may be given several times.
    format
        How to answer; --json answers as a document with columns and rows.
    out
        Where to write it, instead of standard output; Parquet needs one.
    memory
        How many MiB a query may hold; 0 is half of what is free.
    rows
        How many rows an answer may have.
    store
        The folder of the store; else the one in [logs] of the cluster file, or `logs` in the user's state directory,
        where one was made. While `fairlead logs serve` has it, that is asked.
    server
        The URL of a `fairlead logs serve`, instead.
    token_file
        With --server: the file with its token.
    authority
        With an https:// server: certificates to trust, in PEM, instead of the system's.
    spec
        The cluster file, whose [logs] says where the store is; else FAIRLEAD_SPEC, or ./cluster.toml.
    """
    parameters = _parameters(param or [])
    limits = Limits(memory_bytes=memory << 20, answer_rows=rows)
    from fairlead.logs.remote import remote_of
    from fairlead.logs.store import default_place, place_of

    place = store or (default_place() if server else place_of(None, _said(spec)))
    if remote := remote_of(store if server else place, server, token_file, authority):
        return _asked(remote, (kql, file), (format, out), limits, parameters)
    with _tables(place, named=store is not None) as tables:
        if not kql and not file and sys.stdin is not None and sys.stdin.isatty():
            return _prompted(lambda kql: text(answer(kql, tables, limits=limits, parameters=parameters)))
        if bool(kql) == bool(file):
            raise UsageError("cli/usage", "one query, or one --file of them", hint="fairlead logs query 'print 1'")
        if file is not None:

            def one(kql: str, name: str) -> tuple[dict[str, Any], str]:
                found = answer(kql, tables, limits=limits, parameters=parameters, name=name)
                return document(found), text(found)

            return _script(file, one)
        found = answer(kql, tables, limits=limits, parameters=parameters)
    if found.cut:
        session().note(f"the answer has more than {rows:,} rows: the rest is left out; --rows takes more")
    return Answer(schema="fairlead.query/1", text=lambda: _written(found, format, out, kql), body=document(found))


def _asked(
    remote: Remote, said: tuple[str, Path | None], how: tuple[str, Path | None], limits: Limits, named: dict[str, str]
) -> Answer:
    """The same from the owner of the store."""
    (kql, file), (form, out) = said, how
    if form == "parquet":
        raise UsageError("cli/usage", "a server answers with no Parquet", hint="--format csv")

    def ask(text: str, face: str = "table") -> Answered:
        return remote.ask(text, form=face, rows=limits.answer_rows, memory_bytes=limits.memory_bytes, parameters=named)

    if not kql and not file and sys.stdin is not None and sys.stdin.isatty():
        return _prompted(lambda text: ask(text).text)
    if bool(kql) == bool(file):
        raise UsageError("cli/usage", "one query, or one --file of them", hint="fairlead logs query 'print 1'")
    if file is not None:

        def one(text: str, _: str) -> tuple[dict[str, Any], str]:
            return (found := ask(text)).document, found.text

        return _script(file, one)
    found = ask(kql, form)
    if found.cut:
        session().note(f"the answer has more than {limits.answer_rows:,} rows: the rest is left out; --rows takes more")

    def written() -> str:
        if out is None:
            return found.text
        write_atomic(out, found.text if found.text.endswith("\n") else found.text + "\n")
        return f"{found.num_rows} rows in {out}"

    return Answer(schema="fairlead.query/1", text=written, body=found.document)


def _said(spec: Path | None) -> Logs:
    """What the cluster file says, where there is one: a bare machine has none, and needs none for `print 1`."""
    import os

    from fairlead.cli.logs_import import keep_of
    from fairlead.logs.table import Logs
    from fairlead.spec.loader import DEFAULT_FILE

    if spec is None and not os.environ.get("FAIRLEAD_SPEC") and not Path(DEFAULT_FILE).exists():
        return Logs()
    return keep_of(spec)


def _tables(place: Path | Server, *, named: bool) -> contextlib.AbstractContextManager[Tables]:
    """Where the tables are: none is opened before a query names one."""
    from fairlead.logs.store import LazyTables, is_store

    if named and not is_store(place):
        raise UsageError("cli/usage", f"{place} holds no store of logs", hint="fairlead logs import /var/log")
    if not is_store(place):
        return contextlib.nullcontext(NoTables())
    return contextlib.closing(LazyTables(place.absolute() if isinstance(place, Path) else place))


def _prompted(ask_one: Callable[[str], str]) -> Answer:
    """Query after query, at a terminal."""
    from fairlead.logs.kql.prompt import ask
    from fairlead.records.journal import state_place

    def answered(kql: str) -> None:
        try:
            session().say(ask_one(kql), session().stdout)
        except FairleadError as error:
            session().say(str(error))
        except KeyboardInterrupt:
            session().say("interrupted")

    ask(answered, state_place() / "kql-history")
    return Answer(schema="fairlead.query/1", text="")


def _parameters(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError("cli/usage", f"`{word}` is no name=value", hint="--param node=n1")
        found[name] = value
    return found


def _written(found: Found, form: str, out: Path | None, command: str) -> str:
    if form == "parquet":
        if out is None:
            raise UsageError("cli/usage", "Parquet is no text: say where to write it", hint="--out answer.parquet")
        write_parquet(found, out)
        return f"{len(found.rows)} rows in {out}"
    made = csv_text(found) if form == "csv" else _drawn(found, command) if form == "svg" else text(found)
    if out is None:
        return made
    write_atomic(out, made if made.endswith("\n") else made + "\n")
    return f"{len(found.rows)} rows in {out}"


def _drawn(found: Found, command: str) -> str:
    if found.render is None:
        raise UsageError("cli/usage", "nothing says how to draw this", hint="| render timechart")
    made = svg(found, command)
    if not made:
        raise UsageError("cli/usage", "the answer holds no numbers to draw", hint="--format table")
    return made


def _script(file: Path, ask_one: Callable[[str, str], tuple[dict[str, Any], str]]) -> Answer:
    """Every query of a file, one after the other; one that is wrong does not keep the others from their answers."""
    results: list[dict[str, Any]] = []
    pages: list[str] = []
    wrong = 0
    for name, kql in queries_of(file):
        head = {"id": name} if name else {}
        try:
            body, page = ask_one(kql, name or f"query {len(results) + 1}")
        except QueryError as error:
            wrong += 1
            problem = error.problems[0]
            said = {"code": problem.code, "message": problem.message, "line": problem.line, "column": problem.column}
            results.append(head | {"query": kql, "error": said | {"hint": problem.hint}})
            pages.append(str(error))
            continue
        results.append(head | {"query": kql} | body)
        pages.append(page)
    whole: dict[str, Any] = {"results": results}
    if len(results) == 1 and not wrong:
        whole |= {key: results[0][key] for key in ("columns", "rows")}
    return Answer(
        schema="fairlead.query/1", text="\n\n".join(pages), body=whole, exit=int(Exit.USAGE) if wrong else None
    )
