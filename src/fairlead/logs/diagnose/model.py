"""What a diagnosis is made from, and what it says. Times are nanoseconds since 1970, UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from fairlead.records.finding import Finding

Confidence = Literal["high", "medium", "low", "none"]


@dataclass(frozen=True, slots=True)
class Line:
    """A record of the store, as far as it may matter."""

    node: str
    """Whose file it is, or the host that the line names."""
    time_ns: int
    text: str
    """The whole record."""
    table: str
    time_from: str = "line"
    """`line`; `before`: of the last line of the file that had one; `file`: when the file was written."""
    component: str = ""
    rank: str = ""
    path: str = ""
    file_id: int = 0
    offset: int = 0
    job: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What accounting says of a job."""

    id: int
    nodes: tuple[str, ...]
    """In the order in which ranks were laid out."""
    start_ns: int
    end_ns: int | None
    """None while it runs."""
    state: str = ""
    """As sacct prints it; empty where nobody said."""
    exit_code: str = ""
    num_tasks: int = 0
    """0: not known."""
    name: str = ""

    @property
    def word(self) -> str:
        """The state without who cancelled it: `CANCELLED`."""
        return self.state.partition(" ")[0].rstrip("+")

    @property
    def ended_well(self) -> bool:
        """Whether there is nothing to explain."""
        return self.word == "COMPLETED" and self.exit_code in {"", "0:0"}


class Progress(NamedTuple):
    """How far somebody's output went on: behind this offset, and after this time, stand only a few steps."""

    offset: int
    time_ns: int
    """0: its lines have no time."""


@dataclass(frozen=True, slots=True)
class Told:
    """A finding of another run of fairlead, and when it was made."""

    time_ns: int
    run: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Rank:
    """What a dump of a flight recorder says of one rank."""

    rank: int
    groups: Mapping[str, Mapping[int, str]]
    """Process group -> number of the collective -> its name and state: `all_reduce scheduled`."""
    members: Mapping[str, tuple[int, ...]]
    """Process group -> its ranks."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a diagnosis is made from."""

    job: Job
    lines: tuple[Line, ...]
    progress: Mapping[tuple[int, str], Progress] = field(default_factory=dict)
    """(file, rank) -> where its last steps but a few stand."""
    findings: tuple[Told, ...] = ()
    dumps: tuple[Rank, ...] = ()
    ranks_seen: tuple[int, ...] = ()
    """Ranks that wrote anything at all."""


class Cited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a log that is quoted."""

    time: str
    """UTC, ISO 8601; with `~` before it where it is the time of a line nearby."""
    node: str
    source: str
    text: str
    says: str = ""
    signature: str = ""
    path: str = ""


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One link of the chain from the cause to the end of the job."""

    what: str
    """The class of the cause, or the name of a symptom."""
    says: str
    nodes: str = ""
    num: int = 1
    line: Cited | None = None


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was not taken, and why."""

    what: str
    nodes: str
    why: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job died."""

    job: int
    state: str
    what: str
    """The class; `not-in-the-logs`; empty where nothing is to be explained."""
    confidence: Confidence
    says: str
    """One sentence."""
    nodes: tuple[str, ...] = ()
    """Who is to blame, the likeliest first; two where nothing tells between them."""
    at: str = ""
    """Where the cause is, though nobody is to blame for it: the node of the rank that raised an exception."""
    devices: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    roots: tuple[Cited, ...] = ()
    chain: tuple[Link, ...] = ()
    victims: str = ""
    """Nodes that only suffered, folded."""
    remedy: str = ""
    command: str = ""
    """What takes the node out, or tells two apart."""
    exclude: str = ""
    """`--exclude=gpu03` for sbatch and srun."""
    cited: tuple[Finding, ...] = ()
    others: tuple[Other, ...] = ()
    unusual: tuple[str, ...] = ()
    offsets_s: Mapping[str, tuple[float, float]] = {}
    """Node -> how far its clock is ahead of the controller's, at least and at most, where both told of one event."""
