"""`fairlead logs import`: files of logs into the store, each line once."""

from __future__ import annotations

import contextlib
import datetime as dt
import platform
import tempfile
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from fairlead.base.table import table
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError
from fairlead.logs import archive, reading
from fairlead.logs.dcr import read_rules
from fairlead.logs.eventtime import Clock
from fairlead.logs.format import formats
from fairlead.logs.intake import Done, Wish, take_in
from fairlead.logs.reading import Member
from fairlead.logs.retention import trim
from fairlead.logs.store import Store, place_of
from fairlead.logs.table import Logs
from fairlead.records.verdict import Verdict


def import_(
    *paths: Path,
    store: Path | None = None,
    node: str = "",
    by_folder: bool = False,
    format: str = "",
    rules: Path | None = None,
    zone: str = "UTC",
    boot: dt.datetime | None = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Read files of logs into the store. What is there already is not read again, rotated and compressed or not.

    Parameters
    ----------
    paths
        Files, and folders with all files below them; gzip, bzip2, xz and zstd are unpacked, and so
        are archives of tar. Parquet is what `fairlead logs export` wrote: its records keep their
        files and places, and are added once.
    store
        The folder of the store; else the one in [logs] of the cluster file, or `logs` in the user's state directory.
    node
        Whose files they are, where lines do not say it; else this machine.
    by_folder
        The first folder below each path is the name of the node: DIR/gpu05/var/log/syslog.
    format
        The format of all of them; else each is known by its name, or by its lines.
    rules
        Data collection rules of Azure Monitor (a JSON file, or a folder of them) that say which table a file has.
    zone
        The zone of times without one, such as Europe/Berlin.
    boot
        When the machine started: dates the lines of dmesg that count from there.
    spec
        The cluster file, whose [logs] says where the store is and how much is kept; else FAIRLEAD_SPEC, ./cluster.toml,
        or all of it.
    """
    if not paths:
        raise UsageError("cli/usage", "name files or folders", hint="fairlead logs import /var/log")
    if missing := next((path for path in paths if not path.exists()), None):
        raise UsageError("cli/usage", f"{missing} is not there", hint="fairlead logs import /var/log")
    if format and format not in formats():
        raise UsageError("cli/usage", f"no such format: {format}", hint="one of " + ", ".join(sorted(formats())))
    clock = Clock(zone=zone_of(zone))
    if boot is not None:
        start = boot if boot.tzinfo else boot.replace(tzinfo=clock.zone)
        clock = Clock(zone=clock.zone, boot_ns=int(start.timestamp() * 1e6) * 1000)
    said = read_rules(rules) if rules else ()
    keep = keep_of(spec)
    place = place_of(store, keep)
    opened = Store(place)
    done: list[Done] = []
    with contextlib.ExitStack() as held:
        held.callback(opened.close)
        inside = held.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-logs-"))
        named = _by_node(paths, place, node or platform.node(), Path(inside), done, by_folder=by_folder)
        for each in done:
            session().note(f"{each.path}: {each.note}")
        for computer, files in named.items():
            for each in take_in(opened, files, Wish(computer, format, said, clock)):
                done.append(each)
                if each.note:
                    session().note(f"{each.path}: {each.note}")
        kept = trim(opened, keep)
        if kept.says:
            session().note(kept.says)
    total = sum(each.records for each in done)
    return Answer(
        schema="fairlead.logs-import/1",
        text=lambda: _text(done),
        verdict=Verdict.UNKNOWN if any(each.note for each in done) else Verdict.PASS,
        body={
            "store": str(place),
            "records": total,
            "files": msgspec.to_builtins(done),
            "kept": msgspec.to_builtins(kept),
        },
        hints=["fairlead logs query 'Logs | summarize count() by SourceTable, Computer'"],
    )


def keep_of(spec: Path | None) -> Logs:
    """How much is kept, as the cluster file says. Raises SpecError."""
    from fairlead.spec.loader import read

    return read(spec, or_lab=True).spec.table(Logs)


def zone_of(name: str) -> dt.tzinfo:
    """A zone by its name. Raises UsageError."""
    try:
        return ZoneInfo(name) if name != "UTC" else dt.UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError("cli/usage", f"no such zone: {name}", hint="--zone Europe/Berlin") from None


def _by_node(
    paths: tuple[Path, ...], store: object, node: str, inside: Path, done: list[Done], *, by_folder: bool
) -> dict[str, list[Path | Member]]:
    """The files, and those in archives, which are unpacked into the folder `inside`, by the node whose they are."""
    made: dict[str, list[Path | Member]] = {}

    def add(file: Path | Member, below: tuple[str, ...]) -> None:
        made.setdefault(reading.text_of(Path(below[0])) if by_folder and len(below) > 1 else node, []).append(file)

    for named in paths:
        place = named.resolve() if named.is_dir() else named  # below it no link of a stranger's is followed
        for path in reading.files_below([place]):
            if isinstance(store, Path) and path.absolute().is_relative_to(store):
                continue
            below = path.relative_to(place).parts if place.is_dir() else ()
            if not archive.is_archive(path):
                add(path, below)
                continue
            problems: list[str] = []
            to = Path(tempfile.mkdtemp(dir=inside))
            for member in archive.members(path, to, problems):
                # DIR/gpu05/logs.tar names the node as DIR/gpu05/var/log does, and so does gpu05/var/log in an archive
                names = member.path.relative_to(path.absolute()).parts
                add(member, below if len(below) > 1 else names)
            if problems:
                done.append(Done(reading.text_of(path), "", 0, 0, "; ".join(problems)))
    return made


def _text(done: list[Done]) -> str:
    tables: dict[str, list[int]] = {}
    for each in done:
        if each.table:
            so_far = tables.setdefault(each.table, [0, 0, 0])
            so_far[:] = [so_far[0] + 1, so_far[1] + each.records, so_far[2] + each.bytes]
    rows = [[name, *(f"{num:,}" for num in tables[name])] for name in sorted(tables)]
    return table(["table", "files", "new records", "new bytes"], rows) if rows else "no file holds anything"
