"""Which way a synthetic NIC's traffic takes, line by line of the kernel's log, and its windows without its VF.

What the lines mean, `checks.datapath` says, for an audit and here alike. A window opens here as soon as the virtual
function is taken; one that is taken while the machine starts, once it has stayed away. Pure.
"""

from __future__ import annotations

from fairlead.checks.datapath import BOOT_S, Follower, PathLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_KEPT = 64


class VfWindows:
    """The path of every synthetic NIC, and the newest windows."""

    def __init__(self) -> None:
        self.log = PathLog()
        self.way: dict[str, str] = {}
        """NIC -> vf or synthetic."""
        self.gone: dict[str, dict[str, Any]] = {}
        """NIC -> the window that is open."""
        self.windows: list[dict[str, Any]] = []
        """`nic`, `vf`, `start_s`, `end_s` (missing while open); seconds of the log's own clock. The newest ones."""

    def take(self, at_s: float, text: str) -> dict[str, Any] | None:
        """One line of the log; returns the window that it opened or closed."""
        one = self.log.take(at_s, text)
        if one is None:
            return None
        if one.on_vf is not None:
            self.way[one.nic] = "vf" if one.on_vf else "synthetic"
        if one.on_vf and one.nic in self.gone:
            window = self.gone.pop(one.nic)
            window["end_s"], window["vf"] = at_s, one.last.rpartition(": ")[2][:32]
            return window
        return None if one.is_starting else self._open(one)

    def settled(self, at_s: float) -> list[dict[str, Any]]:
        """Windows that open by the time that has passed: the virtual function went while the machine started."""
        late = [one for one in self.log.followed.values() if one.left_s is not None and at_s - one.left_s > BOOT_S]
        return [window for window in map(self._open, late) if window is not None]

    def _open(self, one: Follower) -> dict[str, Any] | None:
        away = one.path().away
        if away is None or not away.is_revoked or one.nic in self.gone:
            return None
        window = self.gone[one.nic] = {"nic": one.nic, "start_s": away.start_s}
        self.windows = [*self.windows[-MAX_KEPT + 1 :], window]
        return window
