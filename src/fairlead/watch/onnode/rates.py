"""Counters to rates. A counter that stands at the end of its register says `at least`, one that ran backwards nothing.

Pure: two samples in, deltas out. Times are seconds of CLOCK_BOOTTIME, which nobody sets back.
"""

from __future__ import annotations

from fairlead.probe.readers.infiniband import COUNTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORD = 4
"""port_rcv_data and port_xmit_data count words of four bytes (IBTA PortCounters; linux sysfs-class-infiniband)."""
WRAPS = 1 << 32
"""Some hw_counters are 32 bits wide and wrap (mlx5; facts differ by firmware)."""
NEAR = 1 << 28


def delta(before: Any, now: Any, stands_at: int | None = None) -> int | None:
    """How much a counter grew; None where that cannot be told: a hole, a reset, a register at its end.

    >>> delta(7, 9), delta(9, 7), delta(250, 255, 255), delta((1 << 32) - 1, 4)
    (2, None, None, 5)
    """
    if type(before) is not int or type(now) is not int or before < 0 or now < 0:
        return None
    if stands_at is not None and now >= stands_at:
        return None
    if now >= before:
        return now - before
    if stands_at is None and WRAPS - NEAR <= before < WRAPS and now < NEAR:
        return now + WRAPS - before
    return None


def port_deltas(before: dict[str, Any], now: dict[str, Any]) -> dict[str, int | None]:
    """Every counter of an RDMA port: how much it grew. Another device of the same name has no past."""
    if before.get("guid") != now.get("guid"):
        return {}
    found = {}
    for kind in ("counters", "hw"):
        old, new = before.get(kind, {}), now.get(kind, {})
        for name, value in new.items():
            if name in old:
                found[name] = delta(old[name], value, COUNTERS.get(name) if kind == "counters" else None)
    return found


def port_bytes(grown: dict[str, int | None]) -> tuple[int | None, int | None]:
    """(received, sent) bytes of a port; None where unknown."""
    words = grown.get("port_rcv_data"), grown.get("port_xmit_data")
    return tuple(None if w is None else w * WORD for w in words)  # type: ignore[return-value]


def link_deltas(before: dict[str, Any], now: dict[str, Any], names: tuple[str, ...]) -> dict[str, int | None]:
    """The same for a network link."""
    return {name: delta(before.get(name), now.get(name)) for name in names}


def vf_share(total: dict[str, int | None], vf: dict[str, int | None]) -> float | None:
    """The share of bytes that took the virtual function; hv_netvsc counts them in the link's own as well."""
    ours = [total.get("rx_bytes"), total.get("tx_bytes")]
    theirs = [vf.get("vf_rx_bytes"), vf.get("vf_tx_bytes")]
    if None in ours or None in theirs or sum(ours) <= 0:  # type: ignore[arg-type]
        return None
    return min(1.0, sum(theirs) / sum(ours))  # type: ignore[arg-type]


class Growth:
    """How much something grew within the last so many seconds, in 60 steps: bounded whatever happens."""

    STEPS = 60

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self.steps: list[list[float]] = []
        """[end of the step, growth]: steps without growth are left out."""

    def add(self, at_s: float, growth: float) -> float:
        """Take a growth at a time; returns the sum of the window."""
        step = self.length_s / self.STEPS
        if growth:
            if self.steps and at_s - self.steps[-1][0] < step:
                self.steps[-1][1] += growth
            else:
                self.steps.append([at_s, growth])
        return self.sum(at_s)

    def sum(self, at_s: float) -> float:
        """Of the window that ends now."""
        while self.steps and self.steps[0][0] <= at_s - self.length_s:
            self.steps.pop(0)
        return sum(growth for _, growth in self.steps)
