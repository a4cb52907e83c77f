"""How often a node may be looked at: at most once in an interval, one look at a time, a fleet spread over the interval.

Slurm starts a health program on every node at the same moment, and a prolog with every job. Between looks the last
verdict stands. Deciding is pure; the rest is a lock and one small file.

    PLACE/here.lock     held during a look; its holder's death frees it
    PLACE/here.json     the last look: when, and what was found

Times are seconds since boot, and a boot has a number: setting the clock changes nothing, and what was found before a
boot does not count after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead import __version__
from fairlead.base.files import own_place, write_atomic
from fairlead.base.trust import PRIVATE_FILE, own_folder, private_opener, read_file
from fairlead.errors import DiskFull, NotPermitted
from fairlead.records.codec import from_json, to_json
from fairlead.records.finding import Finding
from fairlead.records.journal import state_place
from fairlead.records.verdict import Verdict

PERIOD = 1.25
"""A node's turn comes once in this many intervals: what is over after the interval is room for its fixed place."""
MAX_BYTES = 1 << 24
"""What the file of the last look can be at most."""
MAX_FINDINGS = 50
_POLL_S = 0.05


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a node, as remembered."""

    node: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    """What is not well; at most MAX_FINDINGS."""
    started_s: float
    """Since boot."""
    boot: str
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Paced:
    """The verdict that holds: of a look just taken, or of the last one."""

    look: Look | None
    """None where nobody has looked yet, and somebody is at it."""
    is_fresh: bool
    age_s: float
    findings: tuple[Finding, ...] = ()
    """Of a fresh look, all of them."""


# ---- pure ------------------------------------------------------------------------------------------------------------


def next_s(node: str, started_s: float, every_s: float) -> float:
    """When a node may be looked at again: at its own place in the period, and not before `every_s` have passed.

    >>> next_s("n1", 1000.0, 0.0)
    1000.0
    """
    if every_s <= 0:
        return started_s
    period_s = PERIOD * every_s
    first_s = place_of(node) * period_s
    return first_s + math.ceil((started_s + every_s - first_s) / period_s) * period_s


def is_due(last: Look | None, node: str, every_s: float, *, now_s: float, boot: str) -> bool:
    """Whether to look now. Another boot, node or version, or a time to come, are as if nobody had looked."""
    if last is None or (last.node, last.boot, last.version) != (node, boot, __version__) or last.started_s > now_s:
        return True
    return now_s >= next_s(node, last.started_s, every_s)


def place_of(name: str) -> float:
    """A number from 0 to 1 that belongs to a name, so that a fleet spreads evenly and each node keeps its place.

    >>> place_of("n1") == place_of("n1") != place_of("n2")
    True
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest()) / (1 << 48)


# ---- the machine -----------------------------------------------------------------------------------------------------


def pace_place(uid: int | None = None) -> Path:
    """Where the last look is kept: for root in /run, which needs no home directory and no disk."""
    number = os.getuid() if uid is None else uid
    return Path("/run/fairlead/preflight") if number == 0 else state_place() / "preflight"


def since_boot_s() -> float:
    """Seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The number of this boot; empty where the kernel does not say."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


Looking = Callable[[], tuple[Verdict, tuple[Finding, ...]]]
"""Looks at the node this runs on."""


def paced(
    look: Looking,
    node: str,
    every_s: float,
    place: Path,
    *,
    wait_s: float = 0.0,
    now: Callable[[], float] = since_boot_s,
    sleep: Callable[[float], None] = time.sleep,
) -> Paced:
    """Look, if it is time and nobody else is at it; else what the last look found.

    While somebody else looks and nothing is known yet, waits up to `wait_s` for that look. A place that cannot be
    written is no reason not to look: then there is no pace.
    """
    boot, deadline = boot_id(), now() + wait_s
    while True:
        with _alone(place) as is_mine:
            last = _last(place, node, boot, now())
            if is_mine and is_due(last, node, every_s, now_s=now(), boot=boot):
                return _look(look, node, boot, place, now)
        if is_mine or last is not None or now() >= deadline:
            return _known(last, now())
        sleep(_POLL_S)


def _look(look: Looking, node: str, boot: str, place: Path, now: Callable[[], float]) -> Paced:
    started_s = now()
    verdict, findings = look()
    bad = tuple(f for f in findings if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN))
    taken = Look(node=node, verdict=verdict, findings=bad[:MAX_FINDINGS], started_s=started_s, boot=boot)
    with contextlib.suppress(DiskFull, NotPermitted):
        write_atomic(own_place(place) / "here.json", to_json(taken), mode=PRIVATE_FILE)
    return Paced(taken, is_fresh=True, age_s=0.0, findings=findings)


def _known(last: Look | None, now_s: float) -> Paced:
    if last is None:
        return Paced(None, is_fresh=False, age_s=0.0)
    return Paced(last, is_fresh=False, age_s=now_s - last.started_s, findings=last.findings)


def _last(place: Path, node: str, boot: str, now_s: float) -> Look | None:
    """The last look at this node since boot, if there is one that can be read."""
    try:
        own_folder(place, make=False)
        found = from_json(read_file(place / "here.json", MAX_BYTES, ours=True), Look)
    except (OSError, ValueError):
        return None
    return found if found.node == node and found.boot == boot and found.started_s <= now_s else None


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """Hold the lock, if it is free; says whether it was. Where there can be no lock, everybody may go on."""
    with contextlib.ExitStack() as stack:
        is_mine = True
        try:
            own_folder(place)
            lock = stack.enter_context(open(place / "here.lock", "a", opener=private_opener))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_mine = False
        except OSError:
            pass  # a full or read-only place: look without pace
        yield is_mine
