"""The data path of accelerated NICs by the kernel's messages: where it is, and when the virtual function was away.

hv_netvsc says when it moves traffic to a virtual function (VF) and from it, and when the VF comes and goes
(linux drivers/net/hyperv/netvsc_drv.c: `Data path switched to VF: %s`, `VF unregistering: %s`, `VF slot %u removed`).
While a host is serviced the VF is revoked and given back; traffic takes the synthetic path meanwhile. Two or three
changes while the machine starts are normal (learn.microsoft.com: accelerated-networking-how-it-works), and so are
those that somebody causes by unloading the driver.

Pure: lines of a log in, windows out. The same for an audit, which has a whole log, and for the watch on nodes, which
has it line by line; so this is Python 3.9 with its standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_WINDOWS = 1000
"""Of one NIC, the newest ones."""
BOOT_S = 120.0
"""How long after the start of the kernel changes of the path belong to starting."""

LINE = re.compile(
    r"hv_netvsc (?:(?P<device>[\w.-]+) )?(?P<nic>[\w.@-]{1,32})(?: \([^)]*\))?: (?:"
    r"Data path switched (?P<way>to|from) VF: (?P<vf>\S+)"
    r"|VF (?P<what>registering|unregistering|up|down): (?P<name>\S+)"
    r"|VF slot \d+ (?P<slot>added|removed))"
)
RELOAD = re.compile(r"hv_vmbus: unregistering driver hv_netvsc")
BOOT = re.compile(r"Linux version \d")
Line = tuple[float, int, str]


@dataclass(frozen=True)
class Window:
    """A time without the VF. `end_s` None: it has not come back by the end of the log."""

    nic: str
    start_s: float
    end_s: float | None
    is_revoked: bool
    """The VF itself went; else only the path left it, as when its link goes down."""

    @property
    def duration_s(self) -> float | None:
        """How long it was; None while it lasts."""
        return None if self.end_s is None else round(self.end_s - self.start_s, 6)

    def as_data(self) -> dict[str, Any]:
        """For JSON: seconds of the log's own clock."""
        return {
            "nic": self.nic,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "duration_s": self.duration_s,
            "revoked": self.is_revoked,
        }


@dataclass(frozen=True)
class Path:
    """What a log says of one synthetic NIC."""

    nic: str
    on_vf: bool | None
    """By the last message; None: no message says."""
    since_s: float
    last: str
    """The message that decided, as the kernel wrote it."""
    windows: tuple[Window, ...]
    num_boot: int
    """How often the path left the VF and came back while the machine started."""

    @property
    def away(self) -> Window | None:
        """The window that is open at the end."""
        return self.windows[-1] if self.windows and self.windows[-1].end_s is None else None


def paths(lines: Iterable[Line | Sequence[Any]], *, boot_s: float | None = 0.0) -> Mapping[str, Path]:
    """Synthetic NIC -> its path, by the log's lines in their order.

    `boot_s`: when the machine started, by the log's seconds; None where only a line of it could say.
    """
    log = PathLog(boot_s)
    for seconds, _, text in lines:
        log.take(seconds, text)
    return {one.nic: one.path() for one in log.followed.values()}


class PathLog:
    """A log, line by line. A line that tells of a new start begins anew."""

    def __init__(self, boot_s: float | None = 0.0) -> None:
        self.boot_s = boot_s
        self.before_s: float | None = None
        self.followed: dict[str, Follower] = {}

    def take(self, seconds: float, text: str) -> Follower | None:
        """One line; returns the NIC that it tells of."""
        # times that begin again tell of a new start too, in the console of a machine that was restarted
        if BOOT.search(text) or (self.before_s is not None and seconds < min(self.before_s - BOOT_S, BOOT_S)):
            self.boot_s = seconds
            for one in self.followed.values():
                one.restart()
        self.before_s = seconds
        if RELOAD.search(text):
            for one in self.followed.values():
                one.is_ours = one.on_vf is True
        match = LINE.search(text)
        if match is None:
            return None
        one = self.followed.setdefault(match["device"] or match["nic"], Follower())
        one.nic = match["nic"]  # a NIC may be renamed while the machine starts
        one.take(match, seconds, self.boot_s, text)
        return one


@dataclass
class Follower:
    """One NIC on the way through a log."""

    nic: str = ""
    on_vf: bool | None = None
    since_s: float = 0.0
    last: str = ""
    windows: list[Window] = field(default_factory=list)
    num_boot: int = 0
    shows_vfs: bool = False
    """The log has messages of VFs that come and go; one without may be a selection of lines."""
    shows_slots: bool = False
    """It tells when the host takes a VF away, as kernels since 5.8 do."""
    left_s: float | None = None
    is_gone: bool = False
    is_taken: bool = False
    is_ours: bool = False
    """Somebody unloads the driver."""
    is_starting: bool = False
    """The path left the VF while the machine started."""

    def take(self, match: re.Match[str], seconds: float, boot_s: float | None, text: str) -> None:
        """One line that tells of it."""
        self.shows_vfs |= match["what"] is not None
        self.shows_slots |= match["slot"] is not None
        is_gone = match["what"] == "unregistering" or match["slot"] == "removed"
        if match["way"] == "to":
            self._return(seconds)
            self.on_vf, self.since_s, self.last = True, seconds, text
        elif match["way"] == "from" or (is_gone and self.on_vf):
            if self.left_s is None:
                self.left_s, self.is_starting = seconds, boot_s is not None and seconds - boot_s < BOOT_S
            self.on_vf, self.since_s, self.last = False, seconds, text
        if self.left_s is not None:
            self.is_gone |= is_gone
            self.is_taken |= match["slot"] == "removed"

    def _return(self, seconds: float) -> None:
        """The path is on the VF again: what was open is a window now, unless it belongs to starting."""
        if self.left_s is not None and self.is_starting:
            self.num_boot += 1
        elif self.left_s is not None and not self.is_ours:
            self.windows = [*self.windows[-MAX_WINDOWS + 1 :], self._window(self.left_s, seconds)]
        self.left_s, self.is_gone, self.is_taken, self.is_ours = None, False, False, False

    def _window(self, start_s: float, end_s: float | None) -> Window:
        is_revoked = self.is_taken if self.shows_slots else self.is_gone or not self.shows_vfs
        return Window(self.nic, start_s, end_s, is_revoked)

    def restart(self) -> None:
        """The machine starts anew: what was open is over, whenever that was."""
        self.left_s, self.is_gone, self.is_taken, self.is_ours, self.on_vf = None, False, False, False, None
        self.num_boot = 0

    def path(self) -> Path:
        """What became of it. A path that left its VF and never came back is a window without an end."""
        is_open = self.left_s is not None and not self.is_ours
        more = [self._window(self.left_s, None)] if is_open and self.left_s is not None else []
        return Path(self.nic, self.on_vf, self.since_s, self.last, (*self.windows, *more), self.num_boot)


def matching(start_s: float, end_s: float, spans: Iterable[tuple[float, float, Any]], within_s: float) -> Any:
    """What explains a window: the event that was known within `within_s` of it; None for none.

    `spans`: (first known, last known, event) on the window's clock. An event leaves the platform's list when it is
    over, so the last look at it may be before the window ends.
    """
    fitting = [span for span in spans if span[0] - within_s <= end_s and span[1] + within_s >= start_s]
    return min(fitting, key=lambda span: abs(span[1] - start_s))[2] if fitting else None
