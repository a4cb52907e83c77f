"""How much of a store is kept: whole days go, the oldest first, and a record says which.

The day is the one on which the store took records in: the table is parted by it, so a day goes at once and nothing is
written anew. How far files were read is noted before, so what was dropped is not read again.
"""

from __future__ import annotations

import datetime as dt
import logging
import platform
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from fairlead.logs.parse import Record
from fairlead.logs.store import Day, Store
from fairlead.logs.table import Logs
from fairlead.records.log import tell

_log = logging.getLogger("fairlead.logs")
SAID_BY = "fairlead-store"
FILE_ID = 1
"""The number of the source that says what was dropped; those of files and nodes are drawn from 62 bits."""


class Plan(NamedTuple):
    """What has to go."""

    drop: list[tuple[Day, str]]
    """With the reason."""
    over_bytes: int
    """So much more than the limit is left, all of it of the current day."""


class Dropped(msgspec.Struct, frozen=True):
    """A day that went."""

    day: str
    records: int
    bytes: int
    why: str


class Kept(msgspec.Struct, frozen=True):
    """What a store holds, and what went."""

    bytes: int
    records: int
    oldest_day: str
    keep_days: int
    max_bytes: int
    over_bytes: int
    dropped: list[Dropped] = []

    @property
    def says(self) -> str:
        """In a sentence; empty where nothing has to be said."""
        said = [f"{each.records:,} records of {each.day} were dropped: {each.why}" for each in self.dropped]
        if self.over_bytes:
            said.append(f"the current day alone is {_gib(self.over_bytes)} above max_gib, and is kept")
        return "; ".join(said)


def plan(days: Sequence[Day], keep: Logs, today: dt.date) -> Plan:
    """What of these days has to go. Pure."""
    drop: list[tuple[Day, str]] = []
    size = sum(day.bytes for day in days)
    most = max_bytes(keep)
    for day in sorted(days):
        age = (today - dt.date.fromisoformat(day.date)).days
        if age <= 0:
            break
        if keep.keep_days and age > keep.keep_days:
            drop.append((day, f"older than keep_days = {keep.keep_days}"))
        elif most and size > most:
            drop.append((day, f"the oldest day, and all took {_gib(size)} of max_gib = {keep.max_gib:g}"))
        else:
            break
        size -= day.bytes
    return Plan(drop, max(0, size - most) if most else 0)


def max_bytes(keep: Logs) -> int:
    """The limit of the size; 0 is none."""
    return int(keep.max_gib * (1 << 30))


def trim(store: Store, keep: Logs) -> Kept:
    """Drop what has to go; what is left."""
    days = store.days()
    now = time.time()
    wanted = plan(days, keep, dt.datetime.fromtimestamp(now, dt.UTC).date())
    dropped = []
    for day, why in wanted.drop:
        gone = Dropped(day.date, day.records, day.bytes, why)
        store.drop_day(day, partial(_say, store, gone, now))
        tell(_log, "day is dropped", day=gone.day, records=gone.records, bytes=gone.bytes, why=why)
        dropped.append(gone)
    left = [day for day in days if day not in {gone for gone, _ in wanted.drop}]
    return Kept(
        bytes=sum(day.bytes for day in left), records=sum(day.records for day in left),
        oldest_day=min((day.date for day in left), default=""), keep_days=keep.keep_days, max_bytes=max_bytes(keep),
        over_bytes=wanted.over_bytes, dropped=dropped,
    )  # fmt: skip


def _say(store: Store, gone: Dropped, now: float) -> None:
    """One record for each day, however often it has to be begun."""
    offset = dt.date.fromisoformat(gone.day).toordinal()
    if store.has(FILE_ID, offset):
        return
    when = dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = f"{when} {SAID_BY} warning: dropped {gone.records} records of {gone.day}, {gone.bytes} bytes: {gone.why}"
    fields = {"DroppedRecords": str(gone.records), "DroppedBytes": str(gone.bytes), "DroppedDay": gone.day}
    record = Record(
        time_ns=int(now) * 10**9, raw=text, node=platform.node(), level="warning", component=SAID_BY, fields=fields,
        time_from="line", offset=offset, end=offset + 1,
    )  # fmt: skip
    store.view("collect_CL")
    store.add([record], SAID_BY, "collect_CL", FILE_ID)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
