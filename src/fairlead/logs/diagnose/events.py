"""From hits to events: about whom, and from when to when. Lines of other jobs and other nodes fall out here. Pure."""

from __future__ import annotations

import datetime as dt
import email.utils
from collections import Counter
from dataclasses import dataclass, field

from fairlead.logs.diagnose.clocks import Offset, offsets
from fairlead.logs.diagnose.model import Evidence, Job
from fairlead.logs.diagnose.places import Places
from fairlead.logs.diagnose.signatures import Hit, read, speaker
from fairlead.logs.diagnose.table import Limits, table

NS = 10**9


@dataclass(slots=True)
class Event:
    """Something that happened to somebody."""

    hit: Hit
    cls: str
    role: str
    nodes: tuple[str, ...]
    """Whom it is about; two of a pair, the speaker first; empty: no node."""
    early: int
    late: int
    by: str
    """The node that tells of it; empty: the controller, or nobody knows."""
    device: str = ""
    rank: int | None = None
    peer: str = ""
    """The peer as it was named, where it is none of the job's nodes."""
    ended: int | None = None
    """When it was over, where a line says so."""
    flaps: int = 1

    def before(self, other: Event, slack: int = 0) -> bool:
        """Whether it was earlier for certain."""
        if self.hit.line.file_id and self.hit.line.file_id == other.hit.line.file_id:
            return self.early + slack < other.early or (slack == 0 and self.hit.line.offset < other.hit.line.offset)
        return self.late + slack < other.early


@dataclass(slots=True)
class Scene:
    """All that happened around a job."""

    job: Job
    places: Places
    offsets: dict[str, Offset]
    start: int
    end: int
    events: list[Event] = field(default_factory=list)


def scene(evidence: Evidence, now_ns: int) -> Scene:
    """The events of a job, in the order of their times."""
    job, limits = evidence.job, table().limits
    hits = [hit for line in evidence.lines if (hit := read(line)) is not None]
    places = Places(job, (hit for hit in hits if hit.signature.role == "learn"))
    known = offsets(job, evidence.lines, places, int(limits.clock_s * NS))
    made = Scene(job, places, known, job.start_ns, job.end_ns or now_ns)
    ends: list[Event] = []
    for hit in hits:
        if hit.signature.role == "learn" or not _is_ours(hit, job):
            continue
        event = _event(hit, made, limits)
        if event is not None:
            (ends if event.role == "end" else made.events).append(event)
    made.events.sort(key=lambda e: (e.early, e.late, e.hit.line.file_id, e.hit.line.offset, e.hit.line.text))
    _end(made.events, ends)
    return made


def _is_ours(hit: Hit, job: Job) -> bool:
    said = hit.groups.get("job")
    if said:
        return int(said) == job.id
    return not (hit.line.job is not None and hit.line.job != job.id and speaker(hit.line) in {"slurmctld", "slurmd"})


def _event(hit: Hit, scene: Scene, limits: Limits) -> Event | None:
    places, line, sig = scene.places, hit.line, hit.signature
    rank = places.rank_of(line, hit.groups.get("rank", "")) if speaker(line) == "job" else None
    by = places.of_speaker(line, rank)
    nodes: tuple[str, ...] = (by,) if by else ()
    peer = hit.groups.get("peer", "")
    if "node" in hit.groups:
        nodes = places.named(hit.groups["node"])
        if not nodes:
            return None
    elif sig.nobody:
        nodes = ()
    elif sig.pair and peer:
        other = places.node(peer)
        nodes = tuple(dict.fromkeys(name for name in (by, other) if name))
        peer = "" if other else peer
    elif not nodes and speaker(line) not in {"job", "slurmctld"}:
        return None  # the kernel of somebody else's node
    early, late = _when(hit, scene, by, limits)
    slack = int(limits.slack_s * NS)
    tail = 0 if not (sig.late_s or sig.role == "end") else int(limits.tail_s * NS)
    if early > scene.end + slack + tail or late < scene.start - int(limits.lead_s * NS):
        return None
    device = hit.groups.get("dev", "") or hit.groups.get("server", "")
    return Event(hit, sig.cls, sig.role, nodes, early, late, by, device.lower(), rank, peer)


def _when(hit: Hit, scene: Scene, by: str, limits: Limits) -> tuple[int, int]:
    line, clock = hit.line, scene.offsets.get(by)
    middle, half = (
        (clock.middle, clock.half) if clock else (0, 0 if speaker(line) == "slurmctld" else int(limits.clock_s * NS))
    )
    at = line.time_ns - middle
    if due := _due(hit.groups.get("due", "")):
        return due, due  # by the platform's clock, whenever it was announced
    if line.time_from == "before":
        return at - half, max(scene.end, at)
    if line.time_from != "line":
        return scene.start, scene.end
    if ran := hit.groups.get("ran_ms"):
        at -= int(ran[:12]) * 10**6
    late = float(hit.groups.get("late_s") or hit.signature.late_s)
    return at - half - int(late * NS), at + half


def _due(said: str) -> int:
    """A date of HTTP; 0 where it is none."""
    try:
        when = email.utils.parsedate_to_datetime(said)
        return int((when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp()) * NS
    except (TypeError, ValueError, OverflowError):
        return 0


def _end(events: list[Event], ends: list[Event]) -> None:
    """What took events back, and how often a device went down."""
    downs = Counter((e.hit.signature.id, e.nodes, e.device) for e in events)
    taken: dict[str, list[Event]] = {}
    for end in ends:
        for name in end.hit.signature.ends:
            taken.setdefault(name, []).append(end)
    for one in events:
        over = [
            end.late
            for end in taken.get(one.hit.signature.id, ())
            if set(one.nodes) & set(end.nodes)
            and (not one.device or not end.device or one.device == end.device)
            and end.hit.line.time_ns >= one.hit.line.time_ns
        ]
        one.ended = min(over, default=None)
        one.flaps = downs[one.hit.signature.id, one.nodes, one.device]
