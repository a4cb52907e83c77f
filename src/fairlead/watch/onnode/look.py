"""Run on a node for who looks: the picture of now, as it is or as it changes; the chain followed. Reads only.

The request comes as a line of JSON: {"do": "now" | "follow" | "verify", "folder": "", "heads": {...}}; answers are
lines of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import time

from fairlead.base.trust import read_file
from fairlead.cluster.channel import Channel
from fairlead.watch.onnode.chain import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOW_FILE, MAX_NOW = "now.json", 1 << 19
LOOK_S = 0.25


def folders(said: str) -> list[str]:
    """Where a watch of this node may have its files: of root, of the user; by the cluster's name, by its own."""
    if said:
        return [said]
    own = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    tops = dict.fromkeys(["/var/lib" if os.geteuid() == 0 else own, "/var/lib"])
    names = dict.fromkeys(filter(None, [os.environ.get("FAIRLEAD_NODE", ""), socket.gethostname()]))
    return [os.path.join(top, "fairlead", "watch", name) for top in tops for name in names]


def picture(places: list[str]) -> dict[str, Any]:
    """Now, or `error` and why."""
    why = "no watch has run here"
    for place in places:
        try:
            found = json.loads(read_file(os.path.join(place, NOW_FILE), MAX_NOW, ours=True))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            why = "%s: %s" % (place, getattr(error, "strerror", None) or error)
            continue
        if isinstance(found, dict):
            found["age_s"] = round(time.time() - found.get("t", 0) / 1e9, 1)
            found["folder"] = place
            return found
    return {"error": why}


def followed(places: list[str], heads: dict[int, str]) -> dict[str, Any]:
    """The chain of this node, or `error`."""
    for place in places:
        try:
            return {**check(place, heads), "folder": place}
        except FileNotFoundError:
            continue
        except OSError as error:
            return {"error": "%s: %s" % (place, error.strerror)}
    return {"error": "no watch has run here"}


def look_main() -> None:
    """One request."""
    channel = Channel()
    asked = json.loads(channel.read() or "{}")
    places = folders(asked.get("folder", ""))
    if asked["do"] == "verify":
        channel.say(json.dumps(followed(places, {int(n): h for n, h in asked.get("heads", {}).items()})))
        return
    last = -1
    while True:
        found = picture(places)
        if found.get("t", 0) != last:
            last = found.get("t", 0)
            channel.say(json.dumps(found))
        if asked["do"] == "now":
            return
        try:
            channel.read(LOOK_S)
        except EOFError:
            return
