"""What comes back from a group of ranks while it runs, as types. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

STOPPED = "stopped"
"""State of a rank that was ended from here: how it then ended says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A rank said something: `what`, and the fields that go with it."""

    rank: int
    node: str
    at_s: float
    """Seconds since the launch, by this side's clock."""
    what: str
    fields: Mapping[str, Any]

    @property
    def phase(self) -> str:
        """The phase it enters, if this is what it says."""
        return str(self.fields.get("phase", "")) if self.what == "phase" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life from a task; it says nothing about how far its body is."""

    rank: int
    node: str
    at_s: float
    state: str = ""
    """The kernel's letter for the body where it does not run: T stopped, D stuck in the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotStart:
    """A rank is there and cannot begin: no torch, no GPU, no such backend. See starts.toml for each `why`."""

    rank: int
    node: str
    at_s: float
    why: str
    kind: str
    """The class of the exception; empty where there was none."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """A line that is no message: a library's log, a traceback."""

    rank: int
    node: str
    at_s: float
    stream: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lied:
    """A rank sent what no rank of ours sends; it is heard no more."""

    rank: int
    node: str
    at_s: float
    what: str
    said: str
    """Its beginning, escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A rank's process has ended."""

    rank: int
    node: str
    at_s: float
    state: str
    """A State of cluster, or STOPPED."""
    rc: int | None
    error: str

    @property
    def is_well(self) -> bool:
        """Whether it came to its end by itself, with status 0."""
        return self.state == "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The scheduler has not begun the step."""

    at_s: float
    job: str
    said: str
    """What srun says."""
    squeue: str = ""
    """`STATE|REASON`, as squeue says it; empty where it could not be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """The scheduler itself ended the step, or lost a node of it."""

    at_s: float
    why: str
    """time limit, node failure, preemption, cancelled, ...; see cut.py."""
    nodes: str
    """Folded, of those it lays the fault to; empty: to none."""
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The last: the group has ended. `why` is empty where it did so by itself."""

    at_s: float
    kind: str = ""
    """ended, held, stopped, stuck, silent, absent, rendezvous, behind, hang, limit; see watch.py."""
    why: str = ""
    ranks: tuple[int, ...] = ()
    """Who kept the others waiting, where that is known."""


Event: TypeAlias = Said | Beat | CannotStart | Wrote | Lied | Ended | Held | CutOff | Over
