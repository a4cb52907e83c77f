"""Run folders: what every command that touches a cluster leaves behind.

    runs/20261120-214207-preflight-7f3a/
      run.json        who ran what, when, which version          (RunInfo; written first, again at the end)
      spec.toml       the cluster file as it was
      facts/NODE.json what was read on each node
      commands.jsonl  every command run on nodes: argv, rc, ms, bytes
      log.jsonl       what was done, one Event a line   (records/log.py)
      findings.json   what was judged
      result.json     the document `--json` prints              (written last: a folder without it was cut short)

A folder is claimed by creating it, so two commands in the same second never share one. Whole files are written
atomically; the two line files only ever grow by whole lines. Folder and files are for the caller alone: commands and
what nodes answered stand in them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from fairlead import __version__
from fairlead.base.files import disk_errors, own_place, write_atomic
from fairlead.base.process import start_ticks
from fairlead.base.trust import PRIVATE_DIR, PRIVATE_FILE, private_opener, read_file, why_not_ours
from fairlead.errors import RunError
from fairlead.records.codec import builtins, from_json, to_json
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.journal import state_place
from fairlead.records.verdict import Verdict

DEFAULT_KEEP = 50
MAX_HEAD_BYTES, MAX_PART_BYTES = 1 << 20, 1 << 28
"""What run.json, and any other file of a run, can be at most: the facts of a node are some 100 KiB."""
_NAME = re.compile(r"\d{8}-\d{6}-[a-z-]+-[0-9a-f]{4}\Z")


class RunInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The head of a run: enough to know what it was without opening anything else. Times are UTC, ISO 8601."""

    id: str
    verb: str
    argv: tuple[str, ...]
    version: str
    start: str
    end: str = ""
    verdict: str = ""
    exit: int | None = None
    host: str = ""
    python: str = ""
    cwd: str = ""
    pid: int = 0
    started_ticks: int = 0
    """With `pid` and `host`: whether the process that writes the folder still lives."""


def now_utc() -> str:
    """The time now, to the millisecond: `2026-11-20T21:42:07.123Z`."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_id(verb: str, when: dt.datetime | None = None) -> str:
    """A fresh run id: time, verb, four random hex digits."""
    stamp = (when or dt.datetime.now(dt.UTC)).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{re.sub('[^a-z]+', '-', verb)}-{secrets.token_hex(2)}"


def default_place(cwd: Path | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """Where run folders go when nobody says: ./runs, or the user's state directory where ./runs cannot be.

    The root directory never takes run folders, also for root: schedulers start their prologs there. Nor does a place
    where somebody else could exchange them.
    """
    here = cwd or Path(_cwd())
    if here != Path(here.anchor) and os.access(here, os.W_OK) and not why_not_here(here):
        return here / "runs"
    return state_place(env) / "runs"


def why_not_here(cwd: Path | None = None) -> str:
    """Why no run folders are kept below the current directory, in words; empty where nothing speaks against it."""
    here = cwd or Path(_cwd())
    return why_not_ours(here / "runs" if os.path.lexists(here / "runs") else here)


def _cwd() -> str:
    """The current directory; the root where it was removed under us."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"


class RunFolder:
    """One run's folder, open for writing."""

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path = path
        self.info = info

    @classmethod
    def create(cls, place: Path, verb: str, argv: Iterable[str], run_id: str | None = None) -> RunFolder:
        """Claim a new folder below `place`. Raises DiskFull or NotPermitted."""
        for _ in range(16):
            run_id = run_id or new_id(verb)
            path = place / run_id
            elsewhere = "choose another place with --runs DIR"
            own_place(place, elsewhere=elsewhere)
            with disk_errors(path, elsewhere=elsewhere):
                try:
                    path.mkdir(mode=PRIVATE_DIR)
                except FileExistsError:
                    run_id = None
                    continue
            info = RunInfo(
                id=run_id,
                verb=verb,
                argv=tuple(argv),
                version=__version__,
                start=now_utc(),
                host=platform.node(),
                python=platform.python_version(),
                cwd=_cwd(),
                pid=os.getpid(),
                started_ticks=start_ticks(os.getpid()) or 0,
            )
            folder = cls(path, info)
            try:
                folder.write("run.json", info)
            except BaseException:
                with contextlib.suppress(OSError):
                    path.rmdir()
                raise
            return folder
        raise RunError("run/no-name", f"no free run name below {place}", hint="run the command again")

    def write(self, name: str, value: Any) -> Path:
        """Write one whole file: text and bytes as they are, anything else as JSON."""
        path = self.path / name
        write_atomic(path, value if isinstance(value, str | bytes) else to_json(value), mode=PRIVATE_FILE)
        return path

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one JSON line, whole or not at all."""
        path, line = self.path / name, to_json(builtins(record), indent=0).encode() + b"\n"
        with disk_errors(path), open(path, "ab", buffering=0, opener=private_opener) as file:
            is_new = file.tell() == 0
            try:
                _write_whole(file, line)
            except OSError:
                if is_new:
                    path.unlink(missing_ok=True)
                raise

    def write_facts(self, facts: Iterable[NodeFacts]) -> None:
        """One file a node under facts/."""
        for record in facts:
            self.write(f"facts/{record.node}.json", record)

    def finish(self, document: Mapping[str, Any], *, verdict: str, exit_code: int) -> None:
        """Write the result and close the head; the result comes last."""
        self.info = msgspec.structs.replace(self.info, end=now_utc(), verdict=verdict, exit=exit_code)
        self.write("run.json", self.info)
        self.write("result.json", document)


def _write_whole(file: IO[bytes], line: bytes) -> None:
    """A line or nothing: a disk that fills up takes part of it without a word."""
    written = file.write(line)
    if written < len(line):
        file.truncate(file.tell() - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Run:
    """A finished (or cut-short) run, read back. Raises RunError where the folder is not one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        head = path / "run.json"
        try:
            self.info = from_json(read_file(head, MAX_HEAD_BYTES, follow=False), RunInfo)
        except OSError as exc:
            raise RunError("run/not-a-run", f"{path} is not a run folder: {head.name}: {exc.strerror}") from exc
        except ValueError as exc:
            raise self._damaged("run.json", exc) from exc

    def read(self, name: str, kind: type[Any]) -> Any:
        """One file of the folder as a record."""
        path = self.path / name
        try:
            return from_json(read_file(path, MAX_PART_BYTES, follow=False), kind)
        except FileNotFoundError as exc:
            why = "the run was cut short" if name == "result.json" else "this verb does not write it"
            raise RunError("run/no-part", f"{self.path.name} has no {name}: {why}") from exc
        except (OSError, ValueError) as exc:
            raise self._damaged(name, exc) from exc

    def result(self) -> dict[str, Any]:
        """The document `--json` printed."""
        found: dict[str, Any] = self.read("result.json", dict[str, Any])
        return found

    @property
    def verdict(self) -> Verdict:
        """The verdict of the result."""
        try:
            return Verdict(self.result().get("verdict", ""))
        except ValueError as exc:
            raise self._damaged("result.json", exc) from exc

    def findings(self) -> list[Finding]:
        """The findings of the result."""
        try:
            return msgspec.convert(self.result().get("findings", []), list[Finding])
        except msgspec.ValidationError as exc:
            raise self._damaged("result.json", exc) from exc

    def _damaged(self, name: str, why: Exception) -> RunError:
        hint = "choose another run: fairlead show"
        return RunError(
            "run/damaged", f"{self.path / name} is damaged: {getattr(why, 'strerror', None) or why}", hint=hint
        )

    def facts(self) -> list[NodeFacts]:
        """Every node's facts, by node name."""
        folder = self.path / "facts"
        names = sorted(p.name for p in folder.glob("*.json")) if folder.is_dir() else []
        return [self.read(f"facts/{n}", NodeFacts) for n in names]


def list_runs(place: Path) -> list[Path]:
    """The run folders below a place, oldest first."""
    if not place.is_dir():
        return []
    return sorted(p for p in place.iterdir() if _NAME.match(p.name) and (p / "run.json").is_file())


def find_run(word: str, place: Path) -> Run:
    """A run by path, by name, by its last four digits, or `last`. Raises RunError naming what there is."""
    if os.path.isdir(word):  # noqa: PTH112 - unlike Path.is_dir, it takes any word
        return Run(Path(word))
    runs = list_runs(place)
    hits = runs[-1:] if word == "last" else [p for p in runs if p.name == word or p.name.endswith(f"-{word}")]
    if len(hits) == 1:
        return Run(hits[0])
    if hits:
        raise RunError("run/ambiguous", f"`{word}` fits {len(hits)} runs in {place}", hint="give the whole name")
    newest = f"the newest is {runs[-1].name}" if runs else "there is none yet"
    raise RunError("run/unknown", f"no run `{word}` in {place}; {newest}", hint="list them with: fairlead show")


def is_running(path: Path) -> bool:
    """Whether the process that writes a run folder may still live; on another host nobody here can tell."""
    if (path / "result.json").is_file():
        return False
    try:
        info = Run(path).info
    except RunError:
        return False
    return info.host != platform.node() or (info.pid > 0 and start_ticks(info.pid) == info.started_ticks)


def prune(place: Path, keep: int) -> list[Path]:
    """Remove the oldest ended runs beyond `keep` (0 keeps all); one that is running is never touched.

    Returns what went.
    """
    if keep <= 0:
        return []
    ended = [p for p in list_runs(place) if not is_running(p)]
    gone = ended[: max(0, len(ended) - keep)]
    for path in gone:
        # renamed first: a half-removed folder must not look like a run
        with contextlib.suppress(OSError):
            path.rename(Path(tempfile.mkdtemp(dir=place, prefix=".gone-")) / path.name)
    for doomed in place.glob(".gone-*"):
        shutil.rmtree(doomed, ignore_errors=True)
    return gone
