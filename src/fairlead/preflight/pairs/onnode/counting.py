"""Reads the counters of this node's ports; judges nothing."""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

NET, IB = "/sys/class/net/%s/%s%s", "/sys/class/infiniband/%s/ports/%d/counters/%s"


def read_counters(ports: Iterable[Sequence[Any]], counters: Iterable[Sequence[str]]) -> dict[str, dict[str, int]]:
    """Rail -> counter -> value; what cannot be read is left out."""
    found: dict[str, dict[str, int]] = {}
    for rail, interface, device, port in ports:
        own = found[rail] = {}
        for name, where in counters:
            if where == "net" and interface:
                path = NET % (interface, "" if name == "carrier_changes" else "statistics/", name)
            elif where == "ib" and device:
                path = IB % (device, port, name)
            else:
                continue
            try:
                with open(path, "rb") as file:  # noqa: PTH123 - quick, and all it takes
                    own[name] = int(file.read(64))
            except (OSError, ValueError):
                continue
    return found


def tell_counters() -> None:
    """A program of its own: one order in, one answer out, not before the ports were watched for long enough."""
    order = json.loads(sys.stdin.buffer.readline())
    me = order["nodes"].index(os.environ["FAIRLEAD_NODE"])
    watch_s, since_ns = order["watch_ms"] / 1000, order["since_ns"][me]
    if since_ns:
        time.sleep(min(watch_s, max(0.0, watch_s - (time.time_ns() - since_ns) / 1e9)))
    found = read_counters(order["ports"][me], order["counters"])
    print(json.dumps({"step": order["step"], "counters": found, "clock_ns": time.time_ns()}), flush=True)  # noqa: T201
