"""Which node failed in which preflight: a small file that outlives runs, so that a node's bad days add up.

    STATE/history.jsonl     one line a run: who was asked, who failed of what
    STATE/history.lock      held while a line is added

A line that a disk takes half of is taken back; one that a kill or a power cut tore is skipped, and the next starts on
a line of its own.
The file is bounded by lines and bytes; the oldest go first. Only nodes' own problems count: a wrong request or an odd
Python environment is no mark against a machine.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import functools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.base.files import disk_errors, write_atomic
from fairlead.base.nodeset import NodeSet
from fairlead.errors import UsageError
from fairlead.preflight.reason import Who, who_acts
from fairlead.records.codec import from_json, to_json
from fairlead.records.finding import Evidence, Finding, node
from fairlead.records.verdict import Verdict

FILE = "history.jsonl"
KEEP_LINES = 1000
KEEP_BYTES = 8 << 20
LOCK_LIMIT_S = 5.0
WINDOW = 10
AT_LEAST = 3
_OWN = ("node", "device", "port", "rank")
_OF_SLURM = ("preflight/node-state", "preflight/not-in-slurm")


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One preflight."""

    run: str
    time: str
    """UTC, ISO 8601."""
    cluster: str = ""
    nodes: str
    """Everybody who was asked, folded."""
    failed: dict[str, tuple[str, ...]] = {}
    """Node -> codes of its own faults."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """How a node did in its last preflights."""

    of: int
    """How many of them there are."""
    failures: tuple[tuple[Entry, tuple[str, ...]], ...]
    """Those it failed in, and of what; oldest first."""

    @property
    def failed(self) -> int:
        """In how many it failed."""
        return len(self.failures)

    @property
    def codes(self) -> tuple[str, ...]:
        """Of what, the most frequent first."""
        return tuple(code for code, _ in Counter(c for _, codes in self.failures for c in codes).most_common())

    def __str__(self) -> str:
        what = ", ".join(self.codes[:3]) + (", ..." if len(self.codes) > 3 else "")
        since = self.failures[0][0].time[:10]
        return f"failed {self.failed} of its last {self.of} preflights, first on {since} ({what})"


def state_place(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """Where fairlead keeps what outlives runs: `$XDG_STATE_HOME/fairlead`, else below the home directory.

    A daemon has neither; root then uses /var/lib/fairlead, anybody else a directory of their own in /var/tmp.
    """
    if env.get("XDG_STATE_HOME", "").startswith("/"):
        return Path(env["XDG_STATE_HOME"]) / "fairlead"
    home = env.get("HOME", "")
    if home.startswith("/") and home != "/":
        return Path(home) / ".local" / "state" / "fairlead"
    number = os.getuid() if uid is None else uid
    return Path("/var/lib/fairlead") if number == 0 else Path(f"/var/tmp/fairlead-{number}")  # noqa: S108


# ---- pure ------------------------------------------------------------------------------------------------------------


def entry_of(
    run_id: str, when: dt.datetime, nodes: NodeSet, findings: Iterable[Finding], *, cluster: str = ""
) -> Entry:
    """What a run leaves in the history."""
    failed: dict[str, dict[str, None]] = {}
    for finding in findings:
        is_own = finding.subject.kind in _OWN and finding.code not in _OF_SLURM
        if finding.verdict is Verdict.FAIL and is_own and who_acts(finding.code) is Who.NODE:
            for name in finding.subject.nodes:
                failed.setdefault(name, {})[finding.code] = None
    return Entry(
        run=run_id,
        time=when.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        cluster=cluster,
        nodes=str(nodes),
        failed={name: tuple(codes) for name, codes in failed.items()},
    )


@functools.lru_cache(maxsize=256)
def _asked(folded: str) -> frozenset[str]:
    """Everybody a folded set names; nobody where it is none. Runs ask for the same few sets again and again."""
    try:
        return frozenset(NodeSet(folded))
    except UsageError:
        return frozenset()


def repeats(entries: Sequence[Entry], name: str, window: int = WINDOW) -> Repeats | None:
    """A node's failures in its last `window` preflights, oldest entry first; None where there are none."""
    last = [e for e in entries if name in _asked(e.nodes)][-window:]
    failures = tuple((e, e.failed[name]) for e in last if name in e.failed)
    return Repeats(len(last), failures) if failures else None


def judge_history(
    past: Sequence[Entry], now: Entry, *, window: int = WINDOW, at_least: int = AT_LEAST
) -> list[Finding]:
    """A warning for each node of this run that failed in so many of its last preflights, this one included."""
    everything = [*past, now]
    suspects = {name for e in everything for name in e.failed} & _asked(now.nodes)
    found = {name: repeats(everything, name, window) for name in NodeSet(suspects)}
    return [_offender(name, r, at_least) for name, r in found.items() if r and r.failed >= at_least]


def _offender(name: str, found: Repeats, at_least: int) -> Finding:
    return Finding(
        code="preflight/repeat-offender",
        verdict=Verdict.WARN,
        subject=node(name),
        message=str(found),
        evidence=tuple(Evidence(f"run {e.run}", ", ".join(codes)) for e, codes in found.failures),
        remedy=f"drain it and have it repaired, even if it passes now: scontrol update nodename={name} state=drain",
        data={"failed": found.failed, "of": found.of, "limit": at_least, "codes": list(found.codes)},
    )


def failed_before(past: Sequence[Entry], now: Entry, window: int = WINDOW) -> dict[str, str]:
    """Node -> how often it failed, in words, for nodes that fail now and did before within the window."""
    found = {name: repeats([*past, now], name, window) for name in now.failed}
    return {name: str(r) for name, r in found.items() if r and r.failed > 1}


# ---- the file --------------------------------------------------------------------------------------------------------


class History:
    """The file, for one cluster; entries of other clusters are kept and not seen."""

    def __init__(self, place: Path, cluster: str = "") -> None:
        self.path = place / FILE
        self._cluster = cluster

    def entries(self) -> list[Entry]:
        """Every preflight remembered, oldest first. No file, no entries; what is no entry is skipped."""
        return [e for e in _read(self.path) if e.cluster == self._cluster]

    def add(self, entry: Entry) -> bool:
        """Remember one; False where somebody holds the lock too long. Raises DiskFull or NotPermitted."""
        line = to_json(entry, indent=0).encode() + b"\n"
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            with _locked(self.path.with_suffix(".lock"), LOCK_LIMIT_S) as is_mine:
                if is_mine:
                    _append(self.path, line)
                    _prune(self.path)
        return is_mine


def _read(path: Path) -> Iterator[Entry]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            yield from_json(line, Entry)


@contextlib.contextmanager
def _locked(path: Path, limit_s: float) -> Iterator[bool]:
    """The lock, which its holder's death frees; says whether it was had in time."""
    deadline = time.monotonic() + limit_s
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.02)
                continue
            yield True
            return


def _append(path: Path, line: bytes) -> None:
    """One line at the end, on a line of its own."""
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        if file.write(line) < len(line):
            file.truncate(size)
            raise OSError(28, os.strerror(28))
        os.fsync(file.fileno())


def _prune(path: Path) -> None:
    """Halve the file once it is too long, so that this is seldom done."""
    data = path.read_bytes()
    if len(data) <= KEEP_BYTES and data.count(b"\n") <= KEEP_LINES:
        return
    kept: list[bytes] = []
    num_bytes = 0
    for line in reversed(data.splitlines(keepends=True)):
        num_bytes += len(line)
        if len(kept) >= KEEP_LINES // 2 or (num_bytes > KEEP_BYTES // 2 and kept):
            break
        kept.append(line)
    write_atomic(path, b"".join(reversed(kept)))
