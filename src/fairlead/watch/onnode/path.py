"""Which way a synthetic NIC's traffic takes, by the kernel's own words, and the windows without a virtual function.

The words are those of hv_netvsc (linux drivers/net/hyperv/netvsc_drv.c): `Data path switched to VF: NAME`, `VF
unregistering: NAME`, `VF slot N removed`. A window begins when the path leaves the VF, and is one only if the VF itself
goes: at boot the path flips two or three times with the VF in place (learn.microsoft.com, how Accelerated Networking
works). Pure; the same for a live log, a captured one and a serial console.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORDS = re.compile(
    r"hv_netvsc \S+ (?P<nic>[\w.-]{1,32})(?: \([^)]*\))?: "
    r"(?:Data path switched (?P<way>to|from) VF: (?P<vf>[\w.-]{1,32})"
    r"|(?P<lost>VF unregistering|VF slot \d+ removed)|(?P<came>VF registering|VF slot \d+ added))"
)
MAX_WINDOWS = 64


class Paths:
    """The path of every synthetic NIC, line by line."""

    def __init__(self) -> None:
        self.way: dict[str, str] = {}
        """NIC -> vf or synthetic."""
        self.left: dict[str, float] = {}
        """NIC -> when the path last left the VF."""
        self.gone: dict[str, dict[str, Any]] = {}
        """NIC -> the window that is open."""
        self.windows: list[dict[str, Any]] = []
        """`nic`, `vf`, `start_s`, `end_s` (missing while open); seconds of the log's own clock. The newest ones."""

    def take(self, at_s: float, text: str) -> dict[str, Any] | None:
        """One line of the log; returns the window that it opened or closed."""
        found = WORDS.search(text)
        if found is None:
            return None
        nic = found["nic"]
        if found["way"] == "from":
            self.way[nic] = "synthetic"
            self.left[nic] = at_s
        elif found["way"] == "to":
            self.way[nic] = "vf"
            self.left.pop(nic, None)
            window = self.gone.pop(nic, None)
            if window is not None:
                window["end_s"], window["vf"] = at_s, found["vf"]
                return window
        elif found["lost"] and nic not in self.gone and (nic in self.way):
            # a driver that goes before it tells of the path takes the path along
            start_s = self.left.get(nic, at_s)
            self.way[nic] = "synthetic"
            window = self.gone[nic] = {"nic": nic, "start_s": start_s}
            self.windows = [*self.windows[-MAX_WINDOWS + 1 :], window]
            return window
        return None


def matching(window: dict[str, Any], scheduled: list[dict[str, Any]], within_s: float) -> dict[str, Any] | None:
    """The scheduled event that explains a window: one that was known within `within_s` of its start.

    `scheduled` holds events with `first_s` and `last_s`, when they were first and last seen, on the window's clock.
    An event leaves the platform's list when it is over, so the last look at it may be before the window ends.
    """
    start_s, end_s = window["start_s"], window.get("end_s", window["start_s"])
    fitting = [
        event for event in scheduled if event["first_s"] - within_s <= end_s and event["last_s"] + within_s >= start_s
    ]
    return min(fitting, key=lambda event: abs(event["last_s"] - start_s), default=None)
