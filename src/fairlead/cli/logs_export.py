"""`fairlead logs export`: the store as files of Parquet, which `fairlead logs import` takes."""

from __future__ import annotations

import contextlib
import datetime as dt
from importlib import import_module
from pathlib import Path

import msgspec

from fairlead.base.table import table
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.logs_import import keep_of
from fairlead.cli.output import Answer
from fairlead.errors import UsageError
from fairlead.logs import parquet
from fairlead.logs.store import Store, is_store, place_of


def export_(
    folder: Path,
    /,
    *,
    since: str = "",
    until: str = "",
    store: Path | None = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Write the store as Parquet, a file a day: for an archive, other tools, or another store.

    `fairlead logs import FOLDER` adds them to a store, each record once, however often it is done. files.parquet says
    which files of logs the records came from: with it, those are not read again by the other store.

    Parameters
    ----------
    folder
        Where to write; files of the same days are replaced.
    since
        The first day of events (UTC), such as 2026-03-01; else all days.
    until
        The last one.
    store
        The folder of the store; else the one in [logs] of the cluster file, or `logs` in the user's state directory.
    spec
        The cluster file, whose [logs] says where the store is; else FAIRLEAD_SPEC, or ./cluster.toml.
    """
    first, last = (_day(text) if text else None for text in (since, until))
    if first and last and first > last:
        raise UsageError("cli/usage", f"{since} is behind {until}", hint="--since 2026-03-01 --until 2026-03-07")
    import_module("pyarrow")  # what has to be installed is said before what else is wrong
    place = place_of(store, keep_of(spec))
    if not is_store(place):
        raise UsageError("cli/usage", f"{place} holds no store of logs", hint="fairlead logs import /var/log")
    with contextlib.closing(Store(place)) as opened:
        done = list(parquet.export(opened, folder.absolute(), first, last))
    return Answer(
        schema="fairlead.logs-export/1",
        text=lambda: _text(done),
        body={"folder": str(folder.absolute()), "records": sum(each.records for each in done if each.day),
              "files": msgspec.to_builtins(done)},
        hints=[f"fairlead logs import --store OTHER {folder}"] if done else [],
    )  # fmt: skip


def _day(text: str) -> dt.date:
    try:
        return parquet.day_of(text)
    except ValueError:
        raise UsageError("cli/usage", f"`{text[:40]}` is no day", hint="--since 2026-03-01") from None


def _text(done: list[parquet.Written]) -> str:
    rows = [[Path(each.path).name, f"{each.records:,}", f"{each.bytes:,}"] for each in done]
    return table(["file", "records", "bytes"], rows) if rows else "the store holds nothing of these days"
